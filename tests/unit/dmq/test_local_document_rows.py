"""The two local documents row by row, in profile `seed`: every transition, whose turn it is, and every time-out.

The rows are typed in from the documents; the endpoints run over channels in memory and on virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from rigs.memory_channels import MemoryChannel, memory_channels
from stagepost.dmq import local_notification as notification
from stagepost.dmq import local_submission as submission
from stagepost.dmq.endpoints.local_notification import (
    LocalMessageNotificationClient,
    LocalMessageNotificationConfig,
    LocalMessageNotificationServer,
)
from stagepost.dmq.endpoints.local_submission import (
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.dmq.outcome import ACCEPTED, Rejected, rejected
from stagepost.dmq.profiles import SEED, MiniProtocol
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import ErrorCode, LocalProtocolError, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role, State
from tests.worlds.ground.strategies import a_signed_message

SUBMISSION, NOTIFICATION = MiniProtocol.LOCAL_MESSAGE_SUBMISSION, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION
MESSAGE = a_signed_message()
UNCHECKED = LocalMessageSubmissionConfig(authenticator=None, ttl_validator=None)
SHOWN_UNCHECKED = LocalMessageNotificationConfig(
    authenticator=None, ttl_validator=None, unix_s=lambda: 1_800_000_000.0
)


@dataclass
class Pair:
    """Both sides of one instance, and every transition that the client's referee saw."""

    protocol: MiniProtocol
    channels: tuple[MemoryChannel, MemoryChannel] = field(default_factory=memory_channels)
    steps: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = self._talk(Role.CLIENT)
        self.server = self._talk(Role.SERVER)

    def _talk(self, role: Role) -> Conversation:
        def trace(_ours: bool, message: object, before: State, after: State) -> None:
            if role is Role.CLIENT:
                self.steps.append((before.name, type(message).__name__, after.name))

        spec, codec = spec_for(SEED, self.protocol), codec_for(SEED, self.protocol)
        return Conversation(spec, role, codec, self.channels[role is Role.SERVER], trace=trace)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    run_in_virtual_time(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def times_out_after(limit_s: float, silence: Awaitable[object]) -> ProtocolTimeout:
    started = now()
    with pytest.raises(ProtocolTimeout) as caught:
        await silence
    assert now() - started == limit_s
    return caught.value


# ── States: id and agency ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("protocol", "name", "number", "agency"),
    [
        (SUBMISSION, "Idle", 1, Role.CLIENT),
        (SUBMISSION, "Busy", 2, Role.SERVER),
        (SUBMISSION, "Done", 3, None),
        (NOTIFICATION, "Idle", 1, Role.CLIENT),
        (NOTIFICATION, "BusyNonBlocking", 2, Role.SERVER),
        (NOTIFICATION, "BusyBlocking", 3, Role.SERVER),
        (NOTIFICATION, "Done", 4, None),
    ],
    ids=lambda value: getattr(value, "value", None) or str(value),
)
def test_state_has_the_documents_id_and_agency(
    protocol: MiniProtocol, name: str, number: int, agency: Role | None
) -> None:
    state = spec_for(SEED, protocol).state(name)

    assert (state.id, state.speaker) == (number, agency)


@pytest.mark.parametrize(("protocol", "number"), [(SUBMISSION, 18), (NOTIFICATION, 19)])
def test_protocol_has_the_documents_number(protocol: MiniProtocol, number: int) -> None:
    assert SEED.numbers[protocol] == number


# ── LocalMessageSubmission: transitions ──────────────────────────────────────────────────────────────────────


async def submitted(outcome: Rejected | None) -> list[tuple[str, str, str]]:
    pair = Pair(SUBMISSION)
    config = LocalMessageSubmissionConfig(
        submit_message=lambda _: outcome, authenticator=None, ttl_validator=None
    )
    serving = asyncio.create_task(LocalMessageSubmissionServer(pair.server, config).run())
    client = LocalMessageSubmissionClient(pair.client)
    assert await client.submit_message(MESSAGE) == (outcome or ACCEPTED)
    await client.done()
    await serving
    return pair.steps


def test_submission_from_idle_submit_message_leads_to_busy_and_accept_message_to_idle() -> None:
    async def scenario() -> None:
        assert await submitted(None) == [
            ("Idle", "SubmitMessage", "Busy"),
            ("Busy", "AcceptMessage", "Idle"),
            ("Idle", "Done", "Done"),
        ]

    run(scenario)


