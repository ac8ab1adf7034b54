"""Peers that announce a message and do not supply it, each from an address of its own, at a real node: how long a message of
an honest peer, which announces it last, takes to a program of the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeClosed,
    NodeTarget,
)
from stagepost.dmq.conform.cbor_bytes import TRUE, array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, message
from stagepost.dmq.conform.playbook import V1
from tests.hostile.crowd import allow_descriptors
from tests.hostile.crowd_driver import source_address
from tests.hostile.storms import Figure, a_node, ended_in_order
from tests.hostile.trial import Cast

HELD_WITHIN_S = 20.0
"""Seconds, with room for a busy machine: 96 peers that are asked one after the other take a minute."""
DELAY_S_MAX = 3.0
"""Seconds that 320 peers may delay a message, in soak runs."""
JUST_IN_TIME_S = 0.55
"""Seconds: less than the time for which the node leaves the first peer alone."""

Reply = Callable[[Attacker, ForgedMessage], Awaitable[None]]


class Offers:
    """Messages that all peers announce, and the one of them that is new."""

    def __init__(self) -> None:
        self.told: list[ForgedMessage] = []
        self.news = asyncio.Event()

    def tell(self, one: ForgedMessage) -> None:
        self.told.append(one)
        self.news.set()
        self.news = asyncio.Event()


async def _says_nothing(peer: Attacker, wanted: ForgedMessage) -> None:
    await peer.ended.wait()


async def _says_that_it_has_nothing(peer: Attacker, wanted: ForgedMessage) -> None:
    await peer.say(V1.says_on, V1.messages())


async def _forges(peer: Attacker, wanted: ForgedMessage) -> None:
    """The id does not cover the signature, so the copy looks right until it is judged."""
    await asyncio.sleep(JUST_IN_TIME_S)
    at = len(wanted.raw) // 2  # within the KES signature, which is most of a message
    await peer.say(
        V1.says_on, V1.messages(wanted.raw[:at] + bytes([wanted.raw[at] ^ 1]) + wanted.raw[at + 1 :])
    )


async def _serves(peer: Attacker, wanted: ForgedMessage) -> None:
    await peer.say(V1.says_on, V1.messages(wanted.raw))


MISDEEDS: dict[str, Reply] = {
    "say nothing": _says_nothing,
    "say that they have nothing": _says_that_it_has_nothing,
    "bring forged copies": _forges,
}


async def _supply(
    target: NodeTarget, source: str, offers: Offers, reply: Reply, ready: asyncio.Event
) -> None:
    """Announce every message, and answer as `reply` does when it is asked for."""
    peer = await Attacker.tcp(target, source=source)
    try:
        await peer.shake_hands(1)
        await peer.say(KEEP_ALIVE, array(uint(0), uint(1)))
        await peer.say(V1.says_on, V1.bare("init"))
        told = 0
        while True:
            heard = await peer.hear(V1.hears_on, within_s=120.0)
            if heard[0] == V1.tags["ask"]:
                wanted = next(one for one in offers.told if one.identifier == heard[1][0])
                await reply(peer, wanted)
                continue
            ready.set()
            while heard[1] and told == len(offers.told):  # the node waits for news
                await offers.news.wait()
            new = offers.told[told:]
            told = len(offers.told)
            await peer.say(V1.says_on, V1.ids(*((one.identifier, len(one.raw)) for one in new)))
    finally:
        ready.set()
        await peer.leave()


@asynccontextmanager
async def _suppliers(
    target: NodeTarget, sources: list[str], offers: Offers, reply: Reply
) -> AsyncIterator[None]:
    """Peers that are connected and asked for ids, from here on."""
    ready = [asyncio.Event() for _ in sources]
    tasks: list[asyncio.Task[None]] = []
    try:
        for first in range(0, len(sources), 32):  # no more at a time than wait before the proof
            for source, one in list(zip(sources, ready, strict=True))[first : first + 32]:
                tasks.append(asyncio.create_task(_supply(target, source, offers, reply, one)))
            await asyncio.gather(*(one.wait() for one in ready[first : first + 32]))
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(NodeClosed, asyncio.CancelledError, TimeoutError):
                await task


async def _delays(target: NodeTarget, cast: Cast, count: int, misdeed: Reply) -> list[float | None]:
    """Return the seconds that each of two messages took from the honest peer's announcement; None if it did not come."""
    liars, honest = Offers(), Offers()
    program = await Attacker.local(target)
    await program.shake_hands_locally()
    delays: list[float | None] = []
    sources = [source_address(number) for number in range(count)]
    try:
        async with (
            _suppliers(target, sources, liars, misdeed),
            _suppliers(target, ["127.250.0.1"], honest, _serves),
        ):
            for _ in range(2):
                sent = message(cast.pool)
                liars.tell(sent)
                await asyncio.sleep(0.2)
                began = time.monotonic()
                honest.tell(sent)
                try:
                    async with asyncio.timeout(HELD_WITHIN_S):
                        await program.say(NOTIFICATION, array(uint(0), TRUE))
                        _, told = await program.hear(NOTIFICATION | OTHER_SIDE, within_s=HELD_WITHIN_S)
                except TimeoutError:
                    return [*delays, None]
                if [one[0] for one in told] != [sent.identifier]:
                    raise AssertionError("another message came than was sent")
                delays.append(time.monotonic() - began)
    finally:
        await program.leave()
    return delays


def withholding(
    count: int, misdeed: str, environment: Mapping[str, str] | None = None
) -> tuple[Figure, list[str]]:
    """So many peers announce two messages, one after the other, and supply neither; an honest one announces them last."""
    allow_descriptors(2 * count + 200)
    cast = Cast()
    settings = "min_sig_delay_s = 0.0\n"
    with a_node(cast, settings, flags=(), many=False, environment=environment) as victim:
        delays = asyncio.run(_delays(victim.target, cast, count, MISDEEDS[misdeed]))
        faults = ended_in_order(victim)
    if None in delays:
        faults.append(f"a message did not come within {HELD_WITHIN_S:g} s of the honest announcement")
    figure: Figure = {
        "promise": "N10",
        "target": f"peers that announce a message and {misdeed}",
        "peers": count,
        "delays_s": " and ".join("none" if one is None else f"{one:.2f}" for one in delays),
        "longest_s": round(max((one for one in delays if one is not None), default=0.0), 2),
        "failures": len(faults),
    }
    return figure, faults
