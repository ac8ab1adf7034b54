"""Answers of a cardano-node, built by another CBOR library from the rules of its encoders, and the stored vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import cbor2

VECTORS = Path(__file__).parents[2] / "vectors" / "cardano"
LENGTH_THRESHOLD = 23
"""Entries up to which the ledger's encoder writes a definite map."""
PICOSECONDS = 10**12

Stakes = tuple[int, int, int]


def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def generated_pools(count: int) -> dict[bytes, Stakes]:
    """The pools of the generator that lsq-results-stake.json describes."""
    found: dict[bytes, Stakes] = {}
    for index in range(count):
        mark = index * 7919 * 10**9 % (7 * 10**13)
        pool_id = blake2b(index.to_bytes(8, "big"), digest_size=28).digest()
        found[pool_id] = (mark, 0 if index % 10 == 0 else mark + 10**6, max(0, mark - 10**6))
    return found


def stake_answer(pools: dict[bytes, Stakes], *, is_indefinite: bool | None = None) -> bytes:
    """`[[{pool: stakes}, totals…]]`, with the map in the form that the ledger would choose, or the other."""
    if is_indefinite is None:
        is_indefinite = len(pools) > LENGTH_THRESHOLD
    entries = b"".join(
        cbor2.dumps(pool_id) + cbor2.dumps(list(stakes)) for pool_id, stakes in sorted(pools.items())
    )
    written = b"\xbf" + entries + b"\xff" if is_indefinite else _map_head(len(pools)) + entries
    totals = [max(1, sum(stakes[column] for stakes in pools.values())) for column in range(3)]
    return b"\x81\x84" + written + b"".join(map(cbor2.dumps, totals))


def _map_head(count: int) -> bytes:
    if count < 24:
        return bytes([0xA0 | count])
    return bytes([0xB8, count]) if count < 256 else b"\xb9" + count.to_bytes(2, "big")


@dataclass(frozen=True)
class LedgerState:
    """What a pretend ledger is in. Epochs of one length; the history ends `horizon` epochs after the present one."""

    magic: int = 42
    system_start_unix_s: int = 1_700_006_400
    """A midnight."""
    era: int = 6
    epoch: int = 0
    epoch_s: int = 1_000
    horizon: int = 2
    pools: tuple[tuple[bytes, Stakes], ...] = ()
    bound_elements: int = 3
    period_slots: int = 100
    peers: bytes = b"\x81\x82\x03\x83\x81\x00\x18\x2a\x9f\xff"
    """Answer to the question for all ledger peers: by default none, at the origin, of network 42."""

    def with_pools(self, pools: dict[bytes, Stakes]) -> LedgerState:
        return replace(self, pools=tuple(pools.items()))

    @property
    def epoch_end_unix_s(self) -> int:
        return self.system_start_unix_s + (self.epoch + 1) * self.epoch_s

    def system_start(self) -> bytes:
        days, rest = divmod(self.system_start_unix_s, 86_400)
        assert rest == 0
        year, day = 1970, days
        while day >= (length := 366 if year % 4 == 0 and (year % 100 or year % 400 == 0) else 365):
            year, day = year + 1, day - length
        return cbor2.dumps([year, day + 1, 0])

    def current_era(self) -> bytes:
        return cbor2.dumps(self.era)

    def epoch_number(self) -> bytes:
        return cbor2.dumps([self.epoch])

    def history(self) -> bytes:
        end = self.epoch + self.horizon
        eras = [[self._bound(0), self._bound(end), [self.epoch_s, 1000, [0, 4320, [0]], 4320]]]
        return indefinite(map(cbor2.dumps, eras))

    def _bound(self, epoch: int) -> list[int]:
        slot = epoch * self.epoch_s
        return [slot * PICOSECONDS, slot, epoch, 0][: self.bound_elements]

    def stake(self) -> bytes:
        return stake_answer(dict(self.pools))

    def genesis(self) -> bytes:
        start = cbor2.loads(self.system_start())
        fields = [
            start,
            self.magic,
            0,
            [1, 20],
            2160,
            self.epoch_s,
            self.period_slots,
            62,
            1_000_000,
            5,
            45 * 10**15,
            [],
        ]
        return cbor2.dumps([[*fields, {}, {}, [{}, {}]]])

    def answers(self) -> dict[bytes, bytes]:
        """The answer to each question, by the question's bytes, typed in from the published form."""
        era = cbor2.dumps(self.era)
        return {
            b"\x81\x01": self.system_start(),
            bytes.fromhex("820082028101"): self.current_era(),
            bytes.fromhex("820082028100"): self.history(),
            bytes.fromhex("82008200") + b"\x82" + era + b"\x81\x01": self.epoch_number(),
            bytes.fromhex("82008200") + b"\x82" + era + b"\x81\x0b": self.genesis(),
            bytes.fromhex("82008200") + b"\x82" + era + b"\x82\x14\x80": self.stake(),
            bytes.fromhex("82008200") + b"\x82" + era + b"\x82\x18\x22\x00": self.peers,
        }


ERA_NAMES = ("Byron", "Shelley", "Allegra", "Mary", "Alonzo", "Babbage", "Conway", "Dijkstra")


def mismatch(of_query: int, of_ledger: int) -> bytes:
    return cbor2.dumps([[of_query, ERA_NAMES[of_query]], [of_ledger, ERA_NAMES[of_ledger]]])


def indefinite(items: Iterable[bytes]) -> bytes:
    return b"\x9f" + b"".join(items) + b"\xff"


def transcript(name: str) -> tuple[int, Sequence[dict[str, Any]], dict[str, Any]]:
    """The network magic, the steps and the expectations of a stored conversation."""
    found = next(one for one in vectors("lsq-transcripts")["transcripts"] if one["id"] == name)
    return found["network_magic"], found["steps"], found["expected"]
