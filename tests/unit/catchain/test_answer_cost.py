"""A query costs what its answer costs, however long the graph is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

import pytest

from rigs.catchain_keys import public_key_of
from stagepost.catchain.block import Block, HashVersion
from stagepost.catchain.catching_up import DIFFERENCE_BLOCKS_MAX, BlockSync, SyncOptions
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.queries import Difference, GetDifference, decode_answer

SIZE = 4
SHORT, LONG = 200, 5_000


def grown(height: int) -> BlockSync:
    """Return the exchange of a member that has `height` blocks of member 1."""
    graph = Graph(
        bytes(32),
        [public_key_of(one) for one in range(SIZE)],
        GraphRules(),
        verify=lambda key, message, signature: True,
    )
    previous = graph.top(1).reference
    for number in range(height):
        block = Block(graph.incarnation, 1, number + 1, previous, (), bytes(64), b"%d" % number)
        vertex, _ = graph.receive(block)
        graph.stored(vertex)
        previous = block.reference(HashVersion.WITH_REFERENCES)
    assert graph.top(1).height == height
    return BlockSync(graph, 0, Random(1), 0.0, SyncOptions(), range(SIZE), is_starting=False)


def lines_of(act: Callable[[], object]) -> int:
    """Return how many lines of Python run in `act`."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("asked_from", ["nothing", "all but one"])
def test_an_answer_costs_the_same_in_a_long_graph_as_in_a_short_one(asked_from: str) -> None:
    costs: list[int] = []
    for height in (SHORT, LONG):
        sync = grown(height)
        have = 0 if asked_from == "nothing" else height - 1
        query = GetDifference((0, have, 0, 0))
        costs.append(lines_of(lambda sync=sync, query=query: sync.answer(query, 2)))  # type: ignore[misc]
        blocks, answer = sync.answer(query, 2)
        given = min(DIFFERENCE_BLOCKS_MAX, height - have)
        assert [block.height for block in blocks] == list(range(have + 1, have + 1 + given))
        assert decode_answer(answer) == Difference((0, have + given, 0, 0))
    assert costs[1] == costs[0]
