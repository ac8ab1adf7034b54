"""Certificates, blocks and votes read a second time, by hand: nothing here is shared with the code under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from zlib import crc32

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

NOTARISE, SKIP, FINALISE = 1, 2, 3

_VOTE_ID = "agreement.voteId session:int256 slot:int kind:int block:int256 = agreement.VoteId"
_CANDIDATE = "agreement.candidateId slot:int parent:int256 block:int256 = agreement.CandidateId"
_SHARD = (
    "session:int256 workchain:int shard:long seqno:int previous:vector tonNode.blockIdExt "
    "master:tonNode.blockIdExt time:long ordering:int"
)
_SHARD_BLOCK = (
    f"stagepost.chain.shardBlock {_SHARD} messages:vector bytes state_hash:int256 = stagepost.chain.Block"
)
_SHARD_ROOT = (
    f"stagepost.chain.shardRoot {_SHARD} messages_hash:int256 state_hash:int256 = stagepost.chain.Root"
)
_MASTER = "session:int256 seqno:int previous:tonNode.blockIdExt time:long"
_MASTER_BLOCK = (
    f"stagepost.chain.masterBlock {_MASTER} commits:vector stagepost.chain.commit plans:vector stagepost.chain.plan "
    "configuration:bytes state_hash:int256 = stagepost.chain.Block"
)
_MASTER_ROOT = (
    f"stagepost.chain.masterRoot {_MASTER} last_hash:int256 commits_hash:int256 plans_hash:int256 "
    "configuration_hash:int256 state_hash:int256 = stagepost.chain.Root"
)
_ID_BYTES = 80
_CERTIFICATE = (
    "agreement.certificate session:int256 slot:int kind:int block:int256 "
    "signatures:vector agreement.signature = agreement.Message"
)


def _tag(line: str) -> bytes:
    return struct.pack("<I", crc32(line.encode()))


class _Bytes:
    """Bytes read from the front, as TL puts them one behind the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def raw(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "too short"
        self.at += size
        return self.data[self.at - size : self.at]

    def count(self) -> int:
        return int(struct.unpack("<I", self.raw(4))[0])

    def framed(self) -> bytes:
        length, prefix = self.raw(1)[0], 1
        if length == 254:
            length, prefix = int.from_bytes(self.raw(3), "little"), 4
        found = self.raw(length)
        self.raw(-(prefix + length) % 4)
        return found


def root_hash(payload: bytes) -> bytes:
    """Of the block in the payload; zero for one that is not a block of a chain."""
    read = _Bytes(payload[4:])
    if payload[:4] == _tag(_SHARD_BLOCK):
        root = _shard_root(read)
    elif payload[:4] == _tag(_MASTER_BLOCK):
        root = _master_root(read)
    else:
        return bytes(32)
    assert read.at == len(read.data), "too long"
    return sha256(root).digest()


def _shard_root(read: _Bytes) -> bytes:
    read.raw(48)
    read.raw(_ID_BYTES * read.count())
    read.raw(_ID_BYTES + 12)
    fields = read.data[: read.at]
    messages = b"".join(sha256(read.framed()).digest() for _ in range(read.count()))
    return _tag(_SHARD_ROOT) + fields + sha256(messages).digest() + read.raw(32)


def _master_root(read: _Bytes) -> bytes:
    fields = read.raw(32 + 4 + _ID_BYTES + 8)
    start = read.at
    commits = [read.raw(_ID_BYTES * read.count()) for _ in range(read.count())]
    hashes = [sha256(read.data[start : read.at]).digest()]
    start = read.at
    read.raw(20 * read.count())
    hashes.append(sha256(read.data[start : read.at]).digest())
    hashes.append(sha256(read.framed()).digest())
    last = tree_root({commit[-64:-32]: commit[-32:] for commit in commits})
    return _tag(_MASTER_ROOT) + fields + last + b"".join(hashes) + read.raw(32)


def tree_root(leaves: dict[bytes, bytes], depth: int = 0) -> bytes:
    """Of a tree in which every key stands at the first place that it has for itself."""
    if not leaves:
        return bytes(32)
    if len(leaves) == 1:
        ((key, value),) = leaves.items()
        return sha256(b"\x00" + key + value).digest()
    sides: tuple[dict[bytes, bytes], dict[bytes, bytes]] = ({}, {})
    for key, value in leaves.items():
        sides[key[depth // 8] >> (7 - depth % 8) & 1][key] = value
    return sha256(b"\x01" + tree_root(sides[0], depth + 1) + tree_root(sides[1], depth + 1)).digest()


def block_hash(slot: int, parent: bytes, payload: bytes) -> bytes:
    """Of a candidate: its id, by which votes name it."""
    block = sha256(root_hash(payload) + sha256(payload).digest()).digest()
    return sha256(_tag(_CANDIDATE) + struct.pack("<i", slot) + parent + block).digest()


@lru_cache(maxsize=500_000)
def is_signed(
    public_key: bytes, session: bytes, slot: int, kind: int, block: bytes, signature: bytes
) -> bool:
    signed = _tag(_VOTE_ID) + session + struct.pack("<ii", slot, kind) + block
    try:
        VerifyKey(public_key).verify(signed, signature)
    except BadSignatureError:
        return False
    return True


@lru_cache(maxsize=100_000)
def read_certificate(data: bytes, public_keys: tuple[bytes, ...], session: bytes) -> tuple[int, int, bytes]:
    """Slot, kind and block of a certificate that holds; AssertionError for any other bytes."""
    assert data[:4] == _tag(_CERTIFICATE), "no certificate"
    of_session, (slot, kind), block = data[4:36], struct.unpack("<ii", data[36:44]), data[44:76]
    (count,) = struct.unpack("<i", data[76:80])
    assert of_session == session, "of another session"
    assert len(data) == 80 + 68 * count, "not as long as it says"
    signers: set[int] = set()
    for number in range(count):
        at = 80 + 68 * number
        (validator,) = struct.unpack("<i", data[at : at + 4])
        assert 0 <= validator < len(public_keys), "signed by a stranger"
        assert is_signed(public_keys[validator], session, slot, kind, block, data[at + 4 : at + 68]), "forged"
        signers.add(validator)
    assert len(signers) == count, "somebody signed twice"
    assert 3 * len(signers) > 2 * len(public_keys), "no quorum"
    return slot, kind, block


def check_chain(start: bytes, blocks: Sequence[tuple[int, bytes, bytes]], kinds: Sequence[int]) -> None:
    """Slot, hash and payload of final blocks, and the kinds of their certificates."""
    parent, last = start, 0
    for slot, block, payload in blocks:
        assert slot > last, "slots do not rise"
        assert block == block_hash(slot, parent, payload), f"block {slot} does not follow the one before it"
        parent, last = block, slot
    assert not kinds or kinds[-1] == FINALISE, "the last block is not final by its own certificate"
    assert set(kinds) <= {NOTARISE, FINALISE}, "a block with a certificate of skipping"
