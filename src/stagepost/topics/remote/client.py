"""Topics of a node elsewhere, read as if they were here; for programs without an event loop, such as Spark's workers.

    with RemoteTopics(parse_address("127.0.0.1:4200")) as topics:
        for bounds in topics.bounds(): ...
        for reads in topics.records("stagepost.remp.statuses", 0, 0, 1000): ...

If a node goes away meanwhile, the client asks again for a while, from the record after the last one: the answer is the
same, wherever the connection broke.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    ProtocolTimeout,
    RemoteProtocolError,
    StorageError,
    TransportError,
)
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.network import Address, SocketNetwork
from stagepost.ground.statemachine.spec import Role
from stagepost.topics.batch import NO_HEADERS, Read
from stagepost.topics.remote.protocol import (
    PROOF_BYTES,
    VERSION,
    AskBounds,
    AskRange,
    Bounds,
    Challenge,
    Done,
    Open,
    PartitionBounds,
    ProveKey,
    Records,
    Refuse,
    Unavailable,
    code_named,
    proof_of,
)
from stagepost.topics.remote.server import open_topic_reading

PATIENCE_S = 30.0
RETRY_EVERY_S = 0.2

_read_headers = msgspec.json.Decoder(dict[str, str]).decode


class RemoteTopics:
    """Reader that connects on its first request. `patience_s` is how many seconds a node may be away before
    that is an error."""

    def __init__(
        self,
        address: Address,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._token = token
        self._patience_s = patience_s
        self._sleep = sleep
        self._loop = asyncio.new_event_loop()
        self._open: tuple[Bearer, Conversation] | None = None

    def bounds(self) -> tuple[PartitionBounds, ...]:
        reply = self._ask(AskBounds())
        assert isinstance(reply, Bounds)
        return reply.partitions

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[Sequence[Read]]:
        """Yield all records of the range, a bounded number at a time; raise `StorageError` if the node does
        not hold the whole range."""
        while start < end:
            reply = self._ask(AskRange(topic, partition, start, end))
            assert isinstance(reply, Records)
            if start + len(reply.records) > end:
                raise RemoteProtocolError(
                    f"{self._address} sent {len(reply.records)} records from offset {start}, {end - start} were asked for",
                    code=ErrorCode.PROTOCOL_WINDOW,
                )
            try:
                found = list(_reads(reply, start))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise RemoteProtocolError(
                    f"{self._address} sent a record of {topic} whose headers are not texts by name: {error}",
                    code=ErrorCode.RECEIPT_FORMAT,
                ) from error
            yield found
            start += len(reply.records)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.run_until_complete(self._say_goodbye())
        self._loop.close()

    def __enter__(self) -> RemoteTopics:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: AskBounds | AskRange) -> Bounds | Records:
        waited_s = 0.0
        while True:
            try:
                return self._loop.run_until_complete(self._answered(question))
            except (TransportError, ProtocolTimeout):
                self._drop()
                if waited_s >= self._patience_s:
                    raise
            self._sleep(RETRY_EVERY_S)
            waited_s += RETRY_EVERY_S

    async def _answered(self, question: AskBounds | AskRange) -> Bounds | Records:
        if self._open is None or self._open[0].is_over:
            self._open = await self._connected()
        talk = self._open[1]
        await talk.send(question)
        reply = await talk.receive_any()
        if isinstance(reply, Unavailable):
            raise StorageError(
                f"{self._address}: {reply.text}", code=code_named(reply.code), advice=reply.advice
            )
        assert isinstance(reply, Bounds | Records), "nothing else may be said here"
        return reply

    async def _connected(self) -> tuple[Bearer, Conversation]:
        bearer = await SocketNetwork().connect(self._address)
        try:
            talk = open_topic_reading(bearer, Role.CLIENT)
            await talk.send(Open(VERSION))
            reply = self._not_refused(await talk.receive_any())
            if isinstance(reply, Challenge):
                await talk.send(ProveKey(self._proof(reply)))
                self._not_refused(await talk.receive_any())
        except BaseException:
            bearer.abort(TransportError("topic reading did not begin"))
            raise
        return bearer, talk

    def _proof(self, challenge: Challenge) -> bytes:
        if not challenge.needs_token:
            return bytes(PROOF_BYTES)
        if self._token is None:
            raise ConfigError(
                f"the topics at {self._address} need a token",
                advice="set STAGEPOST_TOKEN to the token of that node",
            )
        return proof_of(self._token, challenge.nonce)

    def _not_refused(self, reply: object) -> object:
        if isinstance(reply, Refuse):
            raise HandshakeRefused(f"{self._address}: {reply.text}", code=code_named(reply.code))
        return reply

    def _drop(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened[0].abort(TransportError("topic reading was cancelled"))

    async def _say_goodbye(self) -> None:
        opened, self._open = self._open, None
        if opened is None or opened[0].is_over:
            return
        bearer, talk = opened
        if talk.state.speaker is Role.CLIENT:
            talk.send_now(Done())
        bearer.close()
        await bearer.wait_closed()


def _reads(reply: Records, start: int) -> Iterator[Read]:
    for offset, one in enumerate(reply.records, start):
        headers = _read_headers(one.headers) if one.headers else NO_HEADERS
        yield Read(
            offset,
            one.key[0] if one.key else None,
            one.value[0] if one.value else None,
            headers,
            one.timestamp_ms,
        )
