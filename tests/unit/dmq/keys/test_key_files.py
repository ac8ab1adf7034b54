"""Key files: who may read them, and how new ones are written, with a failure at any step."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import (
    ColdSigningKey,
    ColdVerificationKey,
    Content,
    EvolvedSigningKey,
    IssuedCertificate,
    KesVerificationKey,
)
from stagepost.dmq.keys import key_files
from stagepost.errors import ErrorCode, KeyFileError, StorageError
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import issue

SEED = bytes(range(32))
MESSAGE = b"message"
STEPS = {"open", "read", "write", "fsync", "link", "unlink", "close", "fstat"}
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
        a_kes_key(),
        EvolvedSigningKey(a_kes_key(3)),
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
def test_kes_key_is_refused_if_others_have_any_right_and_the_group_is_warned_of(
    mode: int, kes_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kes_file.chmod(0o600 | mode)

    if mode & 0o007 == 0:
        assert key_files.load_as(kes.SigningKey, kes_file).period == 0
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == (1 if mode else 0)
        assert all(f"mode {0o600 | mode:04o}" in text and "chmod 600" in text for text in warnings)
        return
    attempts: tuple[Callable[[], object], ...] = (
        lambda: key_files.load(kes_file),
        lambda: key_files.load_as(kes.SigningKey, kes_file),
    )
    for attempt in attempts:
        with pytest.raises(KeyFileError, match=f"mode {0o600 | mode:04o}") as caught:
            attempt()
        assert caught.value.code is ErrorCode.KEY_PERMISSIONS
        assert caught.value.advice == f"chmod 600 {kes_file}"


def test_read_only_secret_is_loaded(kes_file: Path) -> None:
    kes_file.chmod(0o400)

    assert key_files.load_as(kes.SigningKey, kes_file).period == 0


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

    with pytest.raises(KeyFileError, match="open to others"):
        key_files.load(link)


def test_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "no" / "folder"):
        with pytest.raises(StorageError, match="No such file"):
            key_files.load(path)


def test_link_that_leads_in_a_circle_is_a_storage_error(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)

    with pytest.raises(StorageError, match="symbolic links"):
        key_files.load(circle)


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


def test_existing_file_is_not_overwritten(kes_file: Path) -> None:
    before = kes_file.read_bytes()

    with pytest.raises(KeyFileError, match="exists already"):
        key_files.save(kes_file, EvolvedSigningKey(a_kes_key(5)))

    assert kes_file.read_bytes() == before
    assert [path.name for path in kes_file.parent.iterdir()] == ["kes.skey"]


def test_leftover_of_a_crash_is_no_obstacle_and_goes_away(tmp_path: Path) -> None:
    leftover = tmp_path / ".kes.skey.new"
    leftover.write_bytes(b"half")

    key_files.save(tmp_path / "kes.skey", a_kes_key())

    assert key_files.load_as(kes.SigningKey, tmp_path / "kes.skey").period == 0
    assert not leftover.exists()


def test_two_cannot_write_at_once(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another process is writing keys"):
            key_files.save(tmp_path / "kes.skey", a_kes_key())
    finally:
        os.close(folder)

    key_files.save(tmp_path / "kes.skey", a_kes_key())


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
