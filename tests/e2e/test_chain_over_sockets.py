"""Validators of the embedded chain as processes over real, authenticated sockets: they agree, one may die at any moment,
and what they leave on disk can be checked by anybody."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from rigs.chain_processes import ChainProcess, Orders, say
from rigs.validator_processes import until
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.node.final_proof import Proof
from stagepost.chain.node.reading import read_chain
from stagepost.cli.chain import chain
from stagepost.remp.ledger import MasterApplied
from tests.worlds.chain import agreement_checker
from tests.worlds.chain.chain_replay import replay

pytestmark = pytest.mark.xdist_group("chain over sockets")

SIZE = 4


@contextmanager
def validators(folder: Path, lifetime_ms: int) -> Iterator[list[ChainProcess]]:
    genesis_ms = int(time.time() * 1_000)
    processes = [
        ChainProcess(Orders(number, SIZE, str(folder), genesis_ms, lifetime_ms)) for number in range(SIZE)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if not process.is_over:
                process.stop()


async def included(processes: list[ChainProcess], count: int) -> None:
    await until(
        lambda: all(process.included() >= count for process in processes),
        f"{count} messages in all chains",
        60.0,
    )


def starts(process: ChainProcess) -> int:
    return process.lines().count("Started")


def check_folder(folder: Path) -> bytes:
    """Every certificate by a checker that shares nothing with the code under test, and the whole chain played again: its
    last state."""
    content = read_chain(folder)
    assert content.damage == ()
    assert content.taken is None
    ledger = EmbeddedLedger(content.genesis)
    keys = {one.session_id: one.public_keys for one in (ledger.master_session(), *ledger.sessions())}
    chains: dict[bytes, list[tuple[int, bytes, bytes]]] = {}
    kinds: dict[bytes, list[int]] = {}
    for kept in content.kept:
        certificate = Proof.decode(kept.certificate).certificate.encode()
        slot, kind, block = agreement_checker.read_certificate(
            certificate, keys[kept.session_id], kept.session_id
        )
        assert block == kept.candidate
        chains.setdefault(kept.session_id, []).append((slot, block, kept.payload))
        kinds.setdefault(kept.session_id, []).append(kind)
        ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)
        for event in ledger.events():
            if isinstance(event, MasterApplied):
                keys |= {one.session_id: one.public_keys for one in event.started}
    for session_id, blocks in chains.items():
        # Behind the last one with a certificate of its own, the masterchain vouches for a block.
        finals = [
            place for place, kind in enumerate(kinds[session_id], 1) if kind == agreement_checker.FINALISE
        ]
        proved = max(finals, default=0)
        agreement_checker.check_chain(session_id, blocks[:proved], kinds[session_id][:proved])
    replayed = replay(content.genesis, [kept.payload for kept in content.kept])
    assert replayed.master.hash == ledger.master.hash
    return ledger.master.hash


def test_a_validator_may_be_killed_and_all_go_on_and_agree(tmp_path: Path) -> None:
    async def main() -> None:
        with validators(tmp_path, lifetime_ms=4_000) as processes:
            await until(lambda: all(starts(process) for process in processes), "all started", 60.0)
            say(tmp_path, range(10))
            await included(processes, 10)
            victim = processes[1]
            victim.kill()
            assert victim.process.returncode == -signal.SIGKILL
            others = [process for process in processes if process is not victim]
            say(tmp_path, range(10, 20))
            await included(others, 20)
            victim.start()
            say(tmp_path, range(20, 25))
            await included(processes, 25)
            for process in processes:
                process.stop()
                facts = process.facts()
                assert facts["fault"] == ""
                counts = facts["included"]
                assert isinstance(counts, dict)
                assert len(counts) == 25
                assert set(counts.values()) == {1}
            words = {line.split()[0] for process in processes for line in process.lines()}
            assert words <= {"Started", "Included", "Stalled"}
            for process in processes:
                assert check_folder(process.data).hex() == process.facts()["master"]
            shown = CliRunner().invoke(
                chain, ["show", "--data", str(tmp_path), "--json"], standalone_mode=False
            )
            assert shown.exception is None
            assert shown.return_value == 0, shown.output
            rows = [json.loads(line) for line in shown.output.splitlines()]
            assert [row["master_state_hash"] for row in rows] == [
                process.facts()["master"] for process in processes
            ]
            assert all(one["is_checked"] and not one.get("fault") for row in rows for one in row["sessions"])

    asyncio.run(main())


def test_who_dies_between_disk_and_network_never_contradicts_itself(tmp_path: Path) -> None:
    async def main() -> None:
        with validators(tmp_path, lifetime_ms=250_000) as processes:
            await until(lambda: all(starts(process) for process in processes), "all started", 60.0)
            victim = processes[2]
            said = 0
            for dies_at in (1, 4, 7):
                victim.kill()
                victim.start(dies_at=dies_at)
                while not victim.is_over:
                    assert said < 1_000
                    say(tmp_path, [said])
                    said += 1
                    await asyncio.sleep(0.05)
                assert victim.process.returncode == -signal.SIGKILL
                victim.start()
                await included(processes, said)
            words = {line.split()[0] for process in processes for line in process.lines()}
            assert words <= {"Started", "Included", "Stalled"}

    asyncio.run(main())