def test_submission_from_busy_reject_message_leads_to_idle() -> None:
    async def scenario() -> None:
        assert await submitted(rejected(ErrorCode.KES_SIGNATURE, "no")) == [
            ("Idle", "SubmitMessage", "Busy"),
            ("Busy", "RejectMessage", "Idle"),
            ("Idle", "Done", "Done"),
        ]

    run(scenario)


def test_submission_from_idle_done_leads_to_done_without_any_submission() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(pair.server).run())
        await LocalMessageSubmissionClient(pair.client).done()
        await serving

        assert pair.steps == [("Idle", "Done", "Done")]
        assert pair.server.is_over
        assert now() == 10  # Done releases the channel after the documents' cleanup time

    run(scenario)


# ── LocalMessageSubmission: agency ───────────────────────────────────────────────────────────────────────────


def test_submission_idle_is_the_clients_turn_only() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        with pytest.raises(LocalProtocolError):
            await pair.server.send(submission.AcceptMessage())

        # A server that speaks out of turn finds nobody who reads; the client meets it at its next question.
        await pair.channels[1].write(b"\x81\x01\x81\x01")
        client = LocalMessageSubmissionClient(pair.client)
        assert await client.submit_message(MESSAGE) == ACCEPTED
        with pytest.raises(LocalProtocolError, match="nothing can be received in Idle"):
            await pair.client.receive_any()

    run(scenario)


def test_submission_busy_is_the_servers_turn_only() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        await pair.client.send(submission.SubmitMessage(MESSAGE))
        for message in (submission.SubmitMessage(MESSAGE), submission.Done()):
            with pytest.raises(LocalProtocolError, match=r"server's turn|not allowed there"):
                await pair.client.send(message)

    run(scenario)


def test_submission_of_the_servers_words_by_the_client_is_the_clients_fault() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        await pair.channels[0].write(b"\x81\x01")  # AcceptMessage
        with pytest.raises(RemoteProtocolError) as caught:
            await LocalMessageSubmissionServer(pair.server).run()
        assert caught.value.code is ErrorCode.PROTOCOL_STATE

    run(scenario)


# ── LocalMessageSubmission: time-outs ────────────────────────────────────────────────────────────────────────


def test_submission_idle_300_seconds_client_must_send_submit_message() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        server = LocalMessageSubmissionServer(pair.server, UNCHECKED)

        error = await times_out_after(300, server.run(may_stay_unused=False))
        assert (error.code, error.state) == (ErrorCode.PROTOCOL_TIMEOUT, "Idle")

    run(scenario)


def test_submission_idle_300_seconds_count_again_after_every_answer() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)
        serving = asyncio.create_task(LocalMessageSubmissionServer(pair.server, UNCHECKED).run())
        client = LocalMessageSubmissionClient(pair.client)
        await asyncio.sleep(1_000)  # an instance that nobody opened costs nobody any time
        await client.submit_message(MESSAGE)
        await asyncio.sleep(299)
        assert isinstance(await client.submit_message(MESSAGE), Rejected)  # a duplicate, but an answer

        await times_out_after(300, serving)

    run(scenario)


def test_submission_busy_30_seconds_server_must_accept_or_reject() -> None:
    async def scenario() -> None:
        pair = Pair(SUBMISSION)

        error = await times_out_after(30, LocalMessageSubmissionClient(pair.client).submit_message(MESSAGE))
        assert error.state == "Busy"

    run(scenario)


def test_submission_busy_30_seconds_a_slow_server_still_answers_in_time() -> None:
    async def scenario() -> None:
        async def ponder(_message: object) -> None:
            await asyncio.sleep(3_600)

        pair = Pair(SUBMISSION)
        config = LocalMessageSubmissionConfig(submit_message=ponder, authenticator=None, ttl_validator=None)
        serving = asyncio.create_task(LocalMessageSubmissionServer(pair.server, config).run())
        outcome = await LocalMessageSubmissionClient(pair.client).submit_message(MESSAGE)

        assert isinstance(outcome, Rejected)
        assert outcome.text.startswith("there was no decision in time")
        assert now() == 27
        serving.cancel()

    run(scenario)


# ── LocalMessageNotification: transitions ────────────────────────────────────────────────────────────────────


