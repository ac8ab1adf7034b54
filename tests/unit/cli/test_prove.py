"""`stagepost prove --address`: what a full node answers is kept only if it is a proof, and of the message that was asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagepost.chain.proofs.proof_form import EndKind
from stagepost.cli import main as command
from stagepost.cli.prove import prove
from stagepost.errors import ErrorCode, StagepostError
from tests.unit.chain.proofs.test_message_proofs import three_ends


@contextmanager
def answering(status: HTTPStatus, content: bytes) -> Iterator[str]:
    """Serve one answer to every question; yield the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Asked:
    """What a full node could answer, and what the command makes of it."""

    def __init__(self, out: Path) -> None:
        self._out = out
        chain, messages = three_ends()
        self.identifier = messages[EndKind.EXECUTED].external.message_id.hex()
        self.proof = chain.file(messages[EndKind.EXECUTED])
        self.other = chain.file(messages[EndKind.NEVER])

    def exit_code(self, content: bytes, status: HTTPStatus = HTTPStatus.OK) -> int:
        with answering(status, content) as address:
            arguments = [self.identifier, "--address", address, "--out", str(self._out)]
            code: int = (
                CliRunner()
                .invoke(prove, arguments, standalone_mode=False, catch_exceptions=False)
                .return_value
            )
        return code


def test_the_proof_of_the_message_is_written_as_it_came(tmp_path: Path) -> None:
    asked = Asked(tmp_path / "proof.json")

    assert asked.exit_code(b"", HTTPStatus.NOT_FOUND) == 4
    assert not (tmp_path / "proof.json").exists()
    assert asked.exit_code(asked.proof) == 0
    assert (tmp_path / "proof.json").read_bytes() == asked.proof


@pytest.mark.parametrize("kind", ["page", "nothing", "cut", "claim", "other"])
def test_an_answer_that_is_not_the_proof_is_refused_and_not_written(kind: str, tmp_path: Path) -> None:
    asked = Asked(tmp_path / "proof.json")
    answers = {
        "page": b"<!doctype html><title>Finalized</title>",
        "nothing": b"",
        "cut": asked.proof[:-1],
        "claim": b'{"key":"%s","kind":"Finalized"}' % asked.identifier.encode(),
        "other": asked.other,
    }

    with pytest.raises(StagepostError) as refused:
        asked.exit_code(answers[kind])

    assert refused.value.code is ErrorCode.PROOF_INVALID
    assert not (tmp_path / "proof.json").exists()


@pytest.mark.parametrize("line", [["prove"], ["trace"], ["telemetry", "--once"]])
def test_a_folder_without_records_is_not_a_message_without_an_end(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody could look up is not "not known yet", and the usual folder need not be named."""
    monkeypatch.chdir(tmp_path)
    name = [] if line[0] == "telemetry" else ["ab" * 32]
    assert command.run([line[0], *name, *line[1:]]) == 3
    assert "there is no data folder stagepost-data" in capsys.readouterr().err
    (tmp_path / "stagepost-data").mkdir()
    assert command.run([line[0], *name, *line[1:]]) != 0
    assert re.search("holds no topic|there are no topics", capsys.readouterr().err)
