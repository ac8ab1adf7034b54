"""Peer sharing, node to node: ask a peer for the addresses of others, if both sides agreed to it.

`SharedPeers` gives each asker the same answer for a while, so that asking often reveals nothing more.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.codec import Dialect
from stagepost.ground.wire.layout import Layout, ListForm, ListOf, Union, Unsigned

PEERS_SENT_MAX = 10
PEERS_ACCEPTED_MAX = 255
ANSWER_STABLE_FOR_S = 823
MESSAGE_BYTES_MAX = 5_760


# Messages


class PeerAddress(msgspec.Struct, frozen=True, order=True):
    host: str
    port: int


class ShareRequest(msgspec.Struct, frozen=True):
    amount: int


class SharePeers(msgspec.Struct, frozen=True):
    peers: tuple[PeerAddress, ...]


class Done(msgspec.Struct, frozen=True):
    """End of the conversation."""


# Layouts


class _V4(msgspec.Struct, frozen=True):
    """IPv4 address as its bytes read as a little-endian word: Haskell keeps them in network order on such
    machines."""

    word: int
    port: int


class _V6(msgspec.Struct, frozen=True):
    """IPv6 address as four words in host order: ::1 is 0, 0, 0, 1."""

    word_0: int
    word_1: int
    word_2: int
    word_3: int
    port: int


_Address: TypeAlias = _V4 | _V6
_WORD, _PORT = Unsigned(32), Unsigned(16)
_ADDRESS = Union(
    (
        Layout(_V4, 0, (("word", _WORD), ("port", _PORT))),
        Layout(_V6, 1, (*((f"word_{index}", _WORD) for index in range(4)), ("port", _PORT))),
    )
)


def _from_wire(address: _Address) -> PeerAddress:
    if isinstance(address, _V4):
        return PeerAddress(str(ipaddress.IPv4Address(address.word.to_bytes(4, "little"))), address.port)
    words = (address.word_0, address.word_1, address.word_2, address.word_3)
    packed = b"".join(word.to_bytes(4, "big") for word in words)
    return PeerAddress(str(ipaddress.IPv6Address(packed)), address.port)


def _to_wire(peer: PeerAddress) -> _Address:
    address = ipaddress.ip_address(peer.host)
    if isinstance(address, ipaddress.IPv4Address):
        return _V4(int.from_bytes(address.packed, "little"), peer.port)
    word_0, word_1, word_2, word_3 = (
        int.from_bytes(address.packed[at : at + 4], "big") for at in (0, 4, 8, 12)
    )
    return _V6(word_0, word_1, word_2, word_3, peer.port)


@dataclass(frozen=True, slots=True)
class _AddressField:
    def read(self, reader: CborReader, what: str) -> PeerAddress:
        return _from_wire(_ADDRESS.read(reader, what))

    def write(self, value: PeerAddress) -> bytes:
        return _ADDRESS.write(_to_wire(value))


DIALECT = Dialect(
    "peer sharing",
    (
        Layout(ShareRequest, 0, (("amount", Unsigned(8)),)),
        Layout(
            SharePeers, 1, (("peers", ListOf(_AddressField(), ListForm.EMPTY_DEFINITE, PEERS_ACCEPTED_MAX)),)
        ),
        Layout(Done, 2),
    ),
)

# States

IDLE = State("Idle", Role.CLIENT, message_bytes_max=MESSAGE_BYTES_MAX)
BUSY = State("Busy", Role.SERVER, timeout_s=60, message_bytes_max=MESSAGE_BYTES_MAX)
DONE = State("Done", speaker=None)

# Spec

PEER_SHARING = ProtocolSpec(
    name="PeerSharing",
    initial=IDLE,
    edges=(
        Edge(IDLE, ShareRequest, BUSY),
        Edge(IDLE, Done, DONE),
        Edge(BUSY, SharePeers, IDLE),
    ),
)


ASKERS_REMEMBERED_MAX = 1_024


class SharedPeers:
    """Answers of a node to all its askers. If there are too many, the oldest answer is forgotten."""

    def __init__(self, choose: Callable[[str, int], Sequence[PeerAddress]]) -> None:
        """Keep `choose`, which is called with (asker, number of peers at most) for each new answer."""
        self._choose = choose
        self._answers: OrderedDict[str, tuple[float, tuple[PeerAddress, ...]]] = OrderedDict()

    def answer(self, asker: str, amount: int, now: float) -> tuple[PeerAddress, ...]:
        """Return at most `amount` peers, and never more than ten. An asker that wants fewer gets the first of
        the same answer."""
        found = self._answers.get(asker)
        if found is None or now >= found[0]:
            peers = tuple(dict.fromkeys(self._choose(asker, PEERS_SENT_MAX)))[:PEERS_SENT_MAX]
            found = (now + ANSWER_STABLE_FOR_S, peers)
            self._answers[asker] = found
            self._answers.move_to_end(asker)
            if len(self._answers) > ASKERS_REMEMBERED_MAX:
                self._answers.popitem(last=False)
        return found[1][:amount]
