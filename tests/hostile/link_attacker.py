"""A member with a real key that speaks the protocols of links byte by byte, and shares no code with the node.

What it signs is put together here from the description alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

from nacl.bindings import (
    crypto_kx_client_session_keys,
    crypto_kx_keypair,
    crypto_kx_server_session_keys,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)
from nacl.signing import SigningKey

from stagepost.dmq.conform.attacker import HANDSHAKE, OTHER_SIDE, Attacker, NodeTarget, proposal, segments
from stagepost.dmq.conform.cbor_bytes import array, octets, uint

REMP_VERSION, CATCHAIN_VERSION = 0x5003, 0x5004
PLAIN_REMP_VERSION, PLAIN_CATCHAIN_VERSION = 0x5001, 0x5002
AUTHENTICATION, KEEP_ALIVE, OVERLAY, MESSAGES, RECEIPTS = 0x400, 0x401, 0x402, 0x403, 0x404
CHUNK_CONTENT_BYTES, SEALED_EXTRA_BYTES, HEADER_BYTES = 16_384, 17, 24
LAST = 3


def plain_link_data(magic: int, public_key: bytes, nonce: bytes) -> bytes:
    return array(uint(magic), octets(public_key), octets(nonce))


def link_data(
    magic: int, public_key: bytes, nonce: bytes, ephemeral: bytes, versions: tuple[int, ...]
) -> bytes:
    return array(
        uint(magic), octets(public_key), octets(nonce), octets(ephemeral), array(*map(uint, versions))
    )


def transcript(offered: dict[int, bytes], accepted: int, data: bytes) -> bytes:
    said = sha256(len(offered).to_bytes(2, "big"))
    for number, parameters in (*offered.items(), (accepted, data)):
        said.update(number.to_bytes(8, "big") + len(parameters).to_bytes(4, "big") + parameters)
    return said.digest()


def signed_bytes(
    role: bytes,
    version: int,
    magic: int,
    nonces: tuple[bytes, bytes],
    keys: tuple[bytes, bytes],
    session: bytes,
    ephemerals: tuple[bytes, bytes] = (b"", b""),
    handshake: bytes = b"",
) -> bytes:
    """Nonces and keys: first the initiator's. Without `handshake` those of a plain link."""
    return (
        (b"stagepost link authentication 2\0" if handshake else b"stagepost link authentication 1\0")
        + role
        + version.to_bytes(2, "big")
        + magic.to_bytes(4, "big")
        + b"".join(nonces)
        + b"".join(keys)
        + b"".join(ephemerals)
        + handshake
        + session
    )


class Sealing:
    """Our stream. `pieces` are the chunks of the last call, for those who mean to spoil them."""

    def __init__(self, key: bytes) -> None:
        self._state = crypto_secretstream_xchacha20poly1305_state()
        self.header: bytes = crypto_secretstream_xchacha20poly1305_init_push(self._state, key)

    def chunk(self, content: bytes, tag: int = 0) -> bytes:
        sealed: bytes = crypto_secretstream_xchacha20poly1305_push(self._state, content, None, tag)
        return len(sealed).to_bytes(2, "big") + sealed

    def __call__(self, data: bytes) -> bytes:
        step = CHUNK_CONTENT_BYTES
        return b"".join(self.chunk(data[at : at + step]) for at in range(0, len(data), step))


class Opening:
    """The node's stream, opened; it ends as the node's last chunk says."""

    def __init__(self, reader: asyncio.StreamReader, key: bytes) -> None:
        self._reader, self._key = reader, key
        self._state: crypto_secretstream_xchacha20poly1305_state | None = None
        self._open = bytearray()
        self.is_ended = False

    async def readexactly(self, count: int) -> bytes:
        if self._state is None:
            header = await self._reader.readexactly(HEADER_BYTES)
            self._state = crypto_secretstream_xchacha20poly1305_state()
            crypto_secretstream_xchacha20poly1305_init_pull(self._state, header, self._key)
        while len(self._open) < count:
            length = int.from_bytes(await self._reader.readexactly(2), "big")
            assert length <= CHUNK_CONTENT_BYTES + SEALED_EXTRA_BYTES
            sealed = await self._reader.readexactly(length)
            content, tag = crypto_secretstream_xchacha20poly1305_pull(self._state, sealed)
            if tag == LAST:
                self.is_ended = True
                raise asyncio.IncompleteReadError(bytes(self._open), count)
            self._open += content
        taken = bytes(self._open[:count])
        del self._open[:count]
        return taken


