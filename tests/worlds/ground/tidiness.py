"""The rules of a tidy repository, each a function from text to a list of faults.

They read text and nothing else, so that planted faults can prove each of them able to fail.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Rows of the import table, lowest first. A room, or a part of a room that keeps rules apart from their shell.
VALUES = {"errors", "ground.identifiers"}
TOOLS = VALUES | {"ground.wire", "ground.crypto", "ground.statemachine"}
GROUND = TOOLS | {
    "ground.files",
    "ground.loop",
    "ground.net",
    "ground.storage",
    "ground.signatures",
    "ground.telemetry",
}
DMQ = {
    "dmq",
    "dmq.conform",
    "dmq.cardano",
    "dmq.mithril",
    "dmq.inspection",
    "dmq.endpoints",
    "dmq.keys",
    "dmq.node",
}
DELIVERY = {"delivery", "delivery.shell", "delivery.stores", "delivery.transports"}
REMP = {"remp", "remp.receipts", "remp.verdict", "remp.queue", "remp.links"}
CHAIN_RULES = {"chain", "chain.agreement", "chain.proofs"}
CHAIN = CHAIN_RULES | {"chain.node"}
PROTOCOLS = GROUND | DMQ | DELIVERY | {"catchain"} | REMP | CHAIN | {"topics", "trace"}
# Public import paths that gather names of rules and shell; no room below the last rows may use them.
FACADES = {
    "stagepost.delivery": "façade",
    "stagepost.client": "façade",
    "stagepost.endpoints": "façade",
    "pyspark_stagepost": "pipeline",
}
# Rooms whose parts are rows of their own.
DIVIDED = {"ground", "delivery", "dmq", "remp", "chain"}
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "ground": set(),
    "ground.identifiers": {"errors"},
    **dict.fromkeys(("ground.wire", "ground.crypto", "ground.statemachine"), VALUES),
    "ground.files": TOOLS,
    "ground.loop": TOOLS,
    "ground.net": TOOLS | {"ground.loop", "ground.files"},
    "ground.storage": TOOLS | {"ground.loop", "ground.files"},
    "ground.signatures": TOOLS | {"ground.loop"},
    "ground.telemetry": TOOLS | {"ground.loop", "ground.files", "ground.net"},
    # The rules of DMQ are one row with three folders.
    **dict.fromkeys(
        ("dmq", "dmq.cardano", "dmq.mithril"),
        TOOLS | {"ground.net", "ground.files", "dmq", "dmq.cardano", "dmq.mithril"},
    ),
    "dmq.conform": VALUES,
    "dmq.inspection": TOOLS | {"ground.net", "dmq"},
    "dmq.endpoints": GROUND | {"dmq", "dmq.cardano"},
    "dmq.keys": GROUND | {"dmq", "dmq.cardano", "dmq.endpoints"},
    "dmq.node": GROUND | {"dmq", "dmq.cardano", "dmq.endpoints", "dmq.keys"},
    "delivery": TOOLS,
    "delivery.stores": GROUND | {"delivery"},
    # Authenticated links are those of REMP; its rules know nothing of delivery.
    "delivery.transports": GROUND | {"delivery", "dmq", "dmq.endpoints", "dmq.keys", "remp.links"},
    "delivery.shell": GROUND | {"delivery", "delivery.stores", "delivery.transports"},
    "catchain": TOOLS,
    # The rules of REMP are one row with three folders; links carry them.
    **dict.fromkeys(
        ("remp", "remp.receipts", "remp.verdict", "remp.queue"),
        TOOLS | {"ground.files", "catchain", "remp", "remp.receipts", "remp.verdict", "remp.queue"},
    ),
    "remp.links": GROUND | {"catchain"} | REMP,
    **dict.fromkeys(
        CHAIN_RULES,
        TOOLS | {"catchain"} | REMP - {"remp.links"} | CHAIN_RULES,
    ),
    "chain.node": GROUND | {"catchain"} | REMP | CHAIN,
    "topics": GROUND,
    "trace": GROUND | REMP - {"remp.links"} | CHAIN_RULES | {"topics", "dmq", "delivery", "delivery.stores"},
    # Here the layers are put together.
    "full_node": PROTOCOLS,
    "network": PROTOCOLS | {"full_node"},
    "validator": PROTOCOLS | {"full_node", "network"},
    "pipeline": GROUND
    | {"dmq", "dmq.mithril", "dmq.endpoints", "delivery", "topics"}
    | REMP - {"remp.links", "remp.queue"}
    | CHAIN_RULES,
    "façade": PROTOCOLS | {"full_node", "client"},
    "client": PROTOCOLS | {"full_node"},
    "config": GROUND | DMQ | {"topics"},
    "devnet": PROTOCOLS | {"full_node", "validator", "client", "config"},
    "simulation": GROUND | DMQ,
    "web": PROTOCOLS | {"full_node", "pipeline", "façade"},
    "cli": PROTOCOLS
    | {"full_node", "network", "validator", "pipeline", "client", "config", "devnet", "web", "façade"},
}
# Rows of rules alone: values and functions, nothing of the outside world.
CORE = (
    TOOLS
    | {"dmq", "dmq.cardano", "dmq.mithril", "dmq.inspection", "delivery", "catchain"}
    | CHAIN_RULES
    | {"remp", "remp.receipts", "remp.verdict", "remp.queue"}
)
# Modules of rules in rooms that also hold a shell. Rules import rules.
RULES_IN_SHELLS = {
    "stagepost.ground.files.documents",
    "stagepost.ground.files.durations",
    "stagepost.ground.files.expected",
    "stagepost.ground.net.back_off",
    "stagepost.ground.net.handshake",
    "stagepost.ground.net.keep_alive_protocol",
    "stagepost.ground.net.version_data",
    "stagepost.full_node.staged_sending",
    "stagepost.ground.telemetry.health",
    "stagepost.ground.telemetry.status",
    "stagepost.remp.links.authentication",
    "stagepost.remp.links.local_intake",
    "stagepost.remp.links.protocols",
    "stagepost.validator.packing",
    "stagepost.validator.receipt_chains",
}
ONLY_IN = {"pyspark": "pipeline", "click": "cli", "confluent_kafka": "topics", "opentelemetry": "trace"}
# Folders beside the sources, and the folders that each may not import.
APART: Mapping[str, set[str]] = {
    "src": {"rigs", "tests", "bench", "tools"},
    "rigs": {"tests", "bench", "tools"},
    "bench": {"tests", "tools"},
    "tests": {"bench"},
    "tools": {"bench"},
}
TOP_ENTRIES_MAX = 20
"""Rooms and modules directly under the package, without `__init__.py` and `py.typed`."""
FOLDER_FILES_MAX = 25
"""Python files in one folder of the package."""
# Clocks, randomness, files, sockets, threads and logs: handed to the core, never fetched by it.
# fmt: off
OUTSIDE_WORLD = {
    "asyncio", "concurrent", "datetime", "importlib", "logging", "multiprocessing", "os", "pathlib", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys",
    "tempfile", "threading", "time", "urllib", "uuid",
}
# fmt: on
OUTSIDE_CALLS = {"open", "print", "input"}
# Read by programs of all kinds, Spark's workers among them: the one core module that opens the file it is named after.
READS_ITS_FILE = {"stagepost.remp.validator_sets"}
# Turn moments into calendar dates or back, and read no clock.
SHOWS_DATES = {
    "stagepost.delivery.status",
    "stagepost.dmq.cardano.genesis",
    "stagepost.ground.files.durations",
}
ENTRY_POINTS = {"stagepost.cli.main"}
NAMELESS = {"utils", "util", "common", "helpers", "helper", "base", "manager"}
STRAY_NOTE = re.compile(r"\b(?:TOD[O]|FIXM[E])\b(?!\s*\(?#\d+)")
DOWNLOAD_SETTING = re.compile(r"(?:index-url|find-links|registry|trusted-host)\W.*https?://", re.IGNORECASE)
NEIGHBOUR_FOLDER = "../" + "shared"


def module_name(path: Path) -> str:
    """`path` is relative to the folder of the sources."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str:
    """Return the row of the import table that a module belongs to; "" for the package itself."""
    if module in FACADES:
        return FACADES[module]
    parts = module.split(".")[1:]
    if not parts:
        return ""
    has_part = parts[0] in DIVIDED and ".".join(parts[:2]) in MAY_IMPORT
    return ".".join(parts[:2]) if has_part else parts[0]


