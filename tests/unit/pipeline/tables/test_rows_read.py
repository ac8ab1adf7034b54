"""Look-ups of many messages: the rows that are read go with the ids that are asked for, and not with what the table holds."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from stagepost.pipeline.tables import delta, look_up
from stagepost.pipeline.tables.delta import Commit, DayFile, LakeTable
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    from deltalake import DeltaTable

SCHEMA = pa.schema([("message_id", pa.string()), ("place", pa.int64())])
ROWS_PER_ID, IDS_PER_FILE = 4, 2_000


def id_of(number: int) -> str:
    return sha256(b"id %d" % number).hexdigest()


def a_table(folder: Path, files: int) -> LakeTable:
    store = TableStore.at(folder)
    table = LakeTable(store, "state", SCHEMA)
    for number in range(files):
        file = DayFile(store, "state", f"2026-01-{number + 1:02d}", SCHEMA)
        ids = [id_of(one) for one in range(number * IDS_PER_FILE, (number + 1) * IDS_PER_FILE)]
        file.write(
            pa.table({"message_id": ids * ROWS_PER_ID, "place": range(len(ids) * ROWS_PER_ID)}, SCHEMA)
        )
        table.commit(Commit(adds=(file.close(),)))
    return table


def rows_read(table: DeltaTable, message_ids: list[str]) -> int:
    """Return the rows whose ids a look-up compares, as the reader itself counts them."""
    from deltalake import QueryBuilder

    listed = look_up.quoted_list(message_ids)
    query = f"EXPLAIN ANALYZE SELECT * FROM found WHERE message_id IN ({listed})"
    text = str(pa.table(QueryBuilder().register("found", table).execute(query).read_all()).to_pylist())
    counts = re.findall(r"pushdown_rows_(?:matched|pruned)=([0-9.]+)( K)?", text)
    assert counts, text
    return int(sum(float(count) * (1_000 if is_thousand else 1) for count, is_thousand in counts))


def test_ids_that_are_not_there_read_no_row_however_large_the_table_is(tmp_path: Path) -> None:
    table = a_table(tmp_path, 8)
    absent = [id_of(-1 - number) for number in range(look_up.IDS_AT_ONCE)]

    assert rows_read(table.require(), absent) == 0
    assert len(look_up.rows_of(table.require(), absent, SCHEMA)) == 0


def test_a_coarse_filter_would_read_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "BLOOM_FALSE_SHARE", 0.01)
    table = a_table(tmp_path, 2)
    absent = [id_of(-1 - number) for number in range(look_up.IDS_AT_ONCE)]

    assert rows_read(table.require(), absent) == 2 * IDS_PER_FILE * ROWS_PER_ID


def test_compaction_keeps_the_filters(tmp_path: Path) -> None:
    table = a_table(tmp_path, 1)
    more = DayFile(table.store, "state", "2026-01-01", SCHEMA)
    more.write(pa.table({"message_id": [id_of(99_999)], "place": [0]}, SCHEMA))
    table.commit(Commit(adds=(more.close(),)))
    table.change(lambda found, how: found.optimize.compact(**how), {})
    absent = [id_of(-1 - number) for number in range(look_up.IDS_AT_ONCE)]

    assert len(table.held()) == 1
    assert rows_read(table.require(), absent) == 0


@pytest.mark.parametrize("rows_per_id", [0, look_up.ROWS_READ_PER_ID], ids=["named", "read once"])
def test_many_ids_are_found_whole_by_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_id: int
) -> None:
    monkeypatch.setattr(look_up, "IDS_AT_ONCE", 500)
    monkeypatch.setattr(look_up, "ROWS_READ_PER_ID", rows_per_id)
    table = a_table(tmp_path, 2)
    wanted = [id_of(number) for number in range(-700, 2 * IDS_PER_FILE, 3)]

    found = look_up.rows_of(table.require(), wanted, SCHEMA)

    held = {id_of(number) for number in range(2 * IDS_PER_FILE)}
    assert set(found["message_id"].to_pylist()) == held & set(wanted)
    assert len(found) == ROWS_PER_ID * len(held & set(wanted))
