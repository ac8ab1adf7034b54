"""The faults of a run and their times: drawn from one seed, repaired in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from random import Random

from stagepost.simulation.link import LinkSettings


class FaultKind(Enum):
    """Kind of fault. The value is the word in a run's log."""

    PARTITION = "partition"  # two hosts lose each other
    SPLIT = "split"  # two halves lose each other
    ISOLATE = "isolate"  # one host loses all others
    FLAP = "flap"  # connections between two hosts are reset
    SLOW_LINK = "slow link"
    LOSSY_LINK = "lossy link"
    CRASH = "crash"  # the process is killed, and started again
    POWER_CUT = "power cut"  # the host is silent, and started again
    STOP = "stop"  # an orderly end, and a start
    DISK_FULL = "disk full"  # writes fail for a while


SLOW = LinkSettings(latency_s=0.8, jitter_s=0.4, bytes_per_s=20_000, window_bytes=20_000)
LOSSY = LinkSettings(latency_s=0.05, jitter_s=0.05, loss_chance=0.15)
BADLY_LOSSY = LinkSettings(latency_s=0.1, jitter_s=0.1, loss_chance=0.4, cut_chance=0.6)


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of `nodes`, given by name; faults between hosts name `pairs` of them. It begins at `at_s` and is
    repaired at `until_s`."""

    at_s: float
    until_s: float
    kind: FaultKind
    nodes: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    link: LinkSettings | None = None

    def __str__(self) -> str:
        who = " ".join(self.nodes) or " ".join(f"{one}-{other}" for one, other in self.pairs)
        return f"{self.at_s:.2f} s to {self.until_s:.2f} s: {self.kind.value} {who}"


def fault_schedule(
    random: Random,
    nodes: Sequence[str],
    duration_s: float,
    count: int,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
) -> list[Fault]:
    """Return `count` faults within `duration_s`, in order of time. Node faults of one node do not overlap."""
    faults: list[Fault] = []
    busy_until_s = dict.fromkeys(nodes, 0.0)
    for at_s in sorted(random.uniform(0, duration_s) for _ in range(count)):
        kind = random.choice(kinds)
        until_s = min(duration_s, at_s + random.choice((0.5, 5, 20, 45)) * random.uniform(0.3, 1.0))
        fault = _fault(random, nodes, kind, at_s, until_s, busy_until_s)
        if fault is not None:
            faults.append(fault)
    return faults


def _fault(
    random: Random,
    nodes: Sequence[str],
    kind: FaultKind,
    at_s: float,
    until_s: float,
    busy_until_s: dict[str, float],
) -> Fault | None:
    match kind:
        case FaultKind.CRASH | FaultKind.POWER_CUT | FaultKind.STOP | FaultKind.DISK_FULL:
            node = random.choice(nodes)
            if busy_until_s[node] > at_s:
                return None
            busy_until_s[node] = until_s + 1
            return Fault(at_s, until_s, kind, nodes=(node,))
        case FaultKind.SPLIT:
            half = set(random.sample(list(nodes), max(1, len(nodes) // 2)))
            pairs = [pair for pair in combinations(nodes, 2) if (pair[0] in half) != (pair[1] in half)]
            return Fault(at_s, until_s, kind, pairs=tuple(pairs))
        case FaultKind.ISOLATE:
            alone = random.choice(nodes)
            return Fault(
                at_s, until_s, kind, pairs=tuple((alone, other) for other in nodes if other != alone)
            )
        case FaultKind.SLOW_LINK:
            return Fault(at_s, until_s, kind, pairs=(_pair(random, nodes),), link=SLOW)
        case FaultKind.LOSSY_LINK:
            link = random.choice((LOSSY, BADLY_LOSSY))
            return Fault(at_s, until_s, kind, pairs=(_pair(random, nodes),), link=link)
        case FaultKind.PARTITION | FaultKind.FLAP:
            return Fault(at_s, until_s, kind, pairs=(_pair(random, nodes),))


def _pair(random: Random, nodes: Sequence[str]) -> tuple[str, str]:
    one, other = random.sample(list(nodes), 2)
    return one, other