def is_rule(module: str) -> bool:
    """Return whether a module holds rules and nothing of the outside world."""
    return module in RULES_IN_SHELLS or unit_of(module) in CORE


class Names(NamedTuple):
    """Names that a source uses of others: by import statements, wherever they stand, and in strings that name our modules."""

    plain: tuple[str, ...]
    origins: tuple[tuple[int, str, tuple[str, ...]], ...]
    """Dots before the origin, the origin, and the names that are imported from it."""
    texts: frozenset[str]


@cache
def names_in(source: str) -> Names:
    """Read a source as a tree, once for all rules: that takes a hundred times as long as the rules themselves."""
    plain: list[str] = []
    origins: list[tuple[int, str, tuple[str, ...]]] = []
    texts: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                plain += [alias.name for alias in names]
            case ast.ImportFrom(module=origin, names=names, level=dots):
                origins.append((dots, origin or "", tuple(alias.name for alias in names)))
            case ast.Constant(value=str(text)) if text.startswith("stagepost."):
                texts.add(text.split(":")[0])
    return Names(tuple(plain), tuple(origins), frozenset(texts))


def imports_of(source: str, module: str, known: set[str], *, is_package: bool) -> Iterator[str]:
    """Every module named by an import statement, wherever it stands: in functions and type-checking blocks too."""
    names = names_in(source)
    yield from names.plain
    for dots, said, imported in names.origins:
        parts = module.split(".") if dots else []  # one dot: the parent, or the package itself
        parents = parts[: len(parts) - dots + is_package]
        origin = ".".join([*parents, *filter(None, [said])])
        for name in imported:
            yield inner if (inner := f"{origin}.{name}") in known else origin


