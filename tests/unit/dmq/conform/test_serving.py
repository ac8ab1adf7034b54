"""The kit as a server: programs of ours keep every rule, a careless one is named, and nobody who comes is said so."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stagepost.dmq.conform.attacker import NodeTarget
from stagepost.dmq.conform.bad_answers import BAD_ANSWERS, BadPeer
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.conform.report import COULD_NOT_LOOK, ConformReport
from stagepost.dmq.conform.runner import CaseResult, CaseState
from stagepost.dmq.conform.serving import CLIENT_CASES, ServeOptions, try_client
from stagepost.dmq.message import DmqMessage
from stagepost.endpoints import (
    ConnectionKind,
    LocalMessageNotificationClient,
    LocalMessageSubmissionClient,
    MiniProtocol,
    Role,
    VersionData,
    connect_unix,
    initiate,
    profile_named,
)
from stagepost.errors import ConfigError, StagepostError, StorageError

MAGIC = 42
OPTIONS = ServeOptions(wait_s=3.0, grace_s=2.0)
LOCAL_CASES = [case for case in CLIENT_CASES if case.begins.is_local]


def served(
    socket: Path, visit: Callable[[Path, int], Awaitable[None]], only: tuple[str, ...] = ()
) -> ConformReport:
    """Let `visit` connect again and again, each time with the number of the visit."""

    async def scene() -> ConformReport:
        listening = asyncio.Event()
        played: list[CaseResult] = []

        async def visit_often() -> None:
            await listening.wait()
            number = 0
            while True:
                with suppress(StagepostError, OSError, asyncio.IncompleteReadError):
                    await visit(socket, number)
                number += 1
                await asyncio.sleep(0.3)

        visiting = [asyncio.create_task(visit_often()) for _ in range(4)]
        try:
            return await try_client(
                NodeTarget(None, socket, MAGIC),
                ServeOptions(only, OPTIONS.wait_s, OPTIONS.grace_s),
                lambda line: listening.set(),
                played.append,
            )
        finally:
            for one in visiting:
                one.cancel()
            await asyncio.gather(*visiting, return_exceptions=True)

    return asyncio.run(scene())


async def visit_as_ours(socket: Path, number: int) -> None:
    """Submit a message, or ask for messages in either way, and leave politely."""
    bearer = await connect_unix(socket)
    try:
        profile = profile_named("dmq-node")
        connection = await initiate(bearer, profile, ConnectionKind.CLIENT, VersionData(MAGIC))
        if number % 3:
            talk = connection.open(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
            client = LocalMessageNotificationClient(talk)
            ask = (
                client.request_messages_blocking if number % 3 == 1 else client.request_messages_non_blocking
            )
            await ask()
            await asyncio.sleep(0.1)
            await client.done()
        else:
            talk = connection.open(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION, Role.CLIENT)
            submitter = LocalMessageSubmissionClient(talk)
            await submitter.submit_message(DmqMessage.decode(message(Forger()).raw))
            await asyncio.sleep(0.1)
            await submitter.done()
    finally:
        bearer.close()


async def visit_carelessly(socket: Path, number: int) -> None:
    """Submit without reading a single answer, and stay."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        for lane, item in ((0, b"\x82\x00\xa1\x19\x10\x01\x82\x18\x2a\xf4"), (14, b"\x82\x00" + b"\x80")):
            writer.write(struct.pack(">IHH", 0, lane, len(item)) + item)
        await reader.read()
    finally:
        writer.close()


def test_programs_of_ours_keep_every_rule(tmp_path: Path) -> None:
    report = served(tmp_path / "kit.socket", visit_as_ours)

    left = [(one.case.name, one.state, one.faults, one.not_looked) for one in report.results]
    assert [one for one in left if one[1] is not CaseState.HOLDS] == []
    assert len(left) == len(LOCAL_CASES)
    assert report.exit_code == 0
    assert not (tmp_path / "kit.socket").exists()


def test_a_program_that_reads_no_answer_is_named_by_rule(tmp_path: Path) -> None:
    only = ("client.network", "client.shape", "client.told")
    report = served(tmp_path / "kit.socket", visit_carelessly, only)

    assert {one.rule.name for one in report.of(CaseState.DEVIATES)} == {"client.network", "client.shape"}
    unseen = {one.not_looked for one in report.of(CaseState.NOT_LOOKED)}
    assert unseen == {"the client asked for no messages"}
    assert report.exit_code == 1


