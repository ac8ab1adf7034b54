"""A stream goes on in the topic that it has read, and refuses one that was begun anew, however long that is by now."""

from __future__ import annotations

import json
import shlex
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagepost.cli.main import run
from stagepost.pipeline.sources.topic_marks import TopicBegunAnew
from stagepost.pipeline.sources.topic_places import FolderPlace, NodePlace, TopicPlace
from stagepost.pipeline.tables.manifest import counts, read_manifest
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import STATUSES, Record, Retention
from tests.worlds.pipeline.pipeline_spark import need_packages, small_spark
from tests.worlds.pipeline.pipeline_topics import a_topic
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes
from tests.worlds.topics.topic_serving import served_at

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from stagepost.pipeline.sources.topic_source import TopicStreamReader

READ = 10


def written(data: Path, count: int, text: str = "first", **more: Any) -> FolderPlace:
    """Append so many records, one block each; the topic is made if need be."""
    data.mkdir(mode=0o700, exist_ok=True)
    writer = create_topic(data, STATUSES).writer(now_ms=lambda: 1_000, **more)
    for number in range(count):
        writer.append_soon([Record(b"key", f"{text} {number}".encode())], lambda outcome: None)
    writer.close_now()
    return FolderPlace(data)


def begun_anew(data: Path, count: int, text: str = "second") -> None:
    shutil.rmtree(data / "topics")
    written(data, count, text)


def a_reader(place: TopicPlace, rows_max: int = 100) -> TopicStreamReader:
    need_packages()
    from stagepost.pipeline.sources.topic_source import TopicStreamReader

    return TopicStreamReader(place, None, rows_max)


def after(offsets: Any, place: TopicPlace, rows_max: int = 100) -> Any:
    """Return what the checkpoint holds when the batch that follows `offsets` has been planned."""
    reader = a_reader(place, rows_max)
    following = reader.latestOffset(offsets, reader.getDefaultReadLimit())
    assert reader.partitions(offsets, following) or offsets == following
    return json.loads(json.dumps(following))


@pytest.mark.parametrize("count", [0, 3, READ - 1, READ, READ + 1, 3 * READ])
def test_a_topic_that_was_begun_anew_is_refused_at_every_length(tmp_path: Path, count: int) -> None:
    place = written(tmp_path / "data", READ)
    planned = after(a_reader(place).initialOffset(), place)
    begun_anew(tmp_path / "data", count)

    with pytest.raises(TopicBegunAnew, match=f"topic {STATUSES} was begun anew"):
        after(planned, place)


def test_a_topic_that_is_gone_altogether_is_refused(tmp_path: Path) -> None:
    place = written(tmp_path / "data", READ)
    planned = after(a_reader(place).initialOffset(), place)
    shutil.rmtree(tmp_path / "data" / "topics")

    with pytest.raises(TopicBegunAnew, match="up to offset 10, and it is not there"):
        after(planned, place)


def test_a_batch_that_was_planned_before_a_restart_is_not_read_from_another_topic(tmp_path: Path) -> None:
    place = written(tmp_path / "data", READ)
    start: Any = a_reader(place).initialOffset()
    planned = after(start, place)
    begun_anew(tmp_path / "data", 3 * READ)

    with pytest.raises(TopicBegunAnew, match="the record with offset 9 is another one now"):
        a_reader(place).partitions(start, planned)


def test_a_topic_that_has_grown_is_read_on_batch_by_batch(tmp_path: Path) -> None:
    place = written(tmp_path / "data", READ)
    offsets = a_reader(place).initialOffset()
    reached = []
    for _ in range(4):
        offsets = after(offsets, place, 4)
        reached.append(offsets[STATUSES]["0"][0])
    written(tmp_path / "data", 2, "more")
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    moved = after(offsets, FolderPlace(tmp_path / "elsewhere"))

    assert reached == [4, 8, 10, 10]
    assert moved[STATUSES]["0"][0] == 12


