"""Memory of a graph: it stays within what rule A counts for its blocks, also with a hundred members; and what a block rests
on is told right by the rows that hold it.
"""

from __future__ import annotations

import gc
import tracemalloc
from hashlib import sha256
from random import Random

import pytest

from stagepost.catchain.block import SIGNATURE_BYTES, Block, decode_update
from stagepost.catchain.budgets import Totals
from stagepost.catchain.covers import Covers
from stagepost.catchain.graph import Graph
from stagepost.remp.queue.records import UNSIGNED, Header, Record, amounts_in, date_rules, encode_payload
from stagepost.remp.queue.state import SKEW_MS

PER_COUNTED_MAX = 2.0
"""Bytes of memory for each byte that rule A counts, at most, up to a hundred members. `docs/decisions/0025` rests on it."""

START_MS, ROUND_MS = 1_000_000, 3_000


class Chronicle:
    """A graph in which all members write blocks by turns, with true totals; signatures are not looked at."""

    def __init__(self, size: int) -> None:
        keys = [sha256(b"member %d" % number).digest() for number in range(size)]
        self.graph = Graph(bytes(32), keys, verify=lambda *one: True, dates=date_rules(0, SKEW_MS))
        self.counted = 0
        self.blocks = 0
        self._random = Random(1)
        self._totals = [Totals()] * size

    def write(self, source: int, records: list[Record], date_ms: int) -> None:
        graph = self.graph
        number = self.blocks
        before = self._totals[source]
        size = len(encode_payload([before, *records], number))
        amounts = amounts_in([before, *records], size)
        self._totals[source] = before.plus(amounts, date_ms)
        payload = encode_payload([self._totals[source], *records], number)
        own = graph.top(source)
        tops = [graph.top(other) for other in range(graph.size) if other != source]
        tops = [one for one in tops if one.height and not one.is_covered_by(own)]
        newest = [one for one in tops if not any(one is not two and one.is_covered_by(two) for two in tops)]
        chosen = sorted(newest[: graph.rules.dependencies_max], key=lambda one: one.source)
        block = Block(
            bytes(32),
            source,
            own.height + 1,
            own.reference,
            tuple(one.reference for one in chosen),
            self._random.randbytes(SIGNATURE_BYTES),
            payload,
        )
        vertex, _ = graph.receive(decode_update(block.encode()))
        assert graph.stored(vertex).blamed == []
        self.blocks += 1
        self.counted += amounts[2]

    def header(self) -> Header:
        one = self._random.randbytes
        return Header(one(32), one(32), 0, one(32), one(32), 0, 1, START_MS, UNSIGNED)


@pytest.mark.parametrize(("size", "rounds", "headers"), [(4, 60, 0), (4, 15, 40), (100, 4, 0)])
def test_a_graph_takes_at_most_twice_what_rule_a_counts(size: int, rounds: int, headers: int) -> None:
    chronicle = Chronicle(size)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(rounds):
            for source in range(size):
                records: list[Record] = [chronicle.header() for _ in range(headers)]
                chronicle.write(source, records, START_MS + number * ROUND_MS)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    taken = (after - before) / chronicle.counted
    print(f"{size} members, {chronicle.blocks} blocks: {taken:.2f} bytes for each that counts")
    assert all(chronicle.graph.top(source).height == rounds for source in range(size))
    assert taken <= PER_COUNTED_MAX


def heights(covers: Covers) -> dict[int, int]:
    assert list(covers.branches) == sorted(set(covers.branches))
    return dict(covers.items())


def test_rows_tell_the_same_as_a_mapping() -> None:
    random = Random(7)
    for _ in range(500):
        maps = [
            {random.randrange(9): random.randrange(1, 9) for _ in range(random.randrange(6))}
            for _ in range(4)
        ]
        rows = [Covers(tuple(sorted(one)), tuple(one[at] for at in sorted(one))) for one in maps]
        shared = Covers(rows[0].branches, tuple(random.randrange(1, 9) for _ in rows[0].branches))
        expected: dict[int, int] = {}
        for one in (*maps, heights(shared)):
            for branch, height in one.items():
                expected[branch] = max(height, expected.get(branch, 0))
        joined = rows[0].joined([*rows[1:], shared])
        assert heights(joined) == expected
        assert [joined.height_of(branch) for branch in range(10)] == [expected.get(at, 0) for at in range(10)]
        branch = random.randrange(9)
        assert heights(joined.raised(branch, 20)) == {**expected, branch: 20}
        assert heights(joined) == expected


def test_blocks_that_cover_the_same_branches_share_one_row() -> None:
    chronicle = Chronicle(5)
    for number in range(6):
        for source in range(5):
            chronicle.write(source, [], START_MS + number * ROUND_MS)
    rows = {id(chronicle.graph.top(source).covers.branches) for source in range(5)}
    assert len(rows) == 1
