"""kill -9 of a topic's writer under load: nothing acknowledged is lost, and a reader beside it never sees anything torn or taken back."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stagepost.errors import StorageError
from stagepost.topics.log.file_topic import create_topic
from tests.worlds.topics.topic_processes import DEFECTS, NAME, PARTITIONS, name_in

CYCLES = 10
DEFECT_CYCLES_MAX = 12
LIFE_S_MAX = 0.4
ROOT = Path(__file__).parents[2]


class World:
    """One topic, what its writers have acknowledged, and what a reader has seen of it while they lived."""

    def __init__(self, data: Path, told: Path, seed: int, defect: str = "none") -> None:
        self.data = data
        self.told = told
        self.topic = create_topic(data, NAME, PARTITIONS)
        self.seen: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        self._chance = random.Random(seed)
        self._defect = defect

    def cycle(self, life: int, before_the_kill: Callable[[], None] = lambda: None) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        told = [str(self.data), str(self.told), str(life), self._defect]
        command = [sys.executable, "-m", "tests.worlds.topics.topic_processes", *told]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            # Real time, since a real process is to be killed somewhere in the middle of its work.
            until = time.monotonic() + self._chance.uniform(0.01, LIFE_S_MAX)
            while time.monotonic() < until:
                self.look()
            assert process.poll() is None, "the writer ended by itself"
            before_the_kill()
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    def look(self) -> None:
        """As any reader does, while the topic grows: from where it stopped to the present end."""
        reader = self.topic.reader()
        for partition, names in self.seen.items():
            for batch in reader.batches(partition, len(names)):
                assert batch.base_offset == len(names)
                names += map(name_in, batch.values)

    def check(self) -> int:
        """Everything from the beginning; how many records were acknowledged so far."""
        self.topic.writer().close_now()
        reader = self.topic.reader()
        found: dict[int, list[str]] = {}
        for partition in range(PARTITIONS):
            values = (value for batch in reader.batches(partition, 0) for value in batch.values)
            found[partition] = list(map(name_in, values))
            seen = self.seen[partition]
            assert found[partition][: len(seen)] == seen, "what a reader had seen was taken back"
        names = [name for part in found.values() for name in part]
        assert len(names) == len(set(names)), "a record is there twice"
        there = set(names)
        # Whole lines only: the last one may be cut off by the kill.
        lines = self.told.read_text().split("\n")[:-1] if self.told.exists() else []
        lost = 0
        for line in lines:
            name, place, offset = line.split()
            if int(place) < 0:
                lost += name not in there
            else:
                held = found[int(place)]
                lost += int(offset) >= len(held) or held[int(offset)] != name
        assert not lost, f"{lost} acknowledged records are lost"
        return len(lines)


def kill_loop(folder: Path, seed: int, cycles: int, defect: str = "none") -> int:
    """How many records were acknowledged; `AssertionError` or `StorageError` if one was lost or torn."""
    world = World(folder, folder / "told", seed, defect)
    acknowledged = 0
    for life in range(cycles):
        world.cycle(life)
        acknowledged = world.check()
    return acknowledged


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_nothing_torn_is_read_through_kill_9(run_seed: int) -> None:
    with TemporaryDirectory(prefix="stagepost-") as folder:
        assert kill_loop(Path(folder), run_seed, CYCLES) > CYCLES * 10


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS[1:3])
def test_a_planted_defect_of_the_writer_is_found(defect: str, run_seed: int) -> None:
    """The control: a loop that does not find these finds nothing."""
    with (
        TemporaryDirectory(prefix="stagepost-") as folder,
        pytest.raises((AssertionError, StorageError), match=r"are lost|is damaged"),
    ):
        kill_loop(Path(folder), run_seed, DEFECT_CYCLES_MAX, defect)
