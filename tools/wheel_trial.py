"""Trial of the built files: wheel and sdist are installed outside of the repository, on every Python, and used.

For each Python that pyproject.toml names: the base alone runs each command's help and a whole network without Spark; with
the compiled `demo` set, the whole demo runs. The shipped extras are installed together once. What cannot be tried, such
as a needed Python that this machine has not, is told by name, and is never counted as tried. A newer Python that is not here is told too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED_PYTHONS = ("3.11", "3.12", "3.13")
"""Pythons that a release must have been tried on. Others that pyproject.toml names are tried where the machine has them."""
WITHIN_S = 900
DEMO_MESSAGES = 40
HELP_OF_ALL = """
import click
from stagepost.cli.main import stagepost
from click.testing import CliRunner
def walk(path, command, parent):
    here = click.Context(command, parent=parent)
    result = CliRunner().invoke(stagepost, [*path, "--help"])
    if result.exit_code or not result.output.startswith("Usage: "):
        raise SystemExit(f"stagepost {' '.join(path)} --help: {result.exception or result.output[:200]!r}")
    below = command.list_commands(here) if isinstance(command, click.Group) else []
    return 1 + sum(walk([*path, name], command.get_command(here, name), here) for name in below)
print(walk([], stagepost, None))
"""
EXTRA_MODULES = {
    "spark": "pyspark.sql",
    "web": "fastapi",
    "kafka": "confluent_kafka",
    "ton": "pytoniq_core",
    "otel": "opentelemetry.sdk.trace",
}
"""A module of each shipped extra: it is there after the extra was installed."""
_IN_REPOSITORY_ONLY = (".ci/",)


@dataclass
class Trial:
    """What was tried. `faults` are to be mended; `untried` could not be looked at, each with its reason; `absent` need not be."""

    done: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.done.append(line)
        print(line, flush=True)


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path
    version: str


def named_pythons(pyproject: str) -> tuple[str, ...]:
    """Return the versions that the classifiers of the project name, such as 3.11."""
    classifiers: list[str] = tomllib.loads(pyproject)["project"]["classifiers"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in classifiers)
    return tuple(one[1] for one in found if one)


def candidates(wanted: Iterable[str], given: Sequence[Path]) -> Iterator[Path]:
    """Yield files that may be such a Python: those given first, then those of PATH, then those of pyenv."""
    yield from given
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in wanted:
        for folder in os.get_exec_path():
            yield Path(folder) / f"python{version}"
        yield from sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)


def version_of(python: Path) -> str | None:
    """Return the minor version of an executable, or nothing if it is no Python that starts."""
    if not (python.is_file() and os.access(python, os.X_OK)):
        return None
    command = [str(python), "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def find_pythons(wanted: Sequence[str], given: Sequence[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for python in candidates(wanted, given):
        version = version_of(python)
        if version is not None and version in wanted:
            found.setdefault(version, python)
    return {version: found[version] for version in wanted if version in found}


def content_faults(names: Iterable[str], tracked: Iterable[str], what: str) -> list[str]:
    """Return which files the archive lacks, and which it holds that the repository does not."""
    here, wanted = set(names), set(tracked)
    faults = [f"{what} lacks {name}" for name in sorted(wanted - here)]
    return faults + [f"{what} has {name}, which the repository has not" for name in sorted(here - wanted)]


def wheel_names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def sdist_names(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        names = [one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()]
    return [name for name in names if name != "PKG-INFO"]


def metadata_faults(wheel: Path) -> list[str]:
    """Return links and pictures of the description that lead nowhere from an index."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [f"the description links {one}, which an index has not" for one in targets if "://" not in one]


def run(
    command: Sequence[str | Path], cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without what the repository, or a caller's environment, would lend to it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        return subprocess.run(
            [str(one) for one in command],
            cwd=cwd,
            env={**kept, **(env or {})},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end within {WITHIN_S} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} cannot be started: {error}")


def why(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return f"exit {done.returncode}: {lines[-1][:300] if lines else 'it ended without a word'}"


def build(out: Path) -> Built:
    """Build wheel and sdist into a folder that holds nothing else."""
    shutil.rmtree(out, ignore_errors=True)
    done = run([sys.executable, "-m", "hatchling", "build", "-d", out], ROOT)
    if done.returncode:
        raise SystemExit(f"the build failed: {why(done)}")
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist, wheel.name.split("-")[1])


def check_files(built: Built, trial: Trial) -> None:
    """Compare the archives with the repository, and have twine read their metadata."""
    listed = run(["git", "ls-files"], ROOT)
    if listed.returncode:
        trial.untried.append(f"contents of the archives were not compared with the repository: {why(listed)}")
    else:
        tracked = [name for name in listed.stdout.splitlines() if not name.startswith(_IN_REPOSITORY_ONLY)]
        packages = [name.removeprefix("src/") for name in tracked if name.startswith("src/")]
        trial.faults += content_faults(wheel_names(built.wheel), packages, "the wheel")
        trial.faults += content_faults(sdist_names(built.sdist), tracked, "the sdist")
    trial.faults += metadata_faults(built.wheel)
    checked = run([sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist], ROOT)
    if checked.returncode:
        trial.faults.append(f"twine check: {why(checked)}")
    for one in (built.wheel, built.sdist):
        trial.say(f"built {one.name}, {one.stat().st_size / 1e6:.1f} MB")


