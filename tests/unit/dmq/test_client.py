"""The clients against a small node on a real Unix socket: submitting, listening, and a node that comes and goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagepost.client import AsyncClient, Client, ClientLimits, ListenLimits
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Reason, Rejected, rejected
from stagepost.dmq.profiles import PROFILES
from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    ProtocolTimeout,
    TransportError,
)
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.handshake import HANDSHAKE_NUMBER
from stagepost.ground.net.sockets import serve_unix
from stagepost.ground.wire.mux import Direction
from tests.worlds.dmq.small_node import MAGIC, SmallNode
from tests.worlds.ground.strategies import a_signed_message

PROFILE_NAMES = list(PROFILES)


def message_number(number: int) -> DmqMessage:
    return a_signed_message(body=number.to_bytes(4, "big") * 25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "dmq-node.socket"


async def take(stream: Any, count: int) -> list[DmqMessage]:
    return [await anext(stream) for _ in range(count)]


# ── connecting ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_submit_and_listen_in_every_profile(path: Path, profile: str) -> None:
    async def main() -> None:
        async with SmallNode(path), AsyncClient.connect(path, MAGIC, profile) as client:
            stream = client.listen()
            waiting = asyncio.create_task(take(stream, 2))
            for number in (1, 2):
                assert await client.submit(message_number(number)) == ACCEPTED
            assert await waiting == [message_number(1), message_number(2)]

    run_in_virtual_time(main())


def test_connect_can_be_awaited(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path):
            client = await AsyncClient.connect(path, MAGIC)
            assert await client.submit(message_number(1)) == ACCEPTED
            await client.close()

    run_in_virtual_time(main())


def test_connect_says_at_once_if_nobody_listens_there(path: Path) -> None:
    async def main() -> None:
        with pytest.raises(TransportError, match="there is no such socket"):
            await AsyncClient.connect(path, MAGIC)

    asyncio.run(main())


def test_connect_says_at_once_if_the_network_is_another(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path, magic=1):
            with pytest.raises(HandshakeRefused) as caught:
                await AsyncClient.connect(path, MAGIC)
            assert caught.value.code is ErrorCode.HANDSHAKE_WRONG_NETWORK

    run_in_virtual_time(main())


def test_unknown_profile_is_refused_by_name(path: Path) -> None:
    with pytest.raises(ConfigError, match="no wire profile 'cardano'"):
        AsyncClient.connect(path, MAGIC, "cardano")


def test_silent_socket_costs_no_more_than_the_connect_timeout(path: Path) -> None:
    async def main() -> None:
        async def silent(bearer: Bearer) -> None:
            bearer.channel(HANDSHAKE_NUMBER, Direction.RESPONDER, 5_760)
            await bearer.wait_closed()

        server = await serve_unix(path, silent)
        with pytest.raises(ProtocolTimeout):
            await AsyncClient.connect(path, MAGIC, limits=ClientLimits(connect_timeout_s=3))
        assert asyncio.get_running_loop().time() == 3
        await server.close()

    run_in_virtual_time(main())


# ── submitting ───────────────────────────────────────────────────────────────────────────────────────────────


def test_rejection_is_a_value_with_reason_text_and_code(path: Path) -> None:
    async def main() -> None:
        refusal = rejected(ErrorCode.MSG_TOO_FREQUENT, "wait 12 s")
        async with SmallNode(path, refusal=refusal), AsyncClient.connect(path, MAGIC) as client:
            outcome = await client.submit(message_number(1))
        assert isinstance(outcome, Rejected)
        assert (outcome.reason, outcome.code) == (Reason.OTHER, ErrorCode.MSG_TOO_FREQUENT)
        assert outcome.is_transient

    run_in_virtual_time(main())


def test_submissions_share_a_connection_until_it_was_unused_for_a_while(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC, "seed") as client:
            await asyncio.gather(*(client.submit(message_number(number)) for number in range(5)))
            assert node.connections == 2  # the check of `connect`, and one for all five
            await asyncio.sleep(59)
            await client.submit(message_number(6))
            assert node.connections == 2
            await asyncio.sleep(1_000)
            assert await client.submit(message_number(7)) == ACCEPTED
            assert node.connections == 3

    run_in_virtual_time(main())


def test_submission_survives_a_restart_of_the_node_between_two_messages(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            assert await client.submit(message_number(1)) == ACCEPTED
            await node.stop()
            await node.start()
            assert await client.submit(message_number(2)) == ACCEPTED
            assert isinstance(await client.submit(message_number(2)), Rejected)

    run_in_virtual_time(main())


def test_message_taken_just_before_a_kept_connection_broke_counts_as_accepted(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            await client.submit(message_number(1))
            node.answer_after_s = 5
            submitting = asyncio.create_task(client.submit(message_number(2)))
            await asyncio.sleep(1)
            node.messages.append(message_number(2))
            node.cut_off()
            assert await submitting == ACCEPTED
            assert node.messages == [message_number(1), message_number(2)]

    run_in_virtual_time(main())


def test_node_that_breaks_off_a_first_submission_is_told_as_such(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path, answer_after_s=5) as node, AsyncClient.connect(path, MAGIC) as client:
            submitting = asyncio.create_task(client.submit(message_number(1)))
            await asyncio.sleep(1)
            await node.crash()
            with pytest.raises(TransportError):
                await submitting
            await node.start()

    run_in_virtual_time(main())


@pytest.mark.parametrize(("given", "limit"), [(None, 30), (4, 4), (100, 100)])
def test_submit_waits_no_longer_than_it_was_told(path: Path, given: float | None, limit: float) -> None:
    async def main() -> None:
        async with SmallNode(path, answer_after_s=1_000) as node, AsyncClient.connect(path, MAGIC) as client:
            with pytest.raises(ProtocolTimeout, match=f"within {limit} s") as caught:
                await client.submit(message_number(1), timeout_s=given)
            assert caught.value.message_id == message_number(1).message_id
            assert asyncio.get_running_loop().time() == limit
            node.answer_after_s = 0
            assert await client.submit(message_number(2)) == ACCEPTED

    run_in_virtual_time(main())


# ── listening ────────────────────────────────────────────────────────────────────────────────────────────────


def test_listener_first_hears_what_the_node_holds_and_waits_for_the_rest(path: Path) -> None:
    async def main() -> None:
        held = [message_number(number) for number in range(250)]
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            await node.hold(*held)
            stream = client.listen()
            assert await take(stream, 250) == held
            waiting = asyncio.create_task(take(stream, 1))
            await asyncio.sleep(10_000)
            await node.hold(message_number(999))
            assert await waiting == [message_number(999)]

    run_in_virtual_time(main())


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_node_that_repeats_itself_is_heard_once(path: Path, profile: str) -> None:
    async def main() -> None:
        held = [message_number(number) for number in range(30)]
        async with SmallNode(path, repeats=True) as node, AsyncClient.connect(path, MAGIC, profile) as client:
            await node.hold(*held)
            assert [message async for message in client.listen(idle_timeout_s=1)] == held

    run_in_virtual_time(main())


def test_listener_resumes_after_restarts_without_repeats_or_gaps(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            stream = client.listen()
            for round_number in range(5):
                first = 10 * round_number
                await node.hold(*(message_number(first + number) for number in range(10)))
                heard = await take(stream, 10)
                assert heard == [message_number(first + number) for number in range(10)]
                await (node.crash() if round_number % 2 else node.stop())
                await asyncio.sleep(60)
                await node.start()

    run_in_virtual_time(main())


def test_reply_cut_in_the_middle_is_a_node_that_went_away(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            await node.hold(*(message_number(number) for number in range(90)))
            stream = client.listen()
            waiting = asyncio.create_task(take(stream, 90))
            # About 65 kB are on their way in pieces of 12 kB: some turns of the loop later they are half there.
            for _ in range(12):
                await asyncio.sleep(0)
            await node.crash()
            await node.start()
            assert len(await waiting) == 90

    run_in_virtual_time(main())


def test_waits_between_attempts_double_up_to_their_limit_and_patience_ends(path: Path) -> None:
    async def main() -> None:
        node = await SmallNode(path).start()
        limits = ClientLimits(
            listen=ListenLimits(reconnect_delay_s=1, reconnect_delay_max_s=8, away_max_s=40)
        )
        client = await AsyncClient.connect(path, MAGIC, limits=limits)
        stream = client.listen()
        await node.hold(message_number(1))
        await take(stream, 1)
        await node.stop()
        with pytest.raises(TransportError):
            await anext(stream)
        assert asyncio.get_running_loop().time() == 1 + 2 + 4 + 8 * 5
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await client.close()

    run_in_virtual_time(main())


def test_quiet_connection_that_ends_is_no_reason_to_lose_patience(path: Path) -> None:
    async def main() -> None:
        limits = ClientLimits(listen=ListenLimits(away_max_s=60))
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC, limits=limits) as client:
            stream = client.listen()
            waiting = asyncio.create_task(take(stream, 1))
            for _ in range(3):
                await asyncio.sleep(5_000)
                await node.stop()
                await asyncio.sleep(50)
                await node.start()
            await node.hold(message_number(1))
            assert await waiting == [message_number(1)]

    run_in_virtual_time(main())


def test_node_of_another_network_in_the_same_place_ends_the_listening(path: Path) -> None:
    async def main() -> None:
        node = await SmallNode(path).start()
        async with AsyncClient.connect(path, MAGIC) as client:
            stream = client.listen()
            waiting = asyncio.create_task(take(stream, 1))
            await asyncio.sleep(1)
            await node.stop()
            async with SmallNode(path, magic=7):
                with pytest.raises(HandshakeRefused):
                    await waiting

    run_in_virtual_time(main())


def test_reader_may_stop_waiting_and_lose_nothing(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            stream = client.listen()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 1)
            await node.hold(message_number(1), message_number(2))
            assert await take(stream, 2) == [message_number(1), message_number(2)]
            assert node.connections == 2

    run_in_virtual_time(main())


def test_close_ends_every_listener(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path):
            client = await AsyncClient.connect(path, MAGIC)

            async def listen() -> list[DmqMessage]:
                return [message async for message in client.listen()]

            waiting = [asyncio.create_task(listen()) for _ in range(3)]
            await asyncio.sleep(1)
            await client.close()
            assert await asyncio.gather(*waiting) == [[], [], []]
            with pytest.raises(LocalProtocolError, match="closed"):
                client.listen()
            with pytest.raises(LocalProtocolError, match="closed"):
                await client.submit(message_number(1))

    run_in_virtual_time(main())


def test_listeners_of_one_client_do_not_share_a_cursor(path: Path) -> None:
    async def main() -> None:
        async with SmallNode(path) as node, AsyncClient.connect(path, MAGIC) as client:
            await node.hold(message_number(1))
            async with client.listen() as first, client.listen() as second:
                assert await take(first, 1) == await take(second, 1) == [message_number(1)]

    run_in_virtual_time(main())


# ── the blocking client ──────────────────────────────────────────────────────────────────────────────────────


def with_node(path: Path, use: Callable[[SmallNode], None]) -> None:
    """Run a node on a loop of this thread while `use` works in another one, without a loop."""

    async def main() -> None:
        async with SmallNode(path) as node:
            await asyncio.to_thread(use, node)

    asyncio.run(main())


def test_blocking_client_has_the_same_calls(path: Path) -> None:
    def use(_node: SmallNode) -> None:
        with Client.connect(path, MAGIC) as client:
            assert client.submit(message_number(1)) == ACCEPTED
            assert client.submit(message_number(2)) == ACCEPTED
            outcome = client.submit(message_number(2), timeout_s=20)
            assert isinstance(outcome, Rejected)
            assert outcome.reason is Reason.ALREADY_RECEIVED
            heard = client.listen()
            assert [next(heard), next(heard)] == [message_number(1), message_number(2)]

    with_node(path, use)


def test_blocking_client_can_be_closed_under_a_listening_thread(path: Path) -> None:
    def use(_node: SmallNode) -> None:
        client = Client.connect(path, MAGIC)
        assert client.submit(message_number(1)) == ACCEPTED
        heard: list[DmqMessage] = []
        has_heard = threading.Event()

        def listen() -> None:
            for message in client.listen():
                heard.append(message)
                has_heard.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert has_heard.wait(30)
        client.close()
        listener.join(30)
        assert not listener.is_alive()
        assert heard == [message_number(1)]
        client.close()
        with pytest.raises(LocalProtocolError):
            client.submit(message_number(2))

    with_node(path, use)


def test_blocking_client_leaves_no_thread_behind_if_it_cannot_connect(path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(TransportError):
        Client.connect(path, MAGIC)

    assert threading.active_count() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClientLimits(connect_timeout_s=0),
        lambda: ClientLimits(submit_timeout_s=-1),
        lambda: ClientLimits(submission_kept_open_s=0),
        lambda: ListenLimits(reconnect_delay_s=0),
        lambda: ListenLimits(reconnect_delay_max_s=0),
        lambda: ListenLimits(away_max_s=0),
        lambda: ListenLimits(ids_remembered_max=0),
        lambda: ListenLimits(idle_timeout_s=0),
    ],
)
def test_limits_of_nothing_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="must be greater than 0"):
        make()
