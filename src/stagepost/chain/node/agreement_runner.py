"""A validator in the agreement of one session, on links, disk and clock.

    others → pushed, asked ─ member ─ store ─ overlay → others
                               └─ propose, check, finalised → the part above, which calls proposed and checked

Calls, not tasks: an event is handled in the same turn of the loop, and one timer wakes the core. Whatever a
member signs is on disk before anybody hears of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Protocol, TypeAlias

import msgspec

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
    RecoveredVotes,
    RefusedPeer,
    Reply,
    StalledSlot,
)
from stagepost.chain.agreement.member import FinalPoint, Member
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VOTE_ID
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.store import ChainStore
from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import Clock
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.links.overlay import RESYNC_WAIT_S, Overlay

WRITE_LATE_S = 0.1
_VOTE = constructor_bytes(VOTE_ID)
"""First bytes of a vote: the only votes among records are our own."""

Notice: TypeAlias = BlamedValidator | DisputedBlock | RefusedPeer | RecoveredVotes | StalledSlot | Halt


class BlockAuthority(Protocol):
    """The part that makes and judges the blocks."""

    def propose(self, runner: AgreementRunner, asked: Propose) -> None:
        """Make a block; call `runner.proposed` with it, now or later."""

    def check(self, runner: AgreementRunner, asked: CheckCandidate) -> None:
        """Check a candidate; call `runner.checked` with the result, now or later."""

    def finalised(self, runner: AgreementRunner, number: int, block: FinalisedBlock) -> None:
        """Take the session's final block of this number, counted from 1: each once, in order."""

    def noticed(self, runner: AgreementRunner, notice: Notice) -> None:
        """Take a notice for people and watchers."""


class AgreementCounters(msgspec.Struct):
    """`refused` counts by the name of the broken rule; `missed_votes` final blocks for whose slots this validator has signed
    no vote in this run; `skipped_slots` slots between two final blocks."""

    frames_pushed: int = 0
    pushes_dropped: int = 0
    asked: int = 0
    answered: int = 0
    missed_votes: int = 0
    skipped_slots: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)