def forbidden_imports(source: str, module: str, known: set[str], *, is_package: bool = False) -> list[str]:
    unit, found = unit_of(module), []
    for target in imports_of(source, module, known, is_package=is_package):
        outside = target.split(".")[0]
        if ONLY_IN.get(outside, unit) != unit:
            found.append(f"{module}: only {ONLY_IN[outside]} imports {outside}")
        if outside == "stagepost" and unit_of(target) not in {"", unit} | MAY_IMPORT.get(unit, set()):
            found.append(f"{module}: may not import {target}")
        elif target in known and unit_of(target) and is_rule(module) and not is_rule(target):
            found.append(f"{module}: rules do not import {target}, which is not one of rules")
    return found


def crossed_folders(source: str, path: Path) -> list[str]:
    """Find imports between the folders beside the sources that would close a circle; `path` is relative to the repository.

    `bench` and `tests` share what is in `rigs`. Only the tests of the benchmarks themselves import `bench`.
    """
    forbidden = APART[path.parts[0]] - ({"bench"} if path.match("tests/unit/test_bench*.py") else set())
    if not any(name in source for name in forbidden):
        return []
    imported = imports_of(source, "", set(), is_package=False)
    return [f"{path}: may not import {name}" for name in imported if name.split(".")[0] in forbidden]


def untrue_folders(text: str, folders: set[str]) -> list[str]:
    """Compare the folders of tests that a page names with those that exist, both ways."""
    named = set(re.findall(r"`(tests/\w+)`", text))
    return [f"{one}: there is no such folder" for one in sorted(named - folders)] + [
        f"{one}: the page does not name it" for one in sorted(folders - named)
    ]


def shared_numbers(names: Iterable[str]) -> list[str]:
    """Say which numbers of decision records two of the files `names` have."""
    count = Counter(name[:4] for name in names)
    return [
        f"decision {number}: {count[number]} records have this number"
        for number in sorted(count)
        if count[number] > 1
    ]


