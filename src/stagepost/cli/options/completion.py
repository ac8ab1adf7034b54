"""`stagepost --install-completion`: what a shell needs to complete commands, options and choices by the Tab key."""

from __future__ import annotations

import os
from pathlib import Path

import click

COMPLETE_VARIABLE = "_STAGEPOST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")

_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/stagepost"),
    "zsh": ("ZDOTDIR", "", ".zfunc/_stagepost"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/stagepost.fish"),
}
"""By shell: the variable that names a folder, where it is otherwise under the home folder, and the file in it."""

_THEN = {
    "bash": "open a new shell (it needs the package bash-completion), or: source {path}",
    "zsh": "in ~/.zshrc, before compinit: fpath+=({folder})",
    "fish": "open a new shell",
}


def install_completion(shell: str, command: click.Command) -> None:
    """Write the file where the shell looks for it, and say what is left to do. An existing file of ours is replaced."""
    from click.shell_completion import get_completion_class

    from stagepost.errors import StorageError

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    text = kind(command, {}, "stagepost", COMPLETE_VARIABLE).source()
    path = place_for(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {(error.strerror or 'unknown reason').lower()}",
            advice="make its folder writable, or let the shell's variable name another folder",
        ) from error
    click.echo(f"wrote {path}")
    click.echo(_THEN[shell].format(path=path, folder=path.parent))


def place_for(shell: str) -> Path:
    variable, otherwise, name = _PLACES[shell]
    folder = os.environ.get(variable)
    return (Path(folder) if folder else Path.home() / otherwise) / name


def shell_in_use() -> str | None:
    """Return the shell that the environment names; None for a shell without completion here."""
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in SHELLS else None


def completion_asked(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """The callback of the option: installs, and ends the command."""
    if value is None or context.resilient_parsing:
        return
    shell = shell_in_use() if value == "auto" else value
    if shell not in SHELLS:
        raise click.BadParameter(
            f"give one of {', '.join(SHELLS)}: "
            + (f"{value!r} is not one of them" if shell else "SHELL names none of them"),
            context,
            parameter,
        )
    install_completion(shell, context.command)
    context.exit(0)
