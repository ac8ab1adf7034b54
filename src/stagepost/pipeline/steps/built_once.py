"""Column expressions that are the same for every batch, built once for as long as Spark runs.

A column is made of calls into the JVM, and those of one evaluation are two thousand: a second of every batch of a stream,
in which nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from pyspark import SparkContext

T = TypeVar("T")


def built_once(build: Callable[[], T]) -> Callable[[], T]:
    """For what depends on nothing, neither on data nor on validator sets. Another Spark has columns of its own."""
    built: WeakKeyDictionary[SparkContext, T] = WeakKeyDictionary()

    @wraps(build)
    def get() -> T:
        context = SparkContext._active_spark_context
        assert context is not None, "columns are made where Spark runs"
        if context not in built:
            built[context] = build()
        return built[context]

    return get
