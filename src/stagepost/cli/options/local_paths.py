"""Options and arguments that take a path: an address of storage elsewhere is refused before the command begins."""

from __future__ import annotations

from typing import Any

import click

from stagepost.ground.files.local_paths import require_local_path


def take_local_paths_only(command: click.Command) -> None:
    """Let each parameter with a path, of `command` and of all commands below it, refuse an address with a scheme."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) and not isinstance(parameter.type, _LocalPath):
            parameter.type = _LocalPath(parameter.type)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        take_local_paths_only(inner)


class _LocalPath(click.Path):
    """The same type of path, which looks at the text first: a `Path` has lost a slash of it."""

    def __init__(self, given: click.Path) -> None:
        super().__init__()
        self.__dict__.update(given.__dict__)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        require_local_path(value, _shown(param))
        return super().convert(value, param, ctx)


def _shown(parameter: click.Parameter | None) -> str:
    if parameter is None:
        return ""
    return parameter.opts[0] if isinstance(parameter, click.Option) else (parameter.name or "").upper()
