"""The callback form of message submission's pulling side: asked now or not at all, answered once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rigs.memory_channels import MemoryChannel, memory_channels
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig
from stagepost.dmq.endpoints.submission_server import MessageSubmissionServer
from stagepost.dmq.node.puller import puller_for
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.dmq.pulling import PullCore
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.dmq.submission import (
    ReplyMessageIds,
    ReplyMessages,
    ReplyNoMessageIds,
    RequestMessageIds,
    RequestMessages,
)
from stagepost.errors import LocalProtocolError, ProtocolTimeout, RemoteProtocolError, TransportError
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role
from tests.worlds.dmq.pulling_world import NOW_UNIX_S, Node, World, a_message, announced, messages

UNCHECKED = MessageSubmissionConfig(authenticator=None, ttl_validator=None)
SUBMISSION = MiniProtocol.MESSAGE_SUBMISSION


def a_talk(role: Role, channel: MemoryChannel, version: int = 2) -> Conversation:
    spec, codec = spec_for(DMQ_NODE, SUBMISSION, version), codec_for(DMQ_NODE, SUBMISSION, version)
    return Conversation(spec, role, codec, channel)


def an_exchange(
    config: MessageSubmissionConfig = UNCHECKED, **options: Any
) -> tuple[MessageSubmissionServer, Conversation, MemoryChannel]:
    """A puller and the conversation of its supplier, in version 2."""
    pulls, supplies = memory_channels(**options)
    return MessageSubmissionServer(a_talk(Role.CLIENT, pulls), config), a_talk(Role.SERVER, supplies), pulls


class Heard(list[Any]):
    """What was answered, and what failed."""

    def came(self, result: object) -> None:
        self.append(result)

    def failed(self, error: Exception) -> None:
        self.append(error)


def test_a_reply_is_answered_in_the_call_that_brings_it_and_may_be_followed_by_the_next_request() -> None:
    message = a_message(1)

    async def main() -> None:
        server, supplier, _ = an_exchange()
        heard = Heard()

        def fetch(ids: Any) -> None:
            heard.came(ids)
            assert server.ask_messages_now((message.message_id,), heard.came, heard.failed)

        assert server.ask_message_ids_now(True, 0, 5, fetch, heard.failed)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds((announced(message),)))
        await asyncio.sleep(0)
        assert heard == [(announced(message),)]

        assert (await supplier.receive(RequestMessages)).ids == (message.message_id,)
        await supplier.send(ReplyMessages((message,)))
        await asyncio.sleep(0)
        assert heard[1:] == [(message,)]

    run_in_virtual_time(main())


def test_replies_come_in_the_order_of_the_requests_whoever_asked() -> None:
    message = a_message(1)

    async def main() -> None:
        server, supplier, _ = an_exchange()
        heard = Heard()
        first = await server.ask_message_ids(blocking=True, ack=0, count=1)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds((announced(message),)))
        await first

        assert server.ask_messages_now((message.message_id,), heard.came, heard.failed)
        second = await server.ask_message_ids(blocking=False, ack=0, count=1)
        await supplier.receive(RequestMessages)
        await supplier.send(ReplyMessages((message,)))
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds(()))

        assert await second == ()
        assert heard == [(message,)]

    run_in_virtual_time(main())


def test_what_would_have_to_wait_is_not_asked() -> None:
    async def main() -> None:
        server, supplier, _ = an_exchange()
        heard = Heard()
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        assert not server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed), "it was overtaken"
        assert not server.ask_message_ids_now(False, 0, 1, heard.came, heard.failed)

        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyNoMessageIds())
        await asyncio.sleep(0)
        assert heard == [()]
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)

    run_in_virtual_time(main())


def test_before_the_supplier_is_ready_nothing_is_asked() -> None:
    async def main() -> None:
        pulls, _ = memory_channels()
        server = MessageSubmissionServer(a_talk(Role.SERVER, pulls, version=1), UNCHECKED)

        assert not server.ask_message_ids_now(True, 0, 1, print, print)

    run_in_virtual_time(main())


def test_a_peer_without_room_is_not_asked_and_no_rule_of_the_window_has_noticed() -> None:
    async def main() -> None:
        server, supplier, channel = an_exchange(bytes_max=1)
        heard = Heard()
        assert channel.write_now(b"\x84\x01\xf5\x00\x01")  # it has not read this yet
        assert not server.ask_message_ids_now(True, 0, 132, heard.came, heard.failed)

        await supplier.receive(RequestMessageIds)
        assert server.ask_message_ids_now(True, 0, 132, heard.came, heard.failed)

    run_in_virtual_time(main())


def test_our_own_violation_is_raised_and_harms_nothing() -> None:
    async def main() -> None:
        server, _, _ = an_exchange()
        heard = Heard()
        with pytest.raises(LocalProtocolError, match="RequestedTooManySigIds"):
            server.ask_message_ids_now(True, 0, 133, heard.came, heard.failed)
        assert server.ask_message_ids_now(True, 0, 132, heard.came, heard.failed)

    run_in_virtual_time(main())


def test_all_who_wait_hear_of_a_failure_once_and_the_next_call_raises_it() -> None:
    message = a_message(1)

    async def main() -> None:
        server, supplier, _ = an_exchange()
        heard = Heard()
        first = await server.ask_message_ids(blocking=True, ack=0, count=1)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds((announced(message),)))
        await first
        for _ in range(2):
            assert server.ask_messages_now((message.message_id,), heard.came, heard.failed)
        await supplier.receive(RequestMessages)
        await supplier.send(ReplyMessages((a_message(2),)))
        await asyncio.sleep(0)

        assert [type(error) for error in heard] == [RemoteProtocolError] * 2
        with pytest.raises(RemoteProtocolError, match="SigNotRequested"):
            server.ask_messages_now((message.message_id,), heard.came, heard.failed)
        server.close()
        assert len(heard) == 2

    run_in_virtual_time(main())


def test_silence_fails_whoever_waits_at_the_time_limit() -> None:
    async def main() -> None:
        server, _, _ = an_exchange()
        heard = Heard()
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        await asyncio.sleep(19.9)
        assert heard == []
        await asyncio.sleep(0.2)
        assert [type(error) for error in heard] == [ProtocolTimeout]

    run_in_virtual_time(main())


def test_what_was_said_before_it_was_asked_for_is_the_answer() -> None:
    """It is the peer's mistake, but one that nobody can tell from an answer that was fast."""

    async def main() -> None:
        pulls, supplies = memory_channels()
        server = MessageSubmissionServer(a_talk(Role.CLIENT, pulls), UNCHECKED)
        heard = Heard()
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        await supplies.write(b"\x81\x03")
        await asyncio.sleep(0)
        await supplies.write(b"\x81\x03")
        await asyncio.sleep(1)
        assert heard == [()]

        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        await asyncio.sleep(0)
        assert heard == [(), ()]

    run_in_virtual_time(main())


