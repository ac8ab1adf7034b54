"""D4 and D2 for topics: each call fails once, disks are full, the power is cut at any call. Nothing acknowledged is lost."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from stagepost.errors import ErrorCode, StorageError
from stagepost.topics.log import block
from stagepost.topics.log.file_topic import FileTopic, FileTopicWriter, open_topic, partition_folder
from stagepost.topics.log.partition_log import PartitionLog
from stagepost.topics.topic import Record, Retention
from tests.worlds.ground.damaged_files import run_alone
from tests.worlds.topics.topic_disks import CuttableFiles, FailingFiles, PowerCut, QuickFiles
from tests.worlds.topics.topic_records import (
    NAME,
    a_record,
    a_topic,
    a_writer,
    all_records,
    append_now,
    as_read,
)

CALLS_MAX = 36
POWER_CUTS = 90


class Watched:
    """A topic, and what an onlooker knows of it: what was acknowledged, in order."""

    def __init__(self, folder: Path, files: FailingFiles) -> None:
        self.topic = a_topic(folder)
        self.files = files
        self.errors: list[StorageError] = []
        self.acknowledged: list[Record] = []
        self.refusals: list[StorageError] = []
        self.writer = self.opened()
        self._number = 0

    def opened(self) -> FileTopicWriter:
        return self.topic.writer(files=self.files, segment_bytes=2_000, on_error=self.errors.append)

    def append(self) -> StorageError | None:
        self._number += 1
        records = [a_record(self._number, value=bytes(200)), a_record(-self._number, timestamp_ms=1)]
        try:
            places = append_now(self.writer, records)
        except StorageError as error:
            self.refusals.append(error)
            return error
        assert [place.offset for place in places] == [len(self.acknowledged), len(self.acknowledged) + 1]
        self.acknowledged += records
        return None

    def require_whole(self) -> None:
        assert all_records(self.topic.reader()) == as_read(self.acknowledged)


@pytest.mark.parametrize(
    ("error", "failures", "is_short"),
    [(errno.EIO, 1, False), (errno.ENOSPC, 1, True), (errno.ENOSPC, 2, False), (errno.EIO, 6, False)],
)
def test_every_call_fails_once_and_nothing_acknowledged_is_lost(
    tmp_path: Path, error: int, failures: int, is_short: bool
) -> None:
    """Over a change of segments and over opening anew; what was refused never shows."""
    files = FailingFiles()
    watched = Watched(tmp_path, files)
    met = refused = 0
    for at in range(1, CALLS_MAX):
        files.is_short = is_short
        files.fail(at, error, failures=failures)
        for _ in range(3):
            refused += watched.append() is not None
        watched.require_whole()
        met += files.heal()
        assert watched.append() is None, "the disk is well again"
        watched.require_whole()
    watched.writer.close_now()

    assert met > 10
    assert refused >= met
    assert {refusal.code for refusal in watched.refusals} == {ErrorCode.STORAGE_UNAVAILABLE}
    assert all(refusal.advice for refusal in watched.refusals)
    watched.writer = watched.opened()
    assert watched.append() is None
    watched.require_whole()
    watched.writer.close_now()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_for_long_refuses_with_the_reason_and_is_told_once(
    tmp_path: Path, error: int
) -> None:
    files = FailingFiles()
    watched = Watched(tmp_path, files)
    assert watched.append() is None
    files.fail(1, error, failures=10**9)
    for _ in range(5):
        found = watched.append()
        assert found is not None
        assert ("no space left on device" if error == errno.ENOSPC else "input/output error") in found.text
        assert str(partition_folder(watched.topic.folder, 0)) in found.text
        watched.require_whole()
    files.heal()

    assert watched.append() is None
    assert len(watched.errors) == 1
    watched.require_whole()
    watched.writer.close_now()


def test_after_a_failed_sync_the_file_is_opened_anew_and_looked_at(tmp_path: Path) -> None:
    class Opening(FailingFiles):
        opens = 0

        def open(self, path: Path, *, is_new: bool = False) -> int:
            self.opens += path.suffix == ".segment"
            return super().open(path, is_new=is_new)

    files = Opening()
    watched = Watched(tmp_path, files)
    assert watched.append() is None
    before = files.opens
    files.fail(1, kinds=("sync",))
    assert watched.append() is not None
    files.heal()
    assert watched.append() is None
    assert files.opens == before + 1

    # And if it is not what it was, that is said, and nothing is written to it.
    files.fail(1, kinds=("sync",))
    assert watched.append() is not None
    files.heal()
    (path,) = partition_folder(watched.topic.folder, 0).glob("*.segment")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    found = watched.append()
    assert found is not None
    assert "is damaged at byte 64" in found.text
    watched.writer.close_now()


def test_an_answer_comes_after_the_sync(tmp_path: Path) -> None:
    """The one order that everything rests on."""
    order: list[str] = []

    class Telling(QuickFiles):
        def write(self, file: int, content: bytes | memoryview, position: int) -> int:
            order.append("mark" if len(content) == 64 and position == 0 else "write")
            return super().write(file, content, position)

        def sync(self, file: int) -> None:
            order.append("sync")

    writer = a_writer(a_topic(tmp_path), files=Telling())
    order.clear()
    writer.append_soon([a_record()], lambda outcome: order.append("answer"))
    writer.close_now()

    assert order == ["write", "sync", "mark", "answer"]


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    """A real limit of the system, met with a short write first."""
    printed = run_alone(
        "import resource, signal\n"
        "from pathlib import Path\n"
        "from stagepost.topics.log.file_topic import create_topic\n"
        "from stagepost.errors import StorageError\n"
        "from tests.worlds.topics.topic_records import NAME, a_record, all_records, append_now\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"topic = create_topic(Path({str(tmp_path)!r}), NAME)\n"
        "writer = topic.writer()\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))\n"
        "taken = 0\n"
        "try:\n"
        "    while True:\n"
        "        append_now(writer, [a_record(taken, value=bytes(900))])\n"
        "        taken += 1\n"
        "except StorageError as error:\n"
        "    print(error.reason)\n"
        "print(len(all_records(topic.reader())) == taken)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "print(append_now(writer, [a_record()])[0].offset == taken)\n"
        "writer.close_now()\n"
        "print(len(all_records(topic.reader())) == taken + 1)\n"
    )

    assert printed.splitlines() == ["file too large", "True", "True", "True"]


def test_nothing_acknowledged_is_lost_when_the_power_is_cut_at_any_call(
    tmp_path: Path, run_seed: int
) -> None:
    """Sectors of unsynced writes reach the disk or not, sizes grow or not, removed names come back; several cuts in one life."""
    cuts = sum(_cut_power(tmp_path / str(trial), run_seed + trial) for trial in range(POWER_CUTS // 3))

    assert cuts > POWER_CUTS // 2


def test_a_disk_that_does_not_sync_is_found_out(tmp_path: Path, run_seed: int) -> None:
    """The control: cuts that lose nothing here prove nothing there."""

    def cut_all() -> None:
        for trial in range(POWER_CUTS // 3):
            _cut_power(tmp_path / str(trial), run_seed + trial, is_syncing=False)

    with pytest.raises((AssertionError, StorageError)):
        cut_all()


def _cut_power(folder: Path, seed: int, *, is_syncing: bool = True) -> int:
    """Three lives of one topic; how many of them ended with the power."""
    chance = Random(seed)
    topic = a_topic(folder)
    acknowledged: dict[int, Record] = {}
    cuts = 0
    for _ in range(3):
        files = CuttableFiles(chance, chance.randrange(1, 120), is_syncing=is_syncing)
        cuts += _one_life(topic, files, chance, acknowledged)
        a_writer(topic, segment_bytes=1_500).close_now()
        reader = topic.reader()
        found = {read.offset: read for read in all_records(reader)}
        kept = range(reader.start_offset(0), reader.end_offset(0))
        assert list(found) == list(kept), f"seed {seed}"
        for offset, record in acknowledged.items():
            assert offset < kept.stop, f"seed {seed}: offset {offset} is lost"
            assert offset < kept.start or found[offset].value == record.value, f"seed {seed}: {offset}"
    return cuts


def _one_life(
    topic: FileTopic, files: CuttableFiles, chance: Random, acknowledged: dict[int, Record]
) -> bool:
    """Until the power is cut, or for thirty appends; whether it was cut."""
    place = partition_folder(topic.folder, 0)
    place.mkdir(exist_ok=True)
    log: PartitionLog | None = None
    try:
        log = PartitionLog(place, 0, retention=Retention(bytes_max=6_000), segment_bytes=1_500, files=files)
        for _ in range(30):
            sizes = [chance.randrange(400) for _ in range(3)]
            records = [a_record(chance.randrange(10**6), value=chance.randbytes(size)) for size in sizes]
            offset = log.append([block.row_of(record, 0) for record in records], 0)
            acknowledged.update(enumerate(records, start=offset))
            log.retain(0)
    except PowerCut:
        return True
    finally:
        if log is not None:
            # A machine that is off holds no lock.
            log.close()
        files.come_back()
    return False


def test_a_topic_outlives_its_writers(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    for number in range(5):
        writer = a_writer(topic)
        append_now(writer, [a_record(number)])
        writer.close_now()

    assert all_records(open_topic(tmp_path, NAME).reader()) == as_read(
        [a_record(number) for number in range(5)]
    )
