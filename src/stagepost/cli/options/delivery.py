"""Options of commands that sign and deliver messages, and what these options mean for a publisher.

Options of `stagepost send` that do not go together are refused before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from stagepost.cli.main import file_and_context
from stagepost.cli.options.shared import duration_given
from stagepost.delivery.config import OUTBOX_DIR

if TYPE_CHECKING:
    from stagepost.config.effective import EffectiveConfig
    from stagepost.delivery.config import ReliablePublisherConfig


F = TypeVar("F", bound=Callable[..., Any])

ANY = "any"
ALL = "all"
ID_PREFIX_DIGITS_MIN = 8
PLACE_DIGITS_MAX = 19
"""Digits of the highest sequence that an outbox can hold."""

Required = int | str
"""`any`, `all`, or how many."""

keys_option = click.option(
    "--keys", "folder", required=True, type=click.Path(path_type=Path), help="Folder of `keys new`."
)
evolved_key_option = click.option(
    "--evolved-key",
    type=click.Path(path_type=Path),
    help="Sign with this KES key file, which is past its first period, in place of kes.skey.",
)
outbox_option = click.option(
    "--outbox",
    type=click.Path(path_type=Path),
    default=OUTBOX_DIR,
    show_default=True,
    help="Folder of the outbox.",
)


TTL = "29m50s"
"""Duration, ten seconds below what networks allow: a clock that is a little fast must not make a message too far ahead."""
ANSWER_TIMEOUT = "30s"
"""Duration, for a node to answer a submitted message."""


def pools_given(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Return each pool as 56 hex digits; one option may name several, separated by commas."""
    from stagepost.errors import ConfigError
    from stagepost.ground.crypto.pool_ids import parse_pool_id

    names = [name.strip() for value in values for name in value.split(",") if name.strip()]
    try:
        return tuple(dict.fromkeys(parse_pool_id(name).hex() for name in names))
    except ConfigError as error:
        raise click.BadParameter(f"{error.text}; {error.advice}", context, parameter) from None


def required_given(context: click.Context, parameter: click.Parameter, value: str | None) -> Required | None:
    if value is None or value in (ANY, ALL):
        return value
    if value.isascii() and value.isdecimal() and 1 <= int(value) <= 64:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither any, all, nor a number of peers", context, parameter)


class EntryName(NamedTuple):
    """Name that a person gives a message of an outbox: `5f0c91aa`, or one copy of the message, `5f0c91aa@12`."""

    prefix: str
    place: int | None = None
    """Sequence of one copy; None for all copies of the message."""

    def __str__(self) -> str:
        return self.prefix if self.place is None else f"{self.prefix}@{self.place}"


def entry_given(context: click.Context, parameter: click.Parameter, value: str | None) -> EntryName | None:
    if value is None:
        return None
    prefix, at, place = value.lower().partition("@")
    is_id = ID_PREFIX_DIGITS_MIN <= len(prefix) <= 64 and set("0123456789abcdef").issuperset(prefix)
    is_place = not at or (place.isascii() and place.isdecimal() and len(place) <= PLACE_DIGITS_MAX)
    if not is_id or not is_place:
        raise click.BadParameter(
            f"{value!r} is not an id: give at least {ID_PREFIX_DIGITS_MIN} of its 64 hex digits, "
            "for one of several copies with its place behind them, as in 5f0c91aa@12",
            context,
            parameter,
        )
    return EntryName(prefix, int(place) if at else None)


