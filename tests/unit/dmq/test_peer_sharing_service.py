"""Addresses on request: ten at most, the same for a while, and never more than was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rigs.memory_channels import memory_channels
from stagepost.dmq.node.peer_link import PeerSharingClient, PeerSharingServer
from stagepost.dmq.peer_sharing import (
    ANSWER_STABLE_FOR_S,
    ASKERS_REMEMBERED_MAX,
    PeerAddress,
    SharedPeers,
    SharePeers,
    ShareRequest,
)
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import ErrorCode, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role


def talks() -> tuple[Conversation, Conversation]:
    spec = spec_for(DMQ_NODE, MiniProtocol.PEER_SHARING)
    client, server = (
        Conversation(spec, role, codec_for(DMQ_NODE, MiniProtocol.PEER_SHARING), end)
        for role, end in zip((Role.CLIENT, Role.SERVER), memory_channels(), strict=True)
    )
    return client, server


def addresses(count: int, first: int = 0) -> list[PeerAddress]:
    return [PeerAddress(f"10.0.0.{number}", 3_141) for number in range(first, first + count)]


class Choice:
    """Other addresses each time that it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def __call__(self, asker: str, amount: int) -> Sequence[PeerAddress]:
        self.asked.append((asker, amount))
        return addresses(20, first=20 * (len(self.asked) - 1))


def test_at_most_ten_are_given() -> None:
    shared = SharedPeers(Choice())

    assert shared.answer("a", 255, now=0) == tuple(addresses(10))
    assert shared.answer("a", 10, now=0) == tuple(addresses(10))


def test_fewer_are_the_first_of_the_same_answer() -> None:
    shared = SharedPeers(Choice())

    assert shared.answer("a", 3, now=0) == tuple(addresses(3))
    assert shared.answer("a", 0, now=0) == ()
    assert shared.answer("a", 5, now=0) == tuple(addresses(5))


def test_the_answer_stays_the_same_for_823_s() -> None:
    shared = SharedPeers(Choice())
    first = shared.answer("a", 10, now=5)

    assert shared.answer("a", 10, now=5 + ANSWER_STABLE_FOR_S - 0.001) == first
    assert shared.answer("a", 10, now=5 + ANSWER_STABLE_FOR_S) != first


def test_each_asker_has_its_own_answer() -> None:
    shared = SharedPeers(Choice())

    assert shared.answer("a", 10, now=0) != shared.answer("b", 10, now=0)


def test_the_same_address_is_given_once() -> None:
    shared = SharedPeers(lambda asker, amount: addresses(2) * 8)

    assert shared.answer("a", 10, now=0) == tuple(addresses(2))


def test_a_bounded_number_of_askers_is_remembered() -> None:
    choice = Choice()
    shared = SharedPeers(choice)
    for number in range(ASKERS_REMEMBERED_MAX + 1):
        shared.answer(str(number), 1, now=0)
    chosen = len(choice.asked)

    shared.answer("1", 1, now=0)
    assert len(choice.asked) == chosen
    shared.answer("0", 1, now=0)
    assert len(choice.asked) == chosen + 1


def test_a_client_asks_as_often_as_it_likes_and_says_goodbye() -> None:
    async def main() -> None:
        asking, answering = talks()
        server = asyncio.create_task(
            PeerSharingServer(answering, SharedPeers(Choice()), "asker", LoopClock(0)).run()
        )
        client = PeerSharingClient(asking)
        together = await asyncio.gather(client.request_peers(4), client.request_peers(2))
        assert [len(peers) for peers in together] == [4, 2]
        await asyncio.sleep(10_000)  # there is no hurry between two questions
        assert await client.request_peers(1) == tuple(addresses(1, first=20))
        await client.done()
        await server

    run_in_virtual_time(main())


def test_more_than_was_asked_for_is_the_peers_fault() -> None:
    async def main() -> None:
        asking, answering = talks()

        async def too_generous() -> None:
            await answering.receive(ShareRequest)
            await answering.send(SharePeers(tuple(addresses(3))))

        with pytest.raises(RemoteProtocolError) as caught:
            await asyncio.gather(PeerSharingClient(asking).request_peers(2), too_generous())
        assert caught.value.code is ErrorCode.PROTOCOL_WINDOW

    run_in_virtual_time(main())


def test_no_answer_within_60_s_is_the_peers_fault() -> None:
    async def main() -> None:
        asking, _ = talks()
        with pytest.raises(ProtocolTimeout):
            await PeerSharingClient(asking).request_peers(2)
        assert asyncio.get_running_loop().time() == 60

    run_in_virtual_time(main())
