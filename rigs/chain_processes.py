"""Validators of the embedded chain over real, authenticated sockets with their real stores: each a process of its own, or
several in one.

    python -m rigs.chain_processes '{"number": 0, "size": 4, "folder": "…", …}'

Messages are numbers in a file that everybody reads: so every validator has them, as the queue would see to. A process
reports what it meets as it happens, line by line, and the times that it took when it is asked to end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec

from rigs.agreement_keys import public_key_of, seed_of
from rigs.chain_messages import some_primes
from rigs.line_reports import Report
from rigs.validator_processes import address_of, our_end
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.configuration import ChainValidator as SetMember
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.genesis import Genesis
from stagepost.chain.node.agreement_runner import AgreementRunner
from stagepost.chain.node.store import ChainStore, open_chain_store
from stagepost.chain.node.validator import ChainOptions, ChainValidator
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import Address
from stagepost.ground.storage.group_writer import Written
from stagepost.remp.ledger import (
    CandidateBuilt,
    CandidateLost,
    CandidateRefused,
    CollatedBlock,
    LedgerEvent,
    LedgerSession,
    MasterApplied,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.remp.message import ExternalMessage
from stagepost.remp.shard import BlockId

ROOT = Path(__file__).parents[1]
MESSAGES_FILE = "messages"
LOOK_FOR_MESSAGES_S = 0.01
STOP_WITHIN_S = 30.0


class Orders(msgspec.Struct):
    """`dies_at`: the process ends itself at this write of what it says, after it and before anybody hears of it."""

    number: int
    size: int
    folder: str
    genesis_ms: int
    lifetime_ms: int = 250_000
    ports: tuple[int, ...] = ()
    dies_at: int = 0
    start_wait_s: float = 0.3
    keeps_all: bool = True


MESSAGES_LIVE_S = 1_500
"""Seconds after the genesis at which messages of a run expire; longer than any run."""


def network_genesis(size: int, time_ms: int, lifetime_ms: int) -> Genesis:
    keys = [public_key_of(number) for number in range(size)]
    members = tuple(SetMember(key, sha256(key).digest()) for key in keys)
    configuration = Configuration(
        ValidatorSet(time_ms, time_ms + 86_400_000, members),
        master_lifetime_ms=lifetime_ms,
        shard_lifetime_ms=lifetime_ms,
    )
    return Genesis("processes", time_ms, configuration)


def numbered_message(number: int, genesis_ms: int) -> ExternalMessage:
    """Return a message that all processes of a network make alike."""
    return some_primes(number, salt=number, expires_at_s=genesis_ms // 1_000 + MESSAGES_LIVE_S)


class Pool:
    """The messages that wait, as a queue would know them."""

    def __init__(self, offered: dict[bytes, ExternalMessage] | None = None) -> None:
        """`offered`: all messages of a network, where somebody else keeps them."""
        self.offered = {} if offered is None else offered
        self.pending: dict[bytes, ExternalMessage] = {}
        self.candidates: dict[BlockId, tuple[bytes, ...]] = {}
        self.included: dict[bytes, int] = {}
        self.blocks: dict[BlockId, None] = {}
        """Final ones that hold messages."""

    def add_external(self, message: ExternalMessage) -> None:
        self.offered[message.message_id] = message
        if message.message_id not in self.included:
            self.pending[message.message_id] = message

    def has_messages(self, session: LedgerSession) -> bool:
        return bool(self.take(session))

    def has_expired(self, session: LedgerSession, after_ms: int, until_ms: int) -> bool:
        return False

    def take(self, session: LedgerSession) -> Sequence[ExternalMessage]:
        held = {message_id for ids in self.candidates.values() for message_id in ids}
        return [
            one
            for message_id, one in self.pending.items()
            if message_id not in held and session.shard.holds(one.workchain, one.account)
        ]

    def collated(self, session: LedgerSession, collated: CollatedBlock) -> None:
        pass

    def heard(self, events: Sequence[LedgerEvent]) -> None:
        for event in events:
            match event:
                case CandidateBuilt(_, block_id, message_ids):
                    self.candidates[block_id] = message_ids
                case CandidateLost(_, block_id) | CandidateRefused(_, block_id):
                    self.candidates.pop(block_id, None)
                case ShardCommitted(_, block_id, message_ids):
                    self.candidates.pop(block_id, None)
                    for message_id in message_ids:
                        self.pending.pop(message_id, None)
                case ShardDropped(_, block_id, message_ids):
                    self.candidates.pop(block_id, None)
                    for message_id in message_ids:
                        if message_id in self.offered and message_id not in self.included:
                            self.pending[message_id] = self.offered[message_id]
                case MasterApplied(blocks=blocks):
                    for block in blocks:
                        if block.messages:
                            self.blocks[block.block_id] = None
                        for message in block.messages:
                            count = self.included.get(message.message_id, 0)
                            self.included[message.message_id] = count + 1
                            self.pending.pop(message.message_id, None)


class NumberFile:
    """Lines that somebody else appends to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._rest = b""

    def new(self) -> list[int]:
        *lines, self._rest = (self._rest + os.read(self._file, 1 << 20)).split(b"\n")
        return [int(line) for line in lines]


