"""The page on scale says what the tool computes, and the tool's small models say what was measured."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from stagepost.pipeline.tables.manifest import Batch
from tests.worlds.pipeline.pipeline_spark import need_packages

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("scale_plan", ROOT / "tools" / "scale_plan.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_the_page_holds_every_table_as_the_tool_prints_it(tool: ModuleType, page: str) -> None:
    assert sorted(tool.named(page)) == sorted(tool.TABLES)
    assert tool.updated(page) == page, "run `python tools/scale_plan.py --update docs/scale.md`"


def test_a_changed_figure_changes_the_page(
    tool: ModuleType, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = tool.MEASURED["to tables, cluster"]._replace(value=1_000.0)
    monkeypatch.setitem(tool.MEASURED, "to tables, cluster", slower)

    assert tool.updated(page) != page


def test_ten_times_the_messages_need_ten_times_the_cores_and_a_partition_for_each(tool: ModuleType) -> None:
    small, large = tool.plan(1_000), tool.plan(10_000)

    assert large.receipts == 10 * small.receipts == 10 * 1_000 * 23
    assert 9 * small.cores < large.cores <= 10 * small.cores
    assert large.cores <= large.partitions < 2 * large.cores
    assert large.checking_cores < large.cores <= 4 * large.executors


@pytest.mark.parametrize("validators", [7, 13, 21])
def test_the_models_of_a_shards_traffic_give_what_was_counted(tool: ModuleType, validators: int) -> None:
    transmissions, records = tool.TRAFFIC[validators]

    assert tool.transmissions(validators) == pytest.approx(transmissions, rel=0.07)
    assert tool.accept_records(validators) == pytest.approx(records, rel=0.07)


def test_more_validators_never_make_a_shard_carry_more(tool: ModuleType) -> None:
    carried = [tool.messages_per_shard(validators) for validators in range(4, 61)]

    assert carried == sorted(carried, reverse=True)


def test_the_bytes_of_a_dmq_message_grow_with_the_peers_along_a_line(tool: ModuleType) -> None:
    assert tool.dmq_bytes_in(8) == pytest.approx(tool.measured("dmq bytes in, 8 peers"), rel=0.03)
    assert tool.dmq_bytes_in(4) > tool.measured("dmq message")


def test_the_fullest_partition_is_never_below_the_average(tool: ModuleType) -> None:
    assert tool.skew(1_000, 1) == 1.0
    assert 1.0 < tool.skew(10_000, 16) < tool.skew(100, 16)


def test_the_model_folds_the_batches_that_a_stream_folds(tool: ModuleType, run_seed: int) -> None:
    need_packages()
    from stagepost.pipeline.tables.folding import worth_folding

    random = Random(run_seed)
    for _ in range(200):
        sizes = [
            2 ** random.randrange(20) for _ in range(tool.BATCHES_BEFORE_FOLDING + random.randrange(1, 5))
        ]
        assert tool.like_sizes(sizes) == worth_folding([Batch({}, rows=size) for size in sizes]), sizes


def test_folding_all_every_time_costs_ever_more_and_folding_like_sizes_a_logarithm(tool: ModuleType) -> None:
    def written_again(policy: object) -> Sequence[float]:
        return [tool.rewritten(batches, policy)[0] for batches in (1_000, 2_000, 4_000)]

    whole, folded = written_again(tool.everything), written_again(tool.like_sizes)

    assert whole[2] / whole[1] == pytest.approx(2, rel=0.1)
    assert folded[2] - folded[1] <= 1.01
    assert tool.rewritten(4_000, tool.like_sizes)[1] <= tool.BATCHES_BEFORE_FOLDING + 1


def test_a_manifest_is_as_large_as_its_files_are_many(tool: ModuleType) -> None:
    day = 23_000 * 86_400

    assert tool.manifest_bytes(10 * day) == pytest.approx(10 * tool.manifest_bytes(day), rel=0.01)
    kept = tool.days_until(tool.MANIFEST_BYTES_MAX, 23_000) * day
    assert tool.manifest_bytes(int(kept)) == pytest.approx(tool.MANIFEST_BYTES_MAX, rel=0.01)


def test_the_models_constants_are_those_of_the_pipeline(tool: ModuleType) -> None:
    need_packages()
    from stagepost.pipeline.stream import BATCHES_BEFORE_FOLDING
    from stagepost.pipeline.tables.folding import ROWS_PER_FILE

    assert (tool.ROWS_PER_FILE, tool.BATCHES_BEFORE_FOLDING) == (ROWS_PER_FILE, BATCHES_BEFORE_FOLDING)
