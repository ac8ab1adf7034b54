"""Validators that come back with an older copy of their disks, or with nothing, in a whole network in virtual time.

Each run hits one validator several times at its worst moment: links lose frames, the validator dies, and the member that may hold
the last of what it said is cut off while it comes back. `SpokenFrames` listens to everything that each validator ever pushed:
two votes or blocks of one place are a second signature.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, defaultdict
from functools import partial
from random import Random

import msgspec

from rigs.chain_messages import address
from stagepost.catchain.block import UPDATE_ID, decode_update
from stagepost.chain.agreement.messages import decode_message
from stagepost.chain.agreement.votes import VOTE_ID, Vote, VoteKind
from stagepost.chain.contracts import ContractKind
from stagepost.chain.node.own_memory import MemoryNote, OwnMemory
from stagepost.chain.node.store import ChainDisk
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.storage.tables import Held
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.links.switchboard import read_said
from stagepost.remp.queue.state import QueueOptions
from stagepost.validator.session_store import SessionsDisk
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_world import PrimesWorld, ValidatorHouse, distinct_sums

_BLOCK, _VOTE = constructor_bytes(UPDATE_ID), constructor_bytes(VOTE_ID)
LIFETIME_MS = 8_000
FOUNDED_S = 26.0
"""Seconds after which all have left the sessions that began with the network: there a lost disk looks like a first start."""
MESSAGE_TIMEOUT_S = 6.0
MESSAGES_EACH = 8
SPEAKS_WITHIN_S = 60.0


class SpokenFrames:
    """Listener to the frames of all validators."""

    def __init__(self) -> None:
        self.votes: dict[tuple[int, bytes, int, VoteKind], set[bytes]] = defaultdict(set)
        self.blocks: dict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
        """By the author's place in the session: others pass blocks on."""

    def hear(self, sender: int, frame: bytes) -> None:
        said = read_said(frame)
        if said is None:
            return
        session_id, inner = said
        if inner.startswith(_VOTE):
            vote = decode_message(inner)
            assert isinstance(vote, Vote)
            self.votes[sender, session_id, vote.slot, vote.kind].add(vote.block)
        elif inner.startswith(_BLOCK):
            block = decode_update(inner)
            self.blocks[block.source, block.incarnation, block.height].add(block.signature)

    def second_signatures(self) -> list[str]:
        found = [
            f"validator {sender}: {len(blocks)} votes {kind.name} in slot {slot} of {session.hex()[:8]}"
            for (sender, session, slot, kind), blocks in self.votes.items()
            if len(blocks) > 1
        ]
        found += [
            f"member {source}: {len(signatures)} blocks at height {height} of {incarnation.hex()[:8]}"
            for (source, incarnation, height), signatures in self.blocks.items()
            if len(signatures) > 1
        ]
        for sender, session, slot, kind in list(self.votes):
            if kind is VoteKind.FINALISE and (sender, session, slot, VoteKind.SKIP) in self.votes:
                found.append(f"validator {sender}: FINALISE and SKIP in slot {slot} of {session.hex()[:8]}")
        return found


class ReturnOutcome(msgspec.Struct):
    faults: list[str]
    returns: Counter[str]
    votes: int
    blocks: int
    final: int


def run_returns(seed: int, *, hurts: int = 2, knows_its_gap: bool = True) -> ReturnOutcome:
    """Play one run with so many returns. Without `knows_its_gap` the validator takes its disk for complete, which is a planted defect."""
    with memoised_signatures():
        return run_in_virtual_time(_Returns(seed, hurts, knows_its_gap).main())


