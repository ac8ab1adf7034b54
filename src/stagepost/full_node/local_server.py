"""Local socket of a full node: programs of its user submit external messages and follow them.

The node serves the socket with the same bearer, handshake and referee as every other connection, by a mini-protocol of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from stagepost.dmq.node.local_service import owner_and_root, sent_away
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.followed import FollowedMessage
from stagepost.full_node.intake_desk import IntakeDesk
from stagepost.full_node.local_client import respond_to_intake
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, run_conversations
from stagepost.ground.net.network import Network, UnixAddress
from stagepost.remp.links.local_intake import (
    CODE_BYTES_MAX,
    HEADER_BYTES_MAX,
    ID_BYTES,
    PROOF_BYTES_MAX,
    TELLING_BYTES_MAX,
    TELLING_RECORDS_MAX,
    TEXT_BYTES_MAX,
    VERDICT_BYTES_MAX,
    WITHIN_MS_MAX,
    AskProof,
    FollowMessage,
    MessageRefused,
    MessageTaken,
    SubmitExternalMessage,
    TellProof,
    TellStatuses,
    ToldStatus,
)
from stagepost.remp.receipts.receipt import RECEIPT_BYTES_MAX
from stagepost.remp.receipts.status_records import StatusRecord

log = logging.getLogger(__name__)

SOCKET_FILE = "full-node.socket"
CONNECTIONS_MAX = 256
"""Connections at a time; each may have one open question, and follows one message at a time."""

STATUS_OVERHEAD_BYTES = 3 * HEADER_BYTES_MAX + 32
SOCKET_PATH_BYTES_MAX = 100
"""Bytes of a socket path that every system accepts; for a longer data folder the socket lies elsewhere."""


class LocalIntake:
    """Server of the socket, for `allowed_user_ids`."""

    def __init__(
        self, desk: IntakeDesk, network_magic: int, allowed_user_ids: frozenset[int] | None = None
    ) -> None:
        self._desk = desk
        self._network_magic = network_magic
        self._allowed_user_ids = owner_and_root() if allowed_user_ids is None else allowed_user_ids

    async def serve(self, bearer: Bearer) -> None:
        if sent_away(bearer, self._allowed_user_ids):
            return
        talk = await respond_to_intake(bearer, self._network_magic)
        if talk is None:
            bearer.close()
            return
        await run_conversations(bearer, [self._answer(bearer, talk)])
        if bearer.reason is not None:
            log.info("program cut off", extra={"code": bearer.reason.code, "reason": bearer.reason.text})

    async def _answer(self, bearer: Bearer, talk: Conversation) -> None:
        """Answer until the program is done. A message stays followed until the program follows another one, so that the
        topic is not read twice."""
        submitter = f"uid:{bearer.peer_user_id}"
        async with AsyncExitStack() as at_end:
            followed: FollowedMessage | None = None
            letting_go = AsyncExitStack()
            at_end.push_async_callback(lambda: letting_go.aclose())
            while not talk.is_over:
                match await talk.receive_any():
                    case SubmitExternalMessage(message):
                        await talk.send(self._taken(message, submitter))
                    case FollowMessage() as question:
                        try:
                            if followed is None or followed.message_id != question.message_id:
                                await letting_go.aclose()
                                following = self._desk.following(question.message_id)
                                followed = None
                                followed = await letting_go.enter_async_context(following)
                        except StagepostError as error:
                            await talk.send(refusal(error, question.message_id))
                            continue
                        await talk.send(await self._told(followed, question))
                    case AskProof(message_id):
                        await talk.send(await self._proof(message_id))
                    case _:
                        await talk.release()
            bearer.close()

    def _taken(self, message: bytes, submitter: str) -> MessageTaken | MessageRefused:
        try:
            taken = self._desk.submit(message, submitter)
        except StagepostError as error:
            return refusal(error, error.message_id)
        return MessageTaken(taken.message_id, int(taken.is_new))

    async def _proof(self, message_id: bytes) -> TellProof | MessageRefused:
        try:
            proof = await self._desk.proof(message_id)
        except StagepostError as error:
            return refusal(error, message_id)
        if proof is not None and len(proof) > PROOF_BYTES_MAX:
            return refusal(
                StagepostError(
                    f"the proof has {len(proof)} bytes; at most {PROOF_BYTES_MAX} are told",
                    code=ErrorCode.PROTOCOL_SIZE,
                    advice="read it from the data folder with `stagepost prove`",
                    limit=PROOF_BYTES_MAX,
                    found=len(proof),
                ),
                message_id,
            )
        return TellProof(proof or b"")

    async def _told(self, followed: FollowedMessage, question: FollowMessage) -> TellStatuses:
        within_s = min(question.within_ms, WITHIN_MS_MAX) / 1_000
        after = min(question.after, len(followed.records))
        if within_s and len(followed.records) <= after:
            await followed.more_than(after, within_s)
        statuses = told_statuses(followed.records, after)
        as_of_ms = self._desk.now_ms
        verdict = self._desk.verdict(followed)
        row = b"" if verdict is None else msgspec.json.encode(verdict)
        return TellStatuses(
            tuple(statuses), after + len(statuses), as_of_ms, row if len(row) <= VERDICT_BYTES_MAX else b""
        )


def told_statuses(records: list[StatusRecord], after: int) -> list[ToldStatus]:
    """Return as many statuses as fit into one answer, at least one if there is one."""
    told: list[ToldStatus] = []
    room = TELLING_BYTES_MAX
    for record in records[after : after + TELLING_RECORDS_MAX]:
        value = record.value or b""
        room -= len(value) + STATUS_OVERHEAD_BYTES
        if room < 0 and told:
            break
        session, dmq_id, delivery_id = (
            _header(record, name) for name in ("session", "dmq_id", "delivery_id")
        )
        arrived_ms = max(0, record.arrived_ms or 0)
        told.append(ToldStatus(value[:RECEIPT_BYTES_MAX], arrived_ms, session, dmq_id, delivery_id))
    return told


def refusal(error: StagepostError, message_id: bytes | None) -> MessageRefused:
    identifier = b"" if message_id is None else message_id[:ID_BYTES]
    code = error.code.value[:CODE_BYTES_MAX]
    return MessageRefused(identifier, code, _clipped(error.text), _clipped(error.advice))


def _header(record: StatusRecord, name: str) -> str:
    value = record.headers.get(name, "")
    return value if len(value.encode(errors="replace")) <= HEADER_BYTES_MAX else ""


def _clipped(text: str) -> str:
    return text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")


@asynccontextmanager
async def serving_programs(intake: LocalIntake, data: Path, network: Network) -> AsyncIterator[Path]:
    """Listen in the data folder, or in a temporary one if the path of `data` is too long for a socket; yield the path."""
    async with AsyncExitStack() as parts:
        path = (data / SOCKET_FILE).absolute()
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="stagepost-")
            parts.callback(_remove_folder, Path(folder))
            path = Path(folder) / SOCKET_FILE
        listener = await network.serve(UnixAddress(path), intake.serve, connections_max=CONNECTIONS_MAX)
        parts.push_async_callback(listener.close)
        yield path


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
