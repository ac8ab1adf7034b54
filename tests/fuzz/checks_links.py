"""What must hold for the decoders of links: the data of their handshake, and the encrypted chunks behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)

from stagepost.errors import DecodeError, RemoteProtocolError, TransportError
from stagepost.ground.net.chunks import ChunkReader
from stagepost.ground.wire.mux import Direction, Segment, SegmentReader, lane_number
from stagepost.remp.links.versions import LinkData, LinkVersion, read_link_data
from tests.fuzz.harness import Verdict, attempt, pieces, require

KEY, HEADER = bytes(range(32)), bytes(range(24))
LAST, REKEY = 3, 2
LANE = lane_number(0x402, Direction.INITIATOR)
CONTENTS = [Segment(7, LANE, bytes([number]) * size).encode() for number, size in enumerate((1, 90, 2_000))]


@cache
def sealed_stream() -> tuple[bytes, ...]:
    """The header and chunks of one stream; the same in every run, for the header is given and not drawn."""
    state = crypto_secretstream_xchacha20poly1305_state()
    crypto_secretstream_xchacha20poly1305_init_pull(state, HEADER, KEY)
    parts = [HEADER]
    for content, tag in (*((content, 0) for content in CONTENTS), (CONTENTS[0], REKEY), (b"", LAST)):
        sealed = crypto_secretstream_xchacha20poly1305_push(state, content, None, tag)
        parts.append(len(sealed).to_bytes(2, "big") + sealed)
    return tuple(parts)


def link_samples() -> tuple[bytes, ...]:
    data = LinkData(7_777, bytes(32), bytes(range(32)), bytes(32), (0x5003, 0x5004))
    stream = sealed_stream()
    return (
        data.write(is_encrypted=True),
        data.write(is_encrypted=False),
        b"".join(stream),
        b"".join(stream[:3]),
        b"".join((stream[0], *stream[2:])),
    )


def check_links(data: bytes) -> Verdict:
    return max(_check_data(data), _check_chunks(data))


def _check_data(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for version in (LinkVersion.REMP, LinkVersion.REMP_PLAIN):
        found = attempt(partial(read_link_data, data, version), len(data), DecodeError)
        if found is not None:
            written = found.write(is_encrypted=version.is_encrypted)
            require(written == data, "data of a handshake were read from bytes that we would not write")
            verdict = Verdict.ACCEPTED
    return verdict


def _check_chunks(data: bytes) -> Verdict:
    """Whatever comes, only the pieces that were sealed are heard, in their order, each once."""
    whole = _heard(data, [data])
    cut = _heard(data, pieces(data, 7))
    require(whole == cut, f"read at once {len(whole)} segments come, in pieces {len(cut)}")
    sealed = [Segment(7, LANE, content[8:]) for content in (*CONTENTS, CONTENTS[0])]
    require(whole == sealed[: len(whole)], "something was heard that nobody sealed here")
    return Verdict.ACCEPTED if whole else Verdict.REFUSED


def _heard(data: bytes, parts: Sequence[bytes]) -> list[Segment]:
    heard: list[Segment] = []
    reader = ChunkReader(KEY, SegmentReader(heard.append))
    try:
        for part in parts:
            left = memoryview(part)
            while left and not reader.is_ended:
                space = reader.space()
                require(len(space) > 0, "there is no room for the next bytes")
                count = min(len(space), len(left))
                space[:count] = left[:count]
                reader.received(count)
                left = left[count:]
    except (TransportError, RemoteProtocolError):
        pass
    return heard
