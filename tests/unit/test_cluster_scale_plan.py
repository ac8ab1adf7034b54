"""The page on scale says what the tool computes, and the tool's small models say what was measured."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_byte_is_written_again_less_often_the_larger_batches_are(tool: ModuleType) -> None:
    aim, most = tool.FILE_BYTES_AIM, tool.FILES_PER_DAY_MAX

    times = [tool.rewritten(aim // parts, 10_000)[0] for parts in (1, 2, most, 1_000)]

    assert times[0] == 0
    assert times == sorted(times)
    assert times[1] == pytest.approx(1, rel=0.1), "whole files come of each compaction"
    assert times[3] < 1_000 / most + 1


def test_the_log_costs_more_the_more_is_kept_and_less_with_longer_pauses(tool: ModuleType) -> None:
    day, month, slower = tool.log_s(10_000, 1), tool.log_s(10_000, 30), tool.log_s(10_000, 30, 60.0)

    assert month == pytest.approx((30 * day[0], 30 * day[1]))
    assert slower < month


def test_the_models_constants_are_those_of_the_pipeline(tool: ModuleType) -> None:
    need_packages()
    from stagepost.pipeline.upkeep import FILE_BYTES_AIM, FILES_PER_DAY_MAX

    assert (tool.FILES_PER_DAY_MAX, tool.FILE_BYTES_AIM) == (FILES_PER_DAY_MAX, FILE_BYTES_AIM)
