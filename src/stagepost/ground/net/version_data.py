"""Version numbers and their data: DMQ's own, and Cardano's where profile `seed` admits them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

import msgspec

from stagepost.errors import WireRule
from stagepost.ground.wire.cbor import CborReader, write_array, write_boolean, write_unsigned

NETWORK_MAGIC_BITS = 32
DMQ_CLIENT_BIT = 1 << 12
CARDANO_CLIENT_BIT = 1 << 15

DMQ_NODE_V1 = 1
DMQ_NODE_V2 = 2
DMQ_CLIENT_V1 = DMQ_CLIENT_BIT | 1

NETWORK_MAGICS: Mapping[str, int] = {
    "mithril-mainnet": 2_912_307_721,
    "mithril-preprod": 2_147_483_649,
    "mithril-preview": 2_147_483_650,
    "mithril-devnet": 2_147_483_690,
    "dmq-node-old-default": 3_141_592,
}


class ConnectionKind(Enum):
    """Kind of program at the other end. The value is its name in reports."""

    NODE = "node-to-node"
    CLIENT = "node-to-client"


class VersionData(msgspec.Struct, frozen=True):
    """Data of one side for a version; each version writes those fields that its shape has."""

    network_magic: int
    initiator_only: bool = False
    peer_sharing: bool = False
    query: bool = False


class VersionShape(Enum):
    """Shape of a version's data: the fields, in order. A bare magic is written without an array."""

    MAGIC = ("network_magic",)
    MAGIC_QUERY = ("network_magic", "query")
    MAGIC_MODE = ("network_magic", "initiator_only")
    MAGIC_MODE_SHARING_QUERY = ("network_magic", "initiator_only", "peer_sharing", "query")


DMQ_VERSIONS: Mapping[ConnectionKind, Mapping[int, VersionShape]] = {
    ConnectionKind.NODE: {
        DMQ_NODE_V1: VersionShape.MAGIC_MODE_SHARING_QUERY,
        DMQ_NODE_V2: VersionShape.MAGIC_MODE_SHARING_QUERY,
    },
    ConnectionKind.CLIENT: {DMQ_CLIENT_V1: VersionShape.MAGIC_QUERY},
}

CARDANO_VERSIONS: Mapping[ConnectionKind, Mapping[int, VersionShape]] = {
    ConnectionKind.NODE: {
        **dict.fromkeys(range(7, 11), VersionShape.MAGIC_MODE),
        **dict.fromkeys(range(11, 16), VersionShape.MAGIC_MODE_SHARING_QUERY),
    },
    ConnectionKind.CLIENT: {
        **dict.fromkeys((CARDANO_CLIENT_BIT | number for number in range(9, 15)), VersionShape.MAGIC),
        **dict.fromkeys((CARDANO_CLIENT_BIT | number for number in range(15, 24)), VersionShape.MAGIC_QUERY),
    },
}

CARDANO_QUERY_VERSIONS: Mapping[int, VersionShape] = {
    CARDANO_CLIENT_BIT | number: VersionShape.MAGIC_QUERY for number in range(16, 24)
}
"""Versions that a client of a cardano-node proposes. Releases from autumn 2026 on know the last one only."""

_CARDANO_PEER_SHARING_MAX = 2  # versions 11 and 12 knew a private and a public way of sharing
_DMQ_PEER_SHARING_MAX = 1


def known_versions(kind: ConnectionKind, *, with_cardano: bool) -> dict[int, VersionShape]:
    versions = dict(DMQ_VERSIONS[kind])
    if with_cardano:
        versions |= CARDANO_VERSIONS[kind]
    return versions


def is_cardano(version: int) -> bool:
    return any(version in versions for versions in CARDANO_VERSIONS.values())


def write_version_data(value: VersionData, shape: VersionShape) -> bytes:
    magic = write_unsigned(value.network_magic)
    if shape is VersionShape.MAGIC:
        return magic
    parts = [magic]
    for name in shape.value[1:]:
        flag: bool = getattr(value, name)
        parts.append(write_unsigned(int(flag)) if name == "peer_sharing" else write_boolean(flag))
    return write_array(*parts)


def read_version_data(raw: bytes, version: int, shape: VersionShape) -> VersionData:
    """Return the decoded data; raise `DecodeError` if they do not have the shape of their version."""
    reader = CborReader(raw)
    what = f"the data of version {version}"
    if shape is not VersionShape.MAGIC:
        reader.array(len(shape.value), what)
    magic = reader.unsigned(NETWORK_MAGIC_BITS, f"{what}: network magic")
    flags = {name: _read_flag(reader, name, version, what) for name in shape.value[1:]}
    reader.finish(what)
    return VersionData(magic, **flags)


def _read_flag(reader: CborReader, name: str, version: int, what: str) -> bool:
    if name != "peer_sharing":
        return reader.boolean(f"{what}: {name}")
    at = reader.offset
    value = reader.unsigned(8, f"{what}: {name}")
    allowed: Collection[int] = range(
        (_CARDANO_PEER_SHARING_MAX if is_cardano(version) else _DMQ_PEER_SHARING_MAX) + 1
    )
    if value not in allowed:
        raise reader.invalid(
            f"{what}: peer sharing is {value}, allowed are 0 to {max(allowed)}",
            at=at,
            rule=WireRule.OUT_OF_RANGE,
        )
    return value > 0
