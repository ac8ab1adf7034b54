"""What REMP costs: the same chain with the same messages, given to the collators directly, in one process.

Without REMP there is no full node, no queue, no agreement on messages and no receipt: every validator simply has every
message, which nobody would see to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.whole_path import Reading
from rigs.chain_processes import ChainNode, Orders
from rigs.line_reports import Report
from rigs.ports import free_ports
from rigs.validator_processes import until
from stagepost.chain.master_state import PlanKind
from stagepost.chain.messages import read_message
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.load import look_less_often
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard

WHOLE = Shard(0, 1 << 63)
WARM_UP_MESSAGES = 50
SPLIT_AFTER_MS = 300
WITHIN_S = 40.0


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a message, gross and without the idle cost of the network, and shard blocks per second that
    hold messages.
    """

    gross_s: float
    net_s: float
    blocks_per_s: float


def cost_of(cpu_s: float, lasted_s: float, idle: float, messages: int, blocks: int) -> Cost:
    """Return the cost of `messages` that used `cpu_s` in `lasted_s`; `idle` is processor seconds per idle second.

    The idle cost counts for all of `lasted_s`: the network does its idle work also while the last messages settle.
    """
    return Cost(cpu_s / messages, (cpu_s - idle * lasted_s) / messages, blocks / lasted_s)


def ratios(with_remp: Cost, without: Cost) -> list[Reading]:
    return [
        Reading("without REMP: processor time of a message, gross", without.gross_s * 1e3, "ms"),
        Reading("without REMP: processor time of a message, net", without.net_s * 1e3, "ms"),
        Reading("without REMP: shard blocks with messages", without.blocks_per_s, "/s"),
        Reading("with REMP: shard blocks with messages", with_remp.blocks_per_s, "/s"),
        Reading("blocks with REMP against without", with_remp.blocks_per_s / without.blocks_per_s, "times"),
        Reading(
            "gross processor time with REMP against without", with_remp.gross_s / without.gross_s, "times"
        ),
        Reading("net processor time with REMP against without", with_remp.net_s / without.net_s, "times"),
    ]


def without_remp(validators: int, messages: Sequence[bytes], rate: float, idle_s: float) -> Cost:
    """Return the cost of `messages` at `rate` per second, after `idle_s` seconds in which the chain only ticks."""
    with TemporaryDirectory(prefix="stagepost-") as folder:
        read = [read_message(one, takes_cells=False).external for one in messages]
        return asyncio.run(_without_remp(Path(folder), validators, read, rate, idle_s))


async def _without_remp(
    folder: Path, validators: int, messages: Sequence[ExternalMessage], rate: float, idle_s: float
) -> Cost:
    ports = free_ports(validators)
    genesis_ms = int(time.time() * 1_000)
    nodes = [
        ChainNode(
            Orders(number, validators, str(folder), genesis_ms, ports=ports, keeps_all=False),
            Report(folder / "report"),
        )
        for number in range(validators)
    ]
    try:
        for node in reversed(nodes):
            await node.start()
        await until(lambda: all(node.is_ready for node in nodes), "all validators are ready")
        at_ms = int(time.time() * 1_000) + SPLIT_AFTER_MS
        for node in nodes:
            node.validator.plans[:] = [Plan(PlanKind.SPLIT, WHOLE, at_ms)]
        await until(
            lambda: all(len(node.validator.ledger.master.shards) == 2 for node in nodes),
            "two shards",
            WITHIN_S,
        )
        warm_up, measured = messages[:WARM_UP_MESSAGES], messages[WARM_UP_MESSAGES:]
        await _send(nodes, warm_up, rate)
        look_less_often()
        idle_from = time.process_time()
        await asyncio.sleep(idle_s)
        idle = (time.process_time() - idle_from) / idle_s
        began, cpu_from = time.perf_counter(), time.process_time()
        await _send(nodes, measured, rate)
        lasted, cpu = time.perf_counter() - began, time.process_time() - cpu_from
        blocks = {block_id for node in nodes for block_id in node.pool.blocks}
        return cost_of(cpu, lasted, idle, len(measured), len(blocks))
    finally:
        for node in nodes:
            await node.close()


async def _send(nodes: Sequence[ChainNode], messages: Sequence[ExternalMessage], rate: float) -> None:
    """At an even pace, to everybody; then until everybody has all of them in final blocks."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for node in nodes:
        node.pool.blocks.clear()
    for number, message in enumerate(messages):
        delay_s = begin + number / rate - loop.time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        for node in nodes:
            node.add_external(message)
    last = {message.message_id for message in messages}
    await until(
        lambda: all(last <= node.pool.included.keys() for node in nodes), "all messages are final", WITHIN_S
    )
