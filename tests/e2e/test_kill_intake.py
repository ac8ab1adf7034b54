"""kill -9 under load: what was accepted is there afterwards, is not accepted again, and is there once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rigs.line_reports import open_report
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import FIVE_ONLY, DmqMessage
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.outcome import Accepted, Outcome
from stagepost.dmq.validation import MessageValidator, rules_for
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.signatures.verifier import Verifier
from tests.worlds.dmq.pool_signers import KnownPools, Signer

CYCLES = 10
LANES = 6
BATCH = 3
LIFE_S_MAX = 0.4
REPLAYS_PER_CYCLE = 50
ROOT = Path(__file__).parents[2]


def load_lines(accepted: Path) -> dict[bytes, DmqMessage]:
    """What the killed process has reported, whole lines only: the last one may be cut off by the kill."""
    lines = accepted.read_bytes().split(b"\n")[:-1] if accepted.exists() else []
    messages = [DmqMessage.decode(bytes.fromhex(line.decode())) for line in lines]
    found: dict[bytes, DmqMessage] = {message.message_id: message for message in messages}
    assert len(found) == len(messages), "one message was accepted twice"
    return found


class Node:
    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / "messages.sqlite")
        self.mempool = Mempool()
        self.verifier = Verifier()
        validator = MessageValidator(rules_for(42), KnownPools())
        self.intake = Intake(validator, self.mempool, self.store, SystemClock(), verifier=self.verifier)
        self.restored = self.intake.restore()

    async def close(self) -> None:
        await self.intake.close()
        await self.verifier.close()
        await self.store.close()


async def load(folder: Path, seed: int) -> None:
    """The life of the process that is killed: several lanes submit, every acceptance is reported after the fact."""
    node = Node(folder)
    report = open_report(folder / "accepted")
    expires_at = int(time.time()) + 900
    print("ready", flush=True)

    async def lane(number: int) -> None:
        tag = seed * 1_000_000 + number * 100_000
        while True:
            messages = [Signer(number).sign(tag + step, expires_at=expires_at) for step in range(BATCH)]
            tag += BATCH
            for message, outcome in zip(
                messages, await node.intake.submit_many(messages, "load"), strict=True
            ):
                assert isinstance(outcome, Accepted), outcome
                os.write(report, message.raw.hex().encode() + b"\n")

    async with asyncio.TaskGroup() as lanes:
        for number in range(LANES):
            lanes.create_task(lane(number))


def live_and_die(folder: Path, seed: int, life_s: float) -> None:
    command = [sys.executable, "-c", f"import asyncio; from tests.e2e.test_kill_intake import load; "
               f"from pathlib import Path; asyncio.run(load(Path({str(folder)!r}), {seed}))"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # Real time, since a real process is to be killed somewhere in the middle of its work.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(life_s)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def kill_loop(folder: Path, seed: int, cycles: int) -> int:
    """Live, die, look: `cycles` times on one folder. How many messages were accepted in all; every one must be there."""
    chance = random.Random(seed)
    for cycle in range(cycles):
        live_and_die(folder, cycle, chance.uniform(0.01, LIFE_S_MAX))
        accepted = load_lines(folder / "accepted")
        outcomes = asyncio.run(look(folder, accepted, chance))
        assert not any(isinstance(outcome, Accepted) for outcome in outcomes), "a replay was accepted"
    return len(load_lines(folder / "accepted"))


async def look(folder: Path, accepted: dict[bytes, DmqMessage], chance: random.Random) -> list[Outcome]:
    """Start again on what the killed process left; what becomes of replays."""
    node = Node(folder)
    assert node.restored.damage == ()
    held = [entry.message for entry in node.mempool.after(0, 1_000_000, FIVE_ONLY)]
    ids = [message.message_id for message in held]
    assert len(ids) == len(set(ids)), "a message is there twice"
    assert accepted.keys() <= set(ids), "an accepted message is gone"
    replayed = chance.sample(list(accepted.values()), min(REPLAYS_PER_CYCLE, len(accepted)))
    outcomes = await node.intake.submit_many(replayed, "replay")
    assert node.mempool.count == len(held)
    await node.close()
    return outcomes


@pytest.mark.slow
def test_what_was_accepted_survives_kill_9(tmp_path: Path, run_seed: int) -> None:
    assert kill_loop(tmp_path, run_seed, CYCLES) > CYCLES
