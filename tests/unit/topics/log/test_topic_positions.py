"""Positions of readers on disk: durable, whole, of one process at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.errors import ConfigError, StorageError
from stagepost.topics.log.positions import OFFSET_MAX, FilePositions, group_names, read_positions
from stagepost.topics.topic import DamagedLog
from tests.worlds.ground.damaged_files import cut, damaged, flip
from tests.worlds.topics.topic_disks import FailingFiles
from tests.worlds.topics.topic_records import a_topic


def test_what_is_committed_is_there_in_the_next_life(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, partitions=3)
    positions = topic.positions("pipeline")
    assert positions.committed == {}
    asyncio.run(positions.commit({0: 5, 2: OFFSET_MAX}))
    asyncio.run(positions.commit({0: 6}))
    assert read_positions(topic.folder, "pipeline") == {0: 6, 2: OFFSET_MAX}
    positions.close()

    again = topic.positions("pipeline")
    assert again.committed == {0: 6, 2: OFFSET_MAX}
    asyncio.run(again.commit({0: 0}))
    assert again.committed[0] == 0, "to read it all again"
    again.close()
    assert group_names(topic.folder) == ["pipeline"]


def test_two_processes_cannot_read_for_one_group(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    positions = topic.positions("a")

    with pytest.raises(StorageError, match="held by another process"):
        topic.positions("a")
    topic.positions("b").close()
    positions.close()
    topic.positions("a").close()


def test_positions_that_cannot_be_are_refused(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, partitions=2)
    positions = topic.positions("a")
    for partition, offset in ((2, 0), (-1, 0), (0, -1), (0, OFFSET_MAX + 1)):
        with pytest.raises(
            ConfigError, match=f"offset {offset} of partition {partition} cannot be a position"
        ):
            asyncio.run(positions.commit({partition: offset}))
    assert positions.committed == {}
    positions.close()
    with pytest.raises(ConfigError, match="group of readers"):
        topic.positions("no/slash")


@pytest.mark.parametrize("change", [flip, cut])
def test_damage_to_a_position_is_refused_at_every_byte(tmp_path: Path, change: object) -> None:
    """A wrong position would skip records, or handle them twice."""
    assert callable(change)
    topic = a_topic(tmp_path)
    positions = topic.positions("a")
    asyncio.run(positions.commit({0: 1_234}))
    positions.close()
    path = topic.folder / "groups" / "a.json"
    for content in damaged(path.read_bytes(), change, range(len(path.read_bytes()))):
        path.write_bytes(content)
        with pytest.raises(DamagedLog, match=r"a\.json is damaged"):
            topic.positions("a")


def test_every_call_of_a_commit_fails_once_and_the_old_position_stays(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    files = FailingFiles()
    positions = FilePositions(topic.folder, topic.name, 1, "a", files)
    positions.commit_now({0: 0})
    met = 0
    for at in range(1, 12):
        files.fail(at)
        try:
            positions.commit_now({0: at})
        except StorageError as error:
            assert "cannot be written" in error.text  # noqa: PT017
        if files.heal():
            met += 1
            # The last call of all is the folder's sync: then the new one is there already, and may stay.
            assert read_positions(topic.folder, "a")[0] in (positions.committed[0], at)
        positions.commit_now({0: 100 + at})
        assert read_positions(topic.folder, "a") == {0: 100 + at} == positions.committed
    assert met == 6
    positions.close()
