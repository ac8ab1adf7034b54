"""`stagepost node`: run one node."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from stagepost import __version__
from stagepost.cli.options.delivery import settings_in, with_settings_file
from stagepost.cli.options.http import with_http
from stagepost.cli.options.node_flags import KafkaWay, request_from, with_kafka, with_node_flags
from stagepost.cli.options.shared import RenamedOption, duration_option, path_option, with_options
from stagepost.ground.files.expected import PORT_MAX, spelt_number
from stagepost.ground.identifiers import LinkEncryption

if TYPE_CHECKING:
    from stagepost.config.effective import EffectiveConfig
    from stagepost.ground.net.network import TcpAddress

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def node() -> None:
    """Run a DMQ node, a full node or a validator.

    \b
    Example:
      stagepost node dmq --host-addr 127.0.0.1 --cardano-node-socket node.socket
    """


@node.command()
@with_node_flags()
@click.version_option(__version__, "-v", "--version", prog_name="stagepost node dmq")
@click.pass_context
def dmq(context: click.Context, /, **given: Any) -> None:
    """Run a DMQ node (CIP-0137) until SIGTERM or Ctrl-C.

    The node accepts dmq-node's flags, its JSON configuration and its topology file unchanged. It asks a cardano-node
    for the stake of pools, and continues with the last stake while the cardano-node is away. On private networks a pools
    file (--pools) takes the place of the cardano-node. Flags override
    stagepost.toml, and stagepost.toml overrides dmq-node's JSON file. While the node runs, node.json in the data folder
    names its addresses.

    \b
    Example:
      stagepost node dmq --host-addr 0.0.0.0 -c dmq.config.json -t dmq.topology.json
    """
    from stagepost.config.effective import load_node_config

    config = load_node_config(request_from(given))

    from stagepost.dmq.node.main import run_process
    from stagepost.trace.layer_topics import recorded

    context.exit(run_process(config, recorded))


@node.command()
@path_option("--data", required=True, metavar="DIR", help="Data folder of a DMQ node that does not run.")
@click.option("--recover", is_flag=True, help="Set the stored time to the present.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clock(data: Path, recover: bool, as_json: bool) -> None:
    """Compare the time in a DMQ node's store with this machine's clock, and recover from a clock that was ahead.

    When a clock that was ahead is corrected, the node refuses every message as expired until the stored time has come.
    With --recover the stored time becomes the present. No message is accepted twice: for 30 minutes the node refuses
    messages that expire within 30 minutes after the recovery.

    \b
    Example:
      stagepost node clock --data stagepost-data
      stagepost node clock --data stagepost-data --recover
    """
    import asyncio
    import json

    import msgspec

    from stagepost.dmq.node.stored_time import stored_time
    from stagepost.ground.files.audit import record_action, user_name
    from stagepost.ground.loop.clock import SystemClock

    found = asyncio.run(stored_time(data, SystemClock().unix_s(), recover=False))
    if recover:
        record_action(data, "node clock --recover", through="cli", who=user_name())
        found = asyncio.run(stored_time(data, SystemClock().unix_s(), recover=True))
    if as_json:
        click.echo(json.dumps(msgspec.structs.asdict(found) | {"recovered": recover}))
        return
    side = "ahead of" if found.ahead_s > 0 else "behind"
    click.echo(
        f"stored time: {abs(found.ahead_s):.0f} s {side} this machine's clock; {found.messages} messages, "
        f"{found.later} of them from later than now"
    )
    if recover:
        click.echo(
            "the stored time is the present now; messages that expire within 30 minutes are refused as not ready"
        )


def _port_given(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "off":
        return None
    port = spelt_number(value, PORT_MAX)
    if port is not None:
        return port
    raise click.BadParameter(f"{value!r} is not a valid port; give 0 to 65535, or off", context, parameter)


def _address_given(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> TcpAddress | None:
    from stagepost.ground.net.network import TcpAddress, parse_address

    if value is None:
        return None
    address = parse_address(value)
    if not isinstance(address, TcpAddress):
        raise click.BadParameter(f"{value!r} is not an address; give HOST:PORT", context, parameter)
    return address


_REQUIRED = {"network": "network", "key": "key", "data": "data_dir"}
"""Options without which no member starts, and their settings."""


def _with_member_flags(section: str) -> Callable[[F], F]:
    """Add the options that validators and full nodes share. Options that are not given come from `section` of the settings."""
    return lambda command: _with_members(command, section)


def _from_settings(given: dict[str, Any], config: EffectiveConfig, section: str) -> None:
    """Put the settings of the file in the place of options that the user has not given; read them as options are read."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        key = "log.level" if name == "log_level" else f"{section}.{_REQUIRED.get(name, name)}"
        value = config.values.get(key)
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if name not in given or is_given or value is None or value.value is None or value.is_default:
            continue
        given[name] = parameter.process_value(context, str(value.value))
    missing = [name for name in _REQUIRED if given[name] is None]
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        settings = ", ".join(f"{section}.{_REQUIRED[name]}" for name in missing)
        raise click.UsageError(f"missing {options}: give them, or set {settings} in stagepost.toml", context)


