"""Client of a full node's local socket: submit external messages, follow them, wait for them, and read their traces.

A connection begins with the handshake; then the program asks one question after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from stagepost.dmq.endpoints.connection import is_away
from stagepost.errors import (
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    ProtocolTimeout,
    StagepostError,
    TransportError,
)
from stagepost.ground.files.running_nodes import FullNodeFacts
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, check_nothing_behind, open_handshake
from stagepost.ground.net.handshake import AcceptVersion, ProposeVersions, Refuse, Terms, answer, conclude
from stagepost.ground.net.network import Network, SocketNetwork, UnixAddress
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S
from stagepost.ground.net.version_data import ConnectionKind, VersionData, VersionShape
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.ground.wire.mux import Direction
from stagepost.remp.links.local_intake import (
    WITHIN_MS_MAX,
    AskProof,
    Done,
    FollowMessage,
    MessageRefused,
    MessageTaken,
    SubmitExternalMessage,
    TellProof,
    TellStatuses,
)
from stagepost.remp.links.specs import LinkProtocol, expect_link_protocol, open_link_protocol
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.remp.verdict.trace import Trace, trace_of
from stagepost.remp.verdict.verdict import Verdict
from stagepost.remp.verdict.words import silent_names
from stagepost.trace.session_records import load_sets

INTAKE_VERSION = 0x5003
INTAKE_VERSIONS = {INTAKE_VERSION: VersionShape.MAGIC_QUERY}
SUBMIT_TIMEOUT_S = 30.0
FULL_AGAIN_S = 0.2
"""Seconds between two tries while the submitter has its share in processing."""


class AcceptedSubmission(msgspec.Struct, frozen=True):
    """Message that the full node has accepted. `is_new` is False for a message that was submitted before."""

    message_id: bytes
    is_new: bool


class SubmissionRefusal(msgspec.Struct, frozen=True):
    """Refusal of a message that the full node does not send. `message_id` is None if the bytes are not a message."""

    message_id: bytes | None
    code: ErrorCode
    text: str
    advice: str

    def error(self) -> StagepostError:
        return StagepostError(self.text, code=self.code, advice=self.advice, message_id=self.message_id)


class StatusPage(msgspec.Struct, frozen=True):
    """Further statuses of a message, and its verdict. `after` goes into the next question."""

    records: tuple[StatusRecord, ...]
    after: int
    as_of_ms: int
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class IntakeAddress:
    """Address at which a full node accepts messages from programs of its user."""

    socket_path: Path
    network_magic: int
    network: Network
    connect_timeout_s: float = CONNECT_TIMEOUT_S

    @classmethod
    def of(cls, socket_path: str | Path, network_magic: int) -> IntakeAddress:
        return cls(Path(socket_path), network_magic, SocketNetwork())

    async def open(self) -> IntakeConversation:
        """Connect and shake hands. `TransportError` if no node answers there, `HandshakeRefused` if the node is of another
        network, or is not a full node."""
        bearer = await self.network.connect(UnixAddress(self.socket_path), timeout_s=self.connect_timeout_s)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                talk = await initiate_intake(bearer, self.network_magic)
        except TimeoutError:
            text = f"the full node at {self.socket_path} did not finish the handshake within {self.connect_timeout_s:g} s"
            error = ProtocolTimeout(text, advice="check that a full node owns this socket")
            bearer.abort(error)
            raise error from None
        except BaseException:
            bearer.abort(TransportError("the handshake was cancelled"))
            raise
        return IntakeConversation(bearer, talk)


class IntakeConversation:
    """Conversation of one question at a time; a question that was given up in the middle ends the connection."""

    def __init__(self, bearer: Bearer, talk: Conversation) -> None:
        self._bearer = bearer
        self._talk = talk
        self._is_asking = False

    @property
    def is_over(self) -> bool:
        return self._bearer.is_over or self._is_asking

    async def submit(self, message: bytes) -> AcceptedSubmission | SubmissionRefusal:
        if len(message) > MESSAGE_BYTES_MAX:
            return SubmissionRefusal(
                None,
                ErrorCode.MSG_BODY_SIZE,
                f"the message has {len(message)} bytes; at most {MESSAGE_BYTES_MAX} are accepted",
                "make it smaller",
            )
        reply = await self._ask(SubmitExternalMessage(message))
        if isinstance(reply, MessageRefused):
            return _refused(reply)
        assert isinstance(reply, MessageTaken), "by the states of the protocol"
        return AcceptedSubmission(reply.message_id, bool(reply.is_new))

    async def follow(self, message_id: bytes, after: int, within_s: float) -> StatusPage:
        """Return statuses from `after` on; wait for one as long as `within_s`. `StagepostError` if the node cannot answer."""
        within_ms = min(WITHIN_MS_MAX, max(0, round(within_s * 1_000)))
        reply = await self._ask(FollowMessage(message_id, after, within_ms))
        if isinstance(reply, MessageRefused):
            raise _refused(reply).error()
        assert isinstance(reply, TellStatuses), "by the states of the protocol"
        return _told(message_id, after, reply)

    async def proof(self, message_id: bytes) -> bytes | None:
        """Return the proof file of a message's end; None as long as the end is not known."""
        reply = await self._ask(AskProof(message_id))
        if isinstance(reply, MessageRefused):
            raise _refused(reply).error()
        assert isinstance(reply, TellProof), "by the states of the protocol"
        return reply.proof or None

    async def close(self) -> None:
        if not self.is_over:
            with suppress(StagepostError):  # the node may have closed first
                await self._talk.send(Done())
        self._bearer.close()
        await self._bearer.wait_closed()

    def abort(self) -> None:
        self._bearer.abort(TransportError("a request was cancelled"))

    async def __aenter__(self) -> IntakeConversation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.abort()

    async def _ask(
        self, question: SubmitExternalMessage | FollowMessage | AskProof
    ) -> MessageTaken | MessageRefused | TellStatuses | TellProof:
        self._is_asking = True
        try:
            await self._talk.send(question)
            reply: MessageTaken | MessageRefused | TellStatuses | TellProof = await self._talk.receive_any()
        except BaseException:
            self.abort()
            raise
        self._is_asking = False
        return reply


