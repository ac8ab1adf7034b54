"""What larger networks need, worked out from measured figures: `python tools/scale_plan.py` prints the tables.

    python tools/scale_plan.py --update docs/scale.md      writes them into the page, where a test looks for them

Every measured figure stands in `MEASURED`, with the command that gave it; everything else here is arithmetic. Whoever
measures again changes one line and runs the second command.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from math import ceil, log2
from pathlib import Path
from random import Random
from typing import NamedTuple

from stagepost.ground.statemachine.render import table


class Figure(NamedTuple):
    value: float
    unit: str
    command: str


BENCH = "python bench/run.py --only"
HISTORY = "python -m bench.table_history FOLDER --plan"
CLUSTER = "python bench/cluster.py --receipts 69000 --warm-up 9200"
NETWORK = "python bench/dmq_scale.py --nodes 42 --messages 600 --peers 4 8 12 20"
MEASURED = {
    # One receipt of a message that goes well, 500 bytes of JSON, on one core.
    "signature": Figure(60.0, "µs", f"{BENCH} steps"),
    "parse and check": Figure(86.0, "µs", CLUSTER),
    "to tables, embedded": Figure(152.0, "µs", CLUSTER),
    "to tables, cluster": Figure(214.0, "µs", CLUSTER),
    "receipt in a topic": Figure(752, "B", CLUSTER),
    "receipt in records": Figure(104, "B", HISTORY),
    "receipt in receipts": Figure(22, "B", HISTORY),
    "receipt in state": Figure(24, "B", HISTORY),
    "one more file, every commit": Figure(5.2, "µs", HISTORY),
    "one more file, every listing": Figure(3.3, "µs", HISTORY),
    # Seven validators and a full node, all on two cores, when both are full.
    "messages when two cores are full": Figure(300, "/s", f"{BENCH} remp"),
    # A real node with its durable store, replies of ten messages that one peer each announces, in signature checks.
    "dmq message on its whole path": Figure(2.0, "signatures", f"{BENCH} path"),
    "dmq memory of 45,000 messages": Figure(104.5, "MB", f"{BENCH} node"),
    # One node of the simulated network, to which every peer announces every message, one by one.
    "dmq message": Figure(1_535, "B", NETWORK),
    "dmq bytes in, 4 peers": Figure(1_735, "B", NETWORK),
    "dmq bytes in, 8 peers": Figure(1_898, "B", NETWORK),
    "dmq bytes in, 20 peers": Figure(2_389, "B", NETWORK),
    "dmq bytes in, idle, 20 peers": Figure(76, "B/s", NETWORK),
    "dmq message, 20 peers, no signature": Figure(1_363, "µs", NETWORK),
}
TRAFFIC = {
    # Validators: transmissions of a new message, and accept records of it, as counted by `--only remp`.
    7: (15.55, 44.64),
    13: (31.31, 161.64),
    21: (52.69, 427.24),
}

RATES = (1_000, 10_000, 100_000)
VALIDATORS = 7
STAGES = 3
"""Receipts of a validator for a message that goes well: queued, included, accepted. The full node adds two."""

BUSY = 0.6
"""How full a core may be on average, so that it catches up after a pause within as long again."""

CORES_PER_EXECUTOR = 4
BATCH_S = 5.0
POOLS = 3_000
PEERS = 20
LIFE_S = 1_800
MESSAGES_OF_A_POOL = {"one in ten minutes": 1 / 600, "thirty in half an hour, the limit": 30 / 1_800}
FILES_PER_DAY_MAX = 25
FILE_BYTES_AIM = 64 * 2**20
DAY_S = 86_400


def measured(name: str) -> float:
    return MEASURED[name].value


def receipts_per_message(validators: int = VALIDATORS) -> int:
    return STAGES * validators + 2


# The pipeline


class Plan(NamedTuple):
    rate: int
    receipts: int
    checking_cores: int
    cores: int
    executors: int
    partitions: int


def plan(rate: int, validators: int = VALIDATORS) -> Plan:
    """Partitions are a power of two and no fewer than cores, so that every core has one in every batch."""
    receipts = rate * receipts_per_message(validators)
    checking = ceil(receipts * measured("parse and check") / 1e6 / BUSY)
    cores = ceil(receipts * measured("to tables, cluster") / 1e6 / BUSY)
    return Plan(
        rate, receipts, checking, cores, ceil(cores / CORES_PER_EXECUTOR), 2 ** max(0, ceil(log2(cores)))
    )


def pipeline_table() -> str:
    rows = []
    for found in map(plan, RATES):
        topic = found.receipts * measured("receipt in a topic") / 1e6
        kept = found.receipts * receipt_bytes() * DAY_S / 1e12
        rows.append(
            (
                f"{found.rate:,}",
                f"{found.receipts:,}",
                f"{found.checking_cores:,}",
                f"{found.cores:,}",
                f"{found.executors:,}",
                f"{found.partitions:,}",
                f"{topic:,.0f} MB/s",
                f"{kept:,.2f} TB",
            )
        )
    head = (
        "messages/s",
        "receipts/s",
        "cores for checking",
        "cores in all",
        f"executors of {CORES_PER_EXECUTOR}",
        "partitions",
        "into the topic",
        "tables, a day",
    )
    return table(head, rows)


# Shards


def transmissions(validators: int) -> float:
    """Of a new message, in all: a line through what was counted for 7 and 21."""
    low, high = TRAFFIC[7][0], TRAFFIC[21][0]
    return low + (high - low) / 14 * (validators - 7)


def accept_records(validators: int) -> float:
    """Each collator tells each validator: the square of their number, by the factor that was counted for 21."""
    return TRAFFIC[21][1] / 21**2 * validators**2


def messages_per_shard(validators: int) -> float:
    """With a core for each validator, full to `BUSY`. A record's price is that of seven validators on two full cores."""
    full = measured("messages when two cores are full")
    record_s = 2 / full / (transmissions(7) + accept_records(7))
    of_one = record_s * (transmissions(validators) + accept_records(validators)) / validators
    return BUSY / of_one