def test_notification_from_idle_request_messages_non_blocking_and_back() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        serving = asyncio.create_task(LocalMessageNotificationServer(pair.server).run())
        client = LocalMessageNotificationClient(pair.client)
        reply = await client.request_messages_non_blocking()
        await client.done()
        await serving

        assert (reply.messages, reply.has_more) == ((), False)
        assert pair.steps == [
            ("Idle", "RequestMessages", "BusyNonBlocking"),
            ("BusyNonBlocking", "ReplyMessagesNonBlocking", "Idle"),
            ("Idle", "ClientDone", "Done"),
        ]
        assert now() == 10  # Done releases the channel after the documents' cleanup time

    run(scenario)


def test_notification_from_idle_request_messages_blocking_and_back() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        server = LocalMessageNotificationServer(pair.server, SHOWN_UNCHECKED)
        serving = asyncio.create_task(server.run())
        await server.notify(MESSAGE)
        client = LocalMessageNotificationClient(pair.client)
        reply = await client.request_messages_blocking()
        await client.done()
        await serving

        assert (reply.messages, reply.has_more) == ((MESSAGE,), None)
        assert pair.steps == [
            ("Idle", "RequestMessages", "BusyBlocking"),
            ("BusyBlocking", "ReplyMessagesBlocking", "Idle"),
            ("Idle", "ClientDone", "Done"),
        ]

    run(scenario)


# ── LocalMessageNotification: agency ─────────────────────────────────────────────────────────────────────────


def test_notification_idle_is_the_clients_turn_only() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        for message in (
            notification.ReplyMessagesBlocking((MESSAGE,)),
            notification.ReplyMessagesNonBlocking((), False),
        ):
            with pytest.raises(LocalProtocolError):
                await pair.server.send(message)

    run(scenario)


@pytest.mark.parametrize("blocking", [True, False])
def test_notification_busy_is_the_servers_turn_only(blocking: bool) -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        await pair.client.send(notification.RequestMessages(blocking=blocking))
        for message in (notification.RequestMessages(blocking=blocking), notification.ClientDone()):
            with pytest.raises(LocalProtocolError):
                await pair.client.send(message)

    run(scenario)


@pytest.mark.parametrize("blocking", [True, False])
def test_notification_of_the_other_kind_of_reply_is_the_servers_fault(blocking: bool) -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        client = LocalMessageNotificationClient(pair.client)
        # [1, [], false] answers a non-blocking request, [2, [message]] a blocking one.
        wrong = b"\x83\x01\x80\xf4" if blocking else b"\x82\x02\x81" + MESSAGE.raw
        await pair.channels[1].write(wrong)
        asked = client.request_messages_blocking() if blocking else client.request_messages_non_blocking()
        with pytest.raises(RemoteProtocolError) as caught:
            await asked
        assert caught.value.code is ErrorCode.PROTOCOL_STATE

    run(scenario)


# ── LocalMessageNotification: time-outs ──────────────────────────────────────────────────────────────────────


def test_notification_idle_300_seconds_client_must_send_request_messages() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)

        error = await times_out_after(
            300, LocalMessageNotificationServer(pair.server).run(may_stay_unused=False)
        )
        assert error.state == "Idle"

    run(scenario)


def test_notification_busy_non_blocking_0_immediate_is_answered_at_once() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        serving = asyncio.create_task(LocalMessageNotificationServer(pair.server).run())
        await LocalMessageNotificationClient(pair.client).request_messages_non_blocking()

        assert now() == 0
        serving.cancel()

    run(scenario)


def test_notification_busy_non_blocking_0_immediate_is_given_ten_seconds() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        client = LocalMessageNotificationClient(pair.client)

        error = await times_out_after(10, client.request_messages_non_blocking())
        assert error.state == "BusyNonBlocking"

    run(scenario)


def test_notification_busy_blocking_0_indefinite_waits_for_messages() -> None:
    async def scenario() -> None:
        pair = Pair(NOTIFICATION)
        server = LocalMessageNotificationServer(pair.server, SHOWN_UNCHECKED)
        serving = asyncio.create_task(server.run())
        asked = asyncio.create_task(LocalMessageNotificationClient(pair.client).request_messages_blocking())
        await asyncio.sleep(7 * 86_400)
        assert not asked.done()
        await server.notify(MESSAGE)

        assert (await asked).messages == (MESSAGE,)
        serving.cancel()

    run(scenario)
