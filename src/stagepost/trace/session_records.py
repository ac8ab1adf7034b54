"""Validator sets of a data folder: members and full nodes from a file, sessions from the topic `stagepost.remp.sessions`.

A full node appends one record when a session begins, and one when it ends; the later record of a session counts. So a switch
costs the same after five years as on the first day. The file in the folder holds what hardly ever changes, and the
sessions of folders from before the topic was written.

    sets = load_sets(data)                     # or a file, such as `stagepost sets export` writes
    folder = SetsFolder(data); folder.look(); folder.sets   # reads on, and not again
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.hex_text import SHARD_DIGITS
from stagepost.remp.validator_sets import SETS_FILE, Session, SetMember, ValidatorSets
from stagepost.topics.log.block import VALUE_BYTES_MAX
from stagepost.topics.log.file_topic import open_topic, topic_names
from stagepost.topics.topic import Record


class StoredMember(msgspec.Struct, frozen=True):
    index: int
    public_key: str
    key_id: str
    weight: int = 1
    name: str | None = None


class StoredSession(msgspec.Struct, frozen=True):
    """Value of a record. `validators` is decoded once for each set of validators, and not for each session."""

    session_id: str
    wc: int
    shard: str
    catchain_seqno: int
    validators: msgspec.Raw
    from_ms: int | None = None
    to_ms: int | None = None


_decode_session = msgspec.json.Decoder(StoredSession).decode
_decode_members = msgspec.json.Decoder(list[StoredMember]).decode


def session_document(session: Session) -> dict[str, Any]:
    """Return a session as the validator-sets file has it."""
    return {
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


def session_record(session: Session, names: dict[bytes, str]) -> Record:
    """Return the record of a session, with the names that its validators have in their network. A session of so many
    validators that the names do not fit goes without them."""
    document = session_document(session)
    bare = msgspec.json.encode(document)
    for validator, one in zip(document["validators"], session.validators, strict=True):
        if one.key_id in names:
            validator["name"] = names[one.key_id]
    named = msgspec.json.encode(document)
    return Record(session.session_id.hex().encode(), named if len(named) <= VALUE_BYTES_MAX else bare)


def load_sets(path: Path, since_ms: int | None = None) -> ValidatorSets:
    """Return the sets of a data folder, or of a file; `StorageError` for what cannot be read. `since_ms`: sessions that
    ended before that time are left out."""
    folder = SetsFolder(path, since_ms)
    folder.look()
    return folder.sets


class SetsFolder:
    """Validator sets as a data folder has them. The file in a data folder stands for the folder; any other file stands alone."""

    def __init__(self, path: Path, since_ms: int | None = None) -> None:
        self.sets = ValidatorSets({})
        is_folder = path.is_dir()
        self._file = path / SETS_FILE if is_folder else path
        self._data = path if is_folder else path.parent if path.name == SETS_FILE else None
        self._since_ms = since_ms
        self._seen: tuple[int, int, int] | None = None
        self._next: dict[int, int] = {}
        # Sessions share what is equal: five years of them fit into memory.
        self._members: dict[bytes, tuple[SetMember, ...]] = {}
        self._shards: dict[int, int] = {}

    def look(self) -> bool:
        """Read what is new; return whether there was anything. `sets` is another object when the file was replaced."""
        is_new = self._look_at_file()
        return self._read_on() or is_new

    def _look_at_file(self) -> bool:
        try:
            facts = self._file.stat()
        except OSError as error:
            if self._has_topic:
                return False
            raise StorageError(
                f"the validator-sets file {self._file} cannot be read: {error.strerror}",
                advice="give the path of the file, or a node's data folder, with --validator-sets",
            ) from error
        seen = facts.st_mtime_ns, facts.st_size, facts.st_ino
        if seen == self._seen:
            return False
        sets = ValidatorSets.load(self._file)
        if self._since_ms is not None:
            sets.forget_before(self._since_ms)
        self.sets, self._seen = sets, seen
        self._next.clear()
        return True

    @property
    def is_there(self) -> bool:
        """Return whether the file or the topic exists."""
        return self._file.exists() or self._has_topic

    @property
    def _has_topic(self) -> bool:
        return self._data is not None and SESSIONS_TOPIC in topic_names(self._data)

    def _read_on(self) -> bool:
        if self._data is None or not self._has_topic:
            return False
        reader = open_topic(self._data, SESSIONS_TOPIC).reader()
        has_more = False
        for partition in range(reader.partitions):
            begin = self._next.get(partition, reader.start_offset(partition))
            if reader.end_offset(partition) <= begin:
                continue
            has_more = True
            for batch in reader.batches(partition, begin):
                for place, value in enumerate(batch.values, start=batch.base_offset):
                    try:
                        self._enter(_decode_session(value or b""))
                    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                        raise StorageError(
                            f"the record at offset {place} of partition {partition} of {SESSIONS_TOPIC} is not a session: "
                            f"{error}",
                            advice="give a file with --validator-sets",
                            offset=place,
                        ) from error
                self._next[partition] = batch.next_offset
        return has_more

    def _enter(self, stored: StoredSession) -> None:
        session_id = bytes.fromhex(stored.session_id)
        if stored.to_ms is not None and self._since_ms is not None and stored.to_ms <= self._since_ms:
            self.sets.leave(session_id)
            return
        members = self._members.get(bytes(stored.validators))
        if members is None:
            members = self._members[bytes(stored.validators)] = self._members_in(stored.validators)
        self.sets.enter(
            Session(
                session_id,
                stored.wc,
                self._shards.setdefault(shard := int(stored.shard, 16), shard),
                stored.catchain_seqno,
                members,
                stored.from_ms,
                stored.to_ms,
            )
        )

    def _members_in(self, raw: msgspec.Raw) -> tuple[SetMember, ...]:
        found = []
        for one in _decode_members(raw):
            member = SetMember(
                one.index, bytes.fromhex(one.public_key), bytes.fromhex(one.key_id), one.weight
            )
            if key_id(member.public_key) != member.key_id:
                raise ValueError(f"validator {one.index} has another key id than its public key")
            if one.name is not None:
                self.sets.names.setdefault(member.key_id, one.name)
            found.append(member)
        return tuple(found)
