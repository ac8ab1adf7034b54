"""Hand messages from the queue to the collator, note what the collator did with them, and which candidates
hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.message_cache import Absent, CachedMessage, TwinWaits, UidTaken
from stagepost.remp.queue.message_states import TAKEN, Event, is_collatable, place_of
from stagepost.remp.queue.records import Accept, Record, RejectRecord, cut_error
from stagepost.remp.queue.state import QueueState
from stagepost.remp.receipts.message_status import MessageStatus, block_of
from stagepost.remp.shard import BlockId

CANDIDATES_MAX = 1_024
"""Candidate blocks whose fate is not known, at most. A further candidate displaces the oldest one, whose
messages then stay as they are until they expire.
"""


TWIN_GOES_FIRST = "another message with the same body for the same account waits here, and goes first"
"""Reason against a message of which no block holds the body yet, so that no message can be named that took it."""


class ExecutedMessage(msgspec.Struct, frozen=True):
    block_id: BlockId


class RefusedMessage(msgspec.Struct, frozen=True):
    block_id: BlockId
    error: str


class SkippedMessage(msgspec.Struct, frozen=True):
    """The block was full, or its time was over."""

    block_id: BlockId


class UnusedMessage(msgspec.Struct, frozen=True):
    """The collator never looked at the message, so its status stays what it was."""


Report: TypeAlias = ExecutedMessage | RefusedMessage | SkippedMessage | UnusedMessage


class Collation:
    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._before: dict[bytes, MessageStatus] = {}
        self._candidates: dict[BlockId, list[bytes]] = {}

    @property
    def has_collatable(self) -> bool:
        is_for = self._state.session.is_for
        for entry in self._state.newest_open_entries():
            cached = entry.cached
            if (
                entry.is_announced
                and is_collatable(cached.status)
                and not self._state.do_most_reject(entry)
                and cached.body is not None
                and is_for(cached.body)
            ):
                return True
        return False

    def take(self, count_max: int) -> list[ExternalMessage]:
        """Return at most `count_max` messages for the next block, in the order that users were promised.

        A message that two thirds have rejected is not proposed, whatever became of its status since. A message
        without a body waits for its body. A message that no member has announced waits for an
        announcement, because its place in the order is not known before.
        """
        state = self._state
        found: list[ExternalMessage] = []
        waiting = [
            entry
            for entry in state.entries.values()
            if not entry.is_parked
            and entry.is_announced
            and is_collatable(entry.cached.status)
            and not state.do_most_reject(entry)
        ]
        for entry in sorted(waiting, key=lambda entry: entry.order):
            if len(found) >= count_max:
                break
            cached = entry.cached
            if cached.body is None or not state.session.is_for(cached.body):
                continue  # its bytes may still come; after a split, some stand in the queues of both children
            freshness = state.cache.freshness(cached.message_id)
            if isinstance(freshness, TwinWaits):
                state.apply(cached, Event.UID_IS_TAKEN, error=TWIN_GOES_FIRST)
                continue
            if isinstance(freshness, UidTaken):
                text = f"message {freshness.message_id.hex()} has the same body for the same account"
                state.apply(cached, Event.UID_IS_TAKEN, block_id=freshness.block_id, error=text)
                continue
            self._before[cached.message_id] = cached.status
            state.apply(cached, Event.TAKEN_BY_COLLATOR)
            found.append(cached.body)
        return found

    def collated(self, reports: Iterable[tuple[bytes, Report]]) -> None:
        for message_id, report in reports:
            before = self._before.pop(message_id, None)
            cached = self._state.cache.get(message_id)
            if cached is not None:
                self._report(cached, report, before)

    def _report(self, cached: CachedMessage, report: Report, before: MessageStatus | None) -> None:
        state, header = self._state, cached.header
        match report:
            case ExecutedMessage(block_id):
                if state.apply(cached, Event.EXECUTED, block_id=block_id):
                    self._note(block_id, cached.message_id)
                    self._say(Accept(header.message_id, header.uid, header.masterchain_seqno, block_id))
            case RefusedMessage(block_id, error):
                if state.apply(cached, Event.REFUSED_BY_CONTRACT, block_id=block_id, error=error):
                    said = cut_error(error)
                    self._say(RejectRecord(header.message_id, header.uid, header.masterchain_seqno, said))
            case SkippedMessage(block_id):
                state.apply(cached, Event.LEFT_OUT, block_id=block_id)
            case UnusedMessage():
                if before is not None and place_of(cached.status) == TAKEN:
                    state.set_status(cached, before)

    def _say(self, record: Record) -> None:
        if self._state.options.tells_collation:
            self._state.put(record)

    def check_candidate(self, message_ids: Sequence[bytes]) -> str | None:
        """Return why a candidate with these external messages must be declined; None if it may stand.

        A message that is not known here is no reason: its body may still be asked for until the slot ends.
        """
        if len(set(message_ids)) < len(message_ids):
            return "a message stands in it twice"
        last: tuple[int, bytes] | None = None
        for message_id in message_ids:
            freshness = self._state.cache.freshness(message_id)
            if isinstance(freshness, Absent):
                return f"message {message_id.hex()} is not known here"
            if isinstance(freshness, UidTaken):
                return f"message {message_id.hex()} was included before, as {freshness.message_id.hex()}"
            if isinstance(freshness, TwinWaits):
                return f"message {freshness.message_id.hex()} has the same body as {message_id.hex()} and goes first"
            cached = self._state.cache.get(message_id)
            if cached is not None and cached.body is not None and not self._state.session.is_for(cached.body):
                return f"message {message_id.hex()} is for an account of another shard"
            entry = self._state.entries.get(message_id)
            # Messages that the author saw accepted elsewhere go first, and each member sees that at another time.
            if entry is None or entry.is_accepted_elsewhere or not entry.announced_by:
                continue
            # Its author may have heard fewer announcements than we have, or more. Whatever he heard, the order is wrong only
            # if every announcement of one message is later than every one of the other behind it.
            if last is not None and (entry.latest_ms, message_id) < last:
                return f"message {message_id.hex()} stands behind a later one"
            last = max(last or (0, b""), (entry.timestamp_ms, message_id))
        return None

    def has_unannounced(self, message_ids: Iterable[bytes]) -> bool:
        """Return whether this queue holds one of `message_ids` that no catchain block has announced yet."""
        entries = map(self._state.entries.get, message_ids)
        return any(entry is not None and not entry.is_announced for entry in entries)

    def candidate_seen(self, block_id: BlockId, message_ids: Sequence[bytes]) -> None:
        for message_id in message_ids:
            if self._state.apply_to(message_id, Event.SEEN_IN_CANDIDATE, block_id=block_id):
                self._note(block_id, message_id)

    def candidate_lost(self, block_id: BlockId) -> None:
        self._return_from(block_id, (Event.OTHER_COMMITTED, Event.CANDIDATE_LOST))

    def session_ended(self) -> None:
        """Give up every undecided candidate, and return to the queue all messages that the collator had
        taken.
        """
        for block_id in list(self._candidates):
            self.candidate_lost(block_id)
        self.collated([(message_id, UnusedMessage()) for message_id in self._before])

    def candidate_refused(self, block_id: BlockId, replayed: Sequence[bytes]) -> None:
        for message_id in replayed:
            self._state.apply_to(
                message_id, Event.REPLAY_FOUND, block_id=block_id, error="it was included before"
            )
        self._return_from(block_id, (Event.CANDIDATE_REFUSED,))

    def shard_committed(self, block_id: BlockId, message_ids: Sequence[bytes]) -> None:
        """Note that a shard block is committed: its messages are in the shard, and all other candidates for
        its place are lost.
        """
        for message_id in message_ids:
            self._state.apply_to(message_id, Event.SHARD_COMMITTED, block_id=block_id)
        self._candidates.pop(block_id, None)
        place = block_id.workchain, block_id.shard, block_id.seqno
        for other in list(self._candidates):
            if (other.workchain, other.shard, other.seqno) == place:
                self.candidate_lost(other)

    def shard_dropped(self, block_id: BlockId, message_ids: Sequence[bytes]) -> None:
        for message_id in message_ids:
            cached = self._state.cache.get(message_id)
            if cached is not None and block_of(cached.status) == block_id:
                self._state.apply(cached, Event.DROPPED_BY_MASTER)

    def _note(self, block_id: BlockId, message_id: bytes) -> None:
        if block_id not in self._candidates and len(self._candidates) >= CANDIDATES_MAX:
            del self._candidates[next(iter(self._candidates))]
        self._candidates.setdefault(block_id, []).append(message_id)

    def _return_from(self, block_id: BlockId, events: Sequence[Event]) -> None:
        """Give each message of a lost block the first of `events` that its status allows, which depends on
        how the message came into the block.
        """
        for message_id in self._candidates.pop(block_id, ()):
            cached = self._state.cache.get(message_id)
            if cached is not None and block_of(cached.status) == block_id:
                any(self._state.apply(cached, event) for event in events)
