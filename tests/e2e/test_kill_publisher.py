"""kill -9 of publisher and receiver under load: no returned id is lost, and every effect happens once.

Except, by nature, an effect between whose claim and whose act the process was killed: it is claimed and stays undone.
Only where both are in one transaction is there none of these.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stagepost.delivery.stores.inbox_rules import TABLES
from stagepost.delivery.stores.inbox_stores import INBOX_FILE
from stagepost.delivery.stores.reading import check_outbox, read_outbox
from stagepost.ground.storage.table_file import read_beside
from tests.worlds.delivery.delivery_processes import DEFECTS

CYCLES = 10
DEFECT_CYCLES_MAX = 12
LIFE_S_MAX = 0.5
DRAINED_WITHIN_S = 60
HANDLERS_AT_ONCE = 8
LOST = "are lost|more is undone than kills explain"
ROOT = Path(__file__).parents[2]


class Process:
    def __init__(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        command = [sys.executable, "-m", "tests.worlds.delivery.delivery_processes", *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def live_for(self, life_s: float) -> None:
        """Real time, since a real process is to be killed somewhere in the middle of its work."""
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(life_s)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


class World:
    """One outbox, one inbox, and everything that was ever reported about them."""

    def __init__(self, folder: Path, seed: int, defect: str = "none") -> None:
        self.folder = folder
        self.receiver_kills = 0
        self._defect = defect
        self._chance = random.Random(seed)
        self._receiver: Process | None = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        if self._receiver is not None:
            self._receiver.kill()

    def cycle(self, number: int) -> None:
        """Live and die: the publisher always, the receiver every other time, somewhere in the same life."""
        chance = self._chance
        if self._receiver is None:
            self._receiver = Process("receive", str(self.folder), self._defect)
        publisher = Process("publish", str(self.folder), str(number), self._defect)
        try:
            publisher.live_for(chance.uniform(0.05, LIFE_S_MAX))
            if number % 2 == 0:
                self._receiver.kill()
                self._receiver = None
                self.receiver_kills += 1
                publisher.live_for(chance.uniform(0.001, 0.1))
        finally:
            publisher.kill()
        assert publisher.process.returncode == -signal.SIGKILL

    def drain(self) -> None:
        """Both live until everything is delivered, and end in good order."""
        if self._receiver is None:
            self._receiver = Process("receive", str(self.folder), self._defect)
        publisher = Process("publish", str(self.folder), "-1", self._defect)
        try:
            assert publisher.process.wait(DRAINED_WITHIN_S) == 0
        finally:
            publisher.kill()

    def _lines(self, name: str) -> list[str]:
        """Whole lines only: the last one may be cut off by the kill."""
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def check(self) -> int:
        """How many ids were returned in all; every one is on its way, or has arrived."""
        outbox = check_outbox(self.folder / "outbox")
        assert outbox.is_sound, f"the outbox does not balance or is damaged: {outbox}"
        assert outbox.totals.failed == {}, f"messages failed: {outbox.totals}"
        live = {record.delivery_id.hex() for record in read_outbox(self.folder / "outbox").records}
        returned: dict[str, set[str]] = {kind: set() for kind in ("plain", "ledger", "calls", "acked")}
        for line in self._lines("returned"):
            kind, message_id = line.split()
            assert message_id not in returned[kind], "one id was returned twice"
            returned[kind].add(message_id)
        with closing(sqlite3.connect(self.folder / "ledger.sqlite", timeout=30)) as connection:
            ledger = Counter(row[0] for row in connection.execute("SELECT message_id FROM effects"))
        calls = Counter(self._lines("calls"))
        twice = [
            message_id for effects in (ledger, calls) for message_id, count in effects.items() if count > 1
        ]
        assert not twice, f"{len(twice)} effects happened twice"
        found = read_beside(self.folder / "inbox" / INBOX_FILE, TABLES, "inbox", is_in_use=True)
        claimed = {key.hex() for key, record in found.held["inbox"].items() if record.is_claimed}
        undone = claimed - calls.keys()
        assert len(undone) <= (self.receiver_kills + 1) * HANDLERS_AT_ONCE, (
            "more is undone than kills explain"
        )
        for name, lost in (
            ("plain", returned["plain"] - live - set(self._lines("handed"))),
            ("ledger", returned["ledger"] - live - ledger.keys()),
            ("calls", returned["calls"] - live - calls.keys() - undone),
            ("acked", returned["acked"] - ledger.keys()),
        ):
            assert not lost, f"{len(lost)} returned ids of {name} are lost"
        return sum(map(len, returned.values()))


def kill_loop(folder: Path, seed: int, cycles: int, defect: str = "none") -> int:
    """How many ids were returned; `AssertionError` if one was lost or one effect happened twice."""
    with World(folder, seed, defect) as world:
        for number in range(cycles):
            world.cycle(number)
            world.check()
        world.drain()
        returned = world.check()
        assert read_outbox(folder / "outbox").records == ()
        return returned


@pytest.mark.slow
def test_no_returned_id_is_lost_and_no_effect_happens_twice_through_kill_9(run_seed: int) -> None:
    with TemporaryDirectory(prefix="stagepost-") as folder:
        assert kill_loop(Path(folder), run_seed, CYCLES) > CYCLES * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "fault"),
    # What is lost shows at the publisher or at the receiver, whichever is looked at first.
    list(zip(DEFECTS[1:], [LOST, LOST, "happened twice"], strict=True)),
)
def test_a_planted_defect_is_found(defect: str, fault: str, run_seed: int) -> None:
    """The control: a loop that does not find these finds nothing."""
    with TemporaryDirectory(prefix="stagepost-") as folder, pytest.raises(AssertionError, match=fault):
        kill_loop(Path(folder), run_seed, DEFECT_CYCLES_MAX, defect)
