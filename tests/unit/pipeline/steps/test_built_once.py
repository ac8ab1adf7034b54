"""Columns that depend on nothing are built once for a Spark, and again for another one."""

from __future__ import annotations

import gc

import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark import SparkContext  # noqa: E402

from stagepost.pipeline.steps.columns import built_once  # noqa: E402


class Context:
    """Stands for a running Spark."""


def test_once_for_each_spark_and_forgotten_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[object] = []

    @built_once
    def columns() -> object:
        builds.append(object())
        return builds[-1]

    first, second = Context(), Context()
    monkeypatch.setattr(SparkContext, "_active_spark_context", first)
    assert columns() is columns() is builds[0]
    monkeypatch.setattr(SparkContext, "_active_spark_context", second)
    assert columns() is columns() is builds[1]
    monkeypatch.setattr(SparkContext, "_active_spark_context", first)
    assert columns() is builds[0]
    monkeypatch.setattr(SparkContext, "_active_spark_context", second)
    del first
    gc.collect()
    assert columns() is builds[1]
    assert len(builds) == 2


def test_without_spark_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(AssertionError, match="where Spark runs"):
        built_once(object)()
