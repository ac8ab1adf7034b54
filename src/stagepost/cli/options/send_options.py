"""Which options of `stagepost send` go together; what does not is told before anything is done."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from stagepost.cli.options.delivery import Required

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