def outside_world(source: str, module: str) -> list[str]:
    """Uses of clocks, randomness, files, threads or logs in a core module."""
    if not is_rule(module):
        return []
    tree = ast.parse(source)
    found = {
        name
        for name in imports_of(source, module, set(), is_package=False)
        if name.split(".")[0] in OUTSIDE_WORLD - ({"datetime"} if module in SHOWS_DATES else set())
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open")) if module in READS_ITS_FILE:
                continue
            case ast.Call(func=ast.Name(id=name)) if name in OUTSIDE_CALLS:
                found.add(f"{name}()")
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=[], keywords=[]):
                found.add("Random() without a seed")
            case ast.Attribute(value=ast.Name(id="datetime"), attr="now" | "today" | "utcnow" as name):
                found.add(f"{name}()")
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                found.add(f"random.{name}")
            case ast.ImportFrom(module="random", names=names):
                found |= {f"random.{alias.name}" for alias in names if alias.name != "Random"}
    return [f"{module}: {name} in the core" for name in sorted(found)]


def dead_modules(sources: Mapping[str, str], outsiders: list[str], packages: set[str]) -> list[str]:
    """Modules that no other module, test or tool imports or names in a string (as lazily loaded commands are)."""
    alive = set(ENTRY_POINTS)
    for module, source in [*sources.items(), *(("", text) for text in outsiders)]:
        if not module and not any(
            one.rpartition(".")[2] in source for one in sources.keys() - packages - alive
        ):
            continue  # it names none of those that nobody has named yet
        used = set(imports_of(source, module, set(sources), is_package=module in packages))
        used |= names_in(source).texts
        alive |= used - {module}
    return sorted(f"{module}: nobody imports it" for module in sources.keys() - packages - alive)


def stray_notes(source: str, name: str) -> list[str]:
    lines = enumerate(source.splitlines(), start=1)
    return [
        f"{name}:{number}: a note without issue number" for number, line in lines if STRAY_NOTE.search(line)
    ]


def unchecked_rules(source: str, name: str) -> list[str]:
    """Find `assert` statements that do more than narrow a type. `python -O` leaves them out, so no rule may hang on one:
    only `… is not None` and `isinstance(…)` are let through, where the next line would fail by itself."""
    if "assert" not in source:
        return []
    return [
        f"{name}:{node.lineno}: an assert that python -O leaves out; raise an error of stagepost.errors"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assert) and not _narrows_a_type(node.test)
    ]


def _narrows_a_type(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.BoolOp(
            op=ast.Or(), values=[ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)]), other]
        ):
            return _narrows_a_type(other)
    return False


def nameless(path: Path) -> list[str]:
    return [
        f"{path}: say which concept lives here" for part in path.with_suffix("").parts if part in NAMELESS
    ]


def foreign_places(text: str, name: str) -> list[str]:
    """Settings that say where packages are downloaded from, and paths out of the repository."""
    lines = enumerate(text.splitlines(), start=1)
    return [
        f"{name}:{number}: {line.strip()[:80]}"
        for number, line in lines
        if NEIGHBOUR_FOLDER in line or DOWNLOAD_SETTING.search(line)
    ]


def crowded_folders(files_of: Mapping[str, int], top_entries: int) -> list[str]:
    """Return the folders with more Python files than a reader can take in at a glance."""
    found = [
        f"{folder}: {count} files, more than {FOLDER_FILES_MAX}"
        for folder, count in sorted(files_of.items())
        if count > FOLDER_FILES_MAX
    ]
    if top_entries > TOP_ENTRIES_MAX:
        found.append(f"the package has {top_entries} entries, more than {TOP_ENTRIES_MAX}")
    return found


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of names that import one another, each sorted: strongly connected, two members or more."""
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(imports):
        stack = [(start, iter(sorted(imports[start])))] if start not in seen else []
        seen.add(start)
        while stack:
            name, targets = stack[-1]
            following = next((one for one in targets if one in imports and one not in seen), None)
            if following is None:
                order.append(stack.pop()[0])
            else:
                seen.add(following)
                stack.append((following, iter(sorted(imports[following]))))
    importers: dict[str, set[str]] = {name: set() for name in imports}
    for name, imported in imports.items():
        for target in imported & imports.keys():
            importers[target].add(name)
    found: list[list[str]] = []
    placed: set[str] = set()
    for start in reversed(order):
        group, waiting = set(), [start]
        while waiting:
            name = waiting.pop()
            if name not in placed:
                placed.add(name)
                group.add(name)
                waiting += importers[name]
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found)
