"""What stands beside what: each system under one small interface, grouped by the promise that a caller gets.

Only equal promises share a table: nobody's "stored" is set beside somebody else's "processed by the recipient".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol


class Promise(Enum):
    """What has happened when the call returns."""

    STORED_IN_MEMORY = "stored by somebody, lost with its process or machine"
    STORED_ON_DISK = "stored by somebody and on disk (fsync before the answer)"
    PROCESSED = "processed by the recipient's program"


class NotAvailable(Exception):
    """This system cannot be had here; the text says what is missing."""


class System(Protocol):
    """One system, ready to be driven by one program."""

    name: str
    promise: Promise

    async def start(self, folder: Path) -> None:
        """Start servers and recipients in processes of their own; raises `NotAvailable`."""
        ...

    async def send(self, payload: bytes) -> None:
        """One message, until what the promise says has happened."""
        ...

    async def settle(self) -> None:
        """Return when nothing is left to do for what was sent: the next one measured is not to feel it."""
        ...

    def process_ids(self) -> Sequence[int]:
        """Every process that works for it besides the driver's own."""
        ...

    async def stop(self) -> None: ...
