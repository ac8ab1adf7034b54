"""Validators that may sign receipts: the sessions of a chain one after the other, kept as the validator-sets file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stagepost.errors import StorageError
from stagepost.full_node.network import NetworkMember
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.wire.tl import key_id
from stagepost.remp.hex_text import SHARD_DIGITS
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.validator_sets import (
    MESSAGE_TIMEOUT_MS,
    NAME_CHARACTERS_MAX,
    Session,
    SetMember,
    ValidatorSets,
)

FILE_MODE = 0o644
CLOCKS_DIFFER_MS = 5_000
"""Milliseconds by which the time of the master block that begins a session may be ahead of a validator's clock."""


class KnownSets:
    """Sessions and full nodes whose receipts count. Sessions are never forgotten: receipts are checked years later.
    For `message_timeout_ms` after the end of a session its validators may still report its messages."""

    def __init__(
        self,
        full_nodes: Iterable[bytes],
        *,
        message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
        members: Iterable[NetworkMember] = (),
    ) -> None:
        self._names: dict[bytes, str] = {}
        self._addresses: dict[bytes, str] = {}
        self._full_nodes: dict[bytes, bytes] = {key_id(key): key for key in full_nodes}
        for member in members:
            self.add_member(member)
        self._sessions: dict[bytes, Session] = {}
        self.message_timeout_ms = message_timeout_ms

    def add_member(self, member: NetworkMember) -> None:
        """Know the name and address of a member, and believe a full node."""
        own_id = key_id(member.key)
        self._names[own_id] = member.name[:NAME_CHARACTERS_MAX]
        self._addresses[own_id] = member.host[:NAME_CHARACTERS_MAX]
        if not member.is_validator:
            self._full_nodes[own_id] = member.key

    def add(self, sets: ValidatorSets) -> None:
        """Add what an earlier life has written."""
        self._full_nodes.update(sets.full_nodes)
        self._names = sets.names | self._names
        self._addresses = sets.addresses | self._addresses
        self._sessions.update(sets.sessions)

    def began(self, sessions: Iterable[LedgerSession]) -> None:
        for session in sessions:
            known = self._sessions.get(session.session_id)
            if known is None or known.to_ms is None:
                self._sessions[session.session_id] = session_of(session)

    def ended(self, session_ids: Iterable[bytes], now_ms: int) -> None:
        for session_id in session_ids:
            session = self._sessions.get(session_id)
            if session is not None and session.to_ms is None:
                to_ms = now_ms + self.message_timeout_ms
                self._sessions[session_id] = msgspec.structs.replace(session, to_ms=to_ms)

    @property
    def sets(self) -> ValidatorSets:
        sets = ValidatorSets(self._full_nodes, list(self._sessions.values()), self.message_timeout_ms)
        sets.names, sets.addresses = self._names, self._addresses
        return sets

    def write(self, path: Path) -> None:
        """Replace the file at `path`: readers see the old file or the new one."""
        content = json.dumps(sets_document(self.sets), indent=1).encode() + b"\n"
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
        "sessions": _sessions(list(sets.sessions.values())),
        "members": [
            {"key_id": identifier.hex(), "name": name, "address": sets.addresses.get(identifier)}
            for identifier, name in sets.names.items()
        ],
    }


def _sessions(sessions: Sequence[Session]) -> list[dict[str, Any]]:
    return [
        {
            "session_id": session.session_id.hex(),
            "wc": session.workchain,
            "shard": f"{session.shard:0{SHARD_DIGITS}x}",
            "catchain_seqno": session.catchain_seqno,
            "from_ms": session.from_ms,
            "to_ms": session.to_ms,
            "validators": [
                {
                    "index": one.index,
                    "public_key": one.public_key.hex(),
                    "key_id": one.key_id.hex(),
                    "weight": one.weight,
                }
                for one in session.validators
            ],
        }
        for session in sorted(sessions, key=lambda one: one.age_key)
    ]
