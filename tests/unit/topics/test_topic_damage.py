"""D3 for topics: every byte of a small log flipped and cut. What is torn is cut off, anything else is refused with file and byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from stagepost.topics.batch import Read
from stagepost.topics.log import block, segment
from stagepost.topics.log.file_topic import FileTopic, open_topic, partition_folder
from stagepost.topics.topic import DamagedLog, Place
from tests.worlds.ground.damaged_files import cut, damaged, flip
from tests.worlds.topics.topic_records import (
    NAME,
    a_record,
    a_topic,
    a_writer,
    all_records,
    append_now,
    as_read,
)

RECORDS = [a_record(number, value=b"%d" % number * 20) for number in range(12)]
EXPECTED = as_read(RECORDS)
WRITER_EVERY = 5
"""Opening a writer takes longer than opening a reader; a number that is no divisor of a field's size."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments, the second of which was written to last; several blocks in each."""
    data = tmp_path_factory.mktemp("written")
    writer = a_writer(a_topic(data), segment_bytes=1_400)
    for at in range(0, 12, 2):
        append_now(writer, RECORDS[at : at + 2])
    writer.close_now()
    assert len(segments(data)) == 2
    return data


def segments(data: Path) -> list[Path]:
    return sorted(partition_folder(data / "topics" / NAME, 0).glob("*.segment"))


def with_content(written: Path, tmp_path: Path, file: Path, contents: Iterator[bytes]) -> Iterator[FileTopic]:
    """The same topic again and again, each time with another content of one file."""
    for content in contents:
        for path in [path for path in (written / "topics").rglob("*") if path.is_file()]:
            copy = tmp_path / path.relative_to(written)
            wanted = content if path == file else path.read_bytes()
            if not copy.exists() or copy.read_bytes() != wanted:
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                copy.write_bytes(wanted)
        yield open_topic(tmp_path, NAME)


def read_until_damage(topic: FileTopic) -> tuple[list[Read], StorageError | None]:
    found: list[Read] = []
    try:
        for batch in topic.reader().batches(0, 0):
            found += batch
    except StorageError as error:
        return found, error
    return found, None


@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_anywhere_in_a_segment_stops_the_reader_there(
    written: Path, tmp_path: Path, number: int
) -> None:
    file = segments(written)[number]
    content = file.read_bytes()
    pinned = 0
    for place, topic in enumerate(
        with_content(written, tmp_path, file, damaged(content, flip, range(len(content))))
    ):
        found, error = read_until_damage(topic)

        assert isinstance(error, DamagedLog), f"byte {place} went unnoticed"
        assert error.path.name == file.name, f"byte {place}"
        assert error.position <= place < error.position + 700, (
            f"byte {place} was looked for at {error.position}"
        )
        assert found == EXPECTED[: len(found)], f"byte {place} was read wrongly"
        assert f"damaged at byte {error.position}" in error.text
        pinned += error.record_offset is not None
    assert pinned > len(content) // 4, "values, keys and headers are pinned to their record"


def test_a_flipped_value_is_named_with_its_record(written: Path, tmp_path: Path) -> None:
    file = segments(written)[0]
    content = bytearray(file.read_bytes())
    content[content.index(RECORDS[3].value or b"")] ^= 1

    (topic,) = with_content(written, tmp_path, file, iter([bytes(content)]))
    _, error = read_until_damage(topic)

    assert isinstance(error, DamagedLog)
    assert error.record_offset == 3
    assert "in the record with offset 3" in error.text
    assert error.advice


@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_is_too_short_is_noticed(written: Path, tmp_path: Path, number: int) -> None:
    file = segments(written)[number]
    content = file.read_bytes()
    for place, topic in enumerate(
        with_content(written, tmp_path, file, damaged(content, cut, range(len(content))))
    ):
        found, error = read_until_damage(topic)

        assert isinstance(error, DamagedLog), f"a cut at byte {place} went unnoticed"
        assert found == EXPECTED[: len(found)]


@pytest.mark.parametrize("change", [flip, cut])
def test_a_writer_refuses_what_is_damaged_before_the_mark(
    written: Path, tmp_path: Path, change: object
) -> None:
    """It looks at the segment that it goes on writing to; readers look at all."""
    assert callable(change)
    file = segments(written)[1]
    content = file.read_bytes()
    contents = damaged(content, change, range(0, len(content), WRITER_EVERY))
    for number, topic in enumerate(with_content(written, tmp_path, file, contents)):
        before = (tmp_path / file.relative_to(written)).read_bytes()
        with pytest.raises(DamagedLog, match="is damaged at byte"):
            a_writer(topic)
        assert (tmp_path / file.relative_to(written)).read_bytes() == before, f"{number}: it was changed"


@pytest.mark.parametrize("change", [flip, cut])
def test_a_damaged_mark_stops_readers_and_is_made_anew_by_the_writer(
    written: Path, tmp_path: Path, change: object
) -> None:
    assert callable(change)
    file = segments(written)[0].with_name("end")
    content = file.read_bytes()
    for place, topic in enumerate(
        with_content(written, tmp_path, file, damaged(content, change, range(len(content))))
    ):
        assert isinstance(read_until_damage(topic)[1], DamagedLog), f"byte {place}"
        writer = a_writer(topic)
        writer.close_now()
        assert len(writer.repairs) == 1
        assert "made anew" in writer.repairs[0]
        assert all_records(topic.reader()) == EXPECTED


