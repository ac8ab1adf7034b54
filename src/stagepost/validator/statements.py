"""What a validator has said of each message, on disk before it is spoken: after a crash it must not say what contradicts it.

That a message stands in the queue is written together with what is said next: until then it may be said again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from stagepost.errors import StorageError
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import Receipt
from stagepost.validator.lanes import Lanes
from stagepost.validator.session_rows import StatementRow
from stagepost.validator.session_store import SessionStore

WRITE_AGAIN_S = 1.0
ROW_RECEIPTS_MAX = 128
"""Each may name two blocks; a packet has room for twice as many."""

Then = Callable[[], None]
Batch = list[tuple[list[Receipt], Then]]


class Statements:
    """`earlier`: what a life before this one said last, by message; whoever goes on with a message takes it from there.
    `catchain_seqno` is the present one of the masterchain, the clock of all messages' lives."""

    def __init__(self, store: SessionStore, catchain_seqno: Callable[[], int]) -> None:
        self.failures = 0
        self.lanes = Lanes()
        self.earlier: dict[bytes, tuple[Receipt, ...]] = {}
        self._store = store
        self._catchain_seqno = catchain_seqno
        self._written: dict[bytes, int] = {}
        """Under which catchain each message was spoken of last."""
        self._waiting: Batch = []
        self._is_writing = False
        self._is_stopped = False
        for row in store.statements:
            for receipt in CombinedReceipt.decode(row.receipts).receipts:
                self.earlier[receipt.message_id] = self.lanes.extend(receipt.message_id, (receipt,))
                self._written[receipt.message_id] = row.catchain_seqno

    def say(
        self, receipts: Mapping[bytes, Sequence[Receipt]], then: Then, *, is_repeated: bool = False
    ) -> None:
        """By message, in order, what is said now. `then` speaks it, when it cannot be forgotten any more; never before
        what was to be said earlier of the same messages. `is_repeated`: it also speaks what was said before."""
        seqno = self._catchain_seqno()
        written: list[Receipt] = []
        for message_id, said in receipts.items():
            lane = self.lanes.extend(message_id, said)
            if message_id in self._written:
                written += said
            elif not all(isinstance(one.status, New) for one in said):
                written += lane
            else:
                continue
            self._written[message_id] = seqno
        if not written and not (is_repeated and self._is_writing):
            then()
            return
        self._waiting.append((written, then))
        self._write()

    def forget_before(self, catchain_seqno: int) -> None:
        """Messages that were spoken of last under an older one have come to their ends."""
        gone = [message_id for message_id, seqno in self._written.items() if seqno < catchain_seqno]
        for message_id in gone:
            del self._written[message_id]
            self.earlier.pop(message_id, None)
            self.lanes.forget(message_id)
        if gone:
            self._store.remove_statements(catchain_seqno)

    def stop(self) -> None:
        """Nothing is said any more."""
        self._is_stopped = True

    def _write(self) -> None:
        """One after the other, and what came meanwhile as one."""
        if not self._is_writing and self._waiting:
            self._is_writing = True
            batch, self._waiting = self._waiting, []
            self._put(batch)

    def _put(self, batch: Batch) -> None:
        if self._is_stopped:
            return
        receipts = [receipt for some, _ in batch for receipt in some]
        seqno = self._catchain_seqno()
        rows = [
            StatementRow(seqno, _packed(receipts[start : start + ROW_RECEIPTS_MAX]))
            for start in range(0, len(receipts), ROW_RECEIPTS_MAX)
        ]
        self._store.put_statements(rows, partial(self._put_down, batch))

    def _put_down(self, batch: Batch, error: StorageError | None) -> None:
        if self._is_stopped:
            return
        if error is not None:
            # It delays, and makes nothing be spoken that is not written.
            self.failures += 1
            asyncio.get_running_loop().call_later(WRITE_AGAIN_S, self._put, batch)
            return
        self._is_writing = False
        for _, then in batch:
            then()
        self._write()


def _packed(receipts: Sequence[Receipt]) -> bytes:
    return CombinedReceipt(receipts[0].source_id, tuple(receipts)).encode()
