"""Look-up of known faults in a folder of advisories: the OSV format, and versions by PEP 440, without a network.

The folder holds JSON or YAML files, such as a clone of a database of advisories, with or without a work tree. Advisories of
other ecosystems than PyPI are passed over, and withdrawn ones are left out. Each file that cannot be read is named.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

ECOSYSTEM = "PyPI"
SUFFIXES = (".json", ".yaml", ".yml")
FILE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one advisory that are read; the largest known ones have less than one megabyte."""
NAMED_LIKE_AN_ADVISORY = re.compile(r"[A-Z][A-Z0-9]*-.+")
GIT_WITHIN_S = 300
_ORDER = {"fixed": 0, "introduced": 1, "last_affected": 2}
"""Order of events at one version: a fault that comes back at the version of its repair is there, and its last version has it."""
_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Every scalar stays text: a version 1.10 without quotes is not the number 1.1. JSON is read by the same loader."""


class Unreadable(Exception):
    """An advisory, or a folder of them, that cannot be read, with the reason."""


@dataclass(frozen=True)
class Affected:
    """Versions of one package that an advisory names. `ranges` are lists of (event, version)."""

    versions: tuple[str, ...]
    ranges: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Advisory:
    id: str
    names: frozenset[str]
    """Its own id and the aliases, by which two databases speak of one fault."""
    affected: Mapping[str, tuple[Affected, ...]]
    """Packages by their normal name."""
    withdrawn: bool
    published: datetime | None


@dataclass
class Advisories:
    """Advisories of a folder. `bad` are files that cannot be read, each with the reason."""

    of_package: dict[str, list[Advisory]] = field(default_factory=dict)
    read: int = 0
    withdrawn: int = 0
    newest: datetime | None = None
    bad: list[str] = field(default_factory=list)

    def age_days(self, now: datetime) -> int | None:
        return None if self.newest is None else max(0, (now - self.newest).days)


def normal_name(name: str) -> str:
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_affected(version: str, affected: Affected) -> bool:
    """Return whether an advisory names this version, by its list or by a range.

    Raises:
        Unreadable: nothing in it says which versions are meant.
    """
    mine = Version(version)
    if any(_same(one, mine) for one in affected.versions):
        return True
    if not affected.versions and not affected.ranges:
        raise Unreadable("it names neither versions nor a range of them")
    return any(_in_range(mine, events) for events in affected.ranges)


def _same(text: str, mine: Version) -> bool:
    try:
        return Version(text) == mine
    except InvalidVersion:
        return text == str(mine)


def _in_range(mine: Version, events: Sequence[tuple[str, str]]) -> bool:
    """Follow the events of a range in the order of their versions. "0" begins before every version."""
    if not any(kind == "introduced" for kind, _ in events):
        raise Unreadable("a range in it has no beginning")
    try:
        limits = [Version(version) for kind, version in events if kind == "limit" and version != "*"]
        placed = sorted(
            (version != "0", Version(version), _ORDER[kind]) for kind, version in events if kind in _ORDER
        )
    except InvalidVersion as error:
        raise Unreadable(f"a version in its ranges cannot be read: {error}") from error
    if limits and all(mine >= one for one in limits):
        return False
    inside = False
    for is_version, version, order in placed:
        reached = mine >= version or not is_version
        if order == _ORDER["introduced"]:
            inside = inside or reached
        elif order == _ORDER["fixed"]:
            inside = inside and not reached
        else:
            inside = inside and mine <= version
    return inside


def read_advisories(folder: Path, now: datetime) -> Advisories:
    """Read every advisory of a folder. Dates ahead of `now` say nothing of its age.

    Raises:
        Unreadable: there is no such folder, or git cannot read the clone.
    """
    found = Advisories()
    for name, data in _files(folder):
        try:
            one = parse(name, data)
        except Unreadable as error:
            found.bad.append(f"{name}: {error}")
            continue
        if one is None or not one.affected:
            continue
        found.read += 1
        if one.published is not None and one.published <= now:
            found.newest = max(found.newest or one.published, one.published)
        if one.withdrawn:
            found.withdrawn += 1
            continue
        for package in one.affected:
            found.of_package.setdefault(package, []).append(one)
    return found


def _files(folder: Path) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files that may be advisories; None stands for one that is too large."""
    if not folder.is_dir():
        raise Unreadable(f"{folder} is no folder")
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    if is_bare or [one.name for one in folder.iterdir()] == [".git"]:
        yield from _committed_files(folder)
        return
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(names):
            path = Path(parent) / name
            if name.endswith(SUFFIXES) and path.is_file():
                small = path.stat().st_size <= FILE_BYTES_MAX
                yield str(path.relative_to(folder)), path.read_bytes() if small else None


