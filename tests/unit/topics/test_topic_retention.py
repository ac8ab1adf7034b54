"""Retention: whole segments, the oldest first, by bytes and by age; readers who come too late are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.topics.log import segment
from stagepost.topics.log.file_topic import open_topic, partition_folder, topic_facts
from stagepost.topics.topic import OffsetGone, Place, Retention
from tests.worlds.topics.topic_disks import QuickFiles
from tests.worlds.topics.topic_records import NAME, a_record, a_topic, a_writer, all_records, append_now


def filled(tmp_path: Path, retention: Retention, now_ms: list[int]) -> tuple[Path, int]:
    """Ten segments of one record of about a kilobyte, a second apart."""
    topic = a_topic(tmp_path)
    writer = a_writer(topic, retention=retention, segment_bytes=1_000, now_ms=lambda: now_ms[0])
    for number in range(10):
        append_now(writer, [a_record(number, value=bytes(1_000), timestamp_ms=None)])
        now_ms[0] += 1_000
    size = topic_facts(tmp_path, NAME)[0]["bytes"]
    writer.close_now()
    return partition_folder(topic.folder, 0), size


def test_the_oldest_segments_go_when_there_are_too_many_bytes(tmp_path: Path) -> None:
    _, size = filled(tmp_path / "all", Retention(), [0])
    one = size // 10
    for name, bytes_max, left in (("exact", 4 * one, 4), ("less", 4 * one - 1, 3)):
        folder, _ = filled(tmp_path / name, Retention(bytes_max=bytes_max), [0])
        reader = open_topic(tmp_path / name, NAME).reader()

        assert segment.base_offsets(folder) == list(range(10 - left, 10))
        assert (reader.start_offset(0), reader.end_offset(0)) == (10 - left, 10)
        assert [read.offset for read in all_records(reader)] == list(range(10 - left, 10))
        with pytest.raises(OffsetGone, match=f"retention has kept {10 - left} and what follows") as gone:
            list(reader.batches(0, 0))
        assert gone.value.first_kept == 10 - left


def test_facts_leave_out_a_segment_that_goes_while_they_are_collected(tmp_path: Path) -> None:
    folder, size = filled(tmp_path, Retention(), [0])
    # Listed, and gone when its size is asked for: as a removal by the writer in between.
    segment.segment_path(folder, 3).unlink()
    segment.segment_path(folder, 3).symlink_to(tmp_path / "gone")

    assert size * 8 // 10 < topic_facts(tmp_path, NAME)[0]["bytes"] < size


def test_segments_go_when_their_last_append_is_too_old(tmp_path: Path) -> None:
    now_ms = [1_000_000]
    filled(tmp_path, Retention(), now_ms)
    topic = open_topic(tmp_path, NAME)
    # The newest of ten is a second old, the oldest ten seconds.
    now = now_ms[0]
    writer = a_writer(topic, retention=Retention(age_ms_max=4_000), segment_bytes=1_000, now_ms=lambda: now)
    assert topic.reader().start_offset(0) == 6
    writer.close_now()

    writer = a_writer(topic, retention=Retention(age_ms_max=4_000), now_ms=lambda: now + 3_001)
    reader = topic.reader()
    assert (reader.start_offset(0), reader.end_offset(0)) == (10, 10)
    assert append_now(writer, [a_record()]) == [Place(0, 10)]
    writer.close_now()
    assert len(all_records(reader)) == 1
    a_writer(topic).close_now()


@pytest.mark.parametrize("step_ms", [30 * 86_400_000, -30 * 86_400_000])
def test_a_clock_that_is_wrong_for_a_moment_makes_no_record_old(tmp_path: Path, step_ms: int) -> None:
    """It would take all records of a node with it, and its owner sets the clock right a minute later."""
    now_ms, week_ms = [1_800_000_000_000], 7 * 86_400_000
    topic = a_topic(tmp_path)
    writer = a_writer(
        topic, retention=Retention(age_ms_max=week_ms), segment_bytes=1_000, now_ms=lambda: now_ms[0]
    )
    for step in (0, step_ms, 0, -step_ms, 0):
        now_ms[0] += step
        append_now(writer, [a_record(0, value=bytes(1_000), timestamp_ms=None)])
    writer.close_now()

    assert topic.reader().start_offset(0) == 0


def test_without_retention_nothing_goes(tmp_path: Path) -> None:
    folder, _ = filled(tmp_path, Retention(), [0])

    assert segment.base_offsets(folder) == list(range(10))


def test_a_scan_that_retention_overtakes_says_so(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic, segment_bytes=1_000)
    for number in range(5):
        append_now(writer, [a_record(number, value=bytes(1_000))])
    scan = topic.reader().batches(0, 0)
    next(scan)
    writer.close_now()
    a_writer(topic, retention=Retention(bytes_max=1)).close_now()

    with pytest.raises(OffsetGone, match="offset 1 of partition 0"):
        list(scan)


def test_removal_that_did_not_come_to_its_end_is_finished_later(tmp_path: Path) -> None:
    class Unremoving(QuickFiles):
        def remove(self, path: Path) -> None:
            if path.suffix != ".segment" or not path.exists():
                super().remove(path)

    topic = a_topic(tmp_path)
    writer = a_writer(topic, segment_bytes=1_000)
    for number in range(5):
        append_now(writer, [a_record(number, value=bytes(1_000))])
    writer.close_now()
    a_writer(topic, retention=Retention(bytes_max=2_500), files=Unremoving()).close_now()
    folder = partition_folder(topic.folder, 0)
    assert topic.reader().start_offset(0) == 3
    assert segment.base_offsets(folder) == [0, 1, 2, 3, 4]

    a_writer(topic, retention=Retention(bytes_max=10**9)).close_now()

    assert topic.reader().start_offset(0) == 3
    assert segment.base_offsets(folder) == [3, 4]
