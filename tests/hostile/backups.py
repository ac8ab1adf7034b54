"""Backups of real nodes under load, restored elsewhere, with kills in between: no message is accepted a second time."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.client import AsyncClient
from stagepost.dmq.conform.attacker import LOCAL_SUBMISSION, OTHER_SIDE, Attacker
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message
from tests.hostile.storms import Figure
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT
from tests.worlds.dmq.node_processes import ending
from tests.worlds.network.operators import FULL_NODE, OperatedNetwork, OperatorFault, operated

ENDS_WITHIN_S = 120.0
LIFE_S = 1_700
ACCEPTED = [1]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [*COMMAND, *(str(one) for one in arguments)]
    return subprocess.run(
        words, env=ENVIRONMENT, capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=False
    )


def killed(after_s: float, *arguments: str | Path) -> int | None:
    """Start a command and kill it after `after_s`; return its exit code if it was faster."""
    words = [*COMMAND, *(str(one) for one in arguments)]
    process = subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(after_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


@dataclass
class Load:
    """Program that submits a message at a time, so many a second, until it is stopped."""

    victim: Victim
    pool: Forger
    per_s: float
    accepted: list[ForgedMessage] = field(default_factory=list)
    other: list[Any] = field(default_factory=list)

    async def run(self) -> None:
        program = await Attacker.local(self.victim.target)
        try:
            await program.shake_hands_locally()
            loop = asyncio.get_running_loop()
            began, count = loop.time(), 0
            while True:
                sent = message(self.pool, lives_s=LIFE_S)
                await program.say(LOCAL_SUBMISSION, array(uint(0), sent.raw))
                answer = await program.hear(LOCAL_SUBMISSION | OTHER_SIDE)
                if answer == ACCEPTED:
                    self.accepted.append(sent)
                else:
                    self.other.append(answer)
                count += 1
                await asyncio.sleep(max(0.0, began + count / self.per_s - loop.time()))
        finally:
            await program.leave()


async def _answers(victim: Victim, sent: Sequence[ForgedMessage]) -> Counter[str]:
    found: Counter[str] = Counter()
    program = await Attacker.local(victim.target)
    await program.shake_hands_locally()
    for one in sent:
        await program.say(LOCAL_SUBMISSION, array(uint(0), one.raw))
        found[repr(await program.hear(LOCAL_SUBMISSION | OTHER_SIDE))] += 1
    await program.leave()
    return found


async def _under_load(victim: Victim, pool: Forger, per_s: float, backups: Path, random: Random) -> Load:
    """Take a backup under load, and one that is killed; return what was accepted."""
    load = Load(victim, pool, per_s)
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(2.0)
        data = ("--data", victim.folder)
        await asyncio.to_thread(killed, random.uniform(0.2, 1.2), "backup", *data, "--out", backups / "cut")
        done = await asyncio.to_thread(command, "backup", *data, "--out", backups / "whole")
        if done.returncode:
            raise AssertionError(f"the backup ended with {done.returncode}: {done.stdout}{done.stderr}")
        await asyncio.sleep(1.0)
        if running.done():
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return load


def restored_elsewhere(seed: int, per_s: float = 100.0) -> tuple[Figure, list[str]]:
    """A node under load is copied, goes on, and is killed. Its copy is restored in another folder, after tries that are
    killed, and hears every message again."""
    random = Random(seed)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        pool = Forger()
        stakes = write_stakes(top / "pools.json", [(pool, 1)])
        first, second = Victim(top / "node", stakes), Victim(top / "elsewhere", stakes)
        backups = top / "backups"
        backups.mkdir(mode=0o700)
        with ending([first, second]):
            first.start()
            load = asyncio.run(_under_load(first, pool, per_s, backups, random))
            first.kill()
            if load.other:
                faults.append(f"seed {seed}: the load was answered with {load.other[0]!r}")
            if (backups / "cut").exists():
                done = command("restore", backups / "cut", "--check")
                faults += (
                    [] if not done.returncode else [f"seed {seed}: a killed backup is damaged: {done.stderr}"]
                )
            arguments = ("restore", backups / "whole", "--data", second.folder)
            cuts = sum(killed(random.uniform(0.2, 1.0), *arguments) is None for _ in range(2))
            if not (second.folder / "restored.json").exists():
                done = command(*arguments)
                if done.returncode:
                    faults.append(f"seed {seed}: the restore ended with {done.returncode}: {done.stderr}")
            second.start()
            answers = asyncio.run(_answers(second, load.accepted))
            second.kill()
            second.start()
            answers += asyncio.run(_answers(second, load.accepted))
            if twice := answers[repr(ACCEPTED)]:
                faults.append(f"seed {seed}: {twice} replays were accepted")
            held = answers[repr([2, [1]])]
            if not held:
                faults.append(f"seed {seed}: the backup held nothing of what was accepted")
            faults += _is_back(second, pool, seed)
            second.terminate()
            faults += [f"seed {seed}: the node logged {line}" for line in second.faults_of_its_own()[:3]]
    figure: Figure = {
        "promise": "S3",
        "target": "backup under load, restored elsewhere",
        "accepted": len(load.accepted),
        "replays": 2 * len(load.accepted),
        "replays_accepted": answers[repr(ACCEPTED)],
        "known_from_backup": held // 2,
        "restores_killed": cuts,
        "failures": len(faults),
    }
    return figure, faults


def _is_back(victim: Victim, pool: Forger, seed: int) -> list[str]:
    """A message with the longest life is taken within seconds."""
    until = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < until:
        if asyncio.run(_answers(victim, [message(pool, lives_s=1_799)]))[repr(ACCEPTED)]:
            return []
        time.sleep(1.0)
    return [f"seed {seed}: the restored node takes no message"]


# Validators

MEMBERS = ("validator-1", "validator-2", "validator-3", "validator-4")
RETURNING = "validator-2"
ACCUSATIONS = ("Blame", "broke a promise")
"""Words of log lines by which a member accuses another."""


def _external(number: int) -> bytes:
    account = f"backup {number}".encode().ljust(31, b".")[:31] + bytes([ContractKind.SUM_OF_PRIMES])
    return CanonicalMessage(account, primes_body(50), expires_soon_s()).encode()


async def _messages(data: Path, per_s: float, until: asyncio.Event) -> list[str]:
    """Submit external messages, so many a second, until the event; return their ids."""
    loop = asyncio.get_running_loop()
    ids: list[str] = []
    async with AsyncClient.connect(data=data) as client:
        began = loop.time()
        while not until.is_set():
            sent = await client.send(_external(len(ids)))
            ids.append(str(sent.message_id))
            await asyncio.sleep(max(0.0, began + len(ids) / per_s - loop.time()))
        for one in ids:
            verdict = await client.wait_for(one, "final", timeout_s=ENDS_WITHIN_S)
            if not verdict.is_reached:
                raise AssertionError(f"message {one} has no end: {verdict.verdict}")
    return ids


async def _validator_story(network: OperatedNetwork, random: Random, per_s: float) -> int:
    data, backups = network.data(RETURNING), network.folder / "backups"
    backups.mkdir(mode=0o700)
    is_over = asyncio.Event()
    sending = asyncio.create_task(_messages(network.data(FULL_NODE), per_s, is_over))
    try:
        await asyncio.sleep(3.0)
        await asyncio.to_thread(
            killed, random.uniform(0.2, 1.2), "backup", "--data", data, "--out", backups / "cut"
        )
        await asyncio.to_thread(network.command, "backup", "--data", data, "--out", backups / "whole")
        await asyncio.sleep(random.uniform(1.0, 5.0))
        network.kill(RETURNING)
        data.rename(network.folder / "lost")
        restore = ("restore", backups / "whole", "--data", data)
        for _ in range(2):
            await asyncio.to_thread(killed, random.uniform(0.2, 1.0), *restore)
        if not (data / "restored.json").exists():
            await asyncio.to_thread(network.command, *restore)
        network.start(RETURNING)
        await asyncio.sleep(random.uniform(5.0, 10.0))
        network.kill(RETURNING)
        network.start(RETURNING)
        await asyncio.sleep(15.0)
        if sending.done():
            await sending
    finally:
        is_over.set()
        ids = await sending
    network.require_running()
    return len(ids)


def validator_restored(folder: Path, seed: int, per_s: float) -> tuple[Figure, list[str]]:
    """A validator of four is copied under load, goes on, loses its disk, and comes back with the copy, in the middle of its
    sessions and once more after a kill. Nobody has two signatures of it that contradict."""
    faults: list[str] = []
    ended = 0
    with operated(folder) as network:
        try:
            network.found(*MEMBERS)
            for name in network.members:
                network.start(name)
            network.execute(100)
            ended = asyncio.run(_validator_story(network, Random(seed), per_s))
            network.execute(200)
        except (OperatorFault, AssertionError) as fault:
            faults.append(f"seed {seed}: {fault}")
        for name in network.members:
            said = (folder / name / "log").read_text(errors="replace").splitlines()
            accused = [line for line in said if any(word in line for word in ACCUSATIONS)]
            faults += [f"seed {seed}: {name} logged {line}" for line in accused[:3]]
        complaints = network.data(FULL_NODE) / "complaints.jsonl"
        if complaints.exists():
            faults.append(f"seed {seed}: {complaints.read_text()[:500]}")
    figure: Figure = {
        "promise": "B6",
        "target": "validator restored from a backup under load",
        "messages": ended,
        "failures": len(faults),
    }
    return figure, faults
