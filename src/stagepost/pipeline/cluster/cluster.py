"""A Spark master as people name it, the settings that a run on its workers needs, and the start of the driver of such a run.

Every possible fault is checked in the order of its price: words, files of this machine, the master's port,
and last the workers themselves. The tables are not touched before all checks have passed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagepost.errors import ConfigError, StagepostError, TransportError
from stagepost.pipeline.cluster.pack import python_version, require_fitting
from stagepost.pipeline.spark import elsewhere, quiet_log, refuse_missing_packages, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stagepost.pipeline.cluster.probe import Folders


ANSWERS_WITHIN_S = 5.0
WORKERS_WITHIN_S = 60.0
PACKAGES_FOLDER = "stagepost-packages"
"""Name of the unpacked archive in the folder of a task on every worker."""

JARS = "spark.jars"

_MASTER = re.compile(r"spark://(.+)")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:]+\]|[^\s:,\[\]]+):(?P<port>\d{1,5})")
_OWN = {
    "spark.master": "--master",
    "spark.archives": "--archive",
    "spark.pyspark.python": "--worker-python",
    "spark.executorEnv.PYTHONPATH": "--archive",
}


class Address(NamedTuple):
    host: str
    port: int


class Cluster(NamedTuple):
    """The options of `stagepost pipeline submit`, before anything has been tried."""

    master: str
    archive: Path
    worker_python: str
    conf: Mapping[str, str]
    wait_s: float = WORKERS_WITHIN_S


def parse_master(text: str) -> list[Address]:
    """Return the addresses of spark://HOST:PORT; several, with commas in between, of which one is in charge."""
    found = _MASTER.fullmatch(text)
    parts = found[1].split(",") if found else []
    matches = [_ADDRESS.fullmatch(part) for part in parts]
    if not matches or any(one is None or not 0 < int(one["port"]) < 65_536 for one in matches):
        raise ConfigError(
            f"--master {text} is not the address of a Spark master",
            advice="write spark://HOST:PORT; for one machine leave `submit` out and use `stagepost pipeline run`",
            found=text,
        )
    return [Address(one["host"].strip("[]"), int(one["port"])) for one in matches if one is not None]


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE settings of Spark. Those that carry the package are refused, because the package
    would not arrive.
    """
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.startswith("spark."):
            raise ConfigError(
                f"--conf {text} is no setting of Spark", advice="write spark.NAME=VALUE", found=text
            )
        if name in _OWN:
            raise ConfigError(f"--conf {name} is set by this command", advice=f"use {_OWN[name]}", found=text)
        found[name] = value
    return found


def reach(masters: Sequence[Address], within_s: float = ANSWERS_WITHIN_S) -> str:
    """Return this machine's address as seen on the way to the first master that answers: workers find the
    driver there.

    Spark itself tries for a minute and then ends with a page of Java; a look at the port tells it at once.
    """
    reasons = []
    for master in masters:
        try:
            with socket.create_connection(master, timeout=within_s) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            reasons.append(f"{master.host}:{master.port}: {reason.lower()}")
    raise TransportError(
        f"no Spark master answers at {'; '.join(reasons)}",
        advice="is it running, and is --master its address? docs/cluster.md shows how to start one",
        found=reasons,
    )


def require_worker_python(name: str) -> None:
    """Raise if this machine lacks the workers' Python command: sources of a stream are planned here with the
    same command.
    """
    if shutil.which(name) is None:
        raise ConfigError(
            f"there is no {name} on this machine, and workers are to run it",
            advice=f"name a Python {python_version()} that is on every machine with --worker-python",
            found=name,
        )


def for_job(cluster: Cluster, needed: Mapping[str, str]) -> Cluster:
    """Return the cluster with the settings that a job's source needs. The jars of both go along; all other
    settings of the caller win.
    """
    jars = [jar for given in (needed, cluster.conf) for jar in given.get(JARS, "").split(",") if jar]
    joined = {JARS: ",".join(dict.fromkeys(jars))} if jars else {}
    return cluster._replace(conf={**needed, **cluster.conf, **joined})


def settings_for(cluster: Cluster, driver_host: str) -> dict[str, str]:
    """Return the settings of a run: first those that it needs, then those of the caller, which win."""
    return {
        "spark.archives": f"{cluster.archive.resolve()}#{PACKAGES_FOLDER}",
        "spark.executorEnv.PYTHONPATH": PACKAGES_FOLDER,
        "spark.driver.host": driver_host,
        "spark.driver.bindAddress": driver_host,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet_log()}",
        # A task that a lost machine had begun is not its fault; one that fails everywhere ends the job soon enough.
        "spark.excludeOnFailure.enabled": "false",
        **cluster.conf,
    }


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
