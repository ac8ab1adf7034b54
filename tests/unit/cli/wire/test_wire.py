"""`stagepost wire inspect` as people use it: what it prints, in which forms it reads, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagepost.cli.main import exit_status
from stagepost.cli.wire.command import wire
from stagepost.dmq import local_submission
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ConfigError, StagepostError, StorageError
from tests.worlds.ground.captures import (
    INITIATOR,
    RESPONDER,
    Capture,
    a_local_connection,
    a_message,
    a_node_connection,
    message_bytes,
    segment,
)

WRONG_COOKIE = segment(INITIATOR, 12, b"\x82\x00\x05") + segment(RESPONDER, 12, b"\x82\x01\x06")


def run(*arguments: object, content: bytes | None = None) -> Result:
    return CliRunner().invoke(wire, ["inspect", *(str(argument) for argument in arguments)], input=content)


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def refusal(result: Result) -> StagepostError:
    assert isinstance(result.exception, StagepostError)
    return result.exception


def test_a_clean_capture_is_explained_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "capture.bin"
    file.write_bytes(a_node_connection("dmq-node").data)

    result = run(file)

    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header == "CLEAN · 16 segments · 1 838 bytes · dmq-node · haskell tags · submission version 1"
    assert any("→ keep-alive" in line and "KeepAlive  cookie 48879" in line for line in lines)
    assert any("← message-submission" in line and "acknowledges 2 · requests 10" in line for line in lines)
    assert any("KES period 120 (evolution 2) · valid" in line for line in lines)


@pytest.mark.parametrize("profile", ["dmq-node", "gouroboros", "seed"])
def test_the_profile_stands_in_the_first_line(profile: str) -> None:
    for capture in (a_node_connection(profile), a_local_connection(profile)):
        header = run("-", content=capture.data).stdout.splitlines()[0]

        assert f" · {profile}" in header


def test_a_violation_is_shown_with_rule_culprit_and_marked_byte() -> None:
    result = run("-", content=WRONG_COOKIE)

    assert result.exit_code == 1
    assert result.stdout.startswith("VIOLATION · 2 segments · 22 bytes · dmq-node")
    ending = result.stdout[result.stdout.index("violation at") :].splitlines()
    assert ending == [
        "violation at byte 21 (0x15), in the message at byte 19, segment 1",
        "  rule       CookieMismatch · PROTOCOL_STATE",
        "  broken by  responder ← · keep-alive (12) in Server",
        "  what       KeepAlive: cookie 5 was sent, 6 came back",
        "  allowed    cookie 5",
        "  bytes      … 03 e8 80 0c 00 03 82 01 [06]",
    ]


def test_a_cut_capture_is_truncated() -> None:
    result = run("-", content=WRONG_COOKIE[:15])

    assert result.exit_code == 1
    assert result.stdout.startswith("TRUNCATED")
    assert result.stdout.splitlines()[-1].startswith(
        "truncated at byte 11 (0xb): the stream ends 4 bytes into"
    )


def test_one_direction_says_that_order_is_not_checked() -> None:
    result = run("-", content=segment(INITIATOR, 12, b"\x82\x00\x05"))

    assert result.exit_code == 0
    assert "one direction only: order not checked" in result.stdout


def test_order_is_not_checked_on_request() -> None:
    assert run("-", "--one-direction", content=WRONG_COOKIE).exit_code == 0


def test_segments_are_listed_on_request() -> None:
    lines = run("-", "--segments", content=WRONG_COOKIE).stdout.splitlines()

    assert any("segment 1 · 12 keep-alive (dmq-node) · 3 bytes · time 1000" in line for line in lines)


# Forms of input


@pytest.mark.parametrize(
    "content",
    [
        WRONG_COOKIE.hex().encode(),
        WRONG_COOKIE.hex(" ").upper().encode() + b"\r\n",
        b"# what the client said\n" + WRONG_COOKIE[:11].hex().encode() + b" # a comment\n" + WRONG_COOKIE[11:].hex().encode(),
    ],
)  # fmt: skip
def test_hex_is_recognised(content: bytes) -> None:
    assert run("-", content=content).stdout == run("-", content=WRONG_COOKIE).stdout


def test_the_form_can_be_forced() -> None:
    assert "UnknownMiniProtocol" in run("-", "--raw", content=WRONG_COOKIE.hex().encode()).stdout
    assert refusal(run("-", "--hex", content=WRONG_COOKIE)).text


@pytest.mark.parametrize("content", [b"", b"\n", b"# nothing but a comment\n", b"zz", b"00 01 0x"])
def test_what_is_no_capture_is_refused_as_usage(content: bytes) -> None:
    error = refusal(run("-", content=content))

    assert isinstance(error, ConfigError)
    assert exit_status(error) == 2


def test_half_a_byte_of_hex_is_refused() -> None:
    error = refusal(run("-", content=WRONG_COOKIE.hex().encode()[:-1]))

    assert "middle of a byte" in error.text
    assert exit_status(error) in (1, 2)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for source in (tmp_path / "missing", tmp_path):
        error = refusal(run(source))

        assert isinstance(error, StorageError)
        assert exit_status(error) == 3


# JSON


def test_json_gives_one_object_per_line_with_full_ids() -> None:
    message = a_message(b"one")
    result = run("-", "--json", content=a_local_connection("dmq-node").data)

    summary, *records = objects(result)
    assert (summary["kind"], summary["verdict"], summary["profile"]) == ("summary", "clean", "dmq-node")
    assert (summary["version"], summary["connection"], summary["segments"]) == (4097, "node-to-client", 12)
    submitted = next(record for record in records if record["name"] == "SubmitMessage")
    assert submitted["fields"]["message"]["message_id"] == message.message_id.hex()
    assert submitted["dmq_messages"][0]["is_valid"] is True
    assert (submitted["from"], submitted["state"]) == ("initiator", "Idle")
    rejected = next(record for record in records if record["name"] == "RejectMessage")
    assert rejected["fields"] == {"reason": {"text": "no such pool", "name": "Invalid"}}


def test_json_ends_with_the_violation() -> None:
    result = run("-", "--json", "--segments", content=WRONG_COOKIE)

    *_, last = objects(result)
    assert result.exit_code == 1
    assert (last["kind"], last["code"], last["rule"], last["offset"]) == (
        "violation",
        "PROTOCOL_STATE",
        "CookieMismatch",
        21,
    )
    assert [each["kind"] for each in objects(result)].count("segment") == 2


def test_json_tells_a_truncated_stream() -> None:
    *_, last = objects(run("-", "--json", content=WRONG_COOKIE[:-1]))

    assert (last["kind"], last["offset"]) == ("truncated", 11)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_bodies_are_never_printed(form: list[str]) -> None:
    result = run("-", *form, content=a_local_connection("dmq-node").data)

    assert a_message(b"one").body.hex() not in result.stdout
    assert "one..." not in result.stdout


def test_a_message_that_is_not_valid_is_shown_and_breaks_no_rule() -> None:
    payload = b"\x82\x00" + message_bytes(a_message(), body=bytes(100))

    result = run("-", content=segment(INITIATOR, 14, payload) + segment(RESPONDER, 14, b"\x81\x01"))

    assert result.exit_code == 0
    assert "1 NOT VALID" in result.stdout
    assert "MSG_BAD_ID" in result.stdout
    assert "KES_SIGNATURE" in result.stdout


def test_words_of_a_peer_cannot_act_on_the_terminal() -> None:
    submit = MiniProtocol.LOCAL_MESSAGE_SUBMISSION
    reason = local_submission.Other("\x1b[2J\x9b31m\u202e" + "long" * 100)
    capture = Capture().say(INITIATOR, submit, local_submission.SubmitMessage(a_message()))
    capture.say(RESPONDER, submit, local_submission.RejectMessage(reason))

    shown = run("-", content=capture.data).stdout

    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert all(len(line) < 200 for line in shown.splitlines())


def test_help_gives_an_example() -> None:
    result = run("--help")

    assert result.exit_code == 0
    assert "stagepost wire inspect capture.hex" in result.stdout
