"""Check of a release: its files built and tried on every Python, a list of all components (SBOM), and an audit of them.

    make release-check              needs a package index and a database of known faults
    make release-check OFFLINE=1    leaves the audit out, and says so
    make release-check PYTHONS="…"  tries the built files on these Pythons too, beside those of PATH

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
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import wheel_trial

ROOT = Path(__file__).parents[1]
SETS = ("base", "demo", "test")
"""Compiled requirements: the package alone, with Spark and the dashboard, and with every extra and the tools of the tests."""
SHIPPED_EXTRAS = ("spark", "web", "kafka", "ton", "otel")
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
ROW = re.compile(r"^\| `([a-z0-9][a-z0-9._-]*)` \|", re.MULTILINE)
WITHIN_S = 600


@dataclass
class Audit:
    """Outcome for one compiled file. `unknown` are components that nothing is known of, with the reason."""

    audited: int = 0
    vulnerable: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


def pins(text: str) -> dict[str, str]:
    return dict(PIN.findall(text))


def sbom_faults(document: Mapping[str, object], wanted: Mapping[str, str]) -> list[str]:
    """Return how the components of a CycloneDX document differ from the pins."""
    if document.get("bomFormat") != "CycloneDX":
        return ["it is not a CycloneDX document"]
    components = document.get("components")
    if not isinstance(components, list):
        return ["it has no list of components"]
    found = {str(one.get("name")): str(one.get("version")) for one in components if isinstance(one, dict)}
    hashless = [
        str(one.get("name"))
        for one in components
        if isinstance(one, dict) and '"SHA-256"' not in json.dumps(one)
    ]
    faults = [
        f"{name} {version} is missing" for name, version in wanted.items() if found.get(name) != version
    ]
    faults += [f"{name} is not pinned" for name in found if name not in wanted]
    return faults + [f"{name} has no hash" for name in hashless]


def read_audit(output: str, wanted: Mapping[str, str]) -> Audit:
    """Return what pip-audit's JSON says of the pins. A component that it does not mention is unknown."""
    audit = Audit()
    try:
        told = {one["name"]: one for one in json.loads(output)["dependencies"]}
    except (ValueError, KeyError, TypeError):
        told = {}
    for name in wanted:
        one = told.get(name)
        if one is None or "skip_reason" in one:
            audit.unknown[name] = "not answered" if one is None else str(one["skip_reason"])
            continue
        audit.audited += 1
        audit.vulnerable += [f"{name} {one['version']}: {fault['id']}" for fault in one.get("vulns", ())]
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


def run_audit(tool: Path, requirements: Path, wanted: Mapping[str, str]) -> Audit:
    command = [
        tool,
        "--require-hashes",
        "--disable-pip",
        "--progress-spinner",
        "off",
        "-f",
        "json",
        "-r",
        requirements,
    ]
    try:
        done = subprocess.run(
            [str(one) for one in command], capture_output=True, text=True, timeout=WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Audit(unknown=dict.fromkeys(wanted, f"no answer within {WITHIN_S} s"))
    if not done.stdout.strip():
        return Audit(unknown=dict.fromkeys(wanted, _last_line(done.stderr)))
    return read_audit(done.stdout, wanted)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it ended without a word"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check what a release is made of.")
    parser.add_argument("--offline", action="store_true", help="leave the audit out, and say so")
    parser.add_argument("--python", type=Path, action="append", default=[], help="also try this Python")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    options = parser.parse_args(arguments)
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
        if options.offline:
            print(f"{name}: NOT AUDITED, as asked for")
            continue
        audit = run_audit(tools / "pip-audit", requirements, wanted)
        faults += [f"{name}: known fault in {one}" for one in audit.vulnerable]
        print(f"{name}: {audit.audited} audited, {len(audit.vulnerable)} known faults")
        if audit.unknown:
            first, reason = next(iter(audit.unknown.items()))
            unknown.append(
                f"{name}: {len(audit.unknown)} components were not audited, such as {first}: {reason}"
            )
    print(
        "Jars of Spark and its connectors are in none of these lists; their SHA-256 are checked when they are fetched."
    )
    for one in unknown:
        print(f"NOT LOOKED AT: {one}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
