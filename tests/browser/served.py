"""The dashboard as a server of its own thread, on a port that the system chooses; and what else its pages look at."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from stagepost.web.access.settings import WebSettings
from stagepost.web.app import create_app
from tests.worlds.delivery.outbox_records import a_dead, a_record, filled
from tests.worlds.dmq.background_node import a_peer, a_status, status_page

START_TIMEOUT_S = 60.0


class Served:
    """`base` is its address. `restart` keeps the port, as a service that was started anew has the same one."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self._port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen()  # so that whoever comes early waits
        self._port = listener.getsockname()[1]
        self.app = create_app(self.settings)
        config = uvicorn.Config(
            self.app, log_level="error", access_log=False, http="h11", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        server, failures = self._server, []
        self.app.state.sources.pulse.ends_when = lambda: server.should_exit

        def run() -> None:
            try:
                server.run(sockets=[listener])
            except BaseException as error:
                failures.append(error)

        self._thread = threading.Thread(target=run, name="dashboard")
        self._thread.start()
        sources = self.app.state.sources
        is_up = sources.tail.has_looked.wait(START_TIMEOUT_S)
        assert is_up, f"the dashboard did not start: {failures}"

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(START_TIMEOUT_S)
            self._server = self._thread = None

    def restart(self) -> None:
        self.stop()
        self.start()


@contextmanager
def served(settings: WebSettings) -> Iterator[Served]:
    server = Served(settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def an_outbox(folder: Path, now_ms: int, waiting: int = 12, dead: int = 3) -> None:
    """Messages of several ages, some of which have failed."""
    replace = msgspec.structs.replace
    records = [
        replace(
            a_record(number),
            ackers=(),
            required=0,
            created_ms=now_ms - 60_000 * (waiting + dead - number),
            topic="orders",
        )
        for number in range(1, waiting + dead + 1)
    ]
    letters = [
        replace(
            a_dead(record, "ErrAckTimeout"),
            text="no critical peer answered in 5 s",
            failed_ms=now_ms - 42_000,
        )
        for record in records[:dead]
    ]
    filled(folder, records, letters)


@contextmanager
def a_node(data: Path, now_ms: int, **changes: Any) -> Iterator[None]:
    """A status page as a DMQ node serves it, with three peers."""
    peers = [
        a_peer(),
        a_peer(
            address="198.51.100.4:3141",
            direction="inbound",
            round_trip_ms=84.0,
            first_announcer=17,
            score=0.4,
        ),
        a_peer(
            address="[2001:db8::1]:3141",
            direction="inbound",
            state="warm",
            version=1,
            profile="seed",
            flavour="cip",
            round_trip_ms=None,
            last_violation="PROTOCOL_WINDOW: acknowledged 5 of 3 ids",
        ),
    ]
    mempool = {
        "messages": 1_204, "bytes": 2_911_040, "messages_max": 50_000, "bytes_max": 160_000_000, "oldest_ms": now_ms - 310_000,
    }  # fmt: skip
    facts = {"mempool": mempool, "accepted": 48_210, "kes_periods_remaining": 3, **changes}
    status = json.dumps(a_status(peers=peers, **facts)).encode()
    with status_page(data, lambda _: (200, status)):
        yield
