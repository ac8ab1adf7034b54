"""What a peer says behind the end of one instance of a mini-protocol is the beginning of the next."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from stagepost.dmq.endpoints.connection import Connection
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.errors import ErrorCode, TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import LEFT_OVER_BYTES_MAX, Bearer
from stagepost.ground.net.handshake import Agreement
from stagepost.ground.net.keep_alive import KeepAliveServer
from stagepost.ground.net.keep_alive_protocol import Done, KeepAlive, KeepAliveResponse
from stagepost.ground.net.version_data import ConnectionKind
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction, Segment, lane_number

LANE = lane_number(11, Direction.INITIATOR)


def with_raw_peer(scenario: Callable[[Bearer, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            loop = asyncio.get_running_loop()
            _, bearer = await loop.create_unix_connection(lambda: Bearer(peer="test peer"), sock=ours)
            await scenario(bearer, theirs)
            bearer.abort(TransportError("end of test"))
            await bearer.wait_closed()

    run_in_virtual_time(main())


def test_bytes_read_and_bytes_waiting_go_to_the_next_instance_in_order() -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        first = bearer.channel(11, Direction.RESPONDER, 1_000)
        theirs.send(Segment(0, LANE, b"one two").encode())
        assert await first.read() == b"one two"
        theirs.send(Segment(0, LANE, b" three").encode())
        await asyncio.sleep(0.01)

        first.close(b" two")
        second = bearer.channel(11, Direction.RESPONDER, 1_000)

        assert await second.read() == b" two three"

    with_raw_peer(scenario)


@pytest.mark.parametrize("surplus", [0, 1])
def test_more_than_a_segment_behind_the_end_is_refused(surplus: int) -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        channel = bearer.channel(11, Direction.RESPONDER, 100_000)

        channel.close(bytes(LEFT_OVER_BYTES_MAX + surplus))

        assert bearer.is_over is bool(surplus)
        if surplus:
            assert bearer.reason is not None
            assert bearer.reason.code is ErrorCode.MUX_INGRESS_OVERFLOW
            assert bearer.reason.limit == LEFT_OVER_BYTES_MAX

    with_raw_peer(scenario)


@pytest.mark.parametrize("has_begun", [True, False])
def test_lane_that_is_not_run_after_all(has_begun: bool) -> None:
    async def scenario(bearer: Bearer, theirs: socket.socket) -> None:
        bearer.expect(11, Direction.RESPONDER, 1_000)
        if has_begun:
            theirs.send(Segment(0, LANE, b"too early").encode())
            await asyncio.sleep(0.01)

        bearer.stop_expecting(11, Direction.RESPONDER)

        assert bearer.is_over is has_begun
        theirs.send(Segment(0, LANE, b"too late").encode())
        reason = await bearer.wait_closed()
        assert reason is not None
        assert reason.code is ErrorCode.MUX_UNKNOWN_PROTOCOL

    with_raw_peer(scenario)


def test_keep_alive_is_begun_anew_in_the_same_breath() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        agreement = Agreement(ConnectionKind.NODE, 2, 1)
        ends = []
        for sock in (ours, theirs):
            _, bearer = await loop.create_unix_connection(Bearer, sock=sock)
            ends.append(Connection(bearer, agreement))
        server, client = ends
        answering = asyncio.create_task(
            server.answer(DMQ_NODE, MiniProtocol.KEEP_ALIVE, lambda talk: KeepAliveServer(talk).run())
        )
        await asyncio.sleep(0)

        ended = client.open(DMQ_NODE, MiniProtocol.KEEP_ALIVE, Role.CLIENT)
        await ended.send(Done())
        await ended.release()
        begun = client.open(DMQ_NODE, MiniProtocol.KEEP_ALIVE, Role.CLIENT)
        await begun.send(KeepAlive(7))

        assert await begun.receive(KeepAliveResponse) == KeepAliveResponse(7)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        for end in ends:
            end.abort(TransportError("end of test"))
            await end.bearer.wait_closed()

    run_in_virtual_time(main())
