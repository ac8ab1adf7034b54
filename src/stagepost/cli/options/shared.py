"""Parts that several commands share.

Input: a file, standard input or text; raw or written as hex. Options: `--json`, `--data`, the node's local socket,
durations such as `250ms`, `5s` or `10m`. Output: rows as columns, text without control characters. Secrets: no core dumps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from stagepost.errors import ConfigError, DecodeError, ErrorCode, StorageError
from stagepost.ground.files.durations import parse_duration
from stagepost.ground.files.local_paths import require_local_path

INPUT_BYTES_MAX = 64 * 1024 * 1024
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_BLANKS = b" \t\r\n"


def read_input(source: str, bytes_max: int = INPUT_BYTES_MAX) -> bytes:
    """Return all of a file, or of standard input for `-`; refuse more than `bytes_max` bytes."""
    require_local_path(source)
    try:
        if source == "-":
            content = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(bytes_max + 1)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise StorageError(
            f"could not read {source}: {reason.lower()}", advice="give the path of a file that you may read"
        ) from error
    if len(content) > bytes_max:
        text = f"{source} has more than {bytes_max} bytes"
        raise ConfigError(text, advice="give a smaller file", limit=bytes_max)
    return content


def read_content(source: str, bytes_max: int, command: str) -> bytes:
    """Return the content of the file `source`, of standard input for `-`, or `source` itself as text.

    A mistyped file name should not be published to the world in place of the file: a word that looks like the name of a
    file, and names none, is refused. `command` is the command that takes the words from standard input.
    """
    if source == "-" or os.path.isfile(source):  # long texts are not names, and not an error either
        return read_input(source, bytes_max)
    has_blanks = any(character.isspace() for character in source)
    if not has_blanks and ("/" in source or Path(source).suffix != ""):
        raise StorageError(
            f"there is no file {source}", advice=f"to send this text, pipe it in: … | {command} -"
        )
    return source.encode()


def looks_like_hex(content: bytes) -> bool:
    """Return whether `content` is text of hex digits only. CBOR and segments hold bytes that no such text has."""
    digits = content.translate(None, _BLANKS)
    return bool(digits) and _HEX_DIGITS.issuperset(digits)


def from_hex(content: bytes, source: str) -> bytes:
    digits = content.translate(None, _BLANKS)
    stray = next((at for at, byte in enumerate(digits) if byte not in _HEX_DIGITS), None)
    if stray is not None:
        text = f"{source} is not valid hex: character {stray} is {chr(digits[stray])!r}"
        raise ConfigError(text, advice="give hex digits, or the raw bytes", offset=stray)
    if len(digits) % 2:
        text = f"the hex in {source} ends in the middle of a byte: {len(digits)} digits"
        raise DecodeError(
            text, code=ErrorCode.CBOR_TRUNCATED, advice="copy the whole text again", offset=len(digits) // 2
        )
    return bytes.fromhex(digits.decode("ascii"))


def read_bytes(source: str) -> bytes:
    """Return the bytes of `source`, which is written raw or as hex."""
    content = read_input(source)
    return from_hex(content, source) if looks_like_hex(content) else content


F = TypeVar("F", bound=Callable[..., Any])

LOCAL_SOCKET = "dmq-node.socket"
NETWORK_MAGIC = 2_912_307_721
"""Network magic of dmq-node's main network, its own default."""


def with_options(command: F, *options: Callable[[F], F]) -> F:
    """Add `options` to `command`; help shows them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def gathered(command: F, name: str, bundle: Any) -> F:
    """Return `command` as Click is to call it: the fields of the dataclass `bundle` come as one argument `name`."""

    @wraps(command)
    def call(*arguments: Any, **values: Any) -> Any:
        given = bundle(**{field.name: values.pop(field.name) for field in fields(bundle)})
        return command(*arguments, **{name: given}, **values)

    return call  # type: ignore[return-value]


def name_numbers(command: click.Command) -> None:
    """Let errors of `command`, and of all commands below it, say "not a valid integer" where click says "integer range"."""
    for parameter in command.params:
        if isinstance(parameter.type, click.IntRange | click.FloatRange):
            parameter.type.name = "integer" if isinstance(parameter.type, click.IntRange) else "number"
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        name_numbers(inner)


class RenamedOption(click.Option):
    """Option that is also understood under its former names: help shows the first name alone."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder of a node on this machine. [stagepost-data]",
)


def with_local_node(command: F) -> F:
    """Add `socket`, `network_magic`, `profile` and `data`; `socket_and_magic` makes sense of these options."""
    return with_options(
        command,
        click.option(
            "--socket", metavar="PATH", help="The node's local socket. [from --data, else dmq-node.socket]"
        ),
        click.option(
            "--network-magic",
            type=click.IntRange(0, 2**32 - 1),
            help=f"Magic number of the DMQ network. [from --data, else {NETWORK_MAGIC}]",
        ),
        click.option(
            "--profile",
            type=click.Choice(["dmq-node", "gouroboros", "seed"]),
            default="dmq-node",
            show_default=True,
            help="Wire profile of the connection to the node.",
        ),
        data_option,
    )


def socket_and_magic(socket: str | None, network_magic: int | None, data: Path | None) -> tuple[str, int]:
    """Return what was given; for what was not, the word of the node in the data folder, else dmq-node's default."""
    from stagepost.ground.files.data_folder import NODE_FILE
    from stagepost.ground.files.running_nodes import DATA_DIR, find_node

    folder = data or Path(DATA_DIR)
    if data is None and (socket is not None or not (folder / NODE_FILE).exists()):
        return socket or LOCAL_SOCKET, NETWORK_MAGIC if network_magic is None else network_magic
    if socket is not None and network_magic is not None:
        return socket, network_magic
    facts = find_node(folder)
    return socket or facts.local_socket, facts.network_magic if network_magic is None else network_magic


def duration_given(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Parse the value of an option that takes a duration; Click calls this."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def duration_option(*names: str, default: str | None, help: str) -> Callable[[F], F]:  # as Click calls it
    """Return an option that takes a duration, whose value is in seconds; None if neither it nor a default is given."""
    return click.option(
        *names, metavar="DURATION", default=default, show_default=True, callback=duration_given, help=help
    )


def path_option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that takes a path of this machine, given as a `Path`."""
    return click.option(*names, type=click.Path(path_type=Path), **settings)


GAP = "  "


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows, each column as wide as its widest cell."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        line = GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def printable(text: str) -> str:
    """Return `text` without control characters: text in which strangers had a say must not steer the terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)


def disable_core_dumps() -> None:
    """Disable core dumps: a crash while a secret is in memory must not write it to disk."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
