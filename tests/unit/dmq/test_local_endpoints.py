"""The options of the local endpoints: callbacks, checks, queues and time-outs, in every profile."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from rigs.memory_channels import memory_channels
from stagepost.dmq.endpoints.local_notification import (
    CallingFeed,
    LocalMessageNotificationClient,
    LocalMessageNotificationConfig,
    LocalMessageNotificationServer,
)
from stagepost.dmq.endpoints.local_submission import (
    HANDLER_FAILED,
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.dmq.endpoints.message_queue import QUEUE_SIZE_MAX, MessageQueue
from stagepost.dmq.local_notification import RequestMessages
from stagepost.dmq.local_submission import REASON_TEXT_BYTES_MAX
from stagepost.dmq.message import FIVE_AND_FOUR, DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Outcome, Reason, Rejected, rejected
from stagepost.dmq.profiles import PROFILES, SEED, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import ConfigError, ErrorCode, LocalProtocolError, ProtocolTimeout
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role
from tests.worlds.ground.strategies import EXPIRES_AT, a_signed_legacy_message, a_signed_message

IN_TIME = EXPIRES_AT - 600.0
SUBMISSION, NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION

submission_config = LocalMessageSubmissionConfig(unix_s=lambda: IN_TIME)
notification_config = LocalMessageNotificationConfig(unix_s=lambda: IN_TIME)


def message_number(number: int) -> DmqMessage:
    return a_signed_message(body=number.to_bytes(4, "big") * 25)


def forged() -> DmqMessage:
    genuine = a_signed_message()
    return DmqMessage.decode(genuine.raw.replace(genuine.kes_signature, bytes(448)))


def talks(profile: Profile, protocol: MiniProtocol) -> tuple[Conversation, Conversation]:
    there, back = memory_channels()
    spec = spec_for(profile, protocol)
    return (
        Conversation(spec, Role.CLIENT, codec_for(profile, protocol), there),
        Conversation(spec, Role.SERVER, codec_for(profile, protocol), back),
    )


def submit_to(
    config: LocalMessageSubmissionConfig, *messages: DmqMessage, profile: Profile = SEED
) -> list[Accepted | Rejected]:
    """What a server with this configuration answers to these messages, in order."""

    async def main() -> list[Accepted | Rejected]:
        theirs, ours = talks(profile, SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(ours, config).run())
        client = LocalMessageSubmissionClient(theirs)
        answers = [await client.submit_message(message) for message in messages]
        serving.cancel()
        return answers

    return run_in_virtual_time(main())


# ── submission: checks ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_default_checks_take_a_good_message_in_every_profile(profile: Profile) -> None:
    assert submit_to(submission_config, a_signed_message(), profile=profile) == [ACCEPTED]


def test_default_authenticator_is_kes_verification() -> None:
    (answer,) = submit_to(submission_config, forged())

    assert isinstance(answer, Rejected)
    assert (answer.reason, answer.code) == (Reason.INVALID, ErrorCode.KES_SIGNATURE)


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (EXPIRES_AT, None),
        (EXPIRES_AT + 1, ErrorCode.MSG_EXPIRED),
        (EXPIRES_AT - 1_799, None),
        (EXPIRES_AT - 1_800, ErrorCode.MSG_EXPIRY_TOO_FAR),
    ],
)
def test_default_ttl_validator_knows_both_ends(now: float, code: ErrorCode | None) -> None:
    (answer,) = submit_to(replace(submission_config, unix_s=lambda: now), a_signed_message())

    assert getattr(answer, "code", None) == code


def test_checks_may_be_replaced_sync_or_async() -> None:
    async def never(_message: DmqMessage) -> Rejected:
        return rejected(ErrorCode.POOL_UNKNOWN, "not here")

    def always_over(expires_at: int, now: float) -> Rejected:
        assert (expires_at, now) == (EXPIRES_AT, IN_TIME)
        return rejected(ErrorCode.MSG_EXPIRED, "over")

    by_proof = submit_to(replace(submission_config, authenticator=never), a_signed_message())
    by_dates = submit_to(
        replace(submission_config, authenticator=never, ttl_validator=always_over), a_signed_message()
    )

    assert [getattr(answer, "code", None) for answer in by_proof + by_dates] == [
        ErrorCode.POOL_UNKNOWN,
        ErrorCode.MSG_EXPIRED,
    ]


def test_checks_may_be_left_to_the_handler() -> None:
    config = replace(submission_config, authenticator=None, ttl_validator=None, unix_s=lambda: 0.0)

    assert submit_to(config, forged()) == [ACCEPTED]


# ── submission: handler, callbacks, queue ────────────────────────────────────────────────────────────────────


def test_handler_may_be_sync_or_async_and_none_accepts() -> None:
    refusal = rejected(ErrorCode.QUEUE_FULL, "later")

    async def refuse(_message: DmqMessage) -> Outcome:
        return refusal

    assert submit_to(replace(submission_config, submit_message=refuse), a_signed_message()) == [refusal]
    assert submit_to(replace(submission_config, submit_message=lambda _: None), a_signed_message()) == [
        ACCEPTED
    ]


@pytest.mark.parametrize("failing", ["submit_message", "authenticator", "ttl_validator"])
def test_callback_that_raises_becomes_a_rejection_and_a_log_line(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_values: object) -> Any:
        raise RuntimeError("secret detail")

    options: dict[str, Any] = {failing: broken}
    with caplog.at_level(logging.ERROR):
        answers = submit_to(replace(submission_config, **options), a_signed_message(), a_signed_message())

    assert answers == [Rejected(Reason.OTHER, HANDLER_FAILED)] * 2
    assert [record.message for record in caplog.records] == ["handler failed"] * 2
    assert caplog.records[0].exc_info is not None


def test_handler_that_returns_something_else_is_a_bug_and_told_as_one() -> None:
    wrong: Any = lambda _: True  # noqa: E731

    assert submit_to(replace(submission_config, submit_message=wrong), a_signed_message()) == [
        Rejected(Reason.OTHER, HANDLER_FAILED)
    ]


def test_long_texts_are_cut_to_what_a_peer_reads() -> None:
    config = replace(submission_config, submit_message=lambda _: Rejected(Reason.OTHER, "€" * 9_000))
    (answer,) = submit_to(config, a_signed_message())

    assert isinstance(answer, Rejected)
    assert answer.text == "€" * (REASON_TEXT_BYTES_MAX // 3)


def test_client_callbacks_hear_the_outcome_and_cannot_break_it(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []

    async def accepted(message: DmqMessage) -> None:
        heard.append(("accepted", message))

    def refused(message: DmqMessage, outcome: Rejected) -> None:
        heard.append(("rejected", message, outcome.code))
        raise RuntimeError("in the callback")

    async def main() -> None:
        theirs, ours = talks(SEED, SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(ours, submission_config).run())
        config = LocalMessageSubmissionConfig(accept_message=accepted, reject_message=refused)
        client = LocalMessageSubmissionClient(theirs, config)
        await client.submit_message(a_signed_message())
        assert isinstance(await client.submit_message(forged()), Rejected)
        serving.cancel()

    with caplog.at_level(logging.ERROR):
        run_in_virtual_time(main())
    assert heard == [("accepted", a_signed_message()), ("rejected", forged(), ErrorCode.KES_SIGNATURE)]
    assert [record.message for record in caplog.records] == ["callback failed"]


def test_server_alone_keeps_one_hundred_messages_and_then_says_queue_full() -> None:
    messages = [message_number(number) for number in range(QUEUE_SIZE_MAX + 1)]
    config = replace(submission_config, authenticator=None)
    answers = submit_to(config, *messages)

    assert QUEUE_SIZE_MAX == 100
    assert answers[:-1] == [ACCEPTED] * 100
    assert isinstance(answers[-1], Rejected)
    assert (answers[-1].reason, answers[-1].code) == (Reason.OTHER, ErrorCode.QUEUE_FULL)
    assert answers[-1].is_transient


def test_server_alone_hands_out_what_it_accepted_in_order() -> None:
    async def main() -> None:
        theirs, ours = talks(SEED, SUBMISSION)
        server = LocalMessageSubmissionServer(ours, replace(submission_config, max_queue_size=2))
        serving = asyncio.create_task(server.run())
        client = LocalMessageSubmissionClient(theirs)
        waiting = asyncio.create_task(server.next_message())
        for number in (1, 2, 3):
            assert await client.submit_message(message_number(number)) == ACCEPTED
        assert await waiting == message_number(1)
        assert [await server.next_message(), await server.next_message()] == [
            message_number(2),
            message_number(3),
        ]
        serving.cancel()

    run_in_virtual_time(main())


def test_calls_that_come_together_wait_for_one_another() -> None:
    async def main() -> None:
        theirs, ours = talks(SEED, SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(ours, submission_config).run())
        client = LocalMessageSubmissionClient(theirs)
        answers = await asyncio.gather(*(client.submit_message(message_number(n)) for n in range(5)))
        assert answers == [ACCEPTED] * 5
        serving.cancel()

    run_in_virtual_time(main())


# ── notification ─────────────────────────────────────────────────────────────────────────────────────────────


def notified(
    config: LocalMessageNotificationConfig,
    scenario: Callable[[LocalMessageNotificationServer, LocalMessageNotificationClient], Awaitable[None]],
    client_config: LocalMessageNotificationConfig = notification_config,
    profile: Profile = SEED,
) -> None:
    async def main() -> None:
        theirs, ours = talks(profile, NOTIFICATION)
        server = LocalMessageNotificationServer(ours, config)
        serving = asyncio.create_task(server.run())
        await scenario(server, LocalMessageNotificationClient(theirs, client_config))
        serving.cancel()

    run_in_virtual_time(main())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_server_alone_shows_what_it_was_given_once(profile: Profile) -> None:
    async def scenario(
        server: LocalMessageNotificationServer, client: LocalMessageNotificationClient
    ) -> None:
        for number in (1, 2):
            assert await server.notify(message_number(number)) == ACCEPTED
        first = await client.request_messages_non_blocking()
        second = await client.request_messages_non_blocking()
        assert (first.messages, first.has_more) == ((message_number(1), message_number(2)), False)
        assert (second.messages, second.has_more) == ((), False)

    notified(notification_config, scenario, profile=profile)


def test_has_more_tells_of_what_one_reply_cannot_hold() -> None:
    async def scenario(
        server: LocalMessageNotificationServer, client: LocalMessageNotificationClient
    ) -> None:
        for number in range(101):
            assert await server.notify(message_number(number)) == ACCEPTED
        first = await client.request_messages_non_blocking()
        second = await client.request_messages_non_blocking()
        assert (len(first.messages), first.has_more) == (100, True)
        assert (len(second.messages), second.has_more) == (1, False)

    notified(replace(notification_config, max_queue_size=200, authenticator=None), scenario)


def test_notify_checks_proof_dates_layout_and_room() -> None:
    async def scenario(server: LocalMessageNotificationServer, _: LocalMessageNotificationClient) -> None:
        async def code(message: DmqMessage) -> ErrorCode | None:
            return getattr(await server.notify(message), "code", None)

        assert await code(forged()) is ErrorCode.KES_SIGNATURE
        assert await code(a_signed_message(expires_at=int(IN_TIME) - 1)) is ErrorCode.MSG_EXPIRED
        assert await code(a_signed_legacy_message()) is ErrorCode.CBOR_INVALID
        assert await code(message_number(1)) is None
        assert await code(message_number(1)) is ErrorCode.MSG_DUPLICATE
        assert await code(message_number(2)) is None
        assert await code(message_number(3)) is ErrorCode.QUEUE_FULL

    notified(replace(notification_config, max_queue_size=2), scenario)


def test_older_layout_is_shown_where_the_configuration_allows_it() -> None:
    async def scenario(
        server: LocalMessageNotificationServer, client: LocalMessageNotificationClient
    ) -> None:
        legacy = a_signed_legacy_message()
        assert await server.notify(legacy) == ACCEPTED
        assert (await client.request_messages_blocking()).messages == (legacy,)

    notified(replace(notification_config, message_layouts=FIVE_AND_FOUR, ttl_validator=None), scenario)


def test_reply_callback_hears_messages_and_has_more() -> None:
    heard: list[tuple[int, bool | None]] = []

    async def scenario(
        server: LocalMessageNotificationServer, client: LocalMessageNotificationClient
    ) -> None:
        await server.notify(message_number(1))
        await client.request_messages_blocking()
        await client.request_messages_non_blocking()

    listening = replace(
        notification_config, reply_messages=lambda messages, has_more: heard.append((len(messages), has_more))
    )
    notified(notification_config, scenario, listening)
    assert heard == [(1, None), (0, False)]


def test_blocking_request_can_be_given_a_limit_on_the_clients_side() -> None:
    async def scenario(_: LocalMessageNotificationServer, client: LocalMessageNotificationClient) -> None:
        with pytest.raises(ProtocolTimeout, match="silence in BusyBlocking for 5 s"):
            await client.request_messages_blocking()
        assert asyncio.get_running_loop().time() == 5

    for profile in PROFILES.values():
        notified(
            notification_config,
            scenario,
            replace(notification_config, blocking_request_timeout_s=5),
            profile,
        )


def test_server_that_shows_a_nodes_feed_takes_no_messages_itself() -> None:
    async def main() -> None:
        _, ours = talks(SEED, NOTIFICATION)
        server = LocalMessageNotificationServer(ours, feed=MessageQueue(1, lambda: IN_TIME))
        with pytest.raises(LocalProtocolError):
            await server.notify(a_signed_message())

    run_in_virtual_time(main())


def test_a_program_that_does_not_read_is_served_again_when_it_does() -> None:
    """Requests ahead of the replies: the server stops at a full channel, and holds no more than one reply for it."""

    async def main() -> None:
        there, back = memory_channels(bytes_max=1_000)
        spec = spec_for(SEED, NOTIFICATION)
        ours = Conversation(spec, Role.SERVER, codec_for(SEED, NOTIFICATION), back)
        server = LocalMessageNotificationServer(ours, replace(notification_config, max_queue_size=1_000))
        serving = asyncio.create_task(server.run())
        request = codec_for(SEED, NOTIFICATION).encode(RequestMessages(blocking=True))
        await there.write(request * 5)
        taken = []
        for number in range(5):
            assert await server.notify(message_number(number)) == ACCEPTED
            await asyncio.sleep(1)
            taken.append(len(server._own_queue))
        assert taken == [0, 0, 0, 1, 2], "two replies fill the channel, a third one waits for room"
        received = b""
        while received.count(message_number(4).raw) == 0:
            received += await there.read()
        assert [received.count(message_number(number).raw) for number in range(5)] == [1] * 5
        serving.cancel()

    run_in_virtual_time(main())


def test_a_feed_that_can_only_be_waited_for_serves_as_well() -> None:
    async def main() -> None:
        theirs, ours = talks(SEED, NOTIFICATION)
        queue = MessageQueue(10, lambda: IN_TIME)
        assert not isinstance(queue, CallingFeed)
        serving = asyncio.create_task(LocalMessageNotificationServer(ours, feed=queue).run())
        client = LocalMessageNotificationClient(theirs)
        asked = asyncio.create_task(client.request_messages_blocking())
        await asyncio.sleep(1)
        assert not asked.done()
        assert queue.offer(message_number(1)) is None
        assert (await asked).messages == (message_number(1),)
        await client.done()
        await asyncio.sleep(11)
        assert serving.done()
        assert serving.exception() is None

    run_in_virtual_time(main())


# ── the queue ────────────────────────────────────────────────────────────────────────────────────────────────


def test_queue_drops_what_is_over_when_it_is_drained_and_makes_room_by_it() -> None:
    async def main() -> None:
        now = IN_TIME
        queue = MessageQueue(2, lambda: now)
        short = a_signed_message(expires_at=int(IN_TIME) + 10)
        assert queue.offer(short) is None
        assert queue.offer(message_number(1)) is None
        refusal = queue.offer(message_number(2))
        assert refusal is not None
        assert refusal.code is ErrorCode.QUEUE_FULL

        now = IN_TIME + 10
        assert queue.offer(message_number(2)) is None
        assert queue.take(1) == ((message_number(1),), True)
        assert queue.take(5) == ((message_number(2),), False)

        assert queue.offer(short) is None
        assert queue.take(5) == ((), False)
        assert len(queue) == 0

    asyncio.run(main())


# ── time-outs and configuration ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["dmq-node", "gouroboros"])
def test_other_profiles_set_no_time_limits_on_local_connections(name: str) -> None:
    async def main() -> None:
        theirs, ours = talks(PROFILES[name], SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(ours, submission_config).run())
        client = LocalMessageSubmissionClient(theirs)
        assert await client.submit_message(message_number(1)) == ACCEPTED
        await asyncio.sleep(86_400)
        assert await client.submit_message(message_number(2)) == ACCEPTED
        serving.cancel()

    run_in_virtual_time(main())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
@pytest.mark.parametrize("timeout_s", [5.0, 60.0])
def test_given_time_out_wins_over_the_profiles(profile: Profile, timeout_s: float) -> None:
    async def main() -> None:
        theirs, _ = talks(profile, SUBMISSION)
        client = LocalMessageSubmissionClient(theirs, LocalMessageSubmissionConfig(timeout_s=timeout_s))
        with pytest.raises(ProtocolTimeout):
            await client.submit_message(a_signed_message())
        assert asyncio.get_running_loop().time() == timeout_s

    run_in_virtual_time(main())


def test_infinite_time_out_takes_the_documents_limit_away() -> None:
    async def main() -> None:
        theirs, ours = talks(SEED, SUBMISSION)
        config = replace(submission_config, idle_timeout_s=math.inf)
        serving = asyncio.create_task(LocalMessageSubmissionServer(ours, config).run(may_stay_unused=False))
        await asyncio.sleep(10_000)
        assert await LocalMessageSubmissionClient(theirs).submit_message(a_signed_message()) == ACCEPTED
        serving.cancel()

    run_in_virtual_time(main())


@pytest.mark.parametrize("name", ["timeout_s", "idle_timeout_s", "max_queue_size"])
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_limits_of_nothing_are_refused_by_name(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name):
        LocalMessageSubmissionConfig(**options)


@pytest.mark.parametrize(
    "name",
    [
        "max_queue_size",
        "blocking_request_timeout_s",
        "non_blocking_request_timeout_s",
        "idle_timeout_s",
    ],
)
def test_limits_of_nothing_are_refused_for_notification_too(name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=name):
        LocalMessageNotificationConfig(**options)
