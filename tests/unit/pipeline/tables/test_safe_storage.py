"""Object storage on which two writers could commit the same version, and prefixes that are not ours, are refused with the reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rigs.object_storage import BUCKET, object_storage
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.written_tables import write_lake

pytest.importorskip("deltalake", reason="the extra spark brings it")

import pyarrow as pa

from stagepost.pipeline.tables.damage import fault_of
from stagepost.pipeline.tables.delta import DayFile, held_files, open_table
from stagepost.pipeline.tables.manifest import COMMITS, RECORDS, Batch, Manifest, keep_sets
from stagepost.pipeline.tables.own_files import require_own_place
from stagepost.pipeline.tables.safe_storage import PROBE, require_safe_commits, require_safe_options

ADDRESS = "s3://lake/tables"


@pytest.mark.parametrize(
    ("options", "environment", "name"),
    [
        ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, {}, "AWS_S3_ALLOW_UNSAFE_RENAME"),
        ({}, {"AWS_S3_ALLOW_UNSAFE_RENAME": "1"}, "AWS_S3_ALLOW_UNSAFE_RENAME"),
        ({"allow_unsafe_rename": "True"}, {}, "ALLOW_UNSAFE_RENAME"),
        ({"conditional_put": "disabled"}, {}, "CONDITIONAL_PUT"),
        ({}, {"AWS_CONDITIONAL_PUT": " Disabled "}, "AWS_CONDITIONAL_PUT"),
    ],
)
def test_options_that_turn_safety_off_are_refused_by_name(
    options: dict[str, str], environment: dict[str, str], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*{ADDRESS}.* the same version") as refused:
        require_safe_options(TableStore.at(ADDRESS, options), environment)

    assert name in str(refused.value.advice)


@pytest.mark.parametrize(
    ("address", "options", "environment"),
    [
        (ADDRESS, {}, {}),
        (ADDRESS, {"AWS_S3_ALLOW_UNSAFE_RENAME": "false", "conditional_put": "etag"}, {}),
        (ADDRESS, {"AWS_S3_ALLOW_UNSAFE_RENAME": "false"}, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}),
        ("tables", {}, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}),
    ],
)
def test_other_options_and_local_folders_pass(
    address: str, options: dict[str, str], environment: dict[str, str]
) -> None:
    require_safe_options(TableStore.at(address, options), environment)


@pytest.mark.xdist_group("object storage")
def test_a_server_that_refuses_a_second_commit_passes_and_nothing_is_left() -> None:
    with object_storage() as storage:
        require_safe_commits(TableStore.at(storage.address("tables"), storage.options))

        assert left(storage.folder) == []


@pytest.mark.xdist_group("object storage")
def test_a_server_that_ignores_conditions_is_refused_and_nothing_is_left() -> None:
    with object_storage(is_conditional=False) as storage:
        with pytest.raises(ConfigError, match="took two commits of one version"):
            require_safe_commits(TableStore.at(storage.address("tables"), storage.options))

        assert left(storage.folder) == []


@pytest.mark.xdist_group("object storage")
def test_a_prefix_with_a_strangers_object_or_without_commits_is_refused_and_stays_as_it_is() -> None:
    need_packages()
    from stagepost.pipeline.tables.tables import Tables

    with object_storage() as storage:
        store = TableStore.at(storage.address("tables"), storage.options)
        assert storage.request("PUT", "tables/notes/of-mine.txt", b"mine").status == 200
        with pytest.raises(ConfigError, match=r"no driver of these tables has made: notes$"):
            Tables(store)
        assert storage.request("DELETE", "tables/notes/of-mine.txt").status == 204
        write_lake(store, {RECORDS: [{"offset": 1}]}, Manifest(total=Batch(rows=1)))
        keep_sets(store, b"{}")
        Tables(store).close()

        shutil.rmtree(storage.folder / BUCKET / "tables" / COMMITS)
        with pytest.raises(ConfigError, match=f"and no table {COMMITS} that says what of them counts"):
            Tables(store)
        assert [one.rows for one in held_files(open_table(store, RECORDS))] == [1]


@pytest.mark.xdist_group("object storage")
def test_a_storage_that_refuses_the_keys_is_named_in_one_line_and_no_file_called_damaged() -> None:
    need_packages()
    with object_storage() as storage:
        store = TableStore.at(storage.address("tables"), storage.options)
        write_lake(store, {RECORDS: [{"offset": 1}]}, Manifest(total=Batch(rows=1)))
        held = held_files(open_table(store, RECORDS))
        other = TableStore.at(store.address, {**store.options, "AWS_SECRET_ACCESS_KEY": "another"})
        schema = pa.schema([("message_id", pa.string())])

        def write() -> None:
            file = DayFile(other, RECORDS, "2026-01-31", schema)
            file.write(pa.table({"message_id": ["00"]}))
            file.close()

        acts = (
            write,
            lambda: require_own_place(other),
            lambda: require_safe_commits(other),
            lambda: open_table(other, RECORDS),
            lambda: fault_of(other, RECORDS, held[0]),
        )
        for act in acts:
            with pytest.raises(StorageError) as refused:
                act()
            assert store.address in refused.value.text
            assert not set("\n\x1b\u21b3") & set(refused.value.text)
        assert fault_of(store, RECORDS, held[0]) is None


def left(folder: Path) -> list[Path]:
    return [path for path in (folder / BUCKET).rglob("*") if path.is_file() and PROBE in str(path)]