class Environment:
    """A virtual environment in a folder of its own, outside of the repository."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self._uv = Path(sys.executable).parent / "uv"
        folder.mkdir(parents=True)
        self.made = run(
            [self._uv, "venv", "--no-python-downloads", "--python", python, folder / "venv"], folder
        )

    def install(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [self._uv, "pip", "install", "--python", self.bin / "python", *arguments]
        return run(command, self.folder)

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run([self.bin / str(arguments[0]), *arguments[1:]], self.folder)


def try_base(built: Built, version: str, environment: Environment, trial: Trial) -> bool:
    """Install the base and the wheel, and use them; return whether the trial can go on with this Python."""
    where = f"Python {version}"
    for done in (
        environment.made,
        environment.install("--require-hashes", "-r", ROOT / "requirements" / "base.txt"),
        environment.install("--no-deps", built.wheel),
    ):
        if done.returncode:
            trial.faults.append(f"{where}: the base cannot be installed: {why(done)}")
            return False
    told = environment.run("stagepost", "--version")
    if told.returncode or built.version not in told.stdout.split():
        trial.faults.append(f"{where}: stagepost --version says {told.stdout.strip()!r}, {why(told)}")
    helps = environment.run("python", "-I", "-c", HELP_OF_ALL)
    if helps.returncode:
        trial.faults.append(f"{where}: {why(helps)}")
    demo = environment.run("stagepost", "demo", "--no-spark", "--messages", str(DEMO_MESSAGES))
    if demo.returncode:
        trial.faults.append(f"{where}: stagepost demo --no-spark: {why(demo)}")
    trial.say(f"{where}: base installed; help of {helps.stdout.strip() or 'no'} commands; demo without Spark")
    return True


def try_demo(version: str, environment: Environment, trial: Trial) -> None:
    """Install the extras of the demo into the same environment, and run the whole demo from the wheel alone."""
    where = f"Python {version}"
    done = environment.install("--require-hashes", "-r", ROOT / "requirements" / "demo.txt")
    if done.returncode:
        trial.faults.append(f"{where}: the extras spark and web cannot be installed: {why(done)}")
        return
    demo = environment.run("stagepost", "demo", "--messages", str(DEMO_MESSAGES))
    tables = next((line for line in demo.stdout.splitlines() if "rejections" in line), "")
    if demo.returncode or f"messages {DEMO_MESSAGES} rows" not in tables:
        trial.faults.append(f"{where}: stagepost demo: {why(demo)}; its line of tables: {tables.strip()!r}")
        return
    trial.say(f"{where}: extras spark and web; whole demo: {' '.join(tables.split())}")


def try_extras(built: Built, version: str, environment: Environment, trial: Trial) -> None:
    where = f"Python {version}"
    asked = f"{built.wheel}[{','.join(EXTRA_MODULES)}]"
    pins = ROOT / "requirements" / "test.txt"
    done = (
        environment.made if environment.made.returncode else environment.install(asked, "--constraint", pins)
    )
    if done.returncode:
        trial.faults.append(f"{where}: all extras together cannot be installed: {why(done)}")
        return
    for extra, module in EXTRA_MODULES.items():
        found = environment.run("python", "-I", "-c", f"import {module}")
        if found.returncode:
            trial.faults.append(f"{where}: extra {extra}: {why(found)}")
    trial.say(f"{where}: all extras together: {', '.join(EXTRA_MODULES)}")


def try_sdist(built: Built, environment: Environment, trial: Trial) -> None:
    """Build a wheel from the sdist alone: it must hold what the wheel of the repository holds."""
    out = environment.folder / "from-sdist"
    for done in (
        environment.made,
        environment.install("--require-hashes", "-r", ROOT / "requirements" / "build.txt"),
        run(["tar", "-xzf", built.sdist, "-C", environment.folder], environment.folder),
    ):
        if done.returncode:
            trial.faults.append(f"the sdist cannot be unpacked: {why(done)}")
            return
    source = environment.folder / built.sdist.name.removesuffix(".tar.gz")
    done = run([environment.bin / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", out], source)
    if done.returncode:
        trial.faults.append(f"no wheel can be built from the sdist: {why(done)}")
        return
    (again,) = out.glob("*.whl")
    if again.read_bytes() != built.wheel.read_bytes():
        trial.faults.append("the wheel built from the sdist differs from the wheel of the repository")
    trial.say("a wheel built from the sdist alone is the same, byte for byte")


def try_all(given: Sequence[Path], out: Path) -> Trial:
    """Build, and try what was built on every Python that can be found; `given` are Pythons outside of PATH."""
    trial = Trial()
    wanted = named_pythons((ROOT / "pyproject.toml").read_text())
    built = build(out)
    check_files(built, trial)
    pythons = find_pythons(wanted, given)
    for one in wanted:
        if one not in pythons:
            missing = trial.untried if one in NEEDED_PYTHONS else trial.absent
            missing.append(f"Python {one}: not found on PATH; name it with PYTHONS")
    with tempfile.TemporaryDirectory(prefix="stagepost-trial-") as folder:
        for version, python in pythons.items():
            environment = Environment(Path(folder) / version, python)
            if try_base(built, version, environment, trial):
                try_demo(version, environment, trial)
            shutil.rmtree(environment.folder)
        if pythons:
            version, python = next(iter(pythons.items()))
            try_extras(built, version, Environment(Path(folder) / "extras", python), trial)
            try_sdist(built, Environment(Path(folder) / "sdist", python), trial)
    return trial
