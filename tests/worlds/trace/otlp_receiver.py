"""Receivers of OTLP over HTTP: a small server that decodes OpenTelemetry's own protobuf messages, and the trees they tell."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class SeenSpan(NamedTuple):
    """A span as a receiver has it. Ids are hex; `parent_id` is empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: str
    status_text: str


class Receiver:
    """Spans and the heads of requests; `refusals` are statuses that the next requests get instead of an answer."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.spans: list[SeenSpan] = []
        self.resources: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.refusals: list[int] = []


_STATUS = {0: "unset", 1: "ok", 2: "error"}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.paths.append(self.path)
            if receiver.refusals:
                self.send_response(receiver.refusals.pop(0))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            request = ExportTraceServiceRequest.FromString(body)
            for of_resource in request.resource_spans:
                receiver.resources.append(_attributes(of_resource.resource.attributes))
                for scope in of_resource.scope_spans:
                    receiver.spans.extend(_seen(span) for span in scope.spans)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join(30)


def _seen(span: Any) -> SeenSpan:
    return SeenSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        _STATUS[span.status.code],
        span.status.message,
    )


def _attributes(found: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in found}


def spans_in_file(path: Path) -> list[SeenSpan]:
    """Return the spans that a collector's file exporter wrote, one request a line, in OTLP's JSON form."""
    found = []
    for line in path.read_text().splitlines():
        for of_resource in json.loads(line).get("resourceSpans", ()):
            for scope in of_resource["scopeSpans"]:
                for span in scope["spans"]:
                    attributes = {
                        one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", ())
                    }
                    status = span.get("status", {})
                    found.append(
                        SeenSpan(
                            span["traceId"],
                            span["spanId"],
                            span.get("parentSpanId", ""),
                            span["name"],
                            int(span["startTimeUnixNano"]),
                            int(span["endTimeUnixNano"]),
                            attributes,
                            _STATUS[status.get("code", 0)],
                            status.get("message", ""),
                        )
                    )
    return found


def tree_of(spans: Sequence[SeenSpan], *, above: str = "") -> dict[str, Any]:
    """Return the names of the spans as a tree, by name: every span must have its parent among them, or `above`."""
    known = {span.span_id for span in spans}
    assert len(known) == len(spans), "every id once"
    for span in spans:
        assert span.parent_id in known or span.parent_id == above, f"{span.name} has no parent"
        assert span.start_ns <= span.end_ns

    def below(parent_id: str) -> dict[str, Any]:
        return {span.name: below(span.span_id) for span in spans if span.parent_id == parent_id}

    return below(above)
