"""Queries to a cardano-node: the questions of a DMQ node, and their bytes.

A query about the ledger of an era is answered only while the ledger is in that era; otherwise the answer names
both eras.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from stagepost.ground.wire.cbor import write_array, write_unsigned


class Era(IntEnum):
    """Era of the Cardano ledger. Queries take any number: a ledger may be in an era that has no name here."""

    BYRON = 0
    SHELLEY = 1
    ALLEGRA = 2
    MARY = 3
    ALONZO = 4
    BABBAGE = 5
    CONWAY = 6
    DIJKSTRA = 7


def era_name(era: int) -> str:
    return Era(era).name.capitalize() if era in Era._value2member_map_ else f"era {era}"


class GetSystemStart(msgspec.Struct, frozen=True):
    """Query for the moment of the first slot."""


class GetCurrentEra(msgspec.Struct, frozen=True):
    """Query for the number of the ledger's era."""


class GetEraHistory(msgspec.Struct, frozen=True):
    """Query for the eras with their epoch and slot lengths: upstream calls it GetInterpreter."""


class GetEpochNumber(msgspec.Struct, frozen=True):
    era: int


class GetGenesisConfig(msgspec.Struct, frozen=True):
    era: int


class GetStakeSnapshots(msgspec.Struct, frozen=True):
    """Query for the mark, set and go stake of all pools."""

    era: int


class GetLedgerPeers(msgspec.Struct, frozen=True):
    """Query for the relays of pools: of all pools, or of the big ones. Only node-to-client 23 has both kinds."""

    era: int
    is_big_only: bool = False


LedgerQuery: TypeAlias = (
    GetSystemStart
    | GetCurrentEra
    | GetEraHistory
    | GetEpochNumber
    | GetGenesisConfig
    | GetStakeSnapshots
    | GetLedgerPeers
)

# Tags of the nested query layers.
_BLOCK_QUERY = 0
_SYSTEM_START = 1
_IF_CURRENT = 0
_HARD_FORK = 2
_ERA_HISTORY = 0
_CURRENT_ERA = 1
_EPOCH_NUMBER = 1
_GENESIS_CONFIG = 11
_STAKE_SNAPSHOTS = 20
_LEDGER_PEERS = 34
_ALL_PEERS = 0
_BIG_PEERS = 1


def encode_query(query: LedgerQuery) -> bytes:
    """Return the bytes of `query` without the message around them."""
    match query:
        case GetSystemStart():
            return _numbers(_SYSTEM_START)
        case GetCurrentEra():
            return _about_block(write_unsigned(_HARD_FORK), _numbers(_CURRENT_ERA))
        case GetEraHistory():
            return _about_block(write_unsigned(_HARD_FORK), _numbers(_ERA_HISTORY))
        case GetEpochNumber(era):
            return _about_era(era, _numbers(_EPOCH_NUMBER))
        case GetGenesisConfig(era):
            return _about_era(era, _numbers(_GENESIS_CONFIG))
        case GetStakeSnapshots(era):
            return _about_era(era, write_array(write_unsigned(_STAKE_SNAPSHOTS), write_array()))
        case GetLedgerPeers(era, is_big_only):
            return _about_era(era, _numbers(_LEDGER_PEERS, _BIG_PEERS if is_big_only else _ALL_PEERS))


def _numbers(*values: int) -> bytes:
    return write_array(*map(write_unsigned, values))


def _about_block(*parts: bytes) -> bytes:
    return write_array(write_unsigned(_BLOCK_QUERY), write_array(*parts))


def _about_era(era: int, leaf: bytes) -> bytes:
    return _about_block(write_unsigned(_IF_CURRENT), write_array(write_unsigned(era), leaf))
