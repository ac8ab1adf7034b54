"""A member with a real key that speaks the protocols of links byte by byte, and shares no code with the node.

What it signs is put together here from the description alone.
"""

from __future__ import annotations

import os
from typing import Any

from nacl.signing import SigningKey

from tests.hostile.attacker import HANDSHAKE, OTHER_SIDE, Attacker, Target, proposal, segments
from tests.hostile.cbor_bytes import array, octets, uint

REMP_VERSION, CATCHAIN_VERSION = 0x5001, 0x5002
AUTHENTICATION, KEEP_ALIVE, OVERLAY, MESSAGES, RECEIPTS = 0x400, 0x401, 0x402, 0x403, 0x404


def link_data(magic: int, public_key: bytes, nonce: bytes) -> bytes:
    return array(uint(magic), octets(public_key), octets(nonce))


def signed_bytes(
    role: bytes,
    version: int,
    magic: int,
    nonces: tuple[bytes, bytes],
    keys: tuple[bytes, bytes],
    session: bytes,
) -> bytes:
    """Nonces and keys: first the initiator's."""
    return (
        b"stagepost link authentication 1\0"
        + role
        + version.to_bytes(2, "big")
        + magic.to_bytes(4, "big")
        + b"".join(nonces)
        + b"".join(keys)
        + session
    )


def push(frame: bytes) -> bytes:
    return array(uint(0), octets(frame))


def ask(number: int, query: bytes) -> bytes:
    return array(uint(1), uint(number), octets(query))


def answer(number: int, content: bytes) -> bytes:
    return array(uint(2), uint(number), octets(content))


class LinkAttacker:
    """One connection to a node's listener, as initiator."""

    def __init__(self, talk: Attacker, seed: bytes) -> None:
        self.talk = talk
        self.key = SigningKey(seed)
        self.public_key = bytes(self.key.verify_key)
        self.nonce = os.urandom(32)
        self.their_key = self.their_nonce = b""

    @classmethod
    async def connect(cls, port: int, magic: int, seed: bytes) -> LinkAttacker:
        return cls(await Attacker.tcp(Target(port, None, magic)), seed)

    async def shake_hands(self, version: int) -> None:
        magic = self.talk.target.magic
        await self.talk.say(HANDSHAKE, proposal((version, link_data(magic, self.public_key, self.nonce))))
        kind, agreed, data = await self.talk.hear(HANDSHAKE | OTHER_SIDE)
        assert (kind, agreed) == (1, version), f"an honest handshake was refused: {agreed!r}"
        assert data[0] == magic
        self.their_key, self.their_nonce = data[1], data[2]

    def proof(self, version: int, session: bytes, role: bytes = b"initiator") -> bytes:
        signed = signed_bytes(
            role,
            version,
            self.talk.target.magic,
            (self.nonce, self.their_nonce),
            (self.public_key, self.their_key),
            session,
        )
        return self.key.sign(signed).signature

    async def prove(self, session: bytes, signature: bytes) -> list[Any]:
        """What the node answers."""
        await self.talk.say(AUTHENTICATION, array(uint(0), octets(session), octets(signature)))
        reply: list[Any] = await self.talk.hear(AUTHENTICATION | OTHER_SIDE)
        return reply

    async def link(self, version: int, session: bytes) -> None:
        """The whole of it, honestly."""
        await self.shake_hands(version)
        reply = await self.prove(session, self.proof(version, session))
        assert reply[0] == 1, f"an honest proof was refused: {reply!r}"

    async def say(self, lane: int, payload: bytes) -> None:
        await self.talk.raw(segments(lane, payload))
