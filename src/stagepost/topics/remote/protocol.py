"""Topic reading, a mini-protocol of our own: a reader asks for the bounds of a node's topics and for ranges
of them.

A range of offsets gives the same records every time, so a reader that was cut off goes on where it was.
Replies are bounded: the reader asks again, from the offset after the last record, for the records that did
not fit.

The reader proves that it knows the token on a number that the server has just made up; the token itself never
travels. The records are not hidden from anybody on the wire.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

import msgspec

from stagepost.errors import ErrorCode
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State, messages_by_state
from stagepost.ground.wire.codec import CodecTable, Dialect
from stagepost.ground.wire.layout import (
    ArrayLayout,
    Boolean,
    ByteString,
    Layout,
    ListForm,
    ListOf,
    Text,
    Unsigned,
)
from stagepost.ground.wire.mux import SEGMENT_PAYLOAD_BYTES_MAX
from stagepost.topics.log.block import HEADERS_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from stagepost.topics.topic import NAME_CHARACTERS_MAX

TOKEN_VARIABLE = "STAGEPOST_TOKEN"


PROTOCOL_NUMBER = 0x410
VERSION = 1

NONCE_BYTES = 32
PROOF_BYTES = 32
SMALL_MESSAGE_BYTES_MAX = 2_048
RECORDS_MAX = 2_000
"""Records in one reply."""
CONTENT_BYTES_MAX = 256 * 1_024
"""Bytes of the keys, values and headers of one reply; a reply with only one record may have more."""
REPLY_BYTES_MAX = 512 * 1_024
BOUNDS_MAX = 2_048
ITEMS_MAX = 16_384
INGRESS_BYTES_MAX = REPLY_BYTES_MAX + SEGMENT_PAYLOAD_BYTES_MAX
TEXT_BYTES_MAX = 512
ANSWER_WITHIN_S = 30.0
IDLE_MAX_S = 300.0
"""Seconds that a reader may take between two questions: its own work comes in between."""

_DOMAIN = b"stagepost topic reading 1\0"


# Messages


class Open(msgspec.Struct, frozen=True):
    version: int


class Challenge(msgspec.Struct, frozen=True):
    """Challenge of the server. `needs_token` False means that any proof is accepted."""

    nonce: bytes
    needs_token: bool


class ProveKey(msgspec.Struct, frozen=True):
    proof: bytes


class Opened(msgspec.Struct, frozen=True):
    """Notice that the proof is accepted."""


class Refuse(msgspec.Struct, frozen=True):
    """Refusal. `code` is one of the family that all errors share, `text` is for people."""

    code: str
    text: str


class AskBounds(msgspec.Struct, frozen=True):
    """Request for the bounds of every topic."""


class PartitionBounds(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    start: int
    end: int


class Bounds(msgspec.Struct, frozen=True):
    partitions: tuple[PartitionBounds, ...]


class AskRange(msgspec.Struct, frozen=True):
    """Request for the records from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class SentRecord(msgspec.Struct, frozen=True):
    """Record in a reply. `key` and `value` are lists of one, or empty where there is none."""

    timestamp_ms: int
    key: tuple[bytes, ...]
    value: tuple[bytes, ...]
    headers: bytes


class Records(msgspec.Struct, frozen=True):
    """Records at the beginning of the range; at least one."""

    records: tuple[SentRecord, ...]


class Unavailable(msgspec.Struct, frozen=True):
    """Notice that the range, or the topic, is not there in full. The conversation goes on."""

    code: str
    text: str
    advice: str


class Done(msgspec.Struct, frozen=True):
    """End of the reader's questions."""


# Layouts

_NAME = Text(NAME_CHARACTERS_MAX)
_PARTITION = Unsigned(16)
_OFFSET = Unsigned(63)
_CODE = Text(64)
_TEXT = Text(TEXT_BYTES_MAX)


def _optional(bytes_max: int) -> ListOf:
    return ListOf(ByteString(0, bytes_max), ListForm.DEFINITE, count_max=1)


