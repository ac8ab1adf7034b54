"""The peer snapshot file: ledger peers that a release of cardano-node brings along, in its three published forms."""

from __future__ import annotations

from fractions import Fraction

from stagepost.dmq.cardano.ledger_peers import RELAYS_MAX, LedgerPeers, PoolRelay, PoolRelays
from stagepost.dmq.pools import POOLS_MAX
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.files.documents import DocumentPart, NotADocument, read_object
from stagepost.ground.files.expected import HOST, PORT, Expected, decimal, optional, whole

SNAPSHOT_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes; that of mainnet has 153 thousand."""
VERSION_OF_POINTS = 23
_POOL_LISTS = ("bigLedgerPools", "allLedgerPools")
_SLOT = whole(0, 2**64 - 1)
_MAGIC: Expected[int | None] = optional(whole(0, 2**32 - 1))
_PORT_OR_NONE: Expected[int | None] = optional(PORT)
_SHARE = decimal(0, 1, "a share of all stake")


def parse_peer_snapshot(content: bytes, source: str) -> LedgerPeers:
    """Return the peers, or raise `ConfigFaults` with every fault in the file."""
    faults: list[FileFault] = []
    try:
        file = DocumentPart(read_object(content), faults)
    except NotADocument as error:
        raise ConfigFaults({source: [error.fault]}) from error
    if file.has("NodeToClientVersion"):
        version = file.required("NodeToClientVersion", whole(VERSION_OF_POINTS, 1_000), 0)
        point = file.part("Point")
        slot = 0 if point is None else point.required("blockPointSlot", _SLOT, 0)
    else:
        version = file.required("version", whole(1, 2), 0)
        slot = file.required("slotNo", _SLOT, 0)
    name = next((name for name in _POOL_LISTS if file.has(name)), _POOL_LISTS[0])
    parts = [*file.parts(name)]
    if len(parts) > POOLS_MAX:
        file.fault(name, f"expected at most {POOLS_MAX} pools, found {len(parts)}")
    pools = tuple(_pool(part) for part in parts[:POOLS_MAX])
    magic = file.optional("NetworkMagic", _MAGIC, None)
    if faults:
        raise ConfigFaults({source: faults})
    return LedgerPeers(version, slot, magic, pools)


def _pool(part: DocumentPart) -> PoolRelays:
    relays = [*part.parts("relays")]
    if len(relays) > RELAYS_MAX:
        part.fault("relays", f"expected at most {RELAYS_MAX} relays, found {len(relays)}")
    return PoolRelays(
        Fraction(part.required("relativeStake", _SHARE, 0.0)), tuple(map(_relay, relays[:RELAYS_MAX]))
    )


def _relay(part: DocumentPart) -> PoolRelay:
    host = part.required("domain" if part.has("domain") else "address", HOST, "")
    return PoolRelay(host, part.optional("port", _PORT_OR_NONE, None))
