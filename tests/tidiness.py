"""The rules of a tidy repository, each a function from text to a list of faults.

They read text and nothing else, so that planted faults can prove each of them able to fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

FOUNDATION = {"errors", "identifiers"}
TOOLS = FOUNDATION | {"wire", "crypto", "statemachine"}
CORE = TOOLS | {"dmq", "delivery", "catchain", "remp", "chain"}
ASSEMBLED = CORE | {"runtime", "bus", "node"}
# Public import paths that gather names from core and shell; nothing below the last row may use them.
FACADES = {"stagepost.delivery": "façade", "stagepost.client": "façade", "stagepost.endpoints": "façade"}
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "identifiers": {"errors"},
    **dict.fromkeys(("wire", "crypto", "statemachine"), FOUNDATION),
    **dict.fromkeys(("dmq", "delivery", "catchain"), TOOLS),
    "remp": TOOLS | {"catchain"},
    "chain": TOOLS | {"catchain", "remp"},
    "runtime": CORE,
    "bus": CORE | {"runtime"},
    "node": CORE | {"runtime", "bus"},
    "simulation": CORE | {"runtime", "bus", "node"},
    # Its sources ask running nodes, by the same connections as everybody else.
    "pipeline": CORE | {"runtime", "bus"},
    "façade": ASSEMBLED,
    "web": ASSEMBLED | {"pipeline", "façade"},
    "cli": ASSEMBLED | {"pipeline", "façade", "web"},
}
ONLY_IN = {"pyspark": "pipeline", "click": "cli", "confluent_kafka": "bus"}
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
    """The row of the import table that a module belongs to; "" for the package itself."""
    return FACADES.get(module) or [*module.split("."), ""][1]


def imports_of(tree: ast.Module, module: str, known: set[str], *, is_package: bool) -> Iterator[str]:
    """Every module named by an import statement, wherever it stands: in functions and type-checking blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if node.level else []  # one dot: the parent, or the package itself
            parents = parts[: len(parts) - node.level + is_package]
            origin = ".".join([*parents, *filter(None, [node.module])])
            for alias in node.names:
                yield inner if (inner := f"{origin}.{alias.name}") in known else origin


def forbidden_imports(source: str, module: str, known: set[str], *, is_package: bool = False) -> list[str]:
    unit, found = unit_of(module), []
    for target in imports_of(ast.parse(source), module, known, is_package=is_package):
        outside = target.split(".")[0]
        if ONLY_IN.get(outside, unit) != unit:
            found.append(f"{module}: only {ONLY_IN[outside]} imports {outside}")
        if outside == "stagepost" and unit_of(target) not in {"", unit} | MAY_IMPORT.get(unit, set()):
            found.append(f"{module}: may not import {target}")
    return found


def outside_world(source: str, module: str) -> list[str]:
    """Uses of clocks, randomness, files, threads or logs in a core module."""
    if unit_of(module) not in CORE:
        return []
    tree = ast.parse(source)
    found = {
        name
        for name in imports_of(tree, module, set(), is_package=False)
        if name.split(".")[0] in OUTSIDE_WORLD
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open")) if module in READS_ITS_FILE:
                continue
            case ast.Call(func=ast.Name(id=name)) if name in OUTSIDE_CALLS:
                found.add(f"{name}()")
            case ast.Call(func=ast.Name(id="Random") | ast.Attribute(attr="Random"), args=[], keywords=[]):
                found.add("Random() without a seed")
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                found.add(f"random.{name}")
            case ast.ImportFrom(module="random", names=names):
                found |= {f"random.{alias.name}" for alias in names if alias.name != "Random"}
    return [f"{module}: {name} in the core" for name in sorted(found)]


def dead_modules(sources: Mapping[str, str], outsiders: list[str], packages: set[str]) -> list[str]:
    """Modules that no other module, test or tool imports or names in a string (as lazily loaded commands are)."""
    alive = set(ENTRY_POINTS)
    for module, source in [*sources.items(), *(("", text) for text in outsiders)]:
        tree = ast.parse(source)
        used = set(imports_of(tree, module, set(sources), is_package=module in packages))
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        used |= {text.split(":")[0] for text in texts if isinstance(text, str)}
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
