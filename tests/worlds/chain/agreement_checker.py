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
_CANDIDATE = "agreement.candidate slot:int parent:int256 payload:bytes = agreement.Candidate"
_CERTIFICATE = (
    "agreement.certificate session:int256 slot:int kind:int block:int256 "
    "signatures:vector agreement.signature = agreement.Message"
)


def _tag(line: str) -> bytes:
    return struct.pack("<I", crc32(line.encode()))


def block_hash(slot: int, parent: bytes, payload: bytes) -> bytes:
    if len(payload) < 254:
        framed = bytes([len(payload)]) + payload
    else:
        framed = b"\xfe" + struct.pack("<I", len(payload))[:3] + payload
    framed += bytes(-len(framed) % 4)
    return sha256(_tag(_CANDIDATE) + struct.pack("<i", slot) + parent + framed).digest()


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
