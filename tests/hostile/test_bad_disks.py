"""A real node on disks that fail and fill: refused with the reason, nothing lost, well again at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.bad_disks import failing_calls, full_files, full_filesystem
from tests.hostile.disk_shim import NotToBeHad
from tests.hostile.planted import planted
from tests.hostile.storms import Figure

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]

CALLS_MAX = 8

Scenario = Callable[[], tuple[Figure, list[str]]]


def played(scenario: Scenario) -> list[str]:
    try:
        _, faults = scenario()
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    return faults


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(lambda: failing_calls(calls_max=CALLS_MAX), id="calls that fail"),
        pytest.param(full_filesystem, id="a full file system"),
        pytest.param(full_files, id="a limit on the size of files"),
    ],
)
def test_a_bad_disk_loses_nothing(scenario: Scenario) -> None:
    assert not played(scenario)


WITHOUT_FSYNC = """
    from stagepost.ground.storage.sqlite_file import SqliteFile
    opened = SqliteFile.__init__
    def opened_without(file, *arguments):
        opened(file, *arguments)
        file._connection.execute("PRAGMA synchronous = OFF")
    SqliteFile.__init__ = opened_without
"""
TRUSTS_THE_FILE_AFTER_A_FAILURE = """
    import sqlite3
    from contextlib import suppress
    from stagepost.errors import StorageError
    from stagepost.ground.storage.table_file import TableFile
    def write_on(file, draft, *, is_synced):
        try:
            file._write(file._file, draft, is_synced)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                file._file._connection.execute("ROLLBACK")
            raise StorageError(str(error)) from error
        draft.settle()
    TableFile.commit = write_on
"""
TAKES_A_FAILED_WRITE_FOR_A_GOOD_ONE = """
    from contextlib import suppress
    from stagepost.errors import StorageError
    from stagepost.ground.storage.table_file import TableFile
    tried = TableFile.commit
    def tried_and_forgotten(file, draft, *, is_synced):
        with suppress(StorageError):
            tried(file, draft, is_synced=is_synced)
    TableFile.commit = tried_and_forgotten
"""


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        pytest.param(WITHOUT_FSYNC, "a message was accepted without fsync", id="accepts before fsync"),
        pytest.param(
            TRUSTS_THE_FILE_AFTER_A_FAILURE,
            "the file was not opened anew after a failed fsync",
            id="trusts a file after a failed fsync",
        ),
        pytest.param(
            TAKES_A_FAILED_WRITE_FOR_A_GOOD_ONE,
            "a message was accepted although fsync failed",
            id="takes a failed write for a good one",
        ),
    ],
)
def test_a_defect_planted_in_the_store_is_noticed(tmp_path: Path, code: str, fault: str) -> None:
    environment = planted(tmp_path / "defect", code)

    assert fault in played(lambda: failing_calls(environment, calls_max=1))
