"""One message through two DMQ nodes as a trace: the caller's trace goes on, and ends with two signed acknowledgements."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.cli.main import run
from tests.worlds.delivery.one_message import CALLER, published
from tests.worlds.trace.otlp_receiver import otlp_receiver, tree_of

pytestmark = pytest.mark.slow


def test_ten_lines_of_python_are_a_trace_with_two_signed_acknowledgements(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    with published(tmp_path) as (network, message_id), otlp_receiver() as receiver:
        assert run(["telemetry", message_id, "--data", str(tmp_path), "--otlp", receiver.base]) == 0
        _, trace_id, caller, _ = CALLER.split("-")
        assert {span.trace_id for span in receiver.spans} == {trace_id}
        steps = tree_of(receiver.spans, above=caller)["message"]
        assert {"published", "sent", "acknowledged"} <= set(steps["program"])
        assert "accepted" in steps["node-1"]
        assert "accepted" in steps["node-2"]
        assert "pulled" in steps["peers"]
        for name in ("bob", "carol"):
            lane = f"pool {network.ids[name][:8]}"
            assert "acknowledged" in steps[lane], "each recipient has a span of its own"
        assert "end" in steps
        root = next(span for span in receiver.spans if span.name == "message")
        assert (root.status, root.attributes["stagepost.state"]) == ("ok", "Acknowledged by 2 of 2")
