"""Encrypted chunks: what is sealed is read back piece by piece, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from stagepost.errors import RemoteProtocolError, TransportError
from stagepost.ground.crypto.secret_stream import (
    LAST_TAG,
    PLAIN_TAG,
    REKEY_TAG,
    EphemeralKey,
    StreamKeys,
    StreamSealer,
)
from stagepost.ground.net import chunks
from stagepost.ground.net.chunks import (
    CHUNK_CONTENT_BYTES_MAX,
    CHUNK_EXTRA_BYTES,
    READING_BYTES,
    REKEY_AFTER_CHUNKS,
    ChunkReader,
    ChunkSealer,
)
from stagepost.ground.wire.mux import RESTING_BYTES, Direction, Segment, SegmentReader, lane_number

KEY = bytes(range(32))
LANE = lane_number(0x402, Direction.INITIATOR)


def a_segment(size: int, fill: int = 7) -> bytes:
    return Segment(1, LANE, bytes([fill]) * size).encode()


class Heard:
    """A reader, and the segments that came out of it."""

    def __init__(self, key: bytes = KEY) -> None:
        self.segments: list[Segment] = []
        self.reader = ChunkReader(key, SegmentReader(self.segments.append))

    def feed(self, data: bytes, size: int = 1 << 20) -> None:
        for at in range(0, len(data), size):
            left = memoryview(data)[at : at + size]
            while left:
                space = self.reader.space()
                assert len(space) > 0
                count = min(len(space), len(left))
                space[:count] = left[:count]
                self.reader.received(count)
                left = left[count:]


@pytest.mark.parametrize("size", [1, 7, 1_000, 1 << 20])
def test_a_stream_is_read_back_however_it_is_cut(size: int) -> None:
    random, sealer = Random(size), ChunkSealer(KEY)
    sent = [a_segment(random.choice((1, 100, 12_000, 60_000)), number) for number in range(12)]
    sealed = b"".join(sealer.seal(segment) for segment in sent) + sealer.end()
    heard = Heard()
    heard.feed(sealed, size)
    assert [segment.encode() for segment in heard.segments] == sent
    assert heard.reader.is_ended
    assert not heard.reader.is_mid_segment
    assert all(segment[8:60] not in sealed for segment in sent if len(segment) > 100)


def test_a_chunk_holds_16384_bytes_and_no_more() -> None:
    assert CHUNK_CONTENT_BYTES_MAX == 16_384
    full = ChunkSealer(KEY).seal(bytes(CHUNK_CONTENT_BYTES_MAX))
    assert len(full) == 24 + CHUNK_EXTRA_BYTES + CHUNK_CONTENT_BYTES_MAX
    assert len(ChunkSealer(KEY).seal(bytes(CHUNK_CONTENT_BYTES_MAX + 1))) == len(full) + CHUNK_EXTRA_BYTES + 1
    longest = a_segment(CHUNK_CONTENT_BYTES_MAX - 8)
    heard = Heard()
    heard.feed(ChunkSealer(KEY).seal(longest))
    assert len(heard.segments) == 1
    sealing = StreamSealer(KEY)
    longer = sealing.seal(a_segment(CHUNK_CONTENT_BYTES_MAX - 7))
    with pytest.raises(TransportError, match="announces"):
        Heard().feed(sealing.header + len(longer).to_bytes(2, "big") + longer)


def test_the_key_changes_with_chunk_65536_and_not_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REKEY_AFTER_CHUNKS == 65_536
    monkeypatch.setattr(chunks, "REKEY_AFTER_CHUNKS", 4)
    sealer, heard = ChunkSealer(KEY), Heard()
    for _ in range(20):
        heard.feed(sealer.seal(a_segment(1)))
    assert len(heard.segments) == 20
    late, heard = StreamSealer(KEY), Heard()
    heard.feed(late.header)
    for number in range(1, 4):
        heard.feed(framed(late.seal(a_segment(1))))
        assert len(heard.segments) == number
    with pytest.raises(RemoteProtocolError) as refused:
        heard.feed(framed(late.seal(a_segment(1))))
    assert refused.value.reason == "BadChunk"


def framed(sealed: bytes) -> bytes:
    return len(sealed).to_bytes(2, "big") + sealed


@pytest.mark.parametrize(
    ("content", "tag"),
    [
        pytest.param(b"", PLAIN_TAG, id="an empty chunk"),
        pytest.param(b"", REKEY_TAG, id="an empty chunk that changes the key"),
        pytest.param(b"x", LAST_TAG, id="a last chunk with content"),
        pytest.param(b"x", 1, id="a tag that links do not use"),
    ],
)
def test_a_chunk_that_only_the_peer_can_have_made_is_its_fault(content: bytes, tag: int) -> None:
    sealing = StreamSealer(KEY)
    with pytest.raises(RemoteProtocolError) as refused:
        Heard().feed(sealing.header + framed(sealing.seal(content, tag)))
    assert not isinstance(refused.value, TransportError)


def test_memory_of_a_link_is_bounded_and_small_while_it_is_quiet() -> None:
    heard, sealer = Heard(), ChunkSealer(KEY)
    heard.feed(sealer.seal(a_segment(10)))
    assert len(heard.reader._view) == RESTING_BYTES
    heard.feed(sealer.seal(bytes.fromhex("0000000100010001ff") * 5_000))
    assert len(heard.reader._view) == READING_BYTES
    for _ in range(40):
        heard.feed(sealer.seal(a_segment(10)))
    assert len(heard.reader._view) == RESTING_BYTES
    heard.reader.release()
    assert len(heard.reader._view) == 0


# Keys


def agreed(
    change: Callable[[bytes], bytes] = lambda key: key, context: bytes = b"context"
) -> list[StreamKeys]:
    ours, theirs = EphemeralKey(b"1" * 32), EphemeralKey(b"2" * 32)
    client = ours.agree(theirs.public_key, b"context", is_client=True)
    server = theirs.agree(change(ours.public_key), context, is_client=False)
    assert client is not None
    assert server is not None
    return [client, server]


def test_both_ends_agree_on_one_key_for_each_direction() -> None:
    client, server = agreed()
    assert (client.sending, client.receiving) == (server.receiving, server.sending)
    assert client.sending != client.receiving
    assert client.sending.hex() not in repr(client)


def test_another_key_or_another_context_gives_other_keys() -> None:
    client, server = agreed(lambda key: EphemeralKey(b"3" * 32).public_key)
    assert client.sending != server.receiving
    client, server = agreed(context=b"another")
    assert client.sending != server.receiving


def test_a_point_of_small_order_is_not_a_key() -> None:
    assert EphemeralKey(b"1" * 32).agree(bytes(32), b"", is_client=True) is None
