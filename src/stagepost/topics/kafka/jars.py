"""Kafka's jars: the broker's and those of Spark's connector, as `kafka_artifacts/pom.xml` lists them.

Maven fetches them once into a folder of the user's cache, or into a named one; a folder counts when a note in
it says that it is complete. Nothing is fetched unless the user asks for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from stagepost.errors import ConfigError, StorageError

POM = Path(__file__).parent / "kafka_artifacts" / "pom.xml"
COMPLETE = "complete"
"""Name of a file beside the jars that is written last: it holds the digest of the list by which they were fetched."""

FETCH_WITHIN_S = 600
GOAL = "dependency:copy-dependencies"


class Artifacts(StrEnum):
    """Profile of the list."""

    BROKER = "broker"
    SPARK = "spark"


def default_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stagepost" / "kafka-jars"


def found_jars(artifacts: Artifacts, folder: Path) -> list[Path]:
    """Return all jars, in a fixed order; raise `ConfigError` if they are not there."""
    place = folder / artifacts
    jars = sorted(place.glob("*.jar"))
    if not jars or not (place / COMPLETE).exists():
        what = "Kafka's broker" if artifacts is Artifacts.BROKER else "Spark's Kafka connector"
        raise ConfigError(
            f"the jars of {what} are not in {place}",
            advice="fetch them with `stagepost kafka jars`, or name their folder with --jars",
        )
    return jars


def is_current(artifacts: Artifacts, folder: Path, properties: Sequence[str] = ()) -> bool:
    """Return whether the jars in `folder` were fetched by the present list."""
    try:
        return (folder / artifacts / COMPLETE).read_text(encoding="ascii").strip() == _digest(properties)
    except OSError:
        return False


def fetch_jars(
    artifacts: Artifacts, folder: Path, environment: Mapping[str, str], properties: Sequence[str] = ()
) -> list[Path]:
    """Fetch the jars by Maven, unless they are there already. `properties` are NAME=VALUE, which replace
    versions of the list."""
    if is_current(artifacts, folder, properties):
        return found_jars(artifacts, folder)
    maven = shutil.which("mvn", path=environment.get("PATH", os.defpath))
    if maven is None:
        raise ConfigError(
            f"the jars of profile {artifacts} are not in {folder} and there is no `mvn` on the search path to fetch them",
            advice="install Maven, or name a folder that has them with --jars",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Into a folder aside first: others may be fetching the same jars, or running on the present ones.
        place = Path(mkdtemp(prefix=f".{artifacts}-", dir=folder))
    except OSError as error:
        raise StorageError(
            f"the jars cannot be put into {folder}: {error.strerror}", advice="see --jars"
        ) from error
    try:
        _run_maven(maven, artifacts, place, environment, properties)
        (place / COMPLETE).write_text(f"{_digest(properties)}\n", encoding="ascii")
        shutil.rmtree(folder / artifacts, ignore_errors=True)
        with suppress(OSError):  # another process was quicker; its jars are as good
            place.rename(folder / artifacts)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found_jars(artifacts, folder)


def _run_maven(
    maven: str, artifacts: Artifacts, place: Path, environment: Mapping[str, str], properties: Sequence[str]
) -> None:
    command = [maven, "--quiet", "--batch-mode", "--file", str(POM), "--activate-profiles", artifacts.value]
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
            advice="is its repository to be reached?",
        ) from error
    if ended.returncode != 0:
        raise ConfigError(
            f"Maven could not fetch the jars of profile {artifacts}: {_reason(ended.stdout + ended.stderr)}",
            advice=f"try it by hand: mvn -f {POM} -P {artifacts} {GOAL}",
        )


def _digest(properties: Sequence[str]) -> str:
    return sha256(POM.read_bytes() + "\0".join(properties).encode()).hexdigest()


def _reason(said: str) -> str:
    """Return Maven's first error, without the frame around it."""
    for line in said.splitlines():
        _, mark, text = line.partition("[ERROR] ")
        if mark and text.strip():
            return text.split(" -> ")[0].strip()
    return "it gave no reason"
