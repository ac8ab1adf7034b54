"""Tables on object storage: the server of the tests refuses a second conditional put, and kills lose, double and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import msgspec
import pytest

from rigs.object_storage import BUCKET, PRECONDITION_FAILED, ObjectStorage, losing_proxy, object_storage

pytest.importorskip("deltalake", reason="the extra spark brings it")

import pyarrow as pa

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.delta import Commit, DataFile, DayFile, LakeTable
from stagepost.pipeline.tables.manifest import COMMITS, RECORDS, Batch, Manifest, keep_sets, kept_sets
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.pipeline.storage_kills import kill_and_compare
from tests.worlds.pipeline.written_tables import DAY, write_lake

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("object storage")]

DRIVER_KILLS, SERVER_KILLS = 3, 2
WRITERS_AT_ONCE = 16


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as found:
        yield found


def test_a_second_conditional_put_is_refused_by_the_server(storage: ObjectStorage) -> None:
    assert storage.put_new("conditional", b"first") == 200
    assert storage.put_new("conditional", b"second") == PRECONDITION_FAILED
    assert storage.request("GET", "conditional").body == b"first"


def test_of_many_conditional_puts_at_once_one_is_taken(storage: ObjectStorage) -> None:
    bodies = [f"{number}".encode() * 1_000 for number in range(WRITERS_AT_ONCE)]
    with ThreadPoolExecutor(WRITERS_AT_ONCE) as pool:
        statuses = list(pool.map(lambda body: storage.put_new("raced", body), bodies))

    assert statuses.count(200) == 1
    assert set(statuses) <= {200, PRECONDITION_FAILED, 409}
    assert storage.request("GET", "raced").body == bodies[statuses.index(200)]


def test_objects_and_conditions_outlive_a_kill_of_the_server(storage: ObjectStorage) -> None:
    assert storage.put_new("kept", b"before") == 200

    storage.kill()
    storage.start()

    assert storage.request("GET", "kept").body == b"before"
    assert storage.put_new("kept", b"after") == PRECONDITION_FAILED


def test_the_planted_defect_takes_a_second_conditional_put() -> None:
    with object_storage(is_conditional=False) as unsafe:
        assert unsafe.put_new("twice", b"first") == 200
        assert unsafe.put_new("twice", b"second") == 200


def test_two_writers_and_the_server_are_killed_and_no_row_is_lost_doubled_or_changed(
    storage: ObjectStorage, run_seed: int
) -> None:
    found = kill_and_compare(storage, "killed", run_seed, DRIVER_KILLS, SERVER_KILLS)

    assert found.faults == []
    assert found.driver_kills >= DRIVER_KILLS
    assert found.server_kills == SERVER_KILLS
    assert (storage.folder / BUCKET / "killed").is_dir()


THINGS = pa.table({"value": [3, 7], "day": [date.fromisoformat(DAY)] * 2})
CHANGES: dict[str, Callable[[LakeTable], object]] = {
    "append": lambda table: table.commit(Commit(adds=(thing(table, 4),))),
    "delete": lambda table: table.change(lambda found, how: found.delete("value = 3", **how), {}),
    "update": lambda table: table.change(lambda found, how: found.update({"value": "value + 1"}, **how), {}),
    "merge": lambda table: table.change(
        lambda found, how: (
            found.merge(THINGS, "t.value = s.value", source_alias="s", target_alias="t", **how)
            .when_not_matched_insert_all()
            .execute()
        ),
        {},
    ),
    "compaction": lambda table: table.change(lambda found, how: found.optimize.compact(**how), {}),
    "restoring": lambda table: table.go_back(table.version - 1),
}
AFTER = {
    "append": [1, 3, 4],
    "delete": [1],
    "update": [2, 4],
    "merge": [1, 3, 7],
    "compaction": [1, 3],
    "restoring": [1],
}


def thing(table: LakeTable, value: int) -> DataFile:
    file = DayFile(table.store, table.name, DAY, table.schema)
    file.write(pa.table({"value": [value]}, table.schema))
    return file.close()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_answer_is_lost_counts_once_and_a_refused_one_does_not(
    storage: ObjectStorage, change: str
) -> None:
    with losing_proxy(storage) as proxy:
        store = TableStore.at(storage.address(f"lost-{change}"), proxy.options)
        table = LakeTable(store, "things", pa.schema([pa.field("value", pa.int64())]))
        for value in (1, 3):
            table.commit(Commit(adds=(thing(table, value),)))
        other = LakeTable(store, "things", table.schema)
        proxy.lose(f"{table.version + 1:020d}.json")
        CHANGES[change](table)

        assert proxy.due() == []
        # Compaction takes its own commit for another's, and commits the same once more.
        made = table.version
        assert made == (4 if change == "compaction" else 3)
        rows = table.require().to_pyarrow_table()["value"].to_pylist()
        assert sorted(rows) == AFTER[change]
        with pytest.raises(StorageError, match=r"was refused|meanwhile"):
            CHANGES[change](other)
        other.go_back(made)
        again = LakeTable(store, "things", table.schema)
        assert sorted(again.require().to_pyarrow_table()["value"].to_pylist()) == AFTER[change]


def records_from(offset: int) -> pa.Table:
    """Return one row of `records`."""
    from stagepost.pipeline.schemas import RECORDS as COLUMNS
    from stagepost.pipeline.schemas import arrow_schema, with_day

    return pa.Table.from_pylist([{"offset": offset, "day": DAY}], arrow_schema(with_day(COLUMNS)))


def test_of_two_drivers_at_once_one_is_refused_and_the_tables_are_those_of_the_other(
    storage: ObjectStorage,
) -> None:
    need_packages()
    from stagepost.pipeline.tables.tables import Tables

    store = TableStore.at(storage.address("two"), storage.options)
    write_lake(store, {RECORDS: [{"offset": 1}]}, Manifest(total=Batch(rows=1)))
    first = Tables(store)
    with first.changing():
        first.commit(RECORDS, Commit(adds=tuple(first.write_rows(records_from(2), RECORDS))))
        # Leaves out what is not published, as after a kill.
        second = Tables(store)
        assert sum(one.rows for one in second.table(RECORDS).held()) == 1
        first.publish(lambda current: msgspec.structs.replace(current, total=Batch(rows=2)))

    def change_beside() -> None:
        with second.changing():
            second.commit(RECORDS, Commit(adds=tuple(second.write_rows(records_from(3), RECORDS))))
            second.publish(lambda current: msgspec.structs.replace(current, total=Batch(rows=2)))

    with pytest.raises(StorageError, match=r"was refused|meanwhile"):
        change_beside()

    for _ in range(2):  # the second time after a successor has put things in order
        reader = Reader(store)
        assert sorted(row["offset"] for row in reader.sql('SELECT "offset" FROM records')) == [1, 2]
        reader.close()
        third = Tables(store)
        assert sum(one.rows for one in third.table(RECORDS).held()) == third.manifest.total.rows == 2


def test_the_sets_are_kept_beside_tables_on_object_storage(storage: ObjectStorage) -> None:
    store = TableStore.at(storage.address("sets-beside"), storage.options)
    digest = keep_sets(store, sets_bytes())

    assert keep_sets(store, sets_bytes()) == digest
    assert kept_sets(store, Manifest(sets_digest=digest)) == sets_bytes()
    with pytest.raises(StorageError, match="a copy that the tables need cannot be read"):
        kept_sets(store, Manifest(sets_digest="00" * 32))


def test_storage_that_is_not_safe_is_refused_before_a_table_is_made() -> None:
    need_packages()
    from stagepost.pipeline.tables.tables import Tables

    with object_storage(is_conditional=False) as unsafe:
        store = TableStore.at(unsafe.address("tables"), unsafe.options)
        with pytest.raises(ConfigError, match="took two commits of one version"):
            Tables(store)
        assert not (unsafe.folder / BUCKET / "tables" / COMMITS).exists()
