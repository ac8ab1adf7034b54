"""Options of commands that take a duration, such as `250ms`, `5s` or `10m`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stagepost.ground.files.durations import parse_duration

F = TypeVar("F", bound=Callable[..., Any])


def duration_given(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """The callback of an option that takes a duration."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def duration_option(*names: str, default: str, help: str) -> Callable[[F], F]:  # as Click calls it
    """Its value is in seconds."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> float:
        try:
            return parse_duration(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return click.option(*names, default=default, show_default=True, callback=read, help=help)
