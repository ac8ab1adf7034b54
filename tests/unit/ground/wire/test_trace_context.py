"""The W3C trace context: texts that are taken, texts that are refused, and the bytes of an envelope."""

from __future__ import annotations

import pytest

from stagepost.ground.wire.trace_context import TraceParent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = f"00-{TRACE}-{SPAN}-01"


def test_a_header_is_read_and_written_and_fits_into_25_bytes() -> None:
    parent = TraceParent.parse(TEXT)
    assert parent is not None
    assert (parent.trace_id.hex(), parent.span_id.hex()) == (TRACE, SPAN)
    assert parent.text == TEXT
    assert len(parent.encode()) == 25
    assert TraceParent.decode(parent.encode()) == parent


def test_a_later_version_is_read_by_its_first_fields_and_written_as_ours() -> None:
    later = TraceParent.parse(f"cc-{TRACE}-{SPAN}-00-what-the-future-brings")
    assert later is not None
    assert later.text == f"00-{TRACE}-{SPAN}-00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01\n",
        f"0٠-{TRACE}-{SPAN}-01",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    assert TraceParent.parse(text) is None


def test_opentelemetry_reads_and_writes_the_same_headers() -> None:
    propagation = pytest.importorskip("opentelemetry.trace.propagation.tracecontext")
    from opentelemetry import trace

    propagator = propagation.TraceContextTextMapPropagator()
    context = trace.get_current_span(propagator.extract({"traceparent": TEXT})).get_span_context()
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (TRACE, SPAN)
    carrier: dict[str, str] = {}
    propagator.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(context)))
    parent = TraceParent.parse(carrier["traceparent"])
    assert parent is not None
    assert parent.text == TEXT
