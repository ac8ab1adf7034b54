"""The options of commands that speak with a node over its local socket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LOCAL_SOCKET = "dmq-node.socket"
NETWORK_MAGIC = 2_912_307_721
"""What dmq-node takes without further word: its main network."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder of a node on this machine. [stagepost-data]",
)


def with_local_node(command: F) -> F:
    """Adds `socket`, `network_magic`, `profile` and `data`; `socket_and_magic` makes sense of them."""
    options = (
        click.option(
            "--socket", metavar="PATH", help="The node's local socket. [from --data, else dmq-node.socket]"
        ),
        click.option(
            "--network-magic",
            type=click.IntRange(0, 2**32 - 1),
            help=f"The DMQ network. [from --data, else {NETWORK_MAGIC}]",
        ),
        click.option(
            "--profile",
            type=click.Choice(["dmq-node", "gouroboros", "seed"]),
            default="dmq-node",
            show_default=True,
            help="Wire profile: how to speak with the node.",
        ),
        data_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def socket_and_magic(socket: str | None, network_magic: int | None, data: Path | None) -> tuple[str, int]:
    """What was given; what was not, as the node in the data folder says; else what dmq-node would take."""
    from stagepost.ground.files.data_folder import NODE_FILE
    from stagepost.ground.files.running_nodes import DATA_DIR, find_node

    folder = data or Path(DATA_DIR)
    if data is None and (socket is not None or not (folder / NODE_FILE).exists()):
        return socket or LOCAL_SOCKET, NETWORK_MAGIC if network_magic is None else network_magic
    if socket is not None and network_magic is not None:
        return socket, network_magic
    facts = find_node(folder)
    return socket or facts.local_socket, facts.network_magic if network_magic is None else network_magic
