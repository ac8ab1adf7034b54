"""Jars of Kafka's broker, of Spark's connector for it and of Delta Lake, as the lists in `kafka_artifacts` name them.

Maven fetches them once into a folder of the user's cache, or into a named one; a folder counts when a note in
it says that it is complete. Nothing is fetched unless the user asks for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import mkdtemp

from stagepost.errors import ConfigError, StorageError

POM = Path(__file__).parent / "kafka_artifacts" / "pom.xml"
DELTA_POM = POM.with_name("delta.xml")
CHECKSUMS = POM.with_name("checksums.txt")
"""SHA-256 of every jar of the lists, in the form of `sha256sum`; jars of other versions, by properties, have none."""
COMPLETE = "complete"
"""Name of a file beside the jars that is written last: it holds the digest of the list by which they were fetched."""

TURN = ".turn"
"""Name of the file whose lock is held by the process that fetches."""

FETCH_WITHIN_S = 600
GOAL = "dependency:copy-dependencies"


class Artifacts(StrEnum):
    """Profile of the list."""

    BROKER = "broker"
    SPARK = "spark"
    DELTA = "delta"


OF_KAFKA = (Artifacts.BROKER, Artifacts.SPARK)
_NAMES = {
    Artifacts.BROKER: "Kafka's broker",
    Artifacts.SPARK: "Spark's Kafka connector",
    Artifacts.DELTA: "Delta Lake for Spark",
}


def default_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stagepost" / "kafka-jars"


def found_jars(artifacts: Artifacts, folder: Path) -> list[Path]:
    """Return all jars, in a fixed order; raise `ConfigError` if they are not there."""
    place = folder / artifacts
    jars = sorted(place.glob("*.jar"))
    if not jars or not (place / COMPLETE).exists():
        command = "kafka" if artifacts in OF_KAFKA else "pipeline"
        raise ConfigError(
            f"the jars of {_NAMES[artifacts]} are not in {place}",
            advice=f"fetch them with `stagepost {command} jars`, or name their folder with --jars",
        )
    return jars


def is_current(artifacts: Artifacts, folder: Path, properties: Sequence[str] = ()) -> bool:
    """Return whether the jars in `folder` were fetched by the present list."""
    try:
        return (folder / artifacts / COMPLETE).read_text(encoding="ascii").strip() == digest_of(
            artifacts, properties
        )
    except OSError:
        return False


def fetch_jars(
    artifacts: Artifacts, folder: Path, environment: Mapping[str, str], properties: Sequence[str] = ()
) -> list[Path]:
    """Fetch the jars by Maven, unless they are there already. `properties` are NAME=VALUE, which replace
    versions of the list."""
    if is_current(artifacts, folder, properties):
        jars = found_jars(artifacts, folder)
        if not properties:
            check_jars(artifacts, jars)
        return jars
    maven = shutil.which("mvn", path=environment.get("PATH", os.defpath))
    if maven is None:
        raise ConfigError(
            f"the jars of profile {artifacts} are not in {folder} and there is no `mvn` on the search path to fetch them",
            advice="install Maven, or name a folder that has them with --jars",
        )
    with turn(folder):
        if not is_current(artifacts, folder, properties):  # somebody else may have fetched them meanwhile
            _fetch(maven, artifacts, folder, environment, properties)
    return found_jars(artifacts, folder)


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Wait until nobody else fetches: two Mavens at once spoil each other's downloads."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / TURN).open("a")
    except OSError as error:
        raise _unwritable(folder, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(
    maven: str,
    artifacts: Artifacts,
    folder: Path,
    environment: Mapping[str, str],
    properties: Sequence[str],
) -> None:
    try:
        # Into a folder aside first: others may be running on the present jars.
        place = Path(mkdtemp(prefix=f".{artifacts}-", dir=folder))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _run_maven(maven, artifacts, place, environment, properties)
        if not properties:
            check_jars(artifacts, sorted(place.glob("*.jar")))
        (place / COMPLETE).write_text(f"{digest_of(artifacts, properties)}\n", encoding="ascii")
        shutil.rmtree(folder / artifacts, ignore_errors=True)
        with suppress(OSError):  # an earlier release does not wait for its turn; its jars are as good
            place.rename(folder / artifacts)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"the jars cannot be written to {folder}: {error.strerror}",
        advice="name a folder that you may write to with --jars",
    )


def check_jars(artifacts: Artifacts, jars: Sequence[Path]) -> None:
    """Raise `ConfigError` unless `jars` are exactly those of the list of checksums."""
    lines = (line.split() for line in CHECKSUMS.read_text(encoding="ascii").splitlines())
    prefix = f"{artifacts}/"
    wanted = {name.removeprefix(prefix): digest for digest, name in lines if name.startswith(prefix)}
    found = {jar.name: jar for jar in jars}
    wrong = sorted(set(wanted) ^ set(found))
    wrong += [name for name in sorted(set(wanted) & set(found)) if _sha256(found[name]) != wanted[name]]
    if wrong:
        raise ConfigError(
            f"the jars of {_NAMES[artifacts]} are not those that this release knows: {', '.join(wrong[:3])}"
            f"{' and others' if len(wrong) > 3 else ''}",
            advice="remove their folder and fetch them again; if that helps not, do not run them, and report it",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _run_maven(
    maven: str, artifacts: Artifacts, place: Path, environment: Mapping[str, str], properties: Sequence[str]
) -> None:
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        "--file",
        str(pom_of(artifacts)),
        "--activate-profiles",
        artifacts.value,
    ]
    command += [f"-D{one}" for one in properties]
    command += [GOAL, f"-DoutputDirectory={place.absolute()}"]
    try:
        ended = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"Maven did not fetch the jars of profile {artifacts} within {FETCH_WITHIN_S} s",
            advice="check that this machine can reach Maven's repository",
        ) from error
    if ended.returncode != 0:
        raise ConfigError(
            f"Maven could not fetch the jars of profile {artifacts}: {_reason(ended.stdout + ended.stderr)}",
            advice=f"try it by hand: mvn -f {pom_of(artifacts)} -P {artifacts} {GOAL}",
        )


def pom_of(artifacts: Artifacts) -> Path:
    """Return the list that has the profile: Delta has one of its own, so that neither makes the other's jars stale."""
    return POM if artifacts in OF_KAFKA else DELTA_POM


def digest_of(artifacts: Artifacts, properties: Sequence[str]) -> str:
    return sha256(pom_of(artifacts).read_bytes() + "\0".join(properties).encode()).hexdigest()


def _reason(said: str) -> str:
    """Return Maven's first error, without the frame around it."""
    for line in said.splitlines():
        _, mark, text = line.partition("[ERROR] ")
        if mark and text.strip():
            return text.split(" -> ")[0].strip()
    return "it gave no reason"
