"""Signature checks that are done once for all members of a simulated network: what is valid is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.bounded_cache import BoundedCache

REMEMBERED_MAX = 65_536


@contextmanager
def memoised_signatures() -> Iterator[None]:
    """While it lasts, in this process. Only what holds is kept: it depends on nothing but key, message and signature."""
    honest = ed25519._open
    valid: BoundedCache[tuple[bytes, bytes], bool] = BoundedCache(REMEMBERED_MAX)

    def open_once(signed: bytes, public_key: bytes) -> bool:
        key = signed, public_key
        if valid.get(key):
            return True
        is_valid = honest(signed, public_key)
        if is_valid:
            valid.put(key, True)
        return is_valid

    ed25519._open = open_once
    try:
        yield
    finally:
        ed25519._open = honest
