"""`stagepost check`: can the network finish a message now? For people and for monitors, who read the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.delivery import delivery_settings, with_settings_file
from stagepost.cli.options.shared import data_option, json_option, path_option

if TYPE_CHECKING:
    from stagepost.ground.telemetry.health import Unread

UNKNOWN = 3
QUEUE_SIZE = 1_000
PART_COLUMN = 12
TABLES_TIMEOUT_S = 10.0


class MistypedCheck(click.UsageError):
    """Monitors take 2 for critical, so a mistake on the command line has to end otherwise."""

    exit_code = UNKNOWN


class MonitorCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise MistypedCheck(error.format_message(), ctx) from error


@click.command(cls=MonitorCommand)
@data_option
@path_option("--outbox", help="Check this outbox as well; if no node runs, check only the outbox.")
@click.option(
    "--queue-size",
    type=click.IntRange(min=1),
    help=f"Messages that the outbox holds at most. [what its publisher has said, else delivery.queue_size of the settings file, else {QUEUE_SIZE}]",
)
@with_settings_file
@json_option
@click.pass_context
def check(
    context: click.Context,
    data: Path | None,
    outbox: Path | None,
    queue_size: int | None,
    config_file: Path | None,
    config_context: str | None,
    as_json: bool,
) -> None:
    """Report the health of a data folder: can the network finish a message now?

    The command looks at everything that lies in the folder: the full node or validator with its links to validators by name,
    the quorum and the age of the last final block; DMQ nodes; the outbox; the topic of statuses with its validator sets; the
    tables. The exit code is what monitors read: 0 ok, 1 warning, 2 critical, 3 unknown. A source that cannot be read is
    unknown.

    \b
    Example:
      stagepost check --data stagepost-data --outbox stagepost-outbox
    """
    import time

    from msgspec.structs import replace

    from stagepost.errors import StagepostError
    from stagepost.ground.files.data_folder import NODE_FILE
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.ground.telemetry.health import HealthFacts, OutboxReading, Severity, Unread, judge
    from stagepost.trace.folder_health import folder_facts, outbox_reading

    now_s = time.time()
    folder = data or Path(DATA_DIR)
    try:
        size = delivery_settings(config_file, config_context).get("queue_size", QUEUE_SIZE)
        # A program may publish through a node that is not its own to watch.
        if outbox is not None and data is None and not (folder / NODE_FILE).exists():
            facts = HealthFacts(outbox=outbox_reading(outbox, size, now_s))
        else:
            facts = folder_facts(
                folder, now_s, outbox=outbox, queue_size=size, tables=lambda: _tables(folder)
            )
        if queue_size is not None and isinstance(facts.outbox, OutboxReading):
            facts = replace(facts, outbox=replace(facts.outbox, capacity=queue_size))
    except StagepostError as error:
        facts = HealthFacts(sources={"settings": Unread(error.text.replace("\n", ";"), error.advice)})
    report = judge(facts, now_s)
    if as_json:
        answer = {
            "level": report.level.name.lower(),
            "part": "health",
            "text": report.text,
            "health": report.health.value,
            "exit_code": report.level.value,
        }
        click.echo(json.dumps(answer))
    else:
        colour = report.level.colour if report.level is not Severity.WARNING else "green"
        click.echo(f"{click.style(f'{report.health.value:<10}', fg=colour)}{report.text}")
    width = max([PART_COLUMN, *(len(finding.part) + 2 for finding in report.findings)])
    for finding in report.findings:
        if as_json:
            about = {"level": finding.level.name.lower(), "part": finding.part, "text": finding.text}
            click.echo(json.dumps(about))
        else:
            level = click.style(f"{finding.level.name.lower():<10}", fg=finding.level.colour)
            click.echo(f"{level}{finding.part:<{width}}{finding.text}")
    context.exit(report.level)


def _tables(data: Path) -> str | Unread | None:
    """Look at the tables below `data`, if there are any."""
    from stagepost.ground.telemetry.health import Unread
    from stagepost.web.access.settings import TABLES_FOLDER

    if not (data / TABLES_FOLDER).exists():
        return None
    from stagepost.pipeline.tables.manifest import Manifest
    from stagepost.web.tables import TableQueries

    state = TableQueries(data / TABLES_FOLDER, TABLES_TIMEOUT_S).state()
    if isinstance(state, Manifest):
        return "readable"
    return Unread(state.text, state.advice)
