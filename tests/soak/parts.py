"""The parts of `make soak` by name. A new one is a function from a `Run` to results, and a row in `PARTS`."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rigs.results import OWN_COUNT, Result, result
from tests.soak.agreement_runs import PROMISES as AGREEMENT_PROMISES
from tests.soak.agreement_runs import agree, keep_pace
from tests.soak.authentication_runs import keys, ways_in
from tests.soak.backup_runs import backups
from tests.soak.chain_runs import PROMISES as CHAIN_PROMISES
from tests.soak.chain_runs import chain
from tests.soak.change_runs import changes, live_changes
from tests.soak.clock_runs import clocks
from tests.soak.collector_runs import collect
from tests.soak.container_runs import container
from tests.soak.day_runs import day
from tests.soak.delivery_runs import kill_publisher
from tests.soak.delivery_world_runs import simulate_delivery
from tests.soak.disk_runs import disks
from tests.soak.end_runs import ends, ends_of_primes, forged_proofs, storms_of_primes
from tests.soak.fuzz_runs import fuzz, guided, signed_bits
from tests.soak.hour_runs import hour
from tests.soak.kafka_runs import kill_broker
from tests.soak.month_runs import five_years, month
from tests.soak.mutant_runs import mutants
from tests.soak.node_runs import kill, simulate
from tests.soak.observatory_runs import observatory
from tests.soak.pipeline_runs import kill_driver, kill_writer
from tests.soak.power_runs import power_cuts
from tests.soak.primes_runs import PROMISES as PRIMES_PROMISES
from tests.soak.primes_runs import primes, primes_of_processes
from tests.soak.restart_runs import starts, stops
from tests.soak.runs import Run
from tests.soak.session_switch_runs import SESSION_PROMISES, lose_quorums, switch_sessions
from tests.soak.storage_runs import kill_storage
from tests.soak.storm_runs import storms
from tests.soak.stranger_runs import strangers
from tests.soak.suite_runs import SUITE_PROMISES, suite
from tests.soak.topic_runs import cut_topic_power, kill_topic_writer


@dataclass(frozen=True)
class Part:
    """`promises` are the ids that it always gives a result for: if it breaks down, they have failed."""

    name: str
    promises: tuple[str, ...]
    play: Callable[[Run], Iterator[Result]]


PARTS = (
    Part("fuzz", ("N1", "N2"), fuzz),
    Part("guided", (), guided),
    Part("signed-bits", ("S1",), signed_bits),
    Part("simulation", ("N10", "N11", "W1"), simulate),
    Part("kill", ("D1",), kill),
    Part("kill-publisher", ("D5",), kill_publisher),
    Part("kill-topic", ("D1",), kill_topic_writer),
    Part("kill-driver", ("P1", "P2"), kill_driver),
    Part("kill-writer", ("P1",), kill_writer),
    Part("observatory", ("P1",), observatory),
    Part("kill-broker", ("P3",), kill_broker),
    Part("kill-storage", ("P2",), kill_storage),
    Part("topic-power-cuts", ("D2",), cut_topic_power),
    Part("delivery-worlds", ("D5", "D6", "D7", "D8"), simulate_delivery),
    Part("agreement", AGREEMENT_PROMISES, agree),
    Part("agreement-pace", ("B8",), keep_pace),
    Part("sessions", SESSION_PROMISES, switch_sessions),
    Part("quorum", ("B9",), lose_quorums),
    Part("chain", CHAIN_PROMISES, chain),
    Part("primes", PRIMES_PROMISES, primes),
    Part("primes-processes", ("B3",), primes_of_processes),
    Part("ends", ("B10",), ends),
    Part("primes-ends", ("B10",), ends_of_primes),
    Part("primes-storms", ("B10",), storms_of_primes),
    Part("forged-proofs", ("B10",), forged_proofs),
    Part("changes", ("B10",), changes),
    Part("live-changes", ("B10",), live_changes),
    Part("power-cuts", ("D2",), power_cuts),
    Part("storms", ("N3", "N4", "N5", "N6", "N7", "N8"), storms),
    Part("strangers", ("N3",), strangers),
    Part("disks", ("D4",), disks),
    Part("clocks", ("S4", "S5"), clocks),
    Part("authentication", ("S2", "S3", "S4", "S6"), ways_in),
    Part("backups", ("S3", "B6"), backups),
    Part("keys", ("S8", "S9", "S10"), keys),
    Part("stops", ("O4", "S3"), stops),
    Part("starts", ("O3",), starts),
    Part("day", ("O1",), day),
    Part("hour", ("O1",), hour),
    Part("month", ("O1",), month),
    Part("five-years", ("O1",), five_years),
    Part("collector", (), collect),
    Part("container", (), container),
    Part("suite", SUITE_PROMISES, suite),
    Part("mutants", ("O6",), mutants),
)
PART_NAMES = tuple(part.name for part in PARTS)


def play(part: Part, run: Run) -> Iterator[Result]:
    """The results of a part; one that breaks down has broken its promises, and the parts after it still run."""
    told: set[object] = set()
    try:
        for one in part.play(run):
            told.add(one["promise"])
            yield one
        missing, fault = "gave no result", ""
    except Exception as error:
        missing, fault = f"broke down: {type(error).__name__}", traceback.format_exc()
    left = [promise for promise in part.promises if promise not in told]
    if run.promises:
        left = [promise for promise in left if promise in run.promises]
    if fault:
        left = left or list(part.promises) or [part.name]
    elif run.named_scale == OWN_COUNT or run.share != (1, 1):
        left = []  # a small try, or a share, need not come by everything
    for promise in left:
        text = f"{part.name}, {promise}: {missing}\n{fault}".rstrip()
        yield result(promise, part.name, missing, faults=[text], seed=run.seed)
