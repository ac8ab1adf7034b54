"""Dump files, cut into pieces that workers read side by side, and the conversion of each line into a record:
plain Python, run inside Spark's workers.

Each line keeps its number. A line is an envelope (key, value, headers, position) or a bare receipt. Every
line becomes a row: a line that cannot be read becomes the value of a row that will be quarantined, so that no
input is ever lost from the count.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.identifiers import INT64_MAX
from stagepost.ground.wire.foreign_json import is_too_deep
from stagepost.remp.hex_text import read_hash
from stagepost.topics.topic import STATUSES

PIECE_BYTES = 16 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True):
    """The lines of a file from byte `begin` up to, not including, byte `end`; the first has number `line`."""

    path: str
    begin: int
    end: int
    line: int


class Dump(msgspec.Struct, frozen=True):
    path: str
    digest: str
    pieces: tuple[Piece, ...]
    lines: int


def survey(path: Path, piece_bytes: int = PIECE_BYTES) -> Dump:
    """Read a file once, and return its digest and the places at which it can be cut."""
    hashing = sha256()
    pieces: list[Piece] = []
    begin, first_line, line, position = 0, 0, 0, 0
    is_line_open = False
    try:
        with path.open("rb") as file:
            while block := file.read(piece_bytes):
                hashing.update(block)
                line += block.count(b"\n")
                is_line_open = not block.endswith(b"\n")
                position += len(block)
                newline = block.rfind(b"\n")
                if newline >= 0:
                    end = position - len(block) + newline + 1
                    pieces.append(Piece(str(path.resolve()), begin, end, first_line))
                    begin, first_line = end, line
    except OSError as error:
        raise StorageError(
            f"cannot read the dump {path}: {os.strerror(error.errno or 0).lower()}", advice="see --input"
        ) from error
    if begin < position:
        pieces.append(Piece(str(path.resolve()), begin, position, first_line))
    return Dump(str(path), hashing.hexdigest(), tuple(pieces), line + is_line_open)


def lines_of(piece: Piece) -> Iterator[bytes]:
    with open(piece.path, "rb") as file:
        file.seek(piece.begin)
        data = file.read(piece.end - piece.begin)
    lines = data.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return iter(lines)


def records_of(piece: Piece) -> Iterator[Record]:
    """Yield the record of each line of a piece."""
    return (read_line(line, number) for number, line in enumerate(lines_of(piece), start=piece.line))


INT32_MAX = (1 << 31) - 1


class Record(NamedTuple):
    """A row with the columns of `schemas.RAW`, in their order."""

    topic: str
    partition: int | None
    offset: int | None
    arrived_ms: int | None
    key: str | None
    value: bytes | None
    is_fault: bool = False
    session_hint: str | None = None
    delivery_id: str | None = None
    dmq_id: str | None = None
    origin: str | None = None


class _Line(msgspec.Struct, gc=False):
    key: Any = None
    value: Any = msgspec.UNSET
    value_base64: Any = msgspec.UNSET
    topic: Any = None
    partition: Any = None
    offset: Any = None
    timestamp_ms: Any = None
    headers: Any = None
    message_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Line).decode


def read_line(line: bytes, number: int) -> Record:
    """Return the record of a line. `number` is the line's, from 0: the offset of a record that states none."""
    found = _read(line)
    if found is None:
        return Record(STATUSES, None, number, None, None, line, is_fault=True)
    has_value, has_base64 = found.value is not msgspec.UNSET, found.value_base64 is not msgspec.UNSET
    if not has_value and not has_base64 and (found.key is None or found.message_id is not msgspec.UNSET):
        return Record(STATUSES, None, number, None, None, line)
    topic = STATUSES if found.topic is None else found.topic
    value, is_fault = (line, True) if has_value and has_base64 else _value(found, line)
    headers = found.headers if isinstance(found.headers, dict) else {}
    offset = whole(found.offset, INT64_MAX)
    return Record(
        topic if isinstance(topic, str) else STATUSES,
        whole(found.partition, INT32_MAX),
        number if offset is None else offset,
        whole(found.timestamp_ms, INT64_MAX),
        found.key if found.key is None or isinstance(found.key, str) else json.dumps(found.key),
        value,
        is_fault or not isinstance(topic, str),
        session_hint(headers.get("session")),
        _text(headers.get("delivery_id")),
        _text(headers.get("dmq_id")),
        _text(headers.get("from")),
    )


def session_hint(value: object) -> str | None:
    """Return a session id in small letters; None for a value that is not one."""
    session_id = read_hash(value)
    return None if session_id is None else session_id.hex()


def whole(value: object, greatest: int) -> int | None:
    return value if type(value) is int and 0 <= value <= greatest else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value and is_text(value) else None


def is_text(value: str) -> bool:
    """Return whether the text can be written as UTF-8, as every column of a table is."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _value(found: _Line, line: bytes) -> tuple[bytes | None, bool]:
    if found.value_base64 is not msgspec.UNSET:
        if found.value_base64 is None:
            return None, False
        try:
            return b64decode(found.value_base64, validate=True), False
        except (Base64Error, TypeError, ValueError):
            return line, True
    if isinstance(found.value, str):
        # Half a surrogate pair stays as it is: it is not UTF-8, and is refused for that later.
        return found.value.encode("utf-8", "surrogatepass"), False
    return (None, False) if found.value is None or found.value is msgspec.UNSET else (line, True)


def _read(line: bytes) -> _Line | None:
    """Return the members of a line; None if it is not a JSON object, or is nested too deeply."""
    if is_too_deep(line):
        return None
    try:
        if not line.isascii():
            line.decode("utf-8")  # members that are passed over are not looked at closely enough
        return _decode(line)
    except UnicodeDecodeError:
        return None
    except msgspec.MsgspecError:
        pass  # perhaps only stricter than JSON is: half a surrogate pair in a text, a number of many digits
    try:
        given = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except ValueError:
        return None
    if not isinstance(given, dict):
        return None
    known = {name: given[name] for name in _Line.__struct_fields__ if name in given and name != "message_id"}
    found = _Line(**known)
    if "message_id" in given:
        found.message_id = msgspec.Raw()
    if isinstance(found.key, str) and not is_text(found.key):
        found.key = json.dumps(found.key)
    if isinstance(found.topic, str) and not is_text(found.topic):
        found.topic = ()
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
