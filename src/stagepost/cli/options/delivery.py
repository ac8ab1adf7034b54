"""Options of commands that sign and deliver messages, and what these options mean for a publisher.

Options of `stagepost send` that do not go together are refused before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from stagepost.cli.main import file_and_context
from stagepost.cli.options.shared import (
    duration_option,
    gathered,
    json_option,
    path_option,
    with_local_node,
    with_options,
)
from stagepost.delivery.config import OUTBOX_DIR
from stagepost.ground.files.expected import spelt_number

if TYPE_CHECKING:
    from stagepost.config.effective import EffectiveConfig
    from stagepost.delivery.config import ReliablePublisherConfig
    from stagepost.dmq.keys.kes_agent import KesAgent
    from stagepost.dmq.keys.kes_clock import KesClock
    from stagepost.ground.net.webhook import WebhookConfig


F = TypeVar("F", bound=Callable[..., Any])

ANY = "any"
ALL = "all"
ID_PREFIX_DIGITS_MIN = 8
PLACE_DIGITS_MAX = 19
REQUIRED_MAX = 64
"""Peers that an acknowledged delivery can wait for."""
"""Digits of the highest sequence that an outbox can hold."""

Required = int | str
"""`any`, `all`, or how many."""

keys_option = path_option("--keys", "folder", help="Folder with the pool's keys, as `keys new` makes it.")
evolved_key_option = path_option(
    "--evolved-key", help="Sign with this evolved KES key file instead of kes.skey."
)
outbox_option = path_option("--outbox", default=OUTBOX_DIR, show_default=True, help="Folder of the outbox.")


TTL = "29m50s"
"""Duration, ten seconds below what networks allow: a clock that is a little fast must not make a message too far ahead."""
ANSWER_TIMEOUT = "30s"
"""Duration, for a node to answer a submitted message."""
FLUSH_TIMEOUT = "60s"
"""Duration, for sending what an outbox holds."""


def pools_given(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Return each pool as 56 hex digits; one option may name several, separated by commas."""
    from stagepost.errors import ConfigError
    from stagepost.ground.crypto.hashing import parse_pool_id

    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    try:
        return tuple(dict.fromkeys(parse_pool_id(name).hex() for name in names))
    except ConfigError as error:
        raise click.BadParameter(f"{error.text}; {error.advice}", context, parameter) from None


def required_given(context: click.Context, parameter: click.Parameter, value: str | None) -> Required | None:
    if value is None or value in (ANY, ALL):
        return value
    if number := spelt_number(value, REQUIRED_MAX):
        return number
    raise click.BadParameter(
        f"{value!r} is not a valid number of peers; give any, all or 1 to 64", context, parameter
    )


class EntryName(NamedTuple):
    """Name that a person gives a message of an outbox: `5f0c91aa`, or one copy of the message, `5f0c91aa@12`."""

    prefix: str
    place: int | None = None
    """Sequence of one copy; None for all copies of the message."""
    key: str | None = None
    """Idempotency key that the message may have, where no id begins with `prefix`."""

    def __str__(self) -> str:
        return self.prefix if self.place is None else f"{self.prefix}@{self.place}"


def entry_given(context: click.Context, parameter: click.Parameter, value: str | None) -> EntryName | None:
    if value is None:
        return None
    name = _entry_name(value)
    if name is None:
        raise click.BadParameter(
            f"{value!r} is not an id: give at least {ID_PREFIX_DIGITS_MIN} of its 64 hex digits, "
            "followed by @ and a sequence for one of several dead letters, as in 5f0c91aa@12",
            context,
            parameter,
        )
    return name


def entry_or_key_given(context: click.Context, parameter: click.Parameter, value: str) -> EntryName | None:
    """Understand an id or an idempotency key; hexadecimal digits that are too few are a mistake, as for `trace`."""
    if not set("0123456789abcdef").issuperset(value.lower().partition("@")[0]):
        return EntryName(value, key=value)
    name = entry_given(context, parameter, value)
    return None if name is None else name._replace(key=value)


