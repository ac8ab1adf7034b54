"""The ACK envelope: what other implementations read, what is refused, and how many receipts travel together."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.delivery.envelope import (
    RECEIPTS_MAX,
    AckEnvelope,
    AckReceipt,
    pack_receipts,
    read_ack_envelope,
)
from stagepost.delivery.identity import counted_nonce, delivery_id, identity_bytes, nonce_of_key
from stagepost.delivery.status import AckType, NackReason
from stagepost.errors import DecodeError

ID = bytes(range(32))
POOL = "ab" * 28


def test_a_receipt_is_a_plain_array_in_an_envelope_of_kind_one() -> None:
    receipts = (
        AckReceipt(ID, 5, AckType.ACK),
        AckReceipt(ID, 6, AckType.NACK, NackReason.INVALID),
        AckReceipt(ID, 7, AckType.NACK, NackReason.BUSY, 250),
    )
    body = AckEnvelope(bytes.fromhex(POOL), receipts).encode()

    assert cbor2.loads(body) == [
        1,
        1,
        bytes.fromhex(POOL),
        [[ID, 5, 1], [ID, 6, 2, 3], [ID, 7, 2, 1, 250]],
    ]


def test_a_short_envelope_is_padded_to_the_least_that_networks_carry() -> None:
    body = AckEnvelope(b"bob", (AckReceipt(ID, 5, AckType.ACK),)).encode()

    assert len(body) == 90
    assert set(cbor2.loads(body)[4]) == {0}
    assert read_ack_envelope(body).receipts == (AckReceipt(ID, 5, AckType.ACK),)


def test_about_forty_three_receipts_fit_one_message() -> None:
    receipts = [AckReceipt(ID, 1_800_000_000_000 + n, AckType.ACK) for n in range(100)]
    envelopes = pack_receipts(POOL, receipts)

    assert [len(envelope.receipts) for envelope in envelopes] == [43, 43, 14]
    assert all(90 <= len(envelope.encode()) <= 2_000 for envelope in envelopes)
    assert [r for envelope in envelopes for r in envelope.receipts] == receipts
    assert pack_receipts(POOL, []) == []


@given(
    st.binary(min_size=1, max_size=60),
    st.lists(
        st.builds(
            AckReceipt,
            st.binary(min_size=32, max_size=32),
            st.integers(0, 2**63 - 1),
            st.just(AckType.NACK),
            st.sampled_from([*NackReason, 8, 99, 2**32 - 1]),
            st.none() | st.integers(0, 2**32 - 1),
        )
        | st.builds(
            AckReceipt, st.binary(min_size=32, max_size=32), st.integers(0, 2**63 - 1), st.just(AckType.ACK)
        ),
        min_size=1,
        max_size=RECEIPTS_MAX,
    ),
)
def test_whatever_is_written_is_read_back(sender: bytes, receipts: list[AckReceipt]) -> None:
    envelope = AckEnvelope(sender, tuple(receipts))

    assert read_ack_envelope(envelope.encode()) == envelope


GOOD: list[Any] = [1, 1, b"bob", [[ID, 5, 1]]]


@pytest.mark.parametrize(
    "value",
    [
        [1, 0, *GOOD[2:]],
        [2, *GOOD[1:]],
        GOOD[:-1],
        [*GOOD, b"\0", b"\0"],
        [*GOOD, b"\1"],
        [1, 1, b"", GOOD[3]],
        [1, 1, "bob", GOOD[3]],
        [1, 1, b"bob", []],
        [1, 1, b"bob", [[ID, 5, 1]] * 65],
        [1, 1, b"bob", [[ID, 5]]],
        [1, 1, b"bob", [[ID, 5, 0]]],
        [1, 1, b"bob", [[ID, 5, 3]]],
        [1, 1, b"bob", [[ID, 5, 1, 3]]],
        [1, 1, b"bob", [[ID, 5, 2, 3, 1, 1]]],
        [1, 1, b"bob", [[ID[:31], 5, 1]]],
        [1, 1, b"bob", [[ID, -5, 1]]],
        [1, 1, b"bob", [[ID, 2**63, 1]]],
        [1, 1, b"bob", [[ID, 5, 2, 2**32]]],
        [1, 1, b"bob", [[ID.hex(), 5, 1]]],
        "text",
    ],
)
def test_anything_else_is_no_ack_envelope(value: object) -> None:
    assert read_ack_envelope(cbor2.dumps(GOOD)).sender == b"bob"
    with pytest.raises(DecodeError):
        read_ack_envelope(cbor2.dumps(value))


def test_transient_and_permanent_reasons() -> None:
    transient = {reason for reason in range(12) if _nack(reason).is_transient}

    assert transient == {1, 2, 8, 9, 10, 11}
    assert not AckReceipt(ID, 1, AckType.ACK).is_transient


def _nack(reason: int) -> AckReceipt:
    body = AckEnvelope(b"bob", (AckReceipt(ID, 1, AckType.NACK, reason),)).encode()
    return read_ack_envelope(body).receipts[0]


def test_a_pool_id_is_its_bytes_and_any_other_name_its_text() -> None:
    assert identity_bytes(POOL) == bytes.fromhex(POOL)
    assert identity_bytes("alice") == b"alice"
    assert identity_bytes(POOL.upper()) == POOL.upper().encode()
    assert identity_bytes("g" * 56) == b"g" * 56


def test_delivery_id_is_delimited_and_excludes_time_and_attempt() -> None:
    expected = blake2b(cbor2.dumps(["dlv1", b"alice", "ab", bytes(16), b"c"]), digest_size=32).digest()

    assert delivery_id(b"alice", "ab", bytes(16), b"c") == expected
    assert delivery_id(b"alice", "a", bytes(16), b"bc") != expected
    assert delivery_id(b"alicea", "b", bytes(16), b"c") != expected


def test_nonces_of_keys_and_counters() -> None:
    assert nonce_of_key("k") == nonce_of_key(b"k") == blake2b(b"k", digest_size=32).digest()[:16]
    assert counted_nonce(b"12345678", 258) == b"12345678" + bytes(6) + b"\1\2"
