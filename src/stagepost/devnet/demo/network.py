"""The demonstration: DMQ nodes, a full node, validators and a publisher in one process, over real sockets and
disks.

    run = await run_demo(DemoPlan(messages=200, seed=7), Path("stagepost-demo"))

Most messages end well. Some are made to be refused; of one a validator tells a lie; and in the end so many
validators stop that the rest cannot agree: messages sent then expire. The topics of the folder show the fate
of all of them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from stagepost.chain.message_values import NEVER
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.transport import Transport
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.devnet.demo.dmq import (
    FULL_NODE,
    KEYS_FOLDER,
    NETWORK_MAGIC,
    NODES,
    PROGRAM,
    DemoNode,
    Stranger,
    dmq_nodes,
    make_pools,
)
from stagepost.devnet.demo.messages import DemoMessage, Fate, MessageWatch, demo_messages
from stagepost.devnet.devnet import Devnet, DevnetPlan, HereValidator, devnet
from stagepost.devnet.messages import LIFE_S
from stagepost.errors import ErrorCode, LocalProtocolError, StagepostError
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.full_node.full_node import OnStatus
from stagepost.ground.crypto import ed25519
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.topics.log.file_topic import create_topic
from stagepost.trace.layer_topics import DeliveryEventsTopic, recorded

VALIDATORS = 7
LIAR = 5
"""Place of validator V6."""
MESSAGE_TIMEOUT_S = 8.0
WINDOW = 40
"""Messages without an end at the same time, at most: on a slow machine none has to expire for want of a
processor.
"""
PUBLISHED_WITHIN_S = 60.0
ENDED_WITHIN_S = 120.0
QUEUE_SIZE = 1_000
"""Messages that the publisher's outbox holds at most."""
OUTBOX_FOLDER = "outbox"

Progress = Callable[[int, int], None]


class DemoPlan(msgspec.Struct, frozen=True):
    messages: int = 200
    seed: int = 7

    @property
    def devnet(self) -> DevnetPlan:
        balances = demo_messages(self.messages, self.seed, NEVER).balances
        return DevnetPlan(VALIDATORS, seed=self.seed, message_timeout_s=MESSAGE_TIMEOUT_S, balances=balances)

    @property
    def stopped(self) -> int:
        """Number of validators to stop: one more than the network can spare."""
        return (VALIDATORS - 1) // 3 + 1


class DemoRun(msgspec.Struct, frozen=True):
    """`refused`: how often a DMQ node refused the stranger, by code. `close_up`: the message of which a
    validator lied. `published`: number of messages that the program handed to its publisher.
    """

    published: int
    close_up: bytes
    refused: dict[str, int]


