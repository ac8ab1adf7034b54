"""`stagepost submit` and its former forms under `send`: options that go together, and reports of what went wrong."""

from __future__ import annotations

import json
import shlex
import time
from math import inf
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from rigs.remp_world import MESSAGE, seed_of
from stagepost.chain.contracts import ContractKind
from stagepost.chain.message_values import NEVER
from stagepost.chain.messages import CanonicalMessage
from stagepost.cli import main as command
from stagepost.cli.options import http as http_options
from stagepost.cli.submit.external import ProgressReport, SubmitRequest, account_named, sum_message
from stagepost.errors import ConfigError, ErrorCode
from stagepost.full_node.local_client import StatusUpdate
from stagepost.ground.files.running_nodes import FullNodeFacts
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import StatusRecord
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.remp.verdict.verdict import Conclusion, Verdict

ROW = Verdict("sent", 1, None, None, None, None, None, None, "ab" * 32, 7, (), (), (1, 5), 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--wait", "final", "--keys", "k"), "is not signed"),
        (("x", "--wait", "final", "--tier", "queued"), "--tier cannot be used with external messages"),
        (("x", "--wait", "optimistic", "--topic", "t"), "--topic cannot be used with external messages"),
        (("x", "--wait", "final", "--raw"), "--raw cannot be used with external messages"),
        (("--wait", "final"), "give either a message"),
        (("x", "--to", "alice", "--number", "5"), "give either a message"),
        (("--to", "alice"), "--to and --number need each other"),
        (("--number", "5"), "--to and --number need each other"),
        (("--to", "alice", "--number", "1"), "--number is 2 to 10000"),
        (("--to", "alice", "--number", "10001"), "--number is 2 to 10000"),
        (("--to", "alice", "--number", "5", "--wait", "acked"), "not acknowledged"),
        ((), "Missing argument"),
        (("x",), "Missing option '--keys'"),
    ],
)
def test_options_that_do_not_go_together_are_told_before_anything_is_done(
    arguments: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.run(["send", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--keys", "k"), "No such option"),
        (("x", "--topic", "t"), "No such option"),
        (("x", "--wait", "acked"), "'acked' is not one of 'queued', 'optimistic', 'accepted', 'final'"),
        ((), "give either a message"),
        (("--wait", "final"), "give either a message"),
        (("x", "--to", "alice", "--number", "5"), "give either a message"),
        (("--to", "alice"), "--to and --number need each other"),
        (("--number", "5"), "--to and --number need each other"),
        (("--to", "alice", "--number", "1"), "--number is 2 to 10000"),
        (("--to", "alice", "--number", "10001"), "--number is 2 to 10000"),
    ],
)
def test_submit_refuses_what_does_not_go_together(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["submit", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("former", "present"),
    [
        (("some words",), "'some words'"),
        (("some words", "--wait", "final"), "'some words' --wait final"),
        (("some words", "--wait", "sent", "--json"), "'some words' --json"),
        (("some words", "--wait=sent", "--timeout", "5s"), "'some words' --timeout 5s"),
        (("--to", "alice", "--number", "100", "--wait", "queued"), "--to alice --number 100 --wait queued"),
    ],
)
def test_a_former_form_says_the_present_one_in_one_line_and_does_the_same(
    former: tuple[str, ...], present: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FullNodeFacts(1, str(tmp_path / "gone.socket"), 5, "sets").write(tmp_path)
    data = ("--data", str(tmp_path))

    former_status = command.run(["send", *former, *data])
    said = capsys.readouterr()
    line, _, rest = said.err.partition("\n")
    assert line == f"this form is now: stagepost submit {present} --data {tmp_path}"

    # The line can be typed as it stands.
    assert command.run(shlex.split(line.partition(": stagepost ")[2])) == former_status == 3
    again = capsys.readouterr()
    assert (again.out, again.err) == (said.out, rest)

    assert command.run(["-q", "send", *former, *data]) == 3
    assert "this form is now" not in capsys.readouterr().err


def test_what_is_repeated_of_a_former_form_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FullNodeFacts(1, str(tmp_path / "gone.socket"), 5, "sets").write(tmp_path)
    assert command.run(["send", "two\nlines \x1b[2J", "--data", str(tmp_path)]) == 3
    line, *_ = capsys.readouterr().err.splitlines()
    assert line == f"this form is now: stagepost submit 'two·lines ·[2J' --data {tmp_path}"


def test_submit_without_a_full_node_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "message.bin").write_bytes(b"bytes")
    assert command.run(["submit", str(tmp_path / "message.bin"), "--data", str(tmp_path)]) == 3
    assert "no full node runs in" in capsys.readouterr().err
    assert command.run(["submit", "message.bn", "--data", str(tmp_path)]) == 3
    assert "… | stagepost submit -" in capsys.readouterr().err


def test_without_keys_the_full_node_of_the_folder_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FullNodeFacts(1, str(tmp_path / "gone.socket"), 5, "sets").write(tmp_path)
    assert command.run(["send", "some words", "--data", str(tmp_path)]) == 3
    assert "there is no such socket" in capsys.readouterr().err
    assert command.run(["send", "some words", "--data", str(tmp_path), "--raw"]) == 2
    assert "--raw cannot be used with external messages" in capsys.readouterr().err
    assert command.run(["send", str(tmp_path / "no.bin"), "--data", str(tmp_path)]) == 3
    assert "there is no file" in capsys.readouterr().err


def test_a_file_larger_than_any_message_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FullNodeFacts(1, str(tmp_path / "gone.socket"), 5, "sets").write(tmp_path)
    (tmp_path / "big").write_bytes(bytes(65_536))
    for name in ("send", "submit"):
        assert command.run([name, str(tmp_path / "big"), "--data", str(tmp_path), "--wait", "final"]) == 2
        assert "more than 65535 bytes" in capsys.readouterr().err


def test_accounts_are_named_by_address_or_by_any_word() -> None:
    assert account_named("ab" * 32) == b"\xab" * 32
    assert account_named("alice") != account_named("bob")
    for name in ("alice", "z" * 64):
        assert account_named(name)[31] == ContractKind.SUM_OF_PRIMES
    context = click.Context(click.Command("x"))
    message = CanonicalMessage.decode(sum_message("alice", 100, 60.0, context))
    assert message.account == account_named("alice")


def test_a_message_expires_after_the_given_time_or_never() -> None:
    context, before_s = click.Context(click.Command("x")), time.time()
    message = CanonicalMessage.decode(sum_message("alice", 100, 60.0, context))
    assert before_s + 60 <= message.expires_at_s <= time.time() + 61
    assert CanonicalMessage.decode(sum_message("alice", 100, inf, context)).expires_at_s == NEVER


def test_an_expiry_is_given_for_messages_that_the_command_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "message").write_bytes(b"x")
    assert (
        command.run(["submit", str(tmp_path / "message"), "--expires", "60s", "--data", str(tmp_path)]) == 2
    )
    assert "--expires needs --to and --number" in capsys.readouterr().err
    assert command.run(["submit", "--to", "alice", "--number", "5", "--expires", "soon"]) == 2
    assert "soon" in capsys.readouterr().err
    command.run(["submit", "--to", "a", "--number", "5", "--expires", "never", "--data", str(tmp_path)])
    assert "never that it will not be executed" in capsys.readouterr().err


def a_telling(*, as_json: bool = False) -> ProgressReport:
    report = ProgressReport(SubmitRequest(Path("a folder"), b"", Awaited.FINAL, 30.0, as_json))
    report.taken(MESSAGE, is_new=True)
    return report


def an_end(conclusion: Conclusion | None, **more: Any) -> MessageVerdict:
    row = None if conclusion is None else msgspec.structs.replace(ROW, verdict=conclusion.value, **more)
    return MessageVerdict(MESSAGE.hex(), Awaited.FINAL, row, 9)


def rejection(error: str) -> StatusRecord:
    receipt = Receipt(MESSAGE, Rejected(Level.COLLATOR, error), 5, b"").sign(seed_of(1))
    return StatusRecord(receipt.to_json().encode(), MESSAGE.hex())


def test_a_rejection_is_told_with_the_reasons_and_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = a_telling()
    report.progress(StatusUpdate((rejection("no funds\x1b[2J"), rejection("no funds\x1b[2J")), None, 1))
    assert report.end(an_end(Conclusion.REJECTED, proof="never", proof_block=7)) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("rejected ")
    assert said[0].endswith(": proved never executed, in master block 7: no funds·[2J")
    assert said[-1] == "PROTOCOL_REQUEST"


@pytest.mark.parametrize(
    ("conclusion", "words"),
    [
        (Conclusion.FINALIZED, "not known yet; claimed so far: finalized; 2 of 7 silent (V2, V6)"),
        (Conclusion.EXPIRED, "not known yet; claimed so far: expired; 2 of 7 silent (V2, V6)"),
        (Conclusion.REJECTED, "not known yet; claimed so far: rejected; 2 of 7 silent (V2, V6)"),
        (Conclusion.QUEUED, "not known yet; claimed so far: queued at 0 of 7; 2 of 7 silent (V2, V6)"),
        (None, "not known yet; claimed so far: no validator has said anything"),
    ],
)
def test_without_a_proof_the_end_is_not_known_yet_whatever_is_claimed(
    conclusion: Conclusion | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert a_telling().end(an_end(conclusion)) == 4
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(words)
    assert said[1] == (
        "  do not send it again under another id; ask later with "
        f"`stagepost trace {MESSAGE.hex()} --data 'a folder'`"
    )
    assert said[-1] == "PROTOCOL_TIMEOUT"


@pytest.mark.parametrize(
    ("conclusion", "proof", "status", "begins", "code"),
    [
        (Conclusion.FINALIZED, {"proof": "executed"}, 0, "proved ", None),
        (Conclusion.EXPIRED, {"proof": "never"}, 1, "expired ", "MSG_EXPIRED"),
        (
            Conclusion.EXECUTED_AS,
            {"proof": "executed_as", "executed_as": "cd" * 32},
            1,
            "executed ",
            "MSG_DUPLICATE",
        ),
    ],
)
def test_a_proof_decides_the_exit_code_and_names_the_end(
    conclusion: Conclusion,
    proof: dict[str, str],
    status: int,
    begins: str,
    code: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = a_telling()
    capsys.readouterr()
    assert report.end(an_end(conclusion, proof_block=7, **proof)) == status
    shown = capsys.readouterr()
    said = (shown.err or shown.out).splitlines()
    assert said[0].startswith(begins)
    assert "in master block 7" in said[0]
    assert proof.get("executed_as", "") in said[0]
    assert code is None or said[-1] == code


def test_each_stage_is_told_once_in_order_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    report = a_telling(as_json=True)
    capsys.readouterr()
    first = msgspec.structs.replace(ROW, sent_ms=300, queued_ms=100)
    report.progress(StatusUpdate((), first, 1))
    report.progress(StatusUpdate((), msgspec.structs.replace(first, included_ms=200), 1))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["stage"] for one in said] == ["queued", "sent", "included"]
    assert {one["message_id"] for one in said} == {MESSAGE.hex()}


# --http


@pytest.mark.parametrize(
    "wrong", ["8140", "localhost", ":8140", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"]
)
def test_an_http_address_is_host_and_port(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["devnet", "--http", wrong]) == 2
    assert "is not a valid address" in capsys.readouterr().err


def test_an_http_address_that_others_reach_is_refused_without_token_and_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["devnet", "--data", str(tmp_path / "d"), "--http", "0.0.0.0:0"]) == 2
    err = capsys.readouterr().err
    assert "0.0.0.0 can be reached by other machines, and a token and a TLS certificate are missing" in err
    assert err.splitlines()[-1] == "CONFIG_INVALID"
    assert not (tmp_path / "d").exists(), "nothing was started"


def test_addresses_are_passed_on_to_another_process_as_they_were_given(tmp_path: Path) -> None:
    settings = http_options.http_settings(("::1", 0), tmp_path / "c", tmp_path / "k", tmp_path)
    flags = ("--http", "[::1]:0", "--http-certificate", str(tmp_path / "c"))
    assert http_options.http_flags(settings) == (*flags, "--http-private-key", str(tmp_path / "k"))
    assert http_options.http_flags(None) == ()


def test_a_token_of_the_data_folder_is_asked_for_at_a_loopback_address_too(tmp_path: Path) -> None:
    from stagepost.web.access.security import is_token, write_token

    token = write_token(tmp_path)
    settings = http_options.http_settings(("127.0.0.1", 0), None, None, tmp_path)
    assert settings is not None
    assert settings.token_hash is not None
    assert is_token(token, settings.token_hash)
    assert settings.reads_need_token


def test_without_the_extra_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match="--http needs fastapi and uvicorn, which are not installed"
    ) as caught:
        http_options.http_settings(("127.0.0.1", 0), None, None, tmp_path)
    assert "stagepost[web]" in caught.value.advice
    assert caught.value.code is ErrorCode.CONFIG_INVALID
