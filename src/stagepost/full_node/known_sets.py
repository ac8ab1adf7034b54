"""Validators that may sign receipts now: the latest sessions of a chain, as a full node judges receipts by them, and all
sessions on the topic of the data folder: a record when one begins, and one when it ends.

At its start a full node reads the sessions that still matter. A folder of an earlier release has its sessions in the
validator-sets file; they move to the topic before that file is written without them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from stagepost.errors import StorageError
from stagepost.full_node.network import NetworkMember
from stagepost.full_node.status_topic import RETRY_S
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.validator_sets import (
    MESSAGE_TIMEOUT_MS,
    NAME_CHARACTERS_MAX,
    SETS_FILE,
    Session,
    SetMember,
    ValidatorSets,
)
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.topic import Place, RecordRefused
from stagepost.trace.session_records import load_sets, session_document, session_record

log = logging.getLogger(__name__)

FILE_MODE = 0o644
CLOCKS_DIFFER_MS = 5_000
"""Milliseconds by which the time of the master block that begins a session may be ahead of a validator's clock."""


KEPT_MS = 24 * 3_600 * 1_000
"""Milliseconds for which a session stays in memory after its end; the topic of sessions keeps it for ever."""


SESSIONS_LOOKED_AT_MIN = 512
"""Sessions in memory among which none is looked for that may be forgotten; later, when their number has doubled."""