_SENT_RECORD = ArrayLayout(
    SentRecord,
    (
        ("timestamp_ms", Unsigned(63)),
        ("key", _optional(KEY_BYTES_MAX)),
        ("value", _optional(VALUE_BYTES_MAX)),
        ("headers", ByteString(0, HEADERS_BYTES_MAX)),
    ),
)
_BOUND = ArrayLayout(
    PartitionBounds, (("topic", _NAME), ("partition", _PARTITION), ("start", _OFFSET), ("end", _OFFSET))
)
DIALECT = Dialect(
    "topic reading",
    (
        Layout(Open, 0, (("version", Unsigned(16)),)),
        Layout(Challenge, 1, (("nonce", ByteString(NONCE_BYTES, NONCE_BYTES)), ("needs_token", Boolean()))),
        Layout(ProveKey, 2, (("proof", ByteString(PROOF_BYTES, PROOF_BYTES)),)),
        Layout(Opened, 3),
        Layout(Refuse, 4, (("code", _CODE), ("text", _TEXT))),
        Layout(AskBounds, 5),
        Layout(Bounds, 6, (("partitions", ListOf(_BOUND, ListForm.DEFINITE, BOUNDS_MAX)),)),
        Layout(
            AskRange,
            7,
            (("topic", _NAME), ("partition", _PARTITION), ("start", _OFFSET), ("end", _OFFSET)),
        ),
        Layout(Records, 8, (("records", ListOf(_SENT_RECORD, ListForm.DEFINITE, RECORDS_MAX, count_min=1)),)),
        Layout(Unavailable, 9, (("code", _CODE), ("text", _TEXT), ("advice", _TEXT))),
        Layout(Done, 10),
    ),
)

# States


def _state(name: str, speaker: Role, timeout_s: float, bytes_max: int = SMALL_MESSAGE_BYTES_MAX) -> State:
    return State(name, speaker, timeout_s=timeout_s, message_bytes_max=bytes_max, items_max=ITEMS_MAX)


OPENING = _state("Opening", Role.CLIENT, ANSWER_WITHIN_S)
CHALLENGING = _state("Challenging", Role.SERVER, ANSWER_WITHIN_S)
PROVING = _state("Proving", Role.CLIENT, ANSWER_WITHIN_S)
JUDGING = _state("Judging", Role.SERVER, ANSWER_WITHIN_S)
IDLE = _state("Idle", Role.CLIENT, IDLE_MAX_S)
LISTING = _state("Listing", Role.SERVER, ANSWER_WITHIN_S, REPLY_BYTES_MAX)
READING = _state("Reading", Role.SERVER, ANSWER_WITHIN_S, REPLY_BYTES_MAX)
OVER = State("Done", speaker=None)

# Spec

TOPIC_READING = ProtocolSpec(
    name="TopicReading",
    initial=OPENING,
    edges=(
        Edge(OPENING, Open, CHALLENGING),
        Edge(CHALLENGING, Challenge, PROVING),
        Edge(CHALLENGING, Refuse, OVER),
        Edge(PROVING, ProveKey, JUDGING),
        Edge(JUDGING, Opened, IDLE),
        Edge(JUDGING, Refuse, OVER),
        Edge(IDLE, AskBounds, LISTING),
        Edge(LISTING, Bounds, IDLE),
        Edge(LISTING, Unavailable, IDLE),
        Edge(IDLE, AskRange, READING),
        Edge(READING, Records, IDLE),
        Edge(READING, Unavailable, IDLE),
        Edge(IDLE, Done, OVER),
    ),
)


def codec_table() -> CodecTable:
    return CodecTable(TOPIC_READING.name, messages_by_state(TOPIC_READING), [DIALECT])


def proof_of(token: str, nonce: bytes) -> bytes:
    return hmac.new(token.encode(), _DOMAIN + nonce, sha256).digest()


def is_proof(proof: bytes, token: str, nonce: bytes) -> bool:
    return hmac.compare_digest(proof, proof_of(token, nonce))


def code_named(text: str) -> ErrorCode:
    return ErrorCode(text) if text in ErrorCode.__members__ else ErrorCode.STORAGE_UNAVAILABLE
