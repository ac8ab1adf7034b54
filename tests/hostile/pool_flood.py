"""N6: one pool signs a hundred times what it may, over its own program and over a relay; nobody else is refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from stagepost.dmq.conform.attacker import LOCAL_SUBMISSION, OTHER_SIDE, Attacker, NodeClosed, NodeTarget
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.conform.playbook import V1
from tests.hostile.storms import Figure, a_node, ended_in_order
from tests.hostile.trial import Cast

TIMES_ALLOWED = 100
OTHER_POOLS = 8
PACE = 1.1
"""Honest pools keep a little more than the gap between two messages: they do not know the node's clock."""
TOO_FREQUENT = "MSG_TOO_FREQUENT"


@dataclass
class Tally:
    """What became of the messages of some pools: accepted, or refused with which text."""

    sent: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def note(self, answer: list[object]) -> None:
        self.sent += 1
        if answer == [1]:
            self.accepted += 1
        else:
            self.refused[_code(answer)] += 1


def _code(answer: list[object]) -> str:
    match answer:
        case [2, [_, str(text)]]:
            return text.partition(":")[0]
        case _:
            return repr(answer)


def flooding(seconds: float, gap_s: float = 1.0) -> tuple[Figure, list[str]]:
    """The flooding pool sends a hundred messages in each gap; others one each, and all of those are taken."""
    others = [Forger() for _ in range(OTHER_POOLS)]
    cast = Cast(more_pools=others)
    with a_node(cast, f"min_sig_delay_s = {gap_s}\n") as victim:
        flood, honest, relayed = asyncio.run(_flood(victim.target, cast.pool, others, seconds, gap_s))
        faults = ended_in_order(victim)
    if honest.refused:
        faults.append(f"messages of other pools were refused: {dict(honest.refused)}")
    if set(flood.refused) - {TOO_FREQUENT}:
        faults.append(f"the flood was refused for other reasons than its rate: {dict(flood.refused)}")
    if not flood.refused:
        faults.append("nothing of the flood was refused")
    if flood.accepted > seconds / gap_s + 2:
        faults.append(f"{flood.accepted} messages of the flood were accepted in {seconds:g} s")
    figure: Figure = {
        "promise": "N6",
        "target": "valid flood by one pool",
        "messages_of_the_flood": flood.sent + relayed,
        "times_allowed": round((flood.sent + relayed) * gap_s / seconds),
        "relayed": relayed,
        "flood_accepted": flood.accepted,
        "flood_refused": flood.refused.total(),
        "others_sent": honest.sent,
        "others_refused": honest.refused.total(),
        "seconds": seconds,
        "failures": len(faults),
    }
    return figure, faults


async def _flood(
    target: NodeTarget, flooder: Forger, others: list[Forger], seconds: float, gap_s: float
) -> tuple[Tally, Tally, int]:
    until = time.monotonic() + seconds
    flood, honest = Tally(), Tally()
    programs = [_submit_steadily(target, pool, gap_s * PACE, until, honest) for pool in others]
    # The program alone sends the hundredfold; what the relay brings comes on top.
    relaying = asyncio.create_task(_relay(target, flooder, until))
    await asyncio.gather(
        *programs, _submit_steadily(target, flooder, gap_s / TIMES_ALLOWED, until, flood), relaying
    )
    return flood, honest, relaying.result()


async def _submit_steadily(
    target: NodeTarget, pool: Forger, every_s: float, until: float, tally: Tally
) -> None:
    """One program of a pool. What it could not send in time, because answers came late, it sends at once."""
    program = await Attacker.local(target)
    await program.shake_hands_locally()
    began = time.monotonic()
    while time.monotonic() < until:
        await program.say(LOCAL_SUBMISSION, array(uint(0), message(pool).raw))
        tally.note(await program.hear(LOCAL_SUBMISSION | OTHER_SIDE))
        due = began + every_s * tally.sent if every_s < PACE / 10 else time.monotonic() + every_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await program.leave()


async def _relay(target: NodeTarget, pool: Forger, until: float) -> int:
    """A peer that serves the flood on, as fast as it is asked; comes again when it is sent away."""
    served = 0
    while time.monotonic() < until:
        peer = await Attacker.tcp(target)
        with suppress(NodeClosed):
            await peer.shake_hands(1)
            await peer.say(V1.says_on, V1.bare("init"))
            served += await _serve(peer, pool, lambda: time.monotonic() < until)
        await peer.leave()
    return served


async def _serve(peer: Attacker, pool: Forger, may_go_on: Callable[[], bool]) -> int:
    served = 0
    waiting = {one.identifier: one for one in (message(pool) for _ in range(10))}
    unannounced = list(waiting.values())
    while may_go_on():
        heard = await peer.hear(V1.hears_on)
        if heard[0] == V1.tags["ask"]:
            raws = [waiting[wanted].raw for wanted in heard[1] if wanted in waiting]
            served += len(raws)
            await peer.say(V1.says_on, V1.messages(*raws))
            continue
        await peer.say(V1.says_on, V1.ids(*((one.identifier, len(one.raw)) for one in unannounced)))
        unannounced = [message(pool) for _ in range(10)]
        waiting |= {one.identifier: one for one in unannounced}
    return served
