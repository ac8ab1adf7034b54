"""The step of a batch that checks its proofs: from the records of the batch, and those that waited for them, to rows of `proofs`
and of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from stagepost.chain.genesis import Genesis
from stagepost.pipeline.schemas import PROOFS as PROOFS_SCHEMA
from stagepost.pipeline.schemas import RECORDS as RECORDS_SCHEMA
from stagepost.pipeline.schemas import STATE as STATE_SCHEMA
from stagepost.pipeline.schemas import arrow_schema, with_day
from stagepost.pipeline.steps.partial_state import PROOF
from stagepost.pipeline.steps.proof_checks import OWN_PARTS, Masters, ProofBook, checking_ends
from stagepost.pipeline.tables.delta import DataFile
from stagepost.pipeline.tables.look_up import queries, quoted_list, rows_of
from stagepost.pipeline.tables.manifest import PROOFS, RECORDS, STATE
from stagepost.pipeline.tables.tables import DayWriter, Tables
from stagepost.topics.topic import PROOFS as PROOFS_TOPIC

PROOFS_HERE_MAX = 2_000
"""Proofs, at most, whose paths are checked in the driver; more are handed to the workers."""

AWAITED_BLOCKS_MAX = 10_000
"""Master blocks, at most, that proofs wait for; the oldest are given up. A full node writes a block before its proofs."""

_OWN = """
    SELECT message_id, source_id AS master, signed_hash, day::VARCHAR AS day, value FROM found
    WHERE topic = ? AND reason IS NULL AND source_id IS NOT NULL
"""
_SHARED = "SELECT message_id, value FROM found WHERE topic = ? AND reason IS NULL AND source_id IS NULL"


class ProvedFiles(NamedTuple):
    """New files of `proofs` and `state`, and the master blocks that proofs still wait for, with the days of these proofs."""

    files: list[DataFile]
    awaited: dict[str, list[str]]


class ProofStep:
    """Check of the proofs of one set of tables by the genesis of their network."""

    def __init__(self, spark: SparkSession, tables: Tables, genesis: bytes) -> None:
        self._spark, self._tables = spark, tables
        self.book = ProofBook(tables.store, Genesis.decode(genesis))

    def prove(self, paths: Sequence[str], *, is_again: bool = False) -> ProvedFiles:
        """Check the proofs among the records of some files, which may not be committed yet, and those that waited for a block
        among them. `is_again`: nothing that `proofs` holds of their messages stays.
        """
        awaited = self._tables.manifest.awaited_blocks
        own = self._own(paths)
        shared = self._shared(paths)
        roots = set(own["master"].unique().to_pylist())
        trust = self.book.look_at(roots | set(awaited) if shared else roots, partial(self._find, shared))
        come = sorted(trust.masters.keys() & awaited.keys())
        days = {day for root in come for day in awaited[root]}
        held = [one.path for one in self._tables.table(RECORDS).held(days)] if days else []
        own = pa.concat_tables([own, self._own(held, come)])
        still = {root: days for root, days in awaited.items() if root not in trust.masters}
        for root, day in zip(own["master"].to_pylist(), own["day"].to_pylist(), strict=True):
            if root in trust.awaited:
                still[root] = sorted({*still.get(root, ()), day})
        rows = self._ends(
            own.filter(pc.is_in(own["master"], pa.array(trust.masters, pa.string()))), trust.masters
        )
        return ProvedFiles(
            self._written(rows if is_again else self._new(rows)),
            dict(list(still.items())[-AWAITED_BLOCKS_MAX:]),
        )

    def _own(self, paths: Sequence[str], masters: Sequence[str] | None = None) -> pa.Table:
        """Return messages' own parts in files of records, of some master blocks or of all, each once."""
        if not paths:
            return OWN_PARTS.empty_table()
        query = _OWN if masters is None else f"{_OWN} AND source_id IN ({quoted_list(masters)})"
        with queries(self._tables.store, {"found": (RECORDS, paths)}) as connection:
            once = f"SELECT * FROM ({query}) QUALIFY row_number() OVER (PARTITION BY message_id, signed_hash ORDER BY day) = 1"
            return connection.sql(once, params=[PROOFS_TOPIC]).to_arrow_table().cast(OWN_PARTS)

    def _shared(self, paths: Sequence[str]) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        if paths:
            with queries(self._tables.store, {"found": (RECORDS, paths)}) as connection:
                for key, value in connection.execute(_SHARED, [PROOFS_TOPIC]).fetchall():
                    found.setdefault(key, []).append(value)
        return found

    def _find(self, fresh: Mapping[str, list[bytes]], keys: Iterable[str]) -> dict[str, list[bytes]]:
        """Return the shared parts under some keys, of this batch and of earlier ones."""
        wanted = sorted(keys)
        found = {key: list(fresh[key]) for key in wanted if key in fresh}
        table = self._tables.table(RECORDS)
        if lacking := [key for key in wanted if key not in found]:
            rows = rows_of(table.require(), lacking, arrow_schema(RECORDS_SCHEMA))
            for row in (
                rows.filter(pc.equal(rows["topic"], PROOFS_TOPIC)).select(["message_id", "value"]).to_pylist()
            ):
                found.setdefault(row["message_id"], []).append(row["value"])
        return found

    def _ends(self, own: pa.Table, masters: Masters) -> pa.Table:
        schema = with_day(PROOFS_SCHEMA)
        check = checking_ends(masters)
        if len(own) <= PROOFS_HERE_MAX:
            return pa.Table.from_batches(check(iter(own.to_batches())), arrow_schema(schema))
        found = self._spark.createDataFrame(own).mapInArrow(check, schema)
        return self._tables.ran(found.toArrow).cast(arrow_schema(schema))

    def _new(self, rows: pa.Table) -> pa.Table:
        """Return the rows of proofs that the table does not hold yet."""
        if not len(rows):
            return rows
        table = self._tables.table(PROOFS).require()
        held = rows_of(table, rows["message_id"].unique().to_pylist(), arrow_schema(PROOFS_SCHEMA))
        return rows.filter(pc.invert(pc.is_in(rows["signed_hash"], held["signed_hash"].combine_chunks())))

    def _written(self, rows: pa.Table) -> list[DataFile]:
        if not len(rows):
            return []
        proofs = DayWriter(self._tables.store, PROOFS, self._tables.mark)
        proofs.take(rows)
        holding = rows.filter(pc.is_null(rows["refusal"]))
        if not len(holding):
            return proofs.close()
        schema = arrow_schema(with_day(STATE_SCHEMA))
        columns = {
            name: holding[name] for name in ("message_id", "proof", "proof_block", "executed_as", "day")
        }
        columns["role"] = pa.array([PROOF] * len(holding), pa.string())
        nothing = {field.name: pa.nulls(len(holding), field.type) for field in schema}
        state = DayWriter(self._tables.store, STATE, self._tables.mark)
        state.take(pa.table([{**nothing, **columns}[name] for name in schema.names], schema=schema))
        return [*proofs.close(), *state.close()]