class _Returns:
    def __init__(self, seed: int, hurts: int, knows_its_gap: bool) -> None:
        self.hurts = hurts
        self.random = Random(f"returns {seed}")
        self.seed = seed
        self.knows_its_gap = knows_its_gap
        self.spoken = SpokenFrames()
        self.returns: Counter[str] = Counter()

    async def main(self) -> ReturnOutcome:
        random = self.random
        size = random.choice((4, 4, 7))
        world = self.world = PrimesWorld(
            size,
            self.seed,
            full_nodes=2,
            loss=0.02,
            lifetime_ms=LIFETIME_MS,
            shard_validators=random.choice((0, 5)) if size == 7 else 0,
            queue_options=QueueOptions(message_timeout_s=MESSAGE_TIMEOUT_S),
        )
        tap = world.tap

        def hear(sender: int, frame: bytes) -> None:
            tap(sender, frame)
            if sender < size:
                self.spoken.hear(sender, frame)

        world.overlays.tap = hear
        accounts = [address(ContractKind.SUM_OF_PRIMES, number) for number in range(3)]
        sums = distinct_sums(random, accounts, MESSAGES_EACH)
        for one in sums:
            at = random.uniform(FOUNDED_S, FOUNDED_S + 25.0)
            for house in random.sample(world.full_nodes, random.choice((1, 2))):
                world.at(at + random.uniform(0.0, 3.0), partial(house.submit, one.data))
        await asyncio.sleep(FOUNDED_S)
        victim = random.choice(world.validators)
        for _ in range(self.hurts):
            await self._hurt(victim)
        await world.until(lambda: self._speaks(victim), "the validator speaks again", SPEAKS_WITHIN_S)
        await asyncio.sleep(3.0)
        faults = self.spoken.second_signatures()
        for full in world.full_nodes:
            faults += full.contradictions({one.key_id for one in world.validators})
        faults += [f"validator {one.number} blames {one.blamed}" for one in world.validators if one.blamed]
        faults += [text for one in world.validators for text in one.halted]
        faults += [
            f"validator {one.number} saw {notice}"
            for one in world.validators
            for notice in ("BlamedValidator", "Halt", "DisputedBlock")
            if one.notices[notice]
        ]
        final = len({one for house in world.validators for one in house.final_ids})
        await world.close()
        return ReturnOutcome(faults, self.returns, len(self.spoken.votes), len(self.spoken.blocks), final)

    async def _hurt(self, victim: ValidatorHouse) -> None:
        """Copy the disks, let the validator speak on, kill it while frames get lost, and let it come back with the copy."""
        world, random = self.world, self.random
        await asyncio.sleep(random.uniform(0.5, 6.0))
        is_older = random.random() < 0.6
        chain = copy.deepcopy(victim.chain_disk.synced) if is_older else None
        await asyncio.sleep(random.choice((0.0, 0.003, 0.05)))  # one store after the other
        sessions = copy.deepcopy(victim.sessions_disk.synced) if is_older else None
        await asyncio.sleep(random.choice((0.05, random.uniform(0.1, 8.0))))
        world.overlays.loss = random.choice((0.02, 0.5, 0.8))
        await asyncio.sleep(random.uniform(0.0, 0.6))
        victim.crash()
        others = [one for one in world.validators if one is not victim]
        away = random.choice(others) if random.random() < 0.7 else None
        if away is not None:
            world.overlays.cut.add(away.number)
        world.overlays.loss = 0.02
        await asyncio.sleep(random.uniform(0.0, 1.5))
        self._replace(victim, chain, sessions)
        victim.start()
        self.returns["older" if is_older else "nothing"] += 1
        await asyncio.sleep(random.uniform(0.0, 6.0))
        self._remember(victim)
        if random.random() < 0.3:
            # It dies once more, with the disks that it has now, before anybody knows it again.
            victim.crash()
            await asyncio.sleep(random.uniform(0.0, 1.0))
            victim.start()
            self.returns["again"] += 1
        await asyncio.sleep(random.uniform(0.0, 3.0))
        world.overlays.cut.clear()

    def _replace(self, victim: ValidatorHouse, chain: Held | None, sessions: Held | None) -> None:
        random = self.world.random
        victim.chain_disk = ChainDisk(lambda: random.uniform(0.0005, 0.004))
        victim.sessions_disk = SessionsDisk(lambda: random.uniform(0.0005, 0.004))
        for disk, held in ((victim.chain_disk, chain), (victim.sessions_disk, sessions)):
            if held is not None:
                for name, rows in held.items():
                    disk.synced[name].update(rows)
        if self.knows_its_gap:
            note = MemoryNote(self.world.now_ms, restored="" if chain is None else "a backup")
            victim.memory = OwnMemory(note, lambda: self.world.now_ms)

    def _remember(self, victim: ValidatorHouse) -> None:
        if victim.validator is not None:
            victim.validator.remember_sessions()

    def _speaks(self, victim: ValidatorHouse) -> bool:
        self._remember(victim)
        agreements = [one.member.is_started for one in victim.running.chain.sessions.values()]
        queues = [one.member.is_started for one in victim.running.queues.current.values()]
        return bool(agreements) and all(agreements) and all(queues)
