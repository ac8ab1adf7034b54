"""`stagepost listen` against a small node on a real Unix socket."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost.cli import main as command
from stagepost.cli.listen.acknowledging import HeardMessage
from stagepost.delivery.envelope import DataEnvelope
from stagepost.dmq.message import DmqMessage
from stagepost.ground.crypto.hashing import format_pool_id
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.small_node import MAGIC, SmallNode
from tests.worlds.ground.strategies import EXPIRES_AT, a_signed_message


def said(payload: bytes, topic: str = "demo", created_ms: int = 1_800_000_000_000) -> DmqMessage:
    return a_signed_message(body=DataEnvelope(topic, bytes(16), created_ms, payload).encode())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    with node_in_background(tmp_path / "run" / "node.socket") as started:
        yield started


def listen(node: SmallNode, *arguments: str) -> int:
    return command.run(
        ["listen", "--socket", str(node.socket_path), "--network-magic", str(MAGIC), *arguments]
    )


def test_count_ends_it_and_lines_tell_who_said_what(
    node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.messages += [said(b"hello"), said(b"\xff\x00", topic="other"), a_signed_message()]

    assert listen(node, "--count", "3") == 0
    first, second, third = capsys.readouterr().out.splitlines()
    pool = format_pool_id(node.messages[0].pool_id)
    for line, message in zip((first, second, third), node.messages, strict=True):
        digits = message.message_id.hex()
        assert f"{digits[:8]}…{digits[-6:]}  {pool[:10]}…{pool[-4:]}     " in line
    assert first.endswith("  demo  hello")
    assert second.endswith("  other  2 bytes")
    assert third.endswith("  no envelope")


def test_json_is_one_object_per_line_with_whole_ids(
    node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.messages += [said(b"hello"), a_signed_message()]

    assert listen(node, "--count", "2", "--json") == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["message_id"] == node.messages[0].message_id.hex()
    assert (first["topic"], first["created_ms"]) == ("demo", 1_800_000_000_000)
    assert first["expires_at_ms"] == EXPIRES_AT * 1_000
    assert b64decode(first["payload_base64"]) == b"hello"
    assert b64decode(first["body_base64"]) == node.messages[0].body
    assert second["topic"] is second["payload_base64"] is second["delivery_id"] is None


def test_topic_and_since_leave_out_the_rest(node: SmallNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.messages += [
        said(b"old", created_ms=1_700_000_000_000),
        said(b"elsewhere", topic="other"),
        said(b"new"),
    ]

    assert listen(node, "--topic", "demo", "--since", "2026-01-01T00:00:00Z", "--count", "1") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("new")


def test_message_that_does_not_say_when_it_was_made_is_shown() -> None:
    assert HeardMessage.of(a_signed_message(), 0.0).is_wanted(None, since_unix_s=9e9)
    assert not HeardMessage.of(a_signed_message(), 0.0).is_wanted("demo", None)
    exactly = HeardMessage.of(said(b"x", created_ms=5_000), 0.0)
    assert exactly.is_wanted(None, since_unix_s=5)
    assert not exactly.is_wanted(None, since_unix_s=5.001)


def test_idle_ends_it_with_1_if_the_count_was_not_reached(
    node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.messages += [said(b"hello")]

    assert listen(node, "--until-idle", "50ms") == 0
    assert listen(node, "--until-idle", "50ms", "--count", "2") == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_nothing_can_steer_the_terminal() -> None:
    line = HeardMessage.of(said(b"\x1b[2J\x07ding\nnew line", topic="a\x1b]0;b"), 0.0).text_line()

    assert line.isprintable()
    assert line.endswith("a·]0;b  ·[2J·ding·new line")
    assert HeardMessage.of(said(b"x" * 61), 0.0).text_line().endswith("x" * 59 + "…")
    assert HeardMessage.of(said(b"x" * 60), 0.0).text_line().endswith("x" * 60)


def test_expired_message_is_called_expired() -> None:
    assert "expired 5 s ago" in HeardMessage.of(said(b"x"), EXPIRES_AT + 5.0).text_line()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("--since", "soon"), 2), (("--count", "0"), 2), (("--until-idle", "5"), 2), (("--profile", "x"), 2)],
)
def test_bad_options_are_usage_errors(node: SmallNode, arguments: tuple[str, ...], status: int) -> None:
    assert listen(node, *arguments) == status


def test_node_that_is_not_there_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["listen", "--socket", str(tmp_path / "none"), "--until-idle", "1s"]) == 3
    assert "there is no such socket" in capsys.readouterr().err
