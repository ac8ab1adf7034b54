"""Local state query, program to cardano-node: acquire a ledger state, ask about it, release it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State, messages_by_state
from stagepost.ground.wire.cbor import CborReader, write_array, write_bytes, write_unsigned
from stagepost.ground.wire.codec import Codec, CodecTable, Dialect
from stagepost.ground.wire.framing import ItemLimits, RawItem
from stagepost.ground.wire.layout import Layout

STATE_QUERY_NUMBER = 7
ACQUIRE_TIMEOUT_S = 5
"""Seconds in which a cardano-node answers an acquire. Nodes set no limit themselves."""
QUERY_TIMEOUT_S = 180
"""Seconds in which a cardano-node answers a query, however large the answer is."""
QUERY_BYTES_MAX = 65_535
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one answer; the stake of 3,000 pools takes 172 kB."""
ANSWER_ITEMS_MAX = 500_000
"""CBOR items of one answer; the stake of 3,000 pools takes 15,008, the ledger peers of as many about 55,000."""
ANSWER_DEPTH_MAX = 16
"""Levels of nesting; ledger peers have ten with the message around them."""
POINT_HASH_BYTES = 32


# Messages


class ChainPoint(msgspec.Struct, frozen=True):
    """Block by slot and header hash."""

    slot: int
    block_hash: bytes


class AcquireFault(Enum):
    """Reason why a cardano-node cannot acquire a point. The value is its number on the wire."""

    POINT_TOO_OLD = 0
    POINT_NOT_ON_CHAIN = 1


class AcquirePoint(msgspec.Struct, frozen=True):
    """Request for the ledger state at `point`; None is the origin of the chain."""

    point: ChainPoint | None


class AcquireVolatileTip(msgspec.Struct, frozen=True):
    """Request for the newest ledger state, which cannot fail."""


class AcquireImmutableTip(msgspec.Struct, frozen=True):
    """Request for the newest ledger state that no fork can undo."""


class StateAcquired(msgspec.Struct, frozen=True):
    """Confirmation: queries are answered from one ledger state until the release."""


class AcquireFailure(msgspec.Struct, frozen=True):
    fault: AcquireFault


class StateQuery(msgspec.Struct, frozen=True):
    """Query, as its bytes stand on the wire."""

    query: bytes


class StateResult(msgspec.Struct, frozen=True):
    """Answer to a query, as its bytes stand on the wire: only the query tells their meaning."""

    answer: bytes


class ReleaseState(msgspec.Struct, frozen=True):
    """End of the use of a ledger state, which the cardano-node holds in memory until then."""


class ReacquirePoint(msgspec.Struct, frozen=True):
    point: ChainPoint | None


class ReacquireVolatileTip(msgspec.Struct, frozen=True):
    """Release and acquire of the newest ledger state in one message."""


class ReacquireImmutableTip(msgspec.Struct, frozen=True):
    """Release and acquire of the newest state that no fork can undo, in one message."""


class QueriesDone(msgspec.Struct, frozen=True):
    """End of the conversation."""


# Layouts


@dataclass(frozen=True, slots=True)
class _PointField:
    def read(self, reader: CborReader, what: str) -> ChainPoint | None:
        start = reader.offset
        length = reader.array_length(what)
        if length == 0:
            return None
        if length != 2:
            raise reader.invalid(f"{what} has {length} elements, expected none or 2", at=start)
        slot = reader.unsigned(64, f"{what}.slot")
        return ChainPoint(slot, reader.byte_string(POINT_HASH_BYTES, POINT_HASH_BYTES, f"{what}.hash"))

    def write(self, value: ChainPoint | None) -> bytes:
        if value is None:
            return write_array()
        return write_array(write_unsigned(value.slot), write_bytes(value.block_hash))


@dataclass(frozen=True, slots=True)
class _FaultField:
    def read(self, reader: CborReader, what: str) -> AcquireFault:
        start = reader.offset
        number = reader.unsigned(8, what)
        try:
            return AcquireFault(number)
        except ValueError:
            raise reader.invalid(f"{what} is {number}, allowed are 0 and 1", at=start) from None

    def write(self, value: AcquireFault) -> bytes:
        return write_unsigned(value.value)


_QUERY = RawItem(ItemLimits(QUERY_BYTES_MAX, any_type=True))
_ANSWER = RawItem(ItemLimits(ANSWER_BYTES_MAX, ANSWER_ITEMS_MAX, ANSWER_DEPTH_MAX, any_type=True))
DIALECT = Dialect(
    "local state query",
    (
        Layout(AcquirePoint, 0, (("point", _PointField()),)),
        Layout(StateAcquired, 1),
        Layout(AcquireFailure, 2, (("fault", _FaultField()),)),
        Layout(StateQuery, 3, (("query", _QUERY),)),
        Layout(StateResult, 4, (("answer", _ANSWER),)),
        Layout(ReleaseState, 5),
        Layout(ReacquirePoint, 6, (("point", _PointField()),)),
        Layout(QueriesDone, 7),
        Layout(AcquireVolatileTip, 8),
        Layout(ReacquireVolatileTip, 9),
        Layout(AcquireImmutableTip, 10),
        Layout(ReacquireImmutableTip, 11),
    ),
)

# States

IDLE = State("Idle", Role.CLIENT)
ACQUIRING = State("Acquiring", Role.SERVER, timeout_s=ACQUIRE_TIMEOUT_S)
ACQUIRED = State("Acquired", Role.CLIENT, any_type=True)
QUERYING = State(
    "Querying",
    Role.SERVER,
    timeout_s=QUERY_TIMEOUT_S,
    message_bytes_max=ANSWER_BYTES_MAX,
    items_max=ANSWER_ITEMS_MAX,
    depth_max=ANSWER_DEPTH_MAX,
    any_type=True,
)
DONE = State("Done", speaker=None)

# Spec

LOCAL_STATE_QUERY = ProtocolSpec(
    name="LocalStateQuery",
    initial=IDLE,
    edges=(
        Edge(IDLE, AcquirePoint, ACQUIRING),
        Edge(IDLE, AcquireVolatileTip, ACQUIRING),
        Edge(IDLE, AcquireImmutableTip, ACQUIRING),
        Edge(IDLE, QueriesDone, DONE),
        Edge(ACQUIRING, StateAcquired, ACQUIRED),
        Edge(ACQUIRING, AcquireFailure, IDLE),
        Edge(ACQUIRED, StateQuery, QUERYING),
        Edge(QUERYING, StateResult, ACQUIRED),
        Edge(ACQUIRED, ReacquirePoint, ACQUIRING),
        Edge(ACQUIRED, ReacquireVolatileTip, ACQUIRING),
        Edge(ACQUIRED, ReacquireImmutableTip, ACQUIRING),
        Edge(ACQUIRED, ReleaseState, IDLE),
    ),
)
_TABLE = CodecTable(LOCAL_STATE_QUERY.name, messages_by_state(LOCAL_STATE_QUERY), [DIALECT])


def state_query_codec() -> Codec:
    """Return the codec of one instance."""
    return Codec(_TABLE, DIALECT.name)
