"""Validators of the embedded chain and full nodes that follow it: the real shell in virtual time, with links in memory
in place of sockets and a simulated disk.

Links keep their order, delay and, where a run says so, lose what they carry. A crash takes what was not written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from rigs.agreement_keys import public_key_of, seed_of
from rigs.chain_processes import Pool
from rigs.memory_overlays import MemoryOverlays
from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX
from stagepost.chain.agreement.effects import FinalisedBlock
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.configuration import Configuration
from stagepost.chain.genesis import Genesis
from stagepost.chain.node.agreement_runner import Notice
from stagepost.chain.node.follower import ChainFollower, FollowerOptions
from stagepost.chain.node.store import ChainDisk, ChainStore, MemoryChainStore
from stagepost.chain.node.validator import ChainOptions, ChainValidator
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import LoopClock
from stagepost.remp.ledger import (
    LedgerEvent,
    LedgerSession,
)
from stagepost.remp.links.overlay import Answered, OverlayEvents
from stagepost.remp.message import ExternalMessage
from tests.worlds.chain import agreement_checker
from tests.worlds.chain.chain_validators import genesis_of
from tests.worlds.chain.chain_world import START_MS

OPTIONS = ChainOptions(
    MemberOptions(start_wait_s=0.2, ask_every_s=0.2, ask_when_idle_s=1.0), FollowerOptions(ask_every_s=0.5)
)
CARRIED_MAX = 16
"""Objects that wait on one link; what comes on top is not taken, as by a slow peer."""


class MemoryLinks:
    """One end's links to all others."""

    def __init__(self, world: ChainOverlayWorld, place: int, events: OverlayEvents) -> None:
        self.world = world
        self.place = place
        self.events = events
        self.is_up = True
        self.refused: list[tuple[int, str, str]] = []
        self.carried: Counter[int] = Counter()

    def push(self, peer: int, frame: bytes) -> bool:
        assert len(frame) <= OBJECT_BYTES_MAX
        if self.carried[peer] >= CARRIED_MAX:
            return False
        self.world.counts["push"] += 1
        self.carried[peer] += 1
        return self._to(peer, lambda events: events.pushed(self.place, frame))

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        assert len(query) <= OBJECT_BYTES_MAX
        loop = asyncio.get_running_loop()
        pending = [answered]

        def answer_once(data: bytes | None) -> None:
            timer.cancel()
            if pending and self.is_up:
                pending.pop()(data)

        timer = loop.call_later(timeout_s, answer_once, None)

        def reply(data: bytes) -> None:
            assert len(data) <= OBJECT_BYTES_MAX
            self.world.wires.carry(peer, self.place, lambda: answer_once(data))

        self.world.counts["query"] += 1
        if not self._to(peer, lambda events: events.asked(self.place, query, reply)):
            loop.call_soon(answer_once, None)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self.refused.append((peer, rule, text))

    def _to(self, peer: int, act: Callable[[OverlayEvents], None]) -> bool:
        def arrive() -> None:
            there = self.world.links.get(peer)
            if there is None:
                return
            try:
                act(there.events)
            except DecodeError as error:
                self.world.malformed.append(error.text)

        def leave() -> None:
            self.carried[peer] = max(0, self.carried[peer] - 1)

        asyncio.get_running_loop().call_later(self.world.wires.delay_s[1], leave)
        return peer in self.world.links and self.world.wires.carry(self.place, peer, arrive)


