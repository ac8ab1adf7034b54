"""A conversation runs referee, codec and framing over a channel, and blames whoever broke a rule."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from rigs.memory_channels import MemoryChannel, memory_channels
from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.profiles import PROFILES, MiniProtocol
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import (
    DecodeError,
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    TransportError,
)
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role, State
from tests.worlds.ground.strategies import MessageParts

T = TypeVar("T")
MESSAGE = MessageParts().decoded()
SUBMISSION = MiniProtocol.MESSAGE_SUBMISSION
LOCAL_SUBMISSION = MiniProtocol.LOCAL_MESSAGE_SUBMISSION
NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_NOTIFICATION


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def a_side(
    role: Role,
    channel: MemoryChannel,
    protocol: MiniProtocol,
    profile: str = "dmq-node",
    version: int = 1,
    **options: Any,
) -> Conversation:
    chosen = PROFILES[profile]
    spec, codec = spec_for(chosen, protocol, version), codec_for(chosen, protocol, version)
    return Conversation(spec, role, codec, channel, **options)


def two_sides(
    protocol: MiniProtocol,
    profiles: tuple[str, str] = ("dmq-node", "dmq-node"),
    version: int = 1,
    **options: Any,
) -> tuple[Conversation, Conversation]:
    here, there = memory_channels(**options)
    client = a_side(Role.CLIENT, here, protocol, profiles[0], version)
    return client, a_side(Role.SERVER, there, protocol, profiles[1], version)


def one_side(
    role: Role, protocol: MiniProtocol, profile: str = "dmq-node", version: int = 1
) -> tuple[Conversation, MemoryChannel]:
    """A conversation, and the bare channel of a peer who may say anything."""
    here, there = memory_channels()
    return a_side(role, here, protocol, profile, version), there


def run(main: Coroutine[Any, Any, T]) -> T:
    return run_in_virtual_time(main)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("cut", [None, byte_by_byte], ids=["whole", "byte by byte"])
def test_two_sides_submit_accept_reject_and_part(profile: str, cut: Any) -> None:
    async def main() -> None:
        client, server = two_sides(LOCAL_SUBMISSION, (profile, profile), cut=cut)
        for answer in (
            local_submission.AcceptMessage(),
            local_submission.RejectMessage(local_submission.Expired()),
        ):
            await client.send(local_submission.SubmitMessage(MESSAGE))
            assert (await server.receive(local_submission.SubmitMessage)).message == MESSAGE
            await server.send(answer)
            assert await client.receive_any() == answer
        await client.send(local_submission.Done())
        await server.receive(local_submission.Done)
        assert client.is_over
        assert server.is_over

    run(main())


def test_many_messages_in_one_piece_are_received_one_by_one() -> None:
    async def main() -> None:
        puller, peer = one_side(Role.SERVER, SUBMISSION)
        await peer.write(b"\x81\x06" + b"\x82\x01\x9f\xff" * 3)
        await puller.receive(submission.Init)
        for _ in range(3):
            await puller.send(submission.RequestMessageIds(False, 0, 1))
        for left in (2, 1, 0):
            assert await puller.receive(submission.ReplyMessageIds) == submission.ReplyMessageIds(())
            assert puller.outstanding == left

    run(main())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("cut", [None, byte_by_byte], ids=["whole", "byte by byte"])
def test_a_puller_asks_ahead_and_is_answered_in_order(version: int, cut: Any) -> None:
    async def main() -> None:
        client, server = two_sides(SUBMISSION, version=version, cut=cut)
        supplier, puller = (client, server) if version == 1 else (server, client)
        if version == 1:
            await supplier.send(submission.Init())
            await puller.receive(submission.Init)
        questions: list[Any] = [
            submission.RequestMessageIds(False, 0, 1),
            submission.RequestMessages((MessageId(b"\x11" * 32),)),
            submission.RequestMessageIds(False, 1, 1),
        ]
        for question in questions:
            await puller.send(question)
        assert puller.outstanding == 3

        answers: list[Any] = [
            submission.ReplyMessageIds(()),
            submission.ReplyMessages((MESSAGE,)),
            submission.ReplyMessageIds(()),
        ]
        for question, answer in zip(questions, answers, strict=True):
            assert await supplier.receive_any() == question
            await supplier.send(answer)
        assert [await puller.receive_any() for _ in answers] == answers
        assert puller.state == supplier.state
        assert puller.state.name == "Idle"

    run(main())


# Flavours


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("profiles", [("dmq-node", "gouroboros"), ("gouroboros", "dmq-node")])
def test_two_flavours_find_each_other(version: int, profiles: tuple[str, str]) -> None:
    async def main() -> tuple[str, str]:
        client, server = two_sides(SUBMISSION, profiles, version)
        supplier, puller = (client, server) if version == 1 else (server, client)
        if version == 1:
            await supplier.send(submission.Init())
            await puller.receive(submission.Init)
        await puller.send(submission.RequestMessageIds(True, 0, 1))
        await supplier.receive(submission.RequestMessageIds)
        answer = submission.ReplyMessageIds(
            (submission.MessageIdAndSize(MESSAGE.message_id, len(MESSAGE.raw)),)
        )
        await supplier.send(answer)
        assert await puller.receive_any() == answer
        await puller.send(submission.RequestMessages((MESSAGE.message_id,)))
        await supplier.receive(submission.RequestMessages)
        await supplier.send(submission.ReplyMessages((MESSAGE,)))
        assert (await puller.receive(submission.ReplyMessages)).messages == (MESSAGE,)
        return client.dialect, server.dialect

    first, second = run(main())

    assert first == second
    assert first == ("haskell" if version == 2 or profiles[0] == "dmq-node" else "cip")


@pytest.mark.parametrize(("first", "flavour"), [(b"\x81\x06", "haskell"), (b"\x81\x00", "cip")])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_responder_answers_in_the_flavour_of_the_first_message(
    profile: str, first: bytes, flavour: str
) -> None:
    async def main() -> tuple[str, bytes]:
        puller, peer = one_side(Role.SERVER, SUBMISSION, profile)
        await peer.write(first)
        await puller.receive(submission.Init)
        await puller.send(submission.RequestMessages(()))
        return puller.dialect, await peer.read()

    assert run(main()) == (flavour, b"\x82\x02\x9f\xff" if flavour == "haskell" else b"\x82\x03\x80")


@pytest.mark.parametrize("profile", ["dmq-node", "gouroboros"])
def test_version_2_begins_in_haskell_and_follows_a_peer_that_shows_the_other_tags(profile: str) -> None:
    async def main() -> list[bytes]:
        written = []
        puller, peer = one_side(Role.CLIENT, SUBMISSION, profile, version=2)
        await puller.send(submission.RequestMessages(()))
        written.append(await peer.read())
        await peer.write(b"\x82\x04\x80")
        await puller.receive(submission.ReplyMessages)
        await puller.send(submission.RequestMessages(()))
        written.append(await peer.read())
        await peer.write(b"\x82\x04\x80")
        await puller.receive(submission.ReplyMessages)
        await puller.send(submission.Done())
        written.append(await peer.read())
        return written

    assert run(main()) == [b"\x82\x04\x9f\xff", b"\x82\x03\x80", b"\x81\x05"]


# Whose fault it is


def test_sending_out_of_turn_is_our_fault_and_writes_nothing() -> None:
    async def main() -> None:
        server, peer = one_side(Role.SERVER, LOCAL_SUBMISSION)
        with pytest.raises(LocalProtocolError):
            await server.send(local_submission.AcceptMessage())
        await peer.write(b"\x81\x03")
        await server.receive(local_submission.Done)
        await server.release()
        assert await peer.read() == b""

    run(main())


def test_sending_what_the_protocol_does_not_know_is_our_fault() -> None:
    async def main() -> None:
        client, _ = two_sides(LOCAL_SUBMISSION)
        for stranger in (keep_alive.KeepAlive(1), submission.Done(), object()):
            with pytest.raises(LocalProtocolError):
                await client.send(stranger)
        assert client.state.name == "Idle"

    run(main())


def test_receiving_on_our_own_turn_or_after_the_end_is_our_fault() -> None:
    async def main() -> None:
        client, _ = two_sides(LOCAL_SUBMISSION)
        with pytest.raises(LocalProtocolError, match="nothing can be received in Idle"):
            await client.receive_any()
        await client.send(local_submission.Done())
        with pytest.raises(LocalProtocolError, match="nothing can be received in Done"):
            await client.receive_any()

    run(main())


def test_another_message_than_expected_is_the_peers_fault() -> None:
    async def main() -> None:
        client, server = two_sides(LOCAL_SUBMISSION)
        await client.send(local_submission.Done())
        with pytest.raises(RemoteProtocolError, match="wanted SubmitMessage, got Done"):
            await server.receive(local_submission.SubmitMessage)

    run(main())


WRONG_ANSWERS = {
    "a message of another state": (b"\x81\x03", RemoteProtocolError, ErrorCode.PROTOCOL_STATE),
    "an unknown tag": (b"\x81\x17", DecodeError, ErrorCode.CBOR_INVALID),
    "no CBOR": (b"\xff", DecodeError, ErrorCode.CBOR_INVALID),
    "a forbidden type": (b"\xa0", DecodeError, ErrorCode.CBOR_INVALID),
    "too deep": (b"\x81" * 9, DecodeError, ErrorCode.CBOR_LIMIT),
    "too long": (b"\x82\x02\x5a\x00\x01\x00\x00", DecodeError, ErrorCode.CBOR_LIMIT),
}


@pytest.mark.parametrize(("answer", "error", "code"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_wrong_answers_are_the_peers_fault(answer: bytes, error: type[Exception], code: ErrorCode) -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.SubmitMessage(MESSAGE))
        await peer.write(answer)
        with pytest.raises(RemoteProtocolError) as caught:
            await client.receive_any()
        assert type(caught.value) is error
        assert caught.value.code is code
        assert client.state.name == "Busy"

    run(main())


def test_a_peer_that_leaves_between_messages_is_a_transport_error() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.SubmitMessage(MESSAGE))
        peer.close()
        with pytest.raises(TransportError, match="closed the connection in Busy"):
            await client.receive_any()

    run(main())


def test_a_peer_that_leaves_inside_a_message_cut_it_short() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.SubmitMessage(MESSAGE))
        await peer.write(b"\x82\x02")
        peer.close()
        with pytest.raises(DecodeError) as caught:
            await client.receive_any()
        assert caught.value.code is ErrorCode.CBOR_TRUNCATED

    run(main())


def test_a_broken_connection_is_raised_as_it_broke() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.SubmitMessage(MESSAGE))
        peer.fail(TransportError("the cable is cut"))
        with pytest.raises(TransportError, match="the cable is cut"):
            await client.receive_any()

    run(main())


# Tolerance across pieces


@pytest.mark.parametrize("third", [b"", b"\xf4", b"\xf5"], ids=["never", "false", "true"])
@pytest.mark.parametrize("in_time", [True, False], ids=["at once", "in the next segment"])
def test_a_reply_that_announces_three_elements_does_not_disturb_the_next(third: bytes, in_time: bool) -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, NOTIFICATION)
        reply = b"\x83\x02\x9f" + MESSAGE.raw + b"\xff"
        for _ in range(3):
            await client.send(local_notification.RequestMessages(True))
            await peer.write(reply + third if in_time else reply)
            assert (await client.receive(local_notification.ReplyMessagesBlocking)).messages == (MESSAGE,)
            if not in_time and third:
                await peer.write(third)
        await client.send(local_notification.RequestMessages(False))
        await peer.write(b"\x83\x01\x80\xf5")
        assert (await client.receive(local_notification.ReplyMessagesNonBlocking)).has_more
        await client.send(local_notification.ClientDone())
        assert client.is_over

    run(main())


# Time


def test_a_dripping_peer_does_not_win_time() -> None:
    async def main() -> float:
        supplier, peer = one_side(Role.SERVER, SUBMISSION, "seed")

        async def drip() -> None:
            for byte in b"\x9f" + bytes(200):
                await peer.write(bytes([byte]))
                await asyncio.sleep(1)

        dripping = asyncio.create_task(drip())
        with pytest.raises(ProtocolTimeout):
            await supplier.receive_any()
        dripping.cancel()
        return asyncio.get_running_loop().time()

    assert run(main()) == pytest.approx(30)


def test_what_arrived_in_time_is_not_late_because_we_read_late() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION, "seed")
        await client.send(local_submission.SubmitMessage(MESSAGE))
        await peer.write(b"\x81\x01")
        await asyncio.sleep(100)
        assert await client.receive(local_submission.AcceptMessage) == local_submission.AcceptMessage()
        assert client.state.name == "Idle"

    run(main())


def test_a_cancelled_wait_loses_nothing() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.SubmitMessage(MESSAGE))
        await peer.write(b"\x82\x02\x82")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await client.receive_any()
        await peer.write(b"\x03\x61x")
        reply = await client.receive(local_submission.RejectMessage)
        assert reply.reason == local_submission.Other("x")

    run(main())


def test_the_caller_hears_of_every_message_with_the_states_around_it() -> None:
    async def main() -> list[tuple[bool, str, str, str]]:
        heard: list[tuple[bool, str, str, str]] = []

        def trace(ours: bool, message: object, before: State, after: State) -> None:
            heard.append((ours, type(message).__name__, before.name, after.name))

        here, there = memory_channels()
        client = a_side(Role.CLIENT, here, MiniProtocol.KEEP_ALIVE, trace=trace)
        server = a_side(Role.SERVER, there, MiniProtocol.KEEP_ALIVE)
        await client.send(keep_alive.KeepAlive(7))
        await server.receive(keep_alive.KeepAlive)
        await server.send(keep_alive.KeepAliveResponse(7))
        await client.receive(keep_alive.KeepAliveResponse)
        return heard

    assert run(main()) == [
        (True, "KeepAlive", "Client", "Server"),
        (False, "KeepAliveResponse", "Server", "Client"),
    ]


def test_release_closes_at_once_where_the_end_has_no_time_of_its_own() -> None:
    async def main() -> float:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        await client.send(local_submission.Done())
        await client.release()
        assert await peer.read() == b"\x81\x03"
        assert await peer.read() == b""
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


# Without waiting


def test_messages_are_received_in_a_call_as_they_come() -> None:
    async def main() -> None:
        client, peer = one_side(Role.CLIENT, LOCAL_SUBMISSION)
        heard: list[object] = []
        client.on_message(lambda: heard.append(client.receive_now()))
        assert client.send_now(local_submission.SubmitMessage(MESSAGE))
        assert client.receive_now() is None

        await peer.write(b"\x81")
        await asyncio.sleep(0)
        await peer.write(b"\x01")
        await asyncio.sleep(0)
        assert heard == [None, local_submission.AcceptMessage()]

        with pytest.raises(LocalProtocolError, match="nothing can be received in Idle"):
            client.receive_now()
        client.on_message(None)
        client.send_now(local_submission.SubmitMessage(MESSAGE))
        await peer.write(b"\x81\x01")
        await asyncio.sleep(0)
        assert len(heard) == 2
        assert client.receive_now() == local_submission.AcceptMessage()

    run(main())


def test_whoever_is_called_hears_of_silence_at_the_deadline_and_not_before() -> None:
    async def main() -> None:
        puller, peer = one_side(Role.CLIENT, SUBMISSION, version=2)
        loop = asyncio.get_running_loop()
        failures: list[tuple[float, Exception]] = []

        def look() -> None:
            try:
                while puller.outstanding and puller.receive_now() is not None:
                    pass
            except ProtocolTimeout as error:
                failures.append((loop.time(), error))

        puller.on_message(look)
        await asyncio.sleep(1_000)  # it is our turn: nothing is due
        puller.send_now(submission.RequestMessageIds(True, 0, 1))  # 20 s
        await asyncio.sleep(19)
        await peer.write(b"\x81\x03")
        await asyncio.sleep(1)
        puller.send_now(submission.RequestMessageIds(True, 0, 1))
        await asyncio.sleep(1)
        await peer.write(b"\x81\x03")
        await asyncio.sleep(1)
        puller.send_now(
            submission.RequestMessages((MessageId(b"\x11" * 32),))
        )  # 10 s: sooner than the timer's 20 s
        await asyncio.sleep(9.99)
        assert failures == []
        await asyncio.sleep(1_000)

        ((at_s, error),) = failures
        assert at_s == 1_032
        assert "silence in Messages for 10 s" in str(error)

    run(main())


def test_two_tasks_that_receive_in_one_conversation_are_a_mistake() -> None:
    async def main() -> None:
        _, server = two_sides(LOCAL_SUBMISSION)
        first = asyncio.ensure_future(server.receive_any())
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="two tasks"):
            await server.receive_any()
        first.cancel()

    run(main())


def test_a_message_that_finds_no_room_is_not_said() -> None:
    async def main() -> None:
        here, there = memory_channels(bytes_max=1)
        puller = a_side(Role.CLIENT, here, SUBMISSION, version=2)
        request = submission.RequestMessages((MessageId(b"\x11" * 32),))
        assert puller.send_now(request)
        assert not puller.send_now(request)
        assert puller.outstanding == 1
        await there.read()
        assert puller.send_now(request)
        assert puller.outstanding == 2

    run(main())
