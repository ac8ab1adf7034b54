"""Health of a running full node or validator: its members by name, its metrics, and one log line for each change.

health = NodeHealth("full-node", lambda: page, clock)
health.start()          # looks every second, and logs links, quorum and health as they change
health.report           # what `/readyz` and `/metrics` tell
health.stop()
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.chain.agreement.votes import quorum
from stagepost.errors import StorageError
from stagepost.full_node.network import NetworkMember, RempNetwork
from stagepost.ground.loop.clock import Clock
from stagepost.ground.telemetry.health import (
    Health,
    HealthFacts,
    HealthReport,
    NodeReading,
    judge,
    sessions_without_quorum,
)
from stagepost.ground.telemetry.metrics import DeclaredSamples, Kind, MetricDeclaration
from stagepost.ground.telemetry.status import (
    DiskStatus,
    FullNodePage,
    MemberStatus,
    NetworkStatus,
    SessionStatus,
    ValidatorPage,
)
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.shard import Shard

log = logging.getLogger(__name__)

LOG_NAME = "full-node"
"""Name of a full node in the lines of its log."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks for a change."""
MASTERCHAIN = "masterchain"
_MASTER = -1


def shard_text(shard: Shard) -> str:
    return f"{shard.workchain}:{shard.prefix:016x}"


HEALTH = MetricDeclaration(
    "stagepost_health",
    Kind.GAUGE,
    "1 for the present answer to the question whether the network can finish a message, 0 for the others.",
    {"state": tuple(Health)},
)
VALIDATOR_LINKED = MetricDeclaration(
    "stagepost_validator_linked",
    Kind.GAUGE,
    "1 while this node has a link to the validator, by its name in the network file; 0 otherwise.",
    {"validator": ()},
)
QUORUM = MetricDeclaration(
    "stagepost_quorum",
    Kind.GAUGE,
    "1 while so many members of the session at work are linked that they can decide; 0 otherwise.",
    {"shard": ()},
)
CHAIN_HEIGHT = MetricDeclaration(
    "stagepost_chain_height", Kind.GAUGE, "Number of the last final master block that this node has."
)
CHAIN_FINAL_AGE = MetricDeclaration(
    "stagepost_chain_final_age_seconds",
    Kind.GAUGE,
    "Time since the date of the last final master block. An idle chain makes no blocks.",
)
DISK_FREE = MetricDeclaration(
    "stagepost_disk_free_bytes", Kind.GAUGE, "Free space where the data folder of this node lies."
)
HEALTH_METRICS = (HEALTH, VALIDATOR_LINKED, QUORUM, CHAIN_HEIGHT, CHAIN_FINAL_AGE, DISK_FREE)


def health_gauges(
    registry: CollectorRegistry,
    report: HealthReport,
    page: FullNodePage | ValidatorPage | None,
    now_s: float,
) -> None:
    """Add the gauges of `report` to `registry`, and those of the network that `page` describes. What is not known has no sample."""
    health = HEALTH.gauge(registry)
    for state in Health:
        health.labels(state.value).set(report.health is state)
    if page is None:
        return
    if page.disk is not None and page.disk.free_bytes is not None:
        DISK_FREE.gauge(registry).set(page.disk.free_bytes)
    network = page.network
    if network is None:
        return
    linked = VALIDATOR_LINKED.gauge(registry)
    for member in network.members:
        linked.labels(member.name).set(member.linked)
    lacking = {session.shard for session in sessions_without_quorum(network)}
    decides = QUORUM.gauge(registry)
    for session in network.sessions:
        decides.labels(session.shard).set(session.shard not in lacking)
    CHAIN_HEIGHT.gauge(registry).set(network.height)
    age_s = max(0.0, now_s - network.last_final_ms / 1_000)
    CHAIN_FINAL_AGE.gauge(registry).set(age_s)


