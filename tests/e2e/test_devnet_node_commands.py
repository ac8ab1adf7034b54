"""`stagepost node validator` and `stagepost node full`: processes by the commands that operators type, a message through
the topics of the full node's folder, and kills of the full node in between."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rigs.chain_messages import expires_soon_s
from rigs.ports import free_ports
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage, read_message
from stagepost.devnet.devnet import FULL_NODE, NETWORK_MAGIC, DevnetPlan, genesis_of, member_of
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.full_node.network import NETWORK_FILE, RempNetwork
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import Record
from stagepost.trace.reading import topic_records
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT

pytestmark = pytest.mark.xdist_group("devnet")

PLAN = DevnetPlan(validators=1)
ACCOUNT = bytes(31) + bytes([ContractKind.SUM_OF_PRIMES])
WITHIN_S = 60.0


class Member:
    def __init__(self, folder: Path, name: str) -> None:
        self.data = folder / name
        self.data.mkdir(mode=0o700)
        key = folder / f"{name}.skey"
        key_files.save(key, ColdSigningKey(PLAN.seed_of(name)))
        kind = "full" if name == FULL_NODE else "validator"
        files = ("--network", str(folder / NETWORK_FILE), "--key", str(key), "--data", str(self.data))
        self._command = [*COMMAND, "node", kind, *files]
        self._log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=ENVIRONMENT, stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(number)
        return process.wait(WITHIN_S)

    def finals(self) -> list[str | None]:
        try:
            records = list(topic_records(self.data))
        except Exception:  # the topic is made by the process
            return []
        return [one.key for one in records if json.loads(one.value or b"")["kind"] == "Finalized"]


def until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def write(data: Path, number: int) -> str:
    message = CanonicalMessage(ACCOUNT, primes_body(number), expires_soon_s()).encode()
    message_id = read_message(message, takes_cells=False).external.message_id.hex()
    writer = create_topic(data, MESSAGES_TOPIC).writer()

    async def append() -> None:
        await writer.append([Record(message_id.encode(), message, {"delivery_id": "ab" * 32})])
        await writer.close()

    asyncio.run(append())
    return message_id


def test_messages_go_through_the_topics_of_a_full_node_that_is_killed_in_between(tmp_path: Path) -> None:
    members = tuple(member_of(PLAN, name, port) for name, port in zip(PLAN.names, free_ports(2), strict=True))
    genesis = genesis_of(PLAN, int(time.time() * 1_000))
    RempNetwork(NETWORK_MAGIC, genesis.encode().hex(), members).write(tmp_path / NETWORK_FILE)
    validator, node = (Member(tmp_path, name) for name in PLAN.names)
    running = [validator, node]
    try:
        for one in running:
            one.start()
        ids = [write(node.data, 10)]
        until(lambda: node.finals() == ids, "the first is final")
        ids.append(write(node.data, 11))
        node.end(signal.SIGKILL)  # before, while or after it was handed over
        ids.append(write(node.data, 12))
        node.start()
        until(lambda: sorted(map(str, node.finals())) == sorted(ids), "all are final, each once")
        assert node.end(signal.SIGTERM) == 0
        assert validator.end(signal.SIGINT) == 130
    finally:
        for one in running:
            if one.process is not None:
                one.end(signal.SIGKILL)
    headers = [record.headers.get("delivery_id") for record in topic_records(node.data)]
    assert set(headers) == {"ab" * 32}


def test_a_key_that_is_no_member_is_refused_before_anything_starts(tmp_path: Path) -> None:
    genesis = genesis_of(PLAN, 1_800_000_000_000)
    member = member_of(PLAN, "validator-1", 4_001)
    RempNetwork(NETWORK_MAGIC, genesis.encode().hex(), (member,)).write(tmp_path / NETWORK_FILE)
    key_files.save(tmp_path / "stranger.skey", ColdSigningKey(bytes(32)))
    arguments = [
        *("node", "validator", "--network", str(tmp_path / NETWORK_FILE)),
        *("--key", str(tmp_path / "stranger.skey"), "--data", str(tmp_path / "data")),
    ]
    done = subprocess.run(
        [*COMMAND, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert done.returncode == 2
    assert "is not the key of a member of the network" in done.stderr
