"""Which messages of the demonstration have come to an end, by what the full node hears; so many may be under way at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stagepost.errors import ErrorCode, StagepostError
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level, Status


class Followed:
    """An end here: final, refused by the full node, or refused or given up by two thirds of the validators."""

    def __init__(self, validators: int) -> None:
        self.listeners: list[Callable[[Receipt], None]] = []
        self._closing = -(-2 * validators // 3)
        self._open: set[bytes] = set()
        self._over: set[bytes] = set()
        self._closed_by: dict[bytes, set[bytes]] = {}
        self._timed_out: set[bytes] = set()
        self._change = asyncio.Event()

    def follow(self, message_id: bytes) -> None:
        if message_id not in self._over:
            self._open.add(message_id)

    def heard(self, receipt: Receipt) -> None:
        kind, message_id = receipt.kind, receipt.message_id
        is_closing = kind.status in (Status.REJECTED, Status.TIMEOUT)
        if kind.status is Status.TIMEOUT:
            self._timed_out.add(message_id)
        if is_closing:
            self._closed_by.setdefault(message_id, set()).add(receipt.source_id)
        if (
            kind.name == "Finalized"
            or (is_closing and kind.level is Level.FULLNODE)
            or len(self._closed_by.get(message_id, ())) >= self._closing
        ):
            self._over.add(message_id)
            self._open.discard(message_id)
        self._change.set()
        for listener in self.listeners:
            listener(receipt)

    async def room_for(self, count: int, window: int, within_s: float) -> None:
        await self._until(lambda: len(self._open) + count <= window, within_s)

    async def ends(self, within_s: float) -> None:
        await self._until(lambda: not self._open, within_s)

    async def timeouts(self, message_ids: set[bytes], within_s: float) -> None:
        """Somebody has given up each of them; if nobody does in time, that is no fault: silence is an answer, too."""
        try:
            await self._until(lambda: message_ids <= self._timed_out, within_s)
        except StagepostError:
            return

    async def _until(self, is_so: Callable[[], bool], within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not is_so():
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            raise StagepostError(
                f"{len(self._open)} messages have no end after {within_s:g} s",
                code=ErrorCode.NOT_READY,
                advice="give it more processors, or fewer --messages",
            ) from None