def test_where_nobody_comes_nothing_is_called_good(tmp_path: Path) -> None:
    options = ServeOptions(wait_s=0.05, grace_s=0.1)
    topology = tmp_path / "topology.json"
    target = NodeTarget(0, tmp_path / "kit.socket", MAGIC)
    report = asyncio.run(try_client(target, options, lambda line: None, topology=topology))

    assert len(report.of(CaseState.NOT_LOOKED)) == len(CLIENT_CASES) == len(report.results)
    assert report.exit_code == COULD_NOT_LOOK
    (group,) = json.loads(topology.read_text())["localRoots"]
    assert len({point["port"] for point in group["accessPoints"]}) == group["valency"] == len(BAD_ANSWERS)


PROPOSALS = (
    b"\x82\x00\x05",
    b"\x05",
    b"\x82\x00\xa1\x20\x05",
    b"\x82\x00\xa2\x61a\x05\x01\x05",
    b"\x82\x00\xa1\x41a\x05",
    b"\x82\x00\xa1\x1b" + b"\xff" * 8 + b"\x05",
    b"\x1c",
    b"\x82\x00\xa1\xf5\x05",
)


@pytest.mark.parametrize("only", ["client.network", "client.answered"])
def test_proposals_of_any_shape_leave_the_kit_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, only: str
) -> None:
    """Programs that propose nonsense, and leave at once, before one comes that behaves."""

    async def visit(socket: Path, number: int) -> None:
        if number:
            await visit_as_ours(socket, number)
            return
        for item in PROPOSALS:
            _, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(struct.pack(">IHH", 0, 0, len(item)) + item)
                await asyncio.sleep(0.02)
            finally:
                writer.transport.abort()

    report = served(tmp_path / "kit.socket", visit, (only,))

    assert len(report.results) == sum(case.rule == only for case in LOCAL_CASES)
    assert [one.not_looked for one in report.results if one.not_looked] == []
    assert caplog.text == ""


def test_a_node_that_has_connected_and_is_slow_to_speak_is_not_said_to_break_a_rule() -> None:
    """It speaks after the kit has stopped to wait for further nodes."""
    (only,) = (one.name for one in CLIENT_CASES if one.name == "peer accepts on another network")

    async def scene() -> ConformReport:
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def visit() -> None:
            line = await listening
            port = int(line.partition("ports ")[2].partition(":")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(3.0)
            item = b"\x82\x00\xa1\x02\x84\x18\x2a\xf5\x00\xf4"
            writer.write(struct.pack(">IHH", 0, 0, len(item)) + item)
            await reader.readexactly(8)
            writer.close()

        visiting = asyncio.create_task(visit())
        options = ServeOptions((only,), wait_s=0.5, grace_s=0.1)
        report = await try_client(NodeTarget(0, None, MAGIC), options, listening.set_result)
        await visiting
        return report

    report = asyncio.run(scene())
    assert [one.state for one in report.results] == [CaseState.HOLDS]


def test_a_node_and_a_program_are_waited_for_at_the_same_time(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        said: list[str] = []
        both = asyncio.Event()

        def say(line: str) -> None:
            said.append(line)
            if len(said) == 2:
                both.set()

        options = ServeOptions(("client.network",), wait_s=60.0)
        trying = asyncio.create_task(try_client(NodeTarget(0, tmp_path / "kit.socket", MAGIC), options, say))
        await asyncio.wait_for(both.wait(), 30.0)
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
        return said

    assert len(asyncio.run(scene())) == 2
    assert not (tmp_path / "kit.socket").exists()


@pytest.mark.parametrize(
    ("port", "fits"), [(65_536 - len(BAD_ANSWERS), True), (65_537 - len(BAD_ANSWERS), False)]
)
def test_ports_behind_the_last_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int, fits: bool
) -> None:
    class Listened(Exception):
        pass

    async def start(self: BadPeer, port: int = 0) -> None:
        raise Listened

    monkeypatch.setattr(BadPeer, "start", start)
    with pytest.raises(Listened if fits else ConfigError):
        asyncio.run(try_client(NodeTarget(port, None, MAGIC), OPTIONS, lambda line: None))


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kit.socket").write_text("mine")
    with pytest.raises(StorageError, match="exists already"):
        asyncio.run(try_client(NodeTarget(None, tmp_path / "kit.socket", MAGIC), OPTIONS, lambda line: None))
    assert (tmp_path / "kit.socket").read_text() == "mine"
