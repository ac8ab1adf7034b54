"""`stagepost check`: is the node well? For people and for monitors, who read the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stagepost.cli.options.delivery import delivery_settings, with_settings_file
from stagepost.cli.options.shared import data_option, json_option

UNKNOWN = 3
QUEUE_SIZE = 1_000


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
@click.option(
    "--outbox",
    type=click.Path(path_type=Path),
    help="Look at this outbox too; where no node runs, at it alone.",
)
@click.option(
    "--queue-size",
    type=click.IntRange(min=1),
    help=f"How many messages the outbox holds. [as delivery.queue_size in the settings file, else {QUEUE_SIZE}]",
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
    """Tell whether a running node is well: a DMQ node with its mempool and keys, a full node or a validator; and an outbox.

    The worst finding decides the exit code.

    Exit codes as monitors read them: 0 ok, 1 warning, 2 critical, 3 unknown.

    \b
    Example:
      stagepost check --data stagepost-data --outbox stagepost-outbox
    """
    import time

    from stagepost.cli.check.findings import Finding, Level, findings_of
    from stagepost.errors import StagepostError
    from stagepost.ground.files.data_folder import NODE_FILE
    from stagepost.ground.files.running_nodes import (
        DATA_DIR,
        find_node,
        find_remp_node,
    )
    from stagepost.ground.telemetry.status import NodeIsSilent, node_status

    findings: list[Finding] = []
    folder = data or Path(DATA_DIR)
    # A program may publish through a node that is not its own to watch.
    if outbox is None or data is not None or (folder / NODE_FILE).exists():
        try:
            remp_node = find_remp_node(folder)
            if remp_node is not None:
                from stagepost.cli.check.findings import remp_findings

                findings += remp_findings(remp_node)
            if remp_node is None or (folder / NODE_FILE).exists():
                findings += findings_of(node_status(find_node(folder)), time.time())
        except NodeIsSilent as error:
            findings.append(Finding(Level.CRITICAL, "node", error.text))
        except StagepostError as error:
            findings.append(Finding(Level.UNKNOWN, "node", f"{error.text}; {error.advice}"))
    if outbox is not None:
        from stagepost.cli.check.findings import finding_of

        try:
            settings = delivery_settings(config_file, config_context)
            size = queue_size or settings.get("queue_size", QUEUE_SIZE)
            findings.append(finding_of(outbox, size, time.time()))
        except StagepostError as error:
            findings.append(Finding(Level.UNKNOWN, "queue", error.text.replace("\n", ";")))
    for finding in findings:
        if as_json:
            facts = {"level": finding.level.name.lower(), "part": finding.part, "text": finding.text}
            click.echo(json.dumps(facts))
        else:
            level = click.style(f"{finding.level.name.lower():<10}", fg=finding.level.colour)
            click.echo(f"{level}{finding.part:<10}{finding.text}")
    context.exit(max(finding.level for finding in findings))
