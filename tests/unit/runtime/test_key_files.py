"""Key files: who may read them, how they are written, and evolution that survives a failure at any step."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagepost.crypto import ed25519, kes
from stagepost.crypto.operational_certificate import issue
from stagepost.dmq import text_envelope
from stagepost.dmq.text_envelope import (
    ColdSigningKey,
    ColdVerificationKey,
    Content,
    IssuedCertificate,
    KesVerificationKey,
)
from stagepost.errors import ErrorCode, KeyFileError, SigningError, StorageError
from stagepost.runtime import key_files

SEED = bytes(range(32))
MESSAGE = b"message"
STEPS = {"open", "read", "write", "fsync", "rename", "link", "unlink", "close", "fstat", "lseek"}
STEPS_MAX = 60


def a_kes_key(period: int = 0) -> kes.SigningKey:
    key = kes.SigningKey.generate(SEED)
    for _ in range(period):
        key.evolve()
    return key


@pytest.fixture
def kes_file(tmp_path: Path) -> Path:
    path = tmp_path / "kes.skey"
    key_files.save(path, a_kes_key())
    return path


class FaultyOs:
    """The `os` module, except that call number `fatal_call` of those that matter does `harm` instead."""

    def __init__(self, fatal_call: int, harm: Callable[[], object]) -> None:
        self.fatal_call = fatal_call
        self.harm = harm
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in STEPS:
            return real

        def step(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.fatal_call:
                if name == "close":
                    real(*arguments, **options)
                self.harm()
            return real(*arguments, **options)

        return step


def disk_is_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Reading


def contents() -> list[Content]:
    cold = ColdSigningKey(SEED)
    certificate = issue(a_kes_key().verification_key, issue_number=1, start_kes_period=2, cold_seed=SEED)
    return [
        a_kes_key(3),
        KesVerificationKey(a_kes_key().verification_key),
        cold,
        ColdVerificationKey(cold.verification_key),
        IssuedCertificate(certificate, cold.verification_key),
    ]


@pytest.mark.parametrize("content", contents(), ids=lambda content: type(content).__name__)
def test_what_is_saved_is_loaded(content: Content, tmp_path: Path) -> None:
    path = tmp_path / "file"
    key_files.save(path, content)

    assert text_envelope.encode(key_files.load(path)) == text_envelope.encode(content)
    assert text_envelope.encode(key_files.load_as(type(content), path)) == text_envelope.encode(content)


@pytest.mark.parametrize("mode", range(0o100))
def test_secret_is_refused_if_group_or_others_have_any_right(mode: int, kes_file: Path) -> None:
    kes_file.chmod(0o600 | mode)

    if mode == 0:
        assert key_files.load_as(kes.SigningKey, kes_file).period == 0
        return
    attempts: tuple[Callable[[], object], ...] = (
        lambda: key_files.load(kes_file),
        lambda: key_files.load_as(kes.SigningKey, kes_file),
        lambda: key_files.evolve(kes_file),
    )
    for attempt in attempts:
        with pytest.raises(KeyFileError, match=f"mode {0o600 | mode:04o}") as caught:
            attempt()
        assert caught.value.code is ErrorCode.KEY_PERMISSIONS
        assert caught.value.advice == f"chmod 600 {kes_file}"


def test_read_only_secret_is_loaded_and_evolved(kes_file: Path) -> None:
    kes_file.chmod(0o400)

    assert key_files.load_as(kes.SigningKey, kes_file).period == 0
    assert key_files.evolve(kes_file).period == 1


def test_cold_signing_key_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cold.skey"
    key_files.save(path, ColdSigningKey(SEED))
    path.chmod(0o640)

    with pytest.raises(KeyFileError, match="open to group or others"):
        key_files.load(path)


def test_public_files_may_be_open(tmp_path: Path) -> None:
    path = tmp_path / "cold.vkey"
    key_files.save(path, ColdVerificationKey(ed25519.public_key(SEED)))
    path.chmod(0o666)

    assert key_files.load(path) == ColdVerificationKey(ed25519.public_key(SEED))


def test_secret_of_another_user_is_refused_even_for_root(
    kes_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(kes_file, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(KeyFileError, match="belongs to user") as caught:
        key_files.load(kes_file)

    assert caught.value.code is ErrorCode.KEY_PERMISSIONS
    assert "chown" in caught.value.advice


def test_link_is_followed_and_what_it_names_is_checked(kes_file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(kes_file)
    assert key_files.load_as(kes.SigningKey, link).period == 0
    kes_file.chmod(0o644)

    with pytest.raises(KeyFileError, match="open to group or others"):
        key_files.load(link)


def test_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    for attempt in (key_files.load, key_files.evolve):
        with pytest.raises(StorageError, match="No such file"):
            attempt(tmp_path / "none")
        with pytest.raises(StorageError, match="No such file"):
            attempt(tmp_path / "no" / "folder")


def test_link_that_leads_in_a_circle_is_a_storage_error(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)

    for attempt in (key_files.load, key_files.evolve):
        with pytest.raises(StorageError, match="symbolic links"):
            attempt(circle)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_a_storage_error(kes_file: Path) -> None:
    kes_file.chmod(0o000)

    with pytest.raises(StorageError, match="Permission denied"):
        key_files.load(kes_file)


def test_folder_and_named_pipe_are_no_key_files(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)

    for path in (tmp_path, pipe):
        with pytest.raises(KeyFileError, match="not a regular file"):
            key_files.load(path)


def test_large_file_is_refused_by_size_alone(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10**12)

    with pytest.raises(KeyFileError, match="at most 16384") as caught:
        key_files.load(path)

    assert (caught.value.limit, caught.value.found) == (key_files.KEY_FILE_BYTES_MAX, 10**12)


def test_wrong_kind_is_named_before_permissions_are(tmp_path: Path) -> None:
    path = tmp_path / "kes.vkey"
    key_files.save(path, KesVerificationKey(bytes(32)))

    with pytest.raises(KeyFileError, match="holds a KES verification key"):
        key_files.load_as(kes.SigningKey, path)
    with pytest.raises(KeyFileError, match="holds a KES verification key"):
        key_files.evolve(path)


# Writing


def test_secret_is_written_for_the_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key_files.save(tmp_path / "kes.skey", a_kes_key())
        key_files.save(tmp_path / "cold.skey", ColdSigningKey(SEED))
        key_files.save(tmp_path / "kes.vkey", KesVerificationKey(bytes(32)))
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"kes.skey": 0o600, "cold.skey": 0o600, "kes.vkey": 0o644}


def test_existing_file_is_not_overwritten_unless_told(kes_file: Path) -> None:
    before = kes_file.read_bytes()

    with pytest.raises(KeyFileError, match="exists already"):
        key_files.save(kes_file, a_kes_key(5))
    assert kes_file.read_bytes() == before
    assert [path.name for path in kes_file.parent.iterdir()] == ["kes.skey"]

    key_files.save(kes_file, a_kes_key(5), replace=True)
    assert key_files.load_as(kes.SigningKey, kes_file).period == 5
    assert [path.name for path in kes_file.parent.iterdir()] == ["kes.skey"]


def test_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    link = tmp_path / "kes.skey"
    link.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(KeyFileError, match="exists already"):
        key_files.save(link, a_kes_key())

    assert not (tmp_path / "elsewhere").exists()


def test_failed_save_leaves_either_nothing_or_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []
    for fatal_call in range(1, STEPS_MAX):
        folder = tmp_path / str(fatal_call)
        folder.mkdir()
        faulty = FaultyOs(fatal_call, disk_is_full)
        with monkeypatch.context() as patch:
            patch.setattr(key_files, "os", faulty)
            try:
                key_files.save(folder / "kes.skey", a_kes_key())
            except StorageError as error:
                failures.append(error.text)
        if (folder / "kes.skey").exists():
            assert key_files.load_as(kes.SigningKey, folder / "kes.skey").period == 0
        if faulty.calls < fatal_call:
            break
    else:
        pytest.fail("never ran to the end")
    assert len(failures) >= 5
    assert all("No space left" in failure for failure in failures)


# Evolving


def test_evolved_key_replaces_the_old_one(kes_file: Path) -> None:
    key = key_files.evolve(kes_file)

    assert key.period == 1
    on_disk = key_files.load_as(kes.SigningKey, kes_file)
    assert on_disk.to_bytes() == key.to_bytes() == a_kes_key(1).to_bytes()
    assert stat.S_IMODE(kes_file.stat().st_mode) == 0o600
    assert [path.name for path in kes_file.parent.iterdir()] == ["kes.skey"]


def test_key_can_go_to_a_given_period_and_to_the_last(kes_file: Path) -> None:
    assert key_files.evolve(kes_file, 40).period == 40
    assert key_files.evolve(kes_file, 63).period == 63
    assert key_files.load_as(kes.SigningKey, kes_file).to_bytes() == a_kes_key(63).to_bytes()


def test_key_at_the_wanted_period_is_left_alone(kes_file: Path) -> None:
    key_files.evolve(kes_file, 3)
    before = kes_file.stat().st_ino

    assert key_files.evolve(kes_file, 3).period == 3
    assert kes_file.stat().st_ino == before


def test_key_does_not_go_back(kes_file: Path) -> None:
    key_files.evolve(kes_file, 3)
    before = kes_file.read_bytes()

    with pytest.raises(SigningError, match="at KES period 3 and cannot go back to 2"):
        key_files.evolve(kes_file, 2)

    assert kes_file.read_bytes() == before


def test_key_does_not_go_past_its_last_period(kes_file: Path) -> None:
    with pytest.raises(kes.KesExhausted, match="there is no period 64"):
        key_files.evolve(kes_file, 64)
    key_files.evolve(kes_file, 63)
    with pytest.raises(kes.KesExhausted, match="there is no period 64"):
        key_files.evolve(kes_file)

    assert key_files.load_as(kes.SigningKey, kes_file).period == 63


def test_old_key_is_overwritten_on_disk(kes_file: Path) -> None:
    with kes_file.open("rb") as old:
        key_files.evolve(kes_file)
        left = old.read()

    assert left.strip(b"\0") == b""


def test_evolving_through_a_link_replaces_what_it_names(kes_file: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(kes_file)

    key_files.evolve(link)

    assert link.is_symlink()
    assert key_files.load_as(kes.SigningKey, kes_file).period == 1


def test_key_with_a_second_name_is_refused_since_the_old_one_would_live_on(
    kes_file: Path, tmp_path: Path
) -> None:
    os.link(kes_file, tmp_path / "copy")

    with pytest.raises(KeyFileError, match="2 names"):
        key_files.evolve(kes_file)

    assert key_files.load_as(kes.SigningKey, kes_file).period == 0


def test_leftover_of_a_crash_is_no_obstacle_and_goes_away(kes_file: Path) -> None:
    # A save that ended between its last two steps leaves a second name; a write cut short leaves half a file.
    leftover = kes_file.parent / ".kes.skey.new"
    os.link(kes_file, leftover)
    assert key_files.evolve(kes_file).period == 1
    assert not leftover.exists()

    leftover.write_bytes(b"half")
    assert key_files.evolve(kes_file).period == 2
    assert not leftover.exists()


def test_two_cannot_evolve_at_once(kes_file: Path) -> None:
    folder = os.open(kes_file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process is writing keys"):
            key_files.evolve(kes_file)
        with pytest.raises(StorageError, match="another process is writing keys"):
            key_files.save(kes_file.parent / "other", a_kes_key())
    finally:
        os.close(folder)

    assert key_files.evolve(kes_file).period == 1


def test_failure_of_any_step_leaves_one_usable_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 0
    for fatal_call in range(1, STEPS_MAX):
        path = tmp_path / str(fatal_call) / "kes.skey"
        path.parent.mkdir()
        key_files.save(path, a_kes_key(2))
        faulty = FaultyOs(fatal_call, disk_is_full)
        with monkeypatch.context() as patch:
            patch.setattr(key_files, "os", faulty)
            try:
                key_files.evolve(path)
            except StorageError:
                failures += 1
        require_one_usable_key(path)
        if faulty.calls < fatal_call:
            break
    else:
        pytest.fail("never ran to the end")
    assert failures >= 8


# Newer Pythons warn of threads at a fork; the child here only touches files and ends.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_being_killed_at_any_step_leaves_one_usable_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    periods = []
    for fatal_call in range(1, STEPS_MAX):
        path = tmp_path / str(fatal_call) / "kes.skey"
        path.parent.mkdir()
        key_files.save(path, a_kes_key(2))
        child = os.fork()
        if child == 0:
            # Whatever happens in here, only this process may end.
            try:
                monkeypatch.setattr(key_files, "os", FaultyOs(fatal_call, lambda: os._exit(9)))
                key_files.evolve(path)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 9)
        periods.append(key_files.load_as(kes.SigningKey, path).period)
        require_one_usable_key(path)
        if status == 0:
            break
    else:
        pytest.fail("never ran to the end")
    assert periods == sorted(periods)
    assert set(periods) == {2, 3}


def require_one_usable_key(path: Path) -> None:
    """The key is at the old or the new period, signs, and evolves again as if nothing had happened."""
    key = key_files.load_as(kes.SigningKey, path)
    assert key.period in (2, 3)
    assert kes.verify(a_kes_key().verification_key, key.period, MESSAGE, key.sign(MESSAGE))
    assert key_files.evolve(path).period == key.period + 1
    assert [other.name for other in path.parent.iterdir()] == ["kes.skey"]
