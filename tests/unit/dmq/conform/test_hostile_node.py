"""A node that attacks the kit: endless, torn, nested and unreadable answers cost bounded memory and time, and are named."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from itertools import cycle
from pathlib import Path

import pytest

from stagepost.dmq.conform import attacker, honest_program, rows_puller, runner
from stagepost.dmq.conform.attacker import (
    UNREAD_BYTES_MAX,
    Attacker,
    NodeTarget,
    NothingSeen,
    NothingToTry,
    UnexpectedAnswer,
)
from stagepost.dmq.conform.cases import CASES
from stagepost.dmq.conform.cbor_bytes import DEPTH_MAX, AlienBytes, Unfinished, read
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.conform.honest_program import submit
from stagepost.dmq.conform.kit import KitOptions, try_node
from stagepost.dmq.conform.playbook import Case, Needs, Start
from stagepost.dmq.conform.report import ConformReport
from stagepost.dmq.conform.runner import SLOW_AT_ONCE, Abilities, CaseResult, CaseRunner, CaseState, Cast

MAGIC = 2_147_483_690
SEGMENT = 60_000
ACCEPTED = b"\x83\x01\x19\x10\x01\x82\x1a\x80\x00\x00\x2a\xf4"
TRIED = ("handshake.data", "handshake.network", "local.*", "notification.shape")


def said(lane: int, item: bytes) -> bytes:
    return struct.pack(">IHH", 0, lane, len(item)) + item


def tried(
    folder: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> ConformReport:
    """Try a node at a local socket which accepts one honest handshake, and then serves each connection so."""
    has_begun = False

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal has_begun
        with suppress(OSError, asyncio.IncompleteReadError):
            if has_begun:
                await serve(reader, writer)
            else:
                await word(reader)
                has_begun = True
                writer.write(said(0x8000, ACCEPTED))
                await reader.read()
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
    monkeypatch.setattr(rows_puller, "HELD_WITHIN_S", 0.3)


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


SILENCE, END = b"", b"\x00"
REFUSED = b"\x82\x02\x83\x02\x19\x10\x01\x79" + struct.pack(">H", 9_000) + b"\x1b[31m" * 1_800
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (SILENCE, "it says nothing within 0.3 s"),
        (END, "it closes without a word"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answers as an HTTP server"),
        (b"HTTP/1.1", "it answers as an HTTP server"),
        (TLS_ALERT, "it answers as a TLS server"),
        (b"SSH-2.0-x\r\n", "it answers as an SSH server"),
        (b"\x07nonsense that goes on", "it says 076e6f6e73656e73652074686174"),
        (said(0x8000, b"\x1c"), "it says 00000000800000011c (the node's answer cannot be read"),
        (said(0x8000, REFUSED), "refuses an honest handshake of programs on network 2147483690"),
    ],
)
def test_where_no_honest_handshake_succeeds_no_rule_is_called_broken(
    tmp_path: Path, answer: bytes, told: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await word(reader)
            writer.write(b"" if answer == END else answer)
            if answer == SILENCE or answer.startswith(said(0x8000, b"")[:6]):
                await reader.read()
        writer.close()

    async def scene() -> None:
        socket = tmp_path / "node.socket"
        server = await asyncio.start_unix_server(serve, socket)
        try:
            target = NodeTarget(None, socket, MAGIC, patience_s=0.3)
            await try_node(target, Cast(), KitOptions(grace_s=0.1))
        finally:
            server.close()

    with pytest.raises(NothingToTry) as caught:
        asyncio.run(scene())
    assert told in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "--network-magic" in caught.value.advice


TOO_SOON = b"\x82\x02\x82\x03\x76MSG_TOO_FREQUENT: wait"


@pytest.mark.parametrize(("refusals", "answer"), [(0, [1]), (2, [1]), (3, [1]), (4, None)])
def test_a_message_that_came_too_soon_is_said_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusals: int, answer: object
) -> None:
    monkeypatch.setattr(honest_program, "PACES_S", (0.0, 0.01, 0.01))
    heard = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        with suppress(asyncio.IncompleteReadError):
            await word(reader)
            writer.write(said(0x8000, ACCEPTED))
            while True:
                lane = await word(reader)
                heard += 1
                writer.write(said(0x8000 ^ lane, TOO_SOON if heard <= refusals else b"\x81\x01"))
        writer.close()

    async def scene() -> object:
        socket = tmp_path / "node.socket"
        server = await asyncio.start_unix_server(serve, socket)
        try:
            return await submit(NodeTarget(None, socket, MAGIC), message(Forger()))
        finally:
            server.close()

    with nullcontext() if answer else pytest.raises(NothingSeen, match="wants a gap"):
        assert asyncio.run(scene()) == answer
    assert heard == min(refusals, 3) + 1


@pytest.mark.parametrize("from_one_address", [True, False])
def test_from_one_address_few_connections_wait_at_once(from_one_address: bool) -> None:
    at_once, most = 0, 0

    class Counted(CaseRunner):
        async def play(self, case: Case) -> CaseResult:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            for _ in range(20):
                await asyncio.sleep(0)
            at_once -= 1
            return CaseResult(case)

    cases = [case for case in CASES if case.is_slow and not case.begins.is_local]
    abilities = Abilities(frozenset(), False, None, None, None)
    counted = Counted(
        NodeTarget(1, None, MAGIC), Cast(), abilities, grace_s=1.0, from_one_address=from_one_address
    )
    assert len(asyncio.run(counted.run(cases))) == len(cases) > SLOW_AT_ONCE
    assert most == (SLOW_AT_ONCE if from_one_address else len(cases))


def test_a_node_that_wants_a_gap_is_not_tried_with_cases_that_need_none() -> None:
    """Cases that supply several messages of one pool cannot be judged there."""
    supplied = [case for case in CASES if case.needs is Needs.NO_GAP]
    assert {case.rule for case in supplied} == {"submission.pull", "submission.pull-again"}

    class Gapped(CaseRunner):
        async def _prepare(self) -> None:
            self._unfit = honest_program.WANTS_A_GAP

    abilities = Abilities(frozenset(), False, None, None, None)
    gapped = Gapped(NodeTarget(1, None, MAGIC), Cast(), abilities, grace_s=0.1)
    results = asyncio.run(gapped.run(supplied))
    assert {one.not_looked for one in results.values()} == {honest_program.WANTS_A_GAP}


def test_a_node_without_messages_is_not_said_to_break_the_rules_of_pulling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It shakes hands as a peer, serves keep-alive, and has nothing to announce: it is tried to the end."""
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                lane = await word(reader)
                if lane == 0:
                    writer.write(said(0x8000, b"\x83\x01\x02\x84\x1a\x80\x00\x00\x2a\xf5\x00\xf4"))
                elif lane == 12:
                    writer.write(said(0x800C, b"\x82\x01\x19\x12\x67"))
        writer.close()

    async def scene() -> dict[str, CaseResult]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        target = NodeTarget(server.sockets[0].getsockname()[1], None, MAGIC, patience_s=0.4)
        abilities = Abilities(frozenset(), False, None, None, None)
        asked = [case for case in CASES if case.name.startswith("puller v2: ") and "ack" in case.name]
        asked += [case for case in CASES if case.name == "puller v2: one of its ids was not announced"]
        try:
            return await CaseRunner(target, Cast(), abilities, grace_s=0.4).run(asked)
        finally:
            server.close()

    results = asyncio.run(scene())
    for name in ("asks for what it acknowledged", "one of its ids was not announced"):
        assert results[f"puller v2: {name}"].state is CaseState.NOT_LOOKED
        assert "holds no message" in results[f"puller v2: {name}"].not_looked


def test_a_node_that_keeps_our_only_address_out_is_not_said_to_break_or_keep_a_rule() -> None:
    """It accepts one handshake, and from then on closes every connection at once."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await word(reader)
            writer.write(said(0x8000, b"\x83\x01\x02\x84\x1a\x80\x00\x00\x2a\xf5\x00\xf4"))
        writer.close()

    async def scene() -> dict[str, CaseResult]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = NodeTarget(port, None, MAGIC, patience_s=0.3)
        talk = await Attacker.tcp(target)
        await talk.shake_hands(1, 2)
        await talk.leave()
        abilities = Abilities(frozenset(), False, None, None, None)
        try:
            counted = CaseRunner(target, Cast(), abilities, grace_s=0.1, from_one_address=True)
            bare = [case for case in CASES if case.begins is Start.NODE_BARE and not case.is_slow][:4]
            return await counted.run(bare)
        finally:
            server.close()

    results = asyncio.run(scene()).values()
    assert len(results) == 4
    assert {one.not_looked[:29] for one in results} == {"the node lets nobody in: noth"}


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
