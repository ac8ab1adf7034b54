"""Cases of the handshake, by nodes and by programs."""

from __future__ import annotations

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    LOCAL_VERSION,
    OTHER_SIDE,
    SUBMISSION,
    local_data,
    node_data,
    proposal,
    segment,
    segments,
)
from stagepost.dmq.conform.cbor_bytes import BREAK, NULL, array, head, octets, text, uint
from stagepost.dmq.conform.playbook import (
    Act,
    Case,
    CaseStage,
    MustClose,
    MustRefuse,
    Start,
    do,
    nothing,
    says,
    sends,
)
from stagepost.dmq.conform.rows_mux import CONNECTION, HANDSHAKE_LIMIT_S

PLACE = "handshake"
_INVALID = MustClose("CBOR_INVALID", PLACE)
_LIMIT = MustClose("CBOR_LIMIT", PLACE)
_STATE = MustClose("PROTOCOL_STATE", PLACE)
_TIMEOUT = MustClose("PROTOCOL_TIMEOUT", PLACE)
_UNKNOWN = MustClose("MUX_UNKNOWN_PROTOCOL", CONNECTION)

VERSION_MISMATCH, DECODE_ERROR, REFUSED = 0, 1, 2
_NO_VERSION = MustRefuse(VERSION_MISMATCH, "HANDSHAKE_NO_VERSION", ("1", "2"))


def _proposes(*versions: tuple[int, bytes]) -> Act:
    return says(HANDSHAKE, proposal(*versions))


def _with_magic(*numbers: int, offset: int = 0) -> Act:
    """Data that are right but for the magic, which is `offset` away from the node's."""

    async def act(stage: CaseStage) -> None:
        data = node_data(stage.attacker.target.magic + offset, initiator_only=True)
        await stage.attacker.say(HANDSHAKE, proposal(*((number, data) for number in numbers)))

    return act


async def _wrong_local_magic(stage: CaseStage) -> None:
    await stage.attacker.say(
        HANDSHAKE, proposal((LOCAL_VERSION, local_data(stage.attacker.target.magic + 1)))
    )


async def _indefinite_map(stage: CaseStage) -> None:
    data = node_data(stage.attacker.target.magic, initiator_only=True)
    await stage.attacker.say(HANDSHAKE, array(uint(0), b"\xbf" + uint(1) + data + BREAK))


async def _trailing(stage: CaseStage) -> None:
    data = node_data(stage.attacker.target.magic, initiator_only=True)
    await stage.attacker.say(HANDSHAKE, proposal((1, data)) + b"\x00\x00")


async def _half_then_silence(stage: CaseStage) -> None:
    data = node_data(stage.attacker.target.magic, initiator_only=True)
    await stage.attacker.say(HANDSHAKE, proposal((1, data))[:-2])


async def _drip(stage: CaseStage) -> None:
    """Each byte a whole segment, so that only the handshake's own limit is left."""
    data = node_data(stage.attacker.target.magic, initiator_only=True)
    for byte in proposal((1, data), (2, data)):
        await stage.attacker.drip(segment(HANDSHAKE, bytes([byte])), every_s=0.25)


_ANY = node_data(5, initiator_only=True)
_LONG = proposal((500, array(*[octets(bytes(100))] * 90)))
_MANY = proposal(*((number, b"\x00") for number in range(20_000, 20_300)))

