"""The page on topics is right: what it says about files is enough to read them, and its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stagepost.topics import topic
from stagepost.topics.log import block, group_commit, segment
from stagepost.topics.log.file_topic import FileTopic, partition_folder
from stagepost.topics.topic import Retention
from tests.worlds.topics.topic_records import a_topic, a_writer, all_records, append_now, odd_record

PAGE = (Path(__file__).parents[3] / "docs" / "topics.md").read_text(encoding="utf-8")


def code_with(name: str) -> dict[str, Any]:
    """The definitions of the one example that defines `name`."""
    (source,) = (
        code for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"def {name}(" in code
    )
    found: dict[str, Any] = {}
    exec(compile(source, "docs/topics.md", "exec"), found)
    return found


@pytest.fixture
def written(tmp_path: Path, run_seed: int) -> FileTopic:
    """Several segments, all that a record may be, and a beginning that retention took away."""
    chance = Random(run_seed)
    made = a_topic(tmp_path)
    writer = a_writer(made, segment_bytes=3_000, retention=Retention(bytes_max=30_000))
    for _ in range(60):
        append_now(writer, [odd_record(chance, number) for number in range(chance.randrange(1, 12))])
    writer.close_now()
    assert made.reader().start_offset(0) > 0
    return made


def test_the_reader_on_the_page_reads_what_ours_reads(written: FileTopic) -> None:
    records = code_with("records")["records"]

    assert list(records(partition_folder(written.folder, 0))) == [
        tuple(read) for read in all_records(written.reader())
    ]


def test_columns_are_arrow_arrays_as_they_stand(written: FileTopic) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: the columns cannot be handed to it")
    binary_array = code_with("binary_array")["binary_array"]
    reader = written.reader()
    start = reader.start_offset(0) + 3

    for batch in reader.batches(0, start):
        for column, expected in ((batch.columns.keys, batch.keys), (batch.columns.values, batch.values)):
            found = binary_array(batch, column)
            found.validate(full=True)
            assert found.to_pylist() == expected


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (.*?) \| (.*?) \| `topics/[\w/]+\.py` \|$", PAGE, re.MULTILINE))

    assert rows["Key / value / headers of a record"].startswith(
        f"{block.KEY_BYTES_MAX:,} B / {block.VALUE_BYTES_MAX:,} B / {block.HEADERS_BYTES_MAX:,} B"
    )
    assert rows["One append, and one block"].startswith(
        f"{block.RECORDS_MAX:,} records, {block.CONTENT_BYTES_MAX >> 20} MiB"
    )
    assert rows["Records waiting for the disk, per partition"].startswith(
        f"{group_commit.WAITING_BYTES_MAX >> 20} MiB"
    )
    assert rows["Segment"].startswith(f"{segment.SEGMENT_BYTES_MAX >> 20} MiB")
    assert rows["Bytes read at a time"].startswith(f"{segment.READ_BYTES >> 20} MiB")
    assert (
        rows["Partitions / characters of a name"] == f"{topic.PARTITIONS_MAX} / {topic.NAME_CHARACTERS_MAX}"
    )


def test_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))

    assert len(named) >= 4
    assert all((Path(__file__).parents[3] / name).exists() for name in named)
