"""Validators as processes of their own over sockets, with their real stores, and a full node in this one.

    python -m rigs.validator_processes '{"number": 0, "size": 4, "folder": "…"}'

A process reports what it meets as it happens, line by line, and what it knows when it is asked to end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec

from rigs.catchain_keys import public_key_of, seed_of
from rigs.line_reports import Report
from rigs.memory_topic import MemoryTopic
from rigs.one_session_ledger import WHOLE_SHARD, OneSessionLedger
from rigs.remp_overlay_world import FULL_NODE_SEED, SEQNO, parse
from stagepost.catchain.block import decode_update
from stagepost.catchain.effects import Deliver
from stagepost.catchain.member import MemberOptions
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.links import DiallingFullNodeLinks
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import Address, SocketNetwork, TcpAddress, UnixAddress
from stagepost.ground.storage.group_writer import Written
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import OverlayEvents
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.validator.links import ListeningValidatorLinks
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import SessionStore, open_session_store
from stagepost.validator.sessions import Validator

ROOT = Path(__file__).parents[1]
MAGIC = 4_711
SESSION_ID = sha256(b"session over sockets").digest()
START_WITHIN_S = 30.0


class Orders(msgspec.Struct):
    """`dies_at`: the process ends itself at this write of a block, after it and before anybody is told.

    `is_hasty` is a planted defect: others are told of a block of its own first, and it dies before the write.
    """

    number: int
    size: int
    folder: str
    dies_at: int = 0
    is_hasty: bool = False
    start_wait_s: float = 0.5
    ports: tuple[int, ...] = ()
    """Where they listen on the loopback address; at Unix sockets in the folder if there are none."""


def address_of(folder: Path, number: int, ports: Sequence[int] = ()) -> Address:
    return TcpAddress("127.0.0.1", ports[number]) if ports else UnixAddress(folder / f"{number}.socket")


def plan_of(number: int, size: int) -> SessionPlan:
    keys = tuple(public_key_of(one) for one in range(size))
    return SessionPlan(SESSION_ID, keys, number, frozenset(range(size)), SEQNO, WHOLE_SHARD)


def our_end(seed: bytes) -> OurEnd:
    return OurEnd(seed, MAGIC, SocketNetwork(), SystemClock(), Random(seed))


# One validator


def make_mortal(store: SessionStore, orders: Orders) -> None:
    """Ends this process at a chosen write, without a word to anybody."""
    put_block = store.put_block
    left = orders.dies_at

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(session_id: bytes, frame: bytes, written: Written) -> None:
        nonlocal left
        left -= left > 0
        if left or (orders.is_hasty and decode_update(frame).source != orders.number):
            put_block(session_id, frame, written)
        elif orders.is_hasty:
            written()
            asyncio.get_running_loop().call_later(0.2, die)
        else:
            put_block(session_id, frame, die)

    store.put_block = dying  # type: ignore[method-assign]  # a process that dies on order


async def run_validator(orders: Orders) -> None:
    folder = Path(orders.folder)
    number, size = orders.number, orders.size
    report = Report(folder / f"{number}.report")
    end = our_end(seed_of(number))
    listener = LinkListener(end)
    full_node_key = ed25519.public_key(FULL_NODE_SEED)
    links = ListeningValidatorLinks(end, listener, lambda public_key: public_key == full_node_key)
    overlays: list[OverlayLinks] = []
    addresses = [address_of(folder, one, orders.ports) for one in range(size)]
    members = [LinkMember(public_key_of(one), addresses[one]) for one in range(size)]

    def make_overlay(plan: SessionPlan, events: OverlayEvents) -> OverlayLinks:
        overlay = OverlayLinks(end, listener, plan.session_id, plan.index, members)
        overlay.start(events)
        overlays.append(overlay)
        return overlay

    def on_event(plan: SessionPlan, event: SessionEvent) -> None:
        if not isinstance(event, Deliver):
            report.line(type(event).__name__, str(event))

    store = open_session_store(folder / f"store-{number}")
    for sentence in store.damage:
        report.line("Damage", sentence)
    if orders.dies_at:
        make_mortal(store, orders)
    validator = Validator(
        seed_of(number),
        store,
        links,
        make_overlay,
        SystemClock(),
        Random(os.getpid()),
        parse,
        options=SessionOptions(member=MemberOptions(start_wait_s=orders.start_wait_s, idle_timeout_s=4.0)),
        full_node_keys={key_id(full_node_key): full_node_key},
        on_event=on_event,
    )
    await listener.start(addresses[number])
    links.start(validator)
    runner = validator.begin_session(plan_of(number, size))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await until(lambda: stopped.is_set() or len(overlays[0].linked) == size - 1, "links to all other members")
    report.line("Started")
    await stopped.wait()
    with suppress(AssertionError):
        # Whoever stops it has heard of every message; the last bodies may be a moment behind.
        await until(lambda: all(one.body is not None for one in runner.queue.entries()), "bodies", 2.0)
    known = {cached.message_id.hex(): cached.body is not None for cached in runner.queue.entries()}
    facts = {
        "known": known,
        "height": runner.graph.top(number).height,
        "counters": msgspec.to_builtins(runner.counters),
        "links": vars(links.counts),
        "writes": vars_of(store),
    }
    (folder / f"{number}.facts").write_text(json.dumps(facts))
    await validator.close()
    await links.close()
    await listener.close()


def vars_of(store: SessionStore) -> dict[str, int]:
    counters = store._writer.counters
    return {"groups": counters.groups, "jobs": counters.jobs, "failures": counters.failures}


# Those who look after it


class ValidatorProcess:
    def __init__(self, folder: Path, number: int, size: int, ports: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self.ports = ports
        self.number = number
        self.size = size
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, dies_at: int = 0, is_hasty: bool = False) -> None:
        orders = Orders(self.number, self.size, str(self.folder), dies_at, is_hasty, ports=self.ports)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rigs.validator_processes",
                msgspec.json.encode(orders).decode(),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def lines(self) -> list[str]:
        path = self.folder / f"{self.number}.report"
        return path.read_text().splitlines() if path.exists() else []

    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / f"{self.number}.facts").read_text())
        return found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(START_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class OurFullNode:
    """A full node over real links."""

    def __init__(
        self, folder: Path, size: int, on_receipt: Callable[[Receipt], None], ports: Sequence[int] = ()
    ) -> None:
        self.size = size
        self._addresses = [address_of(folder, number, ports) for number in range(size)]
        self.links = DiallingFullNodeLinks(our_end(FULL_NODE_SEED))
        self._statuses = StatusTopic(MemoryTopic(STATUSES_TOPIC).writer(retry_s=RETRY_S))
        self.node = FullNode(
            FULL_NODE_SEED,
            OneSessionLedger(parse, map(public_key_of, range(size)), SEQNO),
            self.links,
            self._statuses,
            KnownSets([]),
            SystemClock(),
            Random(1),
            on_status=on_receipt,
        )

    def start(self) -> None:
        self.node.start()
        self.links.start(self.node)
        self.links.set_validators(
            {public_key_of(number): self._addresses[number] for number in range(self.size)}
        )

    def hand_over(self, data: bytes) -> bytes:
        return self.node.submit(data)

    async def close(self) -> None:
        self.node.close()
        await self.links.close()
        await self._statuses.close()


async def until(condition: Callable[[], bool], what: str, within_s: float = START_WITHIN_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {within_s:g} s") from None


@asynccontextmanager
async def validators_over_sockets(
    folder: Path, size: int, on_receipt: Callable[[Receipt], None], ports: tuple[int, ...] = ()
) -> AsyncIterator[tuple[list[ValidatorProcess], OurFullNode]]:
    """All started and linked to the full node; stopped in the end, whatever happened."""
    processes = [ValidatorProcess(folder, number, size, ports) for number in range(size)]
    node = OurFullNode(folder, size, on_receipt, ports)
    try:
        for process in processes:
            process.start()
        await until(lambda: all("Started" in process.lines() for process in processes), "all started")
        node.start()
        await until(lambda: len(node.links.linked) == size, "the full node has links to all")
        yield processes, node
    finally:
        await node.close()
        for process in processes:
            if not process.is_over:
                process.stop()


if __name__ == "__main__":
    asyncio.run(run_validator(msgspec.json.decode(sys.argv[1], type=Orders)))