def _refused(reply: MessageRefused) -> SubmissionRefusal:
    known = reply.code in ErrorCode.__members__
    code = ErrorCode(reply.code) if known else ErrorCode.PROTOCOL_REQUEST
    return SubmissionRefusal(reply.message_id or None, code, reply.text, reply.advice)


def _told(message_id: bytes, after: int, reply: TellStatuses) -> StatusPage:
    key = message_id.hex()
    records = []
    for number, one in enumerate(reply.statuses, start=after):
        named = {"session": one.session, "dmq_id": one.dmq_id, "delivery_id": one.delivery_id}
        headers = {name: value for name, value in named.items() if value}
        records.append(
            StatusRecord(one.value, key, STATUSES_TOPIC, one.arrived_ms, headers, f"status {number}")
        )
    verdict = None
    if reply.verdict:
        try:
            verdict = decode_foreign(reply.verdict, Verdict)
        except msgspec.MsgspecError as error:
            raise TransportError(
                f"the full node's verdict cannot be read: {error}",
                advice="use the same version for node and programs",
            ) from error
    return StatusPage(tuple(records), reply.next_after, reply.as_of_ms, verdict)


# The handshake, either side


def _terms(network_magic: int) -> Terms:
    return Terms(ConnectionKind.CLIENT, VersionData(network_magic), INTAKE_VERSIONS)


async def initiate_intake(bearer: Bearer, network_magic: int) -> Conversation:
    terms = _terms(network_magic)
    talk = open_handshake(bearer, Direction.INITIATOR)
    try:
        await talk.send(terms.proposal())
        conclude(await talk.receive_any(), terms)
        check_nothing_behind(talk)
    except StagepostError as error:
        bearer.abort(error)
        raise
    await talk.release()
    return open_link_protocol(bearer, LinkProtocol.LOCAL_INTAKE, Role.CLIENT)


