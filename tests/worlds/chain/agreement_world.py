"""Validators that agree on a chain, in virtual time: a seeded event queue in place of network and disk.

Links lose, delay and reorder; disks take time, and a crash loses what was not written. Above each validator stands a
small ledger that counts blocks, and refuses to judge a block before its parent. Everything that honest validators say
is overheard and held against what they said before.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from random import Random

from rigs.agreement_keys import public_key_of, seed_of
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.effects import (
    Ask,
    BlamedValidator,
    Broadcast,
    CheckCandidate,
    DisputedBlock,
    Effect,
    FinalisedBlock,
    Halt,
    Persist,
    Propose,
    Record,
    RecoveredVotes,
    RefusedPeer,
    Reply,
    StalledSlot,
)
from stagepost.chain.agreement.evidence import Evidence
from stagepost.chain.agreement.member import FinalPoint, Member
from stagepost.chain.agreement.messages import Proposal, decode_message
from stagepost.chain.agreement.pacing import NEVER, MemberOptions
from stagepost.chain.agreement.queries import decode_answer
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import Vote, VoteKind
from tests.worlds.catchain.members_world import Hearer, MembersWorld, answer_came, frame_came, verify_once
from tests.worlds.chain import agreement_checker

SESSION_ID = sha256(b"agreement").digest()
START = sha256(b"start of the chain").digest()
OPTIONS = MemberOptions(
    start_wait_s=0.3, query_timeout_s=0.5, ask_every_s=0.3, ask_when_idle_s=2.0, want_pause_s=2.0
)


def session_of(size: int) -> Session:
    return Session(SESSION_ID, tuple(public_key_of(one) for one in range(size)), START)


def payload_of(height: int, content: bytes) -> bytes:
    return struct.pack("<I", height) + content


class Disk:
    """What survives a crash: the records of agreement, and the final blocks that those above keep."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.chain: list[FinalisedBlock] = []
        self.ever_written: set[bytes] = set()

    def image(self) -> Disk:
        copy = Disk()
        copy.records, copy.chain = list(self.records), list(self.chain)
        copy.ever_written = set(self.ever_written)
        return copy

    def write(self, records: tuple[Record, ...]) -> None:
        self.records += records
        self.ever_written.update(record.frame for record in records)

    def write_block(self, block: FinalisedBlock) -> None:
        self.chain.append(block)
        self.records = [one for one in self.records if one.slot is None or one.slot > block.slot]


