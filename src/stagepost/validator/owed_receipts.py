"""Receipts that a validator owes after a restart: for each message that it may have reported as open in a session
that was over before the restart.

No queue of this run knows such a message if this node is a member of no later session, and then no queue closes
it. Blocks and bodies on disk name the messages and the full nodes that wait for them; a message that comes into a
queue of this run, or into the chain, is owed no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from stagepost.catchain.block import decode_update
from stagepost.catchain.payloads import upper_part
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.queue.effects import Introduce, Tell, Telling
from stagepost.remp.queue.hearing import SEQNO_AHEAD_MAX
from stagepost.remp.queue.message_cache import MessageCache
from stagepost.remp.queue.message_states import FINAL, IN_SHARD, Event, after, place_of
from stagepost.remp.queue.records import Header, decode_payload
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.remp.receipts.message_status import MessageStatus, New
from stagepost.validator.receipts import Statements
from stagepost.validator.session_store import SessionContent


class OwedMessage(msgspec.Struct):
    """`seqno`: the latest master catchain under which the message was announced. `since_s`: Unix seconds of its
    first announcement.
    """

    seqno: int
    since_s: float
    full_nodes: dict[bytes, None]


class OwedReceipts:
    """`tell` gets receipts to be dated, signed and sent. A message that no chain holds is closed when its life is
    over, or `message_timeout_s` seconds after its first announcement.
    """

    def __init__(
        self,
        cache: MessageCache,
        statements: Statements,
        tell: Callable[[bytes, Sequence[Telling]], None],
        message_timeout_s: float,
    ) -> None:
        self._cache = cache
        self._statements = statements
        self._tell = tell
        self._message_timeout_s = message_timeout_s
        self._by_session: dict[bytes, dict[bytes, OwedMessage]] = {}

    def __contains__(self, session_id: bytes) -> bool:
        """Return whether receipts of this session are owed, so that its rows must stay on disk."""
        return session_id in self._by_session

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def message_ids(self) -> Iterator[bytes]:
        """Return the messages of which receipts are owed; one may come from each of several sessions."""
        return chain.from_iterable(self._by_session.values())

    def add(self, session_id: bytes, content: SessionContent, final_ids: Iterable[bytes], now: float) -> None:
        """Add the messages of a session that was over before the restart, except the final ones."""
        current = self._cache.window.current
        found: dict[bytes, OwedMessage] = {}
        for header in _headers(content.frames):
            # What expired earlier was closed while this node ran, for its catchain advances only then.
            if not current - CATCHAINS_OF_LIFE <= header.masterchain_seqno <= current + SEQNO_AHEAD_MAX:
                continue
            at_s = min(now, header.timestamp_ms / 1_000)
            owed = found.setdefault(header.message_id, OwedMessage(header.masterchain_seqno, at_s, {}))
            owed.seqno = max(owed.seqno, header.masterchain_seqno)
            owed.since_s = min(owed.since_s, at_s)
            if header.source_key_id != ZERO_INT256:
                owed.full_nodes[header.source_key_id] = None
        for row in content.bodies:
            if row.full_node:
                owed = found.setdefault(row.message_id, OwedMessage(current, now, {}))
                owed.full_nodes[row.full_node] = None
        gone = frozenset(final_ids)
        # The chain may have come back from before a catchain under which this node closed messages.
        found = {
            one: owed
            for one, owed in found.items()
            if owed.full_nodes and one not in gone and not self._cache.was_let_go(one)
        }
        if found:
            self._by_session[session_id] = found

    def forget(self, session_id: bytes) -> None:
        """Owe nothing of a session that begins after all: its queue reports for itself, and ends each message once."""
        self._by_session.pop(session_id, None)

    def settle(self, catchain_seqno: int, now: float) -> None:
        """Close the messages whose life is over under `catchain_seqno`, and drop those that are owed no more.

        To be called before the cache advances to that catchain, because the cache forgets final messages.
        """
        for session_id, messages in list(self._by_session.items()):
            for message_id, owed in list(messages.items()):
                if self._is_settled(session_id, message_id, owed, catchain_seqno, now):
                    del messages[message_id]
            if not messages:
                del self._by_session[session_id]

    def _is_settled(
        self, session_id: bytes, message_id: bytes, owed: OwedMessage, catchain_seqno: int, now: float
    ) -> bool:
        cached = self._cache.get(message_id)
        if cached is not None:
            if place_of(cached.status) == FINAL:
                return True
            for full_node in cached.origins:
                owed.full_nodes.pop(full_node, None)  # a queue of this run reports to it
        if not owed.full_nodes:
            return True
        lane = self._statements.lanes[message_id]
        said = lane[-1].status if lane else New()
        is_in_shard = place_of(said) == IN_SHARD
        # The masterchain decides on a shard block within the next catchain.
        is_alive = catchain_seqno < owed.seqno + CATCHAINS_OF_LIFE + is_in_shard
        if is_alive and (is_in_shard or now < owed.since_s + self._message_timeout_s):
            return False
        self._close(session_id, message_id, said, list(owed.full_nodes))
        return True

    def _close(
        self, session_id: bytes, message_id: bytes, said: MessageStatus, full_nodes: Sequence[bytes]
    ) -> None:
        tellings: list[Telling] = [Introduce(full_node, message_id, (said,)) for full_node in full_nodes]
        for event in (Event.DROPPED_BY_MASTER, Event.LIFE_OVER):
            change = after(said, event)
            if change is not None:
                said = change.status
                tellings += [
                    Tell(full_node, message_id, status) for status in change.told for full_node in full_nodes
                ]
        self._statements.earlier.pop(message_id, None)
        self._cache.note_let_go([message_id])
        self._tell(session_id, tellings)


def _headers(frames: Iterable[bytes]) -> Iterator[Header]:
    for frame in frames:
        try:
            records = decode_payload(upper_part(decode_update(frame).payload) or b"")
        except DecodeError:
            continue  # a fork proof, or the payload of a liar, which told nobody anything
        yield from (record for record in records if isinstance(record, Header))
