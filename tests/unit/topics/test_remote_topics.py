"""A reader of served topics beside a server that lies: every lie is refused in a sentence, by a real connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stagepost.errors import RemoteProtocolError, StagepostError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import SocketNetwork, TcpAddress
from stagepost.ground.statemachine.spec import Role
from stagepost.topics.batch import Read
from stagepost.topics.remote.client import RemoteTopics
from stagepost.topics.remote.protocol import Bounds, Challenge, Done, Opened, Records, SentRecord
from stagepost.topics.remote.server import open_topic_reading

TOPIC = "stagepost.remp.statuses"


@contextmanager
def a_server_that_answers(reply: Any) -> Iterator[TcpAddress]:
    """Serve in a thread; every question gets `reply`."""
    loop = asyncio.new_event_loop()
    ports: list[int] = []
    is_listening, ends = threading.Event(), asyncio.Event()

    async def serve(bearer: Bearer) -> None:
        talk = open_topic_reading(bearer, Role.SERVER)
        try:
            await talk.receive_any()
            await talk.send(Challenge(bytes(32), False))
            await talk.receive_any()
            await talk.send(Opened())
            while not isinstance(await talk.receive_any(), Done):
                await talk.send(reply)
        except StagepostError:
            return  # the reader has seen enough

    async def main() -> None:
        listener = await SocketNetwork().serve(TcpAddress(LOOPBACK_HOST, 0), serve)
        ports.append(listener.port or 0)
        is_listening.set()
        await ends.wait()
        await listener.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert is_listening.wait(30)
    try:
        yield TcpAddress(LOOPBACK_HOST, ports[0])
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()


def record(headers: bytes) -> Records:
    return Records((SentRecord(1_700_000_000_000, (b"key",), (b"value",), headers),))


def read_from(reply: Any) -> list[Read]:
    """Ask for one record of a server that answers so."""
    with a_server_that_answers(reply) as address, RemoteTopics(address, patience_s=0) as topics:
        return [read for batch in topics.records(TOPIC, 0, 5, 6) for read in batch]


@pytest.mark.parametrize(
    "headers",
    [b"{", b"[]", b'{"a":1}', b'{"a":' * 50_000, b'{"a":[[[]]]}', b"\xff", b'{"a":"\xff"}', b"\n"],
    ids=["cut", "list", "number", "deep", "nested", "no text", "no UTF-8", "blank"],
)
def test_headers_that_are_no_texts_by_name_are_refused(headers: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_from(record(headers))


def test_an_answer_to_another_question_is_refused() -> None:
    with pytest.raises(StagepostError):
        read_from(Bounds(()))


def test_more_records_than_were_asked_for_are_refused_and_good_ones_are_read() -> None:
    (read,) = read_from(record(b'{"a":"b"}'))
    assert (read.offset, read.key, read.value, read.headers) == (5, b"key", b"value", {"a": "b"})
    with pytest.raises(RemoteProtocolError, match="1 were asked for"):
        read_from(Records(2 * record(b"").records))
