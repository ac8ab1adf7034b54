"""`stagepost pipeline` before any Spark starts: what was asked for is understood, or told in one sentence."""

from __future__ import annotations

import importlib.util
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stagepost.cli.main import run
from stagepost.cli.pipeline.progress import COMMITTED, watched
from stagepost.pipeline.metrics import PIPELINE_METRICS, QUARANTINE_REASONS, STALE_AFTER_S, PipelineMetrics
from stagepost.pipeline.tables.manifest import Batch, Manifest
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import STATUSES
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.pipeline.written_tables import write_lake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    (tmp_path / "data").mkdir(mode=0o700)
    create_topic(tmp_path / "data", STATUSES)
    (tmp_path / "empty").mkdir()
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], folder: Path, job: str, *options: str) -> tuple[int, str]:
    given = [option.replace("DIR", str(folder)) for option in options]
    needed = ["--validator-sets", str(folder / "sets.json"), "--out", str(folder / "tables")]
    capsys.readouterr()
    status = run(["pipeline", job, *given, *needed])
    assert not (folder / "tables").exists()
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give one of --data, --address, --socket"),
        (["--data", "DIR/data", "--address", "127.0.0.1:1"], "not 2 of them"),
        (["--data", "DIR/data", "--retained", "x"], "--retained is for --socket"),
        (["--socket", "x", "--network-magic", "7"], "--socket needs --retained"),
        (["--socket", "x", "--retained", "x"], "--socket needs --network-magic"),
        (["--address", "nowhere"], "'nowhere' is not a valid address"),
        (["--data", "DIR/empty"], "holds none of the topics"),
        (["--data", "DIR/data", "--metrics-port", "65536"], "65536"),
    ],
)
def test_a_run_needs_one_source_with_all_that_belongs_to_it(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    status, text = refused(capsys, folder, "run", *options)
    assert status == 2
    assert said in text


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ([], 2, "give dumps with --input, or topics with"),
        (["--input", "DIR/x", "--data", "DIR/data"], 2, "not both"),
        (["--from", "3"], 2, "give one of --data"),
        (["--input", "DIR/nothing.jsonl"], 3, "cannot read the dump"),
        (["--data", "DIR/data", "--topic", "other"], 2, "there is no topic other"),
        (["--data", "DIR/data", "--from", "soon"], 2, "--from: 'soon' is not a valid time"),
        (["--data", "DIR/data", "--to", "1"], 3, "was asked for, but the log ends at 0"),
    ],
)
def test_a_backfill_takes_dumps_or_a_range_that_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], status: int, said: str
) -> None:
    need_packages()
    found, text = refused(capsys, folder, "backfill", *options)
    assert (found, said in text) == (status, True), text


def test_without_the_extra_it_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def without_spark(name: str, *more: Any) -> Any:
        return None if name in ("pyspark", "pyarrow") else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without_spark)
    for job, options in (("run", ["--data", "DIR/data"]), ("backfill", ["--input", "DIR/x"])):
        status, text = refused(capsys, folder, job, *options)
        assert status == 2
        assert "the pipeline needs pyspark, pyarrow, which this Python does not have" in text
        assert "pip install 'stagepost[spark]'" in text


# Metrics


def a_manifest(rows: int, bad: int, **changes: Any) -> Manifest:
    reasons = {"RECEIPT_SIGNATURE": bad} if bad else {}
    total = Batch([], rows, rows - bad, reasons, other_rows=2, other_quarantined={"KES_SIGNATURE": 1})
    return Manifest(total=total, **changes)


def lines_of(metrics: PipelineMetrics) -> dict[str, float]:
    found = (line.rsplit(" ", 1) for line in metrics.metrics().decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in found}


def test_what_a_run_adds_is_counted_and_what_was_there_before_is_not() -> None:
    now = [1_000.0]
    metrics = PipelineMetrics(a_manifest(10, 0), lambda: now[0])
    assert metrics.readiness() == {"tables": "nothing has been taken yet"}
    metrics.committed(a_manifest(25, 3))
    metrics.committed(a_manifest(20, 4, removed_rows=5))

    found = lines_of(metrics)
    assert found['stagepost_pipeline_rows_total{table="records"}'] == 15
    assert found['stagepost_pipeline_rows_total{table="receipts"}'] == 12
    assert found['stagepost_pipeline_rows_total{table="quarantine"}'] == 4
    assert found['stagepost_pipeline_quarantined_rows_total{reason="RECEIPT_SIGNATURE"}'] == 4
    assert found['stagepost_pipeline_quarantined_rows_total{reason="KES_SIGNATURE"}'] == 0
    assert found["stagepost_pipeline_last_success_timestamp_seconds"] == 1_000
    assert {name.split("{")[0] for name in found} == {metric.name for metric in PIPELINE_METRICS}
    assert {"RECEIPT_FORMAT", "CBOR_INVALID", "MSG_BAD_ID", "KES_PERIOD"} < set(QUARANTINE_REASONS)
    assert metrics.readiness() == {"tables": None}
    now[0] += STALE_AFTER_S + 1
    assert metrics.readiness() == {"tables": "not brought up to date for 61 s"}


def test_metrics_are_served_at_a_port_of_this_machine_while_it_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with watched(tmp_path, 0, said.append) as at_point:
        pass
    assert said == [], "told in any case, not as progress"
    with watched(tmp_path, None, said.append) as at_point:
        at_point(COMMITTED)
    port = _free_port()
    with watched(tmp_path, port, said.append) as at_point:
        assert said == [f"metrics at http://127.0.0.1:{port}/metrics"]
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30)
        write_lake(tmp_path, {}, a_manifest(5, 1))
        at_point("before manifest")
        at_point(COMMITTED)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            assert json.load(answer)["ready"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b'rows_total{table="records"} 7.0' in answer.read()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
            assert json.load(answer)["rows"] == 5
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
