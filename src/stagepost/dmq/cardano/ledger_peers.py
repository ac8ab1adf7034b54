"""Ledger peers: the relays that pools registered on the chain, as a cardano-node lists them.

A DMQ node can use SRV relays only, because the port of every other relay is that of the pool's cardano-node.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from math import sqrt
from random import Random

import msgspec

from stagepost.dmq.cardano.era_history import list_items
from stagepost.dmq.cardano.state_query import POINT_HASH_BYTES
from stagepost.dmq.pools import POOLS_MAX
from stagepost.ground.wire.cbor import CborReader

RELAYS_MAX = 1_024
"""Relays of one pool; the ledger's own bound on a registration is far smaller."""
DOMAIN_BYTES_MAX = 256
BIG_POOLS_SHARE = Fraction(9, 10)
"""Share of all stake: the largest pools that together exceed it are the big ones."""


class PoolRelay(msgspec.Struct, frozen=True):
    """Relay of a pool. `port` None: `host` is the domain of an SRV record, which names host and port."""

    host: str
    port: int | None


class PoolRelays(msgspec.Struct, frozen=True):
    """Relays of one pool, and the pool's share of all stake."""

    stake: Fraction
    relays: tuple[PoolRelay, ...]

    @property
    def srv_names(self) -> tuple[str, ...]:
        return tuple(relay.host for relay in self.relays if relay.port is None)


class LedgerPeers(msgspec.Struct, frozen=True):
    """Relays of pools at one slot, None for the origin. Pools come in descending order of stake."""

    version: int
    slot: int | None
    network_magic: int | None
    pools: tuple[PoolRelays, ...]

    def big_pools(self) -> tuple[PoolRelays, ...]:
        """Return the largest pools up to the one whose stake takes the sum above `BIG_POOLS_SHARE`."""
        return tuple(_until_share(sorted(self.pools, key=lambda pool: -pool.stake)))


def srv_domains(peers: LedgerPeers, count: int, chance: Random) -> list[str]:
    """Return the SRV domains of at most `count` pools, drawn by stake: of the big pools, each by its stake; if none of
    these has an SRV relay, of all pools, each by the root of its stake."""
    usable = [pool for pool in peers.big_pools() if pool.srv_names]
    weights = [float(pool.stake) for pool in usable]
    if not usable:
        usable = [pool for pool in peers.pools if pool.srv_names]
        weights = [sqrt(pool.stake) for pool in usable]
    # The largest of u^(1/w), with u drawn evenly, are a draw by weight without repetition.
    keys = [chance.random() ** (1 / weight) if weight else 0.0 for weight in weights]
    drawn = sorted(zip(keys, range(len(usable)), strict=True), reverse=True)[:count]
    return list(dict.fromkeys(chance.choice(usable[index].srv_names) for _, index in drawn))


def _until_share(pools: list[PoolRelays]) -> Iterator[PoolRelays]:
    total = Fraction(0)
    for pool in pools:
        yield pool
        total += pool.stake
        if total > BIG_POOLS_SHARE:
            return


def read_ledger_peers(reader: CborReader, what: str) -> LedgerPeers:
    """Return the peers from any of the three published versions: big by slot, big by point, all by point."""
    reader.array(2, what)
    at = reader.offset
    version = reader.unsigned(8, f"{what}: version")
    if version not in (1, 2, 3):
        raise reader.invalid(f"{what} have version {version}, known are 1, 2 and 3", at=at)
    reader.array(2 if version == 1 else 3, what)
    slot = _read_slot(reader, f"{what}: point", with_hash=version != 1)
    magic = None if version == 1 else reader.unsigned(32, f"{what}: network magic")
    pools = tuple(_read_pool(reader, version, f"{what}: pool") for _ in list_items(reader, what, POOLS_MAX))
    return LedgerPeers(version, slot, magic, pools)


def _read_slot(reader: CborReader, what: str, *, with_hash: bool) -> int | None:
    start = reader.offset
    length = reader.array_length(what)
    kind = reader.unsigned(8, what)
    if (length, kind) == (1, 0):
        return None
    if (length, kind) != (3 if with_hash else 2, 1):
        raise reader.invalid(
            f"{what} has kind {kind} and {length} elements, which is none of its forms", at=start
        )
    slot = reader.unsigned(64, what)
    if with_hash:
        reader.byte_string(POINT_HASH_BYTES, POINT_HASH_BYTES, f"{what}: hash")
    return slot


def _read_pool(reader: CborReader, version: int, what: str) -> PoolRelays:
    # The accumulated stake stands before the pool's own where only big pools are listed.
    if version == 1:
        reader.array(2, what)
        _read_share(reader, what)
        reader.array(2, what)
    else:
        reader.array(3 if version == 2 else 2, what)
        if version == 2:
            _read_share(reader, what)
    stake = _read_share(reader, what)
    relays = (
        _read_relay(reader, f"{what}: relay") for _ in list_items(reader, f"{what}: relays", RELAYS_MAX)
    )
    return PoolRelays(stake, tuple(relays))


def _read_share(reader: CborReader, what: str) -> Fraction:
    start = reader.offset
    reader.array(2, f"{what}: stake")
    above, below = reader.unsigned(64, f"{what}: stake"), reader.unsigned(64, f"{what}: stake")
    if not below or above > below:
        raise reader.invalid(f"{what}: stake {above}/{below} is not a valid share", at=start)
    return Fraction(above, below)


def _read_relay(reader: CborReader, what: str) -> PoolRelay:
    start = reader.offset
    length = reader.array_length(what)
    kind = reader.unsigned(8, what)
    match length, kind:
        case 3, 0:
            port = reader.unsigned(16, f"{what}: port")
            return PoolRelay(_read_domain(reader, what), port)
        case 3, 1:
            port = reader.unsigned(16, f"{what}: port")
            return PoolRelay(str(IPv4Address(_read_groups(reader, 4, 8, what))), port)
        case 3, 2:
            port = reader.unsigned(16, f"{what}: port")
            return PoolRelay(str(IPv6Address(_read_groups(reader, 8, 16, what))), port)
        case 2, 3:
            return PoolRelay(_read_domain(reader, what), None)
    raise reader.invalid(
        f"{what} has kind {kind} and {length} elements, which is none of its forms", at=start
    )


def _read_groups(reader: CborReader, count: int, bits: int, what: str) -> bytes:
    start = reader.offset
    groups = [reader.unsigned(bits, what) for _ in list_items(reader, what, count)]
    if len(groups) != count:
        raise reader.invalid(f"{what}: an address of {len(groups)} groups, expected {count}", at=start)
    return b"".join(group.to_bytes(bits // 8, "big") for group in groups)


def _read_domain(reader: CborReader, what: str) -> str:
    start = reader.offset
    raw = reader.byte_string(1, DOMAIN_BYTES_MAX, f"{what}: domain")
    if not raw.isascii() or not raw.decode("ascii").isprintable():
        raise reader.invalid(f"{what}: domain is not ASCII text", at=start)
    return raw.decode("ascii")