def _entry_name(text: str) -> EntryName | None:
    prefix, at, place = text.lower().partition("@")
    is_id = ID_PREFIX_DIGITS_MIN <= len(prefix) <= 64 and set("0123456789abcdef").issuperset(prefix)
    is_place = not at or (place.isascii() and place.isdecimal() and len(place) <= PLACE_DIGITS_MAX)
    return EntryName(prefix, int(place) if at else None) if is_id and is_place else None


def with_settings_file(command: F) -> F:
    """Add `config_file` and `config_context`: the source of settings that no flag gives."""
    return with_options(
        command,
        path_option("--config", "config_file", help="Settings file. [stagepost.toml, if it exists]"),
        click.option(
            "--context",
            "config_context",
            metavar="NAME",
            help="Let [contexts.NAME] of the settings file override its other settings.",
        ),
    )


def settings_in(config_file: Path | None, config_context: str | None) -> EffectiveConfig:
    """Return all settings, with those that the file and its context set. `ConfigFaults` for a bad file."""
    from stagepost.config.effective import ConfigRequest, effective_config

    file, name = file_and_context(None if config_file is None else str(config_file), config_context)
    config = effective_config(ConfigRequest(config_file=None if file is None else Path(file), context=name))
    config.faults.raise_if_any()
    return config


def delivery_settings(config_file: Path | None, config_context: str | None) -> dict[str, Any]:
    """Return what the file sets in `[delivery]`, by the names of a publisher's configuration. `ConfigFaults` for a bad file."""
    config = settings_in(config_file, config_context)
    section = "delivery."
    return {
        key.removeprefix(section).removesuffix("_s"): value.value
        for key, value in config.values.items()
        if key.startswith(section) and not value.is_default
    }


def webhook_in(config_file: Path | None, config_context: str | None) -> WebhookConfig | None:
    """Return the receiver of status changes that `[webhook]` of the settings names; None if it names none."""
    import os

    from stagepost.ground.net.webhook import SECRET_VARIABLE, TOKEN_VARIABLE, WebhookConfig

    config = settings_in(config_file, config_context)
    url = config.values["webhook.url"].value
    if url is None:
        return None
    return WebhookConfig(
        url=str(url),
        token=os.environ.get(TOKEN_VARIABLE) or None,
        secret=os.environ.get(SECRET_VARIABLE) or None,
        allow_private=bool(config.values["webhook.allow_private"].value),
    )


@dataclass(frozen=True)
class DeliveryOptions:
    """Options that only a reliable delivery (--tier) has."""

    critical: tuple[str, ...]
    required: Required | None
    ack_timeout_s: float | None
    max_retries: int | None
    outbox: Path | None
    key: str | None
    traceparent: str | None
    config_file: Path | None
    config_context: str | None


def with_delivery_options(command: F) -> F:
    """Add the options of a reliable delivery, as one parameter `delivery` of `command`."""
    return with_options(
        gathered(command, "delivery", DeliveryOptions),
        click.option(
            "--critical",
            metavar="POOL",
            multiple=True,
            callback=pools_given,
            help="Pool that is to acknowledge the message; may be repeated.",
        ),
        click.option(
            "--require",
            "required",
            metavar="any|all|K",
            callback=required_given,
            help="How many of these pools must acknowledge. [any]",
        ),
        duration_option(
            "--ack-timeout",
            "ack_timeout_s",
            default=None,
            help="How long to wait for acknowledgements after each attempt. [5s]",
        ),
        click.option(
            "--max-retries", type=click.IntRange(0, 100), help="Attempts to send after the first one. [3]"
        ),
        path_option(
            "--outbox",
            help=f"Folder where the message is kept until it is delivered. [{OUTBOX_DIR} for --tier queued]",
        ),
        click.option(
            "--key", help="Idempotency key: calls with the same key, topic and content send one message."
        ),
        click.option(
            "--traceparent",
            metavar="TEXT",
            help="W3C trace context of the caller; it travels with the message and begins its trace.",
        ),
        with_settings_file,
    )


@dataclass(frozen=True)
class SigningSource:
    """Options that name a KES agent in place of key files, and the chain whose KES periods count."""

    kes_agent: Path | None
    cold_vkey: Path | None
    cardano_node_socket: Path | None
    cardano_network_magic: int | None
    genesis: Path | None


