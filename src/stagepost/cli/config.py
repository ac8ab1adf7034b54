"""`stagepost config`: write, test and print the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.main import file_and_context
from stagepost.cli.options.node_flags import request_from, with_node_flags
from stagepost.cli.options.shared import json_option

if TYPE_CHECKING:
    from stagepost.config.effective import EffectiveConfig, Value

_ORIGIN_COLUMN = 46


@click.group()
def config() -> None:
    """Write, check or print the configuration of a DMQ node and of the other commands.

    \b
    Example:
      stagepost config check
    """


@config.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of stagepost.toml, for editors and checkers.

    \b
    Example:
      stagepost config schema
    """
    from stagepost.config.settings import settings_schema

    click.echo(json.dumps(settings_schema(), indent=None if as_json else 1))


@config.command()
@click.option("--config", "config_file", metavar="FILE", help="File to write. [stagepost.toml]")
@json_option
def init(config_file: str | None, as_json: bool) -> None:
    """Write a settings file that explains every setting. An existing file is not overwritten.

    \b
    Example:
      stagepost config init
    """
    from stagepost.config.settings_file import SETTINGS_FILE, initial_file
    from stagepost.errors import ConfigError, StorageError

    path = Path(file_and_context(config_file, None)[0] or SETTINGS_FILE)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(initial_file())
    except FileExistsError as error:
        raise ConfigError(
            f"{path} exists already and is not overwritten", advice="move it away, or choose another --config"
        ) from error
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {(error.strerror or 'unknown reason').lower()}",
            advice="choose another --config",
        ) from error
    click.echo(json.dumps({"written": str(path)}) if as_json else f"wrote {path}")


@config.command()
@with_node_flags(with_log_flags=False)
@json_option
@click.pass_context
def check(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Check stagepost.toml, dmq-node's JSON file, the topology and the pools file. Exit code 2 if there is a fault.

    The command lists all faults of all files, each with its place, the expected value and the value found.

    \b
    Example:
      stagepost config check --pools pools.json
    """
    from stagepost.cli.exit_codes import USAGE
    from stagepost.config.effective import check_files
    from stagepost.errors import ErrorCode

    effective = check_files(request_from(given))
    faults = effective.faults.error()
    if as_json:
        for file, found in faults.faults.items():
            for fault in found:
                click.echo(
                    json.dumps({"kind": "fault", "file": file, "key": fault.where, "problem": fault.text})
                )
        for note in effective.notes:
            click.echo(json.dumps({"kind": "note", "text": note}))
        code = ErrorCode.CONFIG_INVALID if effective.faults else None
        click.echo(json.dumps({"kind": "result", "is_valid": not effective.faults, "code": code}))
    else:
        for note in effective.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(
            f"{faults.text}\n{ErrorCode.CONFIG_INVALID}  nothing was started" if effective.faults else "ok"
        )
    if effective.faults:
        context.exit(USAGE)


@config.command()
@with_node_flags(with_log_flags=False)
@json_option
def show(as_json: bool, **given: Any) -> None:
    """Print the effective value of every setting, and the flag, file or default that sets it.

    \b
    Example:
      stagepost config show --context preview
    """
    from stagepost.config.effective import effective_config

    effective = effective_config(request_from(given))
    effective.faults.raise_if_any()
    if as_json:
        for key, value in effective.values.items():
            click.echo(json.dumps({"key": key, "value": value.value, "origin": value.origin}))
        return
    click.echo(_as_toml(effective), nl=False)


def _as_toml(effective: EffectiveConfig) -> str:
    """Valid TOML again: the origin is a comment, and what is not set is one as well."""
    from stagepost.config.settings import SECTIONS

    blocks = []
    for section, settings in SECTIONS.items():
        lines = [_toml_line(name, effective.values[setting.key]) for name, setting in settings.items()]
        blocks.append("\n".join([f"[{section}]", *lines]) + "\n")
    return "\n".join(blocks)


def _toml_line(name: str, value: Value) -> str:
    from stagepost.config.settings_file import toml_value

    is_unset = value.value is None and value.is_default
    line = f"# {name} is not set" if is_unset else f"{name} = {toml_value(value.value)}"
    return f"{line:<{_ORIGIN_COLUMN}} # {value.origin}"
