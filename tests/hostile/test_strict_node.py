"""A node that lets few in and takes little: what is above its limits is refused, with the reason, and harms nobody else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.hostile.planted import planted
from tests.hostile.strict_node import (
    SETTINGS,
    WITHOUT_A_GAP,
    Scenario,
    a_stranger_names_an_address_of_this_machine,
    against,
    an_address_breaks_a_rule_and_comes_again,
    more_comes_than_the_mempool_holds,
    one_address_wants_all_connections,
    one_pool_talks_too_much,
    one_pool_wants_the_whole_mempool,
)

pytestmark = pytest.mark.xdist_group("storms")


def test_pool_that_talks_too_much_is_refused_and_others_are_not(tmp_path: Path) -> None:
    against(tmp_path, one_pool_talks_too_much)


def test_full_mempool_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    against(tmp_path, more_comes_than_the_mempool_holds)


def test_one_pool_gets_its_share_of_the_mempool_and_others_the_rest(tmp_path: Path) -> None:
    against(tmp_path, one_pool_wants_the_whole_mempool, settings=WITHOUT_A_GAP)


def test_one_address_gets_so_many_connections_and_no_more(tmp_path: Path) -> None:
    against(tmp_path, one_address_wants_all_connections)


def test_address_that_broke_a_rule_is_kept_out_for_a_while(tmp_path: Path) -> None:
    against(tmp_path, an_address_breaks_a_rule_and_comes_again)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_shared_addresses_of_this_machine_are_dialled_only_where_that_is_allowed(
    tmp_path: Path, is_allowed: bool
) -> None:
    scenario = partial(a_stranger_names_an_address_of_this_machine, is_dialled=is_allowed)
    against(tmp_path, scenario, settings=f"{SETTINGS}private_peers = {str(is_allowed).lower()}\n")


ONE_GAP_FOR_ALL_POOLS = """
    from stagepost.dmq.pool_memory import PoolMemories
    check, commit = PoolMemories.check_gap, PoolMemories.commit
    PoolMemories.check_gap = lambda memories, pool_id, mono: check(memories, bytes(28), mono)
    PoolMemories.commit = lambda memories, pool_id, *rest: commit(memories, bytes(28), *rest)
"""
NO_LIMIT_ON_THE_MEMPOOL = """
    from stagepost.dmq.mempool import Mempool
    Mempool.check_limits = lambda *_, **__: None
"""
NO_LIMIT_PER_ADDRESS = """
    from stagepost.ground.net.admission import Admission
    enter = Admission.enter
    def enter_from_anywhere(admission, source):
        admission.exempt |= {source}
        return enter(admission, source)
    Admission.enter = enter_from_anywhere
"""
FORGETS_MISDEEDS_AT_THE_END_OF_A_CONNECTION = """
    from stagepost.dmq.node.peer_book import PeerBook
    PeerBook.penalise_host = lambda book, *_: None
"""


@pytest.mark.parametrize(
    ("code", "scenario"),
    [
        pytest.param(ONE_GAP_FOR_ALL_POOLS, one_pool_talks_too_much, id="one gap for all pools"),
        pytest.param(
            NO_LIMIT_ON_THE_MEMPOOL, more_comes_than_the_mempool_holds, id="no limit on the mempool"
        ),
        pytest.param(NO_LIMIT_ON_THE_MEMPOOL, one_pool_wants_the_whole_mempool, id="no share of the mempool"),
        pytest.param(NO_LIMIT_PER_ADDRESS, one_address_wants_all_connections, id="no limit per address"),
        pytest.param(
            FORGETS_MISDEEDS_AT_THE_END_OF_A_CONNECTION,
            an_address_breaks_a_rule_and_comes_again,
            id="misdeeds forgotten at the end of a connection",
        ),
    ],
)
def test_a_defect_planted_in_a_limit_is_noticed(tmp_path: Path, code: str, scenario: Scenario) -> None:
    settings = WITHOUT_A_GAP if scenario is one_pool_wants_the_whole_mempool else SETTINGS
    with pytest.raises(AssertionError):
        against(tmp_path, scenario, environment=planted(tmp_path / "defect", code), settings=settings)
