"""Storms at the level of messages: forged ones at full speed, and consumers that do not read what they asked for."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from stagepost.dmq.conform.attacker import (
    LOCAL_SUBMISSION,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeClosed,
    NodeTarget,
)
from stagepost.dmq.conform.cbor_bytes import TRUE, array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, message
from stagepost.dmq.conform.honest_program import submit
from stagepost.dmq.conform.playbook import V1
from tests.hostile.storms import MEGABYTE, Figure, Storm, leave
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim

_WAIT = array(uint(0), TRUE)


# N5


def forging(seconds: float, peers: int = 1, programs: int = 1) -> Storm:
    """Messages of a known pool with false signatures, as fast as one core makes them, by relays and programs."""

    async def storm(victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
        forged = [message(cast.pool, kes_signature=bytes(448)) for _ in range(200)]
        until = time.monotonic() + seconds
        counts = await asyncio.gather(
            *(_relay_forgeries(victim, forged, until) for _ in range(peers)),
            *(_submit_forgeries(victim, forged, until) for _ in range(programs)),
        )
        held = (await victim.status())["mempool"]["messages"]
        refused = (await victim.counted()).rejections["KES_SIGNATURE"]
        faults = [] if refused else ["no forgery was refused"]
        figure: Figure = {
            "promise": "N5",
            "target": "forged signatures",
            "inputs": sum(counts),
            "seconds": seconds,
            "refused": refused,
            "held": held,
        }
        return figure, faults

    return storm


async def _relay_forgeries(victim: Victim, forged: Sequence[ForgedMessage], until: float) -> int:
    """Connects, announces and serves until it is cut off; then again."""
    offers = 0
    while time.monotonic() < until:
        attacker = await Attacker.tcp(victim.target)
        with suppress(NodeClosed):
            await attacker.shake_hands(1)
            await attacker.say(V1.says_on, V1.bare("init"))
            chosen = [forged[(offers + number) % len(forged)] for number in range(33)]
            await attacker.hear(V1.hears_on)
            await attacker.say(V1.says_on, V1.ids(*((one.identifier, len(one.raw)) for one in chosen)))
            while True:
                heard = await attacker.hear(V1.hears_on)
                wanted = heard[1] if heard[0] == V1.tags["ask"] else None
                raws = [one.raw for one in chosen if wanted is not None and one.identifier in wanted]
                await attacker.say(V1.says_on, V1.ids() if wanted is None else V1.messages(*raws))
                offers += len(raws)
        await attacker.leave()
    return offers


async def _submit_forgeries(victim: Victim, forged: Sequence[ForgedMessage], until: float) -> int:
    attacker = await Attacker.local(victim.target)
    await attacker.shake_hands_locally()
    offers = 0
    while time.monotonic() < until:
        await attacker.say(LOCAL_SUBMISSION, array(uint(0), forged[offers % len(forged)].raw))
        answer = await attacker.hear(LOCAL_SUBMISSION | OTHER_SIDE)
        assert answer[0] == 2, f"a forged message was answered with {answer!r}"
        offers += 1
    await attacker.leave()
    return offers


# N8


@dataclass
class _Consumer:
    attacker: Attacker
    told: list[bytes]

    async def take(self, until_told: set[bytes]) -> None:
        """Ask on and on until everything wanted was told."""
        while not until_told <= set(self.told):
            await self.ask()
            _, messages = await self.attacker.hear(NOTIFICATION | OTHER_SIDE)
            self.told += [one[0] for one in messages]

    async def ask(self) -> None:
        await self.attacker.say(NOTIFICATION, _WAIT)

    async def take_late(self, until_told: set[bytes], target: NodeTarget) -> bool:
        """Read at last. Who took nothing for half a minute was cut off, which it notices; it comes again and is told all."""
        self.attacker.resume()
        try:
            await self.take(until_told)
            return True
        except NodeClosed:
            await self.attacker.leave()
            self.attacker, self.told = await Attacker.local(target), []
            await self.attacker.shake_hands_locally()
            await self.take(until_told)
            return False


def stalling(consumers: int, stalled: int, messages: int) -> Storm:
    """Some consumers ask and never read: the others are told everything once, in one order; so are these, later."""

    async def storm(victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
        everybody = [_Consumer(await Attacker.local(victim.target), []) for _ in range(consumers)]
        for one in everybody:
            await one.attacker.shake_hands_locally()
        slow, quick = everybody[:stalled], everybody[stalled:]
        for one in slow:
            one.attacker.pause()
            for _ in range(200):  # questions enough to fill every buffer between here and there
                await one.ask()
        base = victim.resident_bytes
        sent: list[bytes] = []
        wanted: set[bytes] = set()
        for _ in range(messages):
            made = message(cast.pool, body=secrets.token_bytes(1_900))
            answer = await submit(victim.target, made)
            assert answer == [1], f"an honest message was answered with {answer!r}"
            sent.append(made.identifier)
        wanted = set(sent)
        await asyncio.gather(*(one.take(wanted) for one in quick))
        grown = victim.resident_bytes - base
        kept = await asyncio.gather(*(one.take_late(wanted, victim.target) for one in slow))
        faults = [text for one in everybody for text in _gaps(one.told, sent)]
        await leave([one.attacker for one in everybody])
        figure: Figure = {
            "promise": "N8",
            "target": "stalled consumers",
            "inputs": consumers,
            "stalled": stalled,
            "cut_off": kept.count(False),
            "messages": messages,
            "grown_mb": round(grown / MEGABYTE, 1),
        }
        return figure, faults

    return storm


def _gaps(told: list[bytes], sent: list[bytes]) -> list[str]:
    ours = set(sent)
    told_ours = [one for one in told if one in ours]
    if len(told) != len(set(told)):
        return ["a consumer was told something twice"]
    return [] if told_ours == sent else ["a consumer was told of messages in another order than they came"]