class NetworkMembers:
    """Members of a network by name, and since when each has been silent."""

    def __init__(self, network: RempNetwork) -> None:
        self._of_key: dict[bytes, NetworkMember] = {}
        self._of_id: dict[bytes, NetworkMember] = {}
        self._places: dict[bytes, int] = {}
        self._silent_since_ms: dict[bytes, int] = {}
        for member in network.members:
            self.add(member)

    def add(self, member: NetworkMember) -> None:
        """Add a member behind the others."""
        self._places[member.key] = len(self._places)
        self._of_key[member.key] = self._of_id[key_id(member.key)] = member

    def name_of(self, public_key: bytes) -> str:
        """Return the name in the network file; of a key that is not in it, its first digits."""
        member = self._of_key.get(public_key)
        return f"key {public_key.hex()[:8]}" if member is None else member.name

    def name_of_id(self, own_id: bytes) -> str:
        """Return the name of the member with a key id; of one that is not in the network file, the id."""
        member = self._of_id.get(own_id)
        return own_id.hex() if member is None else member.name

    def status(
        self, public_keys: Iterable[bytes], linked_ids: set[bytes], now_ms: int
    ) -> tuple[MemberStatus, ...]:
        """Describe the members with these keys, in the order of the network file; `linked_ids` are the key ids of those that
        have a link now."""
        found = []
        for public_key in sorted(public_keys, key=lambda key: self._places.get(key, len(self._places))):
            own_id = key_id(public_key)
            is_linked = own_id in linked_ids
            since = None if is_linked else self._silent_since_ms.setdefault(own_id, now_ms)
            if is_linked:
                self._silent_since_ms.pop(own_id, None)
            member = self._of_key.get(public_key)
            address = "" if member is None else str(member.address)
            found.append(MemberStatus(self.name_of(public_key), address, own_id.hex(), is_linked, since))
        return tuple(found)

    def sessions(self, sessions: Iterable[LedgerSession]) -> tuple[SessionStatus, ...]:
        return tuple(
            SessionStatus(
                MASTERCHAIN if one.shard.workchain == _MASTER else shard_text(one.shard),
                one.session_id.hex(),
                tuple(self.name_of(key) for key in one.public_keys),
                quorum(len(one.public_keys)),
                one.ends_ms,
            )
            for one in sessions
        )


def keys_at_work(sessions: Iterable[LedgerSession]) -> list[bytes]:
    """Return the keys of all members of the sessions, each once, in order."""
    return list(dict.fromkeys(key for session in sessions for key in session.public_keys))


def disk_status(data: Path, fault: StorageError | None) -> DiskStatus:
    try:
        return DiskStatus(None if fault is None else fault.text, shutil.disk_usage(data).free)
    except OSError as error:
        reason = f"cannot look at {data}: {(error.strerror or str(error)).lower()}"
        return DiskStatus(reason if fault is None else fault.text, None, reason)


class NodeHealth:
    """Health of one node, from the page that it serves."""

    def __init__(self, name: str, page: Callable[[], FullNodePage | ValidatorPage], clock: Clock) -> None:
        self._name = name
        self._page = page
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._before: HealthReport | None = None
        self._linked: dict[str, MemberStatus] = {}
        self._lacking: set[str] | None = None

    @property
    def report(self) -> HealthReport:
        return self._judged(self._page())

    def _judged(self, page: FullNodePage | ValidatorPage) -> HealthReport:
        return judge(HealthFacts((NodeReading(self._name, page),)), self._clock.unix_s())

    def metrics(self) -> bytes:
        page, registry = self._page(), CollectorRegistry()
        health_gauges(registry, self._judged(page), page, self._clock.unix_s())
        return generate_latest(DeclaredSamples(registry))

    def start(self) -> None:
        page = self._page()
        log.info("node started", extra={"node": self._name, "version": page.version})
        self.look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Log what has changed since the last look; look again soon."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)
        page = self._page()
        if page.network is not None:
            self._log_links(page.network)
            self._log_quorum(page.network)
        report, before = self._judged(page), self._before
        self._before = report
        if before is None or before.health is not report.health:
            level = logging.INFO if report.health is Health.GOOD else logging.WARNING
            was = None if before is None else before.health.value
            said = {"node": self._name, "health": report.health.value, "was": was, "reason": report.text}
            log.log(level, "health", extra=said)

    def _log_links(self, network: NetworkStatus) -> None:
        for member in network.members:
            known = self._linked.get(member.name)
            self._linked[member.name] = member
            said = {"node": self._name, "validator": member.name, "address": member.address}
            if member.linked and (known is None or not known.linked):
                log.info("link gained", extra=said)
            elif known is not None and known.linked and not member.linked:
                log.warning("link lost", extra=said)

    def _log_quorum(self, network: NetworkStatus) -> None:
        lacking = {session.shard for session in sessions_without_quorum(network)}
        silent = [member.text for member in network.members if not member.linked]
        before, self._lacking = self._lacking, lacking
        if before is None:
            return  # a node that starts has no link yet, and has lost nothing
        for shard in sorted(lacking - before):
            log.warning("quorum lost", extra={"node": self._name, "shard": shard, "not_linked": silent})
        for shard in sorted(before - lacking):
            log.info("quorum back", extra={"node": self._name, "shard": shard, "not_linked": silent})


def log_sessions(
    node: str, members: NetworkMembers, started: Iterable[LedgerSession], ended: Iterable[bytes]
) -> None:
    """Log the sessions that a master block started and ended, as `node` sees it."""
    for session in members.sessions(started):
        said = {
            "node": node,
            "session": session.session,
            "shard": session.shard,
            "members": list(session.members),
        }
        log.info("session started", extra=said)
    for session_id in ended:
        log.info("session ended", extra={"node": node, "session": session_id.hex()})
