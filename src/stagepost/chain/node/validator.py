"""A validator of the embedded chain: it follows the chain, and agrees in every session that it is a member
of.

    validator = ChainValidator(
        genesis, seed, store,                  # open_chain_store(folder, genesis)
        public_keys,                           # of all who have links for the chain: validators and full nodes
        clock, random,
        collator=collator,                     # source of messages for blocks; without one, blocks are empty
        check_messages=check_messages,         # further check of the candidates of others
        on_events=on_events,                   # gets everything that the ledger reports, in order
    )
    overlay = OverlayLinks(end, listener, validator.overlay_id, place, members)   # in the order of public_keys
    overlay.start(validator.board)
    validator.start(overlay)
    validator.ledger                           # EmbeddedLedger; read it, never step it
    validator.messages_wait(session_id)        # the collator has something: do not wait for the next look
    validator.plans.append(plan)               # splits and merges to propose
    validator.want_configuration(configuration)
    await validator.close()                    # closes the store; the owner closes the overlay

`on_events` is called after every step, before anything else happens: sessions that start or end are in
`MasterApplied`, and the collator is asked for a session only after its start was reported. Reports may be a
moment ahead of the disk; after a crash, blocks that were not written come again, and are reported again.
Blocks that were written are in `ledger.history`.

The leader of a slot asks the `Collator`: `has_messages`, then `take` (lazily, no more than fits into the
block), then `collated` with the report on each message. `check_messages(session, messages, answer)` gets the
external messages of another validator's candidate, and calls `answer` once, now or later, with the reason
against it or None; then the ledger checks the candidate. A candidate without an answer gets no vote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.effects import CheckCandidate, FinalisedBlock, Propose
from stagepost.chain.agreement.messages import decode_final_block
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind
from stagepost.chain.configuration import Configuration, fault_in
from stagepost.chain.declined import Switches
from stagepost.chain.genesis import Genesis
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.node.agreement_runner import AgreementRunner, Notice
from stagepost.chain.node.block_making import BlockMaker, Collator
from stagepost.chain.node.candidate_judging import Answer, CandidateJudge, CheckMessages, Seat
from stagepost.chain.node.follower import ChainFollower, FollowerOptions, OnEvents
from stagepost.chain.node.own_memory import OwnMemory
from stagepost.chain.node.store import ChainStore
from stagepost.chain.rotation import Plan, lead_towards
from stagepost.errors import ConfigError
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import Clock
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.remp.ledger import LedgerEvent, LedgerSession, MasterApplied
from stagepost.remp.links.overlay import Overlay
from stagepost.remp.links.switchboard import Switchboard

__all__ = ["Answer", "ChainOptions", "ChainValidator", "CheckMessages", "Collator"]

LOOK_EVERY_S = 0.1
LOOK_BACK_MS = 500
"""Milliseconds that a candidate of the masterchain waits for shard blocks that we do not have until we look whether others
have other ones.
"""
"""Seconds between two looks at whether the time of something has come."""

WISH_AFTER_S = 0.4
"""Seconds for which a slot's leader is trusted to see by itself that a block is wanted."""

SHARD_PAUSE_S = 0.1
MASTER_PAUSE_S = 0.15

LINGER_S = 10.0
"""Seconds for which an ended session's votes and blocks are given to validators that are behind."""

PUSHERS = 2
"""Members of a session, counted from a slot's leader, that push its final block to nodes that are not
members.
"""


class ChainOptions(msgspec.Struct, frozen=True):
    """`shard_pause_s`, `master_pause_s`: seconds for which a leader lets messages, or shard blocks, come
    together after it has seen the block before. Each block costs every validator the same, however little is
    in it.
    """

    member: MemberOptions = MemberOptions()
    follower: FollowerOptions = FollowerOptions()
    shard_pause_s: float = SHARD_PAUSE_S
    master_pause_s: float = MASTER_PAUSE_S


class ChainCounters(msgspec.Struct):
    """`missed_votes` and `skipped_slots` are of sessions that are over; `ChainValidator.votes` has those of all."""

    proposed: int = 0
    master_blocks: int = 0
    missed_votes: int = 0
    skipped_slots: int = 0


