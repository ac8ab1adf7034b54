"""Former forms of `stagepost send`: a command line that `submit` or `message send` serves now.

A former form prints what it always printed on stdout, with the same exit code, and names the present form on stderr.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from stagepost.cli.options.delivery import PLAIN_ONLY, TIER_FLAGS, is_given
from stagepost.cli.options.shared import printable

F = TypeVar("F", bound=Callable[..., Any])

EXTERNAL_WAITS = frozenset({"optimistic", "accepted", "final"})
_ARGUMENTS = "stagepost.cli.send.arguments"
_FORMER = "stagepost.cli.send.former"

_NOT_EXTERNAL = {
    "tier": "--tier",
    "socket": "--socket",
    "network_magic": "--network-magic",
    "profile": "--profile",
    "topic": "--topic",
    "ttl_s": "--ttl",
    **PLAIN_ONLY,
    **{name: flag for name, flag in TIER_FLAGS.items() if name != "wait"},
}
"""Parameter name to flag: options that only a signed message has."""


class SendCommand(click.Command):
    """Command that keeps its arguments as they were typed, to repeat them in the present form."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


class WaitChoice(click.Choice[str]):
    """Choice of `send --wait`: takes the stages of external messages too, and offers only those of a delivery."""

    def __init__(self) -> None:
        super().__init__(["queued", "sent", "acked", *sorted(EXTERNAL_WAITS)])

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        offered = super().shell_complete(ctx, param, incomplete)
        return [item for item in offered if item.value not in EXTERNAL_WAITS]


def with_former_options(command: F) -> F:
    """Add the options that moved to other commands. They are hidden, and `former_value` returns what was given."""

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        context.meta.setdefault(_FORMER, {})[parameter.name] = value

    hidden: dict[str, Any] = {"hidden": True, "expose_value": False, "callback": keep}
    for option in (
        click.option("--raw", is_flag=True, **hidden),
        click.option("--to", **hidden),
        click.option("--number", type=int, **hidden),
    ):
        command = option(command)
    return command


def former_value(context: click.Context, name: str) -> Any:
    return context.meta[_FORMER][name]


def is_external(context: click.Context, keys: Path | None, data: Path | None) -> bool:
    """Return whether the command line submits an external message: without keys, to the full node of the data folder."""
    from stagepost.ground.files.running_nodes import DATA_DIR, FULL_NODE_FILE

    wait = context.params["wait"]
    if wait not in EXTERNAL_WAITS and not is_given(context, "to") and not is_given(context, "number"):
        signs = keys is not None or context.params["tier"] is not None
        if signs or not ((data or Path(DATA_DIR)) / FULL_NODE_FILE).exists():
            return False
    if keys is not None:
        raise click.UsageError(
            "an external message is not signed: --keys cannot be used with --to or with --wait "
            + ", ".join(sorted(EXTERNAL_WAITS)),
            context,
        )
    given = next((name for name in _NOT_EXTERNAL if is_given(context, name)), None)
    if given is not None:
        raise click.UsageError(f"{_NOT_EXTERNAL[given]} cannot be used with external messages", context)
    if wait == "acked":
        raise click.UsageError(
            "an external message is not acknowledged: --wait takes queued, optimistic, accepted or final",
            context,
        )
    return True


def submit_external_message(
    context: click.Context, source: str | None, data: Path | None, timeout_s: float, as_json: bool
) -> int:
    """Do what `stagepost submit` does with these arguments. Return the exit status."""
    from stagepost.cli.submit.command import submit_external

    wait = context.params["wait"]
    if wait == "sent":  # the full node has the message: `submit` ends there without --wait
        wait = None
    name_present_form(context, "submit", *(() if wait else ("--wait",)))
    to, number = former_value(context, "to"), former_value(context, "number")
    limit_s = timeout_s if is_given(context, "timeout_s") else None
    return submit_external(context, source, to, number, data, wait, limit_s, as_json)


def name_present_form(context: click.Context, command: str, *dropped: str) -> None:
    """Print to stderr which command serves these arguments now, without the options `dropped`."""
    flags = {
        name for option in context.command.params if getattr(option, "is_flag", False) for name in option.opts
    }
    kept: list[str] = []
    words = iter(context.meta[_ARGUMENTS])
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in dropped:
            kept.append(word)
        elif not has_value and name not in flags:
            next(words, None)
    click.echo(printable(f"this form is now: stagepost {command} {shlex.join(kept)}"), err=True)
