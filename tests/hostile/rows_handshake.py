"""Misbehaviours in the handshake, by nodes and by programs."""

from __future__ import annotations

from tests.hostile.attacker import (
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
from tests.hostile.cbor_bytes import BREAK, NULL, array, head, octets, text, uint
from tests.hostile.playbook import Act, Close, Misbehaviour, Refuse, Scene, Start, do, nothing, says, sends
from tests.hostile.rows_mux import CONNECTION, HANDSHAKE_LIMIT_S

PLACE = "handshake"
_INVALID = Close("CBOR_INVALID", PLACE)
_LIMIT = Close("CBOR_LIMIT", PLACE)
_STATE = Close("PROTOCOL_STATE", PLACE)
_TIMEOUT = Close("PROTOCOL_TIMEOUT", PLACE)
_UNKNOWN = Close("MUX_UNKNOWN_PROTOCOL", CONNECTION)

VERSION_MISMATCH, DECODE_ERROR, REFUSED = 0, 1, 2
_NO_VERSION = Refuse(VERSION_MISMATCH, "HANDSHAKE_NO_VERSION", ("1", "2"))


def _proposes(*versions: tuple[int, bytes]) -> Act:
    return says(HANDSHAKE, proposal(*versions))


def _with_magic(*numbers: int, offset: int = 0) -> Act:
    """Data that are right but for the magic, which is `offset` away from the node's."""

    async def act(scene: Scene) -> None:
        data = node_data(scene.attacker.target.magic + offset, initiator_only=True)
        await scene.attacker.say(HANDSHAKE, proposal(*((number, data) for number in numbers)))

    return act


async def _wrong_local_magic(scene: Scene) -> None:
    await scene.attacker.say(
        HANDSHAKE, proposal((LOCAL_VERSION, local_data(scene.attacker.target.magic + 1)))
    )


async def _indefinite_map(scene: Scene) -> None:
    data = node_data(scene.attacker.target.magic, initiator_only=True)
    await scene.attacker.say(HANDSHAKE, array(uint(0), b"\xbf" + uint(1) + data + BREAK))


async def _trailing(scene: Scene) -> None:
    data = node_data(scene.attacker.target.magic, initiator_only=True)
    await scene.attacker.say(HANDSHAKE, proposal((1, data)) + b"\x00\x00")


async def _half_then_silence(scene: Scene) -> None:
    data = node_data(scene.attacker.target.magic, initiator_only=True)
    await scene.attacker.say(HANDSHAKE, proposal((1, data))[:-2])


async def _drip(scene: Scene) -> None:
    """Each byte a whole segment, so that only the handshake's own limit is left."""
    data = node_data(scene.attacker.target.magic, initiator_only=True)
    for byte in proposal((1, data), (2, data)):
        await scene.attacker.drip(segment(HANDSHAKE, bytes([byte])), every_s=0.25)


_ANY = node_data(5, initiator_only=True)
_LONG = proposal((500, array(*[octets(bytes(100))] * 90)))
_MANY = proposal(*((number, b"\x00") for number in range(20_000, 20_300)))

# fmt: off
HANDSHAKES = (
    Misbehaviour("handshake: no common version", Start.NODE_BARE, _proposes((500, _ANY), (501, _ANY)), _NO_VERSION),
    Misbehaviour("handshake: no version at all", Start.NODE_BARE, _proposes(), _NO_VERSION),
    Misbehaviour("handshake: a program's version between nodes", Start.NODE_BARE, _proposes((LOCAL_VERSION, local_data(5))), _NO_VERSION),
    Misbehaviour("handshake: a node's version from a program", Start.LOCAL_BARE, _proposes((1, _ANY), (2, _ANY)), Refuse(VERSION_MISMATCH, "HANDSHAKE_NO_VERSION", ("4097",))),
    Misbehaviour("handshake: wrong network", Start.NODE_BARE, _with_magic(1, 2, offset=1), Refuse(REFUSED, "HANDSHAKE_WRONG_NETWORK", ("2147483690", "2147483691"))),
    Misbehaviour("handshake: wrong network, from a program", Start.LOCAL_BARE, _wrong_local_magic, Refuse(REFUSED, "HANDSHAKE_WRONG_NETWORK", ("2147483690", "2147483691"))),
    Misbehaviour("handshake: versions out of order", Start.NODE_BARE, _with_magic(2, 1), _INVALID),
    Misbehaviour("handshake: one version twice", Start.NODE_BARE, _with_magic(1, 1), _INVALID),
    Misbehaviour("handshake: map of indefinite length", Start.NODE_BARE, _indefinite_map, _INVALID),
    Misbehaviour("handshake: a list instead of a map", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), array(uint(1), _ANY))), _INVALID),
    Misbehaviour("handshake: version number as text", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1) + text("1") + _ANY)), _INVALID),
    Misbehaviour("handshake: data of three elements", Start.NODE_BARE, _proposes((1, array(uint(5), b"\xf5", uint(0)))), Refuse(DECODE_ERROR, "CBOR_INVALID")),
    Misbehaviour("handshake: data that is null", Start.NODE_BARE, _proposes((2, NULL)), Refuse(DECODE_ERROR, "CBOR_INVALID")),
    Misbehaviour("handshake: peer sharing of 2", Start.NODE_BARE, _proposes((1, array(uint(5), b"\xf5", uint(2), b"\xf4"))), Refuse(DECODE_ERROR, "CBOR_INVALID")),
    Misbehaviour("handshake: magic of 33 bits", Start.NODE_BARE, _proposes((1, array(uint(1 << 32), b"\xf5", uint(0), b"\xf4"))), Refuse(DECODE_ERROR, "CBOR_INVALID")),
    Misbehaviour("handshake: data of a program in one element", Start.LOCAL_BARE, _proposes((LOCAL_VERSION, array(uint(5)))), Refuse(DECODE_ERROR, "CBOR_INVALID")),
    Misbehaviour("handshake: 300 versions", Start.NODE_BARE, says(HANDSHAKE, _MANY), _LIMIT),
    Misbehaviour("handshake: more than may wait", Start.NODE_BARE, sends(segments(HANDSHAKE, _LONG, 3_000)), Close("MUX_INGRESS_OVERFLOW", CONNECTION)),
    Misbehaviour("handshake: data longer than a handshake may be", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1) + uint(500) + head(2, 6_000))), _LIMIT),
    Misbehaviour("handshake: a map of 2^32 versions", Start.NODE_BARE, says(HANDSHAKE, array(uint(0), head(5, 1 << 32))), _LIMIT),
    Misbehaviour("handshake: unknown version with data too deep", Start.NODE_BARE, _proposes((500, b"\x81" * 40 + b"\x00")), _LIMIT),
    Misbehaviour("handshake: an answer instead of a proposal", Start.NODE_BARE, says(HANDSHAKE, array(uint(1), uint(2), _ANY)), _STATE),
    Misbehaviour("handshake: a refusal instead of a proposal", Start.NODE_BARE, says(HANDSHAKE, array(uint(2), array(uint(0), array()))), _STATE),
    Misbehaviour("handshake: unknown message", Start.NODE_BARE, says(HANDSHAKE, array(uint(9))), _INVALID),
    Misbehaviour("handshake: bytes behind the proposal", Start.NODE_BARE, _trailing, _INVALID),
    Misbehaviour("handshake: second proposal", Start.NODE_V2, _proposes((2, _ANY)), _UNKNOWN),
    Misbehaviour("handshake: second proposal from a program", Start.LOCAL, _proposes((LOCAL_VERSION, local_data(5))), _UNKNOWN),
    Misbehaviour("handshake: spoken as the other side", Start.NODE_BARE, says(HANDSHAKE | OTHER_SIDE, proposal((2, _ANY))), _UNKNOWN),
    Misbehaviour("handshake: submission in the same write, not agreed", Start.NODE_BARE, do(sends(segment(HANDSHAKE, proposal((500, _ANY))) + segment(SUBMISSION, b"\x84\x01\xf5\x00\x01"))), _UNKNOWN),
    Misbehaviour("handshake: silence", Start.NODE_BARE, nothing, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Misbehaviour("handshake: silence of a program", Start.LOCAL_BARE, nothing, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Misbehaviour("handshake: half a proposal, then silence", Start.NODE_BARE, _half_then_silence, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Misbehaviour("handshake: half a proposal of a program, then silence", Start.LOCAL_BARE, _half_then_silence, _TIMEOUT, HANDSHAKE_LIMIT_S),
    Misbehaviour("handshake: a byte now and then", Start.NODE_BARE, _drip, _TIMEOUT, HANDSHAKE_LIMIT_S),
)
# fmt: on