SOURCE_FLAGS = {
    "kes_agent": "--kes-agent",
    "cold_vkey": "--cold-vkey",
    "cardano_node_socket": "--cardano-node-socket",
    "cardano_network_magic": "--cardano-network-magic",
    "genesis": "--genesis",
}
"""Parameter name to flag."""


def with_signing_source(command: F) -> F:
    """Add the options that name a KES agent and the chain, as one parameter `signing` of `command`."""
    return with_options(
        gathered(command, "signing", SigningSource),
        path_option(
            "--kes-agent",
            metavar="SOCKET",
            help="Socket of a KES agent that holds the key and the certificate, in place of --keys.",
        ),
        path_option(
            "--cold-vkey",
            metavar="FILE",
            help="With --kes-agent: cold verification key of the pool, as cardano-cli writes it.",
        ),
        path_option(
            "--cardano-node-socket",
            metavar="PATH",
            help="Local socket of a cardano-node that is asked for the present KES period. "
            "[on private networks: the one that the node in --data asks]",
        ),
        click.option(
            "--cardano-network-magic",
            type=click.IntRange(0, 2**32 - 1),
            help="Magic number of that cardano-node's network. [from --genesis, or that of the public network]",
        ),
        path_option(
            "--genesis",
            metavar="FILE",
            help="Shelley genesis file of the chain. Alone, it tells the present KES period of a chain without Byron blocks.",
        ),
    )


def keys_given(
    context: click.Context, folder: Path | None, signing: SigningSource, evolved_key: Path | None = None
) -> Path | KesAgent:
    """Return the folder or the agent that the options name: exactly one of them."""
    if signing.kes_agent is None:
        if signing.cold_vkey is not None:
            raise click.UsageError("--cold-vkey is for --kes-agent", context)
        if folder is None:
            raise click.UsageError("Missing option '--keys'.", context)
        return folder
    if folder is not None or evolved_key is not None:
        raise click.UsageError(
            f"{'--keys' if folder else '--evolved-key'} cannot be used with --kes-agent", context
        )
    if signing.cold_vkey is None:
        raise click.UsageError("--kes-agent needs --cold-vkey: an agent does not name the pool", context)
    from stagepost.dmq.keys.kes_agent import KesAgent

    return KesAgent.named(signing.kes_agent, signing.cold_vkey)


def kes_clock_given(signing: SigningSource, network_magic: int, socket: str, data: Path | None) -> KesClock:
    """Return the clock that the options name; without any, that of the public network or of the node in `data`."""
    from stagepost.dmq.cardano.genesis import GENESIS_FILE_BYTES_MAX, parse_genesis
    from stagepost.dmq.keys.kes_clock import KesClock
    from stagepost.ground.files.small_files import read_small_file

    if signing.cardano_node_socket is None and signing.genesis is None:
        if signing.cardano_network_magic is not None:
            raise click.UsageError("--cardano-network-magic needs --cardano-node-socket")
        return KesClock.beside_node(network_magic, Path(socket), data)
    genesis = None
    if signing.genesis is not None:
        content, _ = read_small_file(signing.genesis, GENESIS_FILE_BYTES_MAX, "a Shelley genesis file")
        genesis = parse_genesis(content, str(signing.genesis))
        if signing.cardano_network_magic not in (None, genesis.network_magic):
            raise click.UsageError(
                f"{signing.genesis} is of network {genesis.network_magic}, --cardano-network-magic is {signing.cardano_network_magic}"
            )
    return KesClock(
        network_magic,
        cardano_socket=signing.cardano_node_socket,
        cardano_magic=signing.cardano_network_magic,
        genesis=genesis,
    )


def with_signing_options(command: F) -> F:
    """Add `ttl_s`, `kes_period`, `evolved_key`, `signing` and `timeout_s`: dates of a message, its key, a KES agent and
    the chain whose periods count, and the wait for an answer."""
    return with_options(
        command,
        duration_option("--ttl", "ttl_s", default=TTL, help="Time until the message expires."),
        click.option(
            "--kes-period",
            type=click.IntRange(min=0),
            help="KES period to sign for, on networks whose clock is not known. "
            "[the present period; on those networks the period of the key file]",
        ),
        evolved_key_option,
        with_signing_source,
        duration_option(
            "--timeout",
            "timeout_s",
            default=ANSWER_TIMEOUT,
            help="How long to wait for the node's answer.",
        ),
    )


