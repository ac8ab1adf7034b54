"""Which options of `stagepost send` go together; what does not is told before anything is done."""

from __future__ import annotations

import click
from click.core import ParameterSource

from stagepost.cli.delivery_options import Required


def require_fitting_options(
    context: click.Context,
    tier: str | None,
    wait: str | None,
    critical: tuple[str, ...],
    required: Required | None,
    raw: bool,
    kes_period: int | None,
) -> None:
    if tier is None:
        given = next((name for name in _FLAGS if is_given(context, name)), None)
        if given is not None:
            raise click.UsageError(f"{_FLAGS[given]} needs --tier: best-effort, queued or acked", context)
        return
    if raw or kes_period is not None:
        flag = "--raw" if raw else "--kes-period"
        raise click.UsageError(f"{flag} and --tier do not go together", context)
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


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE
