"""Messages and bodies that wait: for an announcement by another member, or for a session that begins soon.

`EarlyMessages` holds messages of full nodes for accounts that this validator serves soon. `PostponedMessages` holds messages of full nodes that another member is about to announce, so that a single
announcement is enough; the sign is a body that came by broadcast ahead of its announcement. `EarlyBodies`
keeps such bodies for a while, within bounds for each member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.records import HandOver

HOLD_BACK_S, HOLD_BACK_MAX_S = 0.2, 2.0
"""Seconds, at least and at most, before this validator announces a held message itself. The wait is longer
where announcements are slow to come, because a second announcement would make them slower.
"""

HELD_BACK_MAX = 1_024
LAG_WEIGHT = 1 / 8
LAGS_WAITED = 4.0


class PostponedMessage(NamedTuple):
    message: ExternalMessage
    full_node: bytes
    hand_over: HandOver
    masterchain_seqno: int
    timer: asyncio.TimerHandle


class PostponedMessages:
    """`release` is called with a message's id when its time is over."""

    def __init__(self, release: Callable[[bytes], None]) -> None:
        self._release = release
        self._held: dict[bytes, PostponedMessage] = {}
        self._lag_s = 0.0

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._held

    def ids(self) -> list[bytes]:
        return list(self._held)

    @property
    def seconds(self) -> float:
        """Seconds for which a message is held back now."""
        return min(max(HOLD_BACK_S, LAGS_WAITED * self._lag_s), HOLD_BACK_MAX_S)

    def note_lag(self, lag_s: float) -> None:
        """Note that an announcement came `lag_s` seconds after its body."""
        self._lag_s += LAG_WEIGHT * (lag_s - self._lag_s)

    def hold(
        self, message: ExternalMessage, full_node: bytes, hand_over: HandOver, masterchain_seqno: int
    ) -> bool:
        """Hold a message back that came under this master catchain. Return False if there is no room."""
        if len(self._held) >= HELD_BACK_MAX:
            return False
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self.seconds, self._release, message.message_id)
        self._held[message.message_id] = PostponedMessage(
            message, full_node, hand_over, masterchain_seqno, timer
        )
        return True

    def get(self, message_id: bytes) -> ExternalMessage | None:
        held = self._held.get(message_id)
        return None if held is None else held.message

    def take(self, message_id: bytes) -> PostponedMessage | None:
        held = self._held.pop(message_id, None)
        if held is not None:
            held.timer.cancel()
        return held

    def clear(self) -> None:
        for message_id in self.ids():
            self.take(message_id)


EARLY_BYTES_MAX = 1024 * 1024
"""Bytes for each member or full node, at most. A broadcast is ahead of its announcement by no more than a write to disk,
and the session at work passes on what a full node sent.
"""

EARLY_COUNT_MAX = 4_096
"""Bodies for each member or full node, at most: small bodies cost memory beyond their bytes."""

EARLY_KEPT_S = 30.0
"""Seconds, at most, for which a message waits for a session that was to begin soon."""


class EarlyBodies:
    def __init__(self) -> None:
        self._by_id: dict[bytes, tuple[int, ExternalMessage, float]] = {}
        self._of_member: dict[int, dict[bytes, None]] = {}
        self._bytes: dict[int, int] = {}

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def since(self, message_id: bytes) -> float | None:
        """Return the time at which the body arrived, in seconds; None if it is not here."""
        found = self._by_id.get(message_id)
        return None if found is None else found[2]

    def put(self, member: int, message: ExternalMessage, now: float) -> None:
        """Keep a body. It displaces the oldest bodies of the same member only, so a member cannot push out
        what others sent.
        """
        if message.message_id in self._by_id:
            return
        ids = self._of_member.setdefault(member, {})
        self._by_id[message.message_id] = member, message, now
        ids[message.message_id] = None
        self._bytes[member] = self._bytes.get(member, 0) + len(message.body)
        while len(ids) > 1 and (self._bytes[member] > EARLY_BYTES_MAX or len(ids) > EARLY_COUNT_MAX):
            self.take(next(iter(ids)))

    def take(self, message_id: bytes) -> ExternalMessage | None:
        found = self._by_id.pop(message_id, None)
        if found is None:
            return None
        member, message, _ = found
        del self._of_member[member][message_id]
        self._bytes[member] -= len(message.body)
        return message


class EarlyMessage(NamedTuple):
    message: ExternalMessage
    full_node: bytes
    hand_over: HandOver
    masterchain_seqno: int
    at: float


class EarlyMessages:
    """Messages for accounts that this validator serves soon, with the master catchain under which each came: its life is
    counted from it, or a message that is over would begin anew. A full node's messages displace its own older ones only, and
    as many full nodes are remembered as may have links.
    """

    def __init__(self, full_nodes_max: int) -> None:
        self._full_nodes_max = full_nodes_max
        self._of: dict[bytes, dict[bytes, EarlyMessage]] = {}
        self._bytes: dict[bytes, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def put(self, early: EarlyMessage) -> None:
        """Keep a message, unless it is here already, or as many full nodes have messages here as may."""
        message, full_node, now = early.message, early.full_node, early.at
        kept = self._of.get(full_node)
        if kept is None:
            if len(self._of) >= self._full_nodes_max:
                return
            kept = self._of[full_node] = {}
        if message.message_id in kept:
            return
        kept[message.message_id] = early
        self._bytes[full_node] = self._bytes.get(full_node, 0) + len(message.body)
        while len(kept) > 1 and (
            len(kept) > EARLY_COUNT_MAX
            or self._bytes[full_node] > EARLY_BYTES_MAX
            or next(iter(kept.values())).at < now - EARLY_KEPT_S
        ):
            self._drop(full_node, next(iter(kept)))

    def take(self, is_for: Callable[[ExternalMessage], bool], now: float) -> list[EarlyMessage]:
        """Return the messages for which `is_for` returns True, oldest first, and forget them and all that are too old."""
        every = [one for kept in self._of.values() for one in kept.values()]
        found = sorted((one for one in every if is_for(one.message)), key=lambda one: one.at)
        for one in every:
            if one.at < now - EARLY_KEPT_S:
                self._drop(one.full_node, one.message.message_id)
        for one in found:
            self._drop(one.full_node, one.message.message_id)
        return [one for one in found if one.at >= now - EARLY_KEPT_S]

    def _drop(self, full_node: bytes, message_id: bytes) -> None:
        kept = self._of.get(full_node, {})
        one = kept.pop(message_id, None)
        if one is not None:
            self._bytes[full_node] -= len(one.message.body)
        if not kept:
            self._of.pop(full_node, None)
            self._bytes.pop(full_node, None)
