"""Statuses topic: one record for each receipt, by message id, with the ids that the message has in the layers before.

The disk comes first: nobody hears of a status before the topic holds it. While the disk refuses, statuses wait here in the
order in which they were published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.loop.turn_end import turn_end
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import LINK_HEADER, PlacedLink
from stagepost.topics.log.appends import LoopAnswers
from stagepost.topics.log.group_commit import ROW_BYTES
from stagepost.topics.topic import Place, Record, RetryingWriter

log = logging.getLogger(__name__)

TOGETHER_MAX = 32
"""Records of one append at most: receipts of the largest size still fit."""

RETRY_S = 1.0
"""Seconds from a write that the disk refused to the next try."""

WAITING_BYTES_MAX = 67_108_864
"""Bytes of statuses that may wait for the disk before the node stops reading receipts. Statuses of the node's own, at most
two for each message in processing, and receipts that were being checked at that moment still come on top."""

FINALIZED, REJECTED, SENT = "Finalized", "RejectedByFullnode", "SentToValidators"


class EarlierIds(msgspec.Struct, frozen=True):
    """Ids of the same message in the layers before REMP, where the message came through them."""

    dmq_id: str | None = None
    delivery_id: str | None = None

    def headers(self) -> dict[str, str]:
        found = {"dmq_id": self.dmq_id, "delivery_id": self.delivery_id}
        return {name: value for name, value in found.items() if value is not None}


class _Entry(NamedTuple):
    record: Record
    settled: Callable[[], None]

    @property
    def held_bytes(self) -> int:
        record = self.record
        headers = sum(len(name) + len(value) for name, value in record.headers.items())
        return len(record.key or b"") + len(record.value or b"") + headers + ROW_BYTES


class StatusTopic:
    """Writer of statuses. `written` hears of every record, and `settled` of its own, once the disk holds the record and
    never before, on the event loop, in the order of `publish`.

    `on_full` hears True when more than `waiting_bytes_max` wait for the disk, and False when half of that is left: whoever
    publishes what others send stops reading from them in between. No status is dropped.
    """

    def __init__(self, writer: RetryingWriter, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.published = 0
        self.waiting = 0
        self.written: Callable[[Record], None] = lambda record: None
        self.on_full: Callable[[bool], None] = lambda is_full: None
        self._writer = writer
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting_bytes = 0
        self._is_full = False
        self._turn: list[_Entry] = []
        self._answers: LoopAnswers | None = None

    @property
    def fault(self) -> StorageError | None:
        """Return why no further message may be taken: the disk refuses statuses, or is too slow for them."""
        if self._writer.fault is not None:
            return self._writer.fault
        if self._is_full:
            return StorageError(
                f"{self._waiting_bytes} bytes of statuses wait for the disk",
                advice="wait until they are on disk",
                limit=self._waiting_bytes_max,
                found=self._waiting_bytes,
            )
        return None

    def publish(
        self,
        receipt: Receipt,
        session_id: bytes | None,
        earlier: EarlierIds,
        settled: Callable[[], None] = lambda: None,
        link: PlacedLink | None = None,
    ) -> None:
        """Call `settled` when the disk holds the status. `link` is the receipt's place in its chain."""
        headers = earlier.headers()
        if session_id is not None:
            headers["session"] = session_id.hex()
        if link is not None:
            headers[LINK_HEADER] = link.to_header()
        self.published += 1
        record = Record(receipt.message_id.hex().encode(), receipt.to_json().encode(), headers)
        entry = _Entry(record, settled)
        self.waiting += 1
        self._waiting_bytes += entry.held_bytes
        self._turn.append(entry)
        if len(self._turn) == 1:
            turn_end()(self._hand_over)
        elif len(self._turn) >= TOGETHER_MAX:
            self._hand_over()
        if not self._is_full and self._waiting_bytes > self._waiting_bytes_max:
            self._is_full = True
            log.warning("no receipts are read until the disk takes statuses")
            self.on_full(True)

    async def close(self) -> None:
        """Write what was published first; the disk gets one more try with what it refused."""
        self._hand_over()
        await self._writer.close()
        if self._answers is not None:
            self._answers.give_all()

    def _hand_over(self) -> None:
        """Append the statuses of one turn of the loop together: each append wakes the thread that writes."""
        entries, self._turn = self._turn, []
        if not entries:
            return
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = LoopAnswers(loop)
        answers = self._answers
        self._writer.append_soon(
            [entry.record for entry in entries],
            lambda outcome: answers.give(lambda: self._appended(entries, outcome)),
        )

    def _appended(self, entries: Sequence[_Entry], outcome: list[Place] | StorageError) -> None:
        self.waiting -= len(entries)
        self._waiting_bytes -= sum(entry.held_bytes for entry in entries)
        if isinstance(outcome, StorageError):
            # The writer closed while the disk refused. Nobody heard of the statuses, so callers submit their messages again.
            said = {"count": len(entries), "reason": outcome.text}
            log.error("statuses were not written before the end", extra=said)
            return
        if self._is_full and 2 * self._waiting_bytes <= self._waiting_bytes_max:
            self._is_full = False
            log.warning("receipts are read again")
            self.on_full(False)
        for entry in entries:
            self._call(entry.settled)
            self._call(partial(self.written, entry.record))

    @staticmethod
    def _call(callback: Callable[[], None]) -> None:
        """Call `callback`; a fault of one receiver must not keep the others waiting."""
        try:
            callback()
        except Exception as fault:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{callback!r} failed with a status", "exception": fault}
            )
