"""Chunks: the byte stream of a multiplexer, cut into encrypted pieces, and read back.

A stream begins with its header. A chunk is the length of its sealed content (2 bytes, big-endian) and this content.
The last chunk is empty and has a tag of its own: a stream that ends without it was cut off. A chunk that does not
open is nobody's fault that could be proved, for anybody on the way can change bytes: its error is no broken rule.
"""

from __future__ import annotations

from stagepost.errors import ErrorCode, RemoteProtocolError, TransportError
from stagepost.ground.crypto.secret_stream import (
    LAST_TAG,
    PLAIN_TAG,
    REKEY_TAG,
    SEALED_EXTRA_BYTES,
    STREAM_HEADER_BYTES,
    StreamOpener,
    StreamSealer,
)
from stagepost.ground.wire.mux import RESTING_BYTES, SMALL_READS_BEFORE_REST, SegmentReader

CHUNK_CONTENT_BYTES_MAX = 16_384
LENGTH_BYTES = 2
CHUNK_BYTES_MAX = LENGTH_BYTES + CHUNK_CONTENT_BYTES_MAX + SEALED_EXTRA_BYTES
CHUNK_EXTRA_BYTES = LENGTH_BYTES + SEALED_EXTRA_BYTES
"""Bytes by which a chunk is longer than its content."""
REKEY_AFTER_CHUNKS = 65_536
"""Chunks under one key, at most; the last of them changes it."""
READING_BYTES = 4 * CHUNK_BYTES_MAX
"""Bytes in the buffer of a busy link; a quiet one has `RESTING_BYTES`."""


class ChunkSealer:
    """Writer of one direction of a link. Its order is the order of the calls."""

    def __init__(self, key: bytes) -> None:
        self._stream = StreamSealer(key)
        self._unsent_header = self._stream.header
        self._under_key = 0
        self.is_ended = False

    def seal(self, data: bytes) -> bytes:
        """Return `data` as chunks; in front of the first ones the header of the stream."""
        parts = [self._unsent_header]
        self._unsent_header = b""
        for start in range(0, len(data), CHUNK_CONTENT_BYTES_MAX):
            content = data[start : start + CHUNK_CONTENT_BYTES_MAX]
            self._under_key += 1
            tag = PLAIN_TAG
            if self._under_key == REKEY_AFTER_CHUNKS:
                tag, self._under_key = REKEY_TAG, 0
            self._append(parts, self._stream.seal(content, tag))
        return b"".join(parts)

    def end(self) -> bytes:
        """Return the last chunk: nothing comes behind it."""
        self.is_ended = True
        parts = [self._unsent_header]
        self._unsent_header = b""
        self._append(parts, self._stream.seal(b"", LAST_TAG))
        return b"".join(parts)

    def _append(self, parts: list[bytes], sealed: bytes) -> None:
        parts.append(len(sealed).to_bytes(LENGTH_BYTES, "big"))
        parts.append(sealed)


class ChunkReader:
    """Reader of one direction of a link: it opens chunks and hands their content to `segments`.

    It is fed as a `SegmentReader` is. Offsets count the bytes of segments, those before the encryption included.
    """

    def __init__(self, key: bytes, segments: SegmentReader) -> None:
        self._key = key
        self._segments = segments
        self._opener: StreamOpener | None = None
        self._view = memoryview(bytearray(RESTING_BYTES))
        self._start = 0
        self._end = 0
        self._small_reads = 1
        self._chunks = 0
        self._under_key = 0
        self.is_ended = False

    @property
    def has_begun(self) -> bool:
        """Return whether the header of the stream has come."""
        return self._opener is not None

    @property
    def offset(self) -> int:
        return self._segments.offset

    @property
    def bytes_received(self) -> int:
        return self._segments.bytes_received + self._end - self._start

    @property
    def is_mid_segment(self) -> bool:
        """Return whether a chunk or a segment has begun and is incomplete."""
        return self._start != self._end or self._segments.is_mid_segment

    def release(self) -> None:
        self._view = memoryview(b"")
        self._segments.release()

    def space(self) -> memoryview:
        """Return room for the next bytes, never empty: an incomplete chunk is shorter than the buffer."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            if self._small_reads >= SMALL_READS_BEFORE_REST and len(self._view) != RESTING_BYTES:
                self._view = memoryview(bytearray(RESTING_BYTES))
            elif not self._small_reads and len(self._view) == RESTING_BYTES:
                self._view = memoryview(bytearray(READING_BYTES))
            return self._view
        if len(self._view) - end < CHUNK_BYTES_MAX:
            kept = self._view[start:end].tobytes()
            if len(self._view) == RESTING_BYTES:
                self._view = memoryview(bytearray(READING_BYTES))
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        return self._view[self._end :]

    def received(self, count: int) -> bool:
        """Take in the `count` bytes written into `space()`; return whether a chunk or a segment is incomplete."""
        view, start = self._view, self._start
        end = self._end = self._end + count
        self._small_reads = self._small_reads + 1 if count < RESTING_BYTES else 0
        if self._opener is None:
            if end - start < STREAM_HEADER_BYTES:
                return True
            self._opener = StreamOpener(self._key, view[start : start + STREAM_HEADER_BYTES].tobytes())
            self._key = b""
            self._start = start = start + STREAM_HEADER_BYTES
        while end - start >= LENGTH_BYTES and not self.is_ended:
            length = int.from_bytes(view[start : start + LENGTH_BYTES], "big")
            if not SEALED_EXTRA_BYTES <= length <= CHUNK_CONTENT_BYTES_MAX + SEALED_EXTRA_BYTES:
                raise self._unopened(f"announces {length} bytes")
            body = start + LENGTH_BYTES
            if body + length > end:
                break
            opened = self._opener.open(view[body : body + length].tobytes())
            if opened is None:
                raise self._unopened("does not open")
            self._start = start = body + length
            self._take(*opened)
        return self.is_mid_segment

    def _take(self, content: bytes, tag: int) -> None:
        self._chunks += 1
        self._under_key += 1
        if tag == LAST_TAG and not content:
            self.is_ended = True
            return
        if tag == REKEY_TAG:
            self._under_key = 0
        if not content or tag not in (PLAIN_TAG, REKEY_TAG) or self._under_key >= REKEY_AFTER_CHUNKS:
            raise RemoteProtocolError(
                f"chunk {self._chunks} of an encrypted link has tag {tag} and {len(content)} bytes, "
                f"{self._under_key} chunks after the last change of its key",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="the peer must send no empty chunk, and change its key in time",
                limit=REKEY_AFTER_CHUNKS,
                found=self._under_key,
                reason="BadChunk",
            )
        self._segments.feed(content)

    def _unopened(self, what: str) -> TransportError:
        return TransportError(
            f"chunk {self._chunks + 1} of an encrypted link {what}: its bytes were changed, left out, repeated or "
            "moved on the way",
            advice="connect again; if it happens often, look for the fault between the two machines",
            reason="BadChunk",
        )
