"""Many quiet connections, in a process of their own: started by `crowd.py`, which tells it on stdin what to do.

Each command is one word, each answer one line of `word count`; at the end of stdin every connection is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeTarget,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, TRUE, array, uint

BUNCH = 40
"""So many connections at a time: two processes together stay below a listener's queue, which is not tried here."""
WITHIN_S = 300.0
SOURCES_PER_PREFIX = 4
"""With 16 connections each, as many as a node lets one /24 have."""


def source_address(number: int) -> str:
    """One of the many loopback addresses; never the one that everybody uses."""
    prefix, host = divmod(number, SOURCES_PER_PREFIX)
    return f"127.{1 + prefix // 256}.{prefix % 256}.{2 + host}"


class Crowd:
    def __init__(self, target: NodeTarget, per_address: int, first_address: int) -> None:
        self._target = target
        self._per_address = per_address
        self._first_address = first_address
        self._members: list[Attacker] = []
        self._waiting: list[asyncio.Task[object]] = []

    @property
    def _is_local(self) -> bool:
        return self._target.socket is not None

    async def open(self, count: int) -> int:
        while len(self._members) < count:
            numbers = range(len(self._members), min(count, len(self._members) + BUNCH))
            self._members += await asyncio.gather(*(self._open_one(number) for number in numbers))
        return len(self._members)

    async def _open_one(self, number: int) -> Attacker:
        if self._is_local:
            member = await Attacker.local(self._target)
            await member.shake_hands_locally()
        else:
            source = source_address(self._first_address + number // self._per_address)
            member = await Attacker.tcp(self._target, source=source)
            await member.shake_hands(1, 2)
        await self._ask_one(member)
        return member

    async def ask(self) -> int:
        """Every connection asks something that is answered at once."""
        answered = await asyncio.gather(*(self._ask_one(member) for member in self._members))
        return sum(answered)

    async def _ask_one(self, member: Attacker) -> bool:
        if self._is_local:
            await member.say(NOTIFICATION, array(uint(0), FALSE))
            return bool((await member.hear(NOTIFICATION | OTHER_SIDE, WITHIN_S))[0] == 1)
        await member.say(KEEP_ALIVE, array(uint(0), uint(77)))
        return bool(await member.hear(KEEP_ALIVE | OTHER_SIDE, WITHIN_S) == [1, 77])

    async def wait(self) -> int:
        """Every program waits for news; a peer has nothing to wait for."""
        for member in self._members if self._is_local else ():
            await member.say(NOTIFICATION, array(uint(0), TRUE))
            listening = member.hear(NOTIFICATION | OTHER_SIDE, WITHIN_S)
            self._waiting.append(asyncio.create_task(listening))
        return len(self._members)

    async def told(self) -> int:
        """How many of them were told of exactly one message."""
        if not self._is_local:
            return await self.ask()
        answers = await asyncio.gather(*self._waiting)
        return sum(isinstance(answer, list) and answer[0] == 2 and len(answer[1]) == 1 for answer in answers)

    async def leave(self) -> None:
        await asyncio.gather(*(member.leave() for member in self._members))


async def obey(crowd: Crowd, count: int) -> None:
    async def opened() -> int:
        return await crowd.open(count)

    commands: dict[str, Callable[[], Awaitable[int]]] = {
        "open": opened,
        "ask": crowd.ask,
        "wait": crowd.wait,
        "told": crowd.told,
    }
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(line, await commands[line](), flush=True)
    await crowd.leave()


def main(arguments: Sequence[str]) -> None:
    place, magic, count, per_address, first_address = arguments
    socket = None if place.isdecimal() else Path(place)
    target = NodeTarget(int(place) if socket is None else 0, socket, int(magic))
    asyncio.run(obey(Crowd(target, int(per_address), int(first_address)), int(count)))


if __name__ == "__main__":
    main(sys.argv[1:])