class KnownSets:
    """Sessions and full nodes whose receipts count now. For `message_timeout_ms` after the end of a session its validators
    may still report its messages. `sets` is one object, which changes at a switch of sessions."""

    def __init__(
        self,
        full_nodes: Iterable[bytes],
        *,
        message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
        members: Iterable[NetworkMember] = (),
    ) -> None:
        self.sets = ValidatorSets({key_id(key): key for key in full_nodes}, (), message_timeout_ms)
        self.message_timeout_ms = message_timeout_ms
        self._changed: dict[bytes, Session] = {}
        self._count_kept = SESSIONS_LOOKED_AT_MIN
        for member in members:
            self.add_member(member)

    def add_member(self, member: NetworkMember) -> None:
        """Know the name and address of a member, and believe a full node."""
        own_id = key_id(member.key)
        self.sets.names[own_id] = member.name[:NAME_CHARACTERS_MAX]
        self.sets.addresses[own_id] = member.host[:NAME_CHARACTERS_MAX]
        if not member.is_validator:
            self.sets.full_nodes[own_id] = member.key

    def add(self, sets: ValidatorSets) -> None:
        """Add what an earlier life has written."""
        self.sets.full_nodes.update(sets.full_nodes)
        for known, earlier in ((self.sets.names, sets.names), (self.sets.addresses, sets.addresses)):
            for identifier, text in earlier.items():
                known.setdefault(identifier, text)
        for session in sets.sessions.values():
            self.sets.enter(session)

    def began(self, sessions: Iterable[LedgerSession]) -> None:
        for session in sessions:
            known = self.sets.sessions.get(session.session_id)
            if known is None or known.to_ms is None:
                self._enter(session_of(session))

    def ended(self, session_ids: Iterable[bytes], now_ms: int) -> None:
        """Give sessions their end. Now and then forget those that ended `KEPT_MS` ago: no receipt of theirs can count any
        more."""
        for session_id in session_ids:
            session = self.sets.sessions.get(session_id)
            if session is not None and session.to_ms is None:
                self._enter(msgspec.structs.replace(session, to_ms=now_ms + self.message_timeout_ms))
        if len(self.sets.sessions) > 2 * self._count_kept:
            self.sets.forget_before(now_ms - KEPT_MS)
            self._count_kept = max(SESSIONS_LOOKED_AT_MIN, len(self.sets.sessions))

    def _enter(self, session: Session) -> None:
        if self.sets.sessions.get(session.session_id) != session:
            self._changed[session.session_id] = session
            self.sets.enter(session)

    def take_changed(self) -> list[Session]:
        """Return the sessions that have begun or ended since the last call; readers learn of them by these."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    @property
    def without_sessions(self) -> ValidatorSets:
        sets = ValidatorSets(self.sets.full_nodes, (), self.message_timeout_ms)
        sets.names, sets.addresses = self.sets.names, self.sets.addresses
        return sets

    def write(self, path: Path) -> None:
        """Replace the file at `path` by one without sessions: these are on their topic. Readers see the old file or the
        new one."""
        content = json.dumps(sets_document(self.without_sessions), indent=1).encode() + b"\n"
        try:
            replace_file(path, content, FILE_MODE)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}",
                advice="check the folder and the space left on it",
            ) from error


def session_of(session: LedgerSession) -> Session:
    members = zip(session.facts.members, session.public_keys, strict=True)
    return Session(
        session.session_id,
        session.facts.workchain,
        session.facts.shard,
        session.catchain_seqno,
        tuple(
            SetMember(index, public_key, member.key_id, member.weight)
            for index, (member, public_key) in enumerate(members)
        ),
        max(0, session.from_ms - CLOCKS_DIFFER_MS),
    )


def sets_document(sets: ValidatorSets) -> Mapping[str, Any]:
    """Return the content of the validator-sets file."""
    return {
        "message_timeout_ms": sets.message_timeout_ms,
        "full_nodes": [
            {"public_key": public_key.hex(), "key_id": identifier.hex()}
            for identifier, public_key in sets.full_nodes.items()
        ],
        "sessions": [
            session_document(one) for one in sorted(sets.sessions.values(), key=lambda one: one.age_key)
        ],
        "members": [
            {"key_id": identifier.hex(), "name": name, "address": sets.addresses.get(identifier)}
            for identifier, name in sets.names.items()
        ],
    }


# The topic

MOVED_AT_ONCE = 256
"""Sessions of a file that go to the topic in one append."""


class SessionLog:
    """Writer of the topic. What the disk refuses is tried again, in order, and `fault` says why; a switch of sessions waits
    for nothing."""

    def __init__(
        self,
        data: Path,
        now_ms: int,
        known_sets: KnownSets,
        on_error: Callable[[StorageError], None],
    ) -> None:
        topic = create_topic(data, SESSIONS_TOPIC)
        if (data / SETS_FILE).exists():
            _move_from_file(topic, ValidatorSets.load(data / SETS_FILE))
        known_sets.add(load_sets(data, now_ms - KEPT_MS))
        self._writer = topic.writer(retry_s=RETRY_S, on_error=on_error)

    @property
    def fault(self) -> StorageError | None:
        return self._writer.fault

    def changed(self, known_sets: KnownSets) -> None:
        """Append the sessions that have begun or ended."""
        names = known_sets.sets.names
        for session in known_sets.take_changed():
            try:
                self._writer.append_soon([session_record(session, names)], _appended)
            except RecordRefused as error:
                # The node itself knows the session; readers of the topic do not.
                said = {"session": session.session_id.hex(), "validators": session.size, "reason": error.text}
                log.error("a session is too large for its topic", extra=said)

    async def close(self) -> None:
        await self._writer.close()


def _appended(outcome: list[Place] | StorageError) -> None:
    if isinstance(outcome, StorageError):
        log.error("sessions were not written before the end", extra={"reason": outcome.text})


def _move_from_file(topic: FileTopic, sets: ValidatorSets) -> None:
    """Append the sessions of the file; `StorageError` if the disk refuses, and then the file stays. A crash before the file
    is written anew repeats this, which changes nothing."""
    sessions = sorted(sets.sessions.values(), key=lambda one: one.age_key)
    if not sessions:
        return
    writer = topic.writer()
    try:
        for first in range(0, len(sessions), MOVED_AT_ONCE):
            records = [session_record(one, sets.names) for one in sessions[first : first + MOVED_AT_ONCE]]
            answered: SimpleQueue[list[Place] | StorageError] = SimpleQueue()
            writer.append_soon(records, answered.put)
            outcome = answered.get()
            if isinstance(outcome, StorageError):
                raise outcome
    finally:
        writer.close_now()
    log.info("sessions moved to their topic", extra={"count": len(sessions)})
