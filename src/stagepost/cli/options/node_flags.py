"""Flags of `stagepost node dmq`: those of dmq-node, and ours, which `config check` and `config show` take too; and the option
of commands that run a full node with a way to Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from stagepost.cli.main import file_and_context
from stagepost.cli.options.shared import with_options
from stagepost.ground.files.expected import spelt_number

if TYPE_CHECKING:
    from stagepost.config.effective import ConfigRequest
    from stagepost.topics.kafka.admin import KafkaSettings


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SettingFlag:
    """A flag that sets one setting. `fixed` is the value that a flag without argument stands for."""

    names: tuple[str, ...]
    setting: str
    metavar: str
    help: str
    type: type[int] | type[float] | type[str] = str
    fixed: object = None

    @property
    def parameter(self) -> str:
        return self.names[-1].lstrip("-").replace("-", "_")


# fmt: off
FLAGS = (
    SettingFlag(("--host-addr",), "node.host_addr", "IPV4", "IPv4 address to listen on; --host-addr or --host-ipv6-addr is required."),
    SettingFlag(("--host-ipv6-addr",), "node.host_ipv6_addr", "IPV6", "IPv6 address to listen on."),
    SettingFlag(("-p", "--port"), "node.port", "PORT", "TCP port for other nodes; 0 takes a free port. [3141]", int),
    SettingFlag(("--socket", "--local-socket"), "node.local_socket", "FILENAME", "Unix socket for local programs. [dmq-node.socket]"),
    SettingFlag(("-c", "--configuration-file"), "node.dmq_config", "FILENAME", "dmq-node's JSON configuration; the file may be missing. [dmq.config.json]"),
    SettingFlag(("-t", "--topology-file"), "node.topology", "FILENAME", "Topology file: the peers to connect to. [dmq.topology.json]"),
    SettingFlag(("--network-magic", "--dmq-network-magic"), "node.network_magic", "NATURAL", "Magic number of the DMQ network. [2912307721]", int),
    SettingFlag(("--min-sig-delay",), "node.min_sig_delay_s", "SECONDS", "Time that a pool must wait between two messages, as in 0.01s; refused on public networks."),
    SettingFlag(("--cardano-node-socket",), "node.cardano_node_socket", "FILENAME", "Local socket of the cardano-node that is asked for the stake. [cardano-node.socket]"),
    SettingFlag(("--cardano-network-magic",), "node.cardano_network_magic", "NATURAL", "Magic number of that cardano-node's network. [764824073]", int),
    SettingFlag(("--pools",), "node.pools", "FILE", "Pools file of a private network, in place of a cardano-node: the pools that may send, with their stake."),
    SettingFlag(("--data",), "node.data_dir", "DIR", "Data folder of the node; holds the accepted messages. [stagepost-data]"),
    SettingFlag(("--profiles",), "node.profiles", "NAMES", "Wire profiles accepted from peers and programs. [dmq-node,gouroboros,seed]"),
    SettingFlag(("--profile",), "node.wire_profile", "NAME", "Wire profile for peers that this node connects to. [dmq-node]"),
    SettingFlag(("--metrics-port",), "node.metrics_port", "PORT|off", "Port of metrics, health and status on 127.0.0.1; 0 takes a free port. [0]"),
    SettingFlag(("--unsafe-accept-stored-time",), "node.unsafe_accept_stored_time", "", "Start even if the store holds a time more than an hour ahead of the clock.", fixed=True),
    SettingFlag(("--unsafe-loopback-unlimited",), "node.unsafe_loopback_unlimited", "", "Do not limit connections per address for this machine; for tests.", fixed=True),
    SettingFlag(("--json",), "log.format", "", "Write logs as JSON lines, also on a terminal.", fixed="json"),
    SettingFlag(("-q", "--quiet"), "log.level", "", "Log warnings and errors only.", fixed="warning"),
    SettingFlag(("--verbose",), "log.level", "", "Log at level debug, wire traffic included.", fixed="debug"),
)
# fmt: on
_LOG_FLAGS = frozenset({"--json", "--quiet", "--verbose"})


def with_node_flags(*, with_log_flags: bool = True) -> Callable[[F], F]:
    """Add the flags to a command; `request_from` turns what it gets into a request."""

    def decorate(command: F) -> F:
        options = [
            click.option(
                "--config",
                "config_file",
                metavar="FILE",
                help="Settings file. [stagepost.toml, if it exists]",
            ),
            click.option(
                "--context",
                "context_name",
                metavar="NAME",
                help="Let [contexts.NAME] of the settings file override its other settings.",
            ),
        ]
        for flag in FLAGS:
            if flag.names[-1] in _LOG_FLAGS and not with_log_flags:
                continue
            if flag.fixed is not None:
                option = click.option(*flag.names, flag.parameter, is_flag=True, help=flag.help)
            else:
                option = click.option(
                    *flag.names, flag.parameter, type=flag.type, metavar=flag.metavar, help=flag.help
                )
            options.append(option)
        return with_options(command, *options)

    return decorate


def request_from(given: dict[str, Any]) -> ConfigRequest:
    """Return the settings given on the command line; files and defaults supply the rest."""
    from stagepost.config.effective import ConfigRequest, Flag

    flags: dict[str, Flag] = {}
    for flag in FLAGS:
        value = given.get(flag.parameter)
        if value is None or value is False:
            continue
        flags[flag.setting] = Flag(flag.names[-1], _read(flag, value))
    path, name = file_and_context(given.get("config_file"), given.get("context_name"))
    return ConfigRequest(flags, None if path is None else Path(path), name)


def _read(flag: SettingFlag, value: Any) -> object:
    if flag.fixed is not None:
        return flag.fixed
    if flag.setting == "node.profiles":
        return [name.strip() for name in value.split(",")]
    if flag.setting == "node.min_sig_delay_s":
        return _seconds(value)
    if flag.setting == "node.metrics_port":
        port = spelt_number(value, 2**32)
        return value if port is None else port
    return value


def _seconds(text: str) -> object:
    """Return seconds from a number with or without the letter s, as dmq-node takes it; any other text as it is."""
    try:
        return float(text.removesuffix("s"))
    except ValueError:
        return text


def with_kafka(command: F) -> F:
    """Add `kafka`, for `KafkaWay.given`."""
    return click.option(
        "--kafka",
        metavar="HOST:PORT",
        help="Kafka broker: write statuses to it as well, and read messages from it. [kafka.bootstrap]",
    )(command)


class KafkaWay(NamedTuple):
    """`settings` None: no way to Kafka. `flags` say the same to another process."""

    settings: KafkaSettings | None
    flags: tuple[str, ...]

    @classmethod
    def given(cls, bootstrap: str | None, config: Path | None) -> KafkaWay:
        """`ConfigError` if it does not fit together."""
        import os

        from stagepost.config.kafka import load_kafka_settings

        named = () if bootstrap is None else ("--kafka", bootstrap)
        file = () if config is None else ("--config", str(config.absolute()))
        return cls(load_kafka_settings(bootstrap, config, os.environ), (*named, *file))
