"""Message submission as objects: pipelining, every window rule with its blame, no-news replies, options, time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from stagepost.dmq.endpoints.submission_client import MessageSubmissionClient
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig, is_pulling_side
from stagepost.dmq.endpoints.submission_server import MessageSubmissionServer
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Rejected
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, SEED, Profile
from stagepost.dmq.submission import (
    Done,
    Init,
    MessageIdAndSize,
    ReplyMessageIds,
    ReplyMessages,
    ReplyNoMessageIds,
    RequestMessageIds,
    RequestMessages,
)
from stagepost.errors import (
    ConfigError,
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role, State
from tests.worlds.dmq.pulling_world import (
    NOW_UNIX_S,
    WAYS,
    HostileSupplier,
    a_message,
    announced,
    announcing,
    forged,
    messages,
    serving,
    submission_talks,
)
from tests.worlds.ground.strategies import EXPIRES_AT, a_signed_message

UNCHECKED = MessageSubmissionConfig(authenticator=None, ttl_validator=None, unix_s=lambda: NOW_UNIX_S)
every_way = pytest.mark.parametrize(
    ("profile", "version"), WAYS, ids=[f"{profile.name}-{version}" for profile, version in WAYS]
)


def supplied_by(talk: Conversation, offered: Sequence[DmqMessage]) -> MessageSubmissionClient:
    client = MessageSubmissionClient(talk, UNCHECKED)
    for message in offered:
        assert client.offer(message) == ACCEPTED
    return client


async def beside(companion: Awaitable[None], main: Awaitable[None]) -> None:
    """Run `main` to its end while `companion` goes on; whatever is left of that is cancelled."""
    task = asyncio.ensure_future(companion)
    try:
        await main
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, StagepostError):
            await task


async def failure_of(running: Awaitable[None]) -> StagepostError:
    with pytest.raises(StagepostError) as caught:
        await running
    return caught.value


# Who pulls


@pytest.mark.parametrize(
    ("profile", "version", "puller"),
    [
        (DMQ_NODE, 1, Role.SERVER),
        (DMQ_NODE, 2, Role.CLIENT),
        (GOUROBOROS, 1, Role.SERVER),
        (SEED, 1, Role.SERVER),
        (SEED, 2, Role.SERVER),
    ],
)
def test_the_initiator_pulls_in_version_2_only(profile: Profile, version: int, puller: Role) -> None:
    assert is_pulling_side(profile, version, puller)
    assert not is_pulling_side(profile, version, puller.other)


# A whole exchange


@every_way
def test_ids_and_messages_are_pulled(profile: Profile, version: int) -> None:
    offered = messages(3)

    async def main() -> None:
        pulling, supplying = submission_talks(profile, version)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            assert await server.request_message_ids_blocking(0, 2) == tuple(map(announced, offered[:2]))
            assert await server.request_message_ids_non_blocking(0, 5) == (announced(offered[2]),)
            wanted = [message.message_id for message in offered]
            assert await server.request_messages(wanted) == tuple(offered)
            assert await server.request_message_ids_non_blocking(1, 1) == ()

        await beside(supplied_by(supplying, offered).run(), pull())

    run_in_virtual_time(main())


@pytest.mark.parametrize("puller", [DMQ_NODE, GOUROBOROS])
@pytest.mark.parametrize("supplier", [DMQ_NODE, GOUROBOROS])
def test_both_flavours_of_version_1_understand_each_other(puller: Profile, supplier: Profile) -> None:
    offered = messages(2)

    async def main() -> None:
        pulling, supplying = submission_talks(puller, 1, supplier_profile=supplier)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 2)
            assert len(await server.request_messages([message.message_id for message in offered])) == 2
            # The supplier speaks first, so it is its flavour that both use.
            assert pulling.dialect == supplying.dialect == supplier.flavour.value

        await beside(supplied_by(supplying, offered).run(), pull())

    run_in_virtual_time(main())


@every_way
def test_requests_made_together_are_on_their_way_together_and_answered_in_order(
    profile: Profile, version: int
) -> None:
    offered = messages(6)
    said: list[str] = []

    def note(ours: bool, message: object, before: State, after: State) -> None:
        said.append(f"{'>' if ours else '<'}{type(message).__name__}")

    async def main() -> None:
        pulling, supplying = submission_talks(profile, version, lambda: 1.0, trace=note)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 2)
            said.clear()
            first, ids, second = await asyncio.gather(
                server.request_messages([offered[0].message_id]),
                server.request_message_ids_non_blocking(0, 3),
                server.request_messages([offered[1].message_id]),
            )
            assert (first, second) == ((offered[0],), (offered[1],))
            assert ids == tuple(map(announced, offered[2:5]))

        await beside(supplied_by(supplying, offered).run(), pull())

    run_in_virtual_time(main())
    assert said == [
        ">RequestMessages",
        ">RequestMessageIds",
        ">RequestMessages",
        "<ReplyMessages",
        "<ReplyMessageIds",
        "<ReplyMessages",
    ]


@every_way
def test_a_blocking_request_waits_for_replies_before_it_and_is_not_overtaken(
    profile: Profile, version: int
) -> None:
    first, second = messages(2)

    async def main() -> None:
        pulling, supplying = submission_talks(profile, version, lambda: 0.1)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = supplied_by(supplying, [first])

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            bodies = asyncio.create_task(server.request_messages([first.message_id]))
            await asyncio.sleep(0)
            news = asyncio.create_task(server.request_message_ids_blocking(1, 1))
            await asyncio.sleep(0)
            more = asyncio.create_task(server.request_message_ids_non_blocking(0, 1))
            await asyncio.sleep(5)
            assert bodies.done()
            assert not news.done()
            assert not more.done()
            client.offer(second)
            assert await news == (announced(second),)
            assert await more == ()

        await beside(client.run(), pull())

    run_in_virtual_time(main())


def test_a_call_that_is_cancelled_does_not_leave_its_reply_to_the_next() -> None:
    offered = messages(2)

    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2, lambda: 1.0)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 2)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await server.request_messages([offered[0].message_id])
            assert await server.request_messages([offered[1].message_id]) == (offered[1],)

        await beside(supplied_by(supplying, offered).run(), pull())

    run_in_virtual_time(main())


# The window's rules, broken by the puller: the supplier blames it


def ask(*requests: RequestMessageIds | RequestMessages) -> Callable[[Conversation], Awaitable[None]]:
    async def say(talk: Conversation) -> None:
        if talk.state.name == "Init":
            await talk.wait_for_start()
            await talk.receive(Init)
        for request in requests:
            await talk.send(request)
            await talk.receive_any()

    return say


BROKEN_BY_PULLER: dict[str, tuple[ErrorCode, list[RequestMessageIds | RequestMessages]]] = {
    "AckedTooManySigIds": (
        ErrorCode.PROTOCOL_WINDOW,
        [RequestMessageIds(True, 0, 2), RequestMessageIds(False, 3, 1)],
    ),
    "RequestedTooManySigIds": (ErrorCode.PROTOCOL_WINDOW, [RequestMessageIds(True, 0, 133)]),
    "RequestedNothing": (ErrorCode.PROTOCOL_REQUEST, [RequestMessageIds(True, 0, 0)]),
    "RequestedUnavailableSig": (ErrorCode.PROTOCOL_WINDOW, [RequestMessages((MessageId(b"?" * 32),))]),
}
BROKEN_BY_FILL = {
    "RequestBlocking": [RequestMessageIds(True, 0, 1), RequestMessageIds(True, 0, 1)],
    "RequestNonBlocking": [RequestMessageIds(False, 0, 1)],
}


@every_way
@pytest.mark.parametrize("rule", BROKEN_BY_PULLER)
def test_the_supplier_blames_the_puller(profile: Profile, version: int, rule: str) -> None:
    code, requests = BROKEN_BY_PULLER[rule]

    async def main() -> StagepostError:
        pulling, supplying = submission_talks(profile, version)
        asking = asyncio.ensure_future(ask(*requests)(pulling))
        error = await failure_of(supplied_by(supplying, messages(3)).run())
        asking.cancel()
        return error

    error = run_in_virtual_time(main())
    assert isinstance(error, RemoteProtocolError)
    assert (error.code, error.found) == (code, rule)


@every_way
@pytest.mark.parametrize("rule", BROKEN_BY_FILL)
def test_asking_the_wrong_way_for_the_fill_is_a_violation_except_in_the_documents(
    profile: Profile, version: int, rule: str
) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(profile, version)
        supplier = asyncio.ensure_future(supplied_by(supplying, messages(3)).run())
        asking = asyncio.ensure_future(ask(*BROKEN_BY_FILL[rule])(pulling))
        await asyncio.wait({supplier, asking}, return_when=asyncio.FIRST_COMPLETED)
        if profile is SEED:
            assert asking.done()
            assert not supplier.done()
        else:
            error = supplier.exception()
            assert isinstance(error, RemoteProtocolError)
            assert (error.code, error.found) == (ErrorCode.PROTOCOL_REQUEST, rule)
        for task in (supplier, asking):
            task.cancel()

    run_in_virtual_time(main())


def test_exactly_132_may_be_asked_for() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        await beside(supplied_by(supplying, messages(1)).run(), ask(RequestMessageIds(True, 0, 132))(pulling))
        assert pulling.state.name == "Idle", "the request was answered"

    run_in_virtual_time(main())


# The window's rules, broken by the supplier: the puller blames it


def off_by(count: int) -> Callable[[DmqMessage], MessageIdAndSize]:
    return lambda message: MessageIdAndSize(message.message_id, len(message.raw) + count)


ONE, OTHER = messages(2)
LIARS: dict[str, tuple[ErrorCode, HostileSupplier]] = {
    "SigIdsNotRequested": (
        ErrorCode.PROTOCOL_WINDOW,
        HostileSupplier(lambda request: [announced(ONE), announced(OTHER)], serving([])),
    ),
    "SigNotRequested": (
        ErrorCode.PROTOCOL_WINDOW,
        HostileSupplier(lambda request: [announced(ONE)], lambda ids: [ONE, OTHER]),
    ),
    "TxSizeError": (
        ErrorCode.PROTOCOL_SIZE,
        HostileSupplier(lambda request: [off_by(33)(ONE)], lambda ids: [ONE]),
    ),
}


@every_way
@pytest.mark.parametrize("rule", LIARS)
def test_the_puller_blames_the_supplier(profile: Profile, version: int, rule: str) -> None:
    code, liar = LIARS[rule]

    async def main() -> StagepostError:
        pulling, supplying = submission_talks(profile, version)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            await server.request_messages([ONE.message_id])

        supplier = asyncio.ensure_future(liar.run(supplying))
        error = await failure_of(pull())
        assert await failure_of(pull()) is error, "a conversation that failed stays failed"
        supplier.cancel()
        return error

    error = run_in_virtual_time(main())
    assert isinstance(error, RemoteProtocolError)
    assert (error.code, error.found) == (code, rule)


@pytest.mark.parametrize("difference", [-32, 32])
def test_a_size_that_is_32_bytes_off_is_tolerated(difference: int) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        nearly = HostileSupplier(lambda request: [off_by(difference)(ONE)], lambda ids: [ONE])

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            assert await server.request_messages([ONE.message_id]) == (ONE,)

        await beside(nearly.run(supplying), pull())

    run_in_virtual_time(main())


@every_way
def test_an_empty_blocking_reply_is_a_violation_except_in_the_documents(
    profile: Profile, version: int
) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(profile, version)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        empty = HostileSupplier(lambda request: [], serving([]))

        async def pull() -> None:
            if profile is SEED:
                assert await server.request_message_ids_blocking(0, 1) == ()
            else:
                error = await failure_of(server.request_message_ids_blocking(0, 1))  # type: ignore[arg-type]
                assert isinstance(error, RemoteProtocolError)
                assert error.code is ErrorCode.PROTOCOL_WINDOW

        await beside(empty.run(supplying), pull())

    run_in_virtual_time(main())


def test_our_own_violations_are_our_own() -> None:
    async def main() -> None:
        pulling, _ = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        with pytest.raises(LocalProtocolError, match="AckedTooManySigIds"):
            await server.request_message_ids_blocking(1, 1)
        with pytest.raises(LocalProtocolError, match="RequestedUnavailableSig"):
            await server.request_messages([ONE.message_id])

    run_in_virtual_time(main())


def test_callbacks_that_break_a_rule_are_ours_to_blame() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        config = MessageSubmissionConfig(
            request_message_ids=lambda blocking, acknowledged, requested: [announced(ONE), announced(OTHER)]
        )
        asking = asyncio.ensure_future(ask(RequestMessageIds(True, 0, 1))(pulling))
        error = await failure_of(MessageSubmissionClient(supplying, config).run())
        assert isinstance(error, LocalProtocolError)
        asking.cancel()

    run_in_virtual_time(main())


# Without news


def answer_without_news(
    profile: Profile, version: int, *, config: MessageSubmissionConfig = UNCHECKED
) -> object:
    """What a supplier without messages says to a blocking request within an hour, and after how many seconds."""

    async def main() -> object:
        pulling, supplying = submission_talks(profile, version)
        pulling.set_time_limits({"MessageIdsBlocking": None})
        supplier = asyncio.ensure_future(MessageSubmissionClient(supplying, config).run())
        try:
            async with asyncio.timeout(3_600):
                if version == 1:
                    await pulling.receive(Init)
                await pulling.send(RequestMessageIds(True, 0, 1))
                return await pulling.receive_any(), asyncio.get_running_loop().time()
        except TimeoutError:
            return None
        finally:
            supplier.cancel()

    return run_in_virtual_time(main())


def test_without_news_version_2_gives_the_word_back_after_17_s() -> None:
    assert answer_without_news(DMQ_NODE, 2) == (ReplyNoMessageIds(), 17)


def test_without_news_the_documents_supplier_replies_with_nothing_after_25_s() -> None:
    assert answer_without_news(SEED, 1) == (ReplyMessageIds(()), 25)


@pytest.mark.parametrize("profile", [DMQ_NODE, GOUROBOROS])
def test_without_news_version_1_waits(profile: Profile) -> None:
    assert answer_without_news(profile, 1) is None


def test_the_wait_without_news_is_an_option() -> None:
    config = MessageSubmissionConfig(no_news_reply_s=3)

    assert answer_without_news(DMQ_NODE, 2, config=config) == (ReplyNoMessageIds(), 3)
    assert (
        answer_without_news(DMQ_NODE, 2, config=MessageSubmissionConfig(no_news_reply_s=float("inf"))) is None
    )


def test_without_news_the_other_flavour_of_version_2_has_no_word_and_waits() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        pulling.set_time_limits({"MessageIdsBlocking": None})
        pulling._codec.speaks = next(
            dialect for dialect in pulling._codec.table.dialects if dialect.name == "cip"
        )
        client = supplied_by(supplying, [ONE])

        async def pull() -> None:
            await pulling.send(RequestMessageIds(True, 0, 1))
            await pulling.receive(ReplyMessageIds)
            await pulling.send(RequestMessages((ONE.message_id,)))  # here the flavour shows
            await pulling.receive(ReplyMessages)
            assert supplying.dialect == "cip"
            await pulling.send(RequestMessageIds(True, 1, 1))
            asyncio.get_running_loop().call_later(100, client.offer, OTHER)
            reply = await pulling.receive(ReplyMessageIds)
            assert reply.ids == (announced(OTHER),)
            assert asyncio.get_running_loop().time() == 100

        await beside(client.run(), pull())

    run_in_virtual_time(main())


def test_a_puller_accepts_that_there_is_nothing_and_asks_again() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = supplied_by(supplying, [])

        async def pull() -> None:
            assert await server.request_message_ids_blocking(0, 1) == ()
            asyncio.get_running_loop().call_later(1, client.offer, ONE)
            assert await server.request_message_ids_blocking(0, 1) == (announced(ONE),)
            assert asyncio.get_running_loop().time() == 18

        await beside(client.run(), pull())

    run_in_virtual_time(main())


# Ending


def test_the_puller_ends_version_2_from_idle() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        supplier = asyncio.create_task(supplied_by(supplying, [ONE]).run())
        await server.request_message_ids_blocking(0, 1)
        await server.done()
        await supplier
        assert server.is_over

    run_in_virtual_time(main())


def test_documents_idle_done_by_the_server_releases_the_channel_after_10_s() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(SEED, 1)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        supplier = asyncio.create_task(supplied_by(supplying, [ONE]).run())
        await server.request_message_ids_blocking(0, 1)
        await server.done()
        await supplier
        assert asyncio.get_running_loop().time() == 10

    run_in_virtual_time(main())


@pytest.mark.parametrize("profile", [DMQ_NODE, GOUROBOROS])
def test_the_puller_cannot_end_version_1(profile: Profile) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(profile, 1)
        server = MessageSubmissionServer(pulling, UNCHECKED)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            with pytest.raises(LocalProtocolError):
                await server.done()

        await beside(supplied_by(supplying, [ONE]).run(), pull())

    run_in_virtual_time(main())


@pytest.mark.parametrize("profile", [DMQ_NODE, GOUROBOROS, SEED])
def test_the_supplier_ends_version_1_while_a_blocking_request_waits(profile: Profile) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(profile, 1)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = supplied_by(supplying, [])
        supplier = asyncio.create_task(client.run())
        asyncio.get_running_loop().call_later(5, client.end)
        with pytest.raises(TransportError, match="ended the conversation"):
            await server.request_message_ids_blocking(0, 1)
        assert asyncio.get_running_loop().time() == 5
        await supplier
        assert server.is_over

    run_in_virtual_time(main())


@pytest.mark.parametrize(("profile", "may_end"), [(SEED, True), (DMQ_NODE, False)])
def test_only_in_the_documents_a_supplier_ends_in_answer_to_a_non_blocking_request(
    profile: Profile, may_end: bool
) -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(profile, 1)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = supplied_by(supplying, [ONE])

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            client.end()
            if may_end:
                with pytest.raises(TransportError):
                    await server.request_message_ids_non_blocking(0, 1)
            else:
                assert await server.request_message_ids_non_blocking(0, 1) == ()

        await beside(client.run(), pull())

    run_in_virtual_time(main())


def test_a_version_2_supplier_has_no_way_to_end_and_goes_on() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = supplied_by(supplying, [ONE])
        client.end()

        async def pull() -> None:
            assert await server.request_message_ids_blocking(0, 1) == (announced(ONE),)
            assert await server.request_message_ids_blocking(1, 1) == ()

        await beside(client.run(), pull())

    run_in_virtual_time(main())


# Options


def test_callbacks_may_be_plain_or_coroutine_functions() -> None:
    asked: list[object] = []
    heard: list[object] = []

    async def ids(blocking: bool, acknowledged: int, requested: int) -> list[MessageIdAndSize]:
        asked.append((blocking, acknowledged, requested))
        await asyncio.sleep(1)
        return [announced(ONE)]

    async def on_messages(found: tuple[DmqMessage, ...]) -> None:
        heard.append(found)

    supplies = MessageSubmissionConfig(request_message_ids=ids, request_messages=lambda ids: [ONE])
    pulls = MessageSubmissionConfig(
        authenticator=None, ttl_validator=None, reply_message_ids=heard.append, reply_messages=on_messages
    )

    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, pulls)

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 7)
            await server.request_messages([ONE.message_id])

        await beside(MessageSubmissionClient(supplying, supplies).run(), pull())

    run_in_virtual_time(main())
    assert asked == [(True, 0, 7)]
    assert heard == [(announced(ONE),), (ONE,)]


def test_a_plain_callback_without_news_is_asked_again_when_told_and_hears_of_acknowledgements_once() -> None:
    asked: list[tuple[bool, int, int]] = []
    ready: list[DmqMessage] = [ONE]

    def ids(blocking: bool, acknowledged: int, requested: int) -> list[MessageIdAndSize]:
        asked.append((blocking, acknowledged, requested))
        found = [announced(message) for message in ready]
        ready.clear()
        return found

    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 1)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = MessageSubmissionClient(supplying, MessageSubmissionConfig(request_message_ids=ids))

        async def pull() -> None:
            await server.request_message_ids_blocking(0, 1)
            news = asyncio.create_task(server.request_message_ids_blocking(1, 2))
            await asyncio.sleep(50)
            ready.append(OTHER)
            client.notify()
            assert await news == (announced(OTHER),)

        await beside(client.run(), pull())

    run_in_virtual_time(main())
    assert asked == [(True, 0, 1), (True, 1, 2), (True, 0, 2)]


def test_a_callback_that_took_ids_as_its_time_ran_out_does_not_lose_them() -> None:
    async def stubborn(blocking: bool, acknowledged: int, requested: int) -> list[MessageIdAndSize]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1_000)
        return [announced(ONE)]

    async def main() -> None:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        server = MessageSubmissionServer(pulling, UNCHECKED)
        client = MessageSubmissionClient(supplying, MessageSubmissionConfig(request_message_ids=stubborn))

        async def pull() -> None:
            assert await server.request_message_ids_blocking(0, 1) == (announced(ONE),)

        await beside(client.run(), pull())

    run_in_virtual_time(main())


def test_at_most_100_messages_are_offered_by_default() -> None:
    async def main() -> None:
        _, supplying = submission_talks(DMQ_NODE, 2)
        client = supplied_by(supplying, messages(100))
        refusal = client.offer(a_message(100))
        assert isinstance(refusal, Rejected)
        assert refusal.code is ErrorCode.QUEUE_FULL

    run_in_virtual_time(main())


def test_a_supplier_with_callbacks_takes_no_messages_itself() -> None:
    async def main() -> None:
        _, supplying = submission_talks(DMQ_NODE, 2)
        config = MessageSubmissionConfig(request_message_ids=lambda *asked: [])
        with pytest.raises(LocalProtocolError, match="callbacks"):
            MessageSubmissionClient(supplying, config).offer(ONE)

    run_in_virtual_time(main())


def checked_pull(
    offered: DmqMessage, now: float
) -> tuple[tuple[DmqMessage, ...] | StagepostError, list[Rejected]]:
    """What a puller with the default checks makes of a message, and what it tells of refusals."""
    refusals: list[Rejected] = []

    async def main() -> tuple[DmqMessage, ...] | StagepostError:
        pulling, supplying = submission_talks(DMQ_NODE, 2)
        config = MessageSubmissionConfig(
            unix_s=lambda: now, reject_message=lambda message, refusal: refusals.append(refusal)
        )
        server = MessageSubmissionServer(pulling, config)
        supplier = asyncio.ensure_future(
            HostileSupplier(announcing([offered]), serving([offered])).run(supplying)
        )
        try:
            await server.request_message_ids_blocking(0, 1)
            return await server.request_messages([offered.message_id])
        except StagepostError as error:
            return error
        finally:
            supplier.cancel()

    return run_in_virtual_time(main()), refusals


def test_the_default_authenticator_accepts_what_is_properly_signed() -> None:
    message = a_signed_message()

    assert checked_pull(message, now=EXPIRES_AT - 100) == ((message,), [])


def test_the_default_authenticator_cuts_off_who_supplies_a_forgery() -> None:
    message = forged(a_message(1))
    error, refusals = checked_pull(message, now=NOW_UNIX_S)

    assert isinstance(error, RemoteProtocolError)
    assert error.message_id == message.message_id
    assert [refusal.code for refusal in refusals] == [error.code]


def test_the_default_ttl_validator_drops_what_is_expired_and_says_so() -> None:
    result, refusals = checked_pull(a_signed_message(), now=EXPIRES_AT + 1)

    assert result == ()
    assert [refusal.code for refusal in refusals] == [ErrorCode.MSG_EXPIRED]


def test_a_limit_of_nothing_is_refused() -> None:
    for option in ("init_timeout_s", "messages_timeout_s", "max_queue_size", "no_news_reply_s"):
        with pytest.raises(ConfigError, match=option):
            MessageSubmissionConfig(**{option: 0})  # type: ignore[arg-type]


# Time limits


async def silent(talk: Conversation) -> None:
    await HostileSupplier(lambda request: None, lambda ids: None).run(talk)


def silence_after(
    ask: Callable[[MessageSubmissionServer], Awaitable[object]],
    supply: Callable[[Conversation], Awaitable[None]],
    profile: Profile,
    version: int,
    config: MessageSubmissionConfig = UNCHECKED,
) -> tuple[str | None, float]:
    """In which state the puller lost its patience, and after how many seconds."""

    async def main() -> tuple[str | None, float]:
        pulling, supplying = submission_talks(profile, version)
        supplier = asyncio.ensure_future(supply(supplying))
        with pytest.raises(ProtocolTimeout) as caught:
            await ask(MessageSubmissionServer(pulling, config))
        supplier.cancel()
        return caught.value.state, asyncio.get_running_loop().time()

    return run_in_virtual_time(main())


async def ids_blocking(server: MessageSubmissionServer) -> object:
    return await server.request_message_ids_blocking(0, 1)


async def ids_non_blocking(server: MessageSubmissionServer) -> object:
    await server.request_message_ids_blocking(0, 1)
    return await server.request_message_ids_non_blocking(0, 1)


async def bodies(server: MessageSubmissionServer) -> object:
    await server.request_message_ids_blocking(0, 1)
    return await server.request_messages([ONE.message_id])


async def only_ids(talk: Conversation) -> None:
    await HostileSupplier(announcing_once(ONE), lambda ids: None).run(talk)


def announcing_once(message: DmqMessage) -> Callable[[RequestMessageIds], Sequence[MessageIdAndSize] | None]:
    return lambda request: [announced(message)] if request.blocking else None


async def says_nothing(talk: Conversation) -> None:
    return


def test_documents_init_30_s() -> None:
    assert silence_after(ids_blocking, says_nothing, SEED, 1) == ("Init", 30)


def test_documents_message_ids_blocking_30_s() -> None:
    assert silence_after(ids_blocking, silent, SEED, 1) == ("MessageIdsBlocking", 30)


def test_documents_message_ids_non_blocking_is_immediate_which_is_10_s() -> None:
    assert silence_after(ids_non_blocking, only_ids, SEED, 1) == ("MessageIdsNonBlocking", 10)


def test_documents_messages_30_s() -> None:
    assert silence_after(bodies, only_ids, SEED, 1) == ("Messages", 30)


def test_documents_idle_300_s() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(SEED, 1)
        error = await failure_of(supplied_by(supplying, []).run())
        assert isinstance(error, ProtocolTimeout)
        assert (error.state, asyncio.get_running_loop().time()) == ("Idle", 300)
        pulling.set_time_limits({})

    run_in_virtual_time(main())


def test_version_2_limits_are_the_running_nodes() -> None:
    assert silence_after(ids_blocking, silent, DMQ_NODE, 2) == ("MessageIdsBlocking", 20)
    assert silence_after(ids_non_blocking, only_ids, DMQ_NODE, 2) == ("MessageIdsNonBlocking", 10)
    assert silence_after(bodies, only_ids, DMQ_NODE, 2) == ("Messages", 10)


def test_every_time_limit_is_an_option() -> None:
    config = MessageSubmissionConfig(
        init_timeout_s=1, message_ids_blocking_timeout_s=3, messages_timeout_s=4, authenticator=None
    )

    assert silence_after(ids_blocking, says_nothing, SEED, 1, config) == ("Init", 1)
    assert silence_after(ids_blocking, silent, DMQ_NODE, 2, config) == ("MessageIdsBlocking", 3)
    assert silence_after(bodies, only_ids, DMQ_NODE, 1, config) == ("Messages", 4)


def test_documents_done_is_said_by_either_side() -> None:
    async def main() -> None:
        pulling, supplying = submission_talks(SEED, 1)
        await supplying.send(Init())
        await pulling.receive(Init)
        await pulling.send(Done())
        assert await supplying.receive_any() == Done()

    run_in_virtual_time(main())
