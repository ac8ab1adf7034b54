"""Bytes that a person hands to a command: a file or standard input, raw or written as hex.

The options of commands that speak with a node over its local socket.

Options of commands that take a duration, such as `250ms`, `5s` or `10m`.

Rows as columns for people to read.

Commands that hold a secret in memory leave no image of it on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
    """All of a file, or of standard input for `-`; no more than `bytes_max`."""
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
            f"could not read {source}: {reason}", advice="check the path and its permissions"
        ) from error
    if len(content) > bytes_max:
        text = f"{source} has more than {bytes_max} bytes"
        raise ConfigError(text, advice="give a smaller piece", limit=bytes_max)
    return content


def looks_like_hex(content: bytes) -> bool:
    """Text made of hex digits only. CBOR and segments hold bytes that no such text has."""
    digits = content.translate(None, _BLANKS)
    return bool(digits) and _HEX_DIGITS.issuperset(digits)


def from_hex(content: bytes, source: str) -> bytes:
    digits = content.translate(None, _BLANKS)
    stray = next((at for at, byte in enumerate(digits) if byte not in _HEX_DIGITS), None)
    if stray is not None:
        text = f"{source} is no hex: digit {stray} is {chr(digits[stray])!r}"
        raise ConfigError(text, advice="give hex digits, or the raw bytes", offset=stray)
    if len(digits) % 2:
        text = f"the hex in {source} ends in the middle of a byte: {len(digits)} digits"
        raise DecodeError(
            text, code=ErrorCode.CBOR_TRUNCATED, advice="copy it again, whole", offset=len(digits) // 2
        )
    return bytes.fromhex(digits.decode("ascii"))


def read_bytes(source: str) -> bytes:
    """The bytes meant by `source`, whichever way they are written."""
    content = read_input(source)
    return from_hex(content, source) if looks_like_hex(content) else content


F = TypeVar("F", bound=Callable[..., Any])

LOCAL_SOCKET = "dmq-node.socket"
NETWORK_MAGIC = 2_912_307_721
"""What dmq-node takes without further word: its main network."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data folder of a node on this machine. [stagepost-data]",
)


def with_local_node(command: F) -> F:
    """Adds `socket`, `network_magic`, `profile` and `data`; `socket_and_magic` makes sense of them."""
    options = (
        click.option(
            "--socket", metavar="PATH", help="The node's local socket. [from --data, else dmq-node.socket]"
        ),
        click.option(
            "--network-magic",
            type=click.IntRange(0, 2**32 - 1),
            help=f"The DMQ network. [from --data, else {NETWORK_MAGIC}]",
        ),
        click.option(
            "--profile",
            type=click.Choice(["dmq-node", "gouroboros", "seed"]),
            default="dmq-node",
            show_default=True,
            help="Wire profile: how to speak with the node.",
        ),
        data_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def socket_and_magic(socket: str | None, network_magic: int | None, data: Path | None) -> tuple[str, int]:
    """What was given; what was not, as the node in the data folder says; else what dmq-node would take."""
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


GAP = "  "


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each column as wide as its widest cell. What strangers had a say in must not steer the terminal."""
    cells = [[_printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        line = GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)


def disable_core_dumps() -> None:
    """A crash while a secret is in memory must not write it to disk."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
