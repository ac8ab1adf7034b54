"""Commands with wrong input: a file, folder, socket or value that is not what a command needs. Each error says what is wrong, where,
and what to do; none is a traceback.
"""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import pytest

from stagepost.cli import main
from stagepost.dmq.keys.pool_keys import make_keys

CASES = (
    # command line, exit code, what the error says
    ("demo --messages abc", 2, "'abc' is not a valid integer."),
    ("devnet --rate x", 2, "'x' is not a valid number."),
    ("keys show missing", 3, "could not read missing"),
    ("keys show text.txt", 2, "text.txt is not a text envelope"),
    ("message inspect text.txt", 1, "text.txt is not a signed DMQ message"),
    ("message verify garbage.bin", 1, "garbage.bin is not a signed DMQ message"),
    ("message send garbage.bin", 1, "garbage.bin is not a signed DMQ message"),
    ("message make text.txt --keys my-pool", 1, "`stagepost message make --pad`"),
    ("message make folder --keys my-pool", 3, "could not read folder: is a directory"),
    ("send hi --keys missing --socket dead.sock", 3, "could not read missing/kes.skey"),
    ("send hi --keys my-pool --socket dead.sock", 1, "--start-kes-period"),
    ("send hi --keys my-pool --socket dead.sock --network-magic 42", 3, "nobody is listening there"),
    ("send hi --keys my-pool --socket none.sock --network-magic 42", 3, "there is no such socket"),
    (
        "send hi --keys my-pool --socket dead.sock --network-magic 42 --tier queued --outbox text.txt",
        2,
        "the folder text.txt for delivery events cannot be used: file exists",
    ),
    ("trace 12345678 --data folder", 1, "there are no topics of messages in folder"),
    ("trace order-17 --data folder", 1, "give the data folder of a node with --data"),
    ("trace 12345678 --data missing", 3, "there is no data folder missing"),
    ("prove 12345678 --data folder", 3, "folder holds no topic of messages"),
    ("prove order-17 --data missing", 3, "there is no data folder missing"),
    ("topic ls --data missing", 3, "there is no data folder missing"),
    ("topic check some --data text.txt", 3, "there is no data folder text.txt"),
    ("topic dump some --data missing --out x", 3, "there is no data folder missing"),
    ("topic serve --data missing", 3, "there is no data folder missing"),
    ("peers --data text.txt", 3, "give the data folder of a node with --data"),
    ("export messages --tables folder --out x.csv --outcome bad", 2, "'bad' is not a known outcome"),
    ("backup --data folder --out b", 2, "inbox.sqlite (inbox)"),
    ("serve --data folder --keys missing", 3, "there is no folder missing"),
    ("serve --data folder --certificate text.txt --private-key text.txt --port 0", 2, "the key text.txt"),
    ("serve --data folder --certificate none --private-key none --port 0", 2, "the certificate none"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("wrong")
    (found / "text.txt").write_text("a text that is nothing else\n")
    (found / "garbage.bin").write_bytes(bytes(range(200, 256)) * 9)
    (found / "folder").mkdir()
    make_keys(found / "my-pool", start_kes_period=0, issue_number=0)
    return found


@pytest.mark.parametrize(("line", "status", "words"), CASES, ids=[line for line, _, _ in CASES])
def test_a_wrong_input_is_named_with_what_to_do(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    if not Path("dead.sock").exists():
        with socket.socket(socket.AF_UNIX) as dead:  # of a process that has gone
            dead.bind("dead.sock")
    assert main.run(shlex.split(line)) == status
    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_what_the_system_refuses_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "some/file")

    monkeypatch.setattr(main.stagepost, "main", refuse)
    assert main.run(["check"]) == 3
    assert "some/file cannot be used: permission denied" in capsys.readouterr().err
    assert main.run(["check", "--json"]) == 3
    assert '"error": "some/file cannot be used: permission denied"' in capsys.readouterr().err
