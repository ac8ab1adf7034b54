"""Peer sharing and keep-alive: addresses as they stand on the wire, and cookies that must come back."""

from __future__ import annotations

import ipaddress

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.peer_sharing import (
    ANSWER_STABLE_FOR_S,
    PEERS_SENT_MAX,
    PeerAddress,
    SharePeers,
    ShareRequest,
)
from stagepost.dmq.profiles import PROFILES, MiniProtocol
from stagepost.dmq.specs import codec_for
from stagepost.errors import DecodeError, ErrorCode, RemoteProtocolError
from stagepost.ground.net.keep_alive_protocol import (
    PING_INTERVAL_S,
    KeepAlive,
    KeepAliveResponse,
    check_cookie,
)
from stagepost.ground.wire.codec import Codec

PROFILE = PROFILES["dmq-node"]


def a_codec() -> Codec:
    return codec_for(PROFILE, MiniProtocol.PEER_SHARING)


def shared(*peers: PeerAddress) -> bytes:
    return a_codec().encode(SharePeers(peers))


ADDRESSES = {
    ("1.2.3.4", 3_141): [0, 0x04030201, 3_141],
    ("127.0.0.1", 0): [0, 0x0100007F, 0],
    ("255.255.255.255", 65_535): [0, 0xFFFFFFFF, 65_535],
    ("::1", 3_001): [1, 0, 0, 0, 1, 3_001],
    ("2001:db8::ff00:42:8329", 1): [1, 0x20010DB8, 0, 0xFF00, 0x00428329, 1],
}


@pytest.mark.parametrize(("address", "value"), ADDRESSES.items(), ids=lambda value: str(value))
def test_addresses_stand_on_the_wire_as_nodes_in_haskell_write_them(
    address: tuple[str, int], value: list[int]
) -> None:
    raw = shared(PeerAddress(*address))

    assert cbor2.loads(raw) == [1, [value]]
    assert a_codec().decode(raw, "Busy") == SharePeers((PeerAddress(*address),))


@given(st.integers(0, 2**32 - 1), st.integers(0, 65_535))
def test_a_v4_word_holds_the_address_bytes_in_little_endian_order(number: int, port: int) -> None:
    address = ipaddress.IPv4Address(number)
    raw = cbor2.dumps([1, [[0, int.from_bytes(address.packed, "little"), port]]])

    assert a_codec().decode(raw, "Busy") == SharePeers((PeerAddress(str(address), port),))


@given(st.integers(0, 2**128 - 1), st.integers(0, 65_535))
def test_v6_words_stand_in_plain_order(number: int, port: int) -> None:
    words = [number >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0)]
    raw = cbor2.dumps([1, [[1, *words, port]]])

    found = a_codec().decode(raw, "Busy")

    assert found == SharePeers((PeerAddress(str(ipaddress.IPv6Address(number)), port),))
    assert cbor2.loads(a_codec().encode(found)) == cbor2.loads(raw)


def test_an_empty_list_is_definite_and_any_other_indefinite() -> None:
    assert shared() == bytes.fromhex("820180")
    assert shared(PeerAddress("1.2.3.4", 1)) == bytes.fromhex("82019f83001a0403020101ff")


@pytest.mark.parametrize("raw", ["820180", "82019fff"])
def test_both_forms_of_an_empty_list_are_read(raw: str) -> None:
    assert a_codec().decode(bytes.fromhex(raw), "Busy") == SharePeers(())


def test_both_forms_of_a_filled_list_are_read() -> None:
    for raw in ("82019f83000101ff", "82018183000101"):
        assert a_codec().decode(bytes.fromhex(raw), "Busy") == SharePeers((PeerAddress("1.0.0.0", 1),))


BAD_ADDRESSES = {
    "an unknown kind": [2, 1, 1],
    "v4 with too many words": [0, 1, 1, 1],
    "v6 with too few words": [1, 1, 1, 1, 1],
    "v6 with flow and scope": [1, 0, 0, 0, 1, 0, 0, 1],
    "a word beyond 32 bits": [0, 2**32, 1],
    "a port beyond 16 bits": [0, 1, 65_536],
    "a text": "1.2.3.4",
}


@pytest.mark.parametrize("address", BAD_ADDRESSES.values(), ids=BAD_ADDRESSES)
def test_other_addresses_are_refused(address: object) -> None:
    with pytest.raises(DecodeError):
        a_codec().decode(cbor2.dumps([1, [address]]), "Busy")


@pytest.mark.parametrize("amount", [0, 255])
def test_up_to_255_peers_are_asked_for(amount: int) -> None:
    assert a_codec().decode(cbor2.dumps([0, amount]), "Idle") == ShareRequest(amount)


def test_an_amount_beyond_8_bits_is_refused() -> None:
    with pytest.raises(DecodeError):
        a_codec().decode(cbor2.dumps([0, 256]), "Idle")


def test_the_published_numbers_of_peer_sharing_and_keep_alive() -> None:
    assert (PEERS_SENT_MAX, ANSWER_STABLE_FOR_S, PING_INTERVAL_S) == (10, 823, 10)


# Keep-alive


def test_the_same_cookie_must_come_back() -> None:
    check_cookie(KeepAlive(7), KeepAliveResponse(7))

    with pytest.raises(RemoteProtocolError) as caught:
        check_cookie(KeepAlive(7), KeepAliveResponse(8))
    assert caught.value.code is ErrorCode.PROTOCOL_STATE


@pytest.mark.parametrize(("tag", "state"), [(0, "Client"), (1, "Server")])
def test_a_cookie_has_16_bits(tag: int, state: str) -> None:
    codec = codec_for(PROFILE, MiniProtocol.KEEP_ALIVE)

    assert codec.decode(cbor2.dumps([tag, 65_535]), state).cookie == 65_535
    with pytest.raises(DecodeError):
        codec.decode(cbor2.dumps([tag, 65_536]), state)
