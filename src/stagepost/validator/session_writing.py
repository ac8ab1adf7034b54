"""What one session writes, until it is written: a disk that fails delays, and makes nothing be forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from stagepost.errors import StorageError
from stagepost.validator.session_rows import BodyRow
from stagepost.validator.session_store import SessionStore, Written

WRITE_AGAIN_S = 1.0

Write = Callable[[Written], None]
Then = Callable[[], None]


class SessionWriting:
    def __init__(self, store: SessionStore, session_id: bytes) -> None:
        self.failures = 0
        self._store = store
        self._session_id = session_id
        self._is_stopped = False

    def block(self, frame: bytes, then: Then) -> None:
        self._write(partial(self._store.put_block, self._session_id, frame), then)

    def body(self, row: BodyRow, then: Then) -> None:
        self._write(partial(self._store.put_body, row), then)

    def body_soon(self, row: BodyRow) -> None:
        """Nothing was promised for it, and others have it, too."""
        self._store.put_body(row)

    def stop(self) -> None:
        """Nothing follows any more from what gets written."""
        self._is_stopped = True

    def _write(self, write: Write, then: Then) -> None:
        # Methods and no functions inside of this one: those would refer to each other, and thousands of such circles a
        # second are work for the garbage collector, which lets the loop wait.
        if not self._is_stopped:
            write(partial(self._written, write, then))

    def _written(self, write: Write, then: Then, error: StorageError | None) -> None:
        if self._is_stopped:
            return
        if error is None:
            then()
        else:
            self.failures += 1
            asyncio.get_running_loop().call_later(WRITE_AGAIN_S, self._write, write, then)
