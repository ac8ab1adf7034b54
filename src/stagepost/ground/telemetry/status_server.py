"""Metrics, health and status of a node over HTTP, for this machine alone.

    /metrics    what Prometheus reads
    /healthz    200 while the process is alive
    /readyz     each part with its reason; 503 if one is not ready
    /status     what the node tells about itself, as JSON
    /mempool    ?after=INDEX&limit=N, the messages held: ids and sizes, page by page

A second server may serve /metrics alone, at an address that other machines reach.

A server takes one request per connection, GET and HEAD only, without a body. It limits size and time, and cuts off slow clients.
A connection without a whole head has a place before the proof: those that send nothing keep nobody out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from stagepost.errors import ConfigError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.loop.clock import loop_time
from stagepost.ground.net.admission import (
    LOOPBACK_HOSTS,
    PROOF_WITHIN_S,
    Admission,
    AdmissionLimits,
    ConnectionPlace,
    Refusal,
)
from stagepost.ground.telemetry.metrics import CONTENT_TYPE

HEADER_BYTES_MAX = 16_384
REQUEST_TIME_MAX_S = 15.0
CONNECTIONS_MAX = 32
"""Connections with a whole head; and as many, in places of their own, without one."""
PER_PREFIX_MAX = 8
PAGE_ENTRIES_MAX = 1_000

_METHODS = ("GET", "HEAD")
_HOST_NAMES = frozenset({LOOPBACK_HOST, "localhost"})
_JSON = "application/json; charset=utf-8"
_END_OF_HEADERS = b"\r\n\r\n"

log = logging.getLogger(__name__)


Page = msgspec.Struct | Mapping[str, Any]
"""Page of `stagepost.ground.telemetry.status`, or values that JSON knows."""


class StatusSource(Protocol):
    """Part of a node that knows its status; every call is quick, for it happens on the node's own loop."""

    def metrics(self) -> bytes: ...

    def readiness(self) -> Mapping[str, str | None]:
        """Return the parts of the node: None for a part that is ready, otherwise the reason."""
        ...

    def status(self) -> Page: ...

    def held_messages(self, after: int, limit: int) -> Page:
        """Return at most `limit` entries with an index above `after`."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    content_type: str
    body: bytes


class StatusServer:
    """HTTP server made by `serve_status` or `serve_metrics`. `port` is the port on which it listens."""

    def __init__(
        self, source: StatusSource, request_time_max_s: float, *, with_metrics_alone: bool = False
    ) -> None:
        self.port = 0
        self._source = source
        self._with_metrics_alone = with_metrics_alone
        self._request_time_max_s = request_time_max_s
        self._server: asyncio.Server | None = None
        limits = AdmissionLimits(
            soft_max=2 * CONNECTIONS_MAX,
            hard_max=CONNECTIONS_MAX,
            per_source_max=PER_PREFIX_MAX,
            per_prefix_max=PER_PREFIX_MAX,
            unproved_max=CONNECTIONS_MAX,
            proof_within_s=min(PROOF_WITHIN_S, request_time_max_s),
        )
        self._admission = Admission(loop_time, limits, exempt=LOOPBACK_HOSTS)
        self._open: set[asyncio.Task[None]] = set()

    @property
    def connection_count(self) -> int:
        return len(self._open)

    async def start(self, host: str, port: int, advice: str) -> None:
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=HEADER_BYTES_MAX)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(
                f"cannot serve metrics at {host}:{port}: {reason}", advice=advice, found=port
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        place = self._admission.enter(str(peer[0]) if peer else "", lambda _: writer.transport.abort())
        if isinstance(place, Refusal):
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            async with asyncio.timeout(self._request_time_max_s):
                await self._serve(reader, writer, place)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.CancelledError):
            # The client was too slow or is gone, or the node is stopping: nobody waits for an answer.
            pass
        finally:
            place.leave()
            self._open.discard(task)
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: ConnectionPlace
    ) -> None:
        try:
            async with asyncio.timeout(self._admission.limits.proof_within_s):
                head = await reader.readuntil(_END_OF_HEADERS)
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            text = f"the headers of a request have at most {HEADER_BYTES_MAX} bytes"
            answer, method = _problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text), "GET"
        else:
            if place.prove() is not None:
                return
            answer, method = self._answer_head(head)
        writer.write(_encode(answer, with_body=method != "HEAD"))
        await writer.drain()
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()

    def _answer_head(self, head: bytes) -> tuple[_Answer, str]:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _problem(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request"), "GET"
        method, target, _ = words
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if method not in _METHODS:
            return _problem(
                HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(_METHODS)} are served"
            ), method
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request has no body here"), method
        # A page of another site must not reach us under a host name that its owner points at this machine.
        # Metrics alone are for all who reach the address.
        if self._with_metrics_alone:
            return self._answer_metrics(target), method
        if headers.get("host", LOOPBACK_HOST).partition(":")[0].lower() not in _HOST_NAMES:
            return _problem(HTTPStatus.MISDIRECTED_REQUEST, f"ask for {LOOPBACK_HOST} or localhost"), method
        path, _, query = target.partition("?")
        return self._answer(path, query), method

    def _answer_metrics(self, target: str) -> _Answer:
        if target.partition("?")[0] != "/metrics":
            return _problem(HTTPStatus.NOT_FOUND, "there is /metrics")
        return self._answer("/metrics", "")

    def _answer(self, path: str, query: str) -> _Answer:
        try:
            match path:
                case "/metrics":
                    return _Answer(HTTPStatus.OK, CONTENT_TYPE, self._source.metrics())
                case "/healthz":
                    return _json(HTTPStatus.OK, {"alive": True})
                case "/readyz":
                    return self._readiness()
                case "/status":
                    return _json(HTTPStatus.OK, self._source.status())
                case "/mempool":
                    return self._held_messages(query)
        except Exception:
            log.exception("status could not be told", extra={"path": path})
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the node could not tell; its log says why")
        return _problem(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz, /readyz, /status and /mempool")

    def _held_messages(self, query: str) -> _Answer:
        wanted = {"after": "0", "limit": str(PAGE_ENTRIES_MAX)} | dict(parse_qsl(query))
        numbers = [wanted["after"], wanted["limit"]]
        if not all(number.isascii() and number.isdecimal() and len(number) < 20 for number in numbers):
            return _problem(HTTPStatus.BAD_REQUEST, "after and limit are numbers")
        after, limit = map(int, numbers)
        return _json(HTTPStatus.OK, self._source.held_messages(after, min(limit, PAGE_ENTRIES_MAX)))

    def _readiness(self) -> _Answer:
        reasons = self._source.readiness()
        parts = {
            name: {"ready": True} if reason is None else {"ready": False, "reason": reason}
            for name, reason in reasons.items()
        }
        is_ready = all(reason is None for reason in reasons.values())
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"ready": is_ready, "parts": parts})


async def serve_status(
    source: StatusSource, port: int, *, request_time_max_s: float = REQUEST_TIME_MAX_S
) -> StatusServer:
    """Listen on loopback; port 0 takes a free port, which `StatusServer.port` then names."""
    server = StatusServer(source, request_time_max_s)
    await server.start(LOOPBACK_HOST, port, 'choose another --metrics-port, 0 for a free one, or "off"')
    return server


async def serve_metrics(
    source: StatusSource, host: str, port: int, *, request_time_max_s: float = REQUEST_TIME_MAX_S
) -> StatusServer:
    """Serve /metrics alone at any address, as dmq-node's PrometheusSimple does."""
    server = StatusServer(source, request_time_max_s, with_metrics_alone=True)
    await server.start(
        host, port, "choose another address for PrometheusSimple in TraceOptions, or node.prometheus"
    )
    return server


def _json(status: HTTPStatus, value: Page) -> _Answer:
    return _Answer(status, _JSON, json.dumps(msgspec.to_builtins(value)).encode() + b"\n")


def _problem(status: HTTPStatus, text: str) -> _Answer:
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": text}
    return _Answer(status, "application/problem+json", json.dumps(body).encode() + b"\n")


def _encode(answer: _Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")
