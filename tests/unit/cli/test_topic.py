"""`stagepost topic`: lists, checks and dumps the topics of a data folder, beside the node that writes them."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from stagepost.cli.main import run
from stagepost.topics.log.file_topic import create_topic, partition_folder
from stagepost.topics.topic import Record
from tests.worlds.topics.topic_records import a_record, a_writer, append_now

STATUSES = "stagepost.remp.statuses"
MESSAGES = "stagepost.remp.messages"
RAW_ID = bytes(range(200, 232))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    statuses = create_topic(tmp_path, STATUSES, 2)
    writer = a_writer(statuses)
    for number in range(6):
        append_now(writer, [a_record(number, value=f'{{"kind": "é{number}"}}'.encode())])
    writer.close_now()
    positions = statuses.positions("pipeline")
    asyncio.run(positions.commit({0: 1}))
    positions.close()
    messages = a_writer(create_topic(tmp_path, MESSAGES))
    append_now(messages, [Record(RAW_ID, b"\xff\x00", {}, 5), Record(None, None, {}, 6)])
    messages.close_now()
    return tmp_path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_dump_has_the_fields_of_the_format(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data / "statuses.jsonl"

    assert run(["topic", "dump", STATUSES, "--data", str(data), "--out", str(out)]) == 0

    found = lines(out)
    assert len(found) == 6
    assert "6 records of stagepost.remp.statuses written" in capsys.readouterr().err
    for line in found:
        assert line["topic"] == STATUSES
        assert isinstance(line["value"], str)
        number = int(json.loads(line["value"])["kind"][1:])
        record = a_record(number)
        assert line["key"] == (record.key or b"").decode()
        assert line["timestamp_ms"] == record.timestamp_ms
        assert line.get("headers", {}) == record.headers
    assert [line["offset"] for line in found if line["partition"] == 1] == list(
        range(sum(line["partition"] == 1 for line in found))
    )
    assert not out.with_name("statuses.jsonl.part").exists()


def test_bytes_are_written_as_base64_and_raw_ids_as_hex(data: Path) -> None:
    out = data / "messages.jsonl"
    assert run(["topic", "dump", MESSAGES, "--data", str(data), "--out", str(out)]) == 0

    first, second = lines(out)

    assert first["key"] == RAW_ID.hex()
    assert base64.b64decode(str(first["value_base64"])) == b"\xff\x00"
    assert "value" not in first
    assert (second["key"], second["value"]) == (None, None)


def test_a_part_of_a_topic_goes_to_standard_output(
    data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = [
        "topic",
        "dump",
        MESSAGES,
        "--data",
        str(data),
        "--out",
        "-",
        "--partition",
        "0",
        "--from",
        "1",
    ]
    assert run(command) == 0

    (line,) = capfdbinary.readouterr().out.splitlines()
    assert json.loads(line)["offset"] == 1


def test_topics_are_listed_with_their_readers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "ls", "--data", str(data), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["topic"], row["partition"]) for row in rows] == [(MESSAGES, 0), (STATUSES, 0), (STATUSES, 1)]
    assert rows[0]["records"] == 2
    assert rows[1]["readers"] == {"pipeline": 1}

    assert run(["topic", "list", "--data", str(data)]) == 0
    shown = capsys.readouterr().out
    assert "pipeline at 1" in shown
    (data / "elsewhere").mkdir()
    assert run(["topic", "ls", "--data", str(data / "elsewhere")]) == 0
    assert "there are no topics in" in capsys.readouterr().out


def test_check_reads_everything_and_names_the_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "check", MESSAGES, "--data", str(data)]) == 0
    assert "partition 0: 2 records from offset 0, all whole" in capsys.readouterr().out

    (path,) = partition_folder(data / "topics" / MESSAGES, 0).glob("*.segment")
    content = bytearray(path.read_bytes())
    content[content.index(RAW_ID)] ^= 1
    path.write_bytes(content)

    out = data / "messages.jsonl"
    for command in (["check", MESSAGES], ["dump", MESSAGES, "--out", str(out)]):
        assert run(["topic", *command, "--data", str(data)]) == 3
        text = capsys.readouterr().err
        assert f"{path} is damaged at byte 64, in the record with offset 0" in text
        assert "STORAGE_UNAVAILABLE" in text
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["dump", "nosuch", "--out", "x"], "there is no topic nosuch"),
        (["dump", "../x", "--out", "x"], "cannot be the name of a topic"),
        (["dump", STATUSES, "--out", "x", "--partition", "2"], "has partitions 0 to 1"),
        (["dump", STATUSES, "--out", "x", "--from", "2"], "--from needs --partition"),
    ],
)
def test_wrong_questions_get_one_sentence(
    data: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", *arguments, "--data", str(data)]) == 2
    assert text in capsys.readouterr().err
