"""`stagepost serve` as its operator meets it: a process that says where it is, refuses what is unsafe, and sends what waits."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from stagepost.cli import main as command  # noqa: E402  # below what may be absent
from stagepost.delivery.status import DeliveryStatus  # noqa: E402
from stagepost.delivery.stores.reading import read_outbox  # noqa: E402
from stagepost.dmq.keys.pool_keys import make_keys  # noqa: E402
from stagepost.ground.files.audit import AUDIT_FILE  # noqa: E402
from stagepost.web.access.security import hash_of  # noqa: E402
from stagepost.web.access.settings import WebSettings  # noqa: E402
from tests.browser.served import an_outbox, served  # noqa: E402
from tests.worlds.delivery.outbox_records import a_dead, a_record, an_id, filled  # noqa: E402
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT  # noqa: E402
from tests.worlds.dmq.background_node import a_status, node_in_background, status_page  # noqa: E402

TOKEN = "a token of this run"
NOW_MS = 1_750_000_900_000


@contextmanager
def serving(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--data", str(data), "--port", "0", *options],
        cwd=data,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"https?://\S+", line)
        assert found is not None, line + process.stderr.read()
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def test_it_says_where_it_is_serves_and_ends_on_a_signal(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address), httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/healthz").json() == {"alive": True}
        assert "nothing yet" in client.get("/messages").text
        ready = client.get("/readyz").json()
        assert ready["parts"]["topic"] == {"ready": True, "note": "no receipts yet"}
        # A stream that is open must not keep it from ending.
        with client.stream("GET", "/api/v1/stream"):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_a_start_without_a_token_shows_a_link_that_may_act(tmp_path: Path) -> None:
    """A process of another user can read and not act; whoever has the link may. The link is for this run alone."""
    links = []
    for _ in range(2):
        with serving(tmp_path) as (process, address), httpx.Client(base_url=address, timeout=60) as client:
            assert process.stderr is not None
            links.append(process.stderr.readline().split()[-1])
            assert client.get("/queues").status_code == 200
            assert client.post("/api/v1/queues/flush").status_code == 403
            token = links[-1].partition("token=")[2]
            shown = {"Authorization": f"Bearer {token}"}
            assert client.post("/api/v1/queues/flush", headers=shown).status_code == 503  # there is no outbox
            assert client.get(links[-1]).status_code == 303
    assert links[0].partition("=")[2] != links[1].partition("=")[2]


@pytest.mark.parametrize("options", [("--host", "0.0.0.0"), ("--certificate", "c.pem")])
def test_what_others_could_reach_unguarded_is_not_started(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["serve", "--data", str(tmp_path), "--port", "0", *options]) == 2
    assert "CONFIG_INVALID" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command.run(["serve", "--data", str(tmp_path), "--port", str(port)]) == 2
    assert f"cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_new_token_is_printed_once_and_asked_for_from_then_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stagepost.web.access.security import read_token_hash

    assert command.run(["serve", "--new-token", "--data", str(tmp_path)]) == 0
    token = capsys.readouterr().out.strip()
    assert "serve --new-token" in (tmp_path / AUDIT_FILE).read_text()
    assert token not in (tmp_path / AUDIT_FILE).read_text()
    settings = WebSettings(tmp_path, token_hash=read_token_hash(tmp_path))
    with served(settings) as server:
        assert httpx.get(server.base + "/api/v1/queues").status_code == 401
        good = {"Authorization": f"Bearer {token}"}
        assert httpx.get(server.base + "/api/v1/queues", headers=good).status_code == 200


def test_over_tls_the_cookie_stays_on_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", chain],
        check=True, capture_output=True,
    )  # fmt: skip
    assert command.run(["serve", "--new-token", "--data", str(tmp_path)]) == 0
    token = capsys.readouterr().out.strip()
    trusted = ssl.create_default_context(cafile=str(chain))
    tls = ("--certificate", str(chain), "--private-key", str(key))
    with (
        serving(tmp_path, *tls) as (_, address),
        httpx.Client(base_url=address, verify=trusted, timeout=60) as client,
    ):
        assert address.startswith("https://")
        answer = client.post("/login", data={"token": token})
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "max-age" in answer.headers["strict-transport-security"]
        assert client.get("/api/v1/queues").status_code == 200


def form_word(page: str) -> str:
    return page.split('name="form_word" value="')[1].split('"')[0]


def test_what_waits_is_flushed_and_what_failed_replayed_from_the_page(tmp_path: Path) -> None:
    """Through a real node's socket, by the same command that people type."""
    an_outbox(tmp_path / "outbox", NOW_MS, waiting=3, dead=1)
    make_keys(tmp_path / "alice", start_kes_period=0, issue_number=0)
    path = tmp_path / "run" / "node.socket"
    status = json.dumps(a_status()).encode()
    settings = WebSettings(tmp_path, keys=tmp_path / "alice", token_hash=hash_of(TOKEN), open_reading=True)
    with (
        node_in_background(path) as node,
        status_page(tmp_path, lambda _: (200, status), socket=str(path)),
        served(settings) as server,
        httpx.Client(base_url=server.base, timeout=120) as client,
    ):
        assert "actions need the token" in client.get("/queues").text
        client.get("/login", params={"token": TOKEN})
        word = form_word(client.get("/queues").text)
        page = client.post("/queues/flush", data={"form_word": word})
        assert page.status_code == 200
        assert "exit status 0" in page.text, page.text
        assert read_outbox(tmp_path / "outbox").records == ()

        dead = read_outbox(tmp_path / "outbox").dead_letters[0].record.delivery_id.hex()
        answer: Any = client.post(
            f"/api/v1/queues/replay?delivery_id={dead}", headers={"X-Form-Word": form_word(page.text)}
        ).json()
        assert answer["exit_status"] == 0, answer
        assert [event["status"] for event in answer["events"]] == [DeliveryStatus.SENT.value]
        content = read_outbox(tmp_path / "outbox")
        assert (content.records, content.dead_letters) == ((), ())
        assert len(node.messages) == 4


def test_each_copy_of_a_message_that_failed_twice_is_replayed_from_the_page(tmp_path: Path) -> None:
    copies = [a_record(number, delivery_id=an_id(1), payload=b"twice") for number in (1, 2)]
    copies = [msgspec.structs.replace(copy, ackers=(), required=0) for copy in copies]
    filled(tmp_path / "outbox", copies, [a_dead(copy) for copy in copies])
    make_keys(tmp_path / "alice", start_kes_period=0, issue_number=0)
    path = tmp_path / "run" / "node.socket"
    status = json.dumps(a_status()).encode()
    with (
        node_in_background(path) as node,
        status_page(tmp_path, lambda _: (200, status), socket=str(path)),
        served(WebSettings(tmp_path, keys=tmp_path / "alice", token_hash=hash_of(TOKEN))) as server,
        httpx.Client(base_url=server.base, timeout=120) as client,
    ):
        client.get("/login", params={"token": TOKEN})
        page = client.get("/queues").text
        names = re.findall(r'name="delivery_id" value="([^"]+)"', page)
        assert names == [f"{an_id(1).hex()}@{place}" for place in (2, 1)]
        for left, name in ((1, names[1]), (0, names[0])):
            answer = client.post("/queues/replay", data={"form_word": form_word(page), "delivery_id": name})
            assert "exit status 0" in answer.text, answer.text
            assert len(read_outbox(tmp_path / "outbox").dead_letters) == left
        assert len(node.messages) == 2
