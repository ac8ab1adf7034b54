"""A devnet of processes that are killed while messages are under way, validators and the full node alike, with a validator
that breaks the rules and links that lose things: nothing counts twice or gets lost, and nobody honest is accused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.cli import main as command
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.log.file_topic import open_topic
from stagepost.trace.kept_proofs import GENESIS_FILE, kept_proof_file
from stagepost.trace.reading import topic_records
from tests.worlds.chain.proved_chain import second
from tests.worlds.devnet.devnet_runs import devnet

pytestmark = pytest.mark.xdist_group("devnet")

RUNS = 3
MESSAGES = 40


@pytest.mark.parametrize("number", range(RUNS))
def test_sums_are_exact_although_members_are_killed_and_one_is_dishonest(
    number: int, run_seed: int, tmp_path: Path
) -> None:
    seed = run_seed % 1_000_000 + number
    print(f"seed {seed}")
    data = tmp_path / "data"
    options = ("--validators", "4", "--shards", "2", "--seed", str(seed), "--rate", "8", "--faults")
    done = devnet(data, *options, "--messages", str(MESSAGES))
    logs = "\n".join(path.read_text() for path in data.glob("*/log"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
    assert f"finalized{'':13} {MESSAGES}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("16 sums exact")
    shown = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert int(shown["killed"].split()[0]) >= 1
    (faulty,) = [name for name in shown if name.startswith("validator-")]
    accused = {line.split()[2] for line in done.stdout.splitlines() if line.startswith("proved against")}
    assert accused <= {faulty}
    assert "Traceback" not in logs
    finals = [
        record.key for record in topic_records(data) if json.loads(record.value or b"")["kind"] == "Finalized"
    ]
    assert len(finals) == len(set(finals)) == MESSAGES
    trusted, _ = second.read_genesis((data / GENESIS_FILE).read_bytes())
    for message_id in finals:
        proof = kept_proof_file(data, bytes.fromhex(message_id or ""))
        assert proof is not None, f"{message_id} is final, and there is no proof"
        assert second.verify(proof, trusted, None)["kind"] == "executed"
    assert open_topic(data, STATUSES_TOPIC).partitions == 1
    assert command.run(["topic", "check", STATUSES_TOPIC, "--data", str(data)]) == 0