class AgreementRunner:
    def __init__(
        self,
        session: Session,
        index: int,
        seed: bytes,
        store: ChainStore,
        clock: Clock,
        random: Random,
        above: BlockAuthority,
        options: MemberOptions | None = None,
    ) -> None:
        self.session = session
        self.index = index
        self.counters = AgreementCounters()
        self.member: Member
        self._seed = seed
        self._store = store
        self._clock = clock
        self._random = random
        self._above = above
        self._options = options or MemberOptions()
        self._others = tuple(peer for peer in range(session.size) if peer != index)
        self._number = 0
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._to_write: list[Persist] = []
        self._voted: set[int] = set()
        """Slots above the last final block in which this validator has signed a vote."""
        self._last_final: int | None = None
        self._writing_late: asyncio.TimerHandle | None = None
        self._replies: dict[int, Callable[[bytes], None]] = {}
        self._reply_number = 0
        self._alarm = Alarm(clock, self._wake)
        self._is_stopped = False
        self._overlay: Overlay

    @property
    def session_id(self) -> bytes:
        return self.session.session_id

    @property
    def is_leading(self) -> bool:
        """Return whether this validator leads the slot that it is in."""
        return self.session.leader_of(self.member.slot) == self.index

    def start(self, overlay: Overlay) -> None:
        """Start from what the disk holds. No event may come in before."""
        self._overlay = overlay
        store, session_id, now = self._store, self.session_id, self._clock.mono_s()
        kept = store.of_session(session_id)
        last = final_block(kept[-1]) if kept else None
        self._number = len(kept)
        options = self._options
        if store.damage:
            # Some of our votes may be missing, and other validators remember them.
            options = msgspec.structs.replace(options, start_wait_s=max(options.start_wait_s, RESYNC_WAIT_S))
        self.member = Member(
            self.session,
            self.index,
            self._seed,
            self._random,
            now,
            options,
            final=None if last is None else FinalPoint(last.candidate.slot, last.certificate.block),
            archive=partial(store.archived, session_id),
        )
        self._perform(self.member.restore(store.load_records(session_id), now))
        self._perform(self.member.tick(now))

    def stop(self) -> None:
        """Send nothing any more. Records on their way to the disk still get there."""
        self._is_stopped = True
        self._effects.clear()
        self._alarm.cancel()
        if self._writing_late is not None:
            self._writing_late.cancel()

    # From those above

    def wants_block(self) -> None:
        if not self._is_stopped:
            self._perform(self.member.wants_block(self._clock.mono_s()))

    def proposed(self, slot: int, payload: bytes | None) -> None:
        if not self._is_stopped:
            self._perform(self.member.proposed(slot, payload, self._clock.mono_s()))

    def checked(self, block_hash: bytes, reason: str | None) -> None:
        if not self._is_stopped:
            self._perform(self.member.checked(block_hash, reason, self._clock.mono_s()))

    # From other members

    def pushed(self, peer: int, frame: bytes) -> None:
        if not self._is_stopped:
            self._perform(self.member.frame_received(peer, frame, self._clock.mono_s()))

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if self._is_stopped:
            return
        self.counters.answered += 1
        self._reply_number += 1
        self._replies[self._reply_number] = reply
        self._perform(self.member.query_received(peer, self._reply_number, query, self._clock.mono_s()))

    def linked(self, peer: int) -> None:
        """Do nothing: the member asks within moments for whatever it missed."""

    # What the member wants done

    def _perform(self, effects: Sequence[Effect]) -> None:
        """Perform effects one after the other, and also those that follow from answers given meanwhile."""
        self._effects += effects
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._effects:
                self._do(self._effects.popleft())
        finally:
            self._is_performing = False
        if not self._is_stopped:
            self._alarm.set(self.member.next_wake)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Persist():
                self._to_write.append(effect)
                votes = [record.slot for record in effect.records if record.frame.startswith(_VOTE)]
                if votes:
                    self._voted.update(slot for slot in votes if slot is not None)
                    self._write_now()
                elif self._writing_late is None:
                    # Nothing waits to be spoken: what others have said goes with the next vote of ours, or by itself.
                    loop = asyncio.get_running_loop()
                    self._writing_late = loop.call_later(WRITE_LATE_S, self._write_now)
            case Broadcast(frame):
                for peer in self._others:
                    self.counters.frames_pushed += 1
                    self.counters.pushes_dropped += not self._overlay.push(peer, frame)
            case Ask(peer, number, query):
                self.counters.asked += 1
                answered = partial(self._answered, peer, number)
                self._overlay.ask(peer, query, answered, self._options.query_timeout_s)
            case Reply(_, number, answer):
                self._replies.pop(number)(answer)
            case Propose():
                self._above.propose(self, effect)
            case CheckCandidate():
                self._above.check(self, effect)
            case FinalisedBlock():
                self._number += 1
                self._count_final(effect.slot)
                self._above.finalised(self, self._number, effect)
            case RefusedPeer(peer, rule, text):
                self.counters.refused[rule] += 1
                self._overlay.refuse(peer, rule, text)
                self._above.noticed(self, effect)
            case BlamedValidator() | DisputedBlock() | RecoveredVotes() | StalledSlot() | Halt():
                self._above.noticed(self, effect)

    def _count_final(self, slot: int) -> None:
        before = self._last_final
        if before is not None and self.member.is_started:
            self.counters.missed_votes += slot not in self._voted
            self.counters.skipped_slots += slot - before - 1
        self._last_final = slot
        self._voted = {one for one in self._voted if one > slot}

    def _answered(self, peer: int, number: int, answer: bytes | None) -> None:
        if not self._is_stopped:
            self._perform(self.member.answered(peer, number, answer, self._clock.mono_s()))

    # Disk and time

    def _write_now(self) -> None:
        if self._writing_late is not None:
            self._writing_late.cancel()
            self._writing_late = None
        persists, self._to_write = self._to_write, []
        if self._is_stopped or not persists:
            return
        records = [record for persist in persists for record in persist.records]
        self._store.put_records(self.session_id, records, partial(self._written, persists[-1].number))

    def _written(self, number: int) -> None:
        if not self._is_stopped:
            self._perform(self.member.persisted(number, self._clock.mono_s()))

    def _wake(self) -> None:
        self._perform(self.member.tick(self._clock.mono_s()))