async def respond_to_intake(bearer: Bearer, network_magic: int) -> Conversation | None:
    """Return the conversation; None after a query, whose answer was the whole purpose. Raise after a refusal was sent."""
    talk = open_handshake(bearer, Direction.RESPONDER)
    try:
        reply, agreement = answer(await talk.receive(ProposeVersions), _terms(network_magic))
        check_nothing_behind(talk)
    except StagepostError as error:
        bearer.abort(error)
        raise
    if isinstance(reply, AcceptVersion):
        expect_link_protocol(bearer, LinkProtocol.LOCAL_INTAKE)
    await talk.send(reply)
    await talk.release()
    if isinstance(reply, Refuse):
        bearer.close()
        await (
            bearer.wait_closed()
        )  # the caller may abort at this error, and the program should read the reason first
        raise HandshakeRefused(f"Handshake: refused a program: {reply.reason}")
    if agreement is None or agreement.query:
        return None
    return open_link_protocol(bearer, LinkProtocol.LOCAL_INTAKE, Role.SERVER)


ID_DIGITS = 64
ASKED_FOR_S = 2.0
"""Seconds that a question waits for a status: a message may also end without one, because its time is over."""
AGAIN_S = 0.2
"""Seconds to the next try after the full node has gone away: it may be restarting."""
WAITS_AT_ONCE_MAX = 128
"""Messages that one client follows at a time, each over its own connection; half of what a full node accepts."""


class RefusedByFullNode(StagepostError):
    """Refusal by the full node: no validator has the message; the text says why."""


class StatusUpdate(msgspec.Struct, frozen=True):
    """Further statuses of a message, and the verdict with them."""

    records: tuple[StatusRecord, ...]
    verdict: Verdict | None
    as_of_ms: int

    @property
    def has_ended(self) -> bool:
        """Return whether the end of the message is proved."""
        return self.verdict is not None and self.verdict.is_proved


