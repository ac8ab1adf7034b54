"""`stagepost chain`: what a data folder holds of the embedded chain, played again and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.options.shared import json_option, path_option

if TYPE_CHECKING:
    from stagepost.chain.node.reading import ChainSummary

_SHARDS = ("shard", "session", "catchain", "height", "final", "state")
_SESSIONS = ("session", "shard", "catchain", "validators", "blocks", "height", "certificates", "checked")
_SHORT = 12


@click.group()
def chain() -> None:
    """Show the embedded chain of a validator or full node. The command changes nothing, and works while the node runs.

    \b
    Example:
      stagepost chain show --data stagepost-data
    """


@chain.command()
@path_option(
    "--data",
    required=True,
    metavar="DIR",
    help="Data folder of a validator or full node, or a folder with several of them.",
)
@json_option
def show(data: Path, as_json: bool) -> int:
    """Execute every block again, check every certificate, and show shards, sessions, heights and certificates.

    Exit code 1 if a proof does not hold or a row is damaged.

    \b
    Example:
      stagepost chain show --data stagepost-data
    """
    from stagepost.chain.node.reading import chain_folders, show_chain

    is_sound = True
    for folder in chain_folders(data):
        shown = show_chain(folder)
        is_sound = is_sound and not shown.faults
        if as_json:
            import msgspec

            click.echo(msgspec.json.encode(shown).decode())
        else:
            _print(shown)
    return DONE if is_sound else NOT_THAT_OUTCOME


def _print(shown: ChainSummary) -> None:
    from stagepost.cli.options.shared import print_table

    start = (
        "its genesis" if shown.from_snapshot is None else f"the snapshot after block {shown.from_snapshot}"
    )
    click.echo(f"{shown.folder}: chain {shown.name}, network {shown.network}")
    click.echo(
        f"masterchain: block {shown.master_height}, catchain {shown.master_catchain_seqno}, "
        f"state {shown.master_state_hash[:_SHORT]}; {shown.blocks} blocks, played again from {start}"
    )
    click.echo()
    shards = [
        (
            one.shard,
            one.session_id[:_SHORT],
            str(one.catchain_seqno),
            str(one.height),
            str(one.final),
            one.state_hash[:_SHORT],
        )
        for one in shown.shards
    ]
    print_table(_SHARDS, shards)
    click.echo()
    rows = []
    for one in shown.sessions:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(one.certificates.items()))
        checked = "no: its validators are not known" if not one.is_checked else one.fault or "all hold"
        if one.unproved:
            checked += f"; the last {one.unproved} wait for theirs"
        rows.append(
            (
                one.session_id[:_SHORT] + (" *" if one.is_at_work else ""),
                one.shard,
                "" if one.catchain_seqno is None else str(one.catchain_seqno),
                "" if one.validators is None else str(one.validators),
                str(one.blocks),
                str(one.height),
                kinds or "none",
                checked,
            )
        )
    print_table(_SESSIONS, rows)
    click.echo("* at work")
    for fault in shown.faults:
        click.echo(fault, err=True)
