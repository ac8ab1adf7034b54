"""A real Spark standalone cluster on loopback: a master and workers as processes of their own, with bare Pythons.

They run the classes of Spark's own package, in an environment of a few names, and a Python in which nothing is
installed. Every process is ended by its id, also when a test fails.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import QUICK_START, cache_folder, find_java_home, refuse_missing_packages

STARTS_WITHIN_S = 300.0
WORKER_MEMORY = "1g"
EXECUTOR = "CoarseGrainedExecutorBackend"
MASTER_UP = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER_UP = re.compile(r"Successfully registered with master")
# Small data on two cores: little memory, and no time spent on compiling what runs once.
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


class Service:
    """A Java process whose words are kept; `found` is what it said when it was up."""

    def __init__(self, arguments: list[str], environment: dict[str, str], up: re.Pattern[str]) -> None:
        self.said: list[str] = []
        self.found: re.Match[str] | None = None
        self._is_up = threading.Event()
        self.process = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._hearing = threading.Thread(target=self._hear, args=(up,), daemon=True)
        self._hearing.start()
        if not self._is_up.wait(STARTS_WITHIN_S) or self.found is None:
            self.end()
            raise AssertionError(f"{arguments[-1]} did not start: {''.join(self.said)[-2_000:]}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def _hear(self, up: re.Pattern[str]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if self.found is None and (found := up.search(line)):
                self.found = found
                self._is_up.set()
        self._is_up.set()

    def end(self) -> None:
        """At once: nothing of a test's cluster is worth an orderly end."""
        for executor in executors_of(self.pid):
            _kill(executor)
        self.process.kill()
        self.process.wait(STARTS_WITHIN_S)
        self._hearing.join(STARTS_WITHIN_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class SparkCluster:
    """`workers` may be killed and started again; the master stays. All of them share a secret, without which no driver is
    let in: `environment` is that of a driver that has it.
    """

    def __init__(self, folder: Path, java_home: Path) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        (core,) = (home / "jars").glob("spark-core_*.jar")
        scala = core.name.removeprefix("spark-core_").partition("-")[0]
        self.folder = folder
        self.worker_python = _bare_python(folder / "bare")
        (folder / "conf").mkdir(mode=0o700, parents=True)
        (folder / "conf" / "spark-defaults.conf").write_text(
            f"spark.authenticate true\nspark.authenticate.secret {secrets.token_hex(16)}\nspark.network.crypto.enabled true\n"
        )
        self.environment = {"SPARK_CONF_DIR": str(folder / "conf")}
        # What a worker's machine has: Java, Spark, and the usual folders. Nothing of this process's own environment.
        self._environment = {
            "PATH": os.defpath,
            "JAVA_HOME": str(java_home),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            **self.environment,
        }
        self._java = [
            str(java_home / "bin" / "java"),
            *QUICK_START.split(),
            "-Xmx256m",
            "-Dspark.master.rest.enabled=false",
            "-cp",
            f"{home / 'jars'}/*",
        ]
        self.workers: list[Service] = []
        self._master = self._started("master.Master", MASTER_UP, "--port", "0")
        assert self._master.found is not None
        self.master = self._master.found[1]

    def _started(self, name: str, up: re.Pattern[str], *arguments: str) -> Service:
        common = [f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0"]
        return Service([*self._java, *common, *arguments], self._environment, up)

    def start_workers(self, count: int) -> None:
        """So that `count` are alive."""
        self.workers = [worker for worker in self.workers if worker.process.poll() is None]
        while len(self.workers) < count:
            place = self.folder / f"worker {len(self.workers)}"
            given = ("--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(place), self.master)
            self.workers.append(self._started("worker.Worker", WORKER_UP, *given))

    def stop(self) -> None:
        for service in (*self.workers, self._master):
            service.end()

    def options(self, archive: Path, **changes: str) -> list[str]:
        """Of `stagepost pipeline submit`."""
        conf = [f"--conf={name}={value}" for name, value in {**SETTINGS, **changes}.items()]
        python = f"--worker-python={self.worker_python}"
        return [
            f"--master={self.master}",
            f"--archive={archive}",
            python,
            f"--wait={STARTS_WITHIN_S:g}s",
            *conf,
        ]


def executors_of(worker: int) -> list[int]:
    """The executors that a worker has started and that still run."""
    return [pid for pid, parent in _parents() if parent == worker and EXECUTOR in _command_line(pid)]


def small_cluster(workers: int = 2) -> SparkCluster:
    """One for all tests of a process, with so many workers alive."""
    found = _cluster()
    if isinstance(found, str):
        require("java", found)
    found.start_workers(workers)
    return found


@lru_cache(maxsize=1)
def _cluster() -> SparkCluster | str:
    try:
        refuse_missing_packages()
        java_home = find_java_home(os.environ, cache_folder())
    except ConfigError as error:
        return error.text
    place = TemporaryDirectory(prefix="stagepost-cluster-", ignore_cleanup_errors=True)
    cluster = SparkCluster(Path(place.name), java_home)

    def end() -> None:
        cluster.stop()
        place.cleanup()

    atexit.register(end)
    return cluster


def _bare_python(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    check = "import importlib.util as u; assert not any(map(u.find_spec, ('stagepost', 'pyarrow', 'nacl', 'msgspec')))"
    subprocess.run([python, "-c", check], check=True, env={"PATH": os.defpath}, cwd=folder)
    return python


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # ended meanwhile


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # ended meanwhile


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
