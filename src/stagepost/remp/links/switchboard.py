"""A single overlay among all nodes that follow the chain, shared by all of its sessions: each has a channel
of its own.

A new session needs no new links, so it begins as soon as its validators know of it. Objects for a session
that others began before us wait for a moment; objects for a session that has ended are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from stagepost.errors import DecodeError, TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, INT256_BYTES, constructor_bytes, constructor_id
from stagepost.remp.links.large_objects import LargeObjects
from stagepost.remp.links.overlay import Answered, Overlay, OverlayEvents

EARLY_CHANNELS_MAX = 64
EARLY_OBJECTS_MAX = 512
"""Objects, at most, that wait for one channel."""

EARLY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes, at most, that wait for all channels."""

CLOSED_MAX = 4_096

_SAID = constructor_bytes(
    constructor_id("stagepost.chain.said channel:int256 object:Object = stagepost.chain.Said")
)
_NOT_HERE = constructor_bytes(constructor_id("stagepost.chain.notHere = stagepost.chain.Said"))
_HEAD_BYTES = CONSTRUCTOR_BYTES + INT256_BYTES

Early = Callable[[], None]


class Channel:
    """An `Overlay` of the members of one session, by their places in it."""

    def __init__(
        self, board: Switchboard, channel_id: bytes, peers: Sequence[int | None], events: OverlayEvents
    ) -> None:
        self.events = events
        self.index_of = {peer: index for index, peer in enumerate(peers) if peer is not None}
        self._board = board
        self._head = _SAID + channel_id
        self._peers = list(peers)

    def set_peer(self, index: int, peer: int) -> None:
        """Note that the member with this index, which may be a further one, can be reached at place `peer` of the overlay."""
        if index == len(self._peers):
            self._peers.append(peer)
        self._peers[index] = peer
        self.index_of[peer] = index

    def push(self, peer: int, frame: bytes) -> bool:
        there = self._peers[peer]
        return there is not None and self._board.large.push(there, self._head + frame)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        there = self._peers[peer]
        if there is None:
            asyncio.get_running_loop().call_soon(answered, None)
        else:
            self._board.large.ask(there, self._head + query, partial(_heard, answered), timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        there = self._peers[peer]
        if there is not None:
            self._board.large.refuse(there, rule, text)


class Switchboard:
    """`public_keys` are those of the overlay's members, in their order."""

    def __init__(self, public_keys: Sequence[bytes], own_key: bytes) -> None:
        self._place_of = {key: place for place, key in enumerate(public_keys) if key != own_key}
        self._size = len(public_keys)
        self._channels: dict[bytes, Channel] = {}
        self._keys_of: dict[bytes, tuple[bytes, ...]] = {}
        self._early: dict[bytes, list[tuple[int, Early]]] = {}
        self._early_bytes = 0
        self._closed: dict[bytes, None] = {}
        self.large: LargeObjects

    def start(self, overlay: Overlay) -> None:
        self.large = LargeObjects(overlay, _Incoming(self))

    def stop(self) -> None:
        self.large.stop()

    def open(self, channel_id: bytes, public_keys: Sequence[bytes], events: OverlayEvents) -> Channel:
        channel = Channel(self, channel_id, [self._place_of.get(key) for key in public_keys], events)
        self._channels[channel_id] = channel
        self._keys_of[channel_id] = tuple(public_keys)
        return channel

    def add_member(self, public_key: bytes) -> int:
        """Add a member behind the others, also to channels that are open; return its place in the overlay."""
        place, self._size = self._size, self._size + 1
        self._place_of[public_key] = place
        for channel_id, keys in self._keys_of.items():
            if public_key in keys:
                self._channels[channel_id].set_peer(keys.index(public_key), place)
        return place

    def hand_over_early(self, channel_id: bytes) -> None:
        """Deliver the objects that came before the channel was open; call it when the channel can handle
        events.
        """
        for size, event in self._early.pop(channel_id, ()):
            self._early_bytes -= size
            event()

    def close(self, channel_id: bytes) -> None:
        self._channels.pop(channel_id, None)
        self._keys_of.pop(channel_id, None)
        self._closed[channel_id] = None
        while len(self._closed) > CLOSED_MAX:
            del self._closed[next(iter(self._closed))]

    # From the overlay

    def pushed(self, peer: int, frame: bytes) -> None:
        self.large.pushed(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self.large.asked(peer, query, reply)

    def linked(self, peer: int) -> None:
        for channel in list(self._channels.values()):
            index = channel.index_of.get(peer)
            if index is not None:
                channel.events.linked(index)

    # Whole objects

    def object_came(self, peer: int, data: bytes) -> None:
        channel_id, frame = _read(peer, data)
        channel = self._channels.get(channel_id)
        if channel is not None:
            channel.events.pushed(_member(channel, channel_id, peer), frame)
        elif channel_id not in self._closed:
            self._keep(channel_id, len(data), partial(self._again, self.object_came, peer, data))

    def query_came(self, peer: int, data: bytes, reply: Callable[[bytes], None]) -> None:
        channel_id, query = _read(peer, data)
        channel = self._channels.get(channel_id)
        if channel is not None:
            channel.events.asked(_member(channel, channel_id, peer), query, reply)
            return

        def ask_again(one: int, asked: bytes) -> None:
            self.query_came(one, asked, reply)

        if channel_id in self._closed or not self._keep(
            channel_id, len(data), partial(self._again, ask_again, peer, data)
        ):
            reply(_NOT_HERE)

    def _keep(self, channel_id: bytes, size: int, event: Early) -> bool:
        waiting = self._early.get(channel_id)
        if waiting is None:
            while len(self._early) >= EARLY_CHANNELS_MAX:
                oldest = self._early.pop(next(iter(self._early)))
                self._early_bytes -= sum(one for one, _ in oldest)
            waiting = self._early[channel_id] = []
        if len(waiting) >= EARLY_OBJECTS_MAX or self._early_bytes + size > EARLY_BYTES_MAX:
            return False
        waiting.append((size, event))
        self._early_bytes += size
        return True

    def _again(self, act: Callable[[int, bytes], None], peer: int, data: bytes) -> None:
        """Handle an object that came over a link that may be gone; a fault in it closes the peer's present
        link.
        """
        try:
            act(peer, data)
        except DecodeError as error:
            self.large.refuse(peer, error.reason or "Malformed", error.text)


class _Incoming:
    """Passes objects that were put together from parts to their channels."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def pushed(self, peer: int, frame: bytes) -> None:
        self._board.object_came(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self._board.query_came(peer, query, reply)

    def linked(self, peer: int) -> None:
        self._board.linked(peer)


def said(channel_id: bytes, frame: bytes) -> bytes:
    """Return the form in which a frame of a session travels."""
    return _SAID + channel_id + frame


def read_said(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the session and its frame; None for anything else."""
    if not data.startswith(_SAID) or len(data) < _HEAD_BYTES + CONSTRUCTOR_BYTES:
        return None
    return data[CONSTRUCTOR_BYTES:_HEAD_BYTES], data[_HEAD_BYTES:]


def _read(peer: int, data: bytes) -> tuple[bytes, bytes]:
    read = read_said(data)
    if read is None:
        raise TlDecodeError(
            f"member {peer} sent {data[:CONSTRUCTOR_BYTES].hex()}, which names no session of the chain",
            offset=0,
        )
    return read


def _member(channel: Channel, channel_id: bytes, peer: int) -> int:
    index = channel.index_of.get(peer)
    if index is None:
        raise TlDecodeError(
            f"member {peer} of the network is not a member of session {channel_id.hex()}", offset=0
        )
    return index


def _heard(answered: Answered, answer: bytes | None) -> None:
    answered(None if answer == _NOT_HERE else answer)
