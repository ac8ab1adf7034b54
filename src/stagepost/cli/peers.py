"""`stagepost peers`: the connections of a running node and their state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import data_option, json_option

if TYPE_CHECKING:
    from stagepost.ground.telemetry.status import (
        DmqNodePage,
        FullNodePage,
        MemberStatus,
        PeerStatus,
        ValidatorPage,
    )

_HEADER = (
    "peer",
    "direction",
    "state",
    "speaks",
    "window",
    "in flight",
    "round trip",
    "first",
    "score",
    "last violation",
)
_MEMBER_HEADER = ("peer", "address", "kind", "state", "silent for")


@click.command()
@data_option
@json_option
@click.pass_context
def peers(context: click.Context, data: Path | None, as_json: bool) -> None:
    """Show the peers of the nodes in a data folder.

    Of a DMQ node: state, version, window, announcements that came first from the peer, last violation. Of a full node or
    validator: the other members by name, whether there is a link, and for how long a member has been silent.

    \b
    Example:
      stagepost peers --data stagepost-data
    """
    from stagepost.cli.exit_codes import UNREACHABLE
    from stagepost.ground.files.running_nodes import DATA_DIR, find_node
    from stagepost.ground.telemetry.health import Unread
    from stagepost.ground.telemetry.status import DmqNodePage
    from stagepost.trace.folder_health import nodes_below, shown_name

    folder = data or Path(DATA_DIR)
    nodes = nodes_below(folder)
    if not nodes:
        find_node(folder)  # which says that none runs there
    is_blind = False
    for number, (at, page) in enumerate(nodes):
        if len(nodes) > 1 and not as_json:
            click.echo(("\n" if number else "") + click.style(shown_name(folder, at, page), bold=True))
        of_node = {"node": shown_name(folder, at, page)} if len(nodes) > 1 else {}
        if isinstance(page, Unread):
            is_blind = True
            click.echo(f"could not read {at}: {page.sentence}", err=True)
        elif isinstance(page, DmqNodePage):
            _show_dmq(page, of_node, as_json=as_json)
        else:
            _show_members(page, of_node, as_json=as_json)
    if is_blind:
        context.exit(UNREACHABLE)


def _show_dmq(status: DmqNodePage, of_node: dict[str, str], *, as_json: bool) -> None:
    import msgspec

    from stagepost.cli.options.shared import print_table

    if as_json:
        for peer in status.peers:
            click.echo(msgspec.json.encode({**of_node, **msgspec.to_builtins(peer)}))
    elif not status.peers:
        click.echo("no peers yet")
    else:
        print_table(_HEADER, [_row(peer) for peer in status.peers])


def _show_members(page: FullNodePage | ValidatorPage, of_node: dict[str, str], *, as_json: bool) -> None:
    import time

    import msgspec

    from stagepost.cli.options.shared import print_table
    from stagepost.ground.telemetry.status import ValidatorPage

    members = [("validator", one) for one in (page.network.members if page.network else ())]
    if isinstance(page, ValidatorPage):
        members += [("full node", one) for one in page.full_nodes]
    if as_json:
        for kind, member in members:
            click.echo(msgspec.json.encode({**of_node, "kind": kind, **msgspec.to_builtins(member)}))
    elif not members:
        click.echo(f"this {page.kind} does not report its links; use the same version for node and commands")
    else:
        now_ms = int(time.time() * 1_000)
        print_table(_MEMBER_HEADER, [_member_row(kind, one, now_ms) for kind, one in members])


def _member_row(kind: str, member: MemberStatus, now_ms: int) -> tuple[str, ...]:
    from stagepost.ground.files.durations import format_duration

    since = member.silent_since_ms
    silent = "–" if since is None else format_duration(max(0, now_ms - since) / 1_000)
    return member.name, member.address, kind, "linked" if member.linked else "not linked", silent


def _row(peer: PeerStatus) -> tuple[str, ...]:
    return (
        peer.address,
        peer.direction,
        peer.state,
        " ".join(
            filter(None, (peer.profile, None if peer.version is None else f"v{peer.version}", peer.flavour))
        ),
        f"{peer.unacknowledged} ids",
        f"{peer.in_flight_bytes} B",
        "–" if peer.round_trip_ms is None else f"{peer.round_trip_ms:.0f} ms",
        str(peer.first_announcer),
        f"{peer.score:.1f}",
        peer.last_violation or "–",
    )
