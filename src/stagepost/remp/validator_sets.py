"""The validator-sets file: who may sign receipts, in which sessions and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import msgspec

from stagepost.errors import ConfigFaults, FileFault, StorageError
from stagepost.ground.files.documents import DocumentPart, NotADocument, read_object
from stagepost.ground.files.expected import Expected, optional, text, unfit, whole
from stagepost.ground.identifiers import INT64_MAX
from stagepost.ground.wire.tl import key_id
from stagepost.remp.hex_text import HASH_DIGITS, SHARD_DIGITS, read_hash, read_shard
from stagepost.remp.session_windows import Window, WindowIndex

if TYPE_CHECKING:
    from _typeshed import StrPath


SETS_FILE = "validator-sets.json"


MESSAGE_TIMEOUT_MS = 240_000
SETS_FILE_BYTES_MAX = 64 * 1024 * 1024
VALIDATORS_MAX = 4_096
UINT32_MAX = (1 << 32) - 1
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

_NO_HASH = b""


def is_more_than_a_third(count: int, size: int) -> bool:
    """Return whether `count` of `size` validators include an honest one: at most a third of them are dishonest."""
    return 3 * count > size


class Role(Enum):
    FULL_NODE = "full node"
    VALIDATOR = "validator"


class SetMember(msgspec.Struct, frozen=True):
    """People see index k as V(k+1). The weight is for information: all counting is by head."""

    index: int
    public_key: bytes
    key_id: bytes
    weight: int = 1


class Session(msgspec.Struct, frozen=True, gc=False):
    """A validator subset at work for one shard. Its window is [from_ms, to_ms), open where a bound is None."""

    session_id: bytes
    workchain: int
    shard: int
    catchain_seqno: int
    validators: tuple[SetMember, ...]
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def size(self) -> int:
        return len(self.validators)

    def meets(self, first_ms: int, last_ms: int) -> bool:
        """Return whether the window has a moment in common with [first_ms, last_ms]."""
        return self.window.meets(first_ms, last_ms)

    @property
    def window(self) -> Window:
        return Window.between(self.from_ms, self.to_ms)

    @property
    def age_key(self) -> tuple[int, int, int, bytes]:
        """Greater is newer."""
        return self.catchain_seqno, self.workchain, self.shard, self.session_id


Membership: TypeAlias = tuple[Session, SetMember]
"""Session, and the member that a key is in it."""


class ReceiptSource(NamedTuple):
    role: Role
    public_key: bytes


class ValidatorSets:
    """The full nodes and the sessions, and an index from key id and time to the full node or validator that has the key.

    The content of one validator-sets file, or of session after session as a topic brings them (`enter`).
    """

    def __init__(
        self,
        full_nodes: Mapping[bytes, bytes],
        sessions: Sequence[Session] = (),
        message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
    ) -> None:
        self.full_nodes = dict(full_nodes)
        self.sessions: dict[bytes, Session] = {}
        self.names: dict[bytes, str] = {}
        self.addresses: dict[bytes, str] = {}
        self.message_timeout_ms = message_timeout_ms
        # Of all sessions by key id, and indexes of their windows; each is made when it is asked for first.
        self._memberships: dict[bytes, dict[bytes, Membership]] | None = None
        self._windows: WindowIndex[Session] | None = None
        self._windows_of: dict[bytes, WindowIndex[Membership]] = {}
        for session in sessions:
            self.enter(session)

    def enter(self, session: Session) -> None:
        """Enter a session, in place of what was known of a session with its id."""
        before = self.sessions.get(session.session_id)
        if before is not None:
            self._leave(before)
        self.sessions[session.session_id] = session
        if self._windows is not None:
            self._windows.enter(session.window, session)
        if self._memberships is not None:
            self._enter_memberships(session, self._memberships)

    def _enter_memberships(self, session: Session, memberships: dict[bytes, dict[bytes, Membership]]) -> None:
        for validator in session.validators:
            membership = session, validator
            memberships.setdefault(validator.key_id, {})[session.session_id] = membership
            if (known := self._windows_of.get(validator.key_id)) is not None:
                known.enter(session.window, membership)

    def leave(self, session_id: bytes) -> None:
        """Forget a session, if it is known."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self._leave(session)

    def forget_before(self, time_ms: int) -> None:
        """Forget the sessions that ended until `time_ms`."""
        kept = {
            session_id: one
            for session_id, one in self.sessions.items()
            if one.to_ms is None or one.to_ms > time_ms
        }
        if len(kept) < len(self.sessions):
            self.sessions = kept
            self._memberships = self._windows = None
            self._windows_of.clear()

    def _leave(self, session: Session) -> None:
        if self._windows is not None:
            self._windows.remove(session.window, session)
        memberships = self._memberships
        if memberships is None:
            return
        for validator in session.validators:
            of_key = memberships[validator.key_id]
            membership = of_key.pop(session.session_id)
            if (known := self._windows_of.get(validator.key_id)) is not None:
                known.remove(session.window, membership)
            if not of_key:
                del memberships[validator.key_id]

    @classmethod
    def load(cls, path: StrPath) -> ValidatorSets:
        """Read the sets from a file; `ConfigFaults` with every fault in it."""
        try:
            with open(path, "rb") as file:
                content = file.read(SETS_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise StorageError(
                f"the validator-sets file {path} cannot be read: {error.strerror}",
                advice="give the path of the file with --validator-sets",
            ) from error
        return parse_validator_sets(content, str(path))

    def name_of(self, source_id: bytes, index: int) -> str:
        """Return the name of a validator: the one that its network gave it, else its place in the session, as `V3`."""
        return self.names.get(source_id) or f"V{index + 1}"

    def name_order(self, source_id: bytes, index: int) -> tuple[str, int, int]:
        """Return the key that sorts validators by name, a number at the end of the name as a number; then by place."""
        name = self.names.get(source_id, "")
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        return stem, int(digits) if digits else 0, index

    def memberships(self, source_id: bytes) -> Mapping[bytes, Membership]:
        """Return the sessions that a validator's key belongs to, by their ids."""
        return self._known_memberships().get(source_id, {})

    def public_key_of(self, source_id: bytes) -> bytes | None:
        """Return the key of a validator with a known session; None for anybody else."""
        member = next(iter(self.memberships(source_id).values()), None)
        return None if member is None else member[1].public_key

    def _known_memberships(self) -> dict[bytes, dict[bytes, Membership]]:
        if self._memberships is None:
            self._memberships = {}
            for session in self.sessions.values():
                self._enter_memberships(session, self._memberships)
        return self._memberships

    def held_by(self, source_id: bytes, first_ms: int, last_ms: int) -> Iterator[Membership]:
        """Yield the sessions that a validator's key belongs to and whose windows meet [first_ms, last_ms]."""
        return self._index_of(source_id).meeting(first_ms, last_ms)

    def near(self, first_ms: int, last_ms: int) -> ValidatorSets:
        """Return the sets with those sessions only whose windows meet [first_ms, last_ms]: enough to judge what lies within."""
        if self._windows is None:
            self._windows = WindowIndex((session.window, session) for session in self.sessions.values())
        found = list(self._windows.meeting(first_ms, last_ms))
        near = ValidatorSets(self.full_nodes, found, self.message_timeout_ms)
        near.names, near.addresses = self.names, self.addresses
        return near

    def source(self, source_id: bytes, timestamp_ms: int) -> ReceiptSource | str:
        """Return the role and key of the source that signs with this key id at this time; a sentence if there
        is none.
        """
        public_key = self.full_nodes.get(source_id)
        if public_key is not None:
            return ReceiptSource(Role.FULL_NODE, public_key)
        if source_id not in self._known_memberships():
            return f"no full node and no validator has the key id {source_id.hex()}"
        # Whichever session it is: a key id has one public key.
        found = self._index_of(source_id).at(timestamp_ms)
        if found is None:
            return f"validator {source_id.hex()} was in no session at {timestamp_ms}"
        return ReceiptSource(Role.VALIDATOR, found[1].public_key)

    def _index_of(self, source_id: bytes) -> WindowIndex[Membership]:
        found = self._windows_of.get(source_id)
        if found is None:
            memberships = self._known_memberships().get(source_id)
            if memberships is None:
                return WindowIndex()
            found = WindowIndex((one[0].window, one) for one in memberships.values())
            self._windows_of[source_id] = found
        return found


T = TypeVar("T")


def _expected(digits: int, read: Callable[[object], T | None]) -> Expected[T]:
    what = f"{digits} hexadecimal digits"

    def read_or_refuse(value: object) -> T:
        found = read(value)
        if found is None:
            raise unfit(what, value)
        return found

    return Expected(what, read_or_refuse)


_EXPECTED_HASH = _expected(HASH_DIGITS, read_hash)
_EXPECTED_SHARD = _expected(SHARD_DIGITS, read_shard)
NAME_CHARACTERS_MAX = 64
"""Characters, at most, of a member's name and of its address."""
_NAME = text("a name", NAME_CHARACTERS_MAX)
_TIME: Expected[int | None] = optional(whole(0, INT64_MAX, "a time in milliseconds"))


def parse_validator_sets(content: bytes, source: str) -> ValidatorSets:
    """Return the sets, or raise `ConfigFaults` with every fault in the file. Fields without a name here are
    ignored.
    """
    if len(content) > SETS_FILE_BYTES_MAX:
        fault = FileFault("the whole file", f"expected at most {SETS_FILE_BYTES_MAX} bytes, found more")
        raise ConfigFaults({source: [fault]})
    faults: list[FileFault] = []
    try:
        sets = _walk(DocumentPart(read_object(content), faults))
    except NotADocument as error:
        raise ConfigFaults({source: [error.fault]}) from error
    if faults:
        raise ConfigFaults({source: faults})
    return sets


def _walk(file: DocumentPart) -> ValidatorSets:
    timeout_ms = file.optional(
        "message_timeout_ms", whole(0, INT64_MAX, "a number of milliseconds"), MESSAGE_TIMEOUT_MS
    )
    full_nodes: dict[bytes, bytes] = {}
    for node in file.parts("full_nodes", is_required=False):
        public_key, identifier = _read_key(node)
        if identifier:
            full_nodes[identifier] = public_key
    sessions: dict[bytes, Session] = {}
    for part in file.parts("sessions"):
        session = _read_session(part, full_nodes)
        if session.session_id in sessions:
            part.fault("session_id", "expected every session once, found it again")
        elif session.session_id:
            sessions[session.session_id] = session
    sets = ValidatorSets(full_nodes, list(sessions.values()), timeout_ms)
    for member in file.parts("members", is_required=False):
        identifier = member.required("key_id", _EXPECTED_HASH, _NO_HASH)
        sets.names[identifier] = member.required("name", _NAME, "")
        address = member.optional("address", optional(_NAME), None)
        if address is not None:
            sets.addresses[identifier] = address
    return sets


def _read_key(part: DocumentPart) -> tuple[bytes, bytes]:
    public_key = part.required("public_key", _EXPECTED_HASH, _NO_HASH)
    identifier = part.required("key_id", _EXPECTED_HASH, _NO_HASH)
    if public_key and identifier and key_id(public_key) != identifier:
        part.fault("key_id", f"expected {key_id(public_key).hex()} for this public key, found another")
        return public_key, _NO_HASH
    return public_key, identifier


def _read_session(part: DocumentPart, full_nodes: Mapping[bytes, bytes]) -> Session:
    from_ms, to_ms = part.optional("from_ms", _TIME, None), part.optional("to_ms", _TIME, None)
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        part.fault("to_ms", f"expected a time after from_ms ({from_ms}), found {to_ms}")
    return Session(
        part.required("session_id", _EXPECTED_HASH, _NO_HASH),
        part.required("wc", whole(INT32_MIN, INT32_MAX), 0),
        part.required("shard", _EXPECTED_SHARD, 0),
        part.required("catchain_seqno", whole(0, UINT32_MAX), 0),
        tuple(_read_validators(part, full_nodes)),
        from_ms,
        to_ms,
    )


def _read_validators(session: DocumentPart, full_nodes: Mapping[bytes, bytes]) -> list[SetMember]:
    found: dict[int, SetMember] = {}
    keys: set[bytes] = set()
    count = 0
    for part in session.parts("validators"):
        count += 1
        if count > VALIDATORS_MAX:
            session.fault("validators", f"expected at most {VALIDATORS_MAX}, found more")
            break
        public_key, identifier = _read_key(part)
        if identifier and identifier in keys:
            part.fault("public_key", "expected every key once in a session, found it again")
        if identifier and identifier in full_nodes:
            part.fault("public_key", "expected a key that is not a full node's, found one that is")
        keys.add(identifier)
        index = part.required("index", whole(0, VALIDATORS_MAX - 1), -1)
        if index in found:
            part.fault("index", f"expected every index once, found {index} again")
        if index >= 0:
            weight = part.optional("weight", whole(0, INT64_MAX), 1)
            found[index] = SetMember(index, public_key, identifier, weight)
    if session.has("validators") and not count and isinstance(session.fields["validators"], list):
        session.fault("validators", "expected at least one validator, found an empty list")
    missing = next((index for index in range(max(found, default=-1) + 1) if index not in found), None)
    if missing is not None:
        session.fault("validators", f"expected indexes from 0 without gaps, found none with {missing}")
    return [found[index] for index in sorted(found)]
