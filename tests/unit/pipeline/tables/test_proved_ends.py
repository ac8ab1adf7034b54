"""Proofs in the tables: a proof outranks claims, each certificate is checked once, and what is made up proves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from stagepost.errors import ConfigError
from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.manifest import OfDump
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.recomputation import check_tables
from stagepost.remp.validator_sets import parse_validator_sets
from tests.worlds.chain.chain_world import a_genesis
from tests.worlds.chain.proved_chain import ProvedChain, a_proving_configuration
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.pipeline.proved_lines import ProvedLines, name_of, proved_sets

if TYPE_CHECKING:
    from stagepost.pipeline.driver import Driver

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them
Lines = list[dict[str, Any]]


class ProvedTables:
    """Tables of one folder, taken batch by batch."""

    def __init__(self, folder: Path, genesis: bytes | None) -> None:
        from stagepost.pipeline.driver import Driver
        from stagepost.pipeline.tables.tables import Tables

        self.folder = folder
        self._tables = Tables(folder / "tables")
        self.driver: Driver = Driver(small_spark(), self._tables, sets_bytes(proved_sets()), genesis=genesis)
        self.taken: list[bytes] = []

    def take(self, lines: Lines) -> None:
        from stagepost.pipeline.driver import Evaluated, Evaluation

        written = [json.dumps(line).encode() for line in lines]
        path = self.folder / f"{len(self.taken)}.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in written))
        dump = survey(path)
        self.driver.take_dump(dump, Evaluation(what=Evaluated.MESSAGES), OfDump(dump.digest))
        self.taken += written

    def report(self) -> None:
        from stagepost.pipeline.driver import Evaluation

        self.driver.report(Evaluation())

    def close(self) -> None:
        self._tables.close()

    def table(self, name: str) -> list[dict[str, Any]]:
        reader = Reader(self.folder / "tables")
        try:
            return reader.table(name)
        finally:
            reader.close()

    def alerts(self, kind: str) -> dict[str, str]:
        return {row["subject"]: row["detail"] for row in self.table("alerts") if row["kind"] == kind}

    def assert_as_recomputed(self, world: ProvedLines) -> None:
        """Hold `messages` against the independent oracle, and all of it against our own recomputation."""
        oracle = recompute(self.taken, proved_sets(), ends=world.ends)
        assert {row["message_id"]: row for row in self.table("messages")} == oracle.messages
        found = check_tables(
            self.folder / "tables", parse_validator_sets(sets_bytes(proved_sets()), "the sets")
        )
        assert found.differences == []


def test_a_proof_outranks_claims_in_any_order_and_division(tmp_path: Path, run_seed: int) -> None:
    world, choices = ProvedLines(), Random(run_seed)
    lines = [*world.claims, *world.proofs]
    choices.shuffle(lines)
    tables = ProvedTables(tmp_path, world.genesis)
    places = sorted(choices.sample(range(1, len(lines)), 2))
    for begin, end in zip([0, *places], [*places, None], strict=True):
        tables.take(lines[begin:end])
    tables.take([world.last_line])
    tables.report()
    tables.close()

    tables.assert_as_recomputed(world)
    verdicts = {row["message_id"]: (row["verdict"], row["proof"]) for row in tables.table("messages")}
    assert verdicts[name_of(world.executed)] == ("finalized", "executed")
    assert verdicts[name_of(world.never)] == ("expired", "never")
    assert verdicts[name_of(world.twin)] == ("executed_as", "executed_as")
    assert verdicts[name_of(world.claimed)] == ("finalized", "none"), "the claim is shown, and is not a proof"
    assert len(tables.table("proofs")) == 4
    assert tables.alerts("unproved_finality").keys() == {name_of(world.claimed)}
    assert tables.alerts("end_contradicted").keys() == {name_of(world.never), name_of(world.refused)}


def test_what_is_made_up_proves_nothing_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    world = ProvedLines()
    tables = ProvedTables(tmp_path, world.genesis)
    tables.take([*world.made_up(), *world.claims])
    tables.take([world.last_line])
    tables.report()

    assert {row["proof"] for row in tables.table("messages")} == {"none"}
    claimed = {name_of(one) for one in (world.executed, world.never, world.claimed)}
    assert tables.alerts("unproved_finality").keys() == claimed
    assert [row["reason"] for row in tables.table("quarantine")] == ["PROOF_INVALID"]

    tables.take(world.proofs)
    tables.report()
    tables.close()
    tables.assert_as_recomputed(world)
    assert tables.alerts("unproved_finality").keys() == {name_of(world.claimed)}
    refused = [row for row in tables.table("proofs") if row["refusal"] is not None]
    assert [(row["message_id"], row["refusal"]) for row in refused] == [
        (name_of(world.claimed), "OTHER_MESSAGE")
    ]


def test_a_certificate_is_checked_once_however_many_messages_rest_on_it(tmp_path: Path) -> None:
    world = ProvedLines()
    tables = ProvedTables(tmp_path, world.genesis)
    step = tables.driver._proofs
    assert step is not None
    for place in range(0, len(world.proofs), 2):
        tables.take(world.proofs[place : place + 2])
    tables.close()

    blocks = {row["master_block"] for row in tables.table("proofs")}
    assert (len(tables.table("proofs")), len(blocks)) == (4, 2)
    assert step.book.signature_checks == 5 * len(blocks), "five of seven sign each block"


def test_two_proofs_that_contradict_each_other_are_both_kept(tmp_path: Path) -> None:
    world = ProvedLines()
    tables = ProvedTables(tmp_path, world.genesis)
    tables.take(world.lines)
    tables.take(world.contradiction())
    tables.report()
    tables.close()

    tables.assert_as_recomputed(world)
    subject = name_of(world.never)
    kept = {row["proof"] for row in tables.table("proofs") if row["message_id"] == subject}
    assert kept == {"executed", "never"}
    assert "executed, never" in tables.alerts("end_contradicted")[subject]


def test_a_genesis_that_comes_later_checks_the_proofs_that_are_there(tmp_path: Path) -> None:
    world = ProvedLines()
    tables = ProvedTables(tmp_path, None)
    tables.take(world.lines)
    assert {row["proof"] for row in tables.table("messages")} == {"none"}
    tables.report()
    assert tables.alerts("unproved_finality") == {}, "nobody could look"
    tables.close()

    later = ProvedTables(tmp_path, world.genesis)
    later.taken = tables.taken
    from stagepost.pipeline.driver import Evaluation

    later.driver.refresh(Evaluation())
    later.close()
    later.assert_as_recomputed(world)
    assert later.alerts("unproved_finality").keys() == {name_of(world.claimed)}

    other = ProvedChain(a_genesis(a_proving_configuration(4))).genesis.encode()
    with pytest.raises(ConfigError, match="another genesis"):
        ProvedTables(tmp_path, other)


def test_a_change_of_the_sets_keeps_the_proofs(tmp_path: Path) -> None:
    from stagepost.pipeline.driver import Evaluated, Evaluation

    world = ProvedLines()
    tables = ProvedTables(tmp_path, world.genesis)
    tables.take(world.lines)
    for content in ({**proved_sets(), "sessions": []}, proved_sets()):
        tables.driver.use_sets(sets_bytes(content))
        tables.driver.refresh(Evaluation(what=Evaluated.MESSAGES))
    tables.close()

    tables.assert_as_recomputed(world)
    assert len(tables.table("proofs")) == 4