def _committed_files(clone: Path) -> Iterator[tuple[str, bytes | None]]:
    """Yield the files of a clone's HEAD. Objects that a partial clone lacks are not fetched: git ends with its word."""
    command = ["git", "-C", str(clone), "archive", "--format=tar", "HEAD"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    hidden = any(part.startswith(".") for part in member.name.split("/"))
                    if hidden or not member.isfile() or not member.name.endswith(SUFFIXES):
                        continue
                    opened = archive.extractfile(member) if member.size <= FILE_BYTES_MAX else None
                    yield member.name, opened.read() if opened is not None else None
        except tarfile.TarError as error:
            said = process.stderr.read().decode(errors="replace").strip()
            raise Unreadable(f"git cannot read {clone}: {said or error}") from error
        said = process.stderr.read().decode(errors="replace").strip()
        if process.wait(GIT_WITHIN_S):
            raise Unreadable(f"git cannot read {clone}: {said}")


def parse(name: str, data: bytes | None) -> Advisory | None:
    """Return the advisory of a file, or nothing where the file is none, such as a database's own settings.

    Raises:
        Unreadable: the file is an advisory by its content or its name, and cannot be read.
    """
    if data is None:
        raise Unreadable(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        document = json.loads(data) if name.endswith(".json") else yaml.load(data, _Loader)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Unreadable(
            f"it is no {'JSON' if name.endswith('.json') else 'YAML'}: {_one_line(error)}"
        ) from error
    if not isinstance(document, dict) or not {"id", "affected"} & document.keys():
        if NAMED_LIKE_AN_ADVISORY.fullmatch(Path(name).name):
            raise Unreadable("it has no id and names no package")
        return None
    identity = document.get("id")
    if not isinstance(identity, str) or not identity:
        raise Unreadable("it has no id")
    withdrawn = not _is_absent(document.get("withdrawn"))
    return Advisory(
        identity,
        frozenset([identity, *_texts(document, "aliases")]),
        _affected(document),
        withdrawn,
        _moment(document.get("published")) or _moment(document.get("modified")),
    )


def _affected(document: Mapping[str, object]) -> dict[str, tuple[Affected, ...]]:
    found: dict[str, tuple[Affected, ...]] = {}
    for one in _mappings(document, "affected"):
        package = one.get("package")
        if not isinstance(package, dict):
            continue
        name, ecosystem = package.get("name"), package.get("ecosystem")
        if not isinstance(name, str) or not isinstance(ecosystem, str):
            raise Unreadable("a package in it has no name or no ecosystem")
        if ecosystem.partition(":")[0].lower() != ECOSYSTEM.lower():
            continue
        ranges = tuple(_events(each) for each in _mappings(one, "ranges") if each.get("type") != "GIT")
        here = Affected(tuple(_texts(one, "versions")), ranges)
        found[normal_name(name)] = (*found.get(normal_name(name), ()), here)
    return found


def _events(one: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    events: list[tuple[str, str]] = []
    for event in _mappings(one, "events"):
        for kind, version in event.items():
            if not isinstance(version, str):
                raise Unreadable("a version in its ranges is no text")
            events.append((str(kind), version))
    return tuple(events)


def _is_absent(value: object) -> bool:
    return value in (None, "", "null", "~")


def _list(document: Mapping[str, object], name: str) -> list[object]:
    value = document.get(name)
    if _is_absent(value):
        return []
    if not isinstance(value, list):
        raise Unreadable(f"its {name} are no list")
    return value


def _texts(document: Mapping[str, object], name: str) -> list[str]:
    texts = _list(document, name)
    if not all(isinstance(one, str) for one in texts):
        raise Unreadable(f"its {name} are not all texts")
    return [str(one) for one in texts]


def _mappings(document: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = [one for one in _list(document, name) if isinstance(one, dict)]
    if len(found) != len(_list(document, name)):
        raise Unreadable(f"its {name} are not all objects")
    return found


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


@dataclass
class Audit:
    """Outcome for one compiled file. `unknown` are components that nothing is known of, with the reason."""

    audited: int = 0
    vulnerable: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


def look_up(advisories: Advisories, pins: Iterable[tuple[str, str]]) -> Audit:
    """Return the faults that the advisories know of these components, each fault once under all its names."""
    audit = Audit()
    for name, version in pins:
        faults: list[Advisory] = []
        unclear: list[str] = []
        for advisory in advisories.of_package.get(normal_name(name), ()):
            try:
                if any(is_affected(version, one) for one in advisory.affected[normal_name(name)]):
                    faults.append(advisory)
            except Unreadable as error:
                unclear.append(f"{advisory.id}: {error}")
        audit.vulnerable += [f"{name} {version}: {fault}" for fault in _joined(faults)]
        if unclear:
            audit.unknown[f"{name} {version}"] = "; ".join(unclear)
        else:
            audit.audited += 1
    return audit


def _joined(faults: Iterable[Advisory]) -> list[str]:
    """Return one line for each fault: advisories that share an id or an alias speak of the same one."""
    groups: list[tuple[set[str], set[str]]] = []
    for fault in faults:
        ids, names = {fault.id}, set(fault.names)
        for group in [one for one in groups if one[1] & names]:
            groups.remove(group)
            ids, names = ids | group[0], names | group[1]
        groups.append((ids, names))
    lines = []
    for ids, names in groups:
        others = sorted(names - {min(ids)})
        lines.append(min(ids) + (f" ({', '.join(others)})" if others else ""))
    return sorted(lines)
