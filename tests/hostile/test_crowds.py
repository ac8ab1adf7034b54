"""Many who keep the rules, and one pool that does not: on a scale that fits here; `make soak` has the full one."""

from __future__ import annotations

import pytest

from tests.hostile.crowd import TooFewDescriptors, allow_descriptors, gathering
from tests.hostile.pool_flood import flooding

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storms")]


def test_open_connections_are_all_answered_and_told() -> None:
    figure, faults = gathering(programs=300, peers=64)

    assert not faults, f"{faults}\n{figure}"


def test_a_valid_flood_by_one_pool_is_limited_and_nobody_else_is_refused() -> None:
    figure, faults = flooding(seconds=3)

    assert not faults, f"{faults}\n{figure}"


def test_a_machine_that_allows_too_few_open_files_is_named() -> None:
    with pytest.raises(TooFewDescriptors, match="a process may open"):
        allow_descriptors(2**40)
