"""A range of topics: by offset or by time, exact, and known by its content wherever it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.sources.survey import OPEN, Bound, not_held, parse_bound, survey_topics
from stagepost.pipeline.sources.topic_places import FolderPlace, NodePlace, RetainedPlace, place_of, topics_of
from stagepost.pipeline.sources.topic_ranges import Range
from stagepost.pipeline.tables.delta import held_files, open_table
from stagepost.pipeline.tables.manifest import RECORDS, Batch, Manifest
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import DELIVERY_EVENTS, DMQ_MESSAGES, STATUSES, Record
from tests.worlds.pipeline.written_tables import write_lake
from tests.worlds.topics.topic_records import a_writer, append_now

# A clock that stepped back: the third record looks older than the two before it.
TIMES = (100, 200, 150, 300, 400)


def a_place(folder: Path, partitions: int = 1) -> FolderPlace:
    folder.mkdir(mode=0o700, exist_ok=True)
    writer = a_writer(create_topic(folder, STATUSES, partitions))
    append_now(writer, [Record(b"k%d" % time, b"v", {"h": "x"}, time) for time in TIMES])
    writer.close_now()
    create_topic(folder, "elsewhere")
    return FolderPlace(folder)


def test_a_range_by_offsets_is_these_records(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    found = survey_topics(place, (STATUSES,), first=Bound(offset=1), last=Bound(offset=4))
    assert found.ranges == (Range(STATUSES, 0, 1, 4),)
    assert found.rows == 3
    assert survey_topics(place, None).ranges == (Range(STATUSES, 0, 0, 5),)
    assert survey_topics(place, None, first=Bound(offset=5)).ranges == ()


def test_a_range_by_times_holds_what_arrived_then_and_nothing_else(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    found = survey_topics(place, None, first=Bound(time_ms=200), last=Bound(time_ms=400))
    assert found.ranges == (Range(STATUSES, 0, 1, 2), Range(STATUSES, 0, 3, 4))
    assert found.rows == 2
    assert survey_topics(place, None, last=Bound(time_ms=100)).rows == 0


def test_a_range_is_known_by_its_content(tmp_path: Path) -> None:
    here, copy = a_place(tmp_path / "a"), a_place(tmp_path / "b")
    whole = survey_topics(here, None).digest
    assert survey_topics(copy, (STATUSES,)).digest == whole
    assert survey_topics(here, None, first=Bound(time_ms=0)).digest == whole
    assert survey_topics(here, None, last=Bound(offset=4)).digest != whole


def test_records_that_the_tables_hold_are_left_out(tmp_path: Path) -> None:
    place = a_place(tmp_path / "data")
    held = [
        {
            "topic": STATUSES,
            "partition": 0,
            "offset": offset,
            "arrived_ms": time,
            "key": f"k{time}",
            "value": value,
        }
        for offset, time, value in ((1, 200, b"v"), (2, 150, b"another"), (4, 400, b"v"), (9, 400, b"v"))
    ]
    write_lake(tmp_path / "tables", {RECORDS: held}, Manifest(total=Batch(rows=4)))
    store = TableStore.at(tmp_path / "tables")
    paths = [one.path for one in held_files(open_table(store, RECORDS))]
    whole = Range(STATUSES, 0, 0, 5)

    assert list(not_held(place, [whole], store, paths)) == [
        whole._replace(end=1),
        whole._replace(start=2, end=4),
    ]
    assert list(not_held(place, [whole], store, [])) == [whole]
    other = whole._replace(start=2, end=3)
    assert list(not_held(place, [other], store, paths)) == [other], (
        "begun anew: another record has this offset"
    )


def test_what_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    place = a_place(tmp_path, partitions=2)
    with pytest.raises(ConfigError, match="no topic nothing"):
        survey_topics(place, ("nothing",))
    with pytest.raises(ConfigError, match="one partition of one topic"):
        survey_topics(place, (STATUSES,), first=Bound(offset=1))
    with pytest.raises(ConfigError, match="partitions 0 to 1, not 2"):
        survey_topics(place, (STATUSES,), partition=2)
    with pytest.raises(StorageError, match="was asked for, but the log ends at"):
        survey_topics(place, (STATUSES,), partition=0, last=Bound(offset=9))


def test_a_bound_is_an_offset_or_a_time() -> None:
    assert parse_bound("--from", "17", 0) == Bound(offset=17)
    assert parse_bound("--from", "1970-01-01T00:00:01Z", 0) == Bound(time_ms=1_000)
    assert parse_bound("--from", "10s", 20) == Bound(time_ms=10_000)
    assert Bound() == OPEN
    for text in ("", "-1", "soon", "9" * 30):
        with pytest.raises(ConfigError, match="--from"):
            parse_bound("--from", text, 0)


def test_options_of_the_source_name_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEPOST_TOKEN", "from the environment")
    dmq = {"socket": "s", "network_magic": "7", "retained": "r"}
    assert place_of({"path": "p"}) == FolderPlace(Path("p"))
    assert place_of({"address": "127.0.0.1:1"}) == NodePlace("127.0.0.1:1", "from the environment")
    assert place_of({"address": "127.0.0.1:1", "token": "t"}) == NodePlace("127.0.0.1:1", "t")
    assert "from the environment" not in repr(place_of({"address": "127.0.0.1:1"}))
    retained = place_of(dmq)
    assert isinstance(retained, RetainedPlace)
    assert retained.socket.profile == "dmq-node"
    assert topics_of(dmq) == (DMQ_MESSAGES,)
    assert topics_of({"path": "p"}) is None
    assert topics_of({"topic": f"{STATUSES}, {DELIVERY_EVENTS},"}) == (STATUSES, DELIVERY_EVENTS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "was given nothing to read"),
        ({"path": "p", "address": "h:1"}, "path and address"),
        ({"address": "nowhere"}, "is not a valid address"),
        ({"socket": "s", "network_magic": "7"}, "was not given retained"),
        ({"socket": "s", "retained": "r"}, "was not given network_magic"),
        ({"socket": "s", "retained": "r", "network_magic": str(2**32)}, "is no network magic"),
        ({"socket": "s", "retained": "r", "network_magic": "7", "profile": "x"}, "no wire profile"),
    ],
)
def test_options_that_do_not_fit_are_told_in_one_sentence(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        place_of(options)
