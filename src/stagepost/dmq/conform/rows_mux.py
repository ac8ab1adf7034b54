"""Cases of the multiplexer: segments that are too long, too short, never finished or for nobody."""

from __future__ import annotations

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    OTHER_SIDE,
    PEER_SHARING,
    SUBMISSION,
    RawSegment,
    cut,
)
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.playbook import (
    PULL_V2,
    Case,
    CaseStage,
    MustClose,
    MustEnd,
    MustGoOn,
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

_UNKNOWN = MustClose("MUX_UNKNOWN_PROTOCOL", CONNECTION)
_EMPTY = MustClose("PROTOCOL_SIZE", CONNECTION)
_TOO_LARGE = MustClose("MUX_TOO_LARGE", CONNECTION)
_OVERFLOW = MustClose("MUX_INGRESS_OVERFLOW", CONNECTION)
_TIMEOUT = MustClose("MUX_TIMEOUT", CONNECTION)
_PING = array(uint(0), uint(7))
_TWO_BURSTS = (RawSegment(KEEP_ALIVE, _PING * 250),) * 2  # read at once also into the smallest buffer


async def _drips_a_segment(stage: CaseStage) -> None:
    """Send one byte a second of a segment that would take minutes."""
    await stage.attacker.drip(
        RawSegment(SUBMISSION, PULL_V2.ask_ids(True, 0, 1) * 40).bytes_for(stage.attacker.target)
    )


# fmt: off
MUX = (
    Case("mux: empty segment", "mux.empty", Start.NODE_V2, sends(RawSegment(SUBMISSION, b"")), _EMPTY),
    Case("mux: empty segment before the handshake", "mux.empty", Start.NODE_BARE, sends(RawSegment(HANDSHAKE, b"")), _EMPTY),
    Case("mux: empty segment from a program", "mux.empty", Start.LOCAL, sends(RawSegment(LOCAL_SUBMISSION, b"")), _EMPTY),
    Case("mux: unknown protocol", "mux.unknown", Start.NODE_V2, says(999, b"\x80"), _UNKNOWN),
    Case("mux: unknown protocol before the handshake", "mux.unknown", Start.NODE_BARE, says(999, b"\x80"), _UNKNOWN),
    Case("mux: unknown protocol, header alone", "mux.unknown", Start.NODE_V2, sends(RawSegment(999, b"", announced=65_535)), _UNKNOWN),
    Case("mux: highest protocol number", "mux.unknown", Start.NODE_V2, says(0x7FFF, b"\x80"), _UNKNOWN),
    Case("mux: a program's protocol between nodes", "mux.unknown", Start.NODE_V2, says(LOCAL_SUBMISSION, b"\x81\x03"), _UNKNOWN),
    Case("mux: a node's protocol from a program", "mux.unknown", Start.LOCAL, says(SUBMISSION, PULL_V2.ask_ids(True, 0, 1)), _UNKNOWN),
    Case("mux: direction that nobody runs", "mux.unknown", Start.NODE_V2, says(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint(7))), _UNKNOWN),
    Case("mux: direction that nobody runs, from a program", "mux.unknown", Start.LOCAL, says(LOCAL_SUBMISSION | OTHER_SIDE, b"\x81\x01"), _UNKNOWN),
    Case("mux: peer sharing that was not agreed", "mux.unknown", Start.NODE_V2, says(PEER_SHARING, array(uint(0), uint(5))), _UNKNOWN),
    Case("mux: data of a protocol before the handshake", "mux.unknown", Start.NODE_BARE, says(SUBMISSION, PULL_V2.ask_ids(True, 0, 1)), _UNKNOWN),
    Case("mux: segment above the handshake's limit", "mux.ingress-early", Start.NODE_BARE, sends(RawSegment(HANDSHAKE, b"", announced=INGRESS_HANDSHAKE + 1)), _TOO_LARGE),
    Case("mux: segment above keep-alive's limit", "mux.ingress-early", Start.NODE_V2, sends(RawSegment(KEEP_ALIVE, b"", announced=INGRESS_KEEP_ALIVE + 1)), _TOO_LARGE),
    Case("mux: whole segment above keep-alive's limit", "mux.ingress", Start.NODE_V2, sends(RawSegment(KEEP_ALIVE, _PING * 4_000)), _TOO_LARGE),
    Case("mux: more than may wait on keep-alive", "mux.ingress-early", Start.NODE_V2, sends(*_TWO_BURSTS), _OVERFLOW),
    Case("mux: garbage instead of a header", "mux.unknown", Start.NODE_BARE, sends(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"), _UNKNOWN),
    Case("mux: garbage from a program", "mux.unknown", Start.LOCAL_BARE, sends(b"\xff" * 64), _UNKNOWN),
    Case("mux: the stream ends inside a segment", "mux.end", Start.NODE_V2, do(sends(RawSegment(SUBMISSION, b"\x84", announced=50)), ends), MustEnd()),
    Case("mux: the stream ends inside a header", "mux.end", Start.NODE_V2, do(sends(b"\x00\x00\x00"), ends), MustEnd()),
    Case("mux: one byte per segment is allowed", "mux.borders", Start.NODE_V2, do(sends(*cut(KEEP_ALIVE, _PING, 1)), hears(KEEP_ALIVE | OTHER_SIDE)), MustGoOn()),
    Case("mux: segment never finished", "mux.segment-time", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), sends(RawSegment(SUBMISSION, b"\x84", announced=50))), _TIMEOUT, SEGMENT_LIMIT_S),
    Case("mux: header never finished", "mux.segment-time", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), sends(b"\x00\x00\x00")), _TIMEOUT, SEGMENT_LIMIT_S),
    Case("mux: segment never finished, from a program", "mux.segment-time", Start.LOCAL, sends(RawSegment(LOCAL_SUBMISSION, b"\x82", announced=5_000)), _TIMEOUT, SEGMENT_LIMIT_S),
    Case("mux: one byte a second", "mux.segment-time", Start.NODE_V2, do(says(KEEP_ALIVE, _PING), _drips_a_segment), _TIMEOUT, SEGMENT_LIMIT_S),
    Case("mux: nothing begun after the handshake", "mux.start-time", Start.NODE_V2, nothing, MustClose("PROTOCOL_TIMEOUT", CONNECTION), START_LIMIT_S),
)
# fmt: on
