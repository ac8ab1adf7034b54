"""A program that keeps the rules, beside those that do not: what it submits must be taken and told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.hostile.attacker import LOCAL_SUBMISSION, NOTIFICATION, OTHER_SIDE, Attacker, Target
from tests.hostile.cbor_bytes import TRUE, array, uint
from tests.hostile.forged_messages import Forger, Message, message

SERVED_WITHIN_S = 60.0
_WAIT_FOR_NEWS = array(uint(0), TRUE)


class HonestProgram:
    """Listens on one connection for its whole life, and submits on a new one each time."""

    def __init__(self, target: Target, pool: Forger) -> None:
        self._target = target
        self._pool = pool
        self._turn = asyncio.Lock()
        self._listening: Attacker | None = None
        self.latencies_s: list[float] = []

    async def check(self) -> Message:
        """One message in and out again; raises if the node does not serve."""
        async with self._turn, asyncio.timeout(SERVED_WITHIN_S):
            began = time.monotonic()
            sent = message(self._pool)
            answer = await submit(self._target, sent)
            assert answer == [1], f"an honest message was answered with {answer!r}"
            while sent.identifier not in await self._told():
                pass
            self.latencies_s.append(time.monotonic() - began)
            return sent

    async def _told(self) -> list[bytes]:
        if self._listening is None:
            self._listening = await Attacker.local(self._target)
            await self._listening.shake_hands_locally()
        await self._listening.say(NOTIFICATION, _WAIT_FOR_NEWS)
        _, messages = await self._listening.hear(NOTIFICATION | OTHER_SIDE)
        return [told[0] for told in messages]

    async def leave(self) -> None:
        if self._listening is not None:
            await self._listening.leave()


async def submit(target: Target, sent: Message) -> Any:
    program = await Attacker.local(target)
    try:
        await program.shake_hands_locally()
        await program.say(LOCAL_SUBMISSION, array(uint(0), sent.raw))
        return await program.hear(LOCAL_SUBMISSION | OTHER_SIDE)
    finally:
        await program.leave()