def shards_table() -> str:
    rows = []
    for validators in (7, 13, 21, 60):
        per_shard = messages_per_shard(validators)
        rows.append(
            (
                str(validators),
                f"{transmissions(validators) / validators:.1f}",
                f"{accept_records(validators) / validators:.1f}",
                f"{per_shard:,.0f}",
                *(f"{ceil(rate / per_shard):,}" for rate in RATES),
            )
        )
    head = (
        "validators",
        "transmissions, each",
        "accept records, each",
        "messages/s of a shard",
        *(f"shards for {rate:,}/s" for rate in RATES),
    )
    return table(head, rows)


# Keys


def skew(messages: int, partitions: int, seed: int = 1) -> float:
    """The fullest partition of a batch over the average: ids are random, and all receipts of a message go one way."""
    random = Random(seed)
    held = Counter(random.randrange(partitions) for _ in range(messages))
    return max(held.values()) / (messages / partitions)


def keys_table() -> str:
    rows = []
    for found in map(plan, RATES):
        messages = int(found.rate * BATCH_S)
        share = hot_key_receipts() / found.receipts
        rows.append(
            (
                f"{found.rate:,}",
                f"{found.partitions:,}",
                f"{skew(messages, found.partitions):.2f}",
                f"{hot_key_receipts():,.0f}/s, {100 * share:.2g} %",
            )
        )
    head = (
        "messages/s",
        "partitions",
        f"fullest partition of a batch of {BATCH_S:g} s",
        "receipts of one message that fill a core",
    )
    return table(head, rows)


def hot_key_receipts() -> float:
    """Receipts a second of one message, replayed, that fill the core which reads its partition."""
    return 1e6 / measured("to tables, cluster")


# Compaction and files of the log

TABLES_OF_RECEIPTS = ("records", "receipts", "state")
KEPT_DAYS = 30


@cache
def rewritten(batch_bytes: int, batches: int) -> tuple[float, int]:
    """Return how often a byte is written again on average, and the files of a day, when each batch adds one file and all
    that are below the aim become as few as can be once they are more than `FILES_PER_DAY_MAX`.
    """
    small, full, moved = [], 0, 0
    for _ in range(batches):
        if batch_bytes >= FILE_BYTES_AIM:
            full += 1
            continue
        small.append(batch_bytes)
        if len(small) > FILES_PER_DAY_MAX:
            whole = sum(small)
            moved += whole
            full += whole // FILE_BYTES_AIM
            small = [whole % FILE_BYTES_AIM]
    return moved / (batches * batch_bytes), full + len(small)


