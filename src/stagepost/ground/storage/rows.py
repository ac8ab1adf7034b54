"""Rows of durable tables: each has a checksum, and damage shows when a row is read."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, TypeAlias

from stagepost.errors import StorageError

SET_ASIDE = "INSERT INTO set_aside VALUES (?, ?, ?)"

CHECKSUM_BYTES = 8

Row: TypeAlias = tuple[Any, ...]


class DamagedRow(Exception):
    """Damage of a row; never leaves the store."""


class UnknownRow(StorageError):
    """Row that is whole, since its checksum fits, and that this release cannot read: another release wrote it."""


def checksum_of(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=CHECKSUM_BYTES).digest()


def content_of(row: Row) -> bytes:
    """Return a row of any shape as bytes, for people who look into the rows that were set aside."""
    blobs = [value for value in row if isinstance(value, bytes)]
    return max(blobs, key=len) if blobs else repr(row).encode()
