"""Living demonstration: a network that runs until it is stopped, sends a few messages a second, and has faults that a person
sets and takes back.

    async with living_demo(seed, data) as demo:
        await demo.set_fault("kill validator-3", True)
        await demo.set_fault("kill validator-3", False)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import msgspec

from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.transport import (
    MessageCallback,
    Outgoing,
    Published,
    SendFailed,
    Transport,
    Unsubscribe,
)
from stagepost.devnet.demo.network import demo_parts, tell_forged
from stagepost.devnet.devnet import Devnet, DevnetPlan
from stagepost.devnet.messages import ACCOUNTS, SumMessage, account_of
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.full_node.status import full_node_status
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level

log = logging.getLogger(__name__)

VALIDATORS = 4
"""Validators: the network can spare one of them."""
MESSAGE_TIMEOUT_S = 30.0
EVERY_S = 0.4
"""Seconds between two messages."""
QUEUE_SIZE = 60
FILL_AT_ONCE = 10
"""Messages that go into the outbox at a time while a person fills it."""
ACK_WITHIN_S = 20.0
ACKED_AT_ONCE_MAX = 20
"""Acknowledged deliveries under way at most; further messages are sent without waiting for an acknowledgement."""
LIAR, CUT_OFF = 1, 0
"""Places of the validator that forges receipts, and of the one whose link to the full node is cut."""
FORGE, FILL, CUT, KILL = "forge", "fill", "cut", "kill"


class DemoFault(msgspec.Struct, frozen=True):
    """Fault that a person can set. `key` names it in requests."""

    key: str
    title: str
    about: str
    is_on: bool


class GatedTransport:
    """Transport that can be shut: then it has no peers and takes no message."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._is_shut = False
        self._watchers: list[Callable[[int], None]] = []
        inner.on_connectivity(self._changed)

    def shut(self, is_shut: bool) -> None:
        self._is_shut = is_shut
        self._changed(self._inner.connected_peers)

    def _changed(self, peers: int) -> None:
        for watcher in [*self._watchers]:
            watcher(0 if self._is_shut else peers)

    @property
    def self_id(self) -> str:
        return self._inner.self_id

    @property
    def max_payload(self) -> int:
        return self._inner.max_payload

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return self._inner.payload_room(topic, ackers)

    @property
    def connected_peers(self) -> int:
        return 0 if self._is_shut else self._inner.connected_peers

    async def publish(self, message: Outgoing) -> Published:
        if self._is_shut:
            raise SendFailed("a person has cut the publisher off", costs_attempt=False)
        return await self._inner.publish(message)

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        await self._inner.publish_acks(receipts)

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def on_message(self, callback: MessageCallback) -> Unsubscribe:
        return self._inner.on_message(callback)


