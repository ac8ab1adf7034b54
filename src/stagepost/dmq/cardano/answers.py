"""Answers of a cardano-node, from their bytes to values.

Elements that later releases append to bounds, parameters and the genesis are skipped. Everything else must fit,
or the whole answer is refused: a part of a stake distribution must not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from stagepost.dmq.cardano.era_history import read_era_history, skip_elements
from stagepost.dmq.cardano.genesis import ShelleyGenesis, read_system_start
from stagepost.dmq.cardano.ledger_peers import read_ledger_peers
from stagepost.dmq.cardano.queries import (
    GetCurrentEra,
    GetEpochNumber,
    GetEraHistory,
    GetGenesisConfig,
    GetLedgerPeers,
    GetStakeSnapshots,
    GetSystemStart,
    LedgerQuery,
)
from stagepost.dmq.pools import POOLS_MAX
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.cbor import CborReader

ERA_NUMBER_BITS = 8
ERA_NAME_BYTES_MAX = 64
GENESIS_ELEMENTS_MIN = 9
GENESIS_ELEMENTS_MAX = 64

T = TypeVar("T")


class EraMismatch(msgspec.Struct, frozen=True):
    """Answer to a query about another era than the ledger's: numbers and names of both."""

    query_era: tuple[int, str]
    ledger_era: tuple[int, str]


class StakeSnapshots(msgspec.Struct, frozen=True):
    """Mark, set and go stake of each pool in lovelace, and the three totals. The set stake decides who may send."""

    pools: Mapping[PoolId, tuple[int, int, int]]
    totals: tuple[int, int, int]

    def set_stakes(self) -> dict[PoolId, int]:
        """Return the set stake of every pool; 0 means known, not eligible."""
        return {pool_id: stakes[1] for pool_id, stakes in self.pools.items()}


def decode_answer(query: LedgerQuery, answer: bytes) -> Any:
    """Return the value that `answer` holds for `query`; raise `DecodeError` if it holds none.

    A query about an era may have an `EraMismatch` as its answer.
    """
    reader = CborReader(answer)
    value = _READERS[type(query)](reader)
    reader.finish("the answer")
    return value


def _of_era(read: Callable[[CborReader, str], T], what: str) -> Callable[[CborReader], T | EraMismatch]:
    """Return a reader of `[value]`, or of the pair of eras that stands in its place."""

    def read_wrapped(reader: CborReader) -> T | EraMismatch:
        start = reader.offset
        length = reader.array_length(what)
        if length == 2:
            return EraMismatch(_read_era(reader, "the query's era"), _read_era(reader, "the ledger's era"))
        if length != 1:
            raise reader.invalid(f"{what} is wrapped in {length} elements, expected 1 or 2", at=start)
        return read(reader, what)

    return read_wrapped


def _read_era(reader: CborReader, what: str) -> tuple[int, str]:
    reader.array(2, what)
    return reader.unsigned(ERA_NUMBER_BITS, what), reader.text(ERA_NAME_BYTES_MAX, what)


def read_stake_snapshots(reader: CborReader, what: str) -> StakeSnapshots:
    start = reader.offset
    reader.array(4, what)
    pools: dict[PoolId, tuple[int, int, int]] = {}
    count = reader.map_start(f"{what}: pools")
    read = 0
    while not reader.take_break() if count is None else read < count:
        if read >= POOLS_MAX:
            raise reader.over_limit(f"the number of pools in {what}", read + 1, POOLS_MAX, at=start)
        at = reader.offset
        pool_id = PoolId(reader.byte_string(POOL_ID_BYTES, POOL_ID_BYTES, f"{what}: pool id"))
        if pool_id in pools:
            raise reader.invalid(f"{what} name pool {pool_id.hex()} twice", at=at)
        reader.array(3, f"{what}: stakes of a pool")
        pools[pool_id] = _read_stakes(reader, f"{what}: stake")
        read += 1
    return StakeSnapshots(pools, _read_stakes(reader, f"{what}: total"))


def _read_stakes(reader: CborReader, what: str) -> tuple[int, int, int]:
    return reader.unsigned(64, what), reader.unsigned(64, what), reader.unsigned(64, what)


def _read_genesis(reader: CborReader, what: str) -> ShelleyGenesis:
    start = reader.offset
    length = reader.array_length(what)
    if not GENESIS_ELEMENTS_MIN <= length <= GENESIS_ELEMENTS_MAX:
        raise reader.invalid(
            f"{what} has {length} elements, expected at least {GENESIS_ELEMENTS_MIN}", at=start
        )
    system_start_ps = read_system_start(reader, f"{what}: system start")
    magic = reader.unsigned(32, f"{what}: network magic")
    reader.unsigned(8, f"{what}: network id")
    reader.array(2, f"{what}: active slots coefficient")
    reader.unsigned(64, f"{what}: active slots coefficient")
    reader.unsigned(64, f"{what}: active slots coefficient")
    reader.unsigned(64, f"{what}: security parameter")
    epoch_slots = reader.unsigned(64, f"{what}: epoch length")
    period_slots = reader.unsigned(64, f"{what}: slots per KES period")
    evolutions = reader.unsigned(64, f"{what}: KES evolutions")
    slot_us = reader.unsigned(64, f"{what}: slot length")
    skip_elements(reader, length - GENESIS_ELEMENTS_MIN, what)
    genesis = ShelleyGenesis(magic, system_start_ps, epoch_slots, slot_us, period_slots, evolutions)
    fault = genesis.fault()
    if fault is not None:
        raise reader.invalid(f"{what}: {fault}", at=start)
    return genesis


_READERS: Mapping[type[object], Callable[[CborReader], Any]] = {
    GetSystemStart: lambda reader: read_system_start(reader, "the system start"),
    GetCurrentEra: lambda reader: reader.unsigned(ERA_NUMBER_BITS, "the current era"),
    GetEraHistory: lambda reader: read_era_history(reader, "the era history"),
    GetEpochNumber: _of_era(lambda reader, what: reader.unsigned(64, what), "the epoch"),
    GetGenesisConfig: _of_era(_read_genesis, "the genesis"),
    GetStakeSnapshots: _of_era(read_stake_snapshots, "the stake snapshots"),
    GetLedgerPeers: _of_era(read_ledger_peers, "the ledger peers"),
}
