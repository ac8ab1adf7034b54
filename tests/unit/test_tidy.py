"""The layers hold: who imports whom, no I/O in the core, no dead files, no stray notes, no nameless modules."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from tests.worlds.ground.tidiness import (
    FACADES,
    FOLDER_FILES_MAX,
    MAY_IMPORT,
    NEIGHBOUR_FOLDER,
    OUTSIDE_WORLD,
    TOP_ENTRIES_MAX,
    crossed_folders,
    crowded_folders,
    cycles,
    dead_modules,
    forbidden_imports,
    foreign_places,
    imports_of,
    module_name,
    nameless,
    outside_world,
    shared_numbers,
    stray_notes,
    unchecked_rules,
    unit_of,
    untrue_folders,
)

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
# In pieces, so that the rules do not find their own planted faults.
NOTE = "TO" + "DO"
ADDRESS = "https:" + "//packages.example"
# ── the repository as it is ──────────────────────────────────────────────────────────────────────────────────

SOURCES = {module_name(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = {module_name(path.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
OUTSIDERS = {
    path: path.read_text()
    for folder in ("rigs", "tests", "tools", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


BESIDE_THE_ROOMS = {"__init__.py", "py.typed", "__pycache__"}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def tracked_files() -> list[Path]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def assert_none(faults: Iterable[str]) -> None:
    found = list(faults)
    assert not found, "\n".join(["", *found])


def test_every_unit_has_a_row_in_the_import_table() -> None:
    assert {unit_of(module) for module in SOURCES} - {""} <= MAY_IMPORT.keys()


def test_imports_point_in_the_allowed_direction() -> None:
    known = set(SOURCES)
    faults = (forbidden_imports(text, m, known, is_package=m in PACKAGES) for m, text in SOURCES.items())

    assert_none(chain.from_iterable(faults))


def test_tests_and_benchmarks_do_not_import_each_other() -> None:
    paths = [*SOURCE.rglob("*.py"), *OUTSIDERS]

    assert_none(
        chain.from_iterable(crossed_folders(path.read_text(), path.relative_to(ROOT)) for path in paths)
    )


def test_the_page_for_contributors_names_the_folders_of_tests() -> None:
    folders = {
        f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("*/*.*")
    }
    folders -= {"tests/__pycache__"}

    assert_none(untrue_folders((ROOT / "CONTRIBUTING.md").read_text(), folders))


def test_each_decision_has_a_number_of_its_own() -> None:
    assert_none(shared_numbers(path.name for path in (ROOT / "docs" / "decisions").iterdir()))


def test_core_does_not_touch_the_outside_world() -> None:
    assert_none(chain.from_iterable(outside_world(text, module) for module, text in SOURCES.items()))


def test_no_rooms_and_no_modules_import_each_other() -> None:
    modules = {
        module: set(imports_of(text, module, set(SOURCES), is_package=module in PACKAGES))
        & SOURCES.keys() - FACADES.keys()
        for module, text in SOURCES.items()
        if module not in FACADES
    }
    rooms: dict[str, set[str]] = {}
    for module, targets in modules.items():
        rooms.setdefault(room_of(module), set()).update(room_of(target) for target in targets)

    assert cycles(rooms) == []
    assert cycles(modules) == []


def test_no_folder_is_crowded() -> None:
    files_of = Counter(str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    top = [path for path in (SOURCE / "stagepost").iterdir() if path.name not in BESIDE_THE_ROOMS]

    assert_none(crowded_folders(files_of, len(top)))


def test_no_module_is_dead() -> None:
    assert_none(dead_modules(SOURCES, list(OUTSIDERS.values()), PACKAGES))


def test_notes_carry_an_issue_number() -> None:
    texts = SOURCES | {str(path.relative_to(ROOT)): text for path, text in OUTSIDERS.items()}

    assert_none(chain.from_iterable(stray_notes(text, name) for name, text in texts.items()))


def test_no_rule_of_the_sources_hangs_on_an_assert() -> None:
    assert_none(chain.from_iterable(unchecked_rules(text, module) for module, text in SOURCES.items()))


def test_modules_are_named_after_a_concept() -> None:
    paths = [*SOURCE.rglob("*.py"), *OUTSIDERS]

    assert_none(chain.from_iterable(nameless(path.relative_to(ROOT)) for path in paths))


def test_no_file_says_where_packages_come_from_or_points_outside() -> None:
    texts = ((path, path.read_bytes()) for path in tracked_files())
    readable = ((str(path.relative_to(ROOT)), data.decode()) for path, data in texts if b"\0" not in data)

    assert_none(chain.from_iterable(foreign_places(text, name) for name, text in readable))


# ── every rule can fail ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("stagepost.ground.wire.cbor", "from stagepost.dmq.message import DmqMessage"),
        ("stagepost.ground.wire.cbor", "import stagepost.ground.crypto.kes"),
        ("stagepost.ground.crypto.kes", "from stagepost.ground import wire"),
        ("stagepost.ground.crypto.kes", "from ..wire import cbor"),
        ("stagepost.errors", "from stagepost.ground.identifiers import MessageId"),
        ("stagepost.ground.storage.tables", "from stagepost.dmq.mempool import Mempool"),
        ("stagepost.dmq.message", "def f():\n    from stagepost.delivery.outbox import Outbox"),
        ("stagepost.dmq.message", "if TYPE_CHECKING:\n    import stagepost.catchain.block"),
        ("stagepost.dmq.message", "from stagepost.dmq.node.intake import Intake"),
        ("stagepost.dmq.message", "from stagepost.ground.net.sockets import connect"),
        ("stagepost.remp.shard", "from stagepost.chain.ledger import EmbeddedLedger"),
        ("stagepost.delivery.outbox", "from stagepost.delivery import Publisher"),
        ("stagepost.ground.net.sockets", "from stagepost.topics.topic import Topic"),
        ("stagepost.topics.topic", "from stagepost.devnet.devnet import Devnet"),
        ("stagepost.full_node.full_node", "from stagepost.validator.validator import RempValidator"),
        ("stagepost.devnet.devnet", "from stagepost.cli.main import main"),
        ("stagepost.pipeline.jobs", "from stagepost.devnet.devnet import Devnet"),
        ("stagepost.web.app", "import pyspark.sql"),
        ("stagepost.devnet.devnet", "from click import echo"),
        ("stagepost.web.app", "from stagepost.cli.main import main"),
        ("stagepost.devnet.devnet", "from stagepost.simulation.world import World"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str) -> None:
    assert forbidden_imports(source, module, set(SOURCES) | {"stagepost.ground.wire"})


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "stagepost.ground.wire.cbor",
            "from stagepost.errors import DecodeError\nfrom stagepost import __version__",
        ),
        ("stagepost.dmq.message", "from stagepost.ground.crypto import kes\nfrom . import outcome"),
        ("stagepost.dmq.profiles", "from stagepost.ground.net.handshake import Terms"),
        ("stagepost.chain.ledger", "from stagepost.remp.ledger import Ledger"),
        (
            "stagepost.topics.log.file_topic",
            "from stagepost.ground.files.owner_lock import OwnerLock",
        ),
        ("stagepost.delivery", "from stagepost.ground.net.sockets import listen"),
        ("stagepost.cli.main", "from stagepost.client import Client\nimport stagepost.devnet.devnet"),
        ("stagepost.simulation.world", "from stagepost.dmq.node.node import DmqNode"),
        ("stagepost.pipeline.spark", "import pyspark.sql"),
        ("stagepost.cli.keys", "import click"),
    ],
)
def test_an_allowed_import_is_let_through(module: str, source: str) -> None:
    assert forbidden_imports(source, module, set(SOURCES), is_package=module == "stagepost.delivery") == []


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("bench/chain.py", "from tests.worlds.chain.chain_world import a_genesis", 1),
        ("bench/delivery/beside.py", "def f():\n    import os, tests.conftest", 1),
        ("tests/worlds/delivery/delivery_world.py", "from bench.traffic import Signers", 1),
        ("tests/unit/dmq/test_bench.py", "from bench import traffic", 1),
        ("rigs/remp_world.py", "from tests.worlds.chain import chain_world", 1),
        ("src/stagepost/devnet/devnet.py", "from rigs.results import write_lines", 1),
        ("tests/unit/test_bench_chain.py", "from bench.chain import Times", 0),
        ("bench/chain.py", "from rigs.chain_processes import ChainNode", 0),
    ],
)
def test_an_import_between_tests_and_benchmarks_is_found(path: str, source: str, count: int) -> None:
    assert len(crossed_folders(source, Path(path))) == count


@pytest.mark.parametrize(
    "source",
    [
        *(f"import {name}" for name in sorted(OUTSIDE_WORLD)),
        "def f():\n    from os.path import join",
        "import random\nrandom.choice([1])",
        "from random import randrange",
        "import random\nrandom.Random()",
        "from random import Random\nRandom()",
        "text = open('x').read()",
        "print('x')",
    ],
)
def test_the_outside_world_is_found_in_the_core_and_let_through_in_the_shell(source: str) -> None:
    assert outside_world(source, "stagepost.ground.crypto.kes")
    assert outside_world(source, "stagepost.ground.identifiers")
    assert outside_world(source, "stagepost.ground.net.sockets") == []


def test_a_clock_is_found_where_dates_are_shown() -> None:
    assert outside_world("from datetime import UTC, datetime", "stagepost.delivery.status") == []
    assert outside_world("from datetime import UTC, datetime\ndatetime.now(UTC)", "stagepost.delivery.status")


def test_a_seeded_generator_is_let_through() -> None:
    source = (
        "import random\nfrom random import Random\ndef f(r: Random) -> random.Random:\n    return Random(7)"
    )

    assert outside_world(source, "stagepost.dmq.mempool") == []


def test_a_circle_of_imports_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e", "f"}, "e": {"d", "e"}, "f": {"f"}}

    assert cycles(imports) == [["a", "b", "c"], ["d", "e"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_a_folder_that_is_gone_or_not_named_is_found() -> None:
    text = "| `tests/unit` | ? |\n| `tests/gone` | ? |\n`tests/unit/test_tidy.py`"

    assert untrue_folders(text, {"tests/unit"}) == ["tests/gone: there is no such folder"]
    assert untrue_folders(text, {"tests/unit", "tests/gone", "tests/new"}) == [
        "tests/new: the page does not name it"
    ]


def test_a_number_of_two_decisions_is_found() -> None:
    assert shared_numbers(["0001-a.md", "0002-b.md"]) == []
    assert shared_numbers(["0001-a.md", "0002-b.md", "0001-c.md"]) == [
        "decision 0001: 2 records have this number"
    ]


def test_a_crowded_folder_is_found() -> None:
    assert crowded_folders({"x": FOLDER_FILES_MAX}, TOP_ENTRIES_MAX) == []
    assert len(crowded_folders({"x": FOLDER_FILES_MAX + 1, "y": 1}, TOP_ENTRIES_MAX)) == 1
    assert len(crowded_folders({}, TOP_ENTRIES_MAX + 1)) == 1


def test_a_dead_module_is_found() -> None:
    sources = {"stagepost": "", "stagepost.a": "import stagepost.a", "stagepost.b": "", "stagepost.c": ""}
    outsiders = ["from stagepost import b", "LAZY = 'stagepost.c:command'"]

    assert dead_modules(sources, outsiders, {"stagepost"}) == ["stagepost.a: nobody imports it"]


@pytest.mark.parametrize(
    ("line", "count"),
    [(f"# {NOTE} later", 1), ("# FIX" + "ME", 1), (f"# {NOTE}(#12) x", 0), (f"# {NOTE} #3", 0)],
)
def test_a_stray_note_is_found(line: str, count: int) -> None:
    assert len(stray_notes(f"x = 1\n{line}\n", "x.py")) == count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("assert kind not in own", 1),
        ("assert 0 < count <= limit, 'too many'", 1),
        ("assert found is None, 'it is new'", 1),
        ("assert found is not None and found.is_signed", 1),
        ("assert found or isinstance(found, int)", 1),
        ("assert found is not None, 'looked up just now'", 0),
        ("assert isinstance(found, int | str)", 0),
        ("assert found is None or isinstance(found, int)", 0),
        ("if found: raise ValueError('assert')", 0),
    ],
)
def test_a_rule_that_hangs_on_an_assert_is_found(line: str, count: int) -> None:
    assert len(unchecked_rules(f"def check(found):\n    {line}\n", "x.py")) == count


@pytest.mark.parametrize(
    ("path", "count"), [("wire/utils.py", 1), ("common/cbor.py", 1), ("wire/database.py", 0)]
)
def test_a_nameless_module_is_found(path: str, count: int) -> None:
    assert len(nameless(Path(path))) == count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (f"--index-url={ADDRESS}/simple", 1),
        (f"find-links = {ADDRESS}", 1),
        (f"registry: {ADDRESS}", 1),
        (f"see {NEIGHBOUR_FOLDER}/notes.md", 1),
        ("uv pip compile --no-emit-index-url", 0),
        (f"read more at {ADDRESS}", 0),
    ],
)
def test_a_foreign_place_is_found(line: str, count: int) -> None:
    assert len(foreign_places(f"first\n{line}\n", "file")) == count
