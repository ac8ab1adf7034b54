"""The options of commands that deliver reliably, and what they mean for a publisher.

Which options of `stagepost send` go together; what does not is told before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from stagepost.cli.main import file_and_context
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
outbox_option = click.option(
    "--outbox",
    type=click.Path(path_type=Path),
    default=OUTBOX_DIR,
    show_default=True,
    help="Folder of the outbox.",
)


def pools_given(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Each as 56 hex digits; one option may name several, separated by commas."""
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
    """A message of an outbox as people name it: `5f0c91aa`, or one copy of it, `5f0c91aa@12`."""

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
    """Adds `config_file` and `config_context`: where settings come from that no flag gives."""
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
    """What the file sets of `[delivery]`, by the names of a publisher's configuration. `ConfigFaults` for a bad file."""
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


def publisher_config(
    outbox: Path | None,
    settings: Mapping[str, Any],
    *,
    critical: tuple[str, ...] = (),
    required: Required | None = None,
    ack_timeout_s: float | None = None,
    max_retries: int | None = None,
) -> ReliablePublisherConfig:
    """Flags first, then the settings of the file; what neither gives is as the library has it."""
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


EXTERNAL_WAITS = frozenset({"optimistic", "accepted", "final"})


def goes_to_full_node(
    context: click.Context,
    keys: Path | None,
    data: Path | None,
    to: str | None,
    number: int | None,
    source: str | None,
) -> bool:
    """Whether it is an external message: who signs nothing, hands it to the full node of the data folder."""
    from stagepost.ground.files.running_nodes import DATA_DIR, FULL_NODE_FILE

    wait = context.params["wait"]
    if wait not in EXTERNAL_WAITS and to is None and number is None:
        signs = keys is not None or context.params["tier"] is not None
        if signs or not ((data or Path(DATA_DIR)) / FULL_NODE_FILE).exists():
            return False
    if keys is not None:
        raise click.UsageError(
            "an external message is not signed here: --keys does not go with --to, nor with --wait "
            + ", ".join(sorted(EXTERNAL_WAITS)),
            context,
        )
    given = next((name for name in _NOT_EXTERNAL if is_given(context, name)), None)
    if given is not None:
        raise click.UsageError(f"{_NOT_EXTERNAL[given]} is not for external messages", context)
    if wait == "acked":
        raise click.UsageError("an external message is not acknowledged: wait for queued … final", context)
    if (to is None) is not (number is None):
        raise click.UsageError("--to and --number belong together", context)
    if (to is None) is (source is None):
        raise click.UsageError("give either a message (FILE|-|TEXT), or --to and --number", context)
    return True


def require_fitting_options(
    context: click.Context,
    tier: str | None,
    wait: str | None,
    critical: tuple[str, ...],
    required: Required | None,
) -> None:
    if tier is None:
        given = next((name for name in _FLAGS if is_given(context, name)), None)
        if given is not None:
            raise click.UsageError(f"{_FLAGS[given]} needs --tier: best-effort, queued or acked", context)
        return
    unfitting = next((name for name in _PLAIN_ONLY if is_given(context, name)), None)
    if unfitting is not None:
        raise click.UsageError(f"{_PLAIN_ONLY[unfitting]} and --tier do not go together", context)
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


_FLAGS = {
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


_PLAIN_ONLY = {"kes_period": "--kes-period", "evolved_key": "--evolved-key", "raw": "--raw"}
"""What does not go with --tier: there the signer chooses the period and reads the folder for each message."""

_NOT_EXTERNAL = {
    "tier": "--tier",
    "socket": "--socket",
    "network_magic": "--network-magic",
    "profile": "--profile",
    "topic": "--topic",
    "ttl_s": "--ttl",
    **_PLAIN_ONLY,
    **{name: flag for name, flag in _FLAGS.items() if name != "wait"},
}
"""What only a message that is signed and published has."""


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
