"""A node that lets few in and takes little, and what must happen to those above its limits. A scenario fails by assertion."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    OTHER_SIDE,
    PEER_SHARING,
    Attacker,
    NodeTarget,
)
from stagepost.dmq.conform.cbor_bytes import array, endless, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message
from stagepost.dmq.conform.rows_messages import OTHER
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

GRACE_S = 10.0
DIALLED_WITHIN_S, NOT_DIALLED_WITHIN_S = 60.0, 3.0
PER_ADDRESS_MAX = 4
HARD_MAX = 6
MEMPOOL_MESSAGES_MAX = 6
POOL_PERCENT = 34
POOL_MESSAGES_MAX = MEMPOOL_MESSAGES_MAX * POOL_PERCENT // 100
SETTINGS = f"""
[node]
min_sig_delay_s = 60.0
connections_per_address = {PER_ADDRESS_MAX}
connections_soft = {HARD_MAX}
connections_hard = {HARD_MAX}
mempool_messages = {MEMPOOL_MESSAGES_MAX}
"""

WITHOUT_A_GAP = f"""
[node]
min_sig_delay_s = 0.0
mempool_messages = {MEMPOOL_MESSAGES_MAX}
mempool_pool_percent = {POOL_PERCENT}
"""

Scenario: TypeAlias = "Callable[[Victim, list[Forger], Guests], Awaitable[None]]"


def against(
    tmp_path: Path,
    scenario: Scenario,
    pools: int = 10,
    environment: Mapping[str, str] | None = None,
    settings: str = SETTINGS,
) -> None:
    (tmp_path / "stagepost.toml").write_text(settings)
    forgers = [Forger() for _ in range(pools)]
    stakes = write_stakes(tmp_path / "pools.json", [(forger, 1) for forger in forgers])
    victim = Victim(
        tmp_path / "node",
        stakes,
        flags=("--config", str(tmp_path / "stagepost.toml")),
        environment=environment or {},
    )
    with ending([victim]):
        victim.start()
        asyncio.run(_play(scenario, victim, forgers))
        assert not victim.faults_of_its_own()
        assert victim.terminate() == 0


async def _play(scenario: Scenario, victim: Victim, pools: list[Forger]) -> None:
    guests = Guests(victim.target)
    try:
        await scenario(victim, pools, guests)
    finally:
        await guests.leave()


@dataclass
class Guests:
    """Connections from given addresses, all of which are left at the end, however it comes."""

    target: NodeTarget
    _all: list[Attacker] = field(default_factory=list)

    async def come(self, source: str) -> Attacker:
        guest = await Attacker.tcp(self.target, source=source)
        self._all.append(guest)
        return guest

    async def leave(self) -> None:
        for guest in self._all:
            await guest.leave()


async def submit(target: NodeTarget, sent: ForgedMessage) -> Any:
    """Return the first answer to a submission, also where it says that the message came too soon."""
    program = await Attacker.local(target)
    try:
        await program.shake_hands_locally()
        await program.say(LOCAL_SUBMISSION, array(uint(0), sent.raw))
        return await program.hear(LOCAL_SUBMISSION | OTHER_SIDE)
    finally:
        await program.leave()


async def is_served(attacker: Attacker) -> bool:
    """Whether a peer may shake hands and is answered."""
    try:
        await attacker.shake_hands(1, 2)
        await attacker.say(KEEP_ALIVE, array(uint(0), uint(1)))
        return bool(await attacker.hear(KEEP_ALIVE | OTHER_SIDE) == [1, 1])
    except Exception:
        return False


async def one_pool_talks_too_much(victim: Victim, pools: list[Forger], guests: Guests) -> None:
    assert await submit(victim.target, message(pools[0])) == [1]
    for _ in range(50):
        answer = await submit(victim.target, message(pools[0]))
        assert answer != [1], "a message was accepted too soon after another"
        assert answer[1][0] == OTHER
        assert answer[1][1].startswith("MSG_TOO_FREQUENT: ")
    for other in pools[1:4]:
        assert await submit(victim.target, message(other)) == [1]


async def more_comes_than_the_mempool_holds(victim: Victim, pools: list[Forger], guests: Guests) -> None:
    for pool in pools[:MEMPOOL_MESSAGES_MAX]:
        assert await submit(victim.target, message(pool)) == [1]
    for pool in pools[MEMPOOL_MESSAGES_MAX:]:
        answer = await submit(victim.target, message(pool))
        assert answer != [1], "a message was accepted by a full mempool"
        assert answer[1][0] == OTHER
        assert answer[1][1].startswith("QUEUE_FULL: ")
    assert (await victim.status())["mempool"]["messages"] == MEMPOOL_MESSAGES_MAX


async def one_pool_wants_the_whole_mempool(victim: Victim, pools: list[Forger], guests: Guests) -> None:
    greedy, *others = pools
    answers = [await submit(victim.target, message(greedy)) for _ in range(3 * MEMPOOL_MESSAGES_MAX)]
    assert answers[:POOL_MESSAGES_MAX] == [[1]] * POOL_MESSAGES_MAX
    for answer in answers[POOL_MESSAGES_MAX:]:
        assert answer != [1], "a pool got more than its share"
        assert answer[1][1].startswith("QUEUE_FULL: this pool has")
    for other in others[: MEMPOOL_MESSAGES_MAX - POOL_MESSAGES_MAX]:
        assert await submit(victim.target, message(other)) == [1], "another pool was refused"


async def a_stranger_names_an_address_of_this_machine(
    victim: Victim, pools: list[Forger], guests: Guests, *, is_dialled: bool
) -> None:
    """A peer shares the address of a listener on loopback; the node dials it only where that is allowed."""
    dialled = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    stranger = await guests.come("127.0.0.2")
    await stranger.shake_hands(1, 2, initiator_only=False, sharing=1)
    await stranger.say(KEEP_ALIVE, array(uint(0), uint(7)))
    await stranger.hear(PEER_SHARING)
    named = array(uint(0), uint(int.from_bytes(bytes((127, 0, 0, 1)), "little")), uint(port))
    await stranger.say(PEER_SHARING | OTHER_SIDE, array(uint(1), endless(named)))
    within_s = DIALLED_WITHIN_S if is_dialled else NOT_DIALLED_WITHIN_S
    with suppress(TimeoutError):
        await asyncio.wait_for(dialled.wait(), within_s)
    listening.close()
    assert dialled.is_set() is is_dialled
    assert await is_served(await guests.come("127.0.0.3"))


async def one_address_wants_all_connections(victim: Victim, pools: list[Forger], guests: Guests) -> None:
    taken = [await guests.come("127.0.0.2") for _ in range(PER_ADDRESS_MAX)]
    assert [await is_served(one) for one in taken] == [True] * PER_ADDRESS_MAX
    surplus = await guests.come("127.0.0.2")
    assert not await is_served(surplus)
    assert await surplus.wait_ended(GRACE_S) is not None
    elsewhere = [await guests.come(f"127.0.0.{n}") for n in (3, 4)]
    assert [await is_served(one) for one in elsewhere] == [True, True]
    last = await guests.come("127.0.0.5")  # all are taken
    assert await last.wait_ended(GRACE_S) is not None
    assert await submit(victim.target, message(pools[0])) == [1]


async def an_address_breaks_a_rule_and_comes_again(
    victim: Victim, pools: list[Forger], guests: Guests
) -> None:
    for source, lane in (("127.0.0.2", 999), ("127.0.0.3", None)):
        attacker = await guests.come(source)
        if lane is None:  # already in its handshake
            await attacker.say(0, b"\x82\x00\x80")
        else:
            assert await is_served(attacker)
            await attacker.say(lane, b"\x80")
        assert await attacker.wait_ended(GRACE_S) is not None
        again = await guests.come(source)
        assert not await is_served(again)
    stranger = await guests.come("127.0.0.4")
    assert await is_served(stranger)
