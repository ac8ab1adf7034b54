"""Health of a data folder as every face tells it: command, pages, readiness, metrics, alert rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stagepost.ground.files.running_nodes import find_remp_node
from stagepost.ground.telemetry.status_reading import fetch

ALERTS = Path(__file__).parents[3] / "prometheus" / "alerts.yml"
_RULE = re.compile(r'- alert: (\w+)\n\s+expr: (stagepost_\w+)(?:\{(\w+)="(\w+)"\})? == (\d)\n')


class HealthFaces:
    """All faces of one data folder, each as text and as its answer. `check` runs `stagepost check` with the words that it is
    given, and returns its exit code and its output."""

    def __init__(self, data: Path, client: Any, check: Callable[..., tuple[int, str]]) -> None:
        self.data = data
        self._check = check
        self._client = client

    def check(self) -> tuple[str, str]:
        status, text = self._check("check", "--data", str(self.data))
        return {0: "good", 1: "good", 2: "bad", 3: "unknown"}[status], text

    def page(self) -> tuple[str, str]:
        text = self._client.get("/").text
        found = re.search(r'<h2>Health</h2><p class="figure">(\w+)</p>', text)
        return found[1] if found else "", text

    def dashboard_ready(self) -> tuple[str, str]:
        answer = self._client.get("/readyz")
        return str(answer.json()["health"]), answer.text

    def node_ready(self) -> tuple[str, str]:
        note = find_remp_node(self.data)
        assert note is not None
        answer = self._client.get(f"http://127.0.0.1:{note.metrics_port}/readyz")
        return {200: "good", 503: "bad"}[answer.status_code], answer.text

    def metrics(self) -> tuple[str, str]:
        note = find_remp_node(self.data)
        assert note is not None
        return _alerted(fetch(note, "/metrics").decode())

    def dashboard_metrics(self) -> tuple[str, str]:
        return _alerted(self._client.get("/metrics").text)

    @property
    def all(self) -> list[Callable[[], tuple[str, str]]]:
        return [
            self.check,
            self.page,
            self.dashboard_ready,
            self.node_ready,
            self.metrics,
            self.dashboard_metrics,
        ]


def _alerted(text: str) -> tuple[str, str]:
    """Evaluate the alert rules of the form `metric{label="value"} == number` on one scrape."""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    rules = _RULE.findall(ALERTS.read_text())
    assert len(rules) >= 5
    firing = []
    for name, metric, label, value, number in rules:
        firing += [
            f"{name} {sample.labels.get('validator', '')}"
            for sample in samples
            if sample.name == metric
            and (not label or sample.labels[label] == value)
            and sample.value == float(number)
        ]
    return (
        "bad" if any(one.startswith("StagepostNetworkCannotFinish") for one in firing) else "good"
    ), " ".join(firing)
