"""What stands before the command counts for it: `stagepost --config FILE --context NAME …`."""

from __future__ import annotations

from dataclasses import dataclass

import click


@dataclass
class Common:
    """Kept as the object of the outermost context. `is_used`: whether the command has asked for the settings file."""

    verbose: bool = False
    quiet: bool = False
    config_file: str | None = None
    context_name: str | None = None
    is_used: bool = False


def common() -> Common:
    """Of the command that runs now; nothing was given where none does."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, Common) else Common()


def file_and_context(config_file: str | None, context_name: str | None) -> tuple[str | None, str | None]:
    """What was given to the command itself; else what was given before it."""
    given = common()
    given.is_used = True
    return config_file or given.config_file, context_name or given.context_name


def unused_options() -> str | None:
    """A sentence if something was given that the command does not look at."""
    given = common()
    names = [
        name
        for name, value in (("--config", given.config_file), ("--context", given.context_name))
        if value is not None
    ]
    if given.is_used or not names:
        return None
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect on this command"
