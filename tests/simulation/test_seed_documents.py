"""Every row of the three protocol documents, played by two peers in profile seed on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from rigs.memory_channels import MemoryChannel, memory_channels
from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.profiles import PROFILES, MiniProtocol
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import LocalProtocolError, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import Role, State
from tests.worlds.ground.strategies import MessageParts

T = TypeVar("T")
MESSAGE = MessageParts().decoded()
LONG_AFTER_S = 1_000_000.0
JUST_BEFORE_S = 0.001

# What is said, by the documents' names. Each script leads from the beginning to one state.

INIT = submission.Init()
REQUEST_IDS_BLOCKING = submission.RequestMessageIds(True, 0, 10)
REQUEST_IDS_NON_BLOCKING = submission.RequestMessageIds(False, 0, 10)
REPLY_IDS = submission.ReplyMessageIds((submission.MessageIdAndSize(MESSAGE.message_id, len(MESSAGE.raw)),))
REQUEST_MESSAGES = submission.RequestMessages((MessageId(MESSAGE.message_id),))
REPLY_MESSAGES = submission.ReplyMessages((MESSAGE,))
DONE = submission.Done()

SUBMIT = local_submission.SubmitMessage(MESSAGE)
ACCEPT = local_submission.AcceptMessage()
REJECT = local_submission.RejectMessage(local_submission.Invalid("Invalid signature"))
LOCAL_DONE = local_submission.Done()

NOTIFY_BLOCKING = local_notification.RequestMessages(True)
NOTIFY_NON_BLOCKING = local_notification.RequestMessages(False)
NOTIFY_REPLY_BLOCKING = local_notification.ReplyMessagesBlocking((MESSAGE,))
NOTIFY_REPLY_NON_BLOCKING = local_notification.ReplyMessagesNonBlocking((), False)
CLIENT_DONE = local_notification.ClientDone()


@dataclass(frozen=True)
class Document:
    protocol: MiniProtocol
    number: int
    scripts: dict[str, tuple[Any, ...]]  # how to get to each state


MESSAGE_SUBMISSION = Document(
    MiniProtocol.MESSAGE_SUBMISSION,
    17,
    {
        "Init": (),
        "Idle": (INIT,),
        "MessageIdsBlocking": (INIT, REQUEST_IDS_BLOCKING),
        "MessageIdsNonBlocking": (INIT, REQUEST_IDS_NON_BLOCKING),
        "Messages": (INIT, REQUEST_IDS_BLOCKING, REPLY_IDS, REQUEST_MESSAGES),
        "Done": (INIT, DONE),
    },
)
LOCAL_MESSAGE_SUBMISSION = Document(
    MiniProtocol.LOCAL_MESSAGE_SUBMISSION, 18, {"Idle": (), "Busy": (SUBMIT,), "Done": (LOCAL_DONE,)}
)
LOCAL_MESSAGE_NOTIFICATION = Document(
    MiniProtocol.LOCAL_MESSAGE_NOTIFICATION,
    19,
    {
        "Idle": (),
        "BusyNonBlocking": (NOTIFY_NON_BLOCKING,),
        "BusyBlocking": (NOTIFY_BLOCKING,),
        "Done": (CLIENT_DONE,),
    },
)
DOCUMENTS = (MESSAGE_SUBMISSION, LOCAL_MESSAGE_SUBMISSION, LOCAL_MESSAGE_NOTIFICATION)


@dataclass
class Scene:
    """Two peers who follow a document, and their channels."""

    client: Conversation
    server: Conversation
    client_channel: MemoryChannel
    server_channel: MemoryChannel

    @classmethod
    def opened(cls, document: Document) -> Scene:
        seed = PROFILES["seed"]
        here, there = memory_channels()
        sides = [
            Conversation(spec_for(seed, document.protocol), role, codec_for(seed, document.protocol), channel)
            for role, channel in ((Role.CLIENT, here), (Role.SERVER, there))
        ]
        return cls(sides[0], sides[1], here, there)

    @classmethod
    async def in_state(cls, document: Document, state: str) -> Scene:
        scene = cls.opened(document)
        for message in document.scripts[state]:
            await scene.say(message)
        assert scene.state.name == state
        return scene

    @property
    def state(self) -> State:
        assert self.client.state == self.server.state
        return self.client.state

    @property
    def speaker(self) -> Conversation:
        return self.client if self.state.speaker is Role.CLIENT else self.server

    @property
    def listener(self) -> Conversation:
        return self.server if self.state.speaker is Role.CLIENT else self.client

    async def say(self, message: Any) -> None:
        """Said by whoever has the word, and heard by the other."""
        speaker, listener = self.speaker, self.listener
        await speaker.send(message)
        assert await listener.receive_any() == message


def played(main: Coroutine[Any, Any, T]) -> T:
    return run_in_virtual_time(main)


def now() -> float:
    return asyncio.get_running_loop().time()


# Protocol identifiers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: f"protocol id {document.number}")
def test_protocol_identifier(document: Document) -> None:
    assert PROFILES["seed"].numbers[document.protocol] == document.number


# States: id and agency

STATES = [
    (MESSAGE_SUBMISSION, "Init", 1, Role.CLIENT),
    (MESSAGE_SUBMISSION, "Idle", 2, Role.SERVER),
    (MESSAGE_SUBMISSION, "MessageIdsBlocking", 3, Role.CLIENT),
    (MESSAGE_SUBMISSION, "MessageIdsNonBlocking", 4, Role.CLIENT),
    (MESSAGE_SUBMISSION, "Messages", 5, Role.CLIENT),
    (MESSAGE_SUBMISSION, "Done", 6, None),
    (LOCAL_MESSAGE_SUBMISSION, "Idle", 1, Role.CLIENT),
    (LOCAL_MESSAGE_SUBMISSION, "Busy", 2, Role.SERVER),
    (LOCAL_MESSAGE_SUBMISSION, "Done", 3, None),
    (LOCAL_MESSAGE_NOTIFICATION, "Idle", 1, Role.CLIENT),
    (LOCAL_MESSAGE_NOTIFICATION, "BusyNonBlocking", 2, Role.SERVER),
    (LOCAL_MESSAGE_NOTIFICATION, "BusyBlocking", 3, Role.SERVER),
    (LOCAL_MESSAGE_NOTIFICATION, "Done", 4, None),
]


def _state_name(row: tuple[Document, str, int, Role | None]) -> str:
    document, state, number, agency = row
    return (
        f"{document.protocol.value}: {state} has id {number} and agency {agency.value if agency else 'none'}"
    )


@pytest.mark.parametrize("row", STATES, ids=_state_name)
def test_state(row: tuple[Document, str, int, Role | None]) -> None:
    document, state, number, agency = row

    async def main() -> None:
        scene = await Scene.in_state(document, state)
        assert scene.state.id == number
        assert scene.state.speaker is agency

    played(main())


@pytest.mark.parametrize("row", STATES, ids=_state_name)
def test_only_the_side_with_agency_may_speak(row: tuple[Document, str, int, Role | None]) -> None:
    document, state, _, agency = row
    messages = {message for script in document.scripts.values() for message in script}
    messages |= {transition.message for transition in TRANSITIONS if transition.document is document}
    # A puller may ask ahead, before the answer to its last question; that is no change of agency.
    may_ask_ahead = {REQUEST_IDS_NON_BLOCKING, REQUEST_MESSAGES}

    async def main() -> None:
        for message in messages:
            scene = await Scene.in_state(document, state)
            if state in ("MessageIdsNonBlocking", "Messages") and message in may_ask_ahead:
                continue
            for role, side in ((Role.CLIENT, scene.client), (Role.SERVER, scene.server)):
                if role is not agency:
                    with pytest.raises(LocalProtocolError):
                        await side.send(message)
            assert scene.state.name == state

    played(main())


# State transitions


@dataclass(frozen=True)
class Transition:
    document: Document
    source: str
    message: Any
    target: str
    type_id: int

    def __str__(self) -> str:
        blocking = getattr(self.message, "blocking", None)
        condition = "" if blocking is None else f" with blocking = {str(blocking).lower()}"
        name = type(self.message).__name__
        return f"{self.document.protocol.value}: from {self.source} by {name}{condition} to {self.target}"


TRANSITIONS = [
    Transition(MESSAGE_SUBMISSION, "Init", INIT, "Idle", 0),
    Transition(MESSAGE_SUBMISSION, "Idle", REQUEST_IDS_BLOCKING, "MessageIdsBlocking", 1),
    Transition(MESSAGE_SUBMISSION, "Idle", REQUEST_IDS_NON_BLOCKING, "MessageIdsNonBlocking", 1),
    Transition(MESSAGE_SUBMISSION, "Idle", REQUEST_MESSAGES, "Messages", 3),
    Transition(MESSAGE_SUBMISSION, "Idle", DONE, "Done", 5),
    Transition(MESSAGE_SUBMISSION, "MessageIdsBlocking", REPLY_IDS, "Idle", 2),
    Transition(MESSAGE_SUBMISSION, "MessageIdsBlocking", DONE, "Done", 5),
    Transition(MESSAGE_SUBMISSION, "MessageIdsNonBlocking", REPLY_IDS, "Idle", 2),
    Transition(MESSAGE_SUBMISSION, "MessageIdsNonBlocking", DONE, "Done", 5),
    Transition(MESSAGE_SUBMISSION, "Messages", REPLY_MESSAGES, "Idle", 4),
    Transition(LOCAL_MESSAGE_SUBMISSION, "Idle", SUBMIT, "Busy", 0),
    Transition(LOCAL_MESSAGE_SUBMISSION, "Idle", LOCAL_DONE, "Done", 3),
    Transition(LOCAL_MESSAGE_SUBMISSION, "Busy", ACCEPT, "Idle", 1),
    Transition(LOCAL_MESSAGE_SUBMISSION, "Busy", REJECT, "Idle", 2),
    Transition(LOCAL_MESSAGE_NOTIFICATION, "Idle", NOTIFY_NON_BLOCKING, "BusyNonBlocking", 0),
    Transition(LOCAL_MESSAGE_NOTIFICATION, "Idle", NOTIFY_BLOCKING, "BusyBlocking", 0),
    Transition(LOCAL_MESSAGE_NOTIFICATION, "Idle", CLIENT_DONE, "Done", 3),
    Transition(LOCAL_MESSAGE_NOTIFICATION, "BusyNonBlocking", NOTIFY_REPLY_NON_BLOCKING, "Idle", 1),
    Transition(LOCAL_MESSAGE_NOTIFICATION, "BusyBlocking", NOTIFY_REPLY_BLOCKING, "Idle", 2),
]


@pytest.mark.parametrize("transition", TRANSITIONS, ids=str)
def test_transition(transition: Transition) -> None:
    async def main() -> None:
        scene = await Scene.in_state(transition.document, transition.source)
        await scene.say(transition.message)
        assert scene.state.name == transition.target
        assert scene.client.is_over is scene.server.is_over is (transition.target == "Done")

    played(main())


@pytest.mark.parametrize("transition", TRANSITIONS, ids=str)
def test_message_carries_the_documents_type_id(transition: Transition) -> None:
    codec = codec_for(PROFILES["seed"], transition.document.protocol)

    assert codec.encode(transition.message)[1] == transition.type_id


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.protocol.value)
def test_every_message_outside_its_rows_is_refused_on_both_sides(document: Document) -> None:
    rows = {
        (transition.source, repr(transition.message))
        for transition in TRANSITIONS
        if transition.document is document
    }
    messages = [transition.message for transition in TRANSITIONS if transition.document is document]

    async def main() -> None:
        for state in document.scripts:
            if state == "Done":
                continue
            for message in messages:
                if (state, repr(message)) in rows:
                    continue
                scene = await Scene.in_state(document, state)
                with pytest.raises(LocalProtocolError):
                    await scene.speaker.send(message)
                # The same bytes from a peer who does not follow the document:
                channel = scene.client_channel if scene.speaker is scene.client else scene.server_channel
                await channel.write(codec_for(PROFILES["seed"], document.protocol).encode(message))
                with pytest.raises(RemoteProtocolError):
                    await scene.listener.receive_any()
                assert scene.state.name == state

    played(main())


def test_done_is_never_said_while_messages_are_due() -> None:
    async def main() -> None:
        scene = await Scene.in_state(MESSAGE_SUBMISSION, "Messages")
        for side in (scene.client, scene.server):
            with pytest.raises(LocalProtocolError):
                await side.send(DONE)

    played(main())


# Timeouts

TIMEOUTS = [
    (MESSAGE_SUBMISSION, "Init", 30, INIT),
    (MESSAGE_SUBMISSION, "Idle", 300, REQUEST_IDS_BLOCKING),
    (MESSAGE_SUBMISSION, "MessageIdsBlocking", 30, REPLY_IDS),
    (MESSAGE_SUBMISSION, "MessageIdsNonBlocking", 10, REPLY_IDS),  # "0 (immediate)"
    (MESSAGE_SUBMISSION, "Messages", 30, REPLY_MESSAGES),
    (LOCAL_MESSAGE_SUBMISSION, "Idle", 300, SUBMIT),
    (LOCAL_MESSAGE_SUBMISSION, "Busy", 30, ACCEPT),
    (LOCAL_MESSAGE_NOTIFICATION, "Idle", 300, NOTIFY_BLOCKING),
    (LOCAL_MESSAGE_NOTIFICATION, "BusyNonBlocking", 10, NOTIFY_REPLY_NON_BLOCKING),  # "0 (immediate)"
]


def _timeout_name(row: tuple[Document, str, float, Any]) -> str:
    document, state, limit_s, _ = row
    return f"{document.protocol.value}: {state} times out after {limit_s:g} s"


@pytest.mark.parametrize("row", TIMEOUTS, ids=_timeout_name)
def test_timeout(row: tuple[Document, str, float, Any]) -> None:
    document, state, limit_s, _ = row

    async def main() -> float:
        await asyncio.sleep(1_000)  # the time of a state begins with the state, not with the clock
        scene = await Scene.in_state(document, state)
        began = now()
        with pytest.raises(ProtocolTimeout, match=f"silence in {state} for {limit_s:g} s"):
            await scene.listener.receive_any()
        return now() - began

    assert played(main()) == pytest.approx(limit_s)


@pytest.mark.parametrize("row", TIMEOUTS, ids=_timeout_name)
def test_just_in_time(row: tuple[Document, str, float, Any]) -> None:
    document, state, limit_s, message = row

    async def main() -> None:
        scene = await Scene.in_state(document, state)
        speaker, listener = scene.speaker, scene.listener

        async def speak_late() -> None:
            await asyncio.sleep(limit_s - JUST_BEFORE_S)
            await speaker.send(message)

        speaking = asyncio.create_task(speak_late())
        assert await listener.receive_any() == message
        await speaking
        assert now() == pytest.approx(limit_s - JUST_BEFORE_S)

    played(main())


def test_timeout_busy_blocking_is_indefinite() -> None:
    async def main() -> None:
        scene = await Scene.in_state(LOCAL_MESSAGE_NOTIFICATION, "BusyBlocking")
        waiting = asyncio.create_task(scene.client.receive_any())
        await asyncio.sleep(LONG_AFTER_S)
        assert not waiting.done()
        await scene.server.send(NOTIFY_REPLY_BLOCKING)
        assert await waiting == NOTIFY_REPLY_BLOCKING

    played(main())


def test_an_empty_reply_after_25_seconds_keeps_a_blocking_request_in_time() -> None:
    async def main() -> None:
        scene = await Scene.in_state(MESSAGE_SUBMISSION, "MessageIdsBlocking")
        waiting = asyncio.create_task(scene.server.receive_any())
        await asyncio.sleep(PROFILES["seed"].no_news_reply_s)
        await scene.client.send(submission.ReplyMessageIds(()))
        assert await waiting == submission.ReplyMessageIds(())
        assert (now(), scene.state.name) == (25, "Idle")

    played(main())


ENDS = [
    (MESSAGE_SUBMISSION, "Idle", DONE),
    (MESSAGE_SUBMISSION, "MessageIdsBlocking", DONE),
    (MESSAGE_SUBMISSION, "MessageIdsNonBlocking", DONE),
    (LOCAL_MESSAGE_SUBMISSION, "Idle", LOCAL_DONE),
    (LOCAL_MESSAGE_NOTIFICATION, "Idle", CLIENT_DONE),
]


@pytest.mark.parametrize(
    ("document", "state", "end"),
    ENDS,
    ids=[f"{document.protocol.value}: Done from {state}" for document, state, _ in ENDS],
)
def test_done_releases_the_channel_after_10_seconds(document: Document, state: str, end: Any) -> None:
    async def main() -> float:
        scene = await Scene.in_state(document, state)
        closing, other = scene.speaker, scene.listener
        other_channel = scene.server_channel if other is scene.server else scene.client_channel
        await asyncio.sleep(5)
        await scene.say(end)
        said_at = now()
        releasing = asyncio.create_task(closing.release())
        assert await other_channel.read() == b""
        await releasing
        return now() - said_at

    assert played(main()) == pytest.approx(10)


def test_the_usage_example_of_the_submission_document_runs_to_its_end() -> None:
    async def main() -> None:
        scene = Scene.opened(MESSAGE_SUBMISSION)
        script = (INIT, REQUEST_IDS_BLOCKING, REPLY_IDS, REQUEST_MESSAGES, REPLY_MESSAGES)
        for message in (*script, REQUEST_IDS_NON_BLOCKING, submission.ReplyMessageIds(()), DONE):
            await scene.say(message)
        assert scene.state.id == 6

    played(main())