class Peer(Hearer):
    is_honest = True

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.disk = Disk()
        self.life = 0
        self.is_up = False
        self.has_old_disk = False
        self.to_say: list[bytes] = []
        self.chain: list[FinalisedBlock] = []
        self.heights: dict[bytes, int] = {}
        self.evidence: list[Evidence] = []
        self.refused: list[RefusedPeer] = []
        self.disputed: list[DisputedBlock] = []
        self.stalled: list[StalledSlot] = []
        self.recovered = 0
        self.halted: str | None = None
        self.disk_free_at = 0.0
        self.rings_at = NEVER
        self.member: Member

    # Life

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.is_up = True
        self.rings_at = NEVER
        self.disk_free_at = world.now
        self.chain = list(self.disk.chain)
        self.heights = {START: 0} | {one.block_hash: number for number, one in enumerate(self.chain, start=1)}
        last = self.chain[-1] if self.chain else None
        self.member = Member(
            world.session,
            self.index,
            seed_of(self.index),
            Random(world.random.random()),
            world.now,
            world.options,
            final=FinalPoint(last.slot, last.block_hash) if last is not None else None,
            archive=self.archived,
            verify=verify_once,
        )
        self.perform(self.member.restore([one.frame for one in self.disk.records], world.now))
        if self.to_say:
            self.perform(self.member.wants_block(world.now))

    def crash_for(self, seconds: float) -> None:
        self.crash()
        self.world.after(seconds, self.start_if_down)

    def archived(self, slot: int) -> bytes | None:
        return next((one.record for one in self.disk.chain if one.slot >= slot), None)

    def say(self, content: bytes) -> None:
        self.to_say.append(content)
        if self.is_up:
            self.perform(self.member.wants_block(self.world.now))

    def set_alarm(self) -> None:
        """Wake the member by its `next_wake`, unless it will be woken earlier anyway: after every event, as the real
        runner does. A member that is woken only as planned at its last tick never sees a clock that an event set anew."""
        rings_at = max(self.world.now + 1e-4, self.member.next_wake)
        if self.is_up and rings_at < self.rings_at:
            self.rings_at = rings_at
            self.world.at(rings_at, partial(self.wake, self.life, rings_at))

    def wake(self, life: int, rings_at: float) -> None:
        if self.is_up and (life, rings_at) == (self.life, self.rings_at):
            self.rings_at = NEVER
            self.perform(self.member.tick(self.world.now))

    # Effects

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.perform_one(effect)
        self.set_alarm()

    def perform_one(self, effect: Effect) -> None:
        world, life = self.world, self.life
        match effect:
            case Persist(number, records):
                self.after_disk(partial(self.written, life, number, records))
            case Broadcast(frame):
                self.broadcast(frame)
            case Ask(peer, number, query):
                self.ask(peer, number, query, world.options.query_timeout_s)
            case Reply(peer, number, answer):
                self.reply(peer, number, answer)
            case Propose(slot, parent_hash, is_wanted):
                world.after(0.002, partial(self.propose, life, slot, parent_hash, is_wanted))
            case CheckCandidate():
                world.after(0.002, partial(self.check, life, effect))
            case FinalisedBlock():
                self.finalised(effect)
            case BlamedValidator(evidence):
                self.evidence.append(evidence)
            case RefusedPeer():
                self.refused.append(effect)
            case DisputedBlock():
                self.disputed.append(effect)
            case StalledSlot():
                self.stalled.append(effect)
            case RecoveredVotes():
                self.recovered += 1
            case Halt(text):
                self.halted = text

    def broadcast(self, frame: bytes) -> None:
        self.world.overhear(self, frame)
        for peer in self.others():
            self.send_frame(peer, frame)

    def reply(self, peer: int, number: int, answer: bytes) -> None:
        for frame in decode_answer(answer).frames:
            self.world.overhear(self, frame)
        self.world.send(self.index, peer, partial(answer_came, self.index, number, answer))

    def send_frame(self, peer: int, frame: bytes) -> None:
        self.world.send(self.index, peer, partial(frame_came, self.index, frame))

    def others(self) -> list[int]:
        return [peer for peer in range(self.world.session.size) if peer != self.index]

    def after_disk(self, event: Callable[[], None]) -> None:
        """One thing after another."""
        self.disk_free_at = max(self.disk_free_at, self.world.now) + self.world.disk_delay()
        self.world.at(self.disk_free_at, event)

    def written(self, life: int, number: int, records: tuple[Record, ...]) -> None:
        if self.is_up and life == self.life:
            self.disk.write(records)
            if self.is_honest and self.world.crashes_after_writing():
                self.crash_for(self.world.random.uniform(0.02, 0.5))
                return
            self.perform(self.member.persisted(number, self.world.now))

    # The ledger above

    def propose(self, life: int, slot: int, parent_hash: bytes, is_wanted: bool) -> None:
        if not self.is_up or life != self.life:
            return
        assert parent_hash in self.heights, f"validator {self.index} shall build on what it does not know"
        content = self.to_say[0] if self.to_say else b"" if is_wanted else None
        payload = None if content is None else payload_of(self.heights[parent_hash] + 1, content)
        if payload is not None:
            self.heights[agreement_checker.block_hash(slot, parent_hash, payload)] = (
                self.heights[parent_hash] + 1
            )
        self.perform(self.member.proposed(slot, payload, self.world.now))

    def check(self, life: int, asked: CheckCandidate) -> None:
        if not self.is_up or life != self.life:
            return
        known = self.heights.get(asked.parent_hash)
        assert known is not None, (
            f"validator {self.index} is asked about a block whose parent it does not know"
        )
        height = struct.unpack("<I", asked.payload[:4])[0] if len(asked.payload) >= 4 else None
        reason = None if height == known + 1 else f"height {height} does not follow {known}"
        if reason is None:
            self.heights[asked.block_hash] = known + 1
        self.perform(self.member.checked(asked.block_hash, reason, self.world.now))

    def finalised(self, block: FinalisedBlock) -> None:
        self.heights[block.block_hash] = len(self.chain) + 1
        self.chain.append(block)
        self.world.note_final(self, block)
        if block.payload[4:] in self.to_say:
            self.to_say.remove(block.payload[4:])
            if self.to_say:
                self.world.after(0.001, partial(self.want_more, self.life))
        life = self.life
        self.after_disk(lambda: self.disk.write_block(block) if life == self.life else None)

    def want_more(self, life: int) -> None:
        if self.is_up and life == self.life:
            self.perform(self.member.wants_block(self.world.now))


