"""An evolved KES key goes to a new file of our own kind; the operator's file stays as it is, whatever fails."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stagepost.dmq.key_texts import ColdSigningKey, EvolvedSigningKey
from stagepost.dmq.keys import key_files
from stagepost.dmq.keys.pool_keys import FILE_NAMES, write_evolved_key
from stagepost.errors import KeyFileError, SigningError, StorageError
from stagepost.ground.crypto import kes
from tests.unit.dmq.keys.test_key_files import MESSAGE, SEED, STEPS_MAX, FaultyOs, a_kes_key, disk_is_full


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "operator" / "kes.skey"
    path.parent.mkdir()
    key_files.save(path, a_kes_key())
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "evolved" / "period"


def stored(path: Path) -> kes.SigningKey:
    return key_files.load_as(EvolvedSigningKey, path).key


def test_evolved_key_is_written_to_a_new_file_for_the_owner_alone(source: Path, target: Path) -> None:
    before = (source.read_bytes(), source.stat().st_ino, source.parent.stat().st_mtime_ns)

    evolved = write_evolved_key(source, target)

    assert stored(target).to_bytes() == evolved.key.to_bytes() == a_kes_key(1).to_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert (source.read_bytes(), source.stat().st_ino, source.parent.stat().st_mtime_ns) == before


def test_key_goes_to_a_given_period_and_an_evolved_file_goes_on_from_there(
    source: Path, target: Path
) -> None:
    write_evolved_key(source, target, 40)
    later = target.with_name("later")

    assert write_evolved_key(target, later, 63).key.period == 63
    assert stored(later).to_bytes() == a_kes_key(63).to_bytes()


def test_existing_target_is_refused(source: Path, target: Path) -> None:
    write_evolved_key(source, target, 3)
    before = target.read_bytes()

    with pytest.raises(KeyFileError, match="exists already"):
        write_evolved_key(source, target, 4)

    assert target.read_bytes() == before


@pytest.mark.parametrize("way", ["same folder", "same file", "link to the folder", "link to the file"])
def test_nothing_is_written_where_the_operators_keys_lie(way: str, source: Path, tmp_path: Path) -> None:
    named, target = source, source.with_name("evolved")
    if way == "same file":
        target = source
    elif way == "link to the folder":
        (tmp_path / "link").symlink_to(source.parent)
        target = tmp_path / "link" / "evolved"
    elif way == "link to the file":
        named = tmp_path / "link"
        named.symlink_to(source)
    before = source.read_bytes()

    with pytest.raises(KeyFileError):
        write_evolved_key(named, target)

    assert source.read_bytes() == before
    assert [path.name for path in source.parent.iterdir()] == ["kes.skey"]


@pytest.mark.parametrize("name", FILE_NAMES)
def test_names_that_other_programs_read_are_refused(name: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="has a name that other programs read"):
        write_evolved_key(source, tmp_path / "evolved" / name)

    assert not (tmp_path / "evolved").exists()


def test_key_does_not_go_back_nor_past_its_last_period(source: Path, target: Path) -> None:
    write_evolved_key(source, target, 3)

    for goal, text in ((2, "cannot go back to 2"), (3, "cannot go to 3")):
        with pytest.raises(SigningError, match=f"at KES period 3 and {text}"):
            write_evolved_key(target, target.with_name("next"), goal)
    with pytest.raises(kes.KesExhausted, match="there is no period 64"):
        write_evolved_key(source, target.with_name("next"), 64)
    last = target.with_name("last")
    write_evolved_key(source, last, 63)
    with pytest.raises(kes.KesExhausted, match="there is no period 64"):
        write_evolved_key(last, target.with_name("next"))


def test_another_kind_of_file_is_refused(target: Path, tmp_path: Path) -> None:
    key_files.save(tmp_path / "cold.skey", ColdSigningKey(SEED))

    with pytest.raises(KeyFileError, match="holds a cold signing key"):
        write_evolved_key(tmp_path / "cold.skey", target)


def test_failure_of_any_step_leaves_the_source_and_no_half_key(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for fatal_call in range(1, STEPS_MAX):
        target = tmp_path / str(fatal_call) / "evolved"
        faulty = FaultyOs(fatal_call, disk_is_full)
        with monkeypatch.context() as patch:
            patch.setattr(key_files, "os", faulty)
            try:
                write_evolved_key(source, target)
            except StorageError:
                failures += 1
        require_whole_keys(source, target)
        if faulty.calls < fatal_call:
            break
    else:
        pytest.fail("never ran to the end")
    assert failures >= 8


# Newer Pythons warn of threads at a fork; the child here only touches files and ends.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_being_killed_at_any_step_leaves_the_source_and_no_half_key(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_written = []
    for fatal_call in range(1, STEPS_MAX):
        target = tmp_path / str(fatal_call) / "evolved"
        child = os.fork()
        if child == 0:
            # Whatever happens in here, only this process may end.
            try:
                monkeypatch.setattr(key_files, "os", FaultyOs(fatal_call, lambda: os._exit(9)))
                write_evolved_key(source, target)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 9)
        was_written.append(target.exists())
        require_whole_keys(source, target)
        if status == 0:
            break
    else:
        pytest.fail("never ran to the end")
    assert was_written == sorted(was_written)
    assert set(was_written) == {False, True}


def require_whole_keys(source: Path, target: Path) -> None:
    """The source is as it was; the target is missing or whole, and a second attempt leaves one whole file."""
    assert key_files.load_as(kes.SigningKey, source).to_bytes() == a_kes_key().to_bytes()
    assert [path.name for path in source.parent.iterdir()] == ["kes.skey"]
    if target.exists():
        with pytest.raises(KeyFileError, match="exists already"):
            write_evolved_key(source, target)
    else:
        write_evolved_key(source, target)
    key = stored(target)
    assert key.period == 1
    assert kes.verify(a_kes_key().verification_key, 1, MESSAGE, key.sign(MESSAGE))
    assert [path.name for path in target.parent.iterdir()] == [target.name]
