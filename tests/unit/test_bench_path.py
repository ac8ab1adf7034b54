"""The bench of the whole path runs, counts every message, and keeps the budgets' names and limits."""

from __future__ import annotations

import os

import pytest

from bench.latency import Latency
from bench.run import latency_readings, table_of_readings
from bench.traffic import MESSAGE_BYTES, Signers
from bench.whole_path import MESSAGES_PER_ROUND, PATH_STEPS, PEERS, on_one_core, run_node
from stagepost.dmq.node.config import PeerTargets
from stagepost.dmq.validation import check_proof

PATH_BUDGETS = {
    "path, replies of 10": 1.5,
    "path, replies of 10, durable": 2.1,
    "path, one by one": 2.3,
    "path, one by one, durable": 2.9,
}


def test_every_budget_of_the_whole_path_has_its_run() -> None:
    assert {step.name: step.limit for step in PATH_STEPS if step.limit is not None} == PATH_BUDGETS


def test_rows_with_a_limit_have_one_core_and_the_peers_that_a_node_has() -> None:
    budgeted = [step for step in PATH_STEPS if step.limit is not None]

    assert PeerTargets().active == PEERS
    assert all(step.peers == PEERS and not step.all_cores and not step.sockets for step in budgeted)
    assert MESSAGES_PER_ROUND % (PEERS * 10) == 0, "each peer brings the same number of replies"
    (option, core) = on_one_core()
    assert option == "--processor"
    assert int(core) in os.sched_getaffinity(0)


@pytest.mark.parametrize("way", [[], ["--durable"], ["--sockets"]])
def test_a_node_under_load_shows_every_message_to_every_program(way: list[str]) -> None:
    few = ["--warm-up", "40", "--rounds", "2", "--per-round", "40", "--suppliers", "2", "--programs", "3"]

    result = run_node(*few, *way)

    # The run itself fails if a message is missing from the node, and does not end before all are shown.
    assert result["messages"] == 80
    assert result["ratio"] > 0


def test_messages_of_the_bench_have_one_size_and_come_from_many_pools() -> None:
    signers = Signers(pools=3)

    messages = [signers.sign(number) for number in range(6)]

    assert {len(message.raw) for message in messages} == {MESSAGE_BYTES}
    assert len({message.message_id for message in messages}) == 6
    assert len({message.pool_id for message in messages}) == 3
    assert all(check_proof(message) is None for message in messages)


def test_readings_stand_in_a_table_with_their_units() -> None:
    shown = table_of_readings(latency_readings([Latency("one node", 1.5, 20.25, 300)]))

    assert "submit to notify, one node, p50" in shown
    assert "20.25 ms" in shown
