"""What a running node tells about itself over HTTP: metrics, readiness and status, gathered from its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from stagepost.dmq.mempool import Entry, Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.profiles import MiniProtocol
from stagepost.node.local_service import LOCAL_SOURCE
from stagepost.runtime.intake import Intake
from stagepost.runtime.message_store import MessageStore
from stagepost.runtime.metrics import MessageOutcome, Metrics, PeerState
from stagepost.runtime.pools_file import PoolsFile

CLOCK_BEHIND_MAX_S = 5.0
"""A clock that was set back further than this makes messages look younger than they are."""


class TellingNode(Protocol):
    """What is asked of a node here."""

    @property
    def intake(self) -> Intake: ...

    @property
    def mempool(self) -> Mempool: ...

    def status(self) -> dict[str, Any]: ...


class NodeStatus:
    """A `StatusSource`. Messages are counted as they come; what can be looked up is looked up when asked for."""

    def __init__(self, node: TellingNode, store: MessageStore, pools: PoolsFile, metrics: Metrics) -> None:
        self._node = node
        self._store = store
        self._pools = pools
        self._metrics = metrics
        node.intake.on_accepted.append(self._accepted)
        node.intake.on_rejected.append(self._rejected)

    def _accepted(self, entry: Entry) -> None:
        self._metrics.count_messages(_protocol(entry.source), MessageOutcome.ACCEPTED)

    def _rejected(self, message: DmqMessage, source: str, outcome: Rejected) -> None:
        self._metrics.count_messages(_protocol(source), MessageOutcome.REJECTED)
        self._metrics.count_rejection(outcome.code)

    def metrics(self) -> bytes:
        mempool = self._node.mempool
        self._metrics.set_mempool(mempool.count, mempool.bytes)
        self._metrics.set_peers(_peers_by_state(self._node.status()))
        return self._metrics.render()

    def readiness(self) -> Mapping[str, str | None]:
        behind_s = self._node.intake.clock.behind_s
        return {
            "store": self._store.fault,
            "pools": None if self._pools.is_ready else "the pools file has not been read",
            "clock": None
            if behind_s <= CLOCK_BEHIND_MAX_S
            else f"this machine's clock was set back by {behind_s:.0f} s",
        }

    def status(self) -> dict[str, Any]:
        fault = self._pools.fault
        pools = {"count": self._pools.pool_count, "fault": None if fault is None else fault.text}
        return {**self._node.status(), "pools": pools, "parts": dict(self.readiness())}


def _protocol(source: str) -> MiniProtocol:
    if source == LOCAL_SOURCE:
        return MiniProtocol.LOCAL_MESSAGE_SUBMISSION
    return MiniProtocol.MESSAGE_SUBMISSION


def _peers_by_state(status: Mapping[str, Any]) -> dict[PeerState, int]:
    """Peers whose state has another name count as known only."""
    names = Counter(peer.get("state") for peer in status.get("peers", ()))
    counts = {state: names.pop(state.value, 0) for state in PeerState}
    counts[PeerState.COLD] += sum(names.values())
    return counts