def test_offsets_of_an_earlier_release_go_on_and_get_their_marks(tmp_path: Path) -> None:
    place = written(tmp_path / "data", READ)
    earlier = {STATUSES: {"0": 4}}

    marked = after(earlier, place)

    assert marked[STATUSES]["0"] == after({STATUSES: {"0": 0}}, place)[STATUSES]["0"]
    assert after({STATUSES: {"0": READ}}, place) == {STATUSES: {"0": READ}}
    begun_anew(tmp_path / "data", 3)
    with pytest.raises(TopicBegunAnew, match="ends at 3"):
        after(earlier, place)


def test_retention_that_has_removed_what_was_read_stops_nothing(tmp_path: Path) -> None:
    place = written(tmp_path / "data", READ)
    planned = after(a_reader(place).initialOffset(), place)
    # Everything is older than so much: the next writer keeps what it is given alone.
    more = {"retention": Retention(age_ms_max=1), "segment_bytes": 1}
    writer = create_topic(tmp_path / "data", STATUSES).writer(now_ms=lambda: 10_000, **more)  # type: ignore[arg-type]
    writer.append_soon([Record(b"key", b"late")], lambda outcome: None)
    writer.close_now()

    assert place.bounds()[0] == {STATUSES: {"0": READ}}
    assert after(planned, place)[STATUSES]["0"][0] == READ + 1


@pytest.mark.parametrize("count", [3, 3 * READ])
def test_a_topic_of_a_node_elsewhere_is_looked_at_alike(tmp_path: Path, count: int) -> None:
    written(tmp_path / "data", READ)
    with served_at(tmp_path / "data") as address:
        place = NodePlace(address)
        planned = after(a_reader(place).initialOffset(), place)
        assert planned == after({STATUSES: {"0": 0}}, FolderPlace(tmp_path / "data"))
        begun_anew(tmp_path / "data", count)

        with pytest.raises(TopicBegunAnew, match=f"topic {STATUSES} was begun anew"):
            after(planned, place)


# On a small Spark


def test_a_run_over_a_topic_begun_anew_is_refused_with_a_command_that_takes_every_record(
    tmp_path: Path, run_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    small_spark()
    data, sets, out = tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables"
    sets.write_bytes(sets_bytes())
    first = a_topic(data, a_dump(2, run_seed), 1).read_bytes().splitlines()
    command = ["pipeline", "run", "--once", "--data", str(data), "--validator-sets", str(sets)]
    assert run([*command, "--out", str(out)]) == 0
    before = read_manifest(out)
    shutil.rmtree(data)
    longer = next(lot for messages in count(4) if len(lot := a_dump(messages, run_seed + 1)) > len(first))
    second = a_topic(data, longer, 1).read_bytes().splitlines()
    capsys.readouterr()

    assert run([*command, "--out", str(out)]) == 2

    said = capsys.readouterr().err
    assert f"topic {STATUSES} was begun anew" in said
    assert read_manifest(out) == before
    commands = [one for one in said.split("`") if one.startswith("stagepost ")]
    assert [one.split()[2] for one in commands] == ["run", "backfill"]
    assert run(shlex.split(commands[1])[1:]) == 0
    after_all = read_manifest(out)
    assert after_all is not None
    assert counts(after_all)["rows"] == len(first) + len(second)


def test_a_topic_that_is_begun_anew_while_a_stream_reads_it_stops_the_stream_with_its_name(
    tmp_path: Path, run_seed: int
) -> None:
    spark = small_spark()
    from stagepost.pipeline.stream import StreamOptions, follow

    data, sets, out = tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables"
    sets.write_bytes(sets_bytes())
    rows_max = len(a_topic(data, a_dump(2, run_seed), 1).read_bytes().splitlines()) // 2

    def at_point(name: str) -> None:
        if name == "after write" and (data / "topics").exists() and not (tmp_path / "former").exists():
            shutil.move(data, tmp_path / "former")
            a_topic(data, a_dump(4, run_seed + 1), 1)

    with pytest.raises(TopicBegunAnew, match="was begun anew") as refused:
        follow(spark, StreamOptions(data, sets, out, is_once=True, rows_max=rows_max), at_point=at_point)

    assert f"stagepost pipeline run --data {data}" in refused.value.advice
    manifest = read_manifest(out)
    assert manifest is not None
    assert counts(manifest)["rows"] == rows_max
