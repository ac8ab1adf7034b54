"""What followers ask of one another: bounded questions, bounded answers, and nothing that cannot be."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from rigs.chain_messages import some_primes
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.node.following_messages import (
    BLOCKS_BYTES_MAX,
    BLOCKS_MAX,
    SESSIONS_ASKED_MAX,
    Final,
    Finals,
    GetFinals,
    decode_final,
    decode_finals,
    decode_get_finals,
)
from stagepost.errors import DecodeError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.links.large_objects import LARGE_BYTES_MAX
from tests.worlds.chain.chain_overlay_world import ChainOverlayWorld

SESSION = sha256(b"a session").digest()
BLOCK = Final(SESSION, 7, b"record of a block")


def test_forms_are_the_same_after_they_were_read() -> None:
    question, answer = GetFinals(((SESSION, 1), (b"o" * 32, 9))), Finals((BLOCK, BLOCK))
    assert decode_final(BLOCK.encode()) == BLOCK
    assert decode_get_finals(question.encode()) == question
    assert decode_finals(answer.encode()) == answer


@pytest.mark.parametrize("count", [SESSIONS_ASKED_MAX, SESSIONS_ASKED_MAX + 1])
def test_a_question_names_so_many_sessions_at_most(count: int) -> None:
    data = GetFinals(((SESSION, 1),) * count).encode()
    if count <= SESSIONS_ASKED_MAX:
        assert len(decode_get_finals(data).places) == count
    else:
        with pytest.raises(DecodeError):
            decode_get_finals(data)


@pytest.mark.parametrize("count", [BLOCKS_MAX, BLOCKS_MAX + 1])
def test_an_answer_has_so_many_blocks_at_most(count: int) -> None:
    data = Finals((BLOCK,) * count).encode()
    if count <= BLOCKS_MAX:
        assert len(decode_finals(data).blocks) == count
    else:
        with pytest.raises(DecodeError):
            decode_finals(data)


def test_blocks_count_from_1_and_nothing_may_follow() -> None:
    with pytest.raises(DecodeError, match="blocks count from 1"):
        decode_final(Final(SESSION, 0, b"record").encode())
    with pytest.raises(DecodeError):
        decode_final(BLOCK.encode() + bytes(4))
    with pytest.raises(DecodeError):
        decode_get_finals(BLOCK.encode())


def test_the_largest_answer_goes_over_a_link() -> None:
    assert BLOCKS_BYTES_MAX + BLOCKS_MAX * 48 < LARGE_BYTES_MAX


def test_an_answer_ends_with_its_limit_and_the_next_one_goes_on() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(1, 1, full_nodes=1)
        world.start()
        for number in range(20):
            world.offer(some_primes(number))
            await asyncio.sleep(0.3)
        follower: ChainFollower = world.houses[0].running
        store = follower.store
        session = max(
            (kept.session_id for kept in store.blocks()), key=lambda one: len(store.of_session(one))
        )
        count = len(store.of_session(session))
        assert count > 4
        blocks = asked(follower, (session, 1), times=BLOCKS_MAX)
        assert len(blocks) == BLOCKS_MAX
        assert [one.number for one in blocks[:count]] == list(range(1, count + 1))
        assert [one.number for one in asked(follower, (session, count))] == [count]
        assert asked(follower, (session, count + 1)) == ()
        assert asked(follower, (SESSION, 1)) == ()
        assert {house.running.ledger.master.hash for house in world.houses} == {follower.ledger.master.hash}
        await world.close()

    run_in_virtual_time(main())


def asked(follower: ChainFollower, place: tuple[bytes, int], *, times: int = 1) -> tuple[Final, ...]:
    answers: list[bytes] = []
    follower.asked(1, GetFinals((place,) * times).encode(), answers.append)
    return decode_finals(answers[0]).blocks
