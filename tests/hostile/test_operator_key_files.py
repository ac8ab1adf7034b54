"""An operator's folder of keys is the same before and after whatever signs with it, also after kill -9 in the middle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from stagepost.dmq.keys.kes_clock import KesClock, KesSchedule, kes_schedule_for
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.keys.signer import DmqSigner
from stagepost.dmq.outcome import rejected
from stagepost.dmq.validation import SLOTS_PER_KES_PERIOD, check_proof
from stagepost.errors import ErrorCode
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.net.version_data import NETWORK_MAGICS
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.cardano_answers import LedgerState
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.small_node import SmallNode

MAGIC = NETWORK_MAGICS["mithril-preview"]
SIGNATURES = 1_000
RUNS = 20
PERIODS_BEHIND = 5
ENDED_WITHIN_S = 120.0
BODY = bytes(90)
EXPIRES_AT = 1_900_000_000
OBEY_MODES = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Gives up CAP_DAC_OVERRIDE (1) with PR_CAPBSET_DROP (24), then runs the command: modes then bind root as well."""
REFUSAL = rejected(ErrorCode.KES_PERIOD, "this node takes nothing")

Look = dict[str, tuple[object, ...]]


def look_of(folder: Path) -> Look:
    """Content, owner, mode, times and inode of each file, and of the folder: a file that came and went changes it."""
    return {str(path): _look_of_one(path) for path in (folder, *sorted(folder.rglob("*")))}


def _look_of_one(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    return (
        digest,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_ino,
        status.st_nlink,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class SteppedClock:
    def __init__(self, unix_s: float) -> None:
        self.now_s = unix_s

    def unix_s(self) -> float:
        return self.now_s

    def mono_s(self) -> float:
        return self.now_s


def public_schedule() -> KesSchedule:
    schedule = kes_schedule_for(MAGIC)
    assert schedule is not None
    return schedule


def preview_ledger(unix_s: float) -> LedgerState:
    """The ledger of the network's cardano-node at that moment."""
    start_s = int(public_schedule().slot_zero_unix_s)
    epoch = int(unix_s - start_s) // 86_400
    return LedgerState(2, start_s, epoch=epoch, epoch_s=86_400, period_slots=SLOTS_PER_KES_PERIOD)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A pool of a public network whose certificate began some periods ago, as nearly every pool's has."""
    start = public_schedule().period_at(time.time()) - PERIODS_BEHIND
    make_keys(tmp_path / "keys", start_kes_period=start, issue_number=3)
    return tmp_path / "keys"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "run" / "node.socket"


@pytest.mark.parametrize("source", ["table", "cardano-node"])
def test_a_thousand_signatures_across_a_border_of_periods_leave_the_folder_as_it_was(
    keys: Path, tmp_path: Path, source: str
) -> None:
    schedule = public_schedule()
    border_s = schedule.slot_zero_unix_s + (schedule.period_at(time.time()) + 1) * schedule.period_s
    before = look_of(keys)

    async def scenario() -> set[int]:
        clock = SteppedClock(border_s - SIGNATURES / 2)
        chain = PretendCardanoNode(preview_ledger(border_s))
        asked = KesClock(
            MAGIC, cardano_socket=tmp_path / "cardano.socket", cardano_magic=chain.magic, clock=clock
        )
        await chain.start(SocketNetwork(), tmp_path / "cardano.socket")
        signer = DmqSigner(keys, schedule=schedule if source == "table" else asked, clock=clock)
        periods = set()
        for _ in range(SIGNATURES):
            clock.now_s += 1
            message = await signer.sign(BODY, EXPIRES_AT)
            assert message.kes_period == schedule.period_at(clock.now_s)
            if message.kes_period not in periods:
                assert check_proof(message) is None
                assert look_of(keys) == before
            periods.add(message.kes_period)
        await signer.close()
        await chain.stop()
        assert (chain.connections > 0) is (source != "table")
        return periods

    periods = asyncio.run(scenario())

    assert look_of(keys) == before
    assert len(periods) == 2


TIERS: tuple[tuple[str, ...], ...] = ((), ("--tier", "best-effort"), ("--tier", "queued"))


@pytest.mark.slow
def test_twenty_runs_of_send_leave_the_folder_as_it_was(keys: Path, socket: Path, tmp_path: Path) -> None:
    before = look_of(keys)

    with node_in_background(socket, magic=MAGIC) as node:
        for number in range(RUNS):
            node.refusal = REFUSAL if number % 2 else None
            tier = TIERS[number % len(TIERS)]
            asked = node.submissions
            with running_send(keys, socket, tmp_path, *tier) as process:
                said, _ = process.communicate(timeout=ENDED_WITHIN_S)
            assert node.submissions > asked, f"{tier} did not get as far as the node: {said}"
            assert (process.returncode == 0) is (node.refusal is None), f"{tier}: {said}"
            assert look_of(keys) == before, f"run {number} with {tier}, refused is {node.refusal is not None}"

    assert node.messages


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier[-1] if tier else "plain")
def test_send_that_is_killed_in_the_middle_leaves_the_folder_as_it_was(
    tier: tuple[str, ...], keys: Path, socket: Path, tmp_path: Path
) -> None:
    before = look_of(keys)

    with node_in_background(socket, magic=MAGIC, answer_after_s=2 * ENDED_WITHIN_S) as node:
        with running_send(keys, socket, tmp_path, *tier) as process:
            _wait_for_submission(node, process)
            process.kill()
            process.communicate(timeout=ENDED_WITHIN_S)
        assert process.returncode < 0

    assert look_of(keys) == before


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier[-1] if tier else "plain")
def test_send_works_with_a_folder_that_it_cannot_write(
    tier: tuple[str, ...], keys: Path, socket: Path, tmp_path: Path
) -> None:
    for path in keys.iterdir():
        path.chmod(0o400)
    keys.chmod(0o500)
    if _can_write(keys):
        pytest.skip("this user can write to a read-only folder, and may not give that up")
    before = look_of(keys)

    with node_in_background(socket, magic=MAGIC) as node:
        with running_send(keys, socket, tmp_path, *tier) as process:
            said, _ = process.communicate(timeout=ENDED_WITHIN_S)
        assert process.returncode == 0, said

    assert len(node.messages) == 1
    assert look_of(keys) == before


@contextmanager
def running_send(keys: Path, socket: Path, folder: Path, *tier: str) -> Iterator[subprocess.Popen[str]]:
    arguments = ["send", "hello there", "--keys", keys, "--socket", socket, "--network-magic", MAGIC, *tier]
    if "queued" in tier:
        arguments += ["--outbox", folder / "outbox", "--timeout", "20s"]
    process = subprocess.Popen(
        _obeying_modes("-m", "stagepost.cli.main", *map(str, arguments)),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for_submission(node: SmallNode, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + ENDED_WITHIN_S
    while not node.submissions:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until, "the message did not reach the node"
        time.sleep(0.01)


def _obeying_modes(*arguments: str) -> list[str]:
    """Return the command for Python. Root, who may write everywhere, has that right taken away first."""
    command = [sys.executable, *arguments]
    return [sys.executable, "-c", OBEY_MODES, *command] if os.geteuid() == 0 else command


def _can_write(folder: Path) -> bool:
    attempt = f"import os; os.close(os.open({str(folder / 'new')!r}, os.O_CREAT | os.O_WRONLY))"
    done = subprocess.run(_obeying_modes("-c", attempt), stderr=subprocess.DEVNULL, check=False)
    (folder / "new").unlink(missing_ok=True)
    return done.returncode == 0
