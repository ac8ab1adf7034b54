"""`stagepost demo`: a whole network in one process, good messages and bad ones, and what came of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import json_option

if TYPE_CHECKING:
    from stagepost.cli.demo.output import Output
    from stagepost.devnet.demo.network import DemoPlan, DemoRun

MESSAGES_MIN, MESSAGES_MAX = 20, 5_000


@click.command()
@click.option(
    "--messages",
    "count",
    default=200,
    show_default=True,
    type=click.IntRange(MESSAGES_MIN, MESSAGES_MAX),
    help="How many external messages.",
)
@click.option("--seed", default=7, show_default=True, type=int, help="Keys and messages follow from it.")
@click.option(
    "--data",
    default="stagepost-demo",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="What is left of it: topics, chain, tables. A folder of an earlier demo is replaced.",
)
@click.option("--no-spark", is_flag=True, help="Make no tables.")
@click.option("--serve", is_flag=True, help="Then show all of it in a browser, until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="With --serve: its port; 0 takes a free one. [8137]"
)
@click.option(
    "--wire",
    is_flag=True,
    help="Instead: one message through two nodes, every protocol message explained; nothing is kept.",
)
@json_option
@click.pass_context
def demo(
    context: click.Context,
    count: int,
    seed: int,
    data: Path,
    no_spark: bool,
    serve: bool,
    port: int | None,
    wire: bool,
    as_json: bool,
) -> int:
    """Run the whole network, send good and bad messages, and show what became of them. Ends by itself.

    Three DMQ nodes, a full node and seven validators on ports that the system chooses; a program publishes reliably, a
    stranger sends what must be refused, a validator lies, and in the end too few validators are left to agree. Then
    Spark makes tables of the receipts, if there is a Java for it.

    \b
    Example:
      stagepost demo
      stagepost demo --messages 50 --no-spark --data try
    """
    if port is not None and not serve:
        raise click.UsageError("--port is for --serve", context)
    if wire:
        if as_json:
            raise click.UsageError("--wire is for people to read: it has no --json", context)
        from stagepost.cli.demo.wire import show_wire

        show_wire()
        return 0
    from stagepost.cli.demo.output import Output

    output = Output(as_json=as_json)
    # Before anything heavy is loaded: people see at once that it has begun.
    output.begun(seed, data)
    from stagepost.devnet.demo.findings import demo_folder
    from stagepost.devnet.demo.network import DemoPlan

    with demo_folder(data):
        run = _send(DemoPlan(count, seed), data, output)
        _show(run, data, output)
        if no_spark:
            output.no_tables("left out, as asked")
        else:
            _make_tables(data, output)
    output.next_steps(data, run.close_up.hex(), is_serving=serve)
    return _serve(data, port) if serve else 0


def _send(plan: DemoPlan, data: Path, output: Output) -> DemoRun:
    import asyncio

    from stagepost.devnet.demo.network import run_demo
    from stagepost.ground.telemetry.logs import configure_logs

    with (data / "log").open("a", encoding="utf-8") as log:
        configure_logs("info", "json", log)
        run = asyncio.run(run_demo(plan, data, output.progress))
    _quiet()
    output.sent(run.published, plan.messages)
    return run


def _quiet() -> None:
    import logging

    for handler in [*logging.getLogger().handlers]:
        logging.getLogger().removeHandler(handler)
    logging.getLogger().addHandler(logging.NullHandler())


def _show(run: DemoRun, data: Path, output: Output) -> None:
    import time

    from stagepost.devnet.demo.findings import findings_in
    from stagepost.trace.reading import read_trace

    now_ms = int(time.time() * 1_000)
    output.findings(findings_in(data, now_ms), run.refused)
    output.close_up(read_trace(data, run.close_up.hex(), now_ms))


def _make_tables(data: Path, output: Output) -> None:
    from stagepost.cli.demo.tables import TablesAbsent, count_rows, make_tables

    output.starting_tables()
    try:
        make_tables(data)
    except TablesAbsent as absent:
        output.no_tables(f"skipped: {absent}")
        return
    output.tables(count_rows(data))


def _serve(data: Path, port: int | None) -> int:
    from stagepost.cli.main import run

    sys.stdout.flush()
    return run(["serve", "--data", str(data), *([] if port is None else ["--port", str(port)])])
