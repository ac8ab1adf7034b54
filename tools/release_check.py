"""Check of a release: its files built and tried on every Python, a list of all components (SBOM), and an audit of them.

    make release-check                    needs a package index and a database of known faults
    make release-check ADVISORIES=FOLDER  looks known faults up in a folder or clone of advisories (OSV) instead
    make release-check OFFLINE=1          leaves the audit out, and says so
    make release-check PYTHONS="…"        tries the built files on these Pythons too, beside those of PATH

ADVISORIES_DAYS=N takes a folder whose newest advisory is up to N days old; an older one is used, and counts as not looked at.

Built files go to dist/, lists to results/. Exit code 0: all that was asked for is done and nothing was found; 1: a fault was
found; 2: something could not be looked at, which is named.
Without a database of faults, docs/dependencies.md is what is left: the review of each direct dependency by people.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools import wheel_trial
from tools.advisories import Advisories, Audit, Unreadable, look_up, read_advisories

ROOT = Path(__file__).parents[1]
SETS = ("base", "demo", "test")
"""Compiled requirements with a list of components: the package alone, with Spark and the dashboard, and with all extras and tests."""
TOOL_SETS = ("bench", "build", "compile", "fuzz", "release")
"""Compiled requirements of the project's own tools, which are audited and not listed."""
SHIPPED_EXTRAS = ("spark", "web", "kafka", "ton", "otel")
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z0-9][a-z0-9._-]*)` \|", re.MULTILINE)
WITHIN_S = 600
ADVISORIES_DAYS = 30
"""Days: greatest age of the newest advisory of a folder that counts as an audit of today's components."""

Pin = tuple[str, str]


def pins(text: str) -> list[Pin]:
    """Return each (name, version) once. A package has two where Pythons or systems need different ones."""
    return sorted(set(PIN.findall(text)))


def sbom_faults(document: Mapping[str, object], wanted: Sequence[Pin]) -> list[str]:
    """Return how the components of a CycloneDX document differ from the pins."""
    if document.get("bomFormat") != "CycloneDX":
        return ["it is not a CycloneDX document"]
    components = document.get("components")
    if not isinstance(components, list):
        return ["it has no list of components"]
    found = [(str(one.get("name")), str(one.get("version"))) for one in components if isinstance(one, dict)]
    hashless = [
        str(one.get("name"))
        for one in components
        if isinstance(one, dict) and '"SHA-256"' not in json.dumps(one)
    ]
    faults = [f"{name} {version} is missing" for name, version in wanted if (name, version) not in found]
    faults += [f"{name} {version} is not pinned" for name, version in found if (name, version) not in wanted]
    return faults + [f"{name} has no hash" for name in hashless]


def read_audit(output: str, wanted: Iterable[Pin]) -> Audit:
    """Return what pip-audit's JSON says of the pins. A component that it does not mention is unknown."""
    audit = Audit()
    try:
        told = {(one["name"], one.get("version", "")): one for one in json.loads(output)["dependencies"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        told = {}
    for name, version in wanted:
        one = told.get((name, version)) or told.get((name, ""))
        if one is None or "skip_reason" in one:
            reason = "not answered" if one is None else str(one["skip_reason"])
            audit.unknown[f"{name} {version}"] = reason
            continue
        audit.audited += 1
        audit.vulnerable += [f"{name} {version}: {fault['id']}" for fault in one.get("vulns", ())]
    return audit


def direct_dependencies(pyproject: str) -> set[str]:
    project = tomllib.loads(pyproject)["project"]
    lines = [*project["dependencies"]]
    for extra in SHIPPED_EXTRAS:
        lines += project["optional-dependencies"][extra]
    return {re.split(r"[<>=!~ \[;]", line, maxsplit=1)[0].lower() for line in lines}


def review_faults(page: str, wanted: set[str]) -> list[str]:
    """Return which direct dependencies the page of reviews lacks, and which of its rows have none."""
    rows = set(ROW.findall(page))
    faults = [f"docs/dependencies.md has no row for {name}" for name in sorted(wanted - rows)]
    return faults + [
        f"docs/dependencies.md has a row for {name}, which is not used" for name in sorted(rows - wanted)
    ]


def make_sbom(tool: Path, requirements: Path, out: Path) -> str:
    """Write the SBOM of a compiled file; return why it could not be written, or nothing."""
    command = [tool, "requirements", requirements, "--output-reproducible", "--of", "JSON", "-o", out]
    done = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return "" if done.returncode == 0 else _last_line(done.stderr)


def run_audit(tool: Path, wanted: Sequence[Pin]) -> Audit:
    """Ask the online database for every pin, also for those of other Pythons and systems than this one."""
    whole = Audit()
    left = list(wanted)
    while left:
        once = list(dict(left).items())
        audit = _ask(tool, once)
        whole.audited += audit.audited
        whole.vulnerable += audit.vulnerable
        whole.unknown |= audit.unknown
        left = [one for one in left if one not in once]
    return whole


def _ask(tool: Path, wanted: Sequence[Pin]) -> Audit:
    """Ask for pins with one version for each name; pip-audit takes no more, and passes over pins with a condition."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder) / "pins.txt"
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in wanted))
        command = [tool, "--disable-pip", "--no-deps", "--progress-spinner", "off", "-f", "json"]
        command += ["-r", requirements]
        try:
            done = subprocess.run(
                [str(one) for one in command], capture_output=True, text=True, timeout=WITHIN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return _none_of(wanted, f"no answer within {WITHIN_S} s")
    if not done.stdout.strip():
        return _none_of(wanted, _last_line(done.stderr))
    return read_audit(done.stdout, wanted)


def _none_of(wanted: Iterable[Pin], why: str) -> Audit:
    return Audit(unknown={f"{name} {version}": why for name, version in wanted})


def folder_faults(advisories: Advisories, folder: Path, within_days: int, now: datetime) -> list[str]:
    """Return why a folder of advisories is no whole database of today."""
    found = [f"advisory {one}" for one in advisories.bad]
    age = advisories.age_days(now)
    if age is None:
        found.append(f"{folder} holds no dated advisory of a Python package")
    elif age > within_days:
        found.append(
            f"faults found in the last {age} days: the newest advisory of {folder} is that old; bring a newer copy,"
            f" or take this one with ADVISORIES_DAYS={age}"
        )
    return found


def audit_all(
    tool: Path, advisories: Advisories | None, faults: list[str], unknown: list[str], root: Path = ROOT
) -> None:
    """Audit every compiled file, in the advisories that were read, or else online."""
    for name in (*SETS, *TOOL_SETS):
        wanted = pins((root / "requirements" / f"{name}.txt").read_text())
        if advisories is None:
            audit = run_audit(tool, wanted)
        elif not advisories.read:
            audit = _none_of(wanted, "no advisory was read")
        else:
            audit = look_up(advisories, wanted)
        faults += [f"{name}: known fault in {one}" for one in audit.vulnerable]
        print(f"{name}: {audit.audited} of {len(wanted)} audited, {len(audit.vulnerable)} known faults")
        if audit.unknown:
            first, reason = next(iter(audit.unknown.items()))
            unknown.append(
                f"{name}: {len(audit.unknown)} components were not audited, such as {first}: {reason}"
            )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it ended without a word"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check what a release is made of.")
    parser.add_argument("--offline", action="store_true", help="leave the audit out, and say so")
    parser.add_argument("--advisories", type=Path, help="look known faults up in this folder (OSV)")
    parser.add_argument(
        "--advisories-days", type=int, default=ADVISORIES_DAYS, help="age that the folder may have"
    )
    parser.add_argument("--python", type=Path, action="append", default=[], help="also try this Python")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    options = parser.parse_args(arguments)
    now = datetime.now(UTC)
    advisories: Advisories | None = None
    if options.advisories is not None:
        try:
            advisories = read_advisories(options.advisories, now)
        except Unreadable as error:
            parser.error(f"--advisories: {error}")
    tools = Path(sys.executable).parent
    options.out.mkdir(exist_ok=True)
    faults = review_faults(
        (ROOT / "docs" / "dependencies.md").read_text(),
        direct_dependencies((ROOT / "pyproject.toml").read_text()),
    )
    trial = wheel_trial.try_all(options.python, ROOT / "dist")
    faults += trial.faults
    unknown = trial.untried
    for name in SETS:
        requirements = ROOT / "requirements" / f"{name}.txt"
        wanted = pins(requirements.read_text())
        out = options.out / f"sbom-{name}.json"
        why = make_sbom(tools / "cyclonedx-py", requirements, out)
        found = [why] if why else sbom_faults(json.loads(out.read_text()), wanted)
        faults += [f"{out.name}: {fault}" for fault in found]
        print(f"{name}: {len(wanted)} components, listed in {out.parent.name}/{out.name}")
    if advisories is not None:
        print(
            f"{advisories.read} advisories of Python packages in {options.advisories}, {advisories.withdrawn} of"
            f" them withdrawn, the newest of {advisories.newest}: {advisories.age_days(now)} days old"
        )
        unknown += folder_faults(advisories, options.advisories, options.advisories_days, now)
    if advisories is None and options.offline:
        print("NOT AUDITED, as asked for")
    else:
        audit_all(tools / "pip-audit", advisories, faults, unknown)
    print(
        "Jars of Spark and its connectors are in none of these lists; their SHA-256 are checked when they are fetched."
    )
    print(
        "Libraries inside of wheels (docs/dependencies.md names them) are in none of these lists, nor audited."
    )
    for one in trial.absent:
        print(f"not here: {one}")
    for one in unknown:
        print(f"NOT LOOKED AT: {one}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
