"""A node that attacks the kit: endless, torn, nested and unreadable answers cost bounded memory and time, and are named."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from stagepost.dmq.conform import attacker, runner
from stagepost.dmq.conform.attacker import UNREAD_BYTES_MAX, Attacker, NodeTarget, UnexpectedAnswer
from stagepost.dmq.conform.cases import CASES
from stagepost.dmq.conform.cbor_bytes import DEPTH_MAX, AlienBytes, Unfinished, read
from stagepost.dmq.conform.kit import KitOptions, try_node
from stagepost.dmq.conform.report import ConformReport
from stagepost.dmq.conform.runner import CaseState, Cast

MAGIC = 2_147_483_690
SEGMENT = 60_000
ACCEPTED = b"\x83\x01\x19\x10\x01\x82\x1a\x80\x00\x00\x2a\xf4"
TRIED = ("handshake.data", "handshake.network", "local.*", "notification.shape")


def said(lane: int, item: bytes) -> bytes:
    return struct.pack(">IHH", 0, lane, len(item)) + item


def tried(
    folder: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> ConformReport:
    """Try a node at a local socket which serves each connection so."""

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.transport.abort()

    async def scene() -> ConformReport:
        socket = folder / "node.socket"
        server = await asyncio.start_unix_server(quietly, socket)
        try:
            target = NodeTarget(None, socket, MAGIC, patience_s=0.3)
            return await try_node(target, Cast(), KitOptions(only=TRIED, grace_s=0.1))
        finally:
            server.close()

    return asyncio.run(scene())


async def word(reader: asyncio.StreamReader) -> int:
    """Read a segment; return its lane."""
    _, lane, length = struct.unpack(">IHH", await reader.readexactly(8))
    await reader.readexactly(length)
    return int(lane)


@pytest.fixture(autouse=True)
def _quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.dmq.conform.probing.ANSWERED_WITHIN_S", 0.3)
    monkeypatch.setattr(runner, "ENTERED_WITHIN_S", 0.1)


SHAPES = (
    b"\x05",
    b"\x80",
    b"\xa0",
    b"\x82\x01",
    b"\x1c",
    b"\xe1",
    b"\xc2\x41\x00",
    b"\x5f\x41\x00\xff",
    b"\xa1\x80\x01",
    b"\x62\xff\xfe",
    b"\x81" * 50_000,
    b"\x82\x02\x82\x02\x62\xff\xfe",
    b"\x83\x01\x1b" + b"\xff" * 8 + b"\x80",
    b"\x9b" + b"\xff" * 8,
)
ENDLESS = (b"\x9f", b"\x5a\xff\xff\xff\xff", b"\x82\x02\x82\x00\x7a\x7f\xff\xff\xff")


def test_answers_of_any_shape_end_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection gets the next shape in answer to everything."""
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 2 * len(SHAPES))
    shapes, said_so_far = cycle(SHAPES), set[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = next(shapes)
        while True:
            writer.write(said(0x8000 ^ await word(reader), answer))
            said_so_far.add(answer)
            await writer.drain()

    report = tried(tmp_path, serve)

    assert said_so_far == set(SHAPES)
    assert report.exit_code != 0
    assert len(report.results) + report.left_out.total() == len(CASES)


@pytest.mark.parametrize("is_shaken", [False, True])
def test_answers_without_end_end_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shaken: bool
) -> None:
    monkeypatch.setattr(attacker, "UNREAD_BYTES_MAX", 100_000)
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 2)
    beginnings = cycle(ENDLESS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lane = await word(reader)
        if is_shaken:
            writer.write(said(0x8000, ACCEPTED))
            lane = await word(reader)
        writer.write(said(0x8000 ^ lane, next(beginnings)))
        while True:
            writer.write(said(0x8000 ^ lane, bytes(SEGMENT)))
            await writer.drain()

    report = tried(tmp_path, serve)

    assert report.of(CaseState.HOLDS) == []
    assert report.exit_code != 0


@pytest.mark.parametrize("begins", ENDLESS)
def test_an_answer_without_end_is_heard_to_the_limit_and_named(tmp_path: Path, begins: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(said(0x8000, begins))
            while True:
                writer.write(said(0x8000, bytes(SEGMENT)))
                await writer.drain()

    async def scene() -> None:
        socket = tmp_path / "node.socket"
        server = await asyncio.start_unix_server(serve, socket)
        talk = await Attacker.local(NodeTarget(None, socket, MAGIC))
        try:
            with pytest.raises(UnexpectedAnswer, match="said more than 4,194,304 bytes"):
                await talk.hear(0x8000)
            assert UNREAD_BYTES_MAX < talk.transcript.heard_bytes < UNREAD_BYTES_MAX + 2 * SEGMENT
        finally:
            await talk.leave()
            server.close()

    asyncio.run(scene())


def test_an_essay_is_shortened_in_the_report(tmp_path: Path) -> None:
    essay = b"\x1b[31m" * 10_000
    answer = b"\x82\x02\x83\x02\x01\x79" + struct.pack(">H", len(essay)) + essay

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lane = 0x8000 ^ await word(reader)
        writer.write(said(lane, answer))
        await reader.read()

    report = tried(tmp_path, serve)

    assert max(len(text) for one in report.results for text in (*one.faults, one.not_looked)) < 1_000
    assert max(map(len, report.notes)) < 1_000


def test_a_node_that_serves_nobody_is_not_tried_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 3)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()

    report = tried(tmp_path, serve)

    assert connections < 100
    reasons = {one.not_looked for one in report.results}
    assert "the node served nobody in 3 cases, one after the other" in reasons


@pytest.mark.parametrize("at_once", [1, 4])
def test_cutting_a_readable_answer_never_makes_it_unreadable(at_once: int) -> None:
    whole = b"\x83\x01\x9f\x85\x43abc\xa1\x01\x62hi\xf4\xf6\x19\x01\x00\xff\xf5"
    value, end = read(whole)
    assert end == len(whole)
    assert value == [1, [[b"abc", {1: "hi"}, False, None, 256]], True]
    for length in range(0, len(whole), at_once):
        with pytest.raises(Unfinished):
            read(whole[:length])


def test_levels_are_bounded_at_exactly_the_limit() -> None:
    read(b"\x81" * DEPTH_MAX + b"\x00")
    with pytest.raises(AlienBytes, match="levels"):
        read(b"\x81" * (DEPTH_MAX + 1) + b"\x00")