class ChainValidator:
    def __init__(
        self,
        genesis: Genesis,
        seed: bytes,
        store: ChainStore,
        public_keys: Sequence[bytes],
        clock: Clock,
        random: Random,
        *,
        collator: Collator | None = None,
        check_messages: CheckMessages | None = None,
        on_events: OnEvents = lambda events: None,
        on_notice: Callable[[LedgerSession, Notice], None] = lambda session, notice: None,
        options: ChainOptions | None = None,
        switches: Switches | None = None,
        memory: OwnMemory | None = None,
    ) -> None:
        self.memory = memory or OwnMemory()
        self.public_key = ed25519.public_key(seed)
        self.counters = ChainCounters()
        self.on_finalised: Callable[[LedgerSession, FinalisedBlock], None] | None = None
        self._options = options or ChainOptions()
        self._seed = seed
        self._store = store
        self._clock = clock
        self._random = random
        self._on_events = on_events
        self._on_notice = on_notice
        self._seats: dict[bytes, Seat] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._looking: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._started_ms = int(clock.unix_s() * 1_000)
        self.follower = ChainFollower(
            genesis,
            store,
            public_keys,
            self.public_key,
            clock,
            random,
            self._heard,
            self._options.follower,
            switches,
        )
        self.making = BlockMaker(self.ledger, collator)
        self.judging = CandidateJudge(self.ledger, check_messages, self.follower.tell, lambda: self._now_ms)

    @property
    def plans(self) -> list[Plan]:
        """Splits and merges that we propose in master blocks that we lead, until they are taken or become
        impossible.
        """
        return self.making.plans

    @property
    def ledger(self) -> EmbeddedLedger:
        return self.follower.ledger

    @property
    def overlay_id(self) -> bytes:
        return self.follower.overlay_id

    @property
    def board(self) -> Switchboard:
        """The receiver of the overlay's events."""
        return self.follower.board

    @property
    def sessions(self) -> dict[bytes, AgreementRunner]:
        """The running sessions that this validator is a member of, by their ids."""
        return {session_id: seat.runner for session_id, seat in self._seats.items() if not seat.is_over}

    @property
    def votes(self) -> tuple[int, int]:
        """Return how many votes this validator has missed, and how many slots were skipped, in all sessions of this run."""
        running = [seat.runner.counters for seat in self._seats.values()]
        missed = self.counters.missed_votes + sum(one.missed_votes for one in running)
        return missed, self.counters.skipped_slots + sum(one.skipped_slots for one in running)

    def start(self, overlay: Overlay) -> None:
        self.follower.start(overlay)
        sessions = (self.ledger.master_session(), *self.ledger.sessions())
        at_work = {session.session_id for session in sessions}
        for session_id in self._store.sessions:
            if session_id not in at_work:
                self._store.end_session(session_id)
        for session in sessions:
            self._begin(session, self._options.member)
        self._after(LOOK_EVERY_S, self._look_again)

    def stop(self) -> None:
        """Stop at once, as a crash would; records on their way to the disk still get there."""
        self._is_stopped = self.judging.is_stopped = True
        for timer in self._timers:
            timer.cancel()
        if self._later is not None:
            self._later.cancel()
        for seat in self._seats.values():
            seat.runner.stop()
        self.follower.stop()

    async def close(self) -> None:
        self.stop()
        await self.follower.close()

    def messages_wait(self, session_id: bytes) -> None:
        """Note that the collator has messages for this session."""
        if session_id in self._seats:
            self._look_soon()

    def want_configuration(self, configuration: Configuration) -> None:
        """Accept `configuration` when another validator proposes it, and propose it ourselves."""
        self.want_only([configuration])

    def want_only(self, configurations: Sequence[Configuration]) -> None:
        """Accept these configurations and no others when another validator proposes one; propose them in turn ourselves.
        `ConfigError` for one that no chain of this release can have.
        """
        for fault in filter(None, map(fault_in, configurations)):
            raise ConfigError(f"the configuration cannot be used: {fault}")
        self.ledger.wanted = {one.hash for one in configurations}
        self.making.propose_configurations(configurations)

    def want_shards(self, count: int | None) -> None:
        """Vote only for splits and merges that bring the number of shards nearer to `count`; for none with None. Before the first
        call this validator votes for all.
        """
        self.ledger.takes_plans = lambda state, plans: (
            not plans or (count is not None and lead_towards(count, state, plans))
        )

    # Sessions

    def _begin(self, session: LedgerSession, options: MemberOptions) -> None:
        if self.public_key not in session.public_keys or session.session_id in self._seats:
            return
        session_id = session.session_id
        answers = self.memory.answers(session)
        if answers is not StartAnswers.QUORUM:
            wait_s = self._options.member.start_wait_s
            options = msgspec.structs.replace(options, start_wait_s=wait_s, answers=answers)
        runner = AgreementRunner(
            Session(session_id, session.public_keys, session_id),
            session.public_keys.index(self.public_key),
            self._seed,
            self._store,
            self._clock,
            Random(self._random.getrandbits(64)),
            self,
            options,
        )
        self._seats[session_id] = Seat(session, runner)
        runner.start(self.board.open(session_id, session.public_keys, runner))
        self.board.hand_over_early(session_id)

    def _end(self, session_id: bytes) -> None:
        seat = self._seats.get(session_id)
        if seat is not None:
            seat.is_over = True
            self._after(LINGER_S, lambda: self._forget(session_id))

    def _forget(self, session_id: bytes) -> None:
        runner = self._seats.pop(session_id).runner
        runner.stop()
        self.counters.missed_votes += runner.counters.missed_votes
        self.counters.skipped_slots += runner.counters.skipped_slots
        self.board.close(session_id)
        self._store.end_session(session_id)

    def _heard(self, events: Sequence[LedgerEvent]) -> None:
        self._on_events(events)
        for event in events:
            if isinstance(event, MasterApplied):
                self.counters.master_blocks += 1
                for session_id in event.ended:
                    self._end(session_id)
                for session in event.started:
                    # Nobody can have heard of us in a session that begins while we run. In a session that we only catch
                    # up with we may have spoken before, with a disk that is gone: we listen first.
                    is_fresh = event.time_ms > self._started_ms
                    options = self._options.member
                    self._begin(
                        session, msgspec.structs.replace(options, start_wait_s=0.0) if is_fresh else options
                    )
        self._look_soon()

    # What agreement asks of us

    def propose(self, runner: AgreementRunner, asked: Propose) -> None:
        seat = self._seats[runner.session_id]
        now_ms, parent = self._now_ms, asked.parent_hash
        is_wanted = not seat.is_over and self.making.is_wanted(seat.session, parent, now_ms)
        is_early = (
            is_wanted and not asked.is_wanted and self._is_too_early(seat, self._known_since(seat, parent))
        )
        payload = None
        if not seat.is_over and not is_early:
            payload = self.making.payload(seat.session, asked, now_ms)
        if payload is None:
            if is_wanted and not is_early:
                # No block could be made, and none could if we tried again in this moment.
                seat.in_vain_at = self._clock.mono_s()
        else:
            self.counters.proposed += 1
            candidate = Candidate(asked.slot, asked.parent_hash, payload).hash
            # The state after our own block must be known when others build upon it.
            self.ledger.check(runner.session_id, candidate, asked.parent_hash, payload, self._now_ms)
        self.follower.tell()
        runner.proposed(asked.slot, payload)

    def check(self, runner: AgreementRunner, asked: CheckCandidate) -> None:
        self.judging.check(self._seats[runner.session_id], asked)

    def finalised(self, runner: AgreementRunner, number: int, block: FinalisedBlock) -> None:
        seat = self._seats[runner.session_id]
        if self.on_finalised is not None:
            self.on_finalised(seat.session, block)
        final = decode_final_block(block.record)
        size = runner.session.size
        if (runner.index - runner.session.leader_of(block.slot)) % size < PUSHERS:
            self.follower.push(number, final, seat.members)
        self.follower.agreed(number, final)

    def noticed(self, runner: AgreementRunner, notice: Notice) -> None:
        seat = self._seats[runner.session_id]
        if not seat.is_over:
            self._on_notice(seat.session, notice)

    # Looking whether a block is wanted

    def _look(self) -> None:
        self._looking = None
        if self._is_stopped:
            return
        self.making.forget_plans()
        for seat in list(self._seats.values()):
            self.judging.check_again(seat)
            if seat.is_of_master and seat.waits_since(self._now_ms - LOOK_BACK_MS):
                self.follower.look_back()
            if not seat.is_over:
                self._wish(seat)

    def _wish(self, seat: Seat) -> None:
        """Ask for a block if this validator leads, or if the leader has not acted for `WISH_AFTER_S` although
        there is something to do.
        """
        runner, now = seat.runner, self._clock.mono_s()
        book, slot = runner.member.book, runner.member.slot
        found, parent = book.get(slot), book.parent_for(slot)
        if found is not None and (VoteKind.PROPOSE in found.own or found.votes[VoteKind.PROPOSE]):
            return  # a block is on its way, and may hold all that is wanted
        if parent is None:
            return  # the block that it would stand upon is on its way, too
        since = self._known_since(seat, parent)
        if not runner.member.is_started or not self.making.is_wanted(seat.session, parent, self._now_ms):
            seat.wanted_in = None
            return
        if seat.wanted_in is None or seat.wanted_in[0] != slot:
            seat.wanted_in = slot, now
        if runner.is_leading and seat.in_vain_at is not None and now - seat.in_vain_at < LOOK_EVERY_S:
            return  # the next look is soon enough
        if runner.is_leading and self._is_too_early(seat, since):
            return
        if runner.is_leading or now - seat.wanted_in[1] >= WISH_AFTER_S:
            runner.wants_block()

    def _known_since(self, seat: Seat, parent: bytes) -> float:
        if seat.upon is None or seat.upon[0] != parent:
            seat.upon = parent, self._clock.mono_s()
        return seat.upon[1]

    def _is_too_early(self, seat: Seat, since: float) -> bool:
        """Return whether more messages should come together first; then look again in time."""
        options = self._options
        pause_s = options.master_pause_s if seat.is_of_master else options.shard_pause_s
        left_s = since + pause_s - self._clock.mono_s()
        if left_s <= 0:
            return False
        at = asyncio.get_running_loop().time() + left_s
        if self._later is None or self._later.when() > at or self._later.cancelled():
            if self._later is not None:
                self._later.cancel()
            self._later = asyncio.get_running_loop().call_at(at, self._look_later)
        return True

    def _look_later(self) -> None:
        self._later = None
        self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None and not self._is_stopped:
            self._looking = asyncio.get_running_loop().call_soon(self._look)

    def _look_again(self) -> None:
        self._look()
        self._after(LOOK_EVERY_S, self._look_again)

    # Time

    @property
    def _now_ms(self) -> int:
        return int(self._clock.unix_s() * 1_000)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            if not self._is_stopped:
                act()

        timer = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(timer)