# fmt: off
HANDSHAKES = (
    Case("handshake: no common version", "handshake.no-version", Start.NODE_BARE, _proposes((500, _ANY), (501, _ANY)), _NO_VERSION),
    Case("handshake: no version at all", "handshake.no-version", Start.NODE_BARE, _proposes(), _NO_VERSION),
    Case("handshake: a program's version between nodes", "handshake.no-version", Start.NODE_BARE, _proposes((LOCAL_VERSION, local_data(5))), _NO_VERSION),
    Case("handshake: a node's version from a program", "handshake.no-version", Start.LOCAL_BARE, _proposes((1, _ANY), (2, _ANY)), MustRefuse(VERSION_MISMATCH, "HANDSHAKE_NO_VERSION", ("4097",))),
    Case("handshake: wrong network", "handshake.network", Start.NODE_BARE, _with_magic(1, 2, offset=1), MustRefuse(REFUSED, "HANDSHAKE_WRONG_NETWORK", ("2147483690", "2147483691"))),
    Case("handshake: wrong network, from a program", "handshake.network", Start.LOCAL_BARE, _wrong_local_magic, MustRefuse(REFUSED, "HANDSHAKE_WRONG_NETWORK", ("2147483690", "2147483691"))),
    Case("handshake: versions out of order", "handshake.order", Start.NODE_BARE, _with_magic(2, 1), _INVALID),
    Case("handshake: one version twice", "handshake.order", Start.NODE_BARE, _with_magic(1, 1), _INVALID),
    Case("handshake: map of indefinite length", "handshake.order", Start.NODE_BARE, _indefinite_map, _INVALID),
    Case("handshake: a list instead of a map", "handshake.order", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), array(uint(1), _ANY))), _INVALID),
    Case("handshake: version number as text", "handshake.order", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1) + text("1") + _ANY)), _INVALID),
    Case("handshake: data of three elements", "handshake.data", Start.NODE_BARE, _proposes((1, array(uint(5), b"\xf5", uint(0)))), MustRefuse(DECODE_ERROR, "CBOR_INVALID")),
    Case("handshake: data that is null", "handshake.data", Start.NODE_BARE, _proposes((2, NULL)), MustRefuse(DECODE_ERROR, "CBOR_INVALID")),
    Case("handshake: peer sharing of 2", "handshake.data", Start.NODE_BARE, _proposes((1, array(uint(5), b"\xf5", uint(2), b"\xf4"))), MustRefuse(DECODE_ERROR, "CBOR_INVALID")),
    Case("handshake: magic of 33 bits", "handshake.data", Start.NODE_BARE, _proposes((1, array(uint(1 << 32), b"\xf5", uint(0), b"\xf4"))), MustRefuse(DECODE_ERROR, "CBOR_INVALID")),
    Case("handshake: data of a program in one element", "handshake.data", Start.LOCAL_BARE, _proposes((LOCAL_VERSION, array(uint(5)))), MustRefuse(DECODE_ERROR, "CBOR_INVALID")),
    Case("handshake: 300 versions", "handshake.strict", Start.NODE_BARE, says(HANDSHAKE, _MANY), _LIMIT),
    Case("handshake: more than may wait", "handshake.size", Start.NODE_BARE, sends(segments(HANDSHAKE, _LONG, 3_000)), MustClose("MUX_INGRESS_OVERFLOW", CONNECTION)),
    Case("handshake: data longer than a handshake may be", "handshake.strict", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1) + uint(500) + head(2, 6_000))), _LIMIT),
    Case("handshake: a map of 2^32 versions", "handshake.strict", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1 << 32))), _LIMIT),
    Case("handshake: unknown version with data too deep", "handshake.strict", Start.NODE_BARE, _proposes((500, b"\x81" * 40 + b"\x00")), _LIMIT),
    Case("handshake: an answer instead of a proposal", "handshake.state", Start.NODE_BARE, says(HANDSHAKE, array(uint(1), uint(2), _ANY)), _STATE),
    Case("handshake: a refusal instead of a proposal", "handshake.state", Start.NODE_BARE, says(HANDSHAKE, array(uint(2), array(uint(0), array()))), _STATE),
    Case("handshake: unknown message", "handshake.state", Start.NODE_BARE, says(HANDSHAKE, array(uint(9))), _INVALID),
    Case("handshake: bytes behind the proposal", "handshake.strict", Start.NODE_BARE, _trailing, _INVALID),
    Case("handshake: second proposal", "handshake.state", Start.NODE_V2, _proposes((2, _ANY)), _UNKNOWN),
    Case("handshake: second proposal from a program", "handshake.state", Start.LOCAL, _proposes((LOCAL_VERSION, local_data(5))), _UNKNOWN),
    Case("handshake: spoken as the other side", "handshake.state", Start.NODE_BARE, says(HANDSHAKE | OTHER_SIDE, proposal((2, _ANY))), _UNKNOWN),
    Case("handshake: submission in the same write, not agreed", "handshake.no-version", Start.NODE_BARE, do(sends(segment(HANDSHAKE, proposal((500, _ANY))) + segment(SUBMISSION, b"\x84\x01\xf5\x00\x01"))), _UNKNOWN),
    Case("handshake: silence", "handshake.time", Start.NODE_BARE, nothing, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Case("handshake: silence of a program", "handshake.time-local", Start.LOCAL_BARE, nothing, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Case("handshake: half a proposal, then silence", "handshake.time", Start.NODE_BARE, _half_then_silence, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Case("handshake: half a proposal of a program, then silence", "handshake.time-local", Start.LOCAL_BARE, _half_then_silence, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Case("handshake: a byte now and then", "handshake.time", Start.NODE_BARE, _drip, _TIMEOUT, HANDSHAKE_LIMIT_S),
)
# fmt: on
