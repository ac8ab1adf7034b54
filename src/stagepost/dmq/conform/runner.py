"""Play cases against a node and judge its answers; after each case honest programs and peers must still be served.

`CaseRunner` sees what anybody sees: bytes and times. A `Witness` knows more of the node, such as its log and counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeClosed,
    NodeTarget,
    NothingSeen,
    Transcript,
    UnexpectedAnswer,
    require,
    shortened,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message
from stagepost.dmq.conform.honest_program import HonestProgram, is_asked, is_pinged, judged, submit, submitted
from stagepost.dmq.conform.playbook import (
    Case,
    CaseStage,
    MustClose,
    MustEnd,
    MustGoOn,
    MustRefuse,
    MustReject,
    Needs,
    Start,
)
from stagepost.dmq.conform.rules import RULES, SERVED, ConformRule

COOKIE = 54_321
ISSUE_NUMBER = 5
"""Issue number under which the node knows the renewed pool."""
EVOLUTION = 3
"""Evolution of the KES key of the evolved pool."""
IN_A_ROW_MAX = 8
"""Cases in a row after which a node that lets nobody in, or serves nobody, is not tried further."""
ENTERED_WITHIN_S = 2.0
"""Seconds after which a node that let nobody in is tried once more."""
SLOW_AT_ONCE = 6
"""Cases of peers that wait for a time limit at once where all come from one address: a node may serve 16 of each."""


class CaseState(Enum):
    """Result of one case."""

    HOLDS = "holds"
    DEVIATES = "deviates"
    DIFFERS = "differs"
    NOT_LOOKED = "not looked at"


@dataclass
class Cast:
    """Pools of a run: the node knows all but strangers, `poor_pool` without stake."""

    pool: Forger = field(default_factory=Forger)
    renewed_pool: Forger = field(default_factory=Forger)
    poor_pool: Forger = field(default_factory=Forger)
    evolved_pool: Forger = field(default_factory=lambda: Forger(evolution=EVOLUTION))

    @property
    def stakes(self) -> list[tuple[Forger, int]]:
        rich = (self.pool, self.renewed_pool, self.evolved_pool)
        return [*((pool, 1) for pool in rich), (self.poor_pool, 0)]


@dataclass(frozen=True)
class Abilities:
    """Everything that a node was seen to do before the first case. `tongues` are the ways of message submission that it
    speaks; `takes` is whether it accepts a valid message, `tells` whether it tells programs of it, `judges` whether it refuses a
    forged one, each None where nobody could look."""

    tongues: frozenset[str]
    has_local_seed: bool
    takes: bool | None
    tells: bool | None
    judges: bool | None
    layout: int = 5


@dataclass
class CaseResult:
    """Result of one case. `faults` are sentences; `unserved` is one if honest programs or peers were not served after it."""

    case: Case
    faults: list[str] = field(default_factory=list)
    unserved: str = ""
    not_looked: str = ""
    closed_after_s: float | None = None
    seconds: float = 0.0
    answer: Any = None
    transcript: Transcript = field(default_factory=Transcript)

    def check(self, holds: bool, text: str) -> None:
        if not holds:
            self.faults.append(shortened(text))

    @property
    def rule(self) -> ConformRule:
        """Return the rule that the node broke, or that the case tries."""
        return SERVED if self.unserved and not self.faults else RULES[self.case.rule]

    @property
    def state(self) -> CaseState:
        if self.unserved:
            return CaseState.DEVIATES
        if self.faults:
            return CaseState.DIFFERS if self.rule.is_own else CaseState.DEVIATES
        return CaseState.NOT_LOOKED if self.not_looked else CaseState.HOLDS


class Witness(Protocol):
    """Somebody who knows more of the node than its answers."""

    async def before(self) -> object:
        """Return what `judge` compares with."""

    async def judge(self, result: CaseResult, attacker: Attacker, before: object) -> None:
        """Add faults to `result`."""


class CaseRunner:
    """`sources` gives the address that the next connection comes from, for nodes that keep out whoever broke a rule."""

    def __init__(
        self,
        target: NodeTarget,
        cast: Cast,
        abilities: Abilities,
        *,
        grace_s: float,
        at_once: int = 1,
        witness: Witness | None = None,
        sources: Callable[[], str | None] = lambda: None,
        from_one_address: bool = False,
    ) -> None:
        self._target = target
        self._cast = cast
        self._abilities = abilities
        self._grace_s = grace_s
        self._places = asyncio.Semaphore(at_once)
        self._slow_places = asyncio.Semaphore(SLOW_AT_ONCE if from_one_address else sys.maxsize)
        self._from_one_address = from_one_address
        self._witness = witness
        self._sources = sources
        self._held: ForgedMessage | None = None
        self._gone = ""
        self._unfit = ""
        self._in_vain = 0
        self._running: set[str] = set()
        self.honest = HonestProgram(target, cast.pool, grace_s * 6, abilities.layout)

    async def run(
        self, cases: Sequence[Case], report: Callable[[CaseResult], None] = lambda _: None
    ) -> dict[str, CaseResult]:
        """Run cases that wait for a time limit beside the others; of the others as many at once as were allowed."""
        await self._prepare()
        results: dict[str, CaseResult] = {}

        async def one(case: Case) -> None:
            if case.is_slow and case.begins.is_local:
                result = await self.play(case)
            elif case.is_slow:
                async with self._slow_places:
                    result = await self.play(case)
            else:
                async with self._places:
                    result = await self.play(case)
            results[case.name] = result
            report(result)

        try:
            # Those that wait begin first, so that the whole run takes little longer than the longest of them.
            await asyncio.gather(
                *map(one, sorted(cases, key=lambda case: (not case.is_slow, -case.within_s)))
            )
        finally:
            await self.honest.leave()
        return {case.name: results[case.name] for case in cases}

    async def _prepare(self) -> None:
        self._held = message(self._cast.pool, layout=self._abilities.layout)
        if self._target.socket is None or not self._abilities.takes:
            return
        renewed = message(self._cast.renewed_pool, issue_number=ISSUE_NUMBER, layout=self._abilities.layout)
        try:
            for one in (self._held, renewed):
                answer = await submit(self._target, one)
                require(answer == [1], f"it answered {answer!r}")
        except NothingSeen as reason:
            self._unfit = str(reason)
        except (NodeClosed, UnexpectedAnswer, OSError) as obstacle:
            self._unfit = f"the node accepted a message of the kit's pools and then no other one ({obstacle})"

    async def play(self, case: Case) -> CaseResult:
        result = CaseResult(case)
        result.not_looked = self._gone or self._obstacle(case)
        if result.not_looked:
            return result
        attacker: Attacker | None = None
        began = time.monotonic()
        self._running.add(case.name)
        try:
            before = None if self._witness is None else await self._witness.before()
            attacker = await self._enter(case, result)
            if attacker is not None:
                result.transcript = attacker.transcript
                try:
                    await self._act(case, attacker, result)
                    if self._witness is not None:
                        await self._witness.judge(result, attacker, before)
                finally:
                    await attacker.leave()
                await self._check_served(result)
        finally:
            self._running.discard(case.name)
            result.seconds = time.monotonic() - began
        result.answer = None  # the node chooses how long it is
        self._count_in_vain(bool(result.unserved) or attacker is None)
        return result

    def _count_in_vain(self, is_in_vain: bool) -> None:
        """Stop where the node lets nobody in, or serves nobody. A node that has nothing to show serves all the same."""
        self._in_vain = self._in_vain + 1 if is_in_vain else 0
        if self._in_vain >= IN_A_ROW_MAX:
            self._gone = self._gone or f"the node served nobody in {IN_A_ROW_MAX} cases, one after the other"

    def _obstacle(self, case: Case) -> str:
        """Return why nobody can look at `case` here; "" if somebody can."""
        found = self._abilities
        if case.needs is Needs.NOTHING:
            return ""
        if case.needs is Needs.NO_GAP:
            return self._unfit
        if self._unfit:
            return self._unfit
        if found.takes is None:
            return "whether the node accepts valid messages is not known: give its local socket"
        if not found.takes:
            return "the node does not know the kit's pools: start it with the pools of --pools"
        if case.needs is Needs.TOLD and not found.tells:
            return "the node does not tell programs of messages that it accepted"
        if case.needs is Needs.JUDGED and not found.judges:
            return "the node accepts forged messages: it checks none"
        return ""

    async def _enter(self, case: Case, result: CaseResult) -> Attacker | None:
        """Connect and shake hands; None if the node let nobody in, twice."""
        until = time.monotonic() + ENTERED_WITHIN_S
        while True:
            attacker: Attacker | None = None
            try:
                if case.begins.is_local:
                    attacker = await Attacker.local(self._target)
                else:
                    if self._from_one_address and case.begins is Start.NODE_BARE:
                        # The case itself cannot tell: a node that keeps an address out closes at once, whatever is said.
                        attacker = await Attacker.tcp(self._target)
                        await attacker.shake_hands(1, 2)
                        await attacker.leave()
                        attacker = None
                    attacker = await Attacker.tcp(self._target, source=self._sources())
                await shake_hands(attacker, case.begins)
                return attacker
            except (NodeClosed, UnexpectedAnswer, TimeoutError, OSError) as obstacle:
                if attacker is not None:
                    await attacker.leave()
                elif time.monotonic() >= until:
                    others = ", ".join(sorted(self._running - {case.name}))
                    result.unserved = (
                        f"the node accepts no connections any more; under way: {others or 'nothing else'}"
                    )
                    self._gone = self._gone or "the node has gone"
                    return None
                if time.monotonic() >= until:
                    result.not_looked = f"the node lets nobody in: {str(obstacle) or 'no answer in time'}"
                    return None
                await asyncio.sleep(0.2)

    async def _act(self, case: Case, attacker: Attacker, result: CaseResult) -> None:
        held = self._held
        assert held is not None
        cast = self._cast
        pools = cast.pool, cast.renewed_pool, cast.poor_pool, cast.evolved_pool
        stage = CaseStage(attacker, *pools, held, self._abilities.layout)
        try:
            async with asyncio.timeout(case.within_s + 2 * self._grace_s):
                try:
                    await case.act(stage)
                except NodeClosed as early:
                    if not isinstance(case.must, MustClose):
                        result.faults.append(f"the node closed too early: {early}")
                await self._judge(case, attacker, result)
        except TimeoutError:
            result.faults.append("neither answer nor end came in time")
        except NodeClosed as early:
            result.faults.append(f"the node closed: {early}")
        except UnexpectedAnswer as answer:
            result.faults.append(str(answer))
        except NothingSeen as reason:
            result.not_looked = str(reason)
        except Exception as fault:
            # An answer of a shape that nobody looks for fails its own case, not the whole run.
            result.faults.append(shortened(f"the node's answer cannot be read: {fault!r}"))

    async def _judge(self, case: Case, attacker: Attacker, result: CaseResult) -> None:
        match case.must:
            case MustClose() | MustEnd():
                await self._judge_end(case, attacker, result)
            case MustRefuse(reason):
                answer = result.answer = await attacker.hear(HANDSHAKE | OTHER_SIDE)
                result.check(
                    _is_refusal(answer, reason),
                    f"the node answered {answer!r}, expected a refusal [2, [{reason}, …]]",
                )
                await self._judge_end(case, attacker, result)
            case MustReject(reason, _, may_close):
                await self._judge_rejection(attacker, result, reason, may_close)
            case MustGoOn():
                await self._judge_life(attacker, result, case.begins)

    async def _judge_end(self, case: Case, attacker: Attacker, result: CaseResult) -> None:
        result.closed_after_s = await attacker.wait_ended(case.within_s + self._grace_s)
        result.check(
            result.closed_after_s is not None,
            f"the node did not close within {case.within_s + self._grace_s:g} s",
        )

    async def _judge_rejection(
        self, attacker: Attacker, result: CaseResult, reason: int, may_close: bool
    ) -> None:
        lane = attacker.last_lane
        try:
            answer = result.answer = await judged(attacker, lane)
        except NodeClosed:
            if may_close:
                return
            raise
        if answer == [1]:
            result.faults.append("the node accepted the message")
            return
        result.check(
            _is_refusal(answer, reason), f"the node answered {answer!r}, expected [2, [{reason}, …]]"
        )
        good = message(self._cast.pool, layout=self._abilities.layout)
        answer = await submitted(attacker, good, lane)
        expected = [1] if self._abilities.takes else answer
        result.check(answer == expected, f"a good message was answered with {answer!r} afterwards")

    async def _judge_life(self, attacker: Attacker, result: CaseResult, start: Start) -> None:
        """Check that the connection is of use still."""
        try:
            if start.is_local:
                await attacker.say(NOTIFICATION, array(uint(0), FALSE))
                result.check((await attacker.hear(NOTIFICATION | OTHER_SIDE))[0] == 1, "no notification came")
                return
            await attacker.say(KEEP_ALIVE, array(uint(0), uint(COOKIE)))
            while await attacker.hear(KEEP_ALIVE | OTHER_SIDE) != [1, COOKIE]:
                pass
        except NodeClosed:
            result.faults.append("the node closed, and the rules allow what was done")

    async def _check_served(self, result: CaseResult) -> None:
        try:
            if self._target.socket is None:
                await is_pinged(self._target, self._sources)
            elif self._abilities.takes and self._abilities.tells:
                await self.honest.check()
            else:
                await is_asked(self._target)
        except NothingSeen:
            pass  # the node answers, and wants a gap between messages
        except Exception as fault:
            result.unserved = shortened(f"honest programs or peers were not served afterwards: {fault!r}")


async def shake_hands(attacker: Attacker, start: Start) -> None:
    match start:
        case Start.NODE_V1:
            await attacker.shake_hands(1)
        case Start.NODE_V2:
            await attacker.shake_hands(1, 2)
        case Start.NODE_V1_BOTH_WAYS:
            await attacker.shake_hands(1, initiator_only=False)
        case Start.NODE_V2_BOTH_WAYS:
            await attacker.shake_hands(1, 2, initiator_only=False)
        case Start.NODE_V2_SHARING:
            await attacker.shake_hands(1, 2, initiator_only=False, sharing=1)
        case Start.LOCAL | Start.LOCAL_SEED:
            await attacker.shake_hands_locally()
        case _:
            pass


def _is_refusal(answer: Any, reason: int) -> bool:
    match answer:
        case [2, [found, *_]]:
            return bool(found == reason)
        case _:
            return False