def test_a_config_that_takes_its_time_holds_up_the_replies_behind() -> None:
    message = a_message(1)
    told: list[object] = []

    async def slowly(ids: object) -> None:
        await asyncio.sleep(5)
        told.append(ids)

    async def main() -> None:
        config = MessageSubmissionConfig(authenticator=None, ttl_validator=None, reply_message_ids=slowly)
        server, supplier, _ = an_exchange(config)
        heard = Heard()
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds((announced(message),)))
        await asyncio.sleep(4.9)
        assert heard == []
        await asyncio.sleep(0.2)
        assert heard == told == [(announced(message),)]

        assert server.ask_message_ids_now(False, 0, 1, heard.came, heard.failed)
        assert server.ask_messages_now((message.message_id,), heard.came, heard.failed)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds(()))
        await supplier.receive(RequestMessages)
        await supplier.send(ReplyMessages((message,)))
        await asyncio.sleep(4.9)
        assert len(heard) == 1
        await asyncio.sleep(0.2)
        assert heard[1:] == [(), (message,)]

    run_in_virtual_time(main())


def test_closing_while_the_config_is_asked_tells_who_waits_and_nothing_more() -> None:
    async def for_ever(ids: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        config = MessageSubmissionConfig(authenticator=None, ttl_validator=None, reply_message_ids=for_ever)
        server, supplier, _ = an_exchange(config)
        heard = Heard()
        assert server.ask_message_ids_now(True, 0, 1, heard.came, heard.failed)
        await supplier.receive(RequestMessageIds)
        await supplier.send(ReplyMessageIds((announced(a_message(1)),)))
        await asyncio.sleep(1)
        server.close()
        await asyncio.sleep(1)
        assert [type(error) for error in heard] == [TransportError]

    run_in_virtual_time(main())


# The puller


@pytest.mark.parametrize("bytes_max", [0, 1, 40])
def test_a_peer_that_takes_what_we_say_slowly_is_asked_all_the_same(bytes_max: int) -> None:
    """Its channel has room for one request at a time, so some of ours have to wait."""

    async def main() -> None:
        node, peer = Node(judging_s=0.0), Node()
        peer.hold(messages(150))
        pulls, supplies = memory_channels(bytes_max=bytes_max)
        puller = puller_for(
            a_talk(Role.CLIENT, pulls),
            DMQ_NODE,
            peer="slow",
            downloads=World().downloads,
            held=node.mempool,
            intake=node,
            clock=LoopClock(NOW_UNIX_S),
        )
        supplier = Supplier(a_talk(Role.SERVER, supplies), DMQ_NODE, peer.mempool, peer.bell)
        tasks = [asyncio.create_task(puller.run()), asyncio.create_task(supplier.run())]
        await asyncio.sleep(10)
        assert node.ids() == peer.ids()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_in_virtual_time(main())


def test_a_judgement_that_comes_at_once_is_as_good_as_one_that_comes_later() -> None:
    class Hasty(Node):
        def offer(
            self, messages: Any, source: str, settled: Callable[[list[Any]], None], *, gives_up: bool = False
        ) -> None:
            settled([self._submit(message, source) for message in messages])

    async def main() -> None:
        world, peer = World(Hasty()), Node()
        peer.hold(messages(300))
        world.connect_honest("peer", peer)
        await world.wait_until_held(peer.ids(), within_s=1)
        assert world.ends == {}
        await world.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("step", ["ids_arrived", "messages_arrived", "submitted"])
def test_a_bug_of_ours_ends_the_puller_and_is_not_swallowed(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(PullCore, step, fails)

    async def main() -> None:
        world, peer = World(), Node()
        peer.hold(messages(3))
        world.connect_honest("peer", peer)
        await asyncio.sleep(1)
        with pytest.raises(ZeroDivisionError):
            await world.close()

    run_in_virtual_time(main())


def test_a_judgement_that_comes_after_the_peer_has_left_changes_nothing() -> None:
    async def main() -> None:
        world, peer = World(Node(judging_s=10)), Node()
        peer.hold(messages(3))
        world.connect_honest("peer", peer)
        await asyncio.sleep(5)
        await world.close()
        await asyncio.sleep(10)
        assert world.node.ids() == peer.ids()

    run_in_virtual_time(main())
