"""The writer of spans to an OpenTelemetry collector, by OTLP over HTTP, with OpenTelemetry's own library (the extra `otel`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit, urlunsplit

from stagepost import __version__
from stagepost.errors import ConfigError, TransportError
from stagepost.trace.spans import ROOT, SpanRecord, SpanStatus

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

SPANS_AT_ONCE = 512
"""Spans, at most, of one request."""
TIMEOUT_S = 10.0
"""Seconds, at most, for one request with its repetitions, which the library makes."""
SERVICE = "stagepost"
TRACES_PATH = "/v1/traces"

_NS_PER_MS = 1_000_000


def traces_url(endpoint: str) -> str:
    """Return the address of traces at a collector: `endpoint`, with the usual path where it has none."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{endpoint!r} is not the address of a collector",
            advice="give it as http://HOST:4318 or https://HOST/v1/traces",
            found=endpoint,
        )
    path = parts.path if parts.path not in ("", "/") else TRACES_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class OtlpWriter:
    """Writer to one collector. Headers of requests, as for authentication, come from the library's own variable of the
    environment, `OTEL_EXPORTER_OTLP_HEADERS`.
    """

    def __init__(self, endpoint: str, *, service: str = SERVICE, timeout_s: float = TIMEOUT_S) -> None:
        self.url = traces_url(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            raise ConfigError(
                f"OpenTelemetry's library is not installed: {error}",
                advice="install the extra: pip install 'stagepost[otel]'",
            ) from error
        self._exporter = OTLPSpanExporter(endpoint=self.url, timeout=timeout_s)
        self._resource = Resource.create({"service.name": service, "service.version": __version__})
        self._scope = InstrumentationScope("stagepost.trace", __version__)

    def write(self, spans: Sequence[SpanRecord]) -> None:
        """Send the spans; `TransportError` if the collector does not take all of them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        for begin in range(0, len(spans), SPANS_AT_ONCE):
            part = [self._readable(span) for span in spans[begin : begin + SPANS_AT_ONCE]]
            if self._exporter.export(part) is not SpanExportResult.SUCCESS:
                raise TransportError(
                    f"the collector at {self.url} did not take {len(part)} spans",
                    advice="check the address and the collector's log; the spans are sent again",
                )

    def close(self) -> None:
        self._exporter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _readable(self, span: SpanRecord) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(span_id: bytes, *, is_remote: bool) -> SpanContext:
            return SpanContext(
                int.from_bytes(span.trace_id, "big"),
                int.from_bytes(span_id, "big"),
                is_remote,
                TraceFlags(TraceFlags.SAMPLED),
            )

        codes = {
            SpanStatus.UNSET: StatusCode.UNSET,
            SpanStatus.OK: StatusCode.OK,
            SpanStatus.ERROR: StatusCode.ERROR,
        }
        text = span.status_text or None if span.status is SpanStatus.ERROR else None
        return ReadableSpan(
            span.name,
            context(span.span_id, is_remote=False),
            parent=context(span.parent_id, is_remote=span.name == ROOT) if span.parent_id else None,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.INTERNAL,
            status=Status(codes[span.status], text),
            start_time=span.start_ms * _NS_PER_MS,
            end_time=span.end_ms * _NS_PER_MS,
            instrumentation_scope=self._scope,
        )