def _with_members(command: F, section: str) -> F:
    file = click.Path(path_type=Path)
    options = (
        click.option(
            "--network",
            metavar="FILE",
            type=file,
            help="network.json: keys and addresses of all members, and the first block.",
        ),
        click.option(
            "--genesis",
            metavar="HASH",
            help="Hash of the genesis that the operators agreed on; a network file with another one is refused.",
        ),
        click.option("--key", metavar="FILE", type=file, help="Ed25519 signing key of this node."),
        click.option("--data", metavar="DIR", type=file, help="Data folder of this node."),
        duration_option(
            "--message-timeout",
            "timeout_s",
            default=None,
            help="Time after which a message that is not final expires. [remp.message_timeout_s of the settings, 4m]",
        ),
        with_settings_file,
        click.option(
            "--log-level",
            default="INFO",
            show_default=True,
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
            help="Least severity of the lines in the log.",
        ),
        click.option(
            "--metrics-port",
            metavar="PORT|off",
            default="0",
            show_default=True,
            callback=_port_given,
            help="Port of metrics, health and status on 127.0.0.1; 0 takes a free port.",
        ),
        click.option(
            "--prometheus",
            metavar="HOST:PORT",
            callback=_address_given,
            help="Address of a second server with /metrics alone, which other machines may reach.",
        ),
        click.option(
            "--link-encryption",
            default=str(LinkEncryption.REQUIRED),
            show_default=True,
            type=click.Choice(list(map(str, LinkEncryption))),
            help="Links to members: required refuses plain ones, preferred allows them to members of the former "
            "release, off encrypts none.",
        ),
    )

    @wraps(command)
    def with_settings(
        *arguments: Any,
        timeout_s: float | None,
        config_file: Path | None,
        config_context: str | None,
        **given: Any,
    ) -> Any:
        config = settings_in(config_file, config_context)
        if timeout_s is None:
            timeout_s = config.seconds("remp.message_timeout_s")
        _from_settings(given, config, section)
        return command(*arguments, timeout_s=timeout_s, config_file=config_file, **given)

    return with_options(with_settings, *options)  # type: ignore[return-value]