class LivingDemo:
    """Network in this process. Faults may be set in any combination; each is taken back by itself."""

    def __init__(self, network: Devnet, publisher: ReliablePublisher, gate: GatedTransport) -> None:
        self._network = network
        self._publisher = publisher
        self._gate = gate
        self._on: set[str] = set()
        self._numbers = count()
        self._acked: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self._forged_for: bytes | None = None

    @property
    def faults(self) -> list[DemoFault]:
        """Return every fault, whether it is set or not."""
        names = self._network.plan.names
        told = [(f"{KILL} {name}", f"Kill {name}", "It ends, and its links with it.") for name in names[:-1]]
        told += [
            (FORGE, "Forge receipts", f"{names[LIAR]} sends receipts with an invalid signature."),
            (FILL, "Fill the outbox", "The publisher loses its node, and messages wait in its outbox."),
            (CUT, "Cut a link", f"The full node keeps no link to {names[CUT_OFF]}."),
        ]
        return [DemoFault(key, title, about, key in self._on) for key, title, about in told]

    async def set_fault(self, key: str, is_on: bool) -> None:
        """Set the fault, or take it back. `StagepostError` if there is no such fault."""
        if key not in {fault.key for fault in self.faults}:
            raise StagepostError(
                f"there is no fault {key!r}", code=ErrorCode.PROTOCOL_REQUEST, advice="the page lists them"
            )
        async with self._changing:
            if is_on is (key in self._on):
                return
            log.warning("fault", extra={"fault": key, "is_on": is_on})
            if key.startswith(KILL):
                member = self._network.members[key.removeprefix(f"{KILL} ")]
                await (member.kill() if is_on else member.start())
            elif key == FILL:
                self._gate.shut(is_on)
            elif key == CUT:
                cut = [self._network.network.validators[CUT_OFF].key] if is_on else []
                self._network.node.cut_links(cut)
            (self._on.add if is_on else self._on.discard)(key)

    def heard(self, receipt: Receipt) -> None:
        """Forge one receipt for each message, while that fault is set: when validators have begun to answer for it."""
        if FORGE not in self._on or receipt.kind.level is Level.FULLNODE:
            return
        if receipt.message_id != self._forged_for:
            self._forged_for = receipt.message_id
            asyncio.get_running_loop().call_soon(tell_forged, self._network, LIAR, receipt.message_id)

    async def send_for_ever(self) -> None:
        """Send messages at a steady pace, every second one with an acknowledgement; fill the outbox while that is wished."""
        while True:
            waiting = self._waiting
            if FILL in self._on:
                for _ in range(min(FILL_AT_ONCE, QUEUE_SIZE - waiting)):
                    await self._send_queued(next(self._numbers))
            elif waiting < QUEUE_SIZE // 2:
                number = next(self._numbers)
                if number % 2 and len(self._acked) < ACKED_AT_ONCE_MAX:
                    task = asyncio.create_task(self._send_acked(self._data(number)))
                    self._acked.add(task)
                    task.add_done_callback(self._acked.discard)
                else:
                    await self._send_queued(number)
            await asyncio.sleep(EVERY_S)

    @property
    def _waiting(self) -> int:
        found = self._publisher.stats()["live"]
        assert isinstance(found, int), "a number by its name"
        return found

    def _data(self, number: int) -> bytes:
        account = account_of(b"living", number % ACCOUNTS)
        return SumMessage(account, 2 + number // ACCOUNTS).data(self._network.full_node.now_ms)

    async def _send_queued(self, number: int) -> None:
        with suppress(DeliveryError):
            await self._publisher.publish_queued(MESSAGES_TOPIC, self._data(number))

    async def _send_acked(self, data: bytes) -> None:
        with suppress(DeliveryError):  # a network without a quorum acknowledges nothing
            await self._publisher.publish_with_ack(MESSAGES_TOPIC, data, timeout=ACK_WITHIN_S)

    def stop(self) -> None:
        for task in self._acked:
            task.cancel()


@asynccontextmanager
async def living_demo(seed: int, data: Path) -> AsyncIterator[LivingDemo]:
    """Run the network in an empty folder of its own, as long as the context lasts."""
    plan = DevnetPlan(VALIDATORS, seed=seed, message_timeout_s=MESSAGE_TIMEOUT_S)
    gates: list[GatedTransport] = []
    watchers: list[LivingDemo] = []

    def gated(transport: Transport) -> Transport:
        gates.append(GatedTransport(transport))
        return gates[0]

    def heard(receipt: Receipt) -> None:
        for watcher in watchers:
            watcher.heard(receipt)

    async with demo_parts(plan, data, heard, over=gated, queue_size=QUEUE_SIZE) as (network, _, publisher):
        demo = LivingDemo(network, publisher, gates[0])
        watchers.append(demo)
        timeout_ms = int(MESSAGE_TIMEOUT_S * 1_000)
        async with full_node_status(network.node, data, 0, message_timeout_ms=timeout_ms):
            sending = asyncio.create_task(demo.send_for_ever())
            try:
                yield demo
            finally:
                sending.cancel()
                demo.stop()
                with suppress(asyncio.CancelledError):
                    await sending