@dataclass(frozen=True)
class EmptyingOptions:
    """Options of a command that sends what an outbox holds: outbox, keys, DMQ node, settings and time limit."""

    folder: Path | None
    outbox: Path
    socket: str | None
    network_magic: int | None
    profile: str
    data: Path | None
    signing: SigningSource
    timeout_s: float
    config_file: Path | None
    config_context: str | None
    as_json: bool


def with_emptying_options(command: F) -> F:
    """Add the options of `EmptyingOptions`, as one parameter `sending` of `command`."""
    return with_options(
        gathered(command, "sending", EmptyingOptions),
        keys_option,
        outbox_option,
        with_local_node,
        with_signing_source,
        duration_option(
            "--timeout",
            "timeout_s",
            default=FLUSH_TIMEOUT,
            help="How long to try; messages not sent by then stay in the outbox.",
        ),
        with_settings_file,
        json_option,
    )


def publisher_config(
    outbox: Path | None,
    settings: Mapping[str, Any],
    *,
    critical: tuple[str, ...] = (),
    required: Required | None = None,
    ack_timeout_s: float | None = None,
    max_retries: int | None = None,
) -> ReliablePublisherConfig:
    """Return a configuration from flags first, then from the file's settings, then from the library's defaults."""
    from stagepost.delivery.config import ReliablePublisherConfig

    chosen = dict(settings)
    if critical:
        chosen["critical_peers"] = critical
    chosen["enable_ack"] = bool(chosen.get("critical_peers"))
    if outbox is not None:
        chosen |= {"persistence": "disk", "queue_path": str(outbox)}
    if isinstance(required, int):
        chosen |= {"required_acks": required, "require_all_acks": False}
    elif required is not None:
        chosen["require_all_acks"] = required == ALL
    if ack_timeout_s is not None:
        chosen["ack_timeout"] = ack_timeout_s
    if max_retries is not None:
        chosen["max_retries"] = max_retries
    return ReliablePublisherConfig(**chosen)


def require_fitting_options(
    context: click.Context,
    tier: str | None,
    wait: str | None,
    critical: tuple[str, ...],
    required: Required | None,
) -> None:
    if tier is None:
        given = next((name for name in TIER_FLAGS if is_given(context, name)), None)
        if given is not None:
            raise click.UsageError(f"{TIER_FLAGS[given]} needs --tier: best-effort, queued or acked", context)
        return
    unfitting = next((name for name in PLAIN_ONLY if is_given(context, name)), None)
    if unfitting is not None:
        raise click.UsageError(f"{PLAIN_ONLY[unfitting]} cannot be used with --tier", context)
    ends = {"best-effort": ("sent",), "queued": ("queued", "sent"), "acked": ("acked",)}[tier]
    if wait is not None and wait not in ends:
        raise click.UsageError(
            f"--tier {tier} cannot wait for {wait}; it ends with {' or '.join(ends)}", context
        )
    if tier == "acked" and not critical:
        raise click.UsageError(
            "--tier acked needs --critical POOL (or delivery.critical_peers in the settings file): "
            "the pool that is to acknowledge the message",
            context,
        )
    if isinstance(required, int) and required > len(critical):
        count = f"{len(critical)} critical peer{'' if len(critical) == 1 else 's'}"
        raise click.UsageError(f"--require {required} cannot be reached: --critical names {count}", context)
    if tier != "acked" and critical:
        raise click.UsageError("--critical needs --tier acked: on other tiers no peer acknowledges", context)


TIER_FLAGS = {
    "wait": "--wait",
    "critical": "--critical",
    "required": "--require",
    "ack_timeout_s": "--ack-timeout",
    "max_retries": "--max-retries",
    "outbox": "--outbox",
    "key": "--key",
    "traceparent": "--traceparent",
    "config_file": "--config",
    "config_context": "--context",
}


PLAIN_ONLY = {"kes_period": "--kes-period", "evolved_key": "--evolved-key", "raw": "--raw"}
"""Parameter name to flag: options that do not go with --tier, where the signer chooses the period and reads the folder for
each message."""


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
