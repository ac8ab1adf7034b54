"""Validator sets of a pipeline from a file and from the topic of sessions: the same content, read on and not again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.pipeline.sources.sets_source import SetsSource
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets, parse_validator_sets
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.topic import Record
from tests.worlds.pipeline.pipeline_topics import append_all
from tests.worlds.pipeline.pipeline_world import SESSIONS, sets_bytes, world_sets


def a_topic(data: Path) -> FileTopic:
    data.mkdir(mode=0o700)
    return create_topic(data, SESSIONS_TOPIC, 2)


def append(topic: FileTopic, *sessions: dict[str, object]) -> None:
    append_all(topic, [Record(str(one["session_id"]).encode(), json.dumps(one).encode()) for one in sessions])


def sets_of(source: SetsSource) -> ValidatorSets:
    return parse_validator_sets(source.content(), "sets")


def test_a_file_and_a_topic_give_the_same_sets(tmp_path: Path) -> None:
    topic = a_topic(tmp_path / "data")
    append(topic, *SESSIONS)
    whole = sets_bytes()
    without = json.dumps({**world_sets(), "sessions": []}).encode()
    (tmp_path / "data" / SETS_FILE).write_bytes(without)
    (tmp_path / "sets.json").write_bytes(whole)

    expected = parse_validator_sets(whole, "sets")
    assert SetsSource(tmp_path / "sets.json").content() == whole
    found = sets_of(SetsSource(tmp_path / "data"))
    assert found.sessions == expected.sessions
    assert found.message_timeout_ms == expected.message_timeout_ms


def test_a_switch_is_read_on_and_ends_the_session_before(tmp_path: Path) -> None:
    topic = a_topic(tmp_path / "data")
    append(topic, SESSIONS[0])
    source = SetsSource(tmp_path / "data")
    before = source.content()
    assert source.content() is before, "nothing new came"

    append(topic, {**SESSIONS[0], "to_ms": 5_000}, SESSIONS[3])

    found = {one.session_id.hex(): one.to_ms for one in sets_of(source).sessions.values()}
    assert found == {SESSIONS[0]["session_id"]: 5_000, SESSIONS[3]["session_id"]: None}


@pytest.mark.parametrize(
    "value", [b"{", b"[]", b"{}", b'{"session_id":' + b"[" * 20_000], ids=["cut", "list", "empty", "deep"]
)
def test_a_record_that_is_no_session_is_named(tmp_path: Path, value: bytes) -> None:
    topic = a_topic(tmp_path / "data")
    append_all(topic, [Record(b"00", value)])

    with pytest.raises(StorageError, match=f"offset 0 of partition . of {SESSIONS_TOPIC} is not a session"):
        SetsSource(tmp_path / "data").content()


def test_a_folder_without_either_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=SETS_FILE):
        SetsSource(tmp_path).content()


def test_a_deep_file_beside_the_topic_is_named(tmp_path: Path) -> None:
    a_topic(tmp_path / "data")
    (tmp_path / "data" / SETS_FILE).write_bytes(b'{"sessions":' + b"[" * 20_000)

    with pytest.raises(StorageError, match="is not a valid validator-sets file"):
        SetsSource(tmp_path / "data").content()
