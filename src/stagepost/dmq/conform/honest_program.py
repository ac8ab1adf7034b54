"""Programs and peers that keep the rules, beside those that do not: they must be served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeTarget,
    NothingSeen,
    require,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, TRUE, array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message

SERVED_WITHIN_S = 60.0
WANTS_A_GAP = "the node wants a gap between the messages of one pool: start it without one"
PACES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds before each time that a message is said again to a node that wants a gap between the messages of one pool."""
_WAIT_FOR_NEWS, _ASK = array(uint(0), TRUE), array(uint(0), FALSE)
_COOKIE = 4_711


class HonestProgram:
    """Program that listens on one connection for its whole life, and submits on a new one each time."""

    def __init__(
        self, target: NodeTarget, pool: Forger, within_s: float = SERVED_WITHIN_S, layout: int = 5
    ) -> None:
        self._target = target
        self._pool = pool
        self._within_s = within_s
        self._layout = layout
        self._turn = asyncio.Lock()
        self._listening: Attacker | None = None
        self.latencies_s: list[float] = []

    async def check(self) -> ForgedMessage:
        """Send one message in and hear it again; raise if the node does not serve."""
        async with self._turn, asyncio.timeout(self._within_s):
            began = time.monotonic()
            sent = message(self._pool, layout=self._layout)
            answer = await submit(self._target, sent)
            require(answer == [1], f"an honest message was answered with {answer!r}")
            while sent.identifier not in await self._told():
                pass
            self.latencies_s.append(time.monotonic() - began)
            return sent

    async def _told(self) -> list[bytes]:
        if self._listening is None:
            self._listening = await Attacker.local(self._target)
            await self._listening.shake_hands_locally()
        await self._listening.say(NOTIFICATION, _WAIT_FOR_NEWS)
        _, messages, *_ = await self._listening.hear(NOTIFICATION | OTHER_SIDE)
        return [told_id(told) for told in messages]

    async def leave(self) -> None:
        if self._listening is not None:
            await self._listening.leave()


def told_id(told: list[Any]) -> bytes:
    """Return the id of a decoded message of either layout."""
    identifier: bytes = told[0][0] if isinstance(told[0], list) else told[0]
    return identifier


async def submit(target: NodeTarget, sent: ForgedMessage) -> Any:
    program = await Attacker.local(target)
    try:
        await program.shake_hands_locally()
        return await submitted(program, sent)
    finally:
        await program.leave()


async def submitted(program: Attacker, sent: ForgedMessage, lane: int = LOCAL_SUBMISSION) -> Any:
    """Submit a message, again where it came too soon behind another one of its pool; return the answer."""
    await program.say(lane, array(uint(0), sent.raw))
    return await judged(program, lane)


async def judged(program: Attacker, lane: int) -> Any:
    """Return the answer to the submission that was said last; it is said again while it came too soon. Raise `NothingSeen`
    where the node wants a longer gap than that."""
    for pace_s in PACES_S:
        answer = await program.hear(lane | OTHER_SIDE)
        if not is_too_soon(answer):
            return answer
        await asyncio.sleep(pace_s)
        await program.say(lane, program.last_said)
    answer = await program.hear(lane | OTHER_SIDE)
    if is_too_soon(answer):
        raise NothingSeen(WANTS_A_GAP)
    return answer


def is_too_soon(answer: Any) -> bool:
    """Return whether a rejection asks for a gap between the messages of one pool."""
    match answer:
        case [2, [3, str(text)]]:
            return "TooFrequent" in text or "TOO_FREQUENT" in text
    return False


async def is_asked(target: NodeTarget) -> None:
    """Ask as a program for messages, and hear an answer."""
    program = await Attacker.local(target)
    try:
        await program.shake_hands_locally()
        await program.say(NOTIFICATION, _ASK)
        answer = await program.hear(NOTIFICATION | OTHER_SIDE)
        require(answer[0] == 1, f"an honest question for messages was answered with {answer!r}")
    finally:
        await program.leave()


async def is_pinged(target: NodeTarget, source: Callable[[], str | None]) -> None:
    """Ask for a cookie as a peer, and hear it."""
    peer = await Attacker.tcp(target, source=source())
    try:
        await peer.shake_hands(1, 2)
        await peer.say(KEEP_ALIVE, array(uint(0), uint(_COOKIE)))
        answer = await peer.hear(KEEP_ALIVE | OTHER_SIDE)
        require(answer == [1, _COOKIE], f"an honest keep-alive was answered with {answer!r}")
    finally:
        await peer.leave()
