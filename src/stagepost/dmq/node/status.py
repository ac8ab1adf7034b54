"""Status of a running DMQ node over HTTP: metrics, readiness and status, gathered from its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import msgspec

from stagepost.dmq.equivocation import Equivocation, Equivocations
from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.node.blame import OnViolation
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.local_service import LOCAL_SOURCE
from stagepost.dmq.node.mempool_feed import Audience, OnSent
from stagepost.dmq.node.message_store import MessageStore
from stagepost.dmq.node.metrics import MessageOutcome, Metrics, PeerState, SecondBody, published_metrics
from stagepost.dmq.node.peer_book import PeerBook
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.pools import PoolSource
from stagepost.dmq.profiles import MiniProtocol
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.loop.clock import BELIEVED_AFTER_S, FlooredClock
from stagepost.ground.telemetry.status import DmqNodePage, HeldMessage, HeldMessages, PoolsStatus

CLOCK_BEHIND_MAX_S = 5.0
"""Seconds: a clock that was set back further makes messages look younger than they are."""
POOL_IDS_WRITTEN_MAX = 4_096


class NodeView(Protocol):
    """Node as its status needs it."""

    @property
    def intake(self) -> Intake: ...

    @property
    def mempool(self) -> Mempool: ...

    @property
    def book(self) -> PeerBook: ...

    @property
    def on_violation(self) -> list[OnViolation]: ...

    @property
    def on_sent(self) -> list[OnSent]: ...

    @property
    def audience(self) -> Audience: ...

    @property
    def equivocations(self) -> Equivocations: ...

    def status(self) -> DmqNodePage: ...


def clock_fault(clock: FlooredClock) -> str | None:
    """Return what is wrong with the time of this machine, or what was; None if nothing is."""
    if clock.lead_s:
        return (
            f"this machine's clock went ahead by {clock.lead_s:.0f} s at once; if that is wrong, correct it within "
            f"{BELIEVED_AFTER_S / 60:.0f} minutes"
        )
    if clock.behind_s > CLOCK_BEHIND_MAX_S:
        return (
            f"this machine's clock was set back by {clock.behind_s:.0f} s, and messages look expired until it has caught up; "
            "if it was ahead before, stop the node and run `stagepost node clock --data DIR --recover`"
        )
    return None


class DmqNodeStatus:
    """`StatusSource` of a DMQ node. It counts messages as they come, and looks up all other values on
    request."""

    def __init__(
        self,
        node: NodeView,
        store: MessageStore,
        pools: PoolSource,
        metrics: Metrics,
        published_prefix: str = "dmq_node_",
    ) -> None:
        self._node = node
        self._store = store
        self._pools = pools
        self._metrics = metrics
        self._published_prefix = published_prefix
        self._messages: Counter[tuple[MiniProtocol, MessageOutcome]] = Counter()
        node.intake.on_accepted.append(self._accepted)
        node.intake.on_rejected.append(self._rejected)
        node.on_violation.append(metrics.count_violation)
        node.on_sent.append(self._sent)
        node.audience.on_unseen.append(metrics.count_expired_unseen)
        # Equivocations among restored messages were found before this object could count them.
        metrics.count_equivocations(SecondBody.REFUSED, node.equivocations.refused)
        metrics.count_equivocations(SecondBody.HELD, node.equivocations.count - node.equivocations.refused)
        node.equivocations.on_found.append(self._equivocated)

    def _accepted(self, entry: MempoolEntry) -> None:
        self._count(_protocol(entry.source), MessageOutcome.ACCEPTED)

    def _rejected(self, message: DmqMessage, source: str, outcome: Rejected) -> None:
        self._count(_protocol(source), MessageOutcome.REJECTED)
        self._metrics.count_rejection(outcome.code)

    def _count(self, protocol: MiniProtocol, outcome: MessageOutcome) -> None:
        self._metrics.count_messages(protocol, outcome)
        self._messages[protocol, outcome] += 1

    def _sent(self, protocol: MiniProtocol, count: int) -> None:
        self._metrics.count_messages(protocol, MessageOutcome.SENT, count)

    def _equivocated(self, found: Equivocation) -> None:
        self._metrics.count_equivocations(SecondBody.REFUSED if found.is_refused else SecondBody.HELD)

    def metrics(self) -> bytes:
        mempool = self._node.mempool
        self._metrics.set_mempool(mempool.count, mempool.bytes)
        status = self._node.status()
        by_state = self._peers_by_state(status)
        self._metrics.set_peers(by_state)
        self._metrics.set_kes_periods_remaining(status.kes_periods_remaining)
        directions = Counter(peer.direction for peer in status.peers)
        gauges = {f"peerSelection_{state.value}": count for state, count in by_state.items()}
        for direction in ("inbound", "outbound"):
            gauges[f"connectionManager_{direction}Conns"] = directions[direction]
        return self._metrics.render() + published_metrics(self._published_prefix, self._messages, gauges)

    def readiness(self) -> Mapping[str, str | None]:
        return {
            "store": self._store.fault,
            "pools": self._pools.not_ready_reason,
            "clock": clock_fault(self._node.intake.clock),
        }

    def status(self) -> DmqNodePage:
        pools = PoolsStatus(self._pools.pool_count, self._pools.fault_text, self._pools.works_with)
        return msgspec.structs.replace(self._node.status(), pools=pools, parts=dict(self.readiness()))

    def held_messages(self, after: int, limit: int) -> HeldMessages:
        entries = self._node.mempool.after(after, limit, frozenset(MessageLayout))
        has_more = bool(entries) and self._node.mempool.has_after(entries[-1].index, frozenset(MessageLayout))
        return HeldMessages(tuple(map(_entry, entries)), entries[-1].index if has_more else None)

    def _peers_by_state(self, status: DmqNodePage) -> dict[PeerState, int]:
        connected = [peer.state for peer in status.peers]
        return {
            PeerState.COLD: sum(not peer.is_connected for peer in self._node.book.peers),
            PeerState.WARM: connected.count(PeerState.WARM.value),
            PeerState.HOT: connected.count(PeerState.HOT.value),
        }


def _entry(entry: MempoolEntry) -> HeldMessage:
    message = entry.message
    return HeldMessage(
        index=entry.index,
        message_id=message.message_id.hex(),
        pool_id=_written(message.pool_id),
        expires_at=message.expires_at,
        received_ms=entry.received_ms,
        source=entry.source,
        bytes=len(message.raw),
    )


def _protocol(source: str) -> MiniProtocol:
    if source == LOCAL_SOURCE:
        return MiniProtocol.LOCAL_MESSAGE_SUBMISSION
    return MiniProtocol.MESSAGE_SUBMISSION


@lru_cache(maxsize=POOL_IDS_WRITTEN_MAX)
def _written(pool_id: bytes) -> str:
    """Return the text form, cached: a page of entries names few pools many times, and the text form is
    costly."""
    return format_pool_id(pool_id)
