"""`stagepost node`: run one node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from stagepost import __version__
from stagepost.cli.options.http import with_http
from stagepost.cli.options.kafka import KafkaWay, with_kafka
from stagepost.cli.options.node_flags import request_from, with_node_flags
from stagepost.cli.options.shared import duration_option

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
    from stagepost.config.effective import load_node_config

    config = load_node_config(request_from(given))

    from stagepost.dmq.node.main import run_process

    context.exit(run_process(config))


def _port_given(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "off":
        return None
    if value.isascii() and value.isdecimal() and int(value) <= 65_535:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither a port nor off", context, parameter)


def _with_member_flags(command: F) -> F:
    """Add the options that validators and full nodes share."""
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
        click.option(
            "--metrics-port",
            metavar="PORT|off",
            default="0",
            show_default=True,
            callback=_port_given,
            help="Metrics, health and status on 127.0.0.1; 0 takes a free port.",
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
    metrics_port: int | None,
    shards: int,
) -> None:
    """Run a validator of the embedded chain, with its queues, until SIGTERM or Ctrl-C.

    `stagepost devnet` writes the network file and the keys of a whole network.

    \b
    Example:
      stagepost node validator --network network.json --key validator-1/member.skey --data validator-1
    """
    from stagepost.cli.options.shared import disable_core_dumps
    from stagepost.validator.process import run_validator

    disable_core_dumps()
    status = run_validator(
        network,
        key,
        data,
        shards=shards,
        message_timeout_s=timeout_s,
        log_level=log_level.upper(),
        metrics_port=metrics_port,
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
@with_http
@with_kafka
@click.pass_context
def full(
    context: click.Context,
    network: Path,
    key: Path,
    data: Path,
    timeout_s: float,
    log_level: str,
    metrics_port: int | None,
    dmq_keys: Path | None,
    dmq_data: Path | None,
    dmq_socket: str | None,
    dmq_magic: int | None,
    dmq_profile: str,
    http: tuple[str, int] | None,
    http_certificate: Path | None,
    http_private_key: Path | None,
    kafka: str | None,
    kafka_config: Path | None,
) -> None:
    """Run a full node until SIGTERM or Ctrl-C: messages to validators, every status onto a topic.

    It takes messages from programs of its user on a local socket (`stagepost submit --wait final`), by HTTP with --http, and
    from the topic stagepost.remp.messages in its data folder; it writes stagepost.remp.statuses there. With --dmq-keys it
    takes messages from a DMQ network as well, as a critical peer of those who publish them; with --kafka from a broker,
    where the statuses go, too.

    \b
    Example:
      stagepost node full --network network.json --key full-node.skey --data full-node
      stagepost node full --network network.json --key full-node.skey --data full-node --http 127.0.0.1:8140
    """
    from stagepost.cli.options.http import http_settings, serving_http

    way = KafkaWay.given(kafka, kafka_config)
    settings = http_settings(http, http_certificate, http_private_key, data)
    from stagepost.cli.options.shared import disable_core_dumps, socket_and_magic
    from stagepost.full_node.process import DmqAccess, run_full_node

    disable_core_dumps()
    dmq_access = None
    if dmq_keys is not None:
        socket, magic = socket_and_magic(dmq_socket, dmq_magic, dmq_data)
        dmq_access = DmqAccess(socket, magic, dmq_keys, dmq_profile, dmq_data)
    status = run_full_node(
        network,
        key,
        data,
        message_timeout_s=timeout_s,
        log_level=log_level.upper(),
        dmq=dmq_access,
        beside=None if settings is None else lambda node: serving_http(node, settings),
        metrics_port=metrics_port,
        kafka=way.settings,
    )
    context.exit(status)
