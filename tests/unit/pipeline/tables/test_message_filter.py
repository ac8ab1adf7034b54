"""One set of filters for the command line, URLs and the API: read from texts, written back, and right about rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.cli.export import FILTERS
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.filter import (
    KIND_NAMES,
    NAMES,
    OUTCOMES,
    TEXT_CHARACTERS_MAX,
    TIME_MS_MAX,
    MessageFilter,
    moment_text,
)
from stagepost.pipeline.tables.reader import copy_rows, csv_cell
from tests.worlds.pipeline.pipeline_spark import need_packages

NOW_S = 1_700_000_000.0
NOW_MS = 1_700_000_000_000
POOL = "ab" * 28


def read(**texts: str) -> MessageFilter:
    return MessageFilter.read(texts, NOW_S)


def test_every_name_is_read_and_the_command_has_an_option_for_each() -> None:
    found = read(
        id="ABc1",
        outcome="Rejected, expired,rejected",
        kind="finalized",
        since="10m",
        until="1700000000001",
        topic="demo",
        pool=POOL,
        validator="v3",
    )
    assert found == MessageFilter(
        "abc1", ("rejected", "expired"), ("Finalized",), NOW_MS - 600_000, NOW_MS + 1, "demo", POOL, "V3"
    )
    assert tuple(FILTERS) == NAMES == tuple(found.texts())
    assert read(id="", topic="  ") == MessageFilter()


@given(
    st.builds(
        MessageFilter,
        id=st.none() | st.text("0123456789abcdef", min_size=1, max_size=64),
        outcome=st.lists(st.sampled_from(OUTCOMES), unique=True).map(tuple),
        kind=st.lists(st.sampled_from(KIND_NAMES), unique=True).map(tuple),
        since_ms=st.none() | st.integers(0, TIME_MS_MAX),
        until_ms=st.none() | st.integers(0, 2_000_000_000_000),
        pool=st.none() | st.just(POOL),
        validator=st.sampled_from([None, "V1", "V99999", "0123abcd", "f" * 64]),
    )
)
def test_what_is_written_into_a_url_is_read_back_whenever_that_is(wanted: MessageFilter) -> None:
    if sum(map(len, wanted.kind)) + len(wanted.kind) > TEXT_CHARACTERS_MAX:
        return
    assert MessageFilter.read(wanted.texts(), NOW_S) == wanted


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("id", "xyz", "not a message id"),
        ("id", "a" * 65, "not a message id"),
        ("outcome", "lost", "'lost' is not a known outcome"),
        ("kind", "Finalised", "'Finalised' is not a known kind"),
        ("since", "soon", "the filter since"),
        ("until", "1960-01-01", "out of range"),
        ("until", str(TIME_MS_MAX + 1), "out of range"),
        ("pool", "pool1abc", "is not a pool id"),
        ("validator", "V0", "not a validator"),
        ("validator", "abcdef0", "not a validator"),
        ("topic", "t" * (TEXT_CHARACTERS_MAX + 1), "257 characters"),
        ("colour", "red", "no filter 'colour'"),
    ],
)
def test_what_cannot_be_understood_is_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(**{name: text})
    assert read(topic="t" * TEXT_CHARACTERS_MAX).topic == "t" * TEXT_CHARACTERS_MAX


def test_moments_are_written_in_utc_to_the_millisecond_and_those_beyond_the_calendar_as_numbers() -> None:
    assert moment_text(NOW_MS + 7) == "2023-11-14T22:13:20.007Z"
    assert moment_text(TIME_MS_MAX) == str(TIME_MS_MAX)


# What the conditions let through

TABLES = """
CREATE TABLE messages AS SELECT * FROM (VALUES
  ('aa01', 'finalized', 1000, 's1', 'd1', 'q1'), ('aa02', 'rejected', 2000, 's2', NULL, 'q2'),
  ('bb01', 'expired', 3000, 's1', 'd2', NULL)
) AS t(message_id, verdict, sent_ms, session_id, delivery_id, dmq_id);
ALTER TABLE messages ADD COLUMN queued_ms BIGINT; ALTER TABLE messages ADD COLUMN included_ms BIGINT;
ALTER TABLE messages ADD COLUMN accepted_ms BIGINT; ALTER TABLE messages ADD COLUMN finalized_ms BIGINT;
ALTER TABLE messages ADD COLUMN rejected_ms BIGINT; ALTER TABLE messages ADD COLUMN timeout_ms BIGINT;
UPDATE messages SET queued_ms = 500 WHERE message_id = 'bb01';
CREATE TABLE receipts AS SELECT * FROM (VALUES
  ('aa01', 'PutIntoQueue', 1001, 'validator', '11111111ff', 1), ('aa01', 'Finalized', 1500, 'full_node', '99999999ff', 2),
  ('aa02', 'PutIntoQueue', 2001, 'validator', '22222222ff', 3), ('bb01', 'Timeout', 9000, 'validator', '22222222ff', 4)
) AS t(message_id, kind, timestamp_ms, role, source_id, block_seqno);
CREATE TABLE validators AS SELECT * FROM (VALUES
  ('s1', 0, '11111111ff'), ('s1', 1, '22222222ff'), ('s2', 0, '22222222ff')) AS t(session_id, validator, source_id);
CREATE TABLE delivery_events AS SELECT * FROM (VALUES ('d1', 'demo'), ('d2', 'other')) AS t(delivery_id, topic);
CREATE TABLE dmq_messages AS SELECT * FROM (VALUES ('q1', repeat('ab', 28), true), ('q2', repeat('ab', 28), false))
  AS t(dmq_id, pool_id, valid);
