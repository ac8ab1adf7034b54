"""Nodes, publishers and a devnet over kept folders: the same ones make a folder and open it again in a later revision.

All keys follow from fixed seeds. DMQ nodes and publishers live at `NOW` by a clock of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.shell.handling import Message, Reject
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.shell.receiver import Receiver
from stagepost.delivery.stores.inbox import InboxStore
from stagepost.delivery.transport import Transport
from stagepost.devnet.devnet import DevnetPlan
from stagepost.devnet.messages import ACCOUNTS, account_of
from stagepost.dmq.message import DmqMessage
from stagepost.ground.loop.clock import Clock, LoopClock
from tests.worlds.dmq.node_processes import NodeProcess
from tests.worlds.dmq.pool_signers import NOW, Signer

# DMQ

RENEWED = (Signer(0, issue_number=1), Signer(0, issue_number=2))
"""One pool that changed its certificate."""
STEADY = (Signer(1, issue_number=4), Signer(2, issue_number=2**63 + 5))
"""Two pools with one certificate each; the number of the second does not fit a signed integer."""
SILENT = Signer(3, issue_number=9)
"""A pool whose messages have expired: the node remembers its certificate number alone."""

SECOND_LIFE_S = NOW + 600
"""When the node was started again: the messages of `SILENT` had expired by then, and the node says so in its floor of time."""
LAST_LIFE_S = SECOND_LIFE_S + 120
"""The start of the life that ended in order: the brief message had expired by then, and no message came later."""
OPENED_AT_S = NOW + 30
"""A clock that was set back below the floor of time, and before the expiry of every message."""


def expired_messages() -> list[DmqMessage]:
    return [SILENT.sign(tag, expires_at=NOW + 60) for tag in range(2)]


def brief_message() -> DmqMessage:
    """Return the first message of the second life, which the last life found expired."""
    return SILENT.sign(50, expires_at=SECOND_LIFE_S + 60)


def kept_messages() -> list[DmqMessage]:
    """Return 20 messages of three pools, in the order of sending."""
    signers = [RENEWED[0]] * 4 + [RENEWED[1]] * 4 + [STEADY[0]] * 6 + [STEADY[1]] * 6
    return [
        signer.sign(100 + number, expires_at=SECOND_LIFE_S + 1_000 + 20 * number)
        for number, signer in enumerate(signers)
    ]


def node_at(unix_s: float, data: Path, pools_file: Path) -> NodeProcess:
    """A real node process whose wall clock begins at `unix_s`."""
    entries = [{"pool_id": signer.pool_id.hex(), "stake": 1} for signer in (RENEWED[1], *STEADY, SILENT)]
    content = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": entries}
    pools_file.write_text(json.dumps(content))
    return NodeProcess(
        data,
        pools_file,
        environment={
            "PYTHONPATH": os.pathsep.join(sys.path)
        },  # it imports from `tests`, wherever it is started
        module=("tests.e2e.clocked_command", str(unix_s)),
    )


# Reliable delivery

ORDERS, CALLS, REFUSED, HANGING = "orders", "calls", "refused", "hanging"
PUBLISHER, RECEIVER, LISTENER = "publisher", "receiver", "listener"


def delivery_clock(after_s: float = 0.0) -> Clock:
    return LoopClock(NOW + after_s)


def publisher_over(transport: Transport, folder: Path, clock: Clock, ack_timeout: float) -> ReliablePublisher:
    config = ReliablePublisherConfig(
        enable_ack=True,
        critical_peers=(RECEIVER,),
        persistence="disk",
        queue_path=str(folder),
        flush_interval=0.02,
        ack_timeout=ack_timeout,
        max_retries=1,
        retry_delay=0.01,
    )
    return ReliablePublisher(transport, config, clock=clock)


class HandledMessages:
    """A receiver's handlers, which note every message that they handle. Those of `HANGING` end when `may_end` is set."""

    def __init__(self, inbox: InboxStore) -> None:
        self.ids: list[str] = []
        self.may_end = asyncio.Event()
        self._inbox = inbox

    def receiver(self, transport: Transport, clock: Clock) -> Receiver:
        handlers = {
            ORDERS: self._order,
            CALLS: self._call,
            REFUSED: self._refuse,
            HANGING: self._wait,
        }
        config = ReceiverConfig(ack_delay=0.0, handlers_per_sender=8)
        return Receiver(transport, handlers, config=config, inbox=self._inbox, clock=clock)

    def _order(self, message: Message) -> None:
        self.ids.append(message.message_id)

    async def _call(self, message: Message) -> None:
        if await self._inbox.claim(message.message_id):
            self.ids.append(message.message_id)

    def _refuse(self, message: Message) -> None:
        self.ids.append(message.message_id)
        raise Reject(text="this topic takes nothing")

    async def _wait(self, message: Message) -> None:
        """Claim, and then hang: after a stop nobody knows whether the handler ended, and only the claim is kept."""
        if await self._inbox.claim(message.message_id):
            self.ids.append(message.message_id)
        await self.may_end.wait()


# Devnet

PLAN = DevnetPlan(validators=3, seed=101, session_lifetime_s=6.0)
UNFINISHED, FURTHER = 20, 21
"""Numbers of messages: one that was sent when too few validators were left, and one that nobody has sent yet."""


def external_message(number: int, kind: ContractKind = ContractKind.SUM_OF_PRIMES) -> bytes:
    account = account_of(b"stores", number % ACCOUNTS)[:-1] + bytes([kind])
    return CanonicalMessage(account, primes_body(2 + number), expires_soon_s()).encode()


# Topics

TOPIC, TOPIC_GROUP = "stagepost.example", "readers"