def compaction_table() -> str:
    rows = []
    for found in (plan(rate) for rate in (10, 100, *RATES)):
        batch_bytes = round(found.receipts * BATCH_S * measured("receipt in records"))
        times, files = rewritten(batch_bytes, int(DAY_S / BATCH_S))
        rows.append((f"{found.rate:,}", f"{batch_bytes / 1e6:,.1f} MB", f"{times:,.1f}", f"{files:,}"))
    return table(("messages/s", "a batch", "written again", "files of a day"), rows)


def receipt_bytes() -> float:
    """Return the bytes of a receipt in all tables that hold its rows."""
    return sum(measured(f"receipt in {name}") for name in TABLES_OF_RECEIPTS)


def log_s(rate: int, days: int = KEPT_DAYS, batch_s: float = BATCH_S) -> tuple[int, float]:
    """Return the files of these tables after so many days, and the processor seconds by which their logs make a batch dearer."""
    batches = int(DAY_S / batch_s)
    sizes = [plan(rate).receipts * batch_s * measured(f"receipt in {name}") for name in TABLES_OF_RECEIPTS]
    files = days * sum(rewritten(round(size), batches)[1] for size in sizes)
    each_us = measured("one more file, every commit") + measured("one more file, every listing")
    return files, files * each_us / 1e6


def files_table() -> str:
    rows = []
    for rate in (10, 100, *RATES):
        files, seconds = log_s(rate)
        slow_files, slow_s = log_s(rate, batch_s=60.0)
        rows.append((f"{rate:,}", f"{files:,}", f"{seconds:,.1f} s", f"{slow_files:,}", f"{slow_s:,.1f} s"))
    head = (
        "messages/s",
        "files, batches of 5 s",
        "for every batch",
        "files, batches of 60 s",
        "for every batch",
    )
    return table(head, rows)


# The DMQ network


def dmq_bytes_in(peers: int) -> float:
    """For one message, of 1.5 kB: the message once, and from every peer its announcement."""
    low, high = measured("dmq bytes in, 4 peers"), measured("dmq bytes in, 20 peers")
    return low + (high - low) / 16 * (peers - 4)


def dmq_table() -> str:
    rows = []
    for name, of_pool in MESSAGES_OF_A_POOL.items():
        rate = POOLS * of_pool
        bytes_in = rate * dmq_bytes_in(PEERS) + measured("dmq bytes in, idle, 20 peers")
        signature_us = measured("signature")
        least = rate * measured("dmq message on its whole path") * signature_us / 1e6
        most = rate * (measured("dmq message, 20 peers, no signature") + signature_us) / 1e6
        held = rate * LIFE_S
        memory = held * measured("dmq memory of 45,000 messages") / 45_000
        rows.append(
            (
                name,
                f"{rate:g}",
                f"{bytes_in * 8 / 1e6:.2f} Mbit/s",
                f"{bytes_in * DAY_S / 1e9:.1f} GB",
                f"{100 * least:.2g} to {100 * most:.2g} %",
                f"{held:,.0f}",
                f"{memory:,.0f} MB",
            )
        )
    head = ("each pool sends", "messages/s", "in, and out", "a day", "of a core", "held at once", "memory")
    return table(head, rows)


def figures_table() -> str:
    rows = (
        (name, f"{found.value:,g} {found.unit}", f"`{found.command}`") for name, found in MEASURED.items()
    )
    return table(("measured", "value", "by"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "figures": figures_table,
    "pipeline": pipeline_table,
    "shards": shards_table,
    "keys": keys_table,
    "compaction": compaction_table,
    "files": files_table,
    "dmq": dmq_table,
}
_PLACE = re.compile(r"(<!-- scale_plan: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(page: str) -> str:
    """The page with every marked table as it is now."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def named(page: str) -> Iterator[str]:
    return (found[2] for found in _PLACE.finditer(page))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the tables into this page")
    path = parser.parse_args().update
    if path is None:
        print("\n\n".join(f"{name}\n\n{make()}" for name, make in TABLES.items()))
    else:
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")
