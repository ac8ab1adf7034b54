"""`stagepost message` and the command line's way with errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.cli.main import run
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.message import DmqMessage

BODY = b"x" * 120


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    folder = tmp_path / "pool"
    make_keys(folder, start_kes_period=100, issue_number=3)
    return folder


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note.txt"
    path.write_bytes(BODY)
    return path


@pytest.fixture
def signed(pool: Path, note: Path, tmp_path: Path) -> Path:
    out = tmp_path / "note.cbor"
    assert run(["message", "make", str(note), "--keys", str(pool), "--out", str(out)]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, list[str]]:
    """The exit status and what was written to stderr, which must be no traceback."""
    capsys.readouterr()
    status = run(arguments)
    written = capsys.readouterr()
    assert "Traceback" not in written.err + written.out
    return status, written.err.splitlines()


def test_made_message_carries_the_file_and_the_key_of_the_pool(signed: Path) -> None:
    message = DmqMessage.decode(signed.read_bytes())

    assert message.body == BODY
    assert message.kes_period == 100
    assert message.operational_certificate.issue_number == 3


def test_made_message_verifies(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["message", "verify", str(signed)]) == 0

    assert "valid" in capsys.readouterr().out


def test_message_may_be_given_as_hex(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "note.hex"
    text.write_text(signed.read_bytes().hex() + "\n")
    capsys.readouterr()

    assert run(["message", "inspect", str(text), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["body_bytes"] == len(BODY)


def test_later_period_is_signed_for_without_touching_the_key_file(
    pool: Path, note: Path, tmp_path: Path
) -> None:
    before = (pool / "kes.skey").read_bytes()
    out = tmp_path / "later.cbor"

    arguments = ["message", "make", str(note), "--keys", str(pool), "--kes-period", "105", "--out", str(out)]
    assert run(arguments) == 0

    assert DmqMessage.decode(out.read_bytes()).kes_evolution == 5
    assert (pool / "kes.skey").read_bytes() == before
    assert run(["message", "verify", str(out)]) == 0


def test_evolved_key_signs_only_where_it_is_named(
    pool: Path, note: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evolved, out = tmp_path / "evolved" / "5", tmp_path / "later.cbor"
    assert run(["keys", "evolve", str(pool / "kes.skey"), "--to", "5", "--out", str(evolved)]) == 0
    make = ["message", "make", str(note), "--keys", str(pool), "--out", str(out)]

    assert run([*make, "--evolved-key", str(evolved)]) == 0
    assert DmqMessage.decode(out.read_bytes()).kes_evolution == 5
    assert run(["message", "verify", str(out)]) == 0

    (pool / "kes.skey").write_bytes(evolved.read_bytes())
    status, lines = refused(capsys, make)
    assert (status, lines[-1]) == (2, "CONFIG_INVALID")
    assert "was evolved to period 5" in lines[0]
    assert "--evolved-key" in lines[1]


def test_short_body_is_refused_unless_padded(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"hello")

    status, lines = refused(capsys, ["message", "make", str(short), "--keys", str(pool)])
    assert (status, lines[-1]) == (1, "MSG_BODY_SIZE")
    assert "5 bytes" in lines[0]
    assert run(["message", "make", str(short), "--keys", str(pool), "--pad"]) == 0


def test_changed_message_is_not_valid_and_says_which_check_failed(
    signed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = bytearray(signed.read_bytes())
    raw[60] ^= 1
    signed.write_bytes(raw)
    capsys.readouterr()

    assert run(["message", "verify", str(signed), "--json"]) == 1

    report = json.loads(capsys.readouterr().out)
    assert report["is_valid"] is False
    assert report["faults"]["id"].startswith("MSG_BAD_ID")
    assert report["faults"]["signature"].startswith("KES_SIGNATURE")
    assert report["faults"]["certificate"] is None


@pytest.mark.parametrize(("offset_s", "expected"), [(0, 0), (1, 1)])
def test_expiry_is_judged_at_the_second(signed: Path, offset_s: int, expected: int) -> None:
    expires_at = DmqMessage.decode(signed.read_bytes()).expires_at

    assert run(["message", "verify", str(signed), "--at", str(expires_at + offset_s)]) == expected


def test_missing_file_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = refused(capsys, ["message", "inspect", str(tmp_path / "nothing.cbor")])

    assert (status, lines[-1]) == (3, "STORAGE_UNAVAILABLE")
    assert "nothing.cbor" in lines[0]


def test_truncated_hex_is_named(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "cut.hex"
    text.write_text(signed.read_bytes().hex()[:-1])

    status, lines = refused(capsys, ["message", "inspect", str(text)])

    assert (status, lines[-1]) == (1, "CBOR_TRUNCATED")
    assert "middle of a byte" in lines[0]


def test_truncated_message_is_named(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed.write_bytes(signed.read_bytes()[:-1])

    status, lines = refused(capsys, ["message", "inspect", str(signed)])

    assert (status, lines[-1]) == (1, "CBOR_TRUNCATED")


def test_compact_sum_signature_is_named(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = DmqMessage.decode(signed.read_bytes())
    compact = b"\x59\x01\x20" + message.kes_signature[:288]
    signed.write_bytes(message.raw.replace(b"\x59\x01\xc0" + message.kes_signature, compact))

    status, lines = refused(capsys, ["message", "verify", str(signed)])

    assert (status, lines[-1]) == (1, "CBOR_INVALID")
    assert "288" in lines[0]
    assert "CompactSum" in lines[1]


def test_open_key_file_is_refused(pool: Path, note: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pool / "kes.skey").chmod(0o604)

    status, lines = refused(capsys, ["message", "make", str(note), "--keys", str(pool)])

    assert (status, lines[-1]) == (2, "KEY_PERMISSIONS")
    assert "chmod 600" in lines[1]


def test_wrong_envelope_type_is_refused(pool: Path, note: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pool / "kes.skey").write_bytes((pool / "cold.skey").read_bytes())

    status, lines = refused(capsys, ["message", "make", str(note), "--keys", str(pool)])

    assert (status, lines[-1]) == (2, "CONFIG_INVALID")
    assert "StakePoolSigningKey_ed25519" in lines[0]


def test_key_of_a_wrong_length_is_refused(pool: Path, note: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envelope = json.loads((pool / "kes.skey").read_text())
    envelope["cborHex"] = "59025f" + envelope["cborHex"][6:-2]
    (pool / "kes.skey").write_text(json.dumps(envelope))

    status, lines = refused(capsys, ["message", "make", str(note), "--keys", str(pool)])

    assert (status, lines[-1]) == (2, "CONFIG_INVALID")
    assert "607" in lines[0]


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = refused(capsys, ["message", "make", "--no-such-option"])

    assert status == 2


def test_traceback_is_shown_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-v", "message", "inspect", str(tmp_path / "nothing")]) == 3

    assert "Traceback" in capsys.readouterr().err
