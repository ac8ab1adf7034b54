"""The topology file, in cardano-node's syntax: the peers to connect to, and how many of them to keep.

Beyond that syntax, a group or an access point may name the wire `profile` to speak with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stagepost.dmq.profiles import PROFILES, Profile
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.files.documents import DocumentPart, NotADocument, did_you_mean, nearest, read_object
from stagepost.ground.files.expected import BOOLEAN, HOST, PORT, Expected, one_of, optional, text, whole

TOPOLOGY_FILE_BYTES_MAX = 1_048_576
ACCESS_POINTS_MAX = 10_000
VALENCY_MAX = 10_000

INITIATOR_ONLY = "InitiatorOnly"
DIFFUSION_MODES = ("InitiatorAndResponder", INITIATOR_ONLY)

_TOP_KEYS = ("localRoots", "publicRoots", "useLedgerAfterSlot", "peerSnapshotFile")
_UNUSED_TOP_KEYS = ("bootstrapPeers", "extraConfig")
_ROOT_KEYS = ("accessPoints", "advertise", "profile")
_LOCAL_ROOT_KEYS = (*_ROOT_KEYS, "valency", "hotValency", "warmValency", "diffusionMode", "behindFirewall")
_UNUSED_LOCAL_ROOT_KEYS = ("trustable", "extraFlags")
_ACCESS_POINT_KEYS = ("address", "port", "profile")

_VALENCY = whole(0, VALENCY_MAX)
_PORT_OR_NONE: Expected[int | None] = optional(PORT)
_SLOT = whole(-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class AccessPoint:
    """Peer to connect to. `profile` None means the node's own choice. `port` None: `address` is the whole name
    of an SRV record, which names host and port."""

    address: str
    port: int | None
    profile: Profile | None = None


@dataclass(frozen=True, slots=True)
class LocalRoot:
    """Group of peers that the operator insists on: `hot_valency` of them used, `warm_valency` connected.

    Peers with `is_behind_firewall` cannot be dialled; they connect to this node.
    """

    access_points: tuple[AccessPoint, ...]
    hot_valency: int
    warm_valency: int
    advertise: bool = False
    initiator_only: bool = False
    is_behind_firewall: bool = False


@dataclass(frozen=True, slots=True)
class PublicRoot:
    """Peers through which the node may get to know others."""

    access_points: tuple[AccessPoint, ...]
    advertise: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    local_roots: tuple[LocalRoot, ...] = ()
    public_roots: tuple[PublicRoot, ...] = ()
    use_ledger_after_slot: int | None = None
    """Slot from which on ledger peers may be used; None or negative: never."""
    peer_snapshot_file: str | None = None
    """File with ledger peers for the time before the cardano-node names any."""
    unused: tuple[str, ...] = ()
    """Keys in the file without effect on this node."""


def parse_topology(content: bytes, source: str) -> Topology:
    """Return the topology, or raise `ConfigFaults` with every fault in the file."""
    faults: list[FileFault] = []
    try:
        topology = _walk(DocumentPart(read_object(content), faults))
    except NotADocument as error:
        raise ConfigFaults({source: [error.fault]}) from error
    if faults:
        raise ConfigFaults({source: faults})
    return topology


def _walk(file: DocumentPart) -> Topology:
    unused: list[str] = []
    _note_unused(file, _TOP_KEYS, _UNUSED_TOP_KEYS, unused)
    local_roots = _fitted([_local_root(part, unused) for part in file.parts("localRoots")])
    public_roots = [_public_root(part, unused) for part in file.parts("publicRoots", is_required=False)]
    slot = file.optional("useLedgerAfterSlot", optional(_SLOT), None)
    roots: list[LocalRoot | PublicRoot] = [*local_roots, *public_roots]
    if sum(len(root.access_points) for root in roots) > ACCESS_POINTS_MAX:
        file.fault("localRoots", f"expected at most {ACCESS_POINTS_MAX} access points in all, found more")
    snapshot = file.optional("peerSnapshotFile", optional(text("a file name")), None)
    return Topology(tuple(local_roots), tuple(public_roots), slot, snapshot, tuple(unused))


def _local_root(group: DocumentPart, unused: list[str]) -> LocalRoot:
    _note_unused(group, _LOCAL_ROOT_KEYS, _UNUSED_LOCAL_ROOT_KEYS, unused)
    points = _access_points(group, unused)
    # Where a file gives both names, running nodes take the older one.
    name = "valency" if group.has("valency") else "hotValency"
    hot = group.required(name, _VALENCY, 0)
    warm = group.optional("warmValency", _VALENCY, hot)
    mode = group.optional("diffusionMode", optional(one_of(DIFFUSION_MODES)), None)
    return LocalRoot(
        points,
        hot,
        warm,
        group.optional("advertise", BOOLEAN, False),
        mode == INITIATOR_ONLY,
        group.optional("behindFirewall", BOOLEAN, False),
    )


def _fitted(groups: list[LocalRoot]) -> list[LocalRoot]:
    """Fit the groups as running nodes do: a peer belongs to the first group that names it, and no valency
    exceeds what there is."""
    seen: set[tuple[str, int | None]] = set()
    found: list[LocalRoot] = []
    for group in groups:
        points = tuple(point for point in group.access_points if (point.address, point.port) not in seen)
        seen |= {(point.address, point.port) for point in points}
        warm = min(group.warm_valency, len(points))
        if warm:
            hot = min(group.hot_valency, warm)
            found.append(replace(group, access_points=points, hot_valency=hot, warm_valency=warm))
    return found


def _public_root(group: DocumentPart, unused: list[str]) -> PublicRoot:
    _note_unused(group, _ROOT_KEYS, (), unused)
    return PublicRoot(_access_points(group, unused), group.optional("advertise", BOOLEAN, False))


def _access_points(group: DocumentPart, unused: list[str]) -> tuple[AccessPoint, ...]:
    profile = group.optional("profile", _PROFILE, None)
    points: list[AccessPoint] = []
    for part in group.parts("accessPoints"):
        _note_unused(part, _ACCESS_POINT_KEYS, (), unused)
        points.append(
            AccessPoint(
                part.required("address", HOST, ""),
                part.optional("port", _PORT_OR_NONE, None),
                part.optional("profile", _PROFILE, profile),
            )
        )
    return tuple(points)


def _note_unused(
    part: DocumentPart, known: Iterable[str], unused_but_known: Iterable[str], unused: list[str]
) -> None:
    """Let other programs' keys through, but report a key that looks like a misspelt one of ours: it would
    have no effect."""
    known = tuple(known)
    for name in part.unknown(known):
        if name not in unused_but_known and nearest(name, known):
            part.fault(name, f"unknown key{did_you_mean(name, known)}")
        else:
            unused.append(part.where(name))


_PROFILE_NAME = one_of(tuple(PROFILES))
_PROFILE: Expected[Profile | None] = Expected(
    _PROFILE_NAME.what, lambda value: PROFILES[_PROFILE_NAME.read(value)]
)
