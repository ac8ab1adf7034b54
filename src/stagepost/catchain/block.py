"""Blocks of the graph: their binary form, and the bytes that their hash and their signature cover.

A block names its own predecessor and blocks of others that its author had received, each by a signed
reference. In version 1 a block's hash covers the payload alone, so one id can stand for two blocks that
differ in their references; version 2 covers the references too.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256

import msgspec

from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Reader, Writer, constructor_bytes, constructor_id, key_id

SIGNATURE_BYTES = 64
DEPENDENCIES_MAX = 4
DEPENDENCIES_READ_MAX = 256
"""References that a reader accepts before the network's own limit, which may exceed the default, applies."""

BLOCK_BYTES_MAX = 16 * 1024
"""Bytes of a whole frame."""

HASHES_KEPT = 8_192
"""Hashes cached: other blocks name a block again and again, above all right after it came."""

SOURCES_MAX = 1_024
DEPENDENCY_BYTES_MIN = 44

BLOCK_ID = constructor_id(
    "catchain.block.id incarnation:int256 src:int256 height:int data_hash:int256 = catchain.block.Id"
)
DEPENDENCY_ID = constructor_id(
    "catchain.block.dep src:int height:int data_hash:int256 signature:bytes = catchain.block.Dep"
)
DATA_ID = constructor_id(
    "catchain.block.data prev:catchain.block.dep deps:(vector catchain.block.dep) = catchain.block.Data"
)
UPDATE_ID = constructor_id("catchain.blockUpdate block:catchain.block = catchain.Update")
FIRST_BLOCK_ID = constructor_id(
    "catchain.firstblock unique_hash:int256 nodes:(vector int256) = catchain.FirstBlock"
)
OVERLAY_ID = constructor_id("pub.overlay name:bytes = PublicKey")


class HashVersion(IntEnum):
    PAYLOAD_ONLY = 1
    WITH_REFERENCES = 2


class Dependency(msgspec.Struct, frozen=True, gc=False):
    """Reference to a block, with its author's signature: enough to know that the block exists, without having
    it."""

    source: int
    height: int
    data_hash: bytes
    signature: bytes = b""

    def write(self, writer: Writer) -> None:
        writer.write_int(self.source)
        writer.write_int(self.height)
        writer.write_int256(self.data_hash)
        writer.write_bytes(self.signature)


class Block(msgspec.Struct, frozen=True, gc=False):
    """Block as it travels, with its payload after it."""

    incarnation: bytes
    source: int
    height: int
    previous: Dependency
    dependencies: tuple[Dependency, ...]
    signature: bytes
    payload: bytes

    def data_hash(self, version: HashVersion) -> bytes:
        return data_hash(self.payload, self.previous, self.dependencies, version)

    def reference(self, version: HashVersion) -> Dependency:
        return Dependency(self.source, self.height, self.data_hash(version), self.signature)

    def write(self, writer: Writer) -> None:
        """Write the bare block, without the payload."""
        writer.write_int256(self.incarnation)
        writer.write_int(self.source)
        writer.write_int(self.height)
        _write_data(writer, self.previous, self.dependencies)
        writer.write_bytes(self.signature)

    def encode(self) -> bytes:
        """Return the frame in which a block is sent: an update and the payload, to the end."""
        writer = Writer()
        writer.write_constructor(UPDATE_ID)
        self.write(writer)
        writer.write_raw(self.payload)
        return writer.written()


def is_signed_by(block: Block, public_key: bytes) -> bool:
    """Return whether the holder of `public_key` has signed `block`, whichever version of hashes its network has."""
    author = key_id(public_key)
    return len(block.signature) == SIGNATURE_BYTES and any(
        ed25519.verify(
            public_key,
            block_id(block.incarnation, author, block.height, block.data_hash(version)),
            block.signature,
        )
        for version in (HashVersion.WITH_REFERENCES, HashVersion.PAYLOAD_ONLY)
    )


def decode_update(data: bytes) -> Block:
    reader = Reader(data)
    reader.read_constructor(UPDATE_ID)
    return read_block(reader)


def read_block(reader: Reader) -> Block:
    """Read a bare block, and all bytes after it as the payload."""
    incarnation = reader.read_int256()
    source, height = reader.read_int(), reader.read_int()
    previous = read_dependency(reader)
    count = reader.read_vector_count(DEPENDENCIES_READ_MAX, DEPENDENCY_BYTES_MIN)
    dependencies = tuple(read_dependency(reader) for _ in range(count))
    signature = reader.read_bytes(SIGNATURE_BYTES, "signature")
    payload = reader.read_raw(reader.remaining_bytes)
    return Block(incarnation, source, height, previous, dependencies, signature, payload)


def read_dependency(reader: Reader) -> Dependency:
    return Dependency(
        reader.read_int(),
        reader.read_int(),
        reader.read_int256(),
        reader.read_bytes(SIGNATURE_BYTES, "signature"),
    )


def data_hash(
    payload: bytes, previous: Dependency, dependencies: Sequence[Dependency], version: HashVersion
) -> bytes:
    of_payload = sha256(payload).digest()
    if version is HashVersion.PAYLOAD_ONLY:
        return of_payload
    writer = Writer()
    writer.write_constructor(DATA_ID)
    _write_data(writer, previous, dependencies)
    return sha256(of_payload + sha256(writer.written()).digest()).digest()


def block_id(incarnation: bytes, source_key_id: bytes, height: int, hash_of_data: bytes) -> bytes:
    """Return the bytes that a member signs."""
    writer = Writer()
    writer.write_constructor(BLOCK_ID)
    writer.write_int256(incarnation)
    writer.write_int256(source_key_id)
    writer.write_int(height)
    writer.write_int256(hash_of_data)
    return writer.written()


@lru_cache(maxsize=HASHES_KEPT)
def block_hash(incarnation: bytes, source_key_id: bytes, height: int, hash_of_data: bytes) -> bytes:
    return sha256(block_id(incarnation, source_key_id, height, hash_of_data)).digest()


def incarnation_of(session_id: bytes, key_ids: Sequence[bytes]) -> bytes:
    """Return the id of one graph, which follows from the session that it serves and from its members."""
    first = Writer()
    first.write_constructor(FIRST_BLOCK_ID)
    first.write_int256(session_id)
    first.write_vector_count(len(key_ids))
    for member_id in key_ids:
        first.write_int256(member_id)
    overlay = Writer()
    overlay.write_bytes(first.written())
    return sha256(constructor_bytes(OVERLAY_ID) + overlay.written()).digest()


def root_reference(incarnation: bytes, source_count: int) -> Dependency:
    """Return the reference that the first block of every member follows: nobody's block, at height 0."""
    return Dependency(source_count, 0, incarnation)


def _write_data(writer: Writer, previous: Dependency, dependencies: Sequence[Dependency]) -> None:
    previous.write(writer)
    writer.write_vector_count(len(dependencies))
    for dependency in dependencies:
        dependency.write(writer)
