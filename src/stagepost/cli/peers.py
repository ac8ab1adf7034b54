"""`stagepost peers`: the connections of a running node and their state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import data_option, json_option

if TYPE_CHECKING:
    from stagepost.ground.telemetry.status import PeerStatus

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


@click.command()
@data_option
@json_option
def peers(data: Path | None, as_json: bool) -> None:
    """Show who the node is connected with: state, version, window, who announces first, last violation.

    \b
    Example:
      stagepost peers --data stagepost-data
    """
    import msgspec

    from stagepost.cli.options.shared import print_table
    from stagepost.ground.files.running_nodes import DATA_DIR, find_node
    from stagepost.ground.telemetry.status import node_status

    status = node_status(find_node(data or Path(DATA_DIR)))
    if as_json:
        for peer in status.peers:
            click.echo(msgspec.json.encode(peer))
    elif not status.peers:
        click.echo("no peers yet")
    else:
        print_table(_HEADER, [_row(peer) for peer in status.peers])


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
