"""The pools file: the pools that may send on a DMQ network, with their stake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stagepost.dmq.validation import Pools
from stagepost.errors import ConfigError, ConfigFaults, FileFault
from stagepost.ground.crypto.hashing import parse_pool_id
from stagepost.ground.files.documents import DocumentPart, NotADocument, read_object
from stagepost.ground.files.expected import Expected, text, unfit, whole
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId

POOLS_FILE_BYTES_MAX = 16 * 1024 * 1024
POOLS_MAX = 65_536
"""Pools, as many as a validator remembers; public networks have some three thousand."""
KES_EVOLUTIONS_LIMIT = 64
STAKE_MAX = 2**64 - 1
NAME_CHARACTERS_MAX = 100

_NO_POOL = PoolId(bytes(POOL_ID_BYTES))


class PoolSource(Pools, Protocol):
    """Stake distribution of a running node: it follows its origin, and says in words how new it is."""

    @property
    def pool_count(self) -> int: ...

    @property
    def fault_text(self) -> str | None:
        """Return why there is no newer distribution; None while there is no obstacle."""
        ...

    @property
    def not_ready_reason(self) -> str | None:
        """Return why the distribution is missing or too old; None if it is as new as it should be."""
        ...

    @property
    def works_with(self) -> str:
        """Return what the node works with, in one sentence."""
        ...

    def load(self) -> None:
        """Read what is there at the start; raise `ConfigFaults` if the node cannot begin so."""
        ...

    async def watch(self) -> None:
        """Follow the origin until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class PoolDistribution:
    """Content of one pools file. Stake 0 means known, not eligible."""

    stakes: Mapping[PoolId, int]
    kes_evolutions_max: int
    slots_per_kes_period: int
    names: Mapping[PoolId, str] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return True

    def stake(self, pool_id: PoolId) -> int | None:
        return self.stakes.get(pool_id)


def _read_pool_id(value: object) -> PoolId:
    if not isinstance(value, str):
        raise unfit(_POOL_ID.what, value)
    try:
        return PoolId(parse_pool_id(value))
    except ConfigError as error:
        raise unfit(_POOL_ID.what, value, error.text.partition("is not a pool id: ")[2]) from None


_POOL_ID: Expected[PoolId] = Expected("a pool id (56 hex digits or pool1…)", _read_pool_id)
_STAKE = whole(0, STAKE_MAX)
_NAME = text("a name", NAME_CHARACTERS_MAX)


def parse_pools(content: bytes, source: str) -> PoolDistribution:
    """Return the distribution, or raise `ConfigFaults` with every fault in the file. Unknown fields are
    ignored."""
    faults: list[FileFault] = []
    try:
        distribution = _walk(DocumentPart(read_object(content), faults))
    except NotADocument as error:
        raise ConfigFaults({source: [error.fault]}) from error
    if faults:
        raise ConfigFaults({source: faults})
    return distribution


def _walk(file: DocumentPart) -> PoolDistribution:
    evolutions = file.required("max_kes_evolutions", whole(1, KES_EVOLUTIONS_LIMIT), 1)
    slots = file.required("slots_per_kes_period", whole(1, 2**63 - 1), 1)
    stakes: dict[PoolId, int] = {}
    names: dict[PoolId, str] = {}
    places: dict[PoolId, str] = {}
    for index, pool in enumerate(file.parts("pools")):
        if index >= POOLS_MAX:
            file.fault("pools", f"expected at most {POOLS_MAX} pools, found more")
            break
        pool_id = pool.required("pool_id", _POOL_ID, _NO_POOL)
        stake = pool.required("stake", _STAKE, 0)
        name = pool.optional("name", _NAME, "")
        if pool_id in places and pool_id != _NO_POOL:
            pool.fault("pool_id", f"expected every pool once, found the pool of {places[pool_id]} again")
        places.setdefault(pool_id, pool.where("pool_id"))
        stakes[pool_id] = stake
        if name:
            names[pool_id] = name
    return PoolDistribution(stakes, evolutions, slots, names)