@node.command()
@_with_member_flags("validator")
@click.option(
    "--shards",
    type=click.IntRange(1, 16),
    help="Number of shards; the validator proposes splits and merges, and votes for those of others, until there are as "
    "many. More than two thirds have to want the same number. [it wants neither]",
)
@click.pass_context
def validator(
    context: click.Context,
    network: Path,
    genesis: str | None,
    key: Path,
    data: Path,
    timeout_s: float,
    log_level: str,
    metrics_port: int | None,
    prometheus: TcpAddress | None,
    link_encryption: str,
    config_file: Path | None,
    shards: int | None,
) -> None:
    """Run a validator of the embedded chain, with its queues, until SIGTERM or Ctrl-C.

    `stagepost network init` and `stagepost devnet` write the network file. Options that are not given come from
    [validator] of stagepost.toml.

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
        genesis=genesis,
        shards=shards,
        message_timeout_s=timeout_s,
        log_level=log_level.upper(),
        metrics_port=metrics_port,
        metrics_at=prometheus,
        encryption=LinkEncryption(link_encryption),
    )
    context.exit(status)


@node.command()
@_with_member_flags("full_node")
@path_option(
    "--dmq-keys",
    metavar="DIR",
    help="Folder with a pool's keys: take messages from a DMQ network, and acknowledge them as this pool.",
)
@path_option("--dmq-data", metavar="DIR", help="Data folder of the DMQ node on this machine.")
@click.option(
    "--socket",
    "--dmq-socket",
    "dmq_socket",
    cls=RenamedOption,
    metavar="PATH",
    help="Local socket of the DMQ node. [from --dmq-data]",
)
@click.option(
    "--network-magic",
    "--dmq-magic",
    "dmq_magic",
    cls=RenamedOption,
    type=int,
    help="Magic number of the DMQ network. [from --dmq-data]",
)
@click.option(
    "--dmq-profile",
    default="dmq-node",
    show_default=True,
    help="Wire profile of the connection to the DMQ node.",
)
@duration_option(
    "--keep-chain",
    "chain_keep_s",
    default=None,
    help="Time for which blocks stay in the archive of the chain, from which nodes that join read. [for ever]",
)
@with_http
@with_kafka
@click.pass_context
def full(
    context: click.Context,
    network: Path,
    genesis: str | None,
    key: Path,
    data: Path,
    timeout_s: float,
    log_level: str,
    metrics_port: int | None,
    prometheus: TcpAddress | None,
    link_encryption: str,
    config_file: Path | None,
    dmq_keys: Path | None,
    dmq_data: Path | None,
    dmq_socket: str | None,
    dmq_magic: int | None,
    dmq_profile: str,
    http: tuple[str, int] | None,
    http_certificate: Path | None,
    http_private_key: Path | None,
    kafka: str | None,
    chain_keep_s: float | None,
) -> None:
    """Run a full node until SIGTERM or Ctrl-C: send messages to validators, write every status to a topic.

    The full node takes messages from programs of its own user on a local socket (`stagepost submit --wait final`), by HTTP
    with --http, and from the topic stagepost.remp.messages in its data folder. It writes statuses to the topic
    stagepost.remp.statuses there. With --dmq-keys it also takes messages from a DMQ network, as a critical peer of their
    publishers. With --kafka it also takes messages from a broker, and writes the statuses there as well. Options that are
    not given come from [full_node] of stagepost.toml.

    \b
    Example:
      stagepost node full --network network.json --key full-node.skey --data full-node
      stagepost node full --network network.json --key full-node.skey --data full-node --http 127.0.0.1:8140
    """
    from stagepost.cli.options.http import http_settings, serving_http

    way = KafkaWay.given(kafka, config_file)
    settings = http_settings(http, http_certificate, http_private_key, data)
    from stagepost.cli.options.shared import disable_core_dumps, socket_and_magic
    from stagepost.full_node.process import DmqAccess, run_full_node
    from stagepost.ground.net.network import TcpAddress

    disable_core_dumps()
    dmq_access = None
    if dmq_keys is not None:
        socket, magic = socket_and_magic(dmq_socket, dmq_magic, dmq_data)
        dmq_access = DmqAccess(socket, magic, dmq_keys, dmq_profile, dmq_data)
    status = run_full_node(
        network,
        key,
        data,
        genesis=genesis,
        message_timeout_s=timeout_s,
        log_level=log_level.upper(),
        dmq=dmq_access,
        beside=None if settings is None else lambda node: serving_http(node, settings),
        beside_at=None if settings is None else TcpAddress(settings.host, settings.port),
        metrics_port=metrics_port,
        metrics_at=prometheus,
        encryption=LinkEncryption(link_encryption),
        kafka=way.settings,
        chain_keep_s=chain_keep_s,
    )
    context.exit(status)
