"""Misbehaviours of the multiplexer: segments that are too long, too short, never finished or for nobody."""

from __future__ import annotations

from tests.hostile.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    OTHER_SIDE,
    PEER_SHARING,
    SUBMISSION,
    segment,
    segments,
)
from tests.hostile.cbor_bytes import array, uint
from tests.hostile.playbook import (
    PULL_V2,
    Close,
    Ignore,
    Leave,
    Misbehaviour,
    Scene,
    Start,
    do,
    ends,
    hears,
    nothing,
    says,
    sends,
)

CONNECTION = "connection"
SEGMENT_LIMIT_S = 30.0
HANDSHAKE_LIMIT_S = 10.0
START_LIMIT_S = 30.0
INGRESS_HANDSHAKE, INGRESS_KEEP_ALIVE, INGRESS_LOCAL = 5_760, 1_408, 1_048_576

_UNKNOWN = Close("MUX_UNKNOWN_PROTOCOL", CONNECTION)
_EMPTY = Close("PROTOCOL_SIZE", CONNECTION)
_TOO_LARGE = Close("MUX_TOO_LARGE", CONNECTION)
_OVERFLOW = Close("MUX_INGRESS_OVERFLOW", CONNECTION)
_TIMEOUT = Close("MUX_TIMEOUT", CONNECTION)
_PING = array(uint(0), uint(7))
_TWO_BURSTS = segment(KEEP_ALIVE, _PING * 250) * 2  # read at once also into the smallest buffer


async def _drips_a_segment(scene: Scene) -> None:
    """One byte a second, of a segment that would take minutes."""
    await scene.attacker.drip(segment(SUBMISSION, PULL_V2.ask_ids(True, 0, 1) * 40))


# fmt: off
MUX = (
    Misbehaviour("mux: empty segment", Start.NODE_V2, sends(segment(SUBMISSION, b"")), _EMPTY),
    Misbehaviour("mux: empty segment before the handshake", Start.NODE_BARE, sends(segment(HANDSHAKE, b"")), _EMPTY),
    Misbehaviour("mux: empty segment from a program", Start.LOCAL, sends(segment(LOCAL_SUBMISSION, b"")), _EMPTY),
    Misbehaviour("mux: unknown protocol", Start.NODE_V2, says(999, b"\x80"), _UNKNOWN),
    Misbehaviour("mux: unknown protocol before the handshake", Start.NODE_BARE, says(999, b"\x80"), _UNKNOWN),
    Misbehaviour("mux: unknown protocol, header alone", Start.NODE_V2, sends(segment(999, b"", announced=65_535)), _UNKNOWN),
    Misbehaviour("mux: highest protocol number", Start.NODE_V2, says(0x7FFF, b"\x80"), _UNKNOWN),
    Misbehaviour("mux: a program's protocol between nodes", Start.NODE_V2, says(LOCAL_SUBMISSION, b"\x81\x03"), _UNKNOWN),
    Misbehaviour("mux: a node's protocol from a program", Start.LOCAL, says(SUBMISSION, PULL_V2.ask_ids(True, 0, 1)), _UNKNOWN),
    Misbehaviour("mux: direction that nobody runs", Start.NODE_V2, says(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint(7))), _UNKNOWN),
    Misbehaviour("mux: direction that nobody runs, from a program", Start.LOCAL, says(LOCAL_SUBMISSION | OTHER_SIDE, b"\x81\x01"), _UNKNOWN),
    Misbehaviour("mux: peer sharing that was not agreed", Start.NODE_V2, says(PEER_SHARING, array(uint(0), uint(5))), _UNKNOWN),
    Misbehaviour("mux: data of a protocol before the handshake", Start.NODE_BARE, says(SUBMISSION, PULL_V2.ask_ids(True, 0, 1)), _UNKNOWN),
    Misbehaviour("mux: segment above the handshake's limit", Start.NODE_BARE, sends(segment(HANDSHAKE, b"", announced=INGRESS_HANDSHAKE + 1)), _TOO_LARGE),
    Misbehaviour("mux: segment above keep-alive's limit", Start.NODE_V2, sends(segment(KEEP_ALIVE, b"", announced=INGRESS_KEEP_ALIVE + 1)), _TOO_LARGE),
    Misbehaviour("mux: whole segment above keep-alive's limit", Start.NODE_V2, sends(segment(KEEP_ALIVE, _PING * 4_000)), _TOO_LARGE),
    Misbehaviour("mux: more than may wait on keep-alive", Start.NODE_V2, sends(_TWO_BURSTS), _OVERFLOW),
    Misbehaviour("mux: garbage instead of a header", Start.NODE_BARE, sends(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"), _UNKNOWN),
    Misbehaviour("mux: garbage from a program", Start.LOCAL_BARE, sends(b"\xff" * 64), _UNKNOWN),
    Misbehaviour("mux: the stream ends inside a segment", Start.NODE_V2, do(sends(segment(SUBMISSION, b"\x84", announced=50)), ends), Leave()),
    Misbehaviour("mux: the stream ends inside a header", Start.NODE_V2, do(sends(b"\x00\x00\x00"), ends), Leave()),
    Misbehaviour("mux: one byte per segment is allowed", Start.NODE_V2, do(sends(segments(KEEP_ALIVE, _PING, 1)), hears(KEEP_ALIVE | OTHER_SIDE)), Ignore()),
    Misbehaviour("mux: segment never finished", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), sends(segment(SUBMISSION, b"\x84", announced=50))), _TIMEOUT, SEGMENT_LIMIT_S),
    Misbehaviour("mux: header never finished", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), sends(b"\x00\x00\x00")), _TIMEOUT, SEGMENT_LIMIT_S),
    Misbehaviour("mux: segment never finished, from a program", Start.LOCAL, sends(segment(LOCAL_SUBMISSION, b"\x82", announced=5_000)), _TIMEOUT, SEGMENT_LIMIT_S),
    Misbehaviour("mux: one byte a second", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), _drips_a_segment), _TIMEOUT, SEGMENT_LIMIT_S),
    Misbehaviour("mux: nothing begun after the handshake", Start.NODE_V2, nothing, Close("PROTOCOL_TIMEOUT", CONNECTION), START_LIMIT_S),
)
# fmt: on
