"""A publisher and a receiver in processes of their own, for tests that kill them: each reports what it saw as it happens.

Three topics: `ledger`, whose handler writes its effect and its claim in one transaction of its own; `calls`, whose
handler claims in the inbox and then acts; `plain`, which asks for no confirmation.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from rigs.line_reports import Report
from rigs.socket_transport import SocketTransport
from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.identity import delivery_id, identity_bytes
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.shell.receiver import Message, Receiver
from stagepost.delivery.stores.inbox_stores import SqliteInbox, claim_within
from stagepost.delivery.stores.outbox import DeadLetter, OutboxRecord
from stagepost.delivery.stores.outbox_stores import SqliteOutbox
from stagepost.delivery.transport import Outgoing, Published
from tests.worlds.delivery.outbox_records import sent

LANES_PER_KIND = 3
WAITING_MAX = 200
PAUSE_S = 0.005
AFTER_ACT_S = 0.02
"""A handler goes on for a while after its act: a kill falls into that time, and then only the claim knows of the act."""
DEFECTS = ("none", "answers before it writes", "finishes before it sends", "claims without writing")


class HastyOutbox(SqliteOutbox):
    """Planted defect: an insert returns at once, and is written a little later."""

    async def insert(
        self, record: OutboxRecord, dead: Sequence[DeadLetter] = (), *, replayed: int | None = None
    ) -> None:
        self._writer.soon(lambda book: book.insert(record, dead, replayed))


class ForgetfulOutbox(SqliteOutbox):
    """Planted defect: what is stored counts as sent already."""

    async def insert(
        self, record: OutboxRecord, dead: Sequence[DeadLetter] = (), *, replayed: int | None = None
    ) -> None:
        await super().insert(record, dead, replayed=replayed)
        self.mark(sent(record.sequence))
        await self.flush()


class ForgetfulInbox(SqliteInbox):
    """Planted defect: a claim is given and never written, so that only this life knows of it."""

    async def claim(self, delivery_id: bytes | str, keep_until_ms: int | None = None) -> bool:
        assert isinstance(delivery_id, str)
        before = len(self._claimed)
        self._claimed.add(delivery_id)
        return len(self._claimed) > before

    @cached_property
    def _claimed(self) -> set[str]:
        return set()


class ReportingTransport(SocketTransport):
    """Tells which plain messages it was given, before it takes them."""

    def __init__(self, name: str, report: Report) -> None:
        super().__init__(name)
        self._report = report

    async def publish(self, message: Outgoing) -> Published:
        if message.topic == "plain":
            me = identity_bytes(self.self_id)
            self._report.line(delivery_id(me, message.topic, message.nonce, message.payload).hex())
        return await super().publish(message)


async def stay_connected(transport: SocketTransport, socket: Path) -> None:
    while True:
        if not transport.connected_peers:
            with suppress(OSError):
                await transport.dial(socket)
        await asyncio.sleep(0.02)


async def publish(folder: Path, seed: int, defect: str) -> None:
    """Publishes on several lanes until it is killed; with a negative seed, only until everything is delivered."""
    transport = ReportingTransport("publisher", Report(folder / "handed"))
    config = ReliablePublisherConfig(
        enable_ack=True,
        critical_peers=("receiver",),
        queue_size=100_000,
        ack_timeout=0.5,
        max_retries=1_000,
        retry_delay=0.02,
        retry_delay_max=0.1,
        flush_interval=0.1,
    )
    kinds = {"answers before it writes": HastyOutbox, "finishes before it sends": ForgetfulOutbox}
    outbox = kinds.get(defect, SqliteOutbox)(folder / "outbox")
    report = Report(folder / "returned")
    async with ReliablePublisher(transport, config, outbox=outbox) as publisher, asyncio.TaskGroup() as tasks:
        dialling = tasks.create_task(stay_connected(transport, folder / "socket"))
        print("ready", flush=True)
        if seed < 0:
            while publisher.stats()["queue_len"] or publisher.stats()["in_flight"]:
                await asyncio.sleep(PAUSE_S)
            dialling.cancel()
            return
        number = 0

        async def lane(kind: str) -> None:
            nonlocal number
            while True:
                while publisher.stats()["queue_len"] > WAITING_MAX:
                    await asyncio.sleep(PAUSE_S)
                number += 1
                data = f"{seed}-{number}".encode()
                if kind == "acked":
                    message_id = (await publisher.publish_with_ack("ledger", data)).message_id
                else:
                    message_id = await publisher.publish_queued(kind, data, require_ack=kind != "plain")
                report.line(kind, message_id)

        for kind in ("plain", "ledger", "calls", "acked"):
            for _ in range(LANES_PER_KIND):
                tasks.create_task(lane(kind))


async def receive(folder: Path, defect: str) -> None:
    ledger = sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)
    # The process is killed, not the machine.
    ledger.execute("PRAGMA synchronous = OFF")
    ledger.execute("CREATE TABLE IF NOT EXISTS effects (message_id TEXT)")
    calls = Report(folder / "calls")
    transport = SocketTransport("receiver")
    inbox = (ForgetfulInbox if defect == "claims without writing" else SqliteInbox)(folder / "inbox")

    def on_ledger(message: Message) -> None:
        ledger.execute("BEGIN IMMEDIATE")
        if claim_within(ledger, message.message_id):
            ledger.execute("INSERT INTO effects VALUES (?)", (message.message_id,))
        ledger.execute("COMMIT")

    async def on_calls(message: Message) -> None:
        if await inbox.claim(message.message_id):
            calls.line(message.message_id)
            await asyncio.sleep(AFTER_ACT_S)

    handlers = {"plain": lambda message: None, "ledger": on_ledger, "calls": on_calls}
    config = ReceiverConfig(ack_delay=0.005, handlers_per_sender=8)
    async with Receiver(transport, handlers, config=config, inbox=inbox):
        await transport.serve(folder / "socket")
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["publish", folder, seed, defect]:
            asyncio.run(publish(Path(folder), int(seed), defect))
        case ["receive", folder, defect]:
            asyncio.run(receive(Path(folder), defect))
