"""A full node that is killed tells the end of every message once: whichever of its topic and its chain has reached the
disk, and whether the message is brought again or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from stagepost.full_node.message_record import RecordState
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.message_status import SentToValidators
from tests.worlds.full_node.full_node_lives import WAY_S, FullNodeLives, id_of, primes

RUNS = 40
STEPS = 60
SETTLED_S = 3.0


def lived(story: Callable[[FullNodeLives], Awaitable[None]], *, forgets_finals: bool = False) -> None:
    async def main() -> None:
        lives = FullNodeLives(forgets_finals=forgets_finals)
        await story(lives)
        await lives.close()

    run_in_virtual_time(main())


async def becomes_final(lives: FullNodeLives) -> None:
    """Put the queued messages into a shard block and a master block, of which the full node hears."""
    lives.shard_block()
    lives.chain.master_block()
    lives.hear()
    await asyncio.sleep(SETTLED_S)


async def told_final(lives: FullNodeLives) -> None:
    """Submit message 10 until its Finalized stands on the topic; the chain is not on disk."""
    await lives.write(10)
    await asyncio.sleep(SETTLED_S)
    await becomes_final(lives)
    assert lives.kinds(id_of(10))[-1] == "Finalized"


# The topic has it, the chain on disk has not


@pytest.mark.parametrize("on_disk", [0, 1], ids=["neither block on disk", "the shard block on disk"])
@pytest.mark.parametrize("forgets_finals", [False, True], ids=["", "planted defect"])
def test_brought_again_before_the_chain_has_caught_up_it_is_not_told_again(
    on_disk: int, forgets_finals: bool
) -> None:
    async def story(lives: FullNodeLives) -> None:
        await told_final(lives)
        lives.kill()
        lives.on_disk = on_disk
        lives.start()
        lives.bring(10)
        await asyncio.sleep(SETTLED_S)
        lives.hear()
        await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 1 + forgets_finals

    lived(story, forgets_finals=forgets_finals)


def test_a_record_of_the_topic_of_messages_that_comes_again_is_passed() -> None:
    async def story(lives: FullNodeLives) -> None:
        await told_final(lives)
        lives.kill()
        lives.messages.positions_of.clear()  # the position was not on disk
        lives.start()
        await asyncio.sleep(SETTLED_S)
        lives.hear()
        await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 1
        assert lives.messages.positions_of["full-node"] == {0: 1}

    lived(story)


def test_with_the_chain_on_disk_it_is_not_told_again_either() -> None:
    async def story(lives: FullNodeLives) -> None:
        await told_final(lives)
        lives.synced()
        lives.kill()
        lives.start()
        lives.bring(10)
        await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 1

    lived(story)


# The chain on disk has it, the topic has not


@pytest.mark.parametrize("is_on_disk", [True, False], ids=["the chain on disk", "the chain not on disk"])
def test_an_end_that_did_not_reach_the_disk_is_told_by_the_next_life(is_on_disk: bool) -> None:
    async def story(lives: FullNodeLives) -> None:
        await lives.write(10)
        await asyncio.sleep(SETTLED_S)
        lives.shard_block()
        lives.chain.master_block()
        lives.hear()  # Finalized is handed to the topic, which has no time to write it
        if is_on_disk:
            lives.synced()
        lives.kill()
        assert lives.finals(id_of(10)) == 0
        lives.start()
        lives.hear()
        await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 1

    lived(story)


def test_nothing_of_it_on_the_topic_it_is_told_when_it_comes_again() -> None:
    async def story(lives: FullNodeLives) -> None:
        lives.statuses.is_full = True  # no status gets onto the disk in this life
        lives.came(primes(10))
        await lives.write(10)
        lives.shard_block()
        lives.chain.master_block()
        lives.follow()
        lives.synced()
        lives.kill()
        lives.statuses.is_full = False
        lives.start()
        await asyncio.sleep(SETTLED_S)
        assert lives.kinds(id_of(10)) == ["Finalized"]
        lives.bring(10)
        lives.kill()
        lives.start()
        await asyncio.sleep(SETTLED_S)
        assert lives.kinds(id_of(10)) == ["Finalized"]

    lived(story)


def test_an_end_that_retention_has_taken_is_told_to_whoever_brings_it_again_so_that_the_topic_has_it_once() -> (
    None
):
    async def story(lives: FullNodeLives) -> None:
        await told_final(lives)
        lives.synced()
        lives.bring(11)
        await asyncio.sleep(SETTLED_S)
        lives.kill()
        lives.statuses.forget_before(0, lives.statuses.reader().end_offset(0))
        lives.start()
        await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 0, "nobody asks"
        for _ in range(2):
            lives.bring(10)
            await asyncio.sleep(SETTLED_S)
        assert lives.finals(id_of(10)) == 1

    lived(story)


def test_the_position_waits_for_the_disk_of_the_statuses() -> None:
    async def main() -> None:
        lives = FullNodeLives(write_s=1_000.0, seed=3)
        await lives.write(10)
        await asyncio.sleep(SETTLED_S)
        assert lives.pool, "validators have it"
        assert not lives.messages.positions_of["full-node"]
        assert lives.node.is_under_way(id_of(10))
        await asyncio.sleep(1_000.0 + SETTLED_S)
        assert lives.messages.positions_of["full-node"] == {0: 1}
        assert not lives.node.is_under_way(id_of(10))
        await lives.close()

    run_in_virtual_time(main())


async def sent_to_one(lives: FullNodeLives, *, is_honest: bool) -> int:
    """Return the number of a message that one validator alone has, and has answered for; the next gets it at this moment."""
    number = 10
    while True:
        lives.bring(number)
        await asyncio.sleep(2.2 * WAY_S)
        history = lives.node.sending.get(id_of(number))
        assert history is not None
        if (lives.dishonest not in history.answered) == is_honest:
            assert len(history.answered) == 1
            return number
        lives.kill()
        lives.start()
        number += 1


@pytest.mark.parametrize("is_sent_told", [False, True])
def test_one_that_only_a_dishonest_validator_had_is_sent_to_more_when_it_comes_again(
    is_sent_told: bool,
) -> None:
    async def story(lives: FullNodeLives) -> None:
        number = await sent_to_one(lives, is_honest=False)
        if is_sent_told:
            # All others could be told of it, as it seemed: what they were told stands in the sockets of this process.
            lives.node._report_sent(id_of(number), SentToValidators(4, 4), 0.0)
        for _ in range(3):  # until it is handed over, and written
            await asyncio.sleep(0)
        assert lives.node.is_under_way(id_of(number))
        lives.kill()
        assert lives.kinds(id_of(number)) == (["SentToValidators", "PutIntoQueue"] if is_sent_told else [])
        assert id_of(number) not in lives.pool
        lives.start()
        if is_sent_told:
            assert lives.earlier_life()[id_of(number)].state is RecordState.INTERRUPTED
        lives.bring(number)
        await asyncio.sleep(SETTLED_S)
        assert id_of(number) in lives.pool
        await becomes_final(lives)
        assert lives.finals(id_of(number)) == 1

    lived(story)


def test_one_that_is_not_brought_again_is_told_the_end_of_all_the_same() -> None:
    async def story(lives: FullNodeLives) -> None:
        number = await sent_to_one(lives, is_honest=True)
        lives.node._report_sent(id_of(number), SentToValidators(4, 4), 0.0)
        for _ in range(3):  # until it is written
            await asyncio.sleep(0)
        lives.kill()
        lives.start()
        await becomes_final(lives)
        assert lives.finals(id_of(number)) == 1

    lived(story)


# All of it together


async def a_walk(seed: int, *, forgets_finals: bool = False) -> str:
    """Return the messages without exactly one Finalized at the end, as text."""
    chance = Random(seed)
    lives = FullNodeLives(write_s=chance.choice((0.0, 0.2)), seed=seed, forgets_finals=forgets_finals)
    brought: list[int] = []
    by_hand: list[int] = []
    lags = (0, 0, 1, 2, 5)
    for _ in range(STEPS):
        step = chance.choice(
            ("write", "write", "bring", "again", "shard", "master", "hear", "sync", "kill", "pass")
        )
        if step in ("write", "bring"):
            brought.append(2 + len(brought))
            if step == "write":
                await lives.write(brought[-1])
            else:
                by_hand.append(brought[-1])
                lives.bring(brought[-1])
        elif step == "again" and brought:
            lives.bring(chance.choice(brought))
        elif step == "shard" and lives.pool:
            lives.shard_block()
        elif step == "master":
            lives.chain.master_block()
        elif step == "hear":
            lives.hear()
        elif step == "sync":
            lives.on_disk = max(lives.on_disk, lives.followed - chance.choice(lags))
        elif step == "kill":
            lives.kill()
            await asyncio.sleep(chance.choice((0.0, 1.0)))
            lives.start()
        else:
            await asyncio.sleep(chance.choice((0.01, 0.05, 0.1, 1.0)))
    for number in by_hand:
        lives.bring(
            number
        )  # who brought it by hand and has not heard of its end does; who wrote to the topic need not
    await asyncio.sleep(20.0)
    await becomes_final(lives)
    finals = {number: lives.finals(id_of(number)) for number in brought}
    await lives.close()
    return ", ".join(f"message {number}: {count} Finalized" for number, count in finals.items() if count != 1)


@pytest.mark.parametrize("number", range(RUNS))
def test_however_often_it_is_killed_every_end_is_told_once(number: int, run_seed: int) -> None:
    seed = run_seed + number
    assert run_in_virtual_time(a_walk(seed)) == "", f"seed {seed}"


def test_a_walk_finds_a_node_that_forgets_what_it_has_told() -> None:
    found = [run_in_virtual_time(a_walk(seed, forgets_finals=True)) for seed in range(10)]
    assert any("2 Finalized" in one for one in found)
