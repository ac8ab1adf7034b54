"""`stagepost check`: is the node well? For people and for monitors, who read the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stagepost.cli.local_node_options import data_option, json_option

UNKNOWN = 3


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
@json_option
@click.pass_context
def check(context: click.Context, data: Path | None, as_json: bool) -> None:
    """Tell whether a running node is well: node, mempool, keys. The worst of them decides the exit code.

    Exit codes as monitors read them: 0 ok, 1 warning, 2 critical, 3 unknown.

    \b
    Example:
      stagepost check --data stagepost-data
    """
    import time

    from stagepost.cli.health import Finding, Level, findings_of
    from stagepost.cli.running_node import DATA_DIR, NodeIsSilent, find_node, node_status
    from stagepost.errors import StagepostError

    try:
        findings = findings_of(node_status(find_node(data or Path(DATA_DIR))), time.time())
    except NodeIsSilent as error:
        findings = [Finding(Level.CRITICAL, "node", error.text)]
    except StagepostError as error:
        findings = [Finding(Level.UNKNOWN, "node", f"{error.text}; {error.advice}")]
    for finding in findings:
        if as_json:
            facts = {"level": finding.level.name.lower(), "part": finding.part, "text": finding.text}
            click.echo(json.dumps(facts))
        else:
            level = click.style(f"{finding.level.name.lower():<10}", fg=finding.level.colour)
            click.echo(f"{level}{finding.part:<10}{finding.text}")
    context.exit(max(finding.level for finding in findings))