def with_settings_file(command: F) -> F:
    """Add `config_file` and `config_context`: the source of settings that no flag gives."""
    options = (
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path),
            help="Settings file; its section [delivery] counts here. [stagepost.toml, if there is one]",
        ),
        click.option(
            "--context", "config_context", metavar="NAME", help="A named part of the settings file."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def delivery_settings(config_file: Path | None, config_context: str | None) -> dict[str, Any]:
    """Return what the file sets in `[delivery]`, by the names of a publisher's configuration. `ConfigFaults` for a bad file."""
    from stagepost.config.effective import ConfigRequest, effective_config

    file, name = file_and_context(None if config_file is None else str(config_file), config_context)
    config = effective_config(ConfigRequest(config_file=None if file is None else Path(file), context=name))
    config.faults.raise_if_any()
    section = "delivery."
    settings = {
        key.removeprefix(section).removesuffix("_s"): value.value
        for key, value in config.values.items()
        if key.startswith(section) and not value.is_default
    }
    if "critical_peers" in settings:
        settings["critical_peers"] = _pools_in(config.words("delivery.critical_peers"), config)
    return settings


def _pools_in(names: tuple[str, ...], config: EffectiveConfig) -> tuple[str, ...]:
    from stagepost.errors import ConfigError
    from stagepost.ground.crypto.pool_ids import parse_pool_id

    try:
        return tuple(dict.fromkeys(parse_pool_id(name).hex() for name in names))
    except ConfigError as error:
        config.fault("delivery.critical_peers", error.text)
        config.faults.raise_if_any()
        raise


@dataclass(frozen=True)
class DeliveryOptions:
    """Options that only a reliable delivery (--tier) has."""

    critical: tuple[str, ...]
    required: Required | None
    ack_timeout_s: float | None
    max_retries: int | None
    outbox: Path | None
    key: str | None
    config_file: Path | None
    config_context: str | None


def with_delivery_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a reliable delivery, as one parameter `delivery` of `command`."""

    @wraps(command)
    def with_bundle(*arguments: Any, **values: Any) -> None:
        bundle = DeliveryOptions(**{one.name: values.pop(one.name) for one in fields(DeliveryOptions)})
        command(*arguments, delivery=bundle, **values)

    options = (
        click.option(
            "--critical",
            metavar="POOL",
            multiple=True,
            callback=pools_given,
            help="Who shall acknowledge; may be repeated.",
        ),
        click.option(
            "--require",
            "required",
            metavar="any|all|K",
            callback=required_given,
            help="How many of them. [any]",
        ),
        click.option(
            "--ack-timeout",
            "ack_timeout_s",
            metavar="DURATION",
            callback=duration_given,
            help="How long to wait for them after each attempt. [5s]",
        ),
        click.option("--max-retries", type=click.IntRange(0, 100), help="Attempts after the first one. [3]"),
        click.option(
            "--outbox",
            type=click.Path(path_type=Path),
            help=f"Folder where the message is kept until it is delivered. [{OUTBOX_DIR} for --tier queued]",
        ),
        click.option("--key", help="Idempotency key: the same key, topic and content are one message."),
        with_settings_file,
    )
    for option in reversed(options):
        with_bundle = option(with_bundle)
    return with_bundle


def with_signing_options(command: F) -> F:
    """Add `ttl_s`, `kes_period`, `evolved_key` and `timeout_s`: dates of a message, its key, and the wait for an answer."""
    options = (
        click.option(
            "--ttl",
            "ttl_s",
            metavar="DURATION",
            default=TTL,
            show_default=True,
            callback=duration_given,
            help="Time to live.",
        ),
        click.option(
            "--kes-period",
            type=click.IntRange(min=0),
            help="For networks without a known clock. "
            "Default: the present period; without a clock, that of the key file.",
        ),
        evolved_key_option,
        click.option(
            "--timeout",
            "timeout_s",
            metavar="DURATION",
            default=ANSWER_TIMEOUT,
            show_default=True,
            callback=duration_given,
            help="How long to wait for the node's answer.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


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
        raise click.UsageError(f"{PLAIN_ONLY[unfitting]} and --tier do not go together", context)
    ends = {"best-effort": ("sent",), "queued": ("queued", "sent"), "acked": ("acked",)}[tier]
    if wait is not None and wait not in ends:
        raise click.UsageError(
            f"--tier {tier} cannot wait for {wait}; it ends with {' or '.join(ends)}", context
        )
    if tier == "acked" and not critical:
        raise click.UsageError(
            "--tier acked needs --critical POOL (or delivery.critical_peers in the settings file): "
            "who shall acknowledge the message",
            context,
        )
    if isinstance(required, int) and required > len(critical):
        count = f"{len(critical)} critical peer{'' if len(critical) == 1 else 's'}"
        raise click.UsageError(f"--require {required} cannot be reached: {count} named", context)
    if tier != "acked" and critical:
        raise click.UsageError("--critical is for --tier acked: nobody else is asked to acknowledge", context)


TIER_FLAGS = {
    "wait": "--wait",
    "critical": "--critical",
    "required": "--require",
    "ack_timeout_s": "--ack-timeout",
    "max_retries": "--max-retries",
    "outbox": "--outbox",
    "key": "--key",
    "config_file": "--config",
    "config_context": "--context",
}


PLAIN_ONLY = {"kes_period": "--kes-period", "evolved_key": "--evolved-key", "raw": "--raw"}
"""Parameter name to flag: options that do not go with --tier, where the signer chooses the period and reads the folder for
each message."""


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
