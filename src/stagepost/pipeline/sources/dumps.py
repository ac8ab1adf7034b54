"""Dump files, cut into pieces that workers read side by side; each line keeps its number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from stagepost.errors import StorageError

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
    """Reads a file once: what it is called by its content, and where it can be cut."""
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
