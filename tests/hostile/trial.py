"""Plays misbehaviours against a node and judges what it does; after each one an honest program must still be served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.hostile.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeClosed,
)
from tests.hostile.cbor_bytes import FALSE, array, uint
from tests.hostile.forged_messages import Forger, Message, message
from tests.hostile.honest_program import HonestProgram, submit
from tests.hostile.playbook import Close, Ignore, Leave, Misbehaviour, Refuse, Reject, Scene, Start
from tests.hostile.victim import Counted, HasPoolId, Victim

GRACE_S = 10.0
"""On top of every time limit: a busy machine is no defect."""

COOKIE = 54_321
RULES_OF_SLOW_ROWS = ("MUX_TIMEOUT", "PROTOCOL_TIMEOUT", "other")
"""They run beside the others, so these counts may grow at any time."""

RULES = ("MUX_", "HANDSHAKE_", "CBOR_", "PROTOCOL_")


@dataclass
class Verdict:
    name: str
    faults: list[str] = field(default_factory=list)
    closed_after_s: float | None = None
    within_s: float = 0.0

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.faults.append(text)


@dataclass
class Cast:
    """The pools of a trial, and what the node was told before it."""

    pool: Forger = field(default_factory=Forger)
    renewed_pool: Forger = field(default_factory=Forger)
    poor_pool: Forger = field(default_factory=Forger)
    more_pools: Sequence[HasPoolId] = ()

    @property
    def stakes(self) -> list[tuple[HasPoolId, int]]:
        rich = (self.pool, self.renewed_pool, *self.more_pools)
        return [*((pool, 1) for pool in rich), (self.poor_pool, 0)]


class Trial:
    def __init__(self, victim: Victim, cast: Cast) -> None:
        self._victim = victim
        self._cast = cast
        self._held: Message | None = None
        self.honest = HonestProgram(victim.target, cast.pool)

    async def run(self, rows: Sequence[Misbehaviour]) -> dict[str, Verdict]:
        """Rows that wait for a time limit run beside the others; the others one by one, so that counts can be compared."""
        pid = self._victim.pid
        await self._prepare()
        slow = [asyncio.create_task(self.play(row)) for row in rows if row.is_slow]
        verdicts = [await self.play(row) for row in rows if not row.is_slow]
        verdicts += await asyncio.gather(*slow)
        await self.honest.leave()
        assert self._victim.is_running, f"the node ended:\n{self._victim.log[-4_000:]}"
        assert self._victim.pid == pid
        return {verdict.name: verdict for verdict in verdicts}

    async def _prepare(self) -> None:
        await self.honest.check()
        self._held = await self.honest.check()
        renewed = message(self._cast.renewed_pool, issue_number=5)
        assert await submit(self._victim.target, renewed) == [1]

    async def play(self, row: Misbehaviour) -> Verdict:
        verdict = Verdict(row.name, within_s=row.within_s)
        before = await self._victim.counted()
        attacker = await self._begin(row.start)
        assert self._held is not None
        scene = Scene(attacker, self._cast.pool, self._cast.renewed_pool, self._cast.poor_pool, self._held)
        try:
            async with asyncio.timeout(row.within_s + 2 * GRACE_S):
                try:
                    await row.act(scene)
                except NodeClosed as early:
                    if not isinstance(row.must, Close):
                        verdict.faults.append(f"the node closed too early: {early}")
                await self._judge(row, attacker, verdict, before)
        except TimeoutError:
            verdict.faults.append("neither answer nor end came in time")
        except NodeClosed as early:
            verdict.faults.append(f"the node closed: {early}; its log: {self._said_of(attacker)}")
        except Exception as fault:
            # An answer of a shape that nobody looks for fails its own row, not the whole trial.
            verdict.faults.append(f"{fault!r}; the node's log: {self._said_of(attacker)}")
        finally:
            await attacker.leave()
        try:
            await self.honest.check()
        except Exception as fault:
            verdict.faults.append(f"an honest program was not served afterwards: {fault!r}")
        own = self._victim.faults_of_its_own()
        verdict.require(not own, f"the node logged faults of its own: {own[-1:]}")
        return verdict

    async def _begin(self, start: Start) -> Attacker:
        target = self._victim.target
        attacker = await (Attacker.local(target) if start.is_local else Attacker.tcp(target))
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
            case Start.LOCAL:
                await attacker.shake_hands_locally()
            case _:
                pass
        return attacker

    async def _judge(self, row: Misbehaviour, attacker: Attacker, verdict: Verdict, before: Counted) -> None:
        match row.must:
            case Close(code, place):
                await self._judge_end(row, attacker, verdict)
                await self._judge_blame(row, attacker, verdict, code, place, before)
            case Refuse(reason, code, names):
                answer = await attacker.hear(HANDSHAKE | OTHER_SIDE)
                verdict.require(answer[0] == 2 and answer[1][0] == reason, f"it answered {answer!r}")
                for name in names:
                    verdict.require(name in str(answer), f"{name} is not named in {answer!r}")
                await self._judge_end(row, attacker, verdict)
                if code.startswith("HANDSHAKE_"):
                    await self._judge_blame(row, attacker, verdict, code, "handshake", before)
                else:
                    verdict.require(code in str(answer), f"{code} is not named in {answer!r}")
            case Reject(reason, code):
                await self._judge_rejection(attacker, verdict, reason, code, before)
            case Ignore(code):
                await self._judge_life(attacker, verdict, row.start)
                if code:
                    grown = await self._grown_rejections(before, code)
                    verdict.require(grown, f"no rejection was counted for {code}")
            case Leave():
                await self._judge_end(row, attacker, verdict)
                after = await self._victim.counted()
                verdict.require(
                    after.violations == before.violations or row.is_slow,
                    f"blamed: {after.violations - before.violations}",
                )

    async def _judge_end(self, row: Misbehaviour, attacker: Attacker, verdict: Verdict) -> None:
        verdict.closed_after_s = await attacker.wait_ended(row.within_s + GRACE_S)
        verdict.require(verdict.closed_after_s is not None, "the node did not close")

    async def _judge_blame(
        self, row: Misbehaviour, attacker: Attacker, verdict: Verdict, code: str, place: str, before: Counted
    ) -> None:
        """The log names rule and peer; the metric counts it once, where it belongs."""
        rule = code if code.startswith(RULES) else "other"
        said: list[str] = []
        grown: list[tuple[str, str]] = []
        until = time.monotonic() + GRACE_S / 2
        while time.monotonic() < until:
            said = self._said_of(attacker)
            after = await self._victim.counted()
            grown = list((after.violations - before.violations).elements())
            if code in said and (place, rule) in grown:
                break
            await asyncio.sleep(0.05)
        verdict.require(code in said, f"the log says {said} of this peer, expected {code}")
        verdict.require((place, rule) in grown, f"counted: {grown}, expected {(place, rule)}")
        if not row.is_slow:
            others = [one for one in grown if one[1] not in RULES_OF_SLOW_ROWS]
            verdict.require(len(others) <= 1, f"counted more than once: {others}")

    async def _judge_rejection(
        self, attacker: Attacker, verdict: Verdict, reason: int, code: str, before: Counted
    ) -> None:
        lane = attacker.last_lane
        answer = await attacker.hear(lane | OTHER_SIDE)
        verdict.require(answer[0] == 2 and answer[1][0] == reason, f"it answered {answer!r}")
        if reason in (1, 2):
            verdict.require(len(answer[1]) == 1, f"it answered {answer!r}")
            verdict.require(await self._grown_rejections(before, code), f"no rejection counted for {code}")
        else:
            verdict.require(str(answer[1][1]).startswith(f"{code}: "), f"it answered {answer!r}")
        await attacker.say(lane, array(uint(0), message(self._cast.pool).raw))
        verdict.require(await attacker.hear(lane | OTHER_SIDE) == [1], "no good message is taken afterwards")

    async def _judge_life(self, attacker: Attacker, verdict: Verdict, start: Start) -> None:
        """The connection is of use still."""
        try:
            if start.is_local:
                lane = NOTIFICATION
                await attacker.say(lane, array(uint(0), FALSE))
                verdict.require((await attacker.hear(lane | OTHER_SIDE))[0] == 1, "no notification came")
                return
            await attacker.say(KEEP_ALIVE, array(uint(0), uint(COOKIE)))
            while await attacker.hear(KEEP_ALIVE | OTHER_SIDE) != [1, COOKIE]:
                pass
        except NodeClosed:
            verdict.faults.append(f"the node closed, saying {self._said_of(attacker)}")

    async def _grown_rejections(self, before: Counted, code: str) -> bool:
        return (await self._victim.counted()).rejections[code] > before.rejections[code]

    def _said_of(self, attacker: Attacker) -> list[str]:
        """Codes in the log that belong to this connection; local ones have no name, so there the last lines count."""
        lines: Iterable[dict[str, object]] = self._victim.log_lines()
        if attacker.name is None:
            lines = [line for line in lines if line.get("peer") == "local peer"][-30:]
        else:
            lines = (line for line in lines if line.get("peer") == attacker.name)
        return [str(line["code"]) for line in lines if "code" in line]