class Stopwatch:
    """Of the blocks that this validator proposed: when they were built, how long until their certificate, and until the
    masterchain held them; and when blocks of anybody became final. By a clock that all processes of a machine share."""

    def __init__(self) -> None:
        self._built: dict[BlockId, float] = {}
        self.to_certificate: list[tuple[float, float]] = []
        self.to_master: list[tuple[float, float]] = []
        self.blocks: list[float] = []
        self.master_blocks: list[float] = []

    def facts(self) -> dict[str, list[tuple[float, float]] | list[float]]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def heard(self, events: Sequence[LedgerEvent]) -> None:
        now = time.perf_counter()
        for event in events:
            match event:
                case CandidateBuilt(_, block_id, _, is_own=True):
                    self._built[block_id] = now
                case ShardCommitted(_, block_id, _):
                    self.blocks.append(now)
                    began = self._built.get(block_id)
                    if began is not None:
                        self.to_certificate.append((began, now - began))
                case MasterApplied(blocks=blocks):
                    self.master_blocks.append(now)
                    for block in blocks:
                        began = self._built.pop(block.block_id, None)
                        if began is not None:
                            self.to_master.append((began, now - began))


class ChainNode:
    """One validator with its listener, its links and its store."""

    def __init__(self, orders: Orders, report: Report) -> None:
        folder = Path(orders.folder)
        number, size = orders.number, orders.size
        genesis = network_genesis(size, orders.genesis_ms, orders.lifetime_ms)
        self.pool = Pool()
        self.watch = Stopwatch()
        self._report = report
        self.store = open_chain_store(folder / f"validator-{number}", genesis, keeps_all=orders.keeps_all)
        for sentence in self.store.damage:
            report.line("Damage", sentence)
        if orders.dies_at:
            make_mortal(self.store, orders.dies_at)
        self._addresses: list[Address] = [address_of(folder, one, orders.ports) for one in range(size)]
        self._number = number
        self.end = our_end(seed_of(number))
        self.listener = LinkListener(self.end)
        keys = [public_key_of(one) for one in range(size)]
        self.validator = ChainValidator(
            genesis,
            seed_of(number),
            self.store,
            keys,
            SystemClock(),
            Random(os.getpid() + number),
            collator=self.pool,
            on_events=self._heard,
            on_notice=lambda session, notice: report.line(type(notice).__name__, str(notice)),
            options=ChainOptions(MemberOptions(start_wait_s=orders.start_wait_s)),
        )
        for block in self.validator.ledger.history(0):
            self.pool.included |= {message.message_id: 1 for message in block.messages}
        members = [LinkMember(key, address) for key, address in zip(keys, self._addresses, strict=True)]
        self.overlay = OverlayLinks(self.end, self.listener, self.validator.overlay_id, number, members)

    async def start(self) -> None:
        await self.listener.start(self._addresses[self._number])
        self.overlay.start(self.validator.board)
        self.validator.start(self.overlay)

    async def close(self) -> None:
        await self.validator.close()
        await self.overlay.close()
        await self.listener.close()

    def add_message(self, number: int) -> None:
        self.add_external(numbered_message(number, self.validator.follower.genesis.time_ms))

    def add_external(self, message: ExternalMessage) -> None:
        self.pool.add_external(message)
        for session_id in self.validator.sessions:
            self.validator.messages_wait(session_id)

    @property
    def is_ready(self) -> bool:
        runners: list[AgreementRunner] = list(self.validator.sessions.values())
        return all(runner.member.is_started for runner in runners)

    def _heard(self, events: Sequence[LedgerEvent]) -> None:
        self.watch.heard(events)
        self.pool.heard(events)


def make_mortal(store: ChainStore, left: int) -> None:
    """Ends this process at a chosen write, without a word to anybody."""
    put_records = store.put_records

    def dying(session_id: bytes, records: Sequence[object], written: Written) -> None:
        nonlocal left
        left -= 1
        if left:
            put_records(session_id, records, written)  # type: ignore[arg-type]
        else:
            put_records(session_id, records, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type]

    store.put_records = dying  # type: ignore[method-assign]  # a process that dies on order


async def run_validator(orders: Orders) -> None:
    folder = Path(orders.folder)
    report = Report(folder / f"{orders.number}.report")
    node = ChainNode(orders, report)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await node.start()
    messages = NumberFile(folder / MESSAGES_FILE)
    told, is_told = 0, False
    while not stopped.is_set():
        if node.is_ready and not is_told:
            is_told = True
            report.line("Started")
        for number in messages.new():
            node.add_message(number)
        if len(node.pool.included) > told:
            told = len(node.pool.included)
            report.line("Included", str(told))
        await asyncio.sleep(LOOK_FOR_MESSAGES_S)
    facts = {
        "included": {message_id.hex(): count for message_id, count in node.pool.included.items()},
        "times": node.watch.facts(),
        "master": node.validator.ledger.master.hash.hex(),
        "fault": str(node.validator.follower.fault or ""),
    }
    (folder / f"{orders.number}.facts").write_text(json.dumps(facts))
    await node.close()


class ChainProcess:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.folder = Path(orders.folder)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.folder / f"validator-{self.orders.number}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def start(self, *, dies_at: int = 0) -> None:
        orders = msgspec.structs.replace(self.orders, dies_at=dies_at)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rigs.chain_processes",
                msgspec.json.encode(orders).decode(),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )

    def lines(self) -> list[str]:
        path = self.folder / f"{self.orders.number}.report"
        return path.read_text().splitlines() if path.exists() else []

    def included(self) -> int:
        counts = [int(line.split()[1]) for line in self.lines() if line.startswith("Included")]
        return max(counts, default=0)

    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / f"{self.orders.number}.facts").read_text())
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def say(folder: Path, numbers: Sequence[int]) -> None:
    """Messages for every validator."""
    with (folder / MESSAGES_FILE).open("a") as file:
        file.write("".join(f"{number}\n" for number in numbers))


if __name__ == "__main__":
    asyncio.run(run_validator(msgspec.json.decode(sys.argv[1], type=Orders)))
