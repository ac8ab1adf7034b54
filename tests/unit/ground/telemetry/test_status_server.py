"""Metrics, health and status over HTTP: what is told, to whom, and what becomes of those who ask badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import pytest

from stagepost.errors import ConfigError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.net.admission import AdmissionLimits
from stagepost.ground.telemetry.status_server import (
    CONNECTIONS_MAX,
    HEADER_BYTES_MAX,
    PAGE_ENTRIES_MAX,
    StatusServer,
    serve_metrics,
    serve_status,
)


class Source:
    """A node that tells what the test wants."""

    def __init__(self, **reasons: str | None) -> None:
        self.reasons = reasons

    def metrics(self) -> bytes:
        return b"stagepost_build_info 1.0\n"

    def readiness(self) -> Mapping[str, str | None]:
        return self.reasons

    def status(self) -> dict[str, Any]:
        return {"uptime_s": 3}

    def held_messages(self, after: int, limit: int) -> dict[str, Any]:
        return {"entries": [], "next": None, "asked": [after, limit]}


class BrokenSource(Source):
    def status(self) -> dict[str, Any]:
        raise ValueError("secret")


def with_server(
    test: Callable[[StatusServer], Awaitable[None]], source: Source | None = None, time_max_s: float = 60.0
) -> None:
    async def run() -> None:
        server = await serve_status(source or Source(), 0, request_time_max_s=time_max_s)
        try:
            await test(server)
        finally:
            await server.close()

    asyncio.run(run())


async def ask(server: StatusServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK_HOST, server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def get(
    source: Source | None, path: str, *, method: str = "GET", headers: str = ""
) -> tuple[int, str, bytes]:
    answers: list[bytes] = []

    async def test(server: StatusServer) -> None:
        answers.append(
            await ask(server, f"{method} {path} HTTP/1.1\r\nHost: localhost:1\r\n{headers}\r\n".encode())
        )

    with_server(test, source)
    head, _, body = answers[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    types = [line.partition(": ")[2] for line in lines if line.startswith("Content-Type")]
    return int(lines[0].split()[1]), types[0], body


def test_metrics_are_served_as_prometheus_reads_them() -> None:
    status, content_type, body = get(None, "/metrics")

    assert (status, body) == (200, b"stagepost_build_info 1.0\n")
    assert content_type.startswith("text/plain; version=0.0.4")


def test_a_server_of_metrics_alone_tells_nothing_else_and_asks_for_no_host_name() -> None:
    answers: list[bytes] = []

    async def test() -> None:
        server = await serve_metrics(Source(), LOOPBACK_HOST, 0)
        try:
            for path in ("/metrics", "/metrics?x=1", "/status", "/mempool", "/"):
                request = f"GET {path} HTTP/1.1\r\nHost: relay.example:12000\r\n\r\n"
                answers.append(await ask(server, request.encode()))
        finally:
            await server.close()

    asyncio.run(test())

    assert [answer.split(b" ")[1] for answer in answers] == [b"200", b"200", b"404", b"404", b"404"]
    assert answers[0].endswith(b"stagepost_build_info 1.0\n")


def test_an_address_for_metrics_that_is_taken_is_a_fault_with_advice() -> None:
    async def test() -> None:
        server = await serve_metrics(Source(), LOOPBACK_HOST, 0)
        try:
            with pytest.raises(ConfigError) as caught:
                await serve_metrics(Source(), LOOPBACK_HOST, server.port)
        finally:
            await server.close()
        assert "PrometheusSimple" in caught.value.advice

    asyncio.run(test())


def test_health_and_status_are_json() -> None:
    assert json.loads(get(None, "/healthz")[2]) == {"alive": True}
    status, content_type, body = get(None, "/status?pretty=1")
    assert (status, json.loads(body)) == (200, {"uptime_s": 3})
    assert content_type.startswith("application/json")


def test_ready_names_every_part() -> None:
    status, _, body = get(Source(store=None, pools=None), "/readyz")

    assert status == 200
    assert json.loads(body) == {"ready": True, "parts": {"store": {"ready": True}, "pools": {"ready": True}}}


def test_one_part_that_is_not_ready_makes_the_node_not_ready_with_its_reason() -> None:
    status, _, body = get(Source(store="disk full", pools=None), "/readyz")

    assert status == 503
    assert json.loads(body)["parts"] == {
        "store": {"ready": False, "reason": "disk full"},
        "pools": {"ready": True},
    }


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("", [0, PAGE_ENTRIES_MAX]),
        ("?after=7&limit=2", [7, 2]),
        (f"?limit={PAGE_ENTRIES_MAX}", [0, PAGE_ENTRIES_MAX]),
        (f"?limit={PAGE_ENTRIES_MAX + 1}", [0, PAGE_ENTRIES_MAX]),
    ],
)
def test_messages_held_come_in_bounded_pages(query: str, asked: list[int]) -> None:
    assert json.loads(get(None, f"/mempool{query}")[2])["asked"] == asked


@pytest.mark.parametrize("query", ["after=x", "after=-1", "limit=", "limit=²", "after=" + "9" * 30])
def test_a_page_that_is_no_number_is_refused(query: str) -> None:
    expected = 200 if query == "limit=" else 400

    assert get(None, f"/mempool?{quote(query, safe='=')}")[0] == expected


def test_head_has_no_body() -> None:
    assert get(None, "/metrics", method="HEAD")[2] == b""


@pytest.mark.parametrize(
    ("path", "method", "headers", "expected"),
    [
        ("/", "GET", "", 404),
        ("/metrics/../status", "GET", "", 404),
        ("/metrics", "POST", "", 405),
        ("/metrics", "GET", "Content-Length: 5\r\n", 413),
        ("/metrics", "GET", "Transfer-Encoding: chunked\r\n", 413),
        ("/metrics", "GET", "Host: evil.example\r\n", 421),
        ("/a b", "GET", "", 400),
    ],
)
def test_other_requests_are_refused_with_a_reason(
    path: str, method: str, headers: str, expected: int
) -> None:
    status, content_type, body = get(None, path, method=method, headers=headers)

    assert (status, content_type) == (expected, "application/problem+json")
    assert json.loads(body)["status"] == expected


def test_a_node_that_cannot_tell_says_so_without_details() -> None:
    status, _, body = get(BrokenSource(), "/status")

    assert status == 500
    assert b"secret" not in body


def a_request_of(size: int) -> bytes:
    start = b"GET /healthz HTTP/1.1\r\nX: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


def test_headers_at_the_limit_are_read_and_larger_ones_are_refused() -> None:
    async def test(server: StatusServer) -> None:
        assert b"200 OK" in await ask(server, a_request_of(HEADER_BYTES_MAX))
        assert b" 431 " in (await ask(server, a_request_of(HEADER_BYTES_MAX * 2)))[:20]

    with_server(test)


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\r\n\r\n", b"\0\xff\r\n\r\n", b"GET /metrics HTTP/2\r\n\r\n"]
)
def test_what_is_no_request_ends_the_connection(request_bytes: bytes) -> None:
    async def test(server: StatusServer) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK_HOST, server.port)
        writer.write(request_bytes)
        writer.write_eof()
        answer = await reader.read()
        assert answer == b"" or b" 400 " in answer
        writer.close()

    with_server(test)


def test_whoever_asks_too_slowly_is_cut_off() -> None:
    async def test(server: StatusServer) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK_HOST, server.port)
        writer.write(b"GET /metr")
        # The server ends the connection by itself; nothing more is sent.
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    with_server(test, time_max_s=0.05)


async def ended(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


def test_connections_that_send_no_head_keep_nobody_out() -> None:
    async def test(server: StatusServer) -> None:
        silent = [
            await asyncio.open_connection(LOOPBACK_HOST, server.port) for _ in range(3 * CONNECTIONS_MAX)
        ]
        assert b"200 OK" in await ask(server, a_request_of(100))
        assert server.connection_count <= CONNECTIONS_MAX
        await ended([writer for _, writer in silent])

    with_server(test)


def test_requests_beyond_the_limit_are_not_answered() -> None:
    """Clients that take no answer: each has a place behind the proof until its time is over."""

    class LargeSource(Source):
        def metrics(self) -> bytes:
            return bytes(2**24)

    async def test(server: StatusServer) -> None:
        silent = [await asyncio.open_connection(LOOPBACK_HOST, server.port) for _ in range(CONNECTIONS_MAX)]
        while server.connection_count < CONNECTIONS_MAX:
            await asyncio.sleep(0)
        for _, writer in silent:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while server.connection_count > AdmissionLimits(hard_max=CONNECTIONS_MAX).strangers_max:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(LOOPBACK_HOST, server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await ended([*(one for _, one in silent), writer])

    with_server(test, LargeSource())


def test_only_loopback_is_served_and_a_taken_port_is_a_clear_error() -> None:
    async def test(server: StatusServer) -> None:
        with pytest.raises(ConfigError, match="cannot serve metrics") as caught:
            await serve_status(Source(), server.port)
        assert caught.value.found == server.port

    with_server(test)
    assert LOOPBACK_HOST == "127.0.0.1"
