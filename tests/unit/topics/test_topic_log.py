"""A topic on disk: appended, read from any offset, divided into segments, read by others while it grows."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random

import pytest

from stagepost.errors import ConfigError, StorageError
from stagepost.topics.log import segment
from stagepost.topics.log.file_topic import (
    create_topic,
    open_topic,
    partition_folder,
    topic_facts,
    topic_names,
)
from stagepost.topics.topic import (
    NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    Place,
    Record,
    RecordRefused,
    partition_of,
)
from tests.worlds.ground.damaged_files import run_alone
from tests.worlds.topics.topic_records import (
    NAME,
    a_record,
    a_topic,
    a_writer,
    all_records,
    append_now,
    as_read,
    odd_record,
)


def test_an_append_tells_where_each_record_stands(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, partitions=4)
    writer = a_writer(topic)
    records = [a_record(number) for number in range(50)]

    places = append_now(writer, records) + append_now(writer, records)
    writer.close_now()

    assert len(set(places)) == 100
    for record, place in zip(records * 2, places, strict=True):
        assert record.key is not None
        assert place.partition == partition_of(record.key, 4)
        (found,) = (
            read
            for batch in topic.reader().batches(place.partition, place.offset, place.offset + 1)
            for read in batch
        )
        assert (found.offset, found.key, found.value) == (place.offset, record.key, record.value)


def test_any_range_can_be_read_again_and_is_the_same(tmp_path: Path, run_seed: int) -> None:
    """Small segments and blocks of all sizes; across reopening."""
    chance = Random(run_seed)
    topic = a_topic(tmp_path)
    written: list[Record] = []
    for _ in range(3):
        writer = a_writer(topic, segment_bytes=20_000)
        for _ in range(40):
            records = [odd_record(chance, len(written) + at) for at in range(chance.randrange(1, 30))]
            assert append_now(writer, records)[0] == Place(0, len(written))
            written += records
        writer.close_now()
    expected = as_read(written)
    reader = topic.reader()

    assert len(list(partition_folder(topic.folder, 0).glob("*.segment"))) > 5
    assert all_records(reader) == expected
    for _ in range(100):
        start = chance.randrange(len(written) + 1)
        end = chance.randrange(start, len(written) + 1)
        found = [read for batch in reader.batches(0, start, end) for read in batch]
        assert found == expected[start:end], f"seed {run_seed}, {start} to {end}"


def test_the_index_is_a_help_and_not_a_truth(tmp_path: Path, run_seed: int) -> None:
    chance = Random(run_seed)
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    records = [a_record(number, value=bytes(3_000)) for number in range(400)]
    for record in records:
        append_now(writer, [record])
    writer.close_now()
    (index,) = partition_folder(topic.folder, 0).glob("*.index")
    right = index.read_bytes()
    assert len(right) // 16 == 19, f"one for each {segment.INDEX_EVERY_BYTES} bytes"
    offsets = chance.sample(range(400), 20)

    for content in (right, b"", right[:5], bytes(160), chance.randbytes(160), right[16:] + right[:16]):
        index.write_bytes(content)
        for offset in offsets:
            (batch,) = topic.reader().batches(0, offset, offset + 1)
            assert list(batch) == as_read(records)[offset : offset + 1]


def test_blocks_larger_than_what_is_read_at_a_time_are_read_whole(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    large = [a_record(number, key=None, value=b"%d" % number * 20_000, headers={}) for number in range(60)]
    small = [a_record(number) for number in range(3)]
    for records in (small, large, small, large, large, small):
        append_now(writer, records)
    writer.close_now()
    written = [*small, *large, *small, *large, *large, *small]
    batches = list(topic.reader().batches(0, 0))

    assert max(len(bytes(batch.columns.values.content)) for batch in batches) > segment.READ_BYTES
    assert [read for batch in batches for read in batch] == as_read(written)
    assert all_records(topic.reader(), start=100) == as_read(written)[100:]


def test_segments_end_where_the_next_group_would_not_fit(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    probe = a_writer(topic)
    append_now(probe, [a_record()])
    one = topic_facts(tmp_path, NAME)[0]["bytes"] - segment.HEADER_BYTES
    probe.close_now()

    writer = a_writer(topic, segment_bytes=segment.HEADER_BYTES + 2 * one)
    append_now(writer, [a_record()])
    assert segment.base_offsets(partition_folder(topic.folder, 0)) == [0]
    append_now(writer, [a_record()])
    assert segment.base_offsets(partition_folder(topic.folder, 0)) == [0, 2]
    writer.close_now()
    assert len(all_records(topic.reader())) == 3


def test_a_reader_sees_the_end_of_the_moment_and_asks_again(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    reader = topic.reader()
    assert (reader.start_offset(0), reader.end_offset(0)) == (0, 0)
    assert all_records(reader) == []
    writer = a_writer(topic)
    append_now(writer, [a_record(0)])
    scan = reader.batches(0, 0)
    first = next(scan)
    append_now(writer, [a_record(1)])

    assert list(scan) == []
    assert len(first) == 1
    assert all_records(reader, start=1) == as_read([a_record(1)], 1)
    with pytest.raises(StorageError, match=r"offset 3 of partition 0 of .* but the log ends at 2"):
        list(reader.batches(0, 3))
    writer.close_now()


def test_readers_in_threads_never_see_anything_but_a_beginning_of_the_log(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic, segment_bytes=8_000)
    records = [a_record(number) for number in range(600)]
    faults: list[str] = []
    looks: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        at = 0
        while at < len(records) and not faults:
            was_over = is_over.is_set()
            found = [read for batch in topic.reader().batches(0, at) for read in batch]
            if found != as_read(records[at : at + len(found)], at):
                faults.append(f"wrong records behind {at}")
            at += len(found)
            looks.append(len(found))
            if was_over and not found and at < len(records):
                faults.append(f"the log ends at {at}")

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for at in range(0, 600, 5):
        append_now(writer, records[at : at + 5])
    is_over.set()
    for reader in readers:
        reader.join()
    writer.close_now()

    assert faults == []
    assert sum(looks) == 3 * len(records)


def test_another_process_reads_what_is_acknowledged(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    append_now(writer, [a_record(number) for number in range(10)])

    printed = run_alone(
        "from pathlib import Path\n"
        "from stagepost.topics.log.file_topic import open_topic\n"
        f"reader = open_topic(Path({str(tmp_path)!r}), {NAME!r}).reader()\n"
        "print([read.value for batch in reader.batches(0, 7) for read in batch])"
    )
    writer.close_now()

    assert printed.strip() == "[b'value-7', b'value-8', b'value-9']"


def test_a_second_writer_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, partitions=2)
    writer = a_writer(topic, only=[1])

    with pytest.raises(StorageError, match=f"held by another process, {os.getpid()}") as refused:
        a_writer(topic)
    assert "001" in refused.value.text
    # What the refused one had taken already is free again.
    other = a_writer(topic, only=[0])
    other.close_now()
    writer.close_now()
    a_writer(topic).close_now()


def test_a_writer_of_some_partitions_refuses_keys_of_others(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, partitions=2)
    writer = a_writer(topic, only=[1])
    theirs = next(key for key in map(b"%d".__mod__, range(9)) if partition_of(key, 2) == 0)

    with pytest.raises(
        ConfigError, match=r"partition 0 of stagepost\.test, which this writer does not write"
    ):
        append_now(writer, [a_record(key=theirs)])
    assert append_now(writer, [Record(None, b"x")] * 2) == [Place(1, 0), Place(1, 1)]
    writer.close_now()


def test_one_bad_record_refuses_the_whole_append(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)

    with pytest.raises(RecordRefused, match="the key of a record may have 1024 bytes"):
        append_now(writer, [a_record(), a_record(key=bytes(1_025))])
    assert append_now(writer, []) == []
    assert append_now(writer, [a_record()]) == [Place(0, 0)]
    writer.close_now()


def test_names_and_partitions_have_limits(tmp_path: Path) -> None:
    create_topic(tmp_path, "x" * NAME_CHARACTERS_MAX, PARTITIONS_MAX)
    for name in ("", ".", "..", "a/b", ".hidden", "ü", "a b", "x" * (NAME_CHARACTERS_MAX + 1)):
        with pytest.raises(ConfigError, match="cannot be the name of a topic"):
            create_topic(tmp_path, name)
    for count in (0, PARTITIONS_MAX + 1):
        with pytest.raises(ConfigError, match=f"cannot have {count} partitions"):
            create_topic(tmp_path, "y", count)


def test_a_topic_keeps_its_partitions(tmp_path: Path) -> None:
    create_topic(tmp_path, "a", 3)

    assert create_topic(tmp_path, "a", 3).partitions == open_topic(tmp_path, "a").partitions == 3
    with pytest.raises(ConfigError, match="has 3 partitions, not 2"):
        create_topic(tmp_path, "a", 2)
    with pytest.raises(ConfigError, match="there is no topic b in") as missing:
        open_topic(tmp_path, "b")
    assert missing.value.advice == "topics there: a"
    assert topic_names(tmp_path) == ["a"]
    (tmp_path / "topics" / "a" / "topic.json").write_text('{"version": 2, "name": "a", "partitions": 3}')
    with pytest.raises(StorageError, match="does not describe topic a in version 1"):
        open_topic(tmp_path, "a")


def test_files_are_of_this_user_alone(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    append_now(writer, [a_record()])
    writer.close_now()

    for path in topic.folder.rglob("*"):
        if not path.name.endswith(".index"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_subprocess_is_refused_while_we_write_and_names_us(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    printed = run_alone(
        "from pathlib import Path\n"
        "from stagepost.topics.log.file_topic import open_topic\n"
        "from stagepost.errors import StorageError\n"
        "try:\n"
        f"    open_topic(Path({str(tmp_path)!r}), {NAME!r}).writer()\n"
        "except StorageError as error:\n"
        "    print(error.found)"
    )
    writer.close_now()

    assert printed.strip() == str(os.getpid())