"""


@pytest.fixture(scope="module")
def small_reader() -> Iterator[Any]:
    need_packages()
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(TABLES)
    yield SimpleNamespace(
        connection=connection, cursor=connection.cursor, known=lambda name: name, copy=copy_rows
    )
    connection.close()


@pytest.mark.parametrize(
    ("texts", "messages", "receipts"),
    [
        ({}, ["aa01", "aa02", "bb01"], [1, 2, 3, 4]),
        ({"id": "AA"}, ["aa01", "aa02"], [1, 2, 3]),
        ({"outcome": "expired,rejected"}, ["aa02", "bb01"], [3, 4]),
        ({"kind": "PutIntoQueue"}, ["aa01", "aa02"], [1, 3]),
        ({"since": "1000"}, ["aa01", "aa02"], [1, 2, 3, 4]),
        ({"since": "1001"}, ["aa02"], [1, 2, 3, 4]),
        ({"until": "2000"}, ["aa01", "bb01"], [1, 2]),
        ({"until": "2001"}, ["aa01", "aa02", "bb01"], [1, 2]),
        ({"topic": "demo"}, ["aa01"], [1, 2]),
        ({"topic": "'; DROP TABLE messages; --"}, [], []),
        ({"pool": POOL}, ["aa01"], [1, 2]),
        ({"validator": "V1"}, ["aa01", "aa02"], [1, 3]),
        ({"validator": "V2"}, ["bb01"], [4]),
        ({"validator": "22222222"}, ["aa02", "bb01"], [3, 4]),
        ({"validator": "99999999"}, [], []),
        ({"validator": "V1", "kind": "Timeout"}, [], []),
        ({"id": "bb", "validator": "22222222", "kind": "Timeout"}, ["bb01"], [4]),
    ],
)
def test_a_filter_lets_through_what_it_says(
    small_reader: Any, tmp_path: Path, texts: dict[str, str], messages: list[str], receipts: list[int]
) -> None:
    from stagepost.pipeline.tables.filter import Exported, FileFormat, export, query_of

    wanted = MessageFilter.read(texts, NOW_S)

    def rows(what: Exported) -> list[dict[str, Any]]:
        out = tmp_path / f"{what.value}.jsonl"
        count = export(small_reader, what, wanted, FileFormat.JSONL, str(out))
        found = [json.loads(line) for line in out.read_text().splitlines()]
        assert len(found) == count
        return found

    assert [row["message_id"] for row in rows(Exported.MESSAGES)] == messages
    assert sorted(row["block_seqno"] for row in rows(Exported.RECEIPTS)) == receipts
    assert query_of(Exported.MESSAGES, wanted).text.count("?") == len(wanted.messages().parameters)


def test_an_export_is_one_whole_file_or_none(small_reader: Any, tmp_path: Path) -> None:
    from stagepost.pipeline.tables.filter import Exported, FileFormat, export

    for form in FileFormat:
        out = tmp_path / f"it's.{form.value}"
        assert export(small_reader, Exported.MESSAGES, read(id="aa"), form, str(out)) == 2
    lines = (tmp_path / "it's.jsonl").read_text().splitlines()
    assert [json.loads(line)["message_id"] for line in lines] == ["aa01", "aa02"]
    assert (tmp_path / "it's.csv").read_text().splitlines()[0].startswith("message_id,verdict,sent_ms")
    assert small_reader.connection.execute(
        "SELECT count(*) FROM read_parquet(?)", [str(tmp_path / "it's.parquet")]
    ).fetchall() == [(2,)]
    with pytest.raises(StorageError, match="cannot write"):
        export(small_reader, Exported.MESSAGES, read(), FileFormat.CSV, str(tmp_path / "nowhere" / "x.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it's.csv", "it's.jsonl", "it's.parquet"]


def test_no_text_in_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    """Validators and contracts have a say in texts; spreadsheets carry out a cell that begins like a formula."""
    import csv

    import duckdb

    spaced = ["\t=1+1", "\r=1+1", "\n=1+1", "＝1+1", "＋1", "－1", "＠SUM(A1)"]
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "plain", "a=b", "", "'quoted", None, *spaced]
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE found (number BIGINT, error VARCHAR)")
        connection.executemany("INSERT INTO found VALUES (?, ?)", [[-1, text] for text in texts])
        for suffix in (".csv", ".jsonl"):
            out = tmp_path / f"found{suffix}"
            assert copy_rows(connection, "found", "SELECT * FROM found", (), suffix, str(out)) == len(texts)

    with (tmp_path / "found.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [row["error"] for row in rows]
    kept = ["plain", "a=b", "", "'quoted", ""]
    assert cells == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", *kept, *("'" + text for text in spaced)]
    assert cells == [csv_cell(text or "") for text in texts], "the dashboard writes the same cells"
    assert {row["number"] for row in rows} == {"-1"}, "numbers stay numbers"
    lines = (tmp_path / "found.jsonl").read_text().splitlines()
    assert [json.loads(line)["error"] for line in lines] == texts


def test_a_validator_is_found_by_its_name() -> None:
    names = {b"\x11" * 32: "validator-1", b"\x22" * 32: "deadbeef"}
    found = MessageFilter.read({"validator": "validator-1"}, NOW_S, names)
    assert found.validator == "11" * 32
    assert found.texts() == {"validator": "validator-1"}, "a URL keeps what people read"
    assert MessageFilter.read(found.texts(), NOW_S, names) == found
    assert found.tables() == (), "the key id needs no table of places"
    assert MessageFilter.read({"validator": "deadbeef"}, NOW_S, names).validator == "22" * 32
    assert MessageFilter.read({"validator": "v2"}, NOW_S, names).validator == "V2"
    with pytest.raises(ConfigError, match="not a validator") as caught:
        MessageFilter.read({"validator": "validator-9"}, NOW_S, names)
    assert "validator-1" in (caught.value.advice or "")
