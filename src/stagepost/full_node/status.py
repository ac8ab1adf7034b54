"""Status of a running full node over HTTP: metrics, readiness, status and its open messages.

full-node-status.json, validator-status.json    notes in the data folder that name the port, while the node runs
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec

from stagepost import __version__
from stagepost.full_node.full_node import FullNode, OnRefused
from stagepost.full_node.metrics import FullNodeMetrics
from stagepost.full_node.node_health import LOG_NAME, NodeHealth, disk_status, keys_at_work, shard_text
from stagepost.full_node.running import RunningFullNode
from stagepost.ground.files.running_nodes import FULL_NODE, STATUS_FILES, StatusFacts
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.telemetry.status import (
    FullNodePage,
    NetworkStatus,
    QueuedMessage,
    QueuedMessages,
)
from stagepost.ground.telemetry.status_server import StatusServer, StatusSource, serve_metrics, serve_status
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.shard import Shard


class NodeStatus(StatusSource, Protocol):
    """Status of one node. `kind` names the note in the data folder that names the port."""

    kind: str
    health: NodeHealth


class FullNodeStatus:
    """Status of a full node, a `StatusSource`. Its metrics count from when it is made."""

    kind = FULL_NODE

    def __init__(self, running: RunningFullNode, message_timeout_ms: int, clock: Clock | None = None) -> None:
        self._running = running
        self._clock = clock or SystemClock()
        self._metrics = FullNodeMetrics(message_timeout_ms, lambda: running.proofs.awaited)
        self._started_s = self._clock.mono_s()
        full_node = running.full_node
        full_node.on_submitted = self._taken
        full_node.on_refused = _both(full_node.on_refused, self._metrics.refused)
        running.watchers.append(self._heard)
        running.end_watchers.append(self._metrics.proved)
        running.challenge_watchers.append(self._metrics.challenged)
        self.health = NodeHealth(LOG_NAME, self._page, self._clock)

    @property
    def _full_node(self) -> FullNode:
        return self._running.full_node

    def metrics(self) -> bytes:
        kafka = self._running.kafka
        rendered = self._metrics.render(self._full_node.now_ms) + self.health.metrics()
        return rendered if kafka is None else rendered + kafka.metrics()

    def readiness(self) -> Mapping[str, str | None]:
        return self.health.report.readiness()

    def status(self) -> FullNodePage:
        page = self._page()
        return msgspec.structs.replace(page, parts=dict(self.readiness()))

    def _network(self) -> NetworkStatus:
        running, ledger, now_ms = self._running, self._running.follower.ledger, self._full_node.now_ms
        sessions = (ledger.master_session(), *ledger.sessions())
        self._metrics.let_expire(now_ms)
        return NetworkStatus(
            members=running.members.status(keys_at_work(sessions), set(running.links.linked), now_ms),
            sessions=running.members.sessions(sessions),
            height=ledger.master.seqno,
            last_final_ms=ledger.master.time_ms,
            open=len(self._metrics.open),
            oldest_open_ms=self._metrics.oldest_unanswered_ms,
        )

    def _page(self) -> FullNodePage:
        counters = self._full_node.counters
        return FullNodePage(
            kind=self.kind,
            version=__version__,
            uptime_s=round(self._clock.mono_s() - self._started_s, 3),
            validators_linked=len(self._running.links.linked),
            messages=counters.messages,
            finalized=self._full_node.finalized,
            rejected=self._full_node.rejected,
            receipts=counters.receipts,
            receipts_refused=dict(counters.quarantined),
            open=len(self._metrics.open),
            unproved=self._running.proofs.awaited,
            statuses=self._running.statuses.published,
            statuses_waiting=self._running.statuses.waiting,
            network=self._network(),
            disk=disk_status(self._running.data, self._running.disk_fault),
        )

    def held_messages(self, after: int, limit: int) -> QueuedMessages:
        """Return messages without an end, the oldest first; `index` counts from 1."""
        rows = islice(self._metrics.open.items(), after, after + limit + 1)
        entries = [
            QueuedMessage(
                index=after + number + 1,
                message_id=message_id.hex(),
                shard=message.shard,
                status=max(
                    (stage.value for stage in message.stages), key=_STAGE_ORDER.index, default="taken"
                ),
                received_ms=message.taken_ms,
            )
            for number, (message_id, message) in enumerate(rows)
        ]
        return page_of(entries, limit)

    def _taken(self, message_id: bytes, shard: Shard | None) -> None:
        self._metrics.taken(
            message_id, "none" if shard is None else shard_text(shard), self._full_node.now_ms
        )

    def _heard(self, receipt: Receipt) -> None:
        self._metrics.heard(receipt, self._full_node.now_ms)


_STAGE_ORDER = ("sent", "queued", "included", "accepted", "finalized", "rejected", "timeout")


@asynccontextmanager
async def full_node_status(
    running: RunningFullNode,
    data: Path,
    port: int | None,
    *,
    message_timeout_ms: int,
    metrics_at: TcpAddress | None = None,
) -> AsyncIterator[int | None]:
    """Serve the status of `running` as long as the context lasts; yield the port."""
    source = FullNodeStatus(running, message_timeout_ms)
    async with serving_status(source, data, port, metrics_at) as taken:
        yield taken


@asynccontextmanager
async def serving_status(
    source: NodeStatus, data: Path, port: int | None, metrics_at: TcpAddress | None = None
) -> AsyncIterator[int | None]:
    """Watch the health of `source`, serve its status, and leave a note of the port in `data`, as long as the context lasts.

    `port` None: no status over HTTP. `metrics_at`: address at which /metrics alone is served as well."""
    servers: list[StatusServer] = []
    source.health.start()
    try:
        if port is not None:
            servers.append(await serve_status(source, port))
            StatusFacts(os.getpid(), source.kind, servers[0].port).write(data)
        if metrics_at is not None:
            servers.append(await serve_metrics(source, metrics_at.host, metrics_at.port))
        yield servers[0].port if port is not None else None
    finally:
        source.health.stop()
        if port is not None:
            (data / STATUS_FILES[source.kind]).unlink(missing_ok=True)
        for server in servers:
            await server.close()


def page_of(entries: list[QueuedMessage], limit: int) -> QueuedMessages:
    has_more = len(entries) > limit
    shown = tuple(entries[:limit])
    return QueuedMessages(shown, shown[-1].index if has_more else None)


def _both(first: OnRefused, second: OnRefused) -> OnRefused:
    def told(receipt: Receipt, reason: Quarantined) -> None:
        first(receipt, reason)
        second(receipt, reason)

    return told
