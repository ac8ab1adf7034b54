"""Starts the driver of a job whose work is done by the workers of a Spark cluster.

Every possible fault is checked in the order of its price: words, files of this machine, the master's port,
and last the workers themselves. The tables are not touched before all checks have passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagepost.errors import ConfigError, StagepostError, TransportError
from stagepost.pipeline.cluster.cluster import (
    PACKAGES_FOLDER,
    Cluster,
    for_job,
    parse_master,
    reach,
    require_worker_python,
    settings_for,
)
from stagepost.pipeline.cluster.pack import require_fitting
from stagepost.pipeline.spark import elsewhere, refuse_missing_packages, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stagepost.pipeline.cluster.probe import Folders

PARTITIONS_PER_CORE = 2
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


@contextmanager
def on_cluster(cluster: Cluster, folders: Folders) -> Iterator[None]:
    """Start every session inside of the context on the cluster, and stop it at the end."""
    started: list[SparkSession] = []

    def start(name: str, settings: Mapping[str, str]) -> SparkSession:
        here = elsewhere.set(None)
        try:
            started.append(start_on_cluster(for_job(cluster, settings), folders, name))
        finally:
            elsewhere.reset(here)
        return started[-1]

    before = elsewhere.set(start)
    try:
        yield
    finally:
        elsewhere.reset(before)
        for spark in started:
            spark.stop()


def require_ready(cluster: Cluster) -> str:
    """Check everything that can be known without starting anything. Return this machine's address on the way
    to the master.
    """
    refuse_missing_packages()
    masters = parse_master(cluster.master)
    require_fitting(cluster.archive)
    require_worker_python(cluster.worker_python)
    return reach(masters)


def start_on_cluster(cluster: Cluster, folders: Folders, name: str = "stagepost") -> SparkSession:
    """Return a session whose workers have been seen to work. The caller stops it."""
    settings = settings_for(cluster, require_ready(cluster))
    try:
        spark = start_session(
            name, master=cluster.master, settings=settings, worker_python=cluster.worker_python
        )
    except ConfigError as error:
        raise _explained(error, cluster.master) from error
    try:
        _name_packages(spark)
        from stagepost.pipeline.cluster.probe import probe

        probe(spark, cluster.master, folders, cluster.wait_s)
    except BaseException:
        spark.stop()
        raise
    if SHUFFLE_PARTITIONS not in cluster.conf:
        cores = max(1, int(spark.sparkContext.defaultParallelism))
        spark.conf.set(SHUFFLE_PARTITIONS, str(PARTITIONS_PER_CORE * cores))
    return spark


def _explained(error: ConfigError, master: str) -> StagepostError:
    """Explain Spark's error: it gives up a master after a minute, and then complains about something that was
    stopped.
    """
    if "stopped SparkContext" not in str(error.__cause__):
        return error
    import pyspark

    return TransportError(
        f"{master} takes connections, and has not registered this program within a minute",
        advice=f"is it the port of a Spark master of version {pyspark.__version__}, which the driver has?",
        found=pyspark.__version__,
    )


def _name_packages(spark: SparkSession) -> None:
    """Tell the Python processes that Spark starts beside the driver where the packages are: Spark has
    unpacked the archive there, too.
    """
    from pyspark import SparkFiles

    here = os.path.join(SparkFiles.getRootDirectory(), PACKAGES_FOLDER)
    spark.sparkContext.environment["PYTHONPATH"] = os.pathsep.join((PACKAGES_FOLDER, here))
