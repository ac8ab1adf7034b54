"""A transport over Unix sockets, unsigned: what the delivery layer itself costs, without a network's signatures.

Peers are connected directly, each to each that it dials. Frames are a length and one encoded value; a peer names
itself in its first frame, and is believed: this measures, it does not protect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.transport import Incoming, IncomingAcks, Outgoing, Published, SendFailed

PAYLOAD_BYTES_MAX = 1_900
UNSENT_BYTES_MAX = 8_192
"""What is said in one turn of the loop is one write, but not much more than this: the other side is to begin meanwhile."""

_NONE = NackReason.NONE
_PUBLISHED = Published(network_id=None)
_LENGTH = Struct(">I")


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    name: str


class _Data(msgspec.Struct, frozen=True, array_like=True, tag=1):
    topic: str
    nonce: bytes
    created_ms: int
    attempt: int
    ackers: tuple[str, ...]
    payload: bytes


class _Receipt(msgspec.Struct, frozen=True, array_like=True):
    message_id: bytes
    timestamp_ms: int
    ack_type: AckType
    reason: NackReason
    retry_after_ms: int | None


class _Acks(msgspec.Struct, frozen=True, array_like=True, tag=2):
    receipts: tuple[_Receipt, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Hello | _Data | _Acks).decode


class _Peer(asyncio.Protocol):
    def __init__(self, transport: SocketTransport) -> None:
        self.name = ""
        self._owner = transport
        self._loop = asyncio.get_running_loop()
        self._unread = b""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._socket: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self.send(_encode(_Hello(self._owner.self_id)))

    def send(self, frame: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += (_LENGTH.pack(len(frame)), frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._unsent:
            self._socket.write(b"".join(self._unsent))
            self._unsent.clear()
            self._unsent_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._unread:
            data = self._unread + data
        begin, heard = 0, self._owner.heard
        while len(data) - begin >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, begin)
            end = begin + _LENGTH.size + size
            if end > len(data):
                break
            heard(self, _decode(data[begin + _LENGTH.size : end]))
            begin = end
        self._unread = data[begin:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.left(self)


class SocketTransport:
    def __init__(self, name: str) -> None:
        self.self_id = name
        self.max_payload = PAYLOAD_BYTES_MAX
        self._peers: dict[str, _Peer] = {}
        self._connectivity: list[Callable[[int], None]] = []
        self._listeners: list[Callable[[Incoming | IncomingAcks], None]] = []

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return self.max_payload

    @property
    def connected_peers(self) -> int:
        return len(self._peers)

    async def serve(self, path: Path) -> None:
        await asyncio.get_running_loop().create_unix_server(lambda: _Peer(self), path)

    async def dial(self, path: Path) -> None:
        await asyncio.get_running_loop().create_unix_connection(lambda: _Peer(self), str(path))

    async def publish(self, message: Outgoing) -> Published:
        if not self._peers:
            raise SendFailed("nobody is connected", retry_after_s=None, costs_attempt=False)
        frame = _encode(
            _Data(
                message.topic,
                message.nonce,
                message.created_ms,
                message.attempt,
                message.ackers,
                message.payload,
            )
        )
        for peer in self._peers.values():
            peer.send(frame)
        return _PUBLISHED

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        frame = _encode(
            _Acks(
                tuple(
                    _Receipt(
                        receipt.message_id,
                        receipt.timestamp_ms,
                        receipt.ack_type,
                        NackReason(receipt.reason) if receipt.reason else _NONE,
                        receipt.retry_after_ms,
                    )
                    for receipt in receipts
                )
            )
        )
        for peer in self._peers.values():
            peer.send(frame)

    def on_connectivity(self, callback: Callable[[int], None]) -> Callable[[], None]:
        self._connectivity.append(callback)
        return lambda: self._connectivity.remove(callback)

    def on_message(self, callback: Callable[[Incoming | IncomingAcks], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    def heard(self, peer: _Peer, said: Any) -> None:
        match said:
            case _Data():
                incoming = Incoming(
                    sender=peer.name,
                    topic=said.topic,
                    nonce=said.nonce,
                    created_ms=said.created_ms,
                    attempt=said.attempt,
                    ackers=said.ackers,
                    payload=said.payload,
                    expires_at_ms=int(time.time() * 1_000) + 60_000,
                    network_id=None,
                )
                for listener in self._listeners:
                    listener(incoming)
            case _Acks(receipts):
                read = tuple(
                    AckReceipt(
                        receipt.message_id,
                        receipt.timestamp_ms,
                        receipt.ack_type,
                        receipt.reason,
                        receipt.retry_after_ms,
                    )
                    for receipt in receipts
                )
                acks = IncomingAcks(peer.name, peer.name, read)
                for listener in self._listeners:
                    listener(acks)

            case _Hello(name):
                peer.name = name
                self._peers[name] = peer
                for changed in self._connectivity:
                    changed(len(self._peers))

    def left(self, peer: _Peer) -> None:
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]
            for changed in self._connectivity:
                changed(len(self._peers))
