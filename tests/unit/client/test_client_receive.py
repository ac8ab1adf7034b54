"""`AsyncClient.receive`: messages of reliable delivery with `ack` and `reject`, over the lossy transport in memory."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import pytest

from stagepost.client.receiving import ReceivedStream
from stagepost.delivery import ErrNacked, MemoryNetwork, Reject, ReliablePublisher, ReliablePublisherConfig
from stagepost.delivery.envelope import REFUSAL_TEXT_BYTES_MAX, AckEnvelope, AckReceipt, read_ack_envelope
from stagepost.delivery.errors import ErrConfig
from stagepost.delivery.status import AckType, NackReason
from stagepost.errors import LocalProtocolError
from stagepost.ground.loop.virtual_time import run_in_virtual_time

CONFIG = ReliablePublisherConfig(enable_ack=True, critical_peers=("bob",), ack_timeout=5.0, max_retries=1)


class Entered:
    """A transport in memory that can be entered, as that over a node's socket."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def test_a_program_confirms_one_message_and_refuses_the_next_with_words() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        stream = ReceivedStream(Entered(network.join("bob")), ("orders",), 60.0)
        async with stream, ReliablePublisher(network.join("alice"), CONFIG) as publisher:
            first = asyncio.create_task(publisher.publish_with_ack("orders", b"one"))
            received = await anext(stream)
            assert (received.payload, received.topic, received.sender) == (b"one", "orders", "alice")
            received.ack()
            result = await first
            assert (result.message_id, result.acked_by) == (received.message_id, ("bob",))
            with pytest.raises(LocalProtocolError, match="answered before"):
                received.reject()
            second = asyncio.create_task(publisher.publish_with_ack("orders", b"two"))
            (await anext(stream)).reject("sold out")
            with pytest.raises(ErrNacked, match="sold out"):
                await second

    run_in_virtual_time(story())


def test_a_message_without_an_answer_is_refused_for_now_when_the_stream_ends() -> None:
    async def story() -> None:
        network = MemoryNetwork()
        stream = ReceivedStream(Entered(network.join("bob")), ("orders",), 1.0)
        async with ReliablePublisher(network.join("alice"), CONFIG) as publisher:
            async with stream:
                call = asyncio.create_task(publisher.publish_with_ack("orders", b"one"))
                await anext(stream)
                assert [one async for one in stream] == [], "idle for a second"
            with pytest.raises(Exception, match="acknowledge"):
                await call

    run_in_virtual_time(story())


def test_reasons_are_documented_values_and_a_text_alone_is_one() -> None:
    assert (Reject("sold out").reason, Reject("sold out").text) == (NackReason.INVALID, "sold out")
    assert Reject(NackReason.EXPIRED, "too late").reason is NackReason.EXPIRED
    for wrong in (99, NackReason.BUSY, NackReason.NONE):
        with pytest.raises(ErrConfig):
            Reject(wrong)


def test_a_text_on_the_wire_is_bounded_and_printable() -> None:
    long = AckReceipt(bytes(32), 5, AckType.NACK, NackReason.INVALID, None, "ä\x1b" * 500)
    (read,) = read_ack_envelope(AckEnvelope(b"bob", (long,)).encode()).receipts
    assert len(read.text.encode()) <= REFUSAL_TEXT_BYTES_MAX
    assert read.text.isprintable()
    assert (read.reason, read.retry_after_ms) == (NackReason.INVALID, None)
    plain = AckReceipt(bytes(32), 5, AckType.NACK, NackReason.BUSY, 250)
    assert read_ack_envelope(AckEnvelope(b"bob", (plain,)).encode()).receipts == (plain,)
