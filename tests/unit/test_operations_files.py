"""What operators load elsewhere: dashboards, alerts and images name only what there is, and say whether they were run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from stagepost.cli import main
from stagepost.ground.telemetry.metrics import Kind
from tools.metrics_docs import ALL_METRICS

ROOT = Path(__file__).parents[2]
GRAFANA = json.loads((ROOT / "grafana" / "stagepost.json").read_text(encoding="utf-8"))
ALERTS = (ROOT / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
SUFFIXES = ("_bucket", "_count", "_sum")

DECLARED = {metric.name: metric for metric in ALL_METRICS}
SERIES = {
    name + suffix: metric
    for name, metric in DECLARED.items()
    for suffix in (SUFFIXES if metric.kind is Kind.HISTOGRAM else ("",))
}
"""What a query may name: a histogram is seen by its parts alone."""


def panels() -> list[dict[str, Any]]:
    return [panel for panel in GRAFANA["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    lines = re.sub(r"expr: >-\n\s+", "expr: ", ALERTS)
    lines = re.sub(r"\n {10}(?=\(rate)", " ", lines)
    alerting = re.findall(r"^\s+expr: (.+)$", lines, re.MULTILINE)
    assert len(alerting) == ALERTS.count("- alert:") >= 6
    return shown + alerting


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_that_is_asked_for_exists_with_its_labels(expression: str) -> None:
    named = re.findall(r"(stagepost_\w+)(?:\{([^}]*)\})?", expression)
    assert named
    for name, selector in named:
        assert name in SERIES, f"{name} is not declared"
        for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selector):
            allowed = SERIES[name].labels.get(label)
            assert label == "instance" or allowed is not None, f"{name} has no label {label}"
            assert not allowed or value in allowed, f"{label} of {name} is never {value}"
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    labels = {label for name, _ in named for label in SERIES[name].labels} | {"le", "instance"}
    assert {label.strip() for group in grouped for label in group.split(",")} <= labels


def test_every_metric_is_on_the_dashboard_but_those_that_say_what_runs() -> None:
    shown = {name for one in panels() for target in one["targets"] for name in _names(target["expr"])}
    assert DECLARED.keys() - shown <= {
        "stagepost_build_info",
        "stagepost_kafka_published_total",
        "stagepost_kafka_faults_total",
    }


def _names(expression: str) -> set[str]:
    found = set(re.findall(r"stagepost_\w+", expression))
    return {SERIES[name].name for name in found if name in SERIES}


def test_the_dashboard_can_be_loaded_again_and_asks_for_its_data_source() -> None:
    assert GRAFANA["uid"] == "stagepost"
    (source,) = [one for one in GRAFANA["templating"]["list"] if one["type"] == "datasource"]
    assert {panel["datasource"]["uid"] for panel in panels()} == {f"${{{source['name']}}}"}
    ids = [panel["id"] for panel in GRAFANA["panels"]]
    assert len(set(ids)) == len(ids)
    assert len([panel for panel in GRAFANA["panels"] if panel["type"] == "row"]) >= 5


def test_every_alert_says_what_to_do() -> None:
    assert ALERTS.count("- alert:") == ALERTS.count("          do: ") == ALERTS.count("          summary: ")
    for word in (
        "QueueNearFull",
        "OldestTooOld",
        "NoHotPeers",
        "KesEnding",
        "BadSignatures",
        "PipelineStale",
    ):
        assert f"alert: Stagepost{word}" in ALERTS


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml"])
def test_the_first_line_says_whether_it_was_run(name: str) -> None:
    first = (ROOT / name).read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(("# Not run:", "# Run "))


def test_compose_gives_the_node_options_that_it_has() -> None:
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    commands = [" ".join(one.split()) for one in re.findall(r"command: >-\n((?:      .+\n)+)", text)]
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command)
        node = main.stagepost.get_command(click.Context(main.stagepost), words[0])
        assert isinstance(node, click.Group)
        dmq = node.get_command(click.Context(node), words[1])
        assert dmq is not None
        known = {name for parameter in dmq.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
    topologies = re.findall(r"content: \|\n((?:      .+\n)+)", text)
    assert [sorted(json.loads(one)) for one in topologies] == [["localRoots", "publicRoots"]] * 2