class World(MembersWorld[Peer]):
    def __init__(
        self,
        size: int,
        seed: int,
        *,
        loss: float = 0.0,
        options: MemberOptions = OPTIONS,
        make_peer: Callable[[World, int], Peer] = Peer,
    ) -> None:
        super().__init__(seed, loss)
        self.session = session_of(size)
        self.options = options
        self.final: dict[int, bytes] = {}
        self.certified: dict[int, bytes] = {}
        self.called_final: dict[int, bytes] = {}
        """By certificates of their own; others are final because these rest on them."""
        self.parents: dict[bytes, bytes] = {}
        self.voted: dict[tuple[int, int, VoteKind], bytes] = {}
        self.frames_sent = 0
        self.crash_after_write = 0.0
        self.peers = [make_peer(self, index) for index in range(size)]

    @property
    def honest(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.is_honest]

    def crashes_after_writing(self) -> bool:
        """Between the disk and the word that was to be spoken."""
        return self.crash_after_write > 0 and self.random.random() < self.crash_after_write

    def send(self, sender: int, receiver: int, event: Callable[[Peer], None]) -> None:
        self.frames_sent += 1
        super().send(sender, receiver, event)

    # What must hold all the time

    def overhear(self, peer: Peer, frame: bytes) -> None:
        if not peer.is_honest:
            return
        message = _decoded(frame)
        if isinstance(message, Proposal):
            candidate, leader = message.candidate, self.session.leader_of(message.candidate.slot)
            block = agreement_checker.block_hash(candidate.slot, candidate.parent, candidate.payload)
            self.parents[block] = candidate.parent
            message = Vote(leader, candidate.slot, VoteKind.PROPOSE, block, message.signature)
        if isinstance(message, Certificate):
            self.note_certificate(frame)
        elif isinstance(message, Vote) and message.validator == peer.index and not peer.has_old_disk:
            self._note_vote(peer, message)

    def note_certificate(self, frame: bytes) -> None:
        slot, kind, block = agreement_checker.read_certificate(frame, self.session.public_keys, SESSION_ID)
        if kind != agreement_checker.SKIP:
            known = self.certified.setdefault(slot, block)
            assert known == block, f"two blocks have certificates in slot {slot}"
        if kind == agreement_checker.FINALISE:
            self.called_final[slot] = block

    def _note_vote(self, peer: Peer, vote: Vote) -> None:
        known = self.voted.setdefault((peer.index, vote.slot, vote.kind), vote.block)
        assert known == vote.block, (
            f"validator {peer.index} gave two votes {vote.kind.name} in slot {vote.slot}"
        )
        others = {VoteKind.SKIP: VoteKind.FINALISE, VoteKind.FINALISE: VoteKind.SKIP}
        other = others.get(vote.kind)
        assert other is None or (peer.index, vote.slot, other) not in self.voted, (
            f"validator {peer.index} skipped slot {vote.slot} and called it final"
        )
        assert vote.encode() in peer.disk.ever_written, f"validator {peer.index} spoke before it wrote"

    def note_final(self, peer: Peer, block: FinalisedBlock) -> None:
        if not peer.is_honest:
            return
        known = self.final.setdefault(block.slot, block.block_hash)
        assert known == block.block_hash, f"two blocks are final in slot {block.slot}"
        skipped = [slot for slot in self.final if slot > (peer.chain[-2].slot if len(peer.chain) > 1 else 0)]
        assert min(skipped) == block.slot, (
            f"validator {peer.index} left out the final block of slot {min(skipped)}"
        )
        self.note_certificate(block.certificate.encode())

    def check_certified(self) -> None:
        """Every block with a certificate rests on every block before it that was called final, as far as its ancestors were
        shown. One that is final because of a later one may have been skipped between the two."""
        for slot, block in self.certified.items():
            above = {block}
            while block in self.parents:
                block = self.parents[block]
                above.add(block)
            if block == START:
                missed = [
                    one for one, final in self.called_final.items() if one <= slot and final not in above
                ]
                assert not missed, (
                    f"the block of slot {slot} does not rest on the final one of slot {missed[0]}"
                )


@lru_cache(maxsize=50_000)
def _decoded(frame: bytes) -> object:
    return decode_message(frame)


def honest_and_sound(world: World) -> list[Peer]:
    return [peer for peer in world.honest if not peer.has_old_disk]


def contents_of(peer: Peer) -> dict[bytes, int]:
    """What became final, and how often."""
    found: dict[bytes, int] = defaultdict(int)
    for block in peer.chain:
        found[block.payload[4:]] += 1
    return dict(found)
