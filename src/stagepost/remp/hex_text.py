"""Hashes and shards as texts: how files, receipts and headers write them."""

from __future__ import annotations

import re

HASH_DIGITS = 64
SHARD_DIGITS = 16

_HASH = re.compile(rf"[0-9a-fA-F]{{{HASH_DIGITS}}}", re.ASCII)
_SHARD = re.compile(rf"[0-9a-fA-F]{{{SHARD_DIGITS}}}", re.ASCII)


def read_hash(value: object) -> bytes | None:
    """32 bytes from their hexadecimal digits, in either case; None for anything else."""
    if isinstance(value, str) and _HASH.fullmatch(value) is not None:
        return bytes.fromhex(value)
    return None


def read_shard(value: object) -> int | None:
    """A tagged prefix from its hexadecimal digits; None for anything else."""
    if isinstance(value, str) and _SHARD.fullmatch(value) is not None:
        return int(value, 16)
    return None
