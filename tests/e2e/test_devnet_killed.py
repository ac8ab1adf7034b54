"""A devnet of processes whose validators are killed while messages are under way: nothing counts twice or gets lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.bus.file_topic import open_topic
from stagepost.cli import main as command
from stagepost.cli.status_source import topic_records
from stagepost.remp.status_records import STATUSES_TOPIC
from tests.devnet_runs import devnet

pytestmark = pytest.mark.xdist_group("devnet")

RUNS = 5
MESSAGES = 40


@pytest.mark.parametrize("number", range(RUNS))
def test_sums_are_exact_although_validators_are_killed(number: int, run_seed: int, tmp_path: Path) -> None:
    seed = run_seed % 1_000_000 + number
    print(f"seed {seed}")
    data = tmp_path / "data"
    options = ("--validators", "4", "--shards", "2", "--seed", str(seed), "--rate", "8", "--faults")
    done = devnet(data, *options, "--messages", str(MESSAGES))
    logs = "\n".join(path.read_text() for path in data.glob("validator-*/log"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    assert f"finalized{'':13} {MESSAGES}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("16 sums exact")
    killed = int(done.stdout.splitlines()[0].rsplit(maxsplit=1)[1])
    assert killed >= 1
    assert "Traceback" not in logs
    finals = [
        record.key for record in topic_records(data) if json.loads(record.value or b"")["kind"] == "Finalized"
    ]
    assert len(finals) == len(set(finals)) == MESSAGES
    assert open_topic(data, STATUSES_TOPIC).partitions == 1
    assert command.run(["topic", "check", STATUSES_TOPIC, "--data", str(data)]) == 0