def stream_keys(
    secret: bytes,
    ours: bytes,
    theirs: bytes,
    handshake: bytes,
    session: bytes,
    plain_bytes: bytes,
    *,
    is_initiator: bool,
) -> tuple[bytes, bytes]:
    """The keys to receive and to send with. `plain_bytes`: SHA-256 of the initiator's, then of the responder's."""
    agree = crypto_kx_client_session_keys if is_initiator else crypto_kx_server_session_keys
    context = b"stagepost link streams\0" + handshake + session + plain_bytes
    receiving, sending = (
        blake2b(context, digest_size=32, key=key).digest() for key in agree(ours, secret, theirs)
    )
    return receiving, sending


def push(frame: bytes) -> bytes:
    return array(uint(0), octets(frame))


def ask(number: int, query: bytes) -> bytes:
    return array(uint(1), uint(number), octets(query))


def answer(number: int, content: bytes) -> bytes:
    return array(uint(2), uint(number), octets(content))


class EncryptedTalk(Attacker):
    """Connection whose bytes are sealed from a moment on. `said` and `heard` cover all bytes before that."""

    def __init__(
        self, target: NodeTarget, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.said, self.heard = sha256(), sha256()
        self._seal: Callable[[bytes], bytes] = lambda data: data
        self._opened: Opening | None = None
        super().__init__(target, reader, writer)

    async def encrypt(self, seal: Callable[[bytes], bytes], receiving: bytes) -> None:
        """Seal from now on what we say, and open what the node says. The node says nothing meanwhile."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._seal = seal
        self._opened = Opening(self.reader, receiving)
        self._listening = asyncio.create_task(self._listen())

    async def write(self, data: bytes) -> None:
        self.said.update(data)
        await super().write(self._seal(data))

    async def read(self, count: int) -> bytes:
        data = await (self._opened or self.reader).readexactly(count)
        self.heard.update(data)
        return data


class LinkAttacker:
    """One connection to a node's listener, as initiator."""

    def __init__(self, talk: EncryptedTalk, seed: bytes) -> None:
        self.talk = talk
        self.key = SigningKey(seed)
        self.public_key = bytes(self.key.verify_key)
        self.nonce = os.urandom(32)
        self.ephemeral, self._secret = crypto_kx_keypair()
        self.their_key = self.their_nonce = self.their_ephemeral = self.handshake = b""

    @classmethod
    async def connect(cls, port: int, magic: int, seed: bytes) -> LinkAttacker:
        talk = await EncryptedTalk.tcp(NodeTarget(port, None, magic))
        return cls(talk, seed)

    async def shake_hands(self, version: int) -> None:
        magic = self.talk.target.magic
        data = link_data(magic, self.public_key, self.nonce, self.ephemeral, (version,))
        await self.talk.say(HANDSHAKE, proposal((version, data)))
        kind, agreed, theirs = await self.talk.hear(HANDSHAKE | OTHER_SIDE)
        assert (kind, agreed) == (1, version), f"an honest handshake was refused: {agreed!r}"
        assert theirs[0] == magic
        assert version in theirs[4]
        _, self.their_key, self.their_nonce, self.their_ephemeral, versions = theirs
        named = self.their_key, self.their_nonce, self.their_ephemeral
        answered = link_data(magic, *named, tuple(versions))
        self.handshake = transcript({version: data}, version, answered)

    def proof(self, version: int, session: bytes, role: bytes = b"initiator") -> bytes:
        signed = signed_bytes(
            role,
            version,
            self.talk.target.magic,
            (self.nonce, self.their_nonce),
            (self.public_key, self.their_key),
            session,
            (self.ephemeral, self.their_ephemeral),
            self.handshake,
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
        ends = self._secret, self.ephemeral, self.their_ephemeral, self.handshake, session
        plain_bytes = self.talk.said.digest() + self.talk.heard.digest()
        receiving, sending = stream_keys(*ends, plain_bytes, is_initiator=True)
        self.sealing = Sealing(sending)
        await self.talk.raw(self.sealing.header)
        await self.talk.encrypt(self.sealing, receiving)

    async def say(self, lane: int, payload: bytes) -> None:
        await self.talk.raw(segments(lane, payload))
