"""The data envelope: what other implementations read, the padding, the limits and the id that retries keep."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.delivery.envelope import DataEnvelope, read_data_envelope
from stagepost.delivery.transport import Outgoing
from stagepost.delivery.transports.dmq_bodies import data_body, payload_room
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.wire.trace_context import TraceParent

NONCE = bytes(range(16))
SENDER = PoolId(b"s" * 28)
ACKER = PoolId(b"a" * 28)


def an_envelope(**changes: Any) -> DataEnvelope:
    values: dict[str, Any] = {
        "topic": "demo",
        "nonce": NONCE,
        "created_ms": 1_800_000_000_123,
        "payload": b"hello",
    }
    return DataEnvelope(**(values | changes))


def test_long_envelope_is_eight_plain_elements() -> None:
    body = an_envelope(payload=b"p" * 200, attempt=2, ackers=(ACKER,)).encode()

    assert cbor2.loads(body) == [1, 0, "demo", NONCE, 1_800_000_000_123, 2, [ACKER], b"p" * 200]


def test_short_envelope_is_padded_with_zeros_to_ninety_bytes() -> None:
    body = an_envelope().encode()
    *first, pad = cbor2.loads(body)

    assert len(body) == 90
    assert first == [1, 0, "demo", NONCE, 1_800_000_000_123, 0, [], b"hello"]
    assert set(pad) == {0}


@pytest.mark.parametrize("size", range(100))
def test_every_short_payload_gives_a_body_that_networks_take(size: int) -> None:
    envelope = an_envelope(payload=b"x" * size)
    body = envelope.encode()

    # No byte string takes 25 bytes with its head, so one size cannot be met exactly.
    assert len(body) in (90, 91) or (len(body) > 90 and len(cbor2.loads(body)) == 8)
    assert read_data_envelope(body) == envelope


@given(
    st.text(min_size=1, max_size=60).filter(lambda topic: not topic.startswith("/dep2p/sys/")),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=1_000),
    st.integers(0, 10),
)
def test_whatever_is_written_is_read_back(
    topic: str, nonce: bytes, created_ms: int, attempt: int, payload: bytes, ackers: int
) -> None:
    envelope = DataEnvelope(topic, nonce, created_ms, payload, attempt, (ACKER,) * ackers)

    assert read_data_envelope(envelope.encode()) == envelope


def test_delivery_id_is_the_hash_of_its_parts_and_survives_a_retry() -> None:
    plain = cbor2.dumps(["dlv1", bytes(SENDER), "demo", NONCE, b"hello"])
    first, again = an_envelope(), an_envelope(attempt=1, created_ms=5, ackers=(ACKER,))

    assert first.delivery_id(SENDER) == blake2b(plain, digest_size=32).digest()
    assert first.delivery_id(SENDER) == again.delivery_id(SENDER)
    assert first.encode() != again.encode()
    assert first.delivery_id(SENDER) != an_envelope(topic="demp").delivery_id(SENDER)
    assert first.delivery_id(SENDER) != first.delivery_id(PoolId(b"t" * 28))


def test_largest_payload_is_exactly_what_fits() -> None:
    largest = 2_000 - (len(an_envelope(payload=b"x" * 1_000).encode()) - 1_000)

    assert len(an_envelope(payload=b"x" * largest).encode()) == 2_000
    with pytest.raises(StagepostError, match=f"{largest} fit into a message") as caught:
        an_envelope(payload=b"x" * (largest + 1)).encode()
    assert (caught.value.code, caught.value.limit) == (ErrorCode.MSG_BODY_SIZE, largest)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topic": ""}, "1 to 255 bytes"),
        ({"topic": "é" * 128}, "1 to 255 bytes, this one has 256"),
        ({"topic": "/dep2p/sys/ack/1.0.0"}, "reserved"),
        ({"nonce": b"short"}, "16 bytes"),
        ({"ackers": (ACKER,) * 65}, "at most 64"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is_signed(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(StagepostError, match=text):
        an_envelope(**changes).encode()


GOOD = [1, 0, "demo", NONCE, 7, 0, [], b"p"]


@pytest.mark.parametrize(
    "value",
    [
        [1, 1, *GOOD[2:]],
        [2, *GOOD[1:]],
        GOOD[:-1],
        [*GOOD, b"\0", b"\0"],
        [*GOOD, b"\0\1"],
        [1, 0, "", *GOOD[3:]],
        [1, 0, b"demo", *GOOD[3:]],
        [1, 0, "demo", b"short", *GOOD[4:]],
        [1, 0, "demo", NONCE, -1, *GOOD[5:]],
        [1, 0, "demo", NONCE, 7, 0, [b"short"], b"p"],
        [1, 0, "demo", NONCE, 7, 0, [bytes(ACKER)] * 65, b"p"],
        "text",
    ],
)
def test_anything_else_is_no_envelope(value: object) -> None:
    with pytest.raises(DecodeError):
        read_data_envelope(cbor2.dumps(value))


def test_good_one_with_bytes_behind_it_is_none_either() -> None:
    assert read_data_envelope(cbor2.dumps(GOOD)).topic == "demo"
    with pytest.raises(DecodeError):
        read_data_envelope(cbor2.dumps(GOOD) + b"\0")


TRACE = TraceParent(bytes(range(1, 17)), bytes(range(1, 9)), 1)


def test_the_trace_context_of_a_caller_makes_an_envelope_of_version_two() -> None:
    envelope = an_envelope(payload=b"p" * 200, trace_parent=TRACE)
    assert cbor2.loads(envelope.encode()) == [
        2, 0, "demo", NONCE, 1_800_000_000_123, 0, [], b"p" * 200, TRACE.encode(),
    ]  # fmt: skip
    assert read_data_envelope(envelope.encode()) == envelope
    short = an_envelope(trace_parent=TRACE)
    assert len(short.encode()) >= 90
    assert read_data_envelope(short.encode()) == short
    assert envelope.delivery_id(SENDER) == an_envelope(payload=b"p" * 200).delivery_id(SENDER)


def test_earlier_releases_take_version_two_for_another_programs_body() -> None:
    """They look at the second and third byte, which are version and kind, before they decode anything."""
    assert an_envelope(trace_parent=TRACE).encode()[1:3] == bytes((2, 0))
    assert an_envelope().encode()[1:3] == bytes((1, 0)), "and without a trace context nothing has changed"


@pytest.mark.parametrize(
    "value",
    [
        [2, 0, "demo", NONCE, 5, 0, [], b"payload"],
        [2, 0, "demo", NONCE, 5, 0, [], b"payload", bytes(24)],
        [2, 0, "demo", NONCE, 5, 0, [], b"payload", bytes(25)],
        [2, 0, "demo", NONCE, 5, 0, [], b"payload", TRACE.encode(), b"\0", b"\0"],
        [1, 0, "demo", NONCE, 5, 0, [], b"payload", TRACE.encode()],
        [3, 0, "demo", NONCE, 5, 0, [], b"payload"],
    ],
)
def test_other_shapes_of_traced_envelopes_are_refused(value: list[Any]) -> None:
    with pytest.raises(DecodeError):
        read_data_envelope(cbor2.dumps(value))


def test_a_payload_that_leaves_no_room_goes_without_its_trace_context() -> None:
    for missing, version in ((27, 2), (26, 1), (0, 1)):
        payload = bytes(payload_room("demo", ()) - missing)
        body = data_body(Outgoing("demo", NONCE, 2**62, 2**31, (), payload, TRACE.text))
        assert (body[1], len(body) <= 2_000) == (version, True)
