"""Settings shared by every test: one seed per run, groups that stay together, and the broker of the tests."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from rigs.optional import OPTIONAL_THINGS, required_things
from rigs.results import revision

if TYPE_CHECKING:
    from rigs.kafka_world import WorldBroker

SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"
LONG_GROUPS = ("kafka", "devnet", "commands", "pipeline", "cluster", "storms", "hostile", "browser")
"""Groups that take minutes, longest first. They are begun first, so that none of them runs alone at the end."""

# No deadline: a busy machine is no defect. Every failure prints the blob that replays it.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=False)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=15)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=2_000)
settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A run in the background ignores the keyboard, and so would every command that a test starts and interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    unknown = required_things() - OPTIONAL_THINGS
    if unknown:
        raise pytest.UsageError(f"STAGEPOST_REQUIRE: {sorted(unknown)} not among {sorted(OPTIONAL_THINGS)}")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # by number of tests, which says little of their length
    # Settled before Hypothesis reads the option. Workers get only the command line's options, so they are told.
    told = getattr(config, "workerinput", {}).get("run_seed")
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = random.SystemRandom().randrange(2**32) if told is None else told


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by pytest-xdist for each worker, in the process that started the run."""
    node.workerinput["run_seed"] = node.config.option.hypothesis_seed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the tests that were measured to be slow, and those of a group, which share what is dear to start."""
    slow = frozenset(SLOW_TESTS.read_text().splitlines())
    for item in items:
        name = item.nodeid.partition("[")[0].partition("@")[0]
        if name in slow or item.get_closest_marker("xdist_group") is not None:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Return the place of a test's group: long groups, then the others, then tests without a group."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return len(LONG_GROUPS) + 1
    return LONG_GROUPS.index(mark.args[0]) if mark.args[0] in LONG_GROUPS else len(LONG_GROUPS)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run tests of a group apart: they share what is dear to start, and it has gone wrong silently before.

    Ten thousand collected tests are millions of objects that live to the end. Exempt, they cost nothing in each of the
    hundreds of garbage collections that tests ask for.
    """
    gc.collect()
    gc.freeze()
    if getattr(session.config.option, "loadgroup", False):
        apart = [
            item.nodeid
            for item in session.items
            if item.get_closest_marker("xdist_group") is not None
            and "@" not in item.nodeid.rpartition("]")[2]
        ]
        if apart:
            raise pytest.UsageError(
                f"pytest-xdist does not see the group of {apart[0]}: other versions are needed"
            )


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.option.hypothesis_seed
    return f"seed {seed} · revision {revision()} · again with: make test SEED={seed}"


@pytest.fixture(scope="session")
def run_seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for tests that draw their own randomness."""
    return int(pytestconfig.option.hypothesis_seed)


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[WorldBroker]:
    """One for all tests of a process. Those of the group "kafka" run in one process; one test of the group "cluster" starts another
    broker, so that neither group waits for the other."""
    from rigs.kafka_world import world_broker

    with world_broker() as broker:
        yield broker
