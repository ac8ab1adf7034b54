"""One side asks every ten seconds and measures, the other gives every cookie back."""

from __future__ import annotations

import asyncio

import pytest

from rigs.memory_channels import memory_channels
from stagepost.dmq.profiles import DMQ_NODE, SEED, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import ErrorCode, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.keep_alive import KeepAliveClient, KeepAliveServer
from stagepost.ground.net.keep_alive_protocol import Done, KeepAlive, KeepAliveResponse
from stagepost.ground.statemachine.spec import Role


def talks(profile: Profile = DMQ_NODE) -> tuple[Conversation, Conversation]:
    channels = memory_channels()
    client, server = (
        Conversation(
            spec_for(profile, MiniProtocol.KEEP_ALIVE), role, codec_for(profile, MiniProtocol.KEEP_ALIVE), end
        )
        for role, end in zip((Role.CLIENT, Role.SERVER), channels, strict=True)
    )
    return client, server


async def slow_echo(talk: Conversation, delays_s: list[float], cookies: list[int]) -> None:
    """Answers after these delays, then no more."""
    for delay_s in delays_s:
        cookie = (await talk.receive(KeepAlive)).cookie
        cookies.append(cookie)
        await asyncio.sleep(delay_s)
        await talk.send(KeepAliveResponse(cookie))
    await asyncio.Event().wait()


@pytest.mark.parametrize("profile", [DMQ_NODE, SEED])
def test_asks_at_once_and_every_ten_seconds_until_told_to_stop(profile: Profile) -> None:
    async def main() -> None:
        asking, answering = talks(profile)
        asked_at: list[float] = []
        loop = asyncio.get_running_loop()
        client = KeepAliveClient(
            asking, LoopClock(0), on_round_trip=lambda seconds: asked_at.append(loop.time())
        )
        loop.call_at(35, client.finish)
        await asyncio.gather(client.run(), KeepAliveServer(answering).run())
        assert asked_at == [0, 10, 20, 30]
        assert loop.time() == 35
        assert answering.is_over

    run_in_virtual_time(main())


def test_the_round_trip_is_measured_and_does_not_stretch_the_interval() -> None:
    async def main() -> None:
        asking, answering = talks()
        cookies: list[int] = []
        measured: list[float] = []
        echo = asyncio.create_task(slow_echo(answering, [1, 12, 0.5], cookies))
        client = KeepAliveClient(asking, LoopClock(0), on_round_trip=measured.append)
        running = asyncio.create_task(client.run())
        await asyncio.sleep(25)
        assert measured == [1, 12, 0.5]
        assert client.round_trip_s == 0.5
        assert cookies == [0, 1, 2]
        for task in (running, echo):
            task.cancel()

    run_in_virtual_time(main())


def test_cookies_begin_again_after_16_bits() -> None:
    async def main() -> None:
        asking, answering = talks()
        cookies: list[int] = []
        echo = asyncio.create_task(slow_echo(answering, [0, 0, 0], cookies))
        client = KeepAliveClient(asking, LoopClock(0), first_cookie=0xFFFE)
        running = asyncio.create_task(client.run())
        await asyncio.sleep(25)
        assert cookies == [0xFFFE, 0xFFFF, 0]
        for task in (running, echo):
            task.cancel()

    run_in_virtual_time(main())


def test_a_wrong_cookie_is_the_peers_fault() -> None:
    async def main() -> None:
        asking, answering = talks()

        async def lie() -> None:
            request = await answering.receive(KeepAlive)
            await answering.send(KeepAliveResponse(request.cookie + 1))

        with pytest.raises(RemoteProtocolError) as caught:
            await asyncio.gather(KeepAliveClient(asking, LoopClock(0)).run(), lie())
        assert caught.value.code is ErrorCode.PROTOCOL_STATE

    run_in_virtual_time(main())


def test_no_answer_within_60_s_is_the_peers_fault() -> None:
    async def main() -> None:
        asking, _ = talks()
        with pytest.raises(ProtocolTimeout):
            await KeepAliveClient(asking, LoopClock(0)).run()
        assert asyncio.get_running_loop().time() == 60

    run_in_virtual_time(main())


def test_no_question_within_97_s_is_the_peers_fault() -> None:
    async def main() -> None:
        asking, answering = talks()
        serving = asyncio.create_task(KeepAliveServer(answering).run())
        await asking.send(KeepAlive(7))
        assert (await asking.receive(KeepAliveResponse)).cookie == 7
        with pytest.raises(ProtocolTimeout):
            await serving
        assert asyncio.get_running_loop().time() == 97

    run_in_virtual_time(main())


def test_an_instance_that_nobody_opens_costs_no_time() -> None:
    async def main() -> None:
        asking, answering = talks()
        serving = asyncio.create_task(KeepAliveServer(answering).run())
        await asyncio.sleep(1_000)
        assert not serving.done(), "it was ended although nobody had opened it"
        await asking.send(Done())
        await serving
        assert answering.is_over

    run_in_virtual_time(main())
