"""Status of a running validator over HTTP: metrics, readiness, status and its open messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost import __version__
from stagepost.catchain.member import Member as QueueMember
from stagepost.chain.agreement.member import Member as AgreementMember
from stagepost.full_node.node_health import NodeHealth, disk_status, keys_at_work, shard_text
from stagepost.full_node.status import page_of, serving_status
from stagepost.ground.files.running_nodes import VALIDATOR
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.ground.telemetry.status import (
    ListeningStatus,
    NetworkStatus,
    QueuedMessage,
    QueuedMessages,
    SessionStatus,
    ValidatorPage,
)
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import kind_of
from stagepost.validator.metrics import AgreementFigures, ValidatorMetrics
from stagepost.validator.running import RunningValidator
from stagepost.validator.session_plan import SessionEvent, SessionPlan
from stagepost.validator.validator import RempValidator


class ListeningSession(NamedTuple):
    """A session in which a validator listens and does not speak yet. `part`: "agreement", or "queue" for its catchain.
    `answered`: other members that have answered, by index. `needed`: how many must. `is_fresh`: the session began while the
    validator ran, so the validator waits there for a moment at most, unless others are gone."""

    session_id: bytes
    part: str
    answered: tuple[int, ...]
    needed: int
    is_fresh: bool
    has_gap: bool = False
    """The disk of the validator was lost or replaced: it waits for the next session."""

    @property
    def text(self) -> str:
        if self.has_gap:
            return (
                f"this validator may have spoken in the {self.part} of session {self.session_id.hex()} before its disk "
                "was lost or restored, and waits for the next session"
            )
        return (
            f"{len(self.answered)} of {self.needed} other members have answered in the {self.part} of session "
            f"{self.session_id.hex()}"
        )


def listening_sessions(validator: RempValidator) -> list[ListeningSession]:
    """Return the sessions at work in which `validator` has not started to speak."""
    members: list[tuple[bytes, str, AgreementMember | QueueMember]] = [
        *((one, "agreement", runner.member) for one, runner in validator.chain.sessions.items()),
        *((one, "queue", runner.member) for one, runner in validator.queues.current.items()),
    ]
    return [
        ListeningSession(
            session_id,
            part,
            tuple(sorted(member.answered_by)),
            member.answers_needed,
            is_fresh=member.options.start_wait_s == 0,
            has_gap=member.options.answers is StartAnswers.GAP,
        )
        for session_id, part, member in members
        if not member.is_started
    ]


class ValidatorStatus:
    """A `StatusSource`. A validator that waits for answers at its start is not ready: it says nothing to others."""

    kind = VALIDATOR

    def __init__(self, running: RunningValidator, clock: Clock | None = None) -> None:
        self._running = running
        self._clock = clock or SystemClock()
        self._metrics = ValidatorMetrics()
        self._started_s = self._clock.mono_s()
        running.watchers.append(self._heard)
        self.health = NodeHealth(running.own_name, self._page, self._clock)

    def metrics(self) -> bytes:
        running, validator = self._running, self._running.validator
        open_by_shard: Counter[str] = Counter()
        without_body: Counter[str] = Counter()
        for runner in validator.queues.current.values():
            shard = shard_text(runner.plan.shard)
            open_by_shard[shard] += runner.queue.open_count
            without_body[shard] += sum(one.body is None for one in runner.queue.entries())
        slots = {
            session.shard: agreement.member.slot
            for session in self._sessions()
            if (agreement := validator.chain.sessions.get(bytes.fromhex(session.session))) is not None
        }
        missed, skipped = validator.chain.votes
        counters = validator.queues.counters
        figures = AgreementFigures(
            open_by_shard,
            without_body,
            counters.refused,
            counters.forgotten,
            slots,
            skipped,
            missed,
            running.blamed,
            running.halted is not None,
        )
        return self._metrics.render(figures) + self.health.metrics()

    def readiness(self) -> Mapping[str, str | None]:
        return {**self._parts(), **self.health.report.readiness()}

    def _parts(self) -> dict[str, str | None]:
        validator = self._running.validator
        has_queue = bool(validator.queues.current) or not self._is_in_set
        waiting = [one for one in listening_sessions(validator) if not one.is_fresh]
        return {
            "queue": None if has_queue else "this validator is in no session at work",
            "start": f"listens and does not speak: {waiting[0].text}" if waiting else None,
        }

    @property
    def _is_in_set(self) -> bool:
        present = self._running.validator.ledger.master.configuration.current.validators
        return any(one.public_key == self._running.public_key for one in present)

    def _sessions(self) -> tuple[SessionStatus, ...]:
        ledger = self._running.validator.ledger
        return self._running.members.sessions((ledger.master_session(), *ledger.sessions()))

    def _network(self) -> NetworkStatus:
        running, ledger = self._running, self._running.validator.ledger
        sessions = (ledger.master_session(), *ledger.sessions())
        now_ms = int(self._clock.unix_s() * 1_000)
        linked = {key_id(running.network.members[index].key) for index in running.overlay.linked}
        queues = running.validator.queues.current.values()
        return NetworkStatus(
            members=running.members.status(
                keys_at_work(sessions), linked | {key_id(running.public_key)}, now_ms
            ),
            sessions=running.members.sessions(sessions),
            height=ledger.master.seqno,
            last_final_ms=ledger.master.time_ms,
            open=sum(runner.queue.open_count for runner in queues),
            blamed=tuple(sorted(running.blamed)),
            halted=running.halted,
        )

    def status(self) -> ValidatorPage:
        return msgspec.structs.replace(self._page(), parts=dict(self.readiness()))

    def _page(self) -> ValidatorPage:
        validator = self._running.validator
        master = validator.ledger.master
        full_nodes = [member.key for member in self._running.network.full_nodes]
        linked = set(self._running.links.linked)
        now_ms = int(self._clock.unix_s() * 1_000)
        return ValidatorPage(
            kind=self.kind,
            version=__version__,
            uptime_s=round(self._clock.mono_s() - self._started_s, 3),
            full_nodes_linked=len(linked),
            master_block=master.seqno,
            shards=tuple(shard_text(entry.shard) for entry in master.shards),
            sessions=tuple(one.hex() for one in validator.queues.current),
            listening=tuple(
                ListeningStatus(one.session_id.hex(), one.part, one.answered, one.needed)
                for one in listening_sessions(validator)
            ),
            messages=validator.queues.counters.messages,
            refused=dict(validator.queues.counters.refused),
            parts=self._parts(),
            network=self._network(),
            disk=disk_status(self._running.data, self._running.disk_fault),
            full_nodes=self._running.members.status(full_nodes, linked, now_ms),
            in_set=self._is_in_set,
        )

    def held_messages(self, after: int, limit: int) -> QueuedMessages:
        """Messages in its queues, the newest session first, each in the order of arrival; `index` counts from 1."""
        rows = (
            (runner.plan.shard, cached)
            for runner in self._running.validator.queues.current.values()
            for cached in runner.queue.entries()
        )
        entries = [
            QueuedMessage(
                index=after + number + 1,
                message_id=cached.message_id.hex(),
                shard=shard_text(shard),
                status=kind_of(cached.status).name,
                received_ms=int(cached.first_seen_s * 1_000),
            )
            for number, (shard, cached) in enumerate(islice(rows, after, after + limit + 1))
        ]
        return page_of(entries, limit)

    def _heard(self, plan: SessionPlan, event: SessionEvent) -> None:
        self._metrics.heard(event)


@asynccontextmanager
async def validator_status(
    running: RunningValidator, data: Path, port: int | None, metrics_at: TcpAddress | None = None
) -> AsyncIterator[int | None]:
    async with serving_status(ValidatorStatus(running), data, port, metrics_at) as taken:
        yield taken
