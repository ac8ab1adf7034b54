"""`stagepost node`: run one node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from stagepost import __version__
from stagepost.cli.durations import duration_option
from stagepost.cli.node_flags import request_from, with_node_flags

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def node() -> None:
    """Run one node.

    \b
    Example:
      stagepost node dmq --host-addr 127.0.0.1 --pools pools.json
    """


@node.command()
@with_node_flags()
@click.version_option(__version__, "-v", "--version", prog_name="stagepost node dmq")
@click.pass_context
def dmq(context: click.Context, /, **given: Any) -> None:
    """Run a DMQ node (CIP-0137) until SIGTERM or Ctrl-C.

    Takes dmq-node's flags, its JSON configuration and its topology file as they are. Flags win over
    stagepost.toml, that over dmq-node's JSON file. Where the node is to be reached stands in node.json in
    the data folder.

    \b
    Example:
      stagepost node dmq --host-addr 0.0.0.0 -t dmq.topology.json --pools pools.json
    """
    from stagepost.node.config_loading import load_node_config

    config = load_node_config(request_from(given))

    from stagepost.node.dmq_main import run_process

    context.exit(run_process(config))


def _with_member_flags(command: F) -> F:
    """What a validator and a full node are both told."""
    file = click.Path(path_type=Path)
    options = (
        click.option(
            "--network", required=True, metavar="FILE", type=file, help="Who is where: network.json."
        ),
        click.option("--key", required=True, metavar="FILE", type=file, help="Its Ed25519 signing key."),
        click.option("--data", required=True, metavar="DIR", type=file, help="Where it keeps its state."),
        duration_option("--message-timeout", "timeout_s", default="4m", help="How long a message lives."),
        click.option(
            "--log-level",
            default="WARNING",
            show_default=True,
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@node.command()
@_with_member_flags
@click.option("--shards", default=1, show_default=True, type=click.IntRange(1, 16), help="How many it wants.")
@click.pass_context
def validator(
    context: click.Context,
    network: Path,
    key: Path,
    data: Path,
    timeout_s: float,
    log_level: str,
    shards: int,
) -> None:
    """Run a validator of the embedded chain, with its queues, until SIGTERM or Ctrl-C.

    `stagepost devnet` writes the network file and the keys of a whole network.

    \b
    Example:
      stagepost node validator --network network.json --key validator-1/member.skey --data validator-1
    """
    from stagepost.cli.core_dumps import disable_core_dumps
    from stagepost.node.remp_process import run_validator

    disable_core_dumps()
    status = run_validator(
        network, key, data, shards=shards, message_timeout_s=timeout_s, log_level=log_level.upper()
    )
    context.exit(status)


@node.command()
@_with_member_flags
@click.option(
    "--dmq-keys",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keys of the pool that it speaks for on a DMQ network: it takes messages from there, and acknowledges.",
)
@click.option(
    "--dmq-data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Data folder of the DMQ node on this machine.",
)
@click.option("--dmq-socket", metavar="PATH", help="Its local socket. [from --dmq-data]")
@click.option("--dmq-magic", type=int, help="Its network. [from --dmq-data]")
@click.option("--dmq-profile", default="dmq-node", show_default=True, help="The wire profile.")
@click.pass_context
def full(
    context: click.Context,
    network: Path,
    key: Path,
    data: Path,
    timeout_s: float,
    log_level: str,
    dmq_keys: Path | None,
    dmq_data: Path | None,
    dmq_socket: str | None,
    dmq_magic: int | None,
    dmq_profile: str,
) -> None:
    """Run a full node until SIGTERM or Ctrl-C: messages from topics to validators, every status onto a topic.

    It reads stagepost.remp.messages in its data folder and writes stagepost.remp.statuses there. With --dmq-keys it
    takes messages from a DMQ network as well, as a critical peer of those who publish them.

    \b
    Example:
      stagepost node full --network network.json --key full-node.skey --data full-node
    """
    from stagepost.cli.core_dumps import disable_core_dumps
    from stagepost.cli.local_node_options import socket_and_magic
    from stagepost.node.remp_process import DmqAccess, run_full_node

    disable_core_dumps()
    dmq_access = None
    if dmq_keys is not None:
        socket, magic = socket_and_magic(dmq_socket, dmq_magic, dmq_data)
        dmq_access = DmqAccess(socket, magic, dmq_keys, dmq_profile, dmq_data)
    status = run_full_node(
        network, key, data, message_timeout_s=timeout_s, log_level=log_level.upper(), dmq=dmq_access
    )
    context.exit(status)
