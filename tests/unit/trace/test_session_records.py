"""Sessions of validators on their topic: read on, ended, left out when they are old; and folders of earlier releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from stagepost.full_node.known_sets import KEPT_MS, KnownSets, SessionLog, sets_document
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.validator_sets import SETS_FILE, Session, SetMember, ValidatorSets
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.topic import Record
from stagepost.trace.session_records import SetsFolder, load_sets, session_record
from tests.worlds.pipeline.pipeline_topics import append_all

NOW_MS = 1_800_000_000_000
SESSION_MS = 250_000
SESSION_VALIDATORS = 340
"""Validators of a session whose record fits, whatever their names are."""


def members(*numbers: int) -> tuple[SetMember, ...]:
    keys = [number.to_bytes(32, "big") for number in numbers]
    return tuple(SetMember(place, key, key_id(key)) for place, key in enumerate(keys))


MEMBERS = members(1, 2, 3, 4)


def session(number: int, to_ms: int | None = None) -> Session:
    from_ms = NOW_MS + number * SESSION_MS
    return Session(number.to_bytes(32, "big"), 0, 1 << 63, number, MEMBERS, from_ms, to_ms)


def ended(number: int) -> Session:
    return session(number, NOW_MS + (number + 1) * SESSION_MS)


def a_topic(data: Path, *sessions: Session) -> FileTopic:
    data.mkdir(mode=0o700, exist_ok=True)
    topic = create_topic(data, SESSIONS_TOPIC)
    append_all(topic, [session_record(one, {MEMBERS[0].key_id: "first"}) for one in sessions])
    return topic


def test_a_session_is_read_as_it_was_written_with_the_names_of_its_validators(tmp_path: Path) -> None:
    a_topic(tmp_path / "data", session(1), ended(2))
    sets = load_sets(tmp_path / "data")
    assert set(sets.sessions.values()) == {session(1), ended(2)}
    assert sets.name_of(MEMBERS[0].key_id, 0) == "first"
    assert sets.name_of(MEMBERS[1].key_id, 1) == "V2"


def test_a_folder_is_read_on_and_the_later_record_of_a_session_counts(tmp_path: Path) -> None:
    topic = a_topic(tmp_path / "data", session(1))
    folder = SetsFolder(tmp_path / "data")
    assert folder.look()
    assert not folder.look()
    append_all(topic, [session_record(one, {}) for one in (ended(1), session(2))])
    assert folder.look()
    assert set(folder.sets.sessions.values()) == {ended(1), session(2)}
    at_work = folder.sets.held_by(MEMBERS[0].key_id, NOW_MS + 3 * SESSION_MS, NOW_MS + 3 * SESSION_MS)
    assert [one.catchain_seqno for one, _ in at_work] == [2]


def test_sessions_that_ended_before_a_time_are_left_out_up_to_that_millisecond(tmp_path: Path) -> None:
    a_topic(tmp_path / "data", *(ended(number) for number in range(4)), session(4))
    since_ms = NOW_MS + 2 * SESSION_MS
    found = load_sets(tmp_path / "data", since_ms)
    assert sorted(one.catchain_seqno for one in found.sessions.values()) == [2, 3, 4]
    found = load_sets(tmp_path / "data", since_ms - 1)
    assert sorted(one.catchain_seqno for one in found.sessions.values()) == [1, 2, 3, 4]


def test_the_file_of_a_data_folder_stands_for_the_folder_and_another_file_for_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    a_topic(data, session(1))
    content = json.dumps({"full_nodes": [], "sessions": []})
    (data / SETS_FILE).write_text(content)
    (data / "other.json").write_text(content)
    assert len(load_sets(data / SETS_FILE).sessions) == 1
    assert not load_sets(data / "other.json").sessions
    with pytest.raises(StorageError, match="cannot be read"):
        load_sets(tmp_path / "absent.json")


def test_a_record_that_is_no_session_and_a_forged_key_id_are_refused_with_their_place(tmp_path: Path) -> None:
    for number, value in enumerate((b"nonsense", b'{"session_id": 5}', None)):
        topic = a_topic(tmp_path / str(number), session(1))
        append_all(topic, [Record(b"key", value)])
        with pytest.raises(StorageError, match="is not a session"):
            load_sets(tmp_path / str(number))
    forged = SetMember(0, MEMBERS[0].public_key, MEMBERS[1].key_id)
    a_topic(tmp_path / "forged", Session(bytes(32), 0, 1 << 63, 1, (forged,), NOW_MS))
    with pytest.raises(StorageError, match="another key id"):
        load_sets(tmp_path / "forged")


def test_sessions_of_an_earlier_release_move_from_the_file_to_the_topic_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    before = ValidatorSets({}, [ended(1), ended(2), session(3)])
    before.names[MEMBERS[0].key_id] = "first"
    (data / SETS_FILE).write_text(json.dumps(sets_document(before)))
    for _ in range(2):  # the second as after a crash before the file was written anew
        known = KnownSets([])
        log = SessionLog(data, NOW_MS, known, lambda error: None)
        log._writer.close_now()
        assert set(known.sets.sessions.values()) == {ended(1), ended(2), session(3)}
    known.write(data / SETS_FILE)
    assert not ValidatorSets.load(data / SETS_FILE).sessions
    again = load_sets(data)
    assert set(again.sessions.values()) == {ended(1), ended(2), session(3)}
    assert again.names == before.names


def test_a_switch_appends_two_records_however_many_sessions_there_were_and_memory_stays(
    tmp_path: Path,
) -> None:
    known = KnownSets([])
    writes: list[int] = []
    sizes = []
    for number in range(2_000):
        known._enter(session(number))
        now_ms = NOW_MS + (number + 1) * SESSION_MS
        known.ended([session(number).session_id], now_ms)
        writes.append(len(known.take_changed()))
        sizes.append(len(known.sets.sessions))
    assert set(writes) == {1}, "both records of a session at once"
    assert max(sizes) <= 1_025, (
        f"a day has {KEPT_MS // SESSION_MS} sessions, and twice as many are looked through"
    )


def a_large_session(count: int) -> Session:
    return Session(bytes(32), 0, 1 << 63, 1, members(*range(1, count + 1)), NOW_MS, NOW_MS + SESSION_MS)


@pytest.mark.parametrize(
    ("count", "is_kept"), [(300, True), (SESSION_VALIDATORS, True), (SESSION_VALIDATORS + 30, False)]
)
def test_a_session_of_many_validators_goes_without_names_and_one_of_too_many_stops_nothing(
    tmp_path: Path, count: int, is_kept: bool
) -> None:
    large = a_large_session(count)
    known = KnownSets([])
    tmp_path.chmod(0o700)
    log = SessionLog(tmp_path, NOW_MS, known, lambda error: None)
    known.sets.names.update((one.key_id, "a name of many letters" * 2) for one in large.validators)
    known._enter(large)
    known._enter(ended(2))
    log.changed(known)
    log._writer.close_now()
    found = load_sets(tmp_path)
    assert (large.session_id in found.sessions) is is_kept
    assert large.validators[-1].key_id not in found.names
    assert ended(2).session_id in found.sessions


@pytest.mark.parametrize("field", ["validators", "unknown"])
def test_a_deep_record_of_another_program_is_named(tmp_path: Path, field: str) -> None:
    topic = a_topic(tmp_path / "data", session(1))
    append_all(topic, [Record(b"00", b'{"%s":' % field.encode() + b"[" * 20_000 + b"]" * 20_000 + b"}")])

    with pytest.raises(StorageError, match=r"offset 1 of partition 0 .* is not a session"):
        load_sets(tmp_path / "data")
