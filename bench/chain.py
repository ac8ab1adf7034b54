"""How fast the embedded chain is: blocks in a second, and how long a block takes to its certificate and to the masterchain.

Seven validators with their durable stores over TCP on the loopback address: all in one process, and each a process of
its own. A block's time begins when its leader has built it, and is taken by the leader.

From the stored blocks of the first run come proofs of ends: their sizes, and what the check of one alone and
of a further one of the same block costs a verifier, in signature checks (V). The size of a shard's state is read from blocks that are made one after the other.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import Figure, Step
from bench.measure import measure as measure_step
from bench.steps import unit
from bench.whole_path import Reading
from rigs.chain_messages import some_primes
from rigs.chain_processes import (
    ChainNode,
    ChainProcess,
    Orders,
    network_genesis,
    numbered_message,
    say,
)
from rigs.line_reports import Report
from rigs.ports import free_ports
from rigs.validator_processes import until
from stagepost.chain.genesis import Genesis, first_states
from stagepost.chain.history import KeptBlock
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.messages import read_message
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.store import open_chain_store
from stagepost.chain.proofs.proof_form import EndKind, ExecutedEnd, MessageProof
from stagepost.chain.proofs.proof_making import ProofMaker, assembled
from stagepost.chain.proofs.proof_rules import ProofVerifier
from stagepost.chain.shard_blocks import make_block
from stagepost.chain.snapshots import restored

VALIDATORS = 7
IDLE_EVERY_S = 0.3
IDLE_MESSAGES = 60
LOADED_RATE = 100
LOADED_S = 6.0
WARM_UP_MESSAGES = 5
SETTLED_WITHIN_S = 60.0
CERTIFICATE_P99_MS_MAX = 150.0
MASTER_P99_MS_MAX = 400.0
PROOFS_CHECKED = 200
PROOF_BYTES_MAX = 8 * 1024
"""Bytes of a proof beside those of the message, at most, for seven validators and no change of configuration."""

STATE_S = 200
STATE_ACCOUNTS = 1_000
BEGUN_MS = 1_800_000_000_000

GENESIS_FILE = "genesis.tl"

Times = dict[str, Any]
Say = Callable[[Sequence[int]], None]
Count = Callable[[], int]


def measure() -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    readings: list[Reading] = []
    missed: list[str] = []
    for name, run in (("in one process", in_one_process), ("as processes", as_processes)):
        with TemporaryDirectory() as folder:
            times, idle, loaded = asyncio.run(run(Path(folder)))
            of_proofs, large = read_proofs(Path(folder)) if run is in_one_process else ([], [])
        of_run, faults = read(name, times, idle, loaded)
        readings += of_run + of_proofs
        missed += faults + large
    return readings + read_state_size(), missed


async def in_one_process(folder: Path) -> tuple[list[Times], tuple[float, float], tuple[float, float]]:
    report = Report(folder / "report")
    nodes = [ChainNode(orders, report) for orders in all_orders(folder)]
    for node in reversed(nodes):
        await node.start()
    try:
        await until(lambda: all(node.is_ready for node in nodes), "all validators are ready")

        def say_all(numbers: Sequence[int]) -> None:
            for node in nodes:
                for number in numbers:
                    node.add_message(number)

        idle, loaded = await load(say_all, lambda: min(len(node.pool.included) for node in nodes))
        return [node.watch.facts() for node in nodes], idle, loaded
    finally:
        for node in nodes:
            await node.close()


async def as_processes(folder: Path) -> tuple[list[Times], tuple[float, float], tuple[float, float]]:
    processes = [ChainProcess(orders) for orders in all_orders(folder)]
    try:
        for process in processes:
            process.start()
        await until(
            lambda: all("Started" in process.lines() for process in processes), "all validators are ready"
        )
        idle, loaded = await load(
            lambda numbers: say(folder, numbers), lambda: min(process.included() for process in processes)
        )
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.stop()
    times: list[Times] = []
    for process in processes:
        found = process.facts()["times"]
        assert isinstance(found, dict)
        times.append(found)
    return times, idle, loaded


def all_orders(folder: Path) -> list[Orders]:
    ports = free_ports(VALIDATORS)
    genesis_ms = int(time.time() * 1_000)
    genesis = network_genesis(VALIDATORS, genesis_ms, Orders(0, 0, "", 0).lifetime_ms)
    (folder / GENESIS_FILE).write_bytes(genesis.encode())
    return [
        Orders(number, VALIDATORS, str(folder), genesis_ms, ports=ports, keeps_all=False)
        for number in range(VALIDATORS)
    ]


async def load(say_all: Say, count: Count) -> tuple[tuple[float, float], tuple[float, float]]:
    """When nothing else is asked of them, and when there is always something: from when to when."""
    say_all(range(WARM_UP_MESSAGES))
    said = WARM_UP_MESSAGES
    await until(lambda: count() >= WARM_UP_MESSAGES, "the first blocks", SETTLED_WITHIN_S)
    idle_from = time.perf_counter()
    for _ in range(IDLE_MESSAGES):
        say_all([said])
        said += 1
        await asyncio.sleep(IDLE_EVERY_S)
    await until(lambda: count() >= said, "all messages when idle", SETTLED_WITHIN_S)
    idle = idle_from, time.perf_counter()
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < LOADED_S:
        due = int(passed * LOADED_RATE) + WARM_UP_MESSAGES + IDLE_MESSAGES
        if due > said:
            say_all(range(said, due))
            said = due
        await asyncio.sleep(0.02)
    loaded = began, time.perf_counter()
    await until(lambda: count() >= said, "all messages under load", SETTLED_WITHIN_S)
    return idle, loaded


def read(
    name: str, times: Sequence[Times], idle: tuple[float, float], loaded: tuple[float, float]
) -> tuple[list[Reading], list[str]]:
    readings: list[Reading] = []
    missed: list[str] = []
    where = f"{VALIDATORS} validators {name}"
    for kind, what, limit in (
        ("to_certificate", "to the certificate", CERTIFICATE_P99_MS_MAX),
        ("to_master", "to the masterchain", MASTER_P99_MS_MAX),
    ):
        for state, (begin, end) in (("idle", idle), ("loaded", loaded)):
            took = [seconds * 1e3 for one in times for began, seconds in one[kind] if begin <= began < end]
            steps = quantiles(took, n=100, method="inclusive")
            readings += [
                Reading(f"{where}, {state}: {what}, p50", steps[49], "ms"),
                Reading(f"{where}, {state}: {what}, p99", steps[98], "ms"),
            ]
            if state == "idle" and steps[98] > limit:
                missed.append(
                    f"missed: {where}: a block took {steps[98]:.0f} ms {what} at the 99th percentile, "
                    f"the target is {limit:.0f} ms"
                )
    seconds = loaded[1] - loaded[0]
    for kind, what in (("blocks", "shard blocks"), ("master_blocks", "master blocks")):
        final = max(sum(loaded[0] <= at < loaded[1] for at in one[kind]) for one in times)
        readings.append(Reading(f"{where}, loaded: {what}", final / seconds, "/s"))
    return readings, missed


def read_proofs(folder: Path) -> tuple[list[Reading], list[str]]:
    """Make proofs of messages that the stored chain holds, and of others that expired unsent, and check them."""
    genesis = Genesis.decode((folder / GENESIS_FILE).read_bytes())
    maker = ProofMaker(genesis)
    expired_s = genesis.time_ms // 1_000 + 1
    for number in range(PROOFS_CHECKED):
        maker.expect(read_message(numbered_message(number, genesis.time_ms).body, takes_cells=False))
        unsent = some_primes(number, salt=number, expires_at_s=expired_s)
        maker.expect(read_message(unsent.body, takes_cells=False))
    store = open_chain_store(folder / "validator-0", genesis)

    def take(kept: KeptBlock, applied: AppliedMaster | None) -> None:
        maker.take(final_block(kept), applied)

    restored(genesis, store, on_master=take)
    asyncio.run(store.close())
    proofs: dict[EndKind, list[MessageProof]] = {kind: [] for kind in (EndKind.EXECUTED, EndKind.NEVER)}
    for made in maker.ready():
        proof = assembled(made.own, made.sealed.part, maker.seals.key_blocks.get)
        proofs[proof.kind].append(proof)
    readings: list[Reading] = []
    missed: list[str] = []
    for kind, found in proofs.items():
        where = f"{VALIDATORS} validators, proof of {kind.value}"
        sizes = sorted(len(one.encode()) - own_bytes(one) for one in found)
        verifier = ProofVerifier(genesis)
        verifier.check(found[0])
        of_block = [one for one in found if one.master == found[0].master]
        alone = in_checks(genesis, found)
        further = in_checks(genesis, of_block, verifier)
        readings += [
            Reading(f"{where}: size beside the message, p50", sizes[len(sizes) // 2], "bytes"),
            Reading(f"{where}: size beside the message, most", sizes[-1], "bytes"),
            Reading(f"{where}: check alone", alone.ratio, "V"),
            Reading(f"{where}: check alone", alone.ratio * alone.unit_us / 1e3, "ms"),
            Reading(f"{where}: check of a further one of the block", further.ratio, "V"),
        ]
        if sizes[-1] > PROOF_BYTES_MAX:
            missed.append(f"missed: {where} has {sizes[-1]} bytes, the target is {PROOF_BYTES_MAX}")
    return readings, missed


def read_state_size(seconds: int = STATE_S) -> list[Reading]:
    """Size of a shard's state under load, from so many seconds of it: the memory of messages grows with their number, for
    the time that the configuration says.
    """
    genesis = network_genesis(1, BEGUN_MS, 600_000)
    first = first_states(genesis)
    state, view, configuration = first.shard, first.master.view, genesis.configuration
    session = first.master.shards[0].session.session_id
    empty = len(state.encode())
    began = time.process_time()
    tracemalloc.start()
    for second in range(1, seconds + 1):
        now_ms = BEGUN_MS + second * 1_000
        messages = [
            some_primes(number % STATE_ACCOUNTS, salt=number, expires_at_s=now_ms // 1_000 + 60)
            for number in range(second * LOADED_RATE, (second + 1) * LOADED_RATE)
        ]
        made, _ = make_block(state, session, configuration, view, messages, now_ms)
        state = made.state
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    count = seconds * LOADED_RATE
    stored = (len(state.encode()) - empty) / count
    remembered_s = (configuration.expiry_ahead_max_ms + configuration.proof_window_ms) / 1_000
    in_full = LOADED_RATE * remembered_s
    name = f"state at {LOADED_RATE} messages/s, remembered for {remembered_s:.0f} s"
    return [
        Reading(f"{name}: a message, stored", stored, "B"),
        Reading(f"{name}: a message, in memory", in_memory / count, "B"),
        Reading(f"{name}: all, stored", stored * in_full / 1e6, "MB"),
        Reading(f"{name}: all, in memory", in_memory / count * in_full / 1e6, "MB"),
        Reading(f"{name}: processor time of a block", (time.process_time() - began) / seconds * 1e3, "ms"),
    ]


def own_bytes(proof: MessageProof) -> int:
    """Return how many bytes of the proof are those of the message itself."""
    return 0 if isinstance(proof.end, ExecutedEnd) else len(proof.end.message)


def in_checks(
    genesis: Genesis, proofs: Sequence[MessageProof], verifier: ProofVerifier | None = None
) -> Figure:
    """Measure the processor time of a proof's check, in signature checks: each by a new verifier, or all by the given one."""

    def repeat(count: int) -> None:
        for _, proof in zip(range(count), cycle(proofs), strict=False):
            (verifier or ProofVerifier(genesis)).check(proof)

    return measure_step(Step("check", repeat), unit())