class ChainHouse(Pool):
    """One machine: what outlives a crash, and the process that does not. Places behind the validators are full nodes."""

    def __init__(self, world: ChainOverlayWorld, place: int) -> None:
        super().__init__(world.offered)
        self.world = world
        self.place = place
        self.is_full_node = place >= world.size
        self.disk = ChainDisk(lambda: world.random.uniform(0.0005, 0.004))
        self.is_safe = True
        self.store: ChainStore | None = None
        self.validator: ChainValidator | None = None
        self.follower: ChainFollower | None = None
        self.events: list[LedgerEvent] = []
        self.notices: list[tuple[LedgerSession, Notice]] = []
        self.finals: dict[bytes, list[FinalisedBlock]] = {}

    @property
    def running(self) -> ChainFollower:
        assert self.follower is not None
        return self.follower

    def start(self) -> None:
        world = self.world
        self.store = MemoryChainStore(
            self.disk, world.genesis, keeps_all=world.keeps_all, is_safe=self.is_safe
        )
        random = Random(world.random.random())
        if self.is_full_node:
            self.follower = ChainFollower(
                world.genesis,
                self.store,
                world.public_keys,
                public_key_of(self.place),
                world.clock,
                random,
                self.heard,
                OPTIONS.follower,
            )
            world.join(self.place, self.follower.board, self.follower.start)
            return
        self.validator = ChainValidator(
            world.genesis,
            seed_of(self.place),
            self.store,
            world.public_keys,
            world.clock,
            random,
            collator=self,
            check_messages=world.check_messages,
            on_events=self.heard,
            on_notice=lambda session, notice: self.notices.append((session, notice)),
            options=OPTIONS,
        )
        self.validator.on_finalised = self.finalised
        self.follower = self.validator.follower
        world.join(self.place, self.validator.board, self.validator.start)

    def crash(self) -> None:
        """Power is cut: what was not written is gone, and nothing is said any more."""
        assert self.follower is not None
        self.world.leave(self.place)
        (self.follower if self.validator is None else self.validator).stop()
        self.disk.crash()
        self.validator = self.follower = None

    # What happens

    def heard(self, events: Sequence[LedgerEvent]) -> None:
        self.events += events
        super().heard(events)

    def finalised(self, session: LedgerSession, block: FinalisedBlock) -> None:
        certificate = block.certificate.encode()
        agreement_checker.read_certificate(certificate, session.public_keys, session.session_id)
        known = self.world.final.setdefault((session.session_id, block.slot), block.block_hash)
        assert known == block.block_hash, f"two blocks are final in slot {block.slot}"
        self.finals.setdefault(session.session_id, []).append(block)


class ChainOverlayWorld:
    """To be made inside of a virtual-time loop."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        full_nodes: int = 0,
        loss: float = 0.0,
        delay_s: tuple[float, float] = (0.001, 0.01),
        balances: tuple[tuple[bytes, int], ...] = (),
        keeps_all: bool = True,
        configure: Callable[[Configuration], Configuration] = lambda one: one,
    ) -> None:
        self.size = size
        self.random = Random(seed)
        self.keeps_all = keeps_all
        genesis = genesis_of(size, balances)
        self.genesis = Genesis(
            genesis.name, genesis.time_ms, configure(genesis.configuration), genesis.balances
        )
        self.clock = LoopClock((START_MS + 1_000) / 1_000)
        self.wires = MemoryOverlays(Random(seed + 1), delay_s=delay_s, loss=loss)
        self.public_keys = tuple(public_key_of(place) for place in range(size + full_nodes))
        assert self.public_keys[0] == ed25519.public_key(seed_of(0))
        self.links: dict[int, MemoryLinks] = {}
        self.counts: Counter[str] = Counter()
        self.malformed: list[str] = []
        self.offered: dict[bytes, ExternalMessage] = {}
        self.final: dict[tuple[bytes, int], bytes] = {}
        self.check_messages: (
            Callable[[LedgerSession, Sequence[ExternalMessage], Callable[[str | None], None]], None] | None
        ) = None
        self.houses = [ChainHouse(self, place) for place in range(size + full_nodes)]

    @property
    def validators(self) -> list[ChainHouse]:
        return self.houses[: self.size]

    def start(self) -> None:
        for house in self.houses:
            house.start()

    def join(self, place: int, events: OverlayEvents, start: Callable[[MemoryLinks], None]) -> None:
        links = MemoryLinks(self, place, events)
        self.links[place] = links
        start(links)
        for other in list(self.links.values()):
            if other.place != place:
                links.events.linked(other.place)
                other.events.linked(place)

    def leave(self, place: int) -> None:
        self.links.pop(place).is_up = False

    def offer(self, message: ExternalMessage) -> None:
        """As the queue would: every validator has it."""
        self.offered[message.message_id] = message
        for house in self.validators:
            house.pending[message.message_id] = message
            if house.validator is not None:
                for session_id in house.validator.sessions:
                    house.validator.messages_wait(session_id)

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 120.0) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within_s
        while not condition():
            assert loop.time() < end, f"{what}: not within {within_s:g} s of virtual time"
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Nobody said what is malformed, nobody was refused, and nobody follows another chain than the others."""
        assert self.malformed == []
        for links in self.links.values():
            assert links.refused == [], links.refused
        for house in self.houses:
            assert house.follower is None or house.follower.fault is None

    async def close(self) -> None:
        for house in self.houses:
            if house.validator is not None:
                await house.validator.close()
            elif house.follower is not None:
                await house.follower.close()