async def run_demo(plan: DemoPlan, data: Path, progress: Progress = lambda sent, count: None) -> DemoRun:
    """Run the demonstration in an empty folder of its own."""
    messages = demo_messages(plan.messages, plan.seed, int(time.time()) + LIFE_S)
    good = [group[0] for group in messages.groups if group[0].fate is Fate.GOOD]
    close_up = good[len(good) // 2]
    followed = MessageWatch(VALIDATORS)
    async with demo_parts(plan.devnet, data, followed.heard) as (network, nodes, publisher):
        lie = _Lie(network, close_up.message_id)
        followed.listeners.append(lie.heard)
        sender = _Sender(publisher, followed, messages.count, progress)
        stranger = asyncio.create_task(Stranger(data).try_everything(nodes[1], messages.count))
        # The first one brings the chain to work; the others shall not be measured by that.
        for groups in (messages.groups[:1], messages.groups[1:]):
            for group in groups:
                await sender.send(group)
            await sender.finished()
            await followed.ends(ENDED_WITHIN_S)
        await stranger
        for validator in network.validators[-plan.stopped :]:
            await validator.close()
        for message in messages.cut_off:
            await sender.send([message])
        await sender.finished()
        await asyncio.sleep(MESSAGE_TIMEOUT_S)
        await followed.timeouts({one.message_id for one in messages.cut_off}, MESSAGE_TIMEOUT_S)
        refused = nodes[1].node.status().rejections
    return DemoRun(sender.sent, close_up.message_id, refused)


@asynccontextmanager
async def demo_parts(
    plan: DevnetPlan,
    data: Path,
    on_status: OnStatus,
    *,
    over: Callable[[Transport], Transport] = lambda transport: transport,
    queue_size: int = QUEUE_SIZE,
) -> AsyncIterator[tuple[Devnet, Sequence[DemoNode], ReliablePublisher]]:
    """Run DMQ nodes, a full node with its validators, and a publisher. `over` may put a layer between the publisher and its node."""
    pools = make_pools(data, plan.seed)
    async with AsyncExitStack() as stack:
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stagepost-")))
        nodes = await stack.enter_async_context(dmq_nodes(data, sockets, pools.values()))
        if len(nodes) != NODES:
            raise LocalProtocolError(f"{len(nodes)} DMQ nodes were started, the demonstration has {NODES}")
        for one in nodes:
            # The topics of the last node, which the full node listens to, are those of the whole network.
            folder = data if one is nodes[-1] else one.data
            await stack.enter_async_context(
                recorded(folder, one.node.intake.on_accepted, one.node.on_supplied)
            )
        network = await stack.enter_async_context(devnet(plan, data, on_status=on_status))
        network.full_node.keep_refused()
        keys = data / KEYS_FOLDER
        to_full_node = await stack.enter_async_context(_transport(nodes[-1], keys / FULL_NODE))
        of_program = await stack.enter_async_context(_transport(nodes[0], keys / PROGRAM))
        await network.ready()
        await network.node.take_deliveries(to_full_node)
        stack.push_async_callback(network.node.stop_deliveries)
        events = DeliveryEventsTopic(create_topic(data, DELIVERY_EVENTS_TOPIC).writer())
        stack.push_async_callback(events.close)
        config = ReliablePublisherConfig(
            enable_ack=True,
            critical_peers=(pools[FULL_NODE],),
            persistence="disk",
            queue_path=str(data / OUTBOX_FOLDER),
            queue_size=queue_size,
            ack_timeout=5.0,
            max_retries=5,
        )
        publisher = ReliablePublisher(over(of_program), config, events=events)
        await stack.enter_async_context(publisher)
        yield network, nodes, publisher


def _transport(node: DemoNode, keys: Path) -> DmqTransport:
    return DmqTransport(node.socket, NETWORK_MAGIC, keys, node_data=node.data)


class _Sender:
    """Publishes reliably, so many at a time that the network keeps up."""

    def __init__(
        self, publisher: ReliablePublisher, followed: MessageWatch, count: int, progress: Progress
    ) -> None:
        self.sent = 0
        self._publisher = publisher
        self._followed = followed
        self._count = count
        self._progress = progress
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, group: Sequence[DemoMessage]) -> None:
        await self._followed.room_for(len(group), WINDOW, ENDED_WITHIN_S)
        for message in group:
            self._followed.follow(message.message_id)
            task = asyncio.create_task(self._publish(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finished(self) -> None:
        """Wait until every message is acknowledged, or refused by the full node."""
        if self._tasks:
            await asyncio.gather(*self._tasks)

    async def _publish(self, message: DemoMessage) -> None:
        try:
            await self._publisher.publish_with_ack(MESSAGES_TOPIC, message.data, timeout=PUBLISHED_WITHIN_S)
        except DeliveryError as error:
            # The full node refuses what a contract refuses; any other error is not part of the plan.
            if message.fate is not Fate.REFUSED and error.code is not ErrorCode.NO_QUORUM:
                raise StagepostError(
                    f"message {message.message_id.hex()} could not be delivered: {error.text}",
                    code=error.code,
                    advice="the log in the data folder says more",
                ) from error
        self.sent += 1
        self._progress(self.sent, self._count)


class _Lie:
    """A false receipt of one validator about one message: that its contract refused it, under an invalid
    signature.
    """

    def __init__(self, network: Devnet, message_id: bytes) -> None:
        self._network = network
        self._message_id = message_id
        self._is_told = False

    def heard(self, receipt: Receipt) -> None:
        """Send the lie as soon as a validator has sent a receipt of the message: then the full node awaits
        receipts.
        """
        if self._is_told or receipt.message_id != self._message_id or receipt.kind.level is Level.FULLNODE:
            return
        self._is_told = True
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        tell_forged(self._network, LIAR, self._message_id)


def tell_forged(network: Devnet, place: int, message_id: bytes) -> None:
    """Let the validator at `place` send the full node a receipt with an invalid signature; nothing if it does not run."""
    liar = network.validators[place]
    assert isinstance(liar, HereValidator), "the demonstration runs in one process"
    if liar.running is None:
        return
    seed = network.plan.seed_of(network.plan.names[place])
    receipt = Receipt(
        ExternalMessageId(message_id),
        Rejected(Level.COLLATOR, "Contract rejected message with error code 52"),
        network.full_node.now_ms,
        key_id(ed25519.public_key(seed)),
    )
    forged = receipt.with_signature(ed25519.sign(seed, b"something else"))
    packet = CombinedReceipt(receipt.source_id, (forged,)).encode()
    for full_node in liar.running.links.linked:
        liar.running.links.tell(full_node, packet)
