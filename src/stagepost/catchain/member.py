"""A member of a graph, as a core without network and disk: events go in with the time, effects come out.

    frame, query, answer, stored, tick → receive, deliver, make a block → Persist, Send, Ask, Reply, Deliver

A block of our own is on disk before anybody hears of it: otherwise a crash would let us write another one at
its height, and that is what forkers do. For the same reason a member that starts listens until a quorum has
shown it the blocks of its own that its disk may have lost: a lone member never speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from random import Random

import msgspec

from stagepost.catchain.block import Block, Dependency, block_id, data_hash, decode_update
from stagepost.catchain.budgets import AuthorAccount
from stagepost.catchain.catching_up import BlockSync, SyncOptions
from stagepost.catchain.effects import (
    BlameReport,
    Deliver,
    Effect,
    Halt,
    Persist,
    RecoveryReport,
    RefusalReport,
    Reply,
    Send,
)
from stagepost.catchain.graph import Graph, Outcome, State, Vertex
from stagepost.catchain.payloads import NOTHING, ForkProof, proof_behind, upper_part
from stagepost.catchain.queries import BlockResult, decode_answer, decode_query
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.statemachine.lifecycle import StartAnswers

IDLE_TIMEOUT_S = 16.0
MERGE_WITHIN_S = 0.5
SPEAK_PAUSE_S, SPEAK_PAUSE_MAX_S = 0.02, 0.1
START_WAIT_S = 5.0
HEIGHTS_AHEAD_MAX = 256
"""Heights above a member's delivered blocks up to which we take in further ones: without a bound, a member that sends
nothing but late blocks could fill our memory."""

AHEAD_MS_MAX = 3_600_000
"""Milliseconds, at most, until a block that is dated ahead is looked at again; it may have to wait once more."""

MakePayload = Callable[[bool, AuthorAccount], bytes | None]
"""Callback that returns the payload of the next block from the parts above; None for nothing. Its arguments say
whether a block is made in any case, and what our blocks hold so far. Where blocks are dated, None means that our
budget allows no block now.
"""


class MemberOptions(msgspec.Struct, frozen=True):
    """Options of a member, in seconds.

    `merge_within_s` is how long blocks of others with a payload may stand without a block of ours above them.
    `idle_timeout_s` is the time after which we make a block even without a payload. `speak_pause_s` is the
    time in which payloads gather after a block of ours, since each block costs every member a signature check;
    under pressure that time grows to `speak_pause_max_s`.
    `start_wait_s` is the least time for which we listen, and until a quorum has answered, in case others
    remember more of us than our own disk; it is 0 for a session that begins while we run, in which nobody can
    remember anything of us: then we ask nobody first.
    """

    idle_timeout_s: float = IDLE_TIMEOUT_S
    merge_within_s: float = MERGE_WITHIN_S
    speak_pause_s: float = SPEAK_PAUSE_S
    speak_pause_max_s: float = SPEAK_PAUSE_MAX_S
    start_wait_s: float = START_WAIT_S
    sync: SyncOptions = SyncOptions()
    answers: StartAnswers = StartAnswers.QUORUM


class AheadBlock(msgspec.Struct, frozen=True):
    """Block that is dated ahead of our clock, the member that sent it, and when to look at it again."""

    due_at: float
    peer: int
    block: Block


class Member:
    """Core of one member. `current` are the members that count for the quorum at the start, by index; None
    for all. `unix_ms` is the clock that dates of blocks are compared with, where blocks have dates.
    `pressure` returns 0.0 while the process has time to spare, up to 1.0 when it has hardly any."""

    def __init__(
        self,
        graph: Graph,
        index: int,
        seed: bytes,
        make_payload: MakePayload,
        random: Random,
        now: float,
        options: MemberOptions | None = None,
        *,
        current: Collection[int] | None = None,
        unix_ms: Callable[[], int] = lambda: 0,
        pressure: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.graph = graph
        self.index = index
        self.options = options or MemberOptions()
        self._seed = seed
        self._make_payload = make_payload
        self._random = random
        self._effects: list[Effect] = []
        self._starts_at = now + self.options.start_wait_s
        self._is_started = False
        self._is_halted = False
        self._own_top: Vertex = graph.top(index)
        self._making: Vertex | None = None
        self._made_frame = b""
        """Frame of the block that is being made, or of the last one that was."""
        self._unsent_proofs: list[ForkProof] = []
        self._is_asked_to_speak = False
        self._merge_at: float | None = None
        self._spoke_at = now
        self._speaks_from = now
        self._unix_ms = unix_ms
        self._pressure = pressure
        self._ahead: dict[int, AheadBlock] = {}
        self._sync = BlockSync(
            graph,
            index,
            random,
            now,
            self.options.sync,
            range(graph.size) if current is None else current,
            is_starting=self.options.start_wait_s > 0,
            answers=self.options.answers,
        )

    @property
    def is_started(self) -> bool:
        return self._is_started

    @property
    def is_halted(self) -> bool:
        return self._is_halted

    @property
    def answered_by(self) -> frozenset[int]:
        """Other members whose answers counted at the start."""
        return frozenset(self._sync.answered_by)

    @property
    def answers_needed(self) -> int:
        """Number of other members whose answers are needed before this member speaks."""
        return self._sync.answers_needed

    @property
    def account(self) -> AuthorAccount:
        """Totals of our blocks, up to the last one on disk."""
        return self._own_top.account

    @property
    def next_wake(self) -> float:
        """Time by which `tick` wants to be called."""
        times = [self._sync.next_wake, *(one.due_at for one in self._ahead.values())]
        if not self._is_started:
            if self._knows_own_past:
                times.append(self._starts_at)
        elif self._making is None and self._can_speak:
            times.append(self._spoke_at + self.options.idle_timeout_s)
            if self._merge_at is not None:
                times.append(self._merge_at)
            if self._is_asked_to_speak:
                times.append(self._speaks_from)
        return min(times)

    # Events

    def restore(self, frames: Iterable[bytes], now: float) -> list[Effect]:
        """Take over the frames from our disk, in the order in which they were written: once, before anything
        else."""
        for frame in frames:
            vertex, outcome = self.graph.receive(decode_update(frame))
            self._settle(outcome, now)
            self._settle(self.graph.stored(vertex), now)
        self._own_top = self.graph.top(self.index)
        return self._take_effects()

    def frame_received(self, peer: int, frame: bytes, now: float) -> list[Effect]:
        """Take in a block that another member sent, its own or somebody else's."""
        limit = self.graph.rules.block_bytes_max
        if len(frame) > limit:
            self._refuse(peer, "TooLarge", f"the block has {len(frame)} bytes, at most {limit} fit")
            return self._take_effects()
        try:
            block = decode_update(frame)
        except DecodeError as error:
            self._refuse(peer, "Malformed", error.text)
            return self._take_effects()
        self._take_in(peer, block, now, frame)
        self._speak(now)
        return self._take_effects()

    def query_received(self, peer: int, number: int, data: bytes, now: float) -> list[Effect]:
        try:
            query = decode_query(data)
        except DecodeError as error:
            self._refuse(peer, "Malformed", error.text)
            return self._take_effects()
        blocks, answer = self._sync.answer(query, peer)
        self._effects += [Send(peer, block.encode()) for block in blocks]
        self._effects.append(Reply(peer, number, answer))
        return self._take_effects()

    def answered(self, peer: int, number: int, data: bytes | None, now: float) -> list[Effect]:
        """Take in the answer to an `Ask`; None if there was none."""
        if data is None:
            self._sync.answered(peer, number, None)
            return self._take_effects()
        try:
            answer = decode_answer(data)
        except DecodeError as error:
            self._sync.answered(peer, number, None)
            self._refuse(peer, "Malformed", error.text)
            return self._take_effects()
        if not self._sync.answered(peer, number, answer):
            self._refuse(peer, "WrongAnswer", f"{type(answer).__name__} is not an answer to the query")
        elif isinstance(answer, BlockResult):
            self._take_in(peer, answer.block, now)
        else:
            proof = self._sync.proof_in(answer)
            if proof is not None:
                outcome = self.graph.learn_fork(proof)
                if outcome is None:
                    self._refuse(peer, "ForgedProof", "the two blocks are not a fork")
                else:
                    self._settle(outcome, now)
        self._speak(now)
        return self._take_effects()

    def stored(self, block_hash: bytes, now: float) -> list[Effect]:
        """Record that a `Persist` has been carried out."""
        vertex = self.graph.get(block_hash)
        assert vertex is not None, "only what was handed over is stored"
        outcome = self.graph.stored(vertex)
        if vertex is self._making:
            self._making = None
            self._own_top = vertex
            self._effects += [Send(peer, self._made_frame) for peer in self._sync.audience(now)]
        self._settle(outcome, now)
        self._speak(now)
        return self._take_effects()

    def speak_soon(self, now: float) -> list[Effect]:
        """Make a block soon, because the parts above have a payload."""
        self._is_asked_to_speak = True
        self._speak(now)
        return self._take_effects()

    def tick(self, now: float) -> list[Effect]:
        if not self._is_started and now >= self._starts_at and self._knows_own_past:
            self._is_started = True
            self._sync.is_starting = False
            self._own_top = self.graph.top(self.index)
            self._spoke_at = now
        self._effects += self._sync.tick(now)
        for source in [source for source, one in self._ahead.items() if one.due_at <= now]:
            held = self._ahead.pop(source)
            self._take_in(held.peer, held.block, now)
        self._speak(now)
        return self._take_effects()

    # Taking in

    def _take_in(self, peer: int, block: Block, now: float, frame: bytes | None = None) -> None:
        """Take in a block. `frame` is the frame that brought it, which is kept as it came; None where the block came in
        another form.
        """
        graph = self.graph
        if not self._is_wanted(block):
            return
        refusal = graph.check(block)
        if refusal is not None:
            self._refuse(peer, refusal.rule, refusal.text)
            return
        if self._is_held_back(peer, block, now):
            return
        if block.source == self.index:
            known = graph.get(graph.hash_of(graph.reference_of(block)))
            if known is None and self._is_started:
                self._halt(f"a block at height {block.height} is signed with our key and is not ours")
                return
            if known is None or known.block is None:
                self._effects.append(RecoveryReport(block.height))
        if block.source != peer:
            self._sync.helped(now)
        vertex, outcome = graph.receive(block)
        self._effects.append(Persist(vertex.hash, block.encode() if frame is None else frame, is_own=False))
        self._settle(outcome, now)
        if vertex.state is State.RECEIVED and vertex.waits_for:
            self._effects += self._sync.ask_for_missing(vertex, peer, now)

    def _is_held_back(self, peer: int, block: Block, now: float) -> bool:
        """Return whether the block is dated too far ahead of our clock to be taken in yet. The lowest such block of
        each member waits here; others are asked for again later.
        """
        dates = self.graph.dates
        date_ms = None if dates is None else dates.date_of(upper_part(block.payload) or b"")
        if dates is None or date_ms is None or block.source == self.index:
            return False
        ahead_ms = date_ms - dates.skew_ms - self._unix_ms()
        if ahead_ms <= 0:
            return False
        held = self._ahead.get(block.source)
        if held is None or block.height < held.block.height:
            due_at = now + min(ahead_ms, AHEAD_MS_MAX) / 1_000
            self._ahead[block.source] = AheadBlock(due_at, peer, block)
        return True

    def _is_wanted(self, block: Block) -> bool:
        """Return whether to look at the block at all: a cheap check, before any signature, that skips known,
        far-off and useless blocks."""
        graph = self.graph
        if not 0 <= block.source < graph.size or block.height < 1:
            return True  # the checks say why not
        known = graph.get(graph.hash_of(graph.reference_of(block)))
        if known is not None and known.block is not None:
            return False
        if known is None and block.source in graph.blamed:
            return False
        return block.height <= graph.top(block.source).height + HEIGHTS_AHEAD_MAX

    def _settle(self, outcome: Outcome, now: float) -> None:
        for source in outcome.blamed:
            self._effects.append(BlameReport(source, self.graph.blamed[source], self.graph.fault_of(source)))
        self._unsent_proofs += [proof for proof in outcome.proofs if proof.source != self.index]
        for vertex in outcome.delivered:
            assert vertex.block is not None, "only what is here is delivered"
            self._sync.delivered(vertex, now)
            if vertex.source == self.index and vertex.height > self._own_top.height:
                self._own_top = vertex
            payload, dates = upper_part(vertex.block.payload), self.graph.dates
            if payload is not None:
                floor_ms = None if vertex.dates is None else vertex.dates.floor_ms
                unanswered = tuple(one.subject for one in vertex.open_challenges)
                self._effects.append(
                    Deliver(vertex.source, vertex.height, vertex.hash, payload, floor_ms, unanswered)
                )
                is_bare = dates is not None and dates.is_bare(payload)
                if vertex.source != self.index and self._merge_at is None and not is_bare:
                    self._merge_at = now + self.options.merge_within_s

    # Speaking

    @property
    def _knows_own_past(self) -> bool:
        """Return whether a quorum has answered, and none of our returned blocks waits for its ancestors: our
        next block would stand beside it."""
        if not self._sync.is_starting:
            return True
        return self._sync.has_quorum and not any(
            vertex.source == self.index for vertex in self.graph.undelivered()
        )

    @property
    def _can_speak(self) -> bool:
        return not self._is_halted and self._own_top.height < self.graph.rules.height_max

    def _speak(self, now: float) -> None:
        if not self._is_started or self._making is not None or not self._can_speak:
            return
        is_asked = self._is_asked_to_speak and now >= self._speaks_from
        is_due = (
            bool(self._unsent_proofs)
            or (self._merge_at is not None and now >= self._merge_at)
            or now >= self._spoke_at + self.options.idle_timeout_s
        )
        if not is_due and not is_asked:
            return
        payload = self._next_payload(is_due)
        if payload is None and is_due and self.graph.dates is not None:
            # Our budget is used up, which only a clock that went back can do: listen until it has passed that time.
            self._spoke_at, self._merge_at = now, None
        if payload is None and (not is_due or self.graph.dates is not None):
            return  # every payload is in a block already
        dependencies = tuple(vertex.reference for vertex in self._tops_to_build_on())
        self._make(NOTHING if payload is None else payload, dependencies, now)

    def _next_payload(self, is_due: bool) -> bytes | None:
        dates = self.graph.dates
        if self._unsent_proofs and dates is None:
            return self._unsent_proofs.pop(0).encode()
        payload = self._make_payload(is_due, self._own_top.account)
        is_bare = payload is not None and dates is not None and dates.is_bare(payload)
        self._is_asked_to_speak = payload is not None and not is_bare
        if payload is None or not self._unsent_proofs:
            return payload
        return proof_behind(payload, self._unsent_proofs.pop(0))

    def _tops_to_build_on(self) -> list[Vertex]:
        """Return the newest blocks of honest others on which none of ours stands, and which no other of them
        covers."""
        graph, own = self.graph, self._own_top
        tops = [
            graph.top(source)
            for source in range(graph.size)
            if source != self.index and source not in graph.blamed
        ]
        tops = [top for top in tops if top.height and not top.is_covered_by(own)]
        newest = [
            top for top in tops if not any(top is not other and top.is_covered_by(other) for other in tops)
        ]
        count = min(len(newest), graph.rules.dependencies_max)
        return sorted(self._random.sample(newest, count), key=lambda vertex: vertex.source)

    def _make(self, payload: bytes, references: tuple[Dependency, ...], now: float) -> None:
        graph = self.graph
        previous = self._own_top.reference
        height = previous.height + 1
        of_data = data_hash(payload, previous, references, graph.rules.version)
        signature = ed25519.sign(
            self._seed,
            block_id(graph.incarnation, graph.key_ids[self.index], height, of_data),
            public_key=graph.public_keys[self.index],
        )
        block = Block(graph.incarnation, self.index, height, previous, references, signature, payload)
        vertex, outcome = graph.receive(block)
        self._making = vertex
        self._spoke_at = now
        least_s, most_s = self.options.speak_pause_s, self.options.speak_pause_max_s
        self._speaks_from = now + least_s + (most_s - least_s) * self._pressure()
        self._merge_at = None
        self._made_frame = block.encode()
        self._effects.append(Persist(vertex.hash, self._made_frame, is_own=True))
        self._settle(outcome, now)

    # Details

    def _refuse(self, peer: int, rule: str, text: str) -> None:
        self._effects.append(RefusalReport(peer, rule, text))

    def _halt(self, text: str) -> None:
        if not self._is_halted:
            self._is_halted = True
            self._effects.append(Halt(text))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