def test_what_lies_behind_the_mark_is_never_read_and_is_cut_off(written: Path, tmp_path: Path) -> None:
    """Whatever a write that did not come to its end has left, of any length."""
    file = segments(written)[1]
    content = file.read_bytes()
    digest = block.read_header(content, content.rindex(block.MAGIC)).digest
    more = block.write_block([block.row_of(a_record(99), 0)] * 3, 12, 0, digest)
    tails = [more[:size] for size in range(1, len(more))] + [
        bytes(700),
        b"\xff" * 700,
        more[:200] + bytes(500),
    ]
    for tail, topic in zip(
        tails, with_content(written, tmp_path, file, (content + tail for tail in tails)), strict=True
    ):
        assert all_records(topic.reader()) == EXPECTED
        writer = a_writer(topic)
        assert len(writer.repairs) == 1
        assert f"cut at byte {len(content)}: {len(tail)} bytes" in writer.repairs[0]
        writer.close_now()
        assert (tmp_path / file.relative_to(written)).read_bytes() == content


def test_whole_blocks_behind_an_old_mark_are_kept(written: Path, tmp_path: Path) -> None:
    """After a power cut the mark may be older than what was acknowledged."""
    early = tmp_path / "early"
    writer = a_writer(a_topic(early), segment_bytes=1_400)
    append_now(writer, RECORDS[:2])
    mark = partition_folder(early / "topics" / NAME, 0).joinpath("end").read_bytes()
    writer.close_now()
    file = segments(written)[0].with_name("end")

    (topic,) = with_content(written, tmp_path, file, iter([mark]))
    assert all_records(topic.reader()) == EXPECTED[:2]
    writer = a_writer(topic)
    assert append_now(writer, [a_record(12)]) == [Place(0, 12)]
    writer.close_now()

    assert writer.repairs == []
    assert all_records(topic.reader()) == as_read([*RECORDS, a_record(12)])


def test_segments_without_a_mark_are_read_to_their_end(written: Path, tmp_path: Path) -> None:
    """As they are copied for somebody else; a torn end is left out, damage is not."""
    file = segments(written)[1]
    content = file.read_bytes()
    last = content.rindex(block.MAGIC)
    for changed, records in ((content, 12), (content[: last + 80], 10), (content[: last + 10], 10)):
        (topic,) = with_content(written, tmp_path, file, iter([changed]))
        (partition_folder(topic.folder, 0) / "end").unlink()
        assert all_records(topic.reader()) == EXPECTED[:records]
        a_writer(topic).close_now()
        assert all_records(topic.reader()) == EXPECTED[:records]
    for place in range(segment.HEADER_BYTES, len(content), WRITER_EVERY):
        (topic,) = with_content(written, tmp_path, file, damaged(content, flip, [place]))
        (partition_folder(topic.folder, 0) / "end").unlink()
        found, error = read_until_damage(topic)
        # The length of the last block of all may be what was flipped: then it looks torn.
        is_torn = last <= place < last + block.HEADER_BYTES and found == EXPECTED[:10]
        assert error is not None or is_torn, f"byte {place}"


@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_is_gone_is_missed(written: Path, tmp_path: Path, number: int) -> None:
    file = segments(written)[number]
    (topic,) = with_content(written, tmp_path, file, iter([b""]))
    (tmp_path / file.relative_to(written)).unlink()

    _, error = read_until_damage(topic)
    assert isinstance(error, DamagedLog)
    if number == 1:
        with pytest.raises(DamagedLog, match="the file is gone"):
            a_writer(topic)


def test_segments_that_were_exchanged_are_noticed(written: Path, tmp_path: Path) -> None:
    """A file that is whole in itself, but is not the one that was written there."""
    other = tmp_path / "other"
    writer = a_writer(a_topic(other), segment_bytes=1_400)
    for at in range(0, 12, 2):
        append_now(
            writer,
            [a_record(number, value=b"x" * len(RECORDS[number].value or b"")) for number in (at, at + 1)],
        )
    writer.close_now()
    file = segments(written)[0]
    foreign = segments(other)[0]
    assert foreign.name == file.name

    (topic,) = with_content(written, tmp_path, file, iter([foreign.read_bytes()]))
    _, error = read_until_damage(topic)

    assert isinstance(error, DamagedLog)
    assert "does not follow the segment before it" in error.text


def test_a_mark_that_says_more_than_the_blocks_is_noticed(written: Path, tmp_path: Path) -> None:
    from stagepost.topics.log.end_mark import read_mark, write_mark

    file = segments(written)[0].with_name("end")
    mark = read_mark(file.parent)
    assert mark is not None
    (topic,) = with_content(written, tmp_path, file, iter([write_mark(mark._replace(end_offset=13))]))

    with pytest.raises(DamagedLog, match="ends at offset 12"):
        all_records(topic.reader())
    with pytest.raises(DamagedLog, match="but 13 was acknowledged"):
        a_writer(topic)
