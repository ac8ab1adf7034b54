"""Serves the topics of a data folder to readers in other processes or on other machines, as far as they are durable.

    server = await serve_topics(data, TcpAddress("127.0.0.1", 0))
    await server.close()

The server reads the files as every reader may, so it can run in the node that writes them or beside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    LimitExceeded,
    StagepostError,
    StorageError,
    TransportError,
)
from stagepost.ground.net.admission import LOOPBACK_HOSTS, Admission, AdmissionLimits, ConnectionPlace
from stagepost.ground.net.bearer import LOCAL_PEER, Bearer
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.doorway import entering, proving, settle
from stagepost.ground.net.network import Address, Listener, Network, SocketNetwork, is_on_this_machine
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.mux import SEGMENT_PAYLOAD_BYTES_MAX, Direction
from stagepost.topics.batch import Batch
from stagepost.topics.log.file_topic import open_topic, topic_names
from stagepost.topics.remote.protocol import (
    BOUNDS_MAX,
    CONTENT_BYTES_MAX,
    DIALECT,
    INGRESS_BYTES_MAX,
    NONCE_BYTES,
    PROTOCOL_NUMBER,
    RECORDS_MAX,
    SMALL_MESSAGE_BYTES_MAX,
    TEXT_BYTES_MAX,
    TOPIC_READING,
    VERSION,
    AskBounds,
    AskRange,
    Bounds,
    Challenge,
    Done,
    Open,
    Opened,
    PartitionBounds,
    ProveKey,
    Records,
    Refuse,
    SentRecord,
    Unavailable,
    codec_table,
    is_proof,
)

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
UNPROVED_MAX = 16
ASKED_WITHIN_S = 60.0
"""Seconds without a question after which a reader makes room for another."""
TOKEN_CHARACTERS_MIN = 16

Question = AskBounds | AskRange


async def serve_topics(
    data: Path,
    address: Address,
    *,
    token: str | None = None,
    network: Network | None = None,
    nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
) -> Listener:
    """Serve the topics of `data` at `address`; raise `ConfigError` if others can reach that address and there
    is no token."""
    if token is not None and len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigError(
            f"a token of {len(token)} characters is too short: it can be guessed",
            advice=f"use {TOKEN_CHARACTERS_MIN} or more random characters",
            limit=TOKEN_CHARACTERS_MIN,
        )
    if token is None and not is_on_this_machine(address):
        raise ConfigError(
            f"without a token everybody who reaches {address} could read the topics",
            advice="serve them at 127.0.0.1 or a Unix socket, or set STAGEPOST_TOKEN here and at the readers",
        )
    service = _Service(data, token, nonce)
    sockets_max = service.admission.limits.sockets_max
    return await (network or SocketNetwork()).serve(address, service.serve, connections_max=sockets_max)


def open_topic_reading(bearer: Bearer, role: Role) -> Conversation:
    direction = Direction.INITIATOR if role is Role.CLIENT else Direction.RESPONDER
    limits = (
        (INGRESS_BYTES_MAX, SEGMENT_PAYLOAD_BYTES_MAX)
        if role is Role.CLIENT
        else (SMALL_MESSAGE_BYTES_MAX, SMALL_MESSAGE_BYTES_MAX)
    )
    channel = bearer.channel(PROTOCOL_NUMBER, direction, *limits)
    return Conversation(TOPIC_READING, role, Codec(codec_table(), DIALECT.name), channel)


class _Service:
    def __init__(self, data: Path, token: str | None, nonce: Callable[[], bytes]) -> None:
        self._data = data
        self._token = token
        self._nonce = nonce
        limits = AdmissionLimits(CONNECTIONS_MAX, CONNECTIONS_MAX, unproved_max=UNPROVED_MAX)
        self.admission = Admission(time.monotonic, limits, exempt=LOOPBACK_HOSTS | {LOCAL_PEER})

    async def serve(self, bearer: Bearer) -> None:
        async with entering(self.admission, bearer) as place:
            await self._serve(bearer, place)

    async def _serve(self, bearer: Bearer, place: ConnectionPlace) -> None:
        talk = open_topic_reading(bearer, Role.SERVER)
        asked_at = time.monotonic()
        try:
            await proving(place, bearer, self._let_in(bearer, talk))
            settle(
                place,
                bearer,
                is_known=self._token is not None,
                worth=lambda: float(time.monotonic() - asked_at < ASKED_WITHIN_S),
            )
            await talk.send(Opened())
            while not isinstance(question := await talk.receive_any(), Done):
                asked_at = time.monotonic()
                # The disk may be slow, and must not delay other readers.
                await talk.send(await asyncio.to_thread(self._answer, question))
        except TransportError:
            return  # the reader left without `Done`, like a killed process
        except StagepostError as error:
            log.info("reader of topics cut off", extra={"peer": bearer.peer, "reason": error.text})
            bearer.abort(error)
            raise

    async def _let_in(self, bearer: Bearer, talk: Conversation) -> None:
        opening = await talk.receive(Open)
        user_id = bearer.peer_user_id
        if user_id is not None and user_id not in (0, os.getuid()):
            await _refuse(
                bearer, talk, ErrorCode.KEY_PERMISSIONS, f"user {user_id} may not read these topics"
            )
        if opening.version != VERSION:
            await _refuse(
                bearer,
                talk,
                ErrorCode.HANDSHAKE_NO_VERSION,
                f"version {VERSION} of topic reading is supported, not {opening.version}",
            )
        nonce = self._nonce()
        await talk.send(Challenge(nonce, self._token is not None))
        proof = (await talk.receive(ProveKey)).proof
        if self._token is not None and not is_proof(proof, self._token, nonce):
            await _refuse(
                bearer,
                talk,
                ErrorCode.CONFIG_INVALID,
                "the token is not the token of the node that serves these topics",
            )

    def _answer(self, question: Question) -> Bounds | Records | Unavailable:
        try:
            return self._bounds() if isinstance(question, AskBounds) else self._records(question)
        except StagepostError as error:
            return Unavailable(error.code.value, _short(error.text), _short(error.advice))

    def _bounds(self) -> Bounds:
        found: list[PartitionBounds] = []
        for name in topic_names(self._data):
            reader = open_topic(self._data, name).reader()
            found += (
                PartitionBounds(name, one, reader.start_offset(one), reader.end_offset(one))
                for one in range(reader.partitions)
            )
        if len(found) > BOUNDS_MAX:
            raise LimitExceeded(
                f"{self._data} has {len(found)} partitions, one reply holds {BOUNDS_MAX}", limit=BOUNDS_MAX
            )
        return Bounds(tuple(found))

    def _records(self, wanted: AskRange) -> Records:
        topic = open_topic(self._data, wanted.topic)
        if wanted.partition >= topic.partitions:
            raise ConfigError(
                f"{wanted.topic} has partitions 0 to {topic.partitions - 1}, not {wanted.partition}"
            )
        if wanted.start >= wanted.end:
            raise StorageError(f"the range from {wanted.start} to {wanted.end} holds nothing")
        found: list[SentRecord] = []
        content_bytes = 0
        for batch in topic.reader().batches(wanted.partition, wanted.start, wanted.end):
            for record in _sent(batch):
                content_bytes += sum(map(len, (*record.key, *record.value, record.headers)))
                if found and (len(found) == RECORDS_MAX or content_bytes > CONTENT_BYTES_MAX):
                    return Records(tuple(found))
                found.append(record)
        return Records(tuple(found))


def _sent(batch: Batch) -> list[SentRecord]:
    return [
        SentRecord(time, () if key is None else (key,), () if value is None else (value,), headers)
        for time, key, value, headers in zip(
            batch.timestamps, batch.keys, batch.values, batch.header_texts, strict=True
        )
    ]


async def _refuse(bearer: Bearer, talk: Conversation, code: ErrorCode, text: str) -> None:
    await talk.send(Refuse(code.value, text))
    bearer.close()
    await bearer.wait_closed()  # so that the reader gets the reason
    raise HandshakeRefused(text, code=code)


def _short(text: str) -> str:
    """Return the text cut to the length of its field."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
