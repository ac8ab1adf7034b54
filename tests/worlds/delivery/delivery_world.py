"""Publishers and receivers on a network in memory, in virtual time: what tests of reliable delivery have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from stagepost.delivery import (
    DeliveryStatus,
    MemoryNetwork,
    Message,
    Receiver,
    ReceiverConfig,
    ReliablePublisher,
    ReliablePublisherConfig,
)
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.transport import Incoming, IncomingAcks
from stagepost.delivery.transports.memory import MemoryTransport
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time

T = TypeVar("T")

START_UNIX_S = 1_800_000_000.0
TOPIC = "orders"

PENDING, QUEUED, SENT = DeliveryStatus.PENDING, DeliveryStatus.QUEUED, DeliveryStatus.SENT
ACKED, FAILED = DeliveryStatus.ACKED, DeliveryStatus.FAILED


def virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return run_in_virtual_time(main())


def clock() -> LoopClock:
    return LoopClock(START_UNIX_S + asyncio.get_running_loop().time())


def now() -> float:
    return asyncio.get_running_loop().time()


async def settle(turns: int = 50) -> None:
    """Let everything run that needs no time."""
    for _ in range(turns):
        await asyncio.sleep(0)


def a_config(**changes: Any) -> ReliablePublisherConfig:
    """Without spread, so that times are exact."""
    values: dict[str, Any] = {"retry_jitter": 0.0}
    return ReliablePublisherConfig(**(values | changes))


def an_acked_config(*critical: str, **changes: Any) -> ReliablePublisherConfig:
    return a_config(**({"enable_ack": True, "critical_peers": critical or ("bob",)} | changes))


def a_publisher(
    transport: MemoryTransport, config: ReliablePublisherConfig | None = None, **options: Any
) -> ReliablePublisher:
    defaults: dict[str, Any] = {"clock": clock(), "random": Random(1)}
    return ReliablePublisher(transport, config or a_config(), **(defaults | options))


class Watch:
    """Everything that a publisher's observers are told."""

    def __init__(self, publisher: ReliablePublisher) -> None:
        self.events: list[tuple[str, DeliveryStatus, Exception | None]] = []
        self.times: list[float] = []
        publisher.on_delivery_status(self._hear)

    def _hear(self, message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
        self.events.append((message_id, status, error))
        self.times.append(now())

    def path(self, message_id: str) -> list[DeliveryStatus]:
        return [status for about, status, _ in self.events if about == message_id]

    @property
    def paths(self) -> dict[str, list[DeliveryStatus]]:
        return {message_id: self.path(message_id) for message_id, _, _ in self.events}

    def error(self, message_id: str) -> Exception | None:
        """Of the last event."""
        return [error for about, _, error in self.events if about == message_id][-1]


class Listener:
    """A receiver and what its handler got."""

    def __init__(self, network: MemoryNetwork, name: str, *, topic: str = TOPIC, **options: Any) -> None:
        self.got: list[Message] = []
        self.transport = network.join(name)
        self.config = options.pop("config", ReceiverConfig(ack_delay=0.0))
        self.clock = clock()
        self.receiver = Receiver(
            self.transport, {topic: self._handle}, config=self.config, clock=self.clock, **options
        )

    async def _handle(self, message: Message) -> None:
        self.got.append(message)

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.got]

    async def __aenter__(self) -> Listener:
        await self.receiver.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.receiver.stop()


class Peer:
    """A critical peer that answers exactly as it is told: nothing of our receiver is in it."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.transport = network.join(name)
        self.heard: list[Incoming] = []
        self.answer: Callable[[Incoming], AckReceipt | None] = lambda message: None
        self.transport.on_message(self._hear)

    def _hear(self, message: Incoming | IncomingAcks) -> None:
        if isinstance(message, Incoming):
            self.heard.append(message)
            if (receipt := self.answer(message)) is not None:
                self.say(receipt)

    def say(self, receipt: AckReceipt, *, to: str = "alice", sender: str | None = None) -> None:
        self.network.hand(to, IncomingAcks(self.name, sender or self.name, (receipt,)))


def id_of(message: Incoming) -> bytes:
    """The delivery id by the book: Blake2b-256 of a CBOR array, written here with another encoder than ours."""
    import hashlib

    import cbor2

    parts = ["dlv1", message.sender.encode(), message.topic, message.nonce, message.payload]
    return hashlib.blake2b(cbor2.dumps(parts), digest_size=32).digest()


def ack(message: Incoming) -> AckReceipt:
    return AckReceipt(id_of(message), int((START_UNIX_S + now()) * 1_000), AckType.ACK)


def nack(
    message: Incoming, reason: NackReason | int = NackReason.INVALID, retry_after_ms: int | None = None
) -> AckReceipt:
    at_ms = int((START_UNIX_S + now()) * 1_000)
    return AckReceipt(id_of(message), at_ms, AckType.NACK, reason, retry_after_ms)


def assert_balanced(publisher: ReliablePublisher) -> None:
    stats = publisher.stats()
    ended = stats["acked"] + stats["sent_final"] + sum(stats["failed"].values())
    assert stats["published"] == ended + stats["live"], stats
