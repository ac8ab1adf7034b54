"""`stagepost demo`: a whole network in one process, good messages and bad ones, and what came of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import RenamedOption, json_option, path_option

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
    help="Number of external messages to send.",
)
@click.option("--seed", default=7, show_default=True, type=int, help="Seed of all keys and messages.")
@path_option(
    "--data",
    default="stagepost-demo",
    show_default=True,
    metavar="DIR",
    help="Folder for topics, chain and tables. The folder of an earlier demo is replaced.",
)
@click.option("--no-spark", is_flag=True, help="Make no tables.")
@click.option(
    "--live",
    "--serve",
    "live",
    cls=RenamedOption,
    is_flag=True,
    help="Run a small network until Ctrl-C instead, serve its dashboard, and let people break it from there.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="With --live: port of the dashboard; 0 takes a free port. [8137]",
)
@click.option(
    "--wire",
    is_flag=True,
    help="Send one message through two nodes instead, and explain every protocol message. Nothing is stored.",
)
@json_option
@click.pass_context
def demo(
    context: click.Context,
    count: int,
    seed: int,
    data: Path,
    no_spark: bool,
    live: bool,
    port: int | None,
    wire: bool,
    as_json: bool,
) -> int:
    """Run a whole network, send valid and invalid messages, show the outcome of each, and end.

    The network has three DMQ nodes beside a pretend cardano-node, a full node and seven validators, on ports that the system
    chooses. One program publishes reliably, another sends messages that must be refused, one validator lies, and in the end
    too few validators are left to agree. Then Spark makes tables of the receipts, if Java is installed.

    \b
    Example:
      stagepost demo
      stagepost demo --messages 50 --no-spark --data try
      stagepost demo --live
    """
    if port is not None and not live:
        raise click.UsageError("--port needs --live", context)
    if wire:
        if as_json:
            raise click.UsageError("--wire prints text only: leave out --json", context)
        from stagepost.cli.demo.wire import show_wire

        show_wire()
        return 0
    from stagepost.cli.demo.output import Output

    if live:
        from stagepost.cli.demo.live import run_live

        return run_live(seed, data, port, with_stream=not no_spark)
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
    output.next_steps(data, run.close_up.hex())
    return 0


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

    import msgspec

    from stagepost.devnet.demo.findings import findings_in
    from stagepost.remp.verdict.trace import Way
    from stagepost.trace.reading import read_trace

    now_ms = int(time.time() * 1_000)
    output.findings(findings_in(data, now_ms), run.refused)
    # The first picture is that of the receipts; `stagepost trace` draws the way of the delivery before them as well.
    trace = read_trace(data, run.close_up.hex(), now_ms)
    output.close_up(msgspec.structs.replace(trace, way=Way()))


def _make_tables(data: Path, output: Output) -> None:
    from stagepost.cli.demo.tables import TablesAbsent, count_rows, make_tables

    output.starting_tables()
    try:
        make_tables(data)
    except TablesAbsent as absent:
        output.no_tables(f"skipped: {absent}")
        return
    output.tables(count_rows(data))
