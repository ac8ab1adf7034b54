"""Plays the list of cases against a node of ours, of which a witness reads the log and the counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from stagepost.dmq.conform.attacker import Attacker
from stagepost.dmq.conform.forged_messages import Forger
from stagepost.dmq.conform.playbook import (
    ALL_TONGUES,
    Case,
    MustClose,
    MustEnd,
    MustGoOn,
    MustRefuse,
    MustReject,
)
from stagepost.dmq.conform.runner import Abilities, CaseResult, CaseRunner
from stagepost.dmq.conform.runner import Cast as KitCast
from tests.hostile.victim import Counted, HasPoolId, Victim

GRACE_S = 10.0
"""On top of every time limit: a busy machine is no defect."""

RULES_OF_SLOW_ROWS = ("MUX_TIMEOUT", "PROTOCOL_TIMEOUT", "other")
"""They run beside the others, so these counts may grow at any time."""

RULES = ("MUX_", "HANDSHAKE_", "CBOR_", "PROTOCOL_")
OURS = Abilities(ALL_TONGUES, has_local_seed=True, takes=True, tells=True, judges=True)


@dataclass
class Cast(KitCast):
    """With pools that other parts of a trial sign with."""

    more_pools: Sequence[HasPoolId] = field(default_factory=tuple)

    @property
    def everybody(self) -> list[tuple[HasPoolId, int]]:
        return [*self.stakes, *((pool, 1) for pool in self.more_pools)]


class Trial:
    def __init__(self, victim: Victim, cast: Cast) -> None:
        self._victim = victim
        self._runner = CaseRunner(
            victim.target, cast, OURS, grace_s=GRACE_S, witness=VictimWitness(victim, cast.pool)
        )

    async def run(self, rows: Sequence[Case]) -> dict[str, CaseResult]:
        pid = self._victim.pid
        results = await self._runner.run(rows)
        assert self._victim.is_running, f"the node ended:\n{self._victim.log[-4_000:]}"
        assert self._victim.pid == pid
        return results


class VictimWitness:
    """Reads in the node's log and metrics that it blames the right rule, once, and nobody else."""

    def __init__(self, victim: Victim, pool: Forger) -> None:
        self._victim = victim
        self._pool = pool

    async def before(self) -> Counted:
        return await self._victim.counted()

    async def judge(self, result: CaseResult, attacker: Attacker, before: object) -> None:
        assert isinstance(before, Counted)
        row = result.case
        match row.must:
            case MustClose(code, place):
                await self._judge_blame(result, attacker, code, place, before)
            case MustRefuse(_, code, names):
                for name in names:
                    result.check(name in str(result.answer), f"{name} is not named in {result.answer!r}")
                if code.startswith("HANDSHAKE_"):
                    await self._judge_blame(result, attacker, code, "handshake", before)
                else:
                    result.check(code in str(result.answer), f"{code} is not named in {result.answer!r}")
            case MustReject(reason, code):
                if reason in (1, 2):
                    grown = await self._grown_rejections(before, code)
                    result.check(grown, f"no rejection was counted for {code}")
                    result.check(len(result.answer[1]) == 1, f"it answered {result.answer!r}")
                else:
                    named = str(result.answer[1][1]).startswith(f"{code}: ")
                    result.check(named, f"it answered {result.answer!r}")
            case MustGoOn(code) if code:
                grown = await self._grown_rejections(before, code)
                result.check(grown, f"no rejection was counted for {code}")
            case MustEnd():
                after = await self._victim.counted()
                blamed = after.violations - before.violations
                result.check(not blamed or row.is_slow, f"blamed: {blamed}")
        if result.faults:
            result.faults.append(f"the node's log: {self._said_of(attacker)}")
        own = self._victim.faults_of_its_own()
        result.check(not own, f"the node logged faults of its own: {own[-1:]}")

    async def _judge_blame(
        self, result: CaseResult, attacker: Attacker, code: str, place: str, before: Counted
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
        result.check(code in said, f"the log says {said} of this peer, expected {code}")
        result.check((place, rule) in grown, f"counted: {grown}, expected {(place, rule)}")
        if not result.case.is_slow:
            others = [one for one in grown if one[1] not in RULES_OF_SLOW_ROWS]
            result.check(len(others) <= 1, f"counted more than once: {others}")

    async def _grown_rejections(self, before: Counted, code: str) -> bool:
        return (await self._victim.counted()).rejections[code] > before.rejections[code]

    def _said_of(self, attacker: Attacker) -> list[str]:
        """Codes in the log that belong to this connection; local ones have no name, so there the last lines count."""
        lines = [line for line in self._victim.log_lines() if "code" in line]
        if attacker.name is None:
            lines = [line for line in lines if line.get("peer") == "local peer"][-30:]
        else:
            lines = [line for line in lines if line.get("peer") == attacker.name]
        return [str(line["code"]) for line in lines]