class ExternalMessages:
    """Client of one full node. Any number of tasks may use it at the same time."""

    def __init__(
        self,
        facts: FullNodeFacts,
        *,
        network: Network | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._address = IntakeAddress(
            Path(facts.local_socket), facts.network_magic, network or SocketNetwork(), connect_timeout_s
        )
        self._sets_path = Path(facts.validator_sets)
        self._kept: IntakeConversation | None = None
        self._turn = asyncio.Lock()
        self._waits = asyncio.Semaphore(WAITS_AT_ONCE_MAX)

    async def check(self) -> None:
        """Shake hands once."""
        await (await self._address.open()).close()

    async def submit(self, message: bytes, timeout_s: float) -> AcceptedSubmission:
        """Submit a message; while the submitter has its share in processing, submit it again and again.

        `RefusedByFullNode` if the node does not send it; `ProtocolTimeout` without an answer in time."""
        outcome: AcceptedSubmission | SubmissionRefusal | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    async with self._turn:
                        outcome = await self._submit(message)
                    if not isinstance(outcome, SubmissionRefusal) or outcome.code is not ErrorCode.QUEUE_FULL:
                        break
                    await asyncio.sleep(FULL_AGAIN_S)
        except TimeoutError:
            if outcome is None:
                raise ProtocolTimeout(
                    f"the full node at {self._address.socket_path} did not answer within {timeout_s:g} s",
                    advice="submit the message again: the full node takes the same message only once",
                ) from None
        if isinstance(outcome, SubmissionRefusal):
            raise RefusedByFullNode(
                outcome.text, code=outcome.code, advice=outcome.advice, message_id=outcome.message_id
            )
        return outcome

    async def follow(self, message_id: bytes) -> AsyncGenerator[StatusUpdate, None]:
        """Yield every status, known or to come, each once, until the message has ended. Survive a restart of the node.

        Yield now and then without a status as well, for a verdict may change by time alone.
        """
        known: set[tuple[bytes | None, str | None]] = set()
        async with self._waits:
            while True:
                try:
                    async with await self._address.open() as talk:
                        after = 0
                        within_s = 0.0
                        while True:
                            told = await talk.follow(message_id, after, within_s)
                            after = told.after
                            # Known statuses come at once, page by page; then the client waits for further ones.
                            within_s = 0.0 if told.records else ASKED_FOR_S
                            fresh = tuple(
                                one for one in told.records if (one.value, one.session_hint) not in known
                            )
                            known.update((one.value, one.session_hint) for one in fresh)
                            progress = StatusUpdate(fresh, told.verdict, told.as_of_ms)
                            yield progress
                            if progress.has_ended and not told.records:
                                return
                except StagepostError as error:
                    if not is_away(error):
                        raise
                await asyncio.sleep(AGAIN_S)

    async def wait_for(self, message_id: bytes, awaited: Awaited, timeout_s: float) -> MessageVerdict:
        """Return the verdict when the message has come as far as `awaited`, has ended otherwise, or the time is over. With
        a proved end comes the proof, which anybody can check."""
        found = MessageVerdict(message_id.hex(), awaited, None, 0)
        try:
            async with asyncio.timeout(timeout_s), aclosing(self.follow(message_id)) as progresses:
                async for progress in progresses:
                    found = MessageVerdict(message_id.hex(), awaited, progress.verdict, progress.as_of_ms)
                    if found.has_ended:
                        proof = await self.proof(message_id, timeout_s)
                        return msgspec.structs.replace(found, proof=proof)
                    if found.is_reached:
                        break
        except TimeoutError:
            if not found.as_of_ms:
                raise ProtocolTimeout(
                    f"the full node at {self._address.socket_path} said nothing of message {message_id.hex()} "
                    f"within {timeout_s:g} s",
                    advice="check that it runs",
                    message_id=message_id,
                ) from None
        return await self.with_names(found)

    async def with_names(self, found: MessageVerdict) -> MessageVerdict:
        """Return the verdict with the names of silent validators; as it is, if the sets cannot be read here."""
        if found.missing:
            with suppress(StagepostError, OSError):
                sets = await asyncio.to_thread(load_sets, self._sets_path)
                found = msgspec.structs.replace(found, silent_names=silent_names(found.row, sets))
        return found

    async def proof(self, message_id: bytes, timeout_s: float) -> bytes | None:
        """Return the proof file of a message's end; None as long as the end is not known."""
        try:
            async with asyncio.timeout(timeout_s), await self._address.open() as talk:
                return await talk.proof(message_id)
        except TimeoutError:
            raise ProtocolTimeout(
                f"the full node at {self._address.socket_path} did not tell the proof of message "
                f"{message_id.hex()} within {timeout_s:g} s",
                advice="check that it runs, and ask again",
                message_id=message_id,
            ) from None

    async def trace(self, message_id: bytes, timeout_s: float) -> Trace:
        """Return the trace of every receipt so far. `StagepostError` with `MSG_BAD_ID` if there is none."""
        records: list[StatusRecord] = []
        try:
            async with asyncio.timeout(timeout_s), await self._address.open() as talk:
                while True:
                    told = await talk.follow(message_id, len(records), 0.0)
                    if not told.records:
                        break
                    records += told.records
        except TimeoutError:
            raise ProtocolTimeout(
                f"the full node at {self._address.socket_path} did not tell the statuses of message "
                f"{message_id.hex()} within {timeout_s:g} s",
                message_id=message_id,
            ) from None
        if not records:
            raise StagepostError(
                f"the full node has no receipt of message {message_id.hex()}",
                code=ErrorCode.MSG_BAD_ID,
                advice="check the id, and that this is the right full node",
                message_id=message_id,
            )
        sets = await asyncio.to_thread(load_sets, self._sets_path)
        return trace_of(message_id, records, sets, told.as_of_ms)

    async def close(self) -> None:
        async with self._turn:
            kept, self._kept = self._kept, None
            if kept is not None:
                await kept.close()

    async def _submit(self, message: bytes) -> AcceptedSubmission | SubmissionRefusal:
        kept, self._kept = self._kept, None
        if kept is not None and not kept.is_over:
            try:
                return await self._submit_over(kept, message)
            except StagepostError as error:
                # A kept connection may end at any time; the node knows the message by its id and does not send it twice.
                if not is_away(error):
                    raise
        return await self._submit_over(await self._address.open(), message)

    async def _submit_over(
        self, talk: IntakeConversation, message: bytes
    ) -> AcceptedSubmission | SubmissionRefusal:
        outcome = await talk.submit(message)
        self._kept = talk
        return outcome


def id_bytes(message_id: str | bytes) -> bytes:
    """Return the 32 bytes of an id that is given as such, or as 64 hexadecimal digits."""
    if isinstance(message_id, bytes) and len(message_id) * 2 == ID_DIGITS:
        return message_id
    if isinstance(message_id, str) and len(message_id) == ID_DIGITS:
        try:
            return bytes.fromhex(message_id)
        except ValueError:
            pass
    raise LocalProtocolError(
        f"{message_id!r} is not a message id",
        code=ErrorCode.MSG_BAD_ID,
        advice="give all 64 hexadecimal digits",
    )
