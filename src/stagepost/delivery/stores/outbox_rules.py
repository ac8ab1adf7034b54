"""Rules for the rows of an outbox, the same in memory and on disk: rows and totals move together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagepost.delivery.errors import ErrQueueCorrupt
from stagepost.delivery.status import DeliveryStatus
from stagepost.delivery.stores.outbox import (
    DEAD_LETTERS_MAX,
    DONE_KEYS_MAX,
    DeadLetter,
    DoneKey,
    EntryProgress,
    Finished,
    Joined,
    OutboxChange,
    OutboxContent,
    OutboxRecord,
    OutboxTotals,
)
from stagepost.ground.storage.tables import Draft, Held, Table

LOST = ErrQueueCorrupt.__name__
COUNTER_JUMP = 2**32
"""More messages than were ever published between two syncs."""


class OutboxHead(msgspec.Struct, frozen=True, array_like=True):
    """`is_loose`: somebody writes without waiting for the disk, so that after a power cut the counter may be too low.

    `queue_size` is what the publisher that opened the outbox last lets wait in it, for those who watch; 0 if none has said so.
    """

    nonce_prefix: bytes
    next_counter: int = 1
    totals: OutboxTotals = OutboxTotals()
    is_loose: bool = False
    queue_size: int = 0


RECORDS = Table("records", int, OutboxRecord)
DEAD_LETTERS = Table("dead_letters", int, DeadLetter, age=lambda dead: (dead.failed_ms, dead.record.sequence))
DONE_KEYS = Table("done_keys", bytes, DoneKey, age=lambda done: done.done_ms)
HEAD = Table("head", str, OutboxHead, is_replaceable=True)
TABLES = (HEAD, RECORDS, DEAD_LETTERS, DONE_KEYS)
THE_HEAD = "outbox"


class OutboxLimits(msgspec.Struct, frozen=True):
    dead_letters_max: int = DEAD_LETTERS_MAX
    done_keys_max: int = DONE_KEYS_MAX
    queue_size: int = 0
    """Enforced by the publisher, and kept here for those who watch; 0 leaves what is kept."""


USUAL_LIMITS = OutboxLimits()


class OutboxBook:
    def __init__(self, draft: Draft, limits: OutboxLimits) -> None:
        head = draft.get(HEAD, THE_HEAD)
        assert head is not None, "an outbox is recovered before it is used"
        self._draft = draft
        self._limits = limits
        self._head = head
        self._next_counter = head.next_counter
        self._published = head.totals.published
        self._acked = head.totals.acked
        self._sent_final = head.totals.sent_final
        self._failed = dict(head.totals.failed)

    def insert(self, record: OutboxRecord, dead: Sequence[DeadLetter], replayed: int | None) -> None:
        for letter in dead:
            self.mark(letter)
        if replayed is not None:
            self._draft.drop(DEAD_LETTERS, replayed)
        if record.key_hash is not None:
            self._draft.drop(DONE_KEYS, record.key_hash)
        self._draft.put(RECORDS, record.sequence, record)
        self._next_counter = max(self._next_counter, record.sequence + 1)
        self._published += 1

    def mark(self, change: OutboxChange) -> None:
        """Record the progress of a live message; progress of any other message has no effect."""
        match change:
            case EntryProgress():
                self._progress(change)
            case Finished():
                self._finish(change)
            case DeadLetter():
                self._bury(change)
            case Joined():
                self._draft.drop(DEAD_LETTERS, change.sequence)

    def _progress(self, change: EntryProgress) -> None:
        record = self._draft.get(RECORDS, change.sequence)
        if record is None:
            return
        moved = msgspec.structs.replace(
            record,
            status=change.status,
            attempts=change.attempts,
            last_used=change.last_used,
            maybe_duplicate=change.maybe_duplicate,
            stamped_ms=record.stamped_ms or change.stamped_ms,
        )
        self._draft.put(RECORDS, change.sequence, moved)

    def _finish(self, change: Finished) -> None:
        record = self._draft.get(RECORDS, change.sequence)
        if record is None:
            return
        self._draft.drop(RECORDS, change.sequence)
        if change.status is DeliveryStatus.ACKED:
            self._acked += 1
        else:
            self._sent_final += 1
        self._remember(record, change.status, change.done_ms, acked_by=change.acked_by)

    def _bury(self, letter: DeadLetter) -> None:
        record = letter.record
        if self._draft.get(RECORDS, record.sequence) is None:
            return
        self._draft.drop(RECORDS, record.sequence)
        self._failed[letter.error] = self._failed.get(letter.error, 0) + 1
        self._draft.put(DEAD_LETTERS, record.sequence, letter)
        self._remember(record, DeliveryStatus.FAILED, letter.failed_ms, error=letter.error, text=letter.text)

    def _remember(
        self,
        record: OutboxRecord,
        status: DeliveryStatus,
        done_ms: int,
        *,
        acked_by: tuple[str, ...] = (),
        error: str = "",
        text: str = "",
    ) -> None:
        if record.key_hash is not None:
            done = DoneKey(record.key_hash, record.delivery_id, status, done_ms, acked_by, error, text)
            self._draft.put(DONE_KEYS, record.key_hash, done)

    def tighten(self) -> None:
        """The last change before the outbox is closed in good order: it is synced, whatever came before it."""
        self._draft.put(HEAD, THE_HEAD, self._head)
        self._head = msgspec.structs.replace(self._head, is_loose=False)

    def finish(self) -> None:
        changes = self._draft.changes
        if not changes:
            return
        if DEAD_LETTERS.name in changes:
            self._draft.keep_newest(DEAD_LETTERS, self._limits.dead_letters_max)
        if DONE_KEYS.name in changes:
            self._draft.keep_newest(DONE_KEYS, self._limits.done_keys_max)
        totals = OutboxTotals(self._published, self._acked, self._sent_final, self._failed)
        head = msgspec.structs.replace(self._head, next_counter=self._next_counter, totals=totals)
        self._draft.put(HEAD, THE_HEAD, head)


def recover(
    draft: Draft, held: Held, fresh_prefix: bytes, *, is_loose: bool, queue_size: int = 0
) -> list[str]:
    """Make what was found an outbox that balances; sentences about what had to be made up.

    A row that is lost counts as failed: the totals say how many there must be.
    """
    found: OutboxHead | None = held[HEAD.name].get(THE_HEAD)
    head = found or OutboxHead(fresh_prefix)
    records = held[RECORDS.name]
    totals = head.totals
    damage = []
    if len(records) < totals.live:
        failed = {**totals.failed, LOST: totals.failed.get(LOST, 0) + totals.live - len(records)}
        damage.append(f"{totals.live - len(records)} messages are lost, and count as failed with {LOST}")
        totals = msgspec.structs.replace(totals, failed=failed)
    elif len(records) > totals.live:
        totals = msgspec.structs.replace(totals, published=totals.ended + len(records))
        damage.append(f"the totals are lost; they begin anew with the {len(records)} messages that are there")
    dead = held[DEAD_LETTERS.name]
    counter = max([head.next_counter, *(sequence + 1 for sequence in (*records, *dead))])
    if head.is_loose:
        counter += COUNTER_JUMP
    recovered = OutboxHead(head.nonce_prefix, counter, totals, is_loose, queue_size or head.queue_size)
    if recovered != found:
        draft.put(HEAD, THE_HEAD, recovered)
    return damage


def content_of(held: Held, damage: Sequence[str]) -> OutboxContent:
    found: OutboxHead | None = held[HEAD.name].get(THE_HEAD)
    head = found or OutboxHead(b"")
    records = held[RECORDS.name]
    return OutboxContent(
        tuple(records[sequence] for sequence in sorted(records)),
        tuple(held[DEAD_LETTERS.name].values()),
        tuple(held[DONE_KEYS.name].values()),
        head.totals,
        head.next_counter,
        found is not None,
        tuple(damage),
        queue_size=head.queue_size,
    )
