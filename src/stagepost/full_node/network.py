"""Network of validators and full nodes, as its file describes it: the chain's genesis, and the address of each member.

{"network_magic": 7, "genesis": "<hex>", "members": [{"name": "validator-1", "public_key": "<64 hex>",
 "host": "127.0.0.1", "port": 4001, "is_validator": true}, …]}
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stagepost.chain.configuration import fault_in
from stagepost.chain.genesis import Genesis
from stagepost.errors import ConfigError, ConfigFaults, DecodeError, FileFault
from stagepost.ground.files.data_folder import NETWORK_FILE as NETWORK_FILE
from stagepost.ground.files.small_files import read_small_file, replace_file
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.remp.links.overlay_links import LinkMember

log = logging.getLogger(__name__)

MEMBERS_EVERY_S = 1.0
"""Seconds between two looks of a running node at its network file."""

FROM_ITS_MAKER = "get the file anew from the operator who made it, or from another member"
NETWORK_BYTES_MAX = 64 * 1024 * 1024
FILE_MODE = 0o644
HEX_KEY = re.compile(r"[0-9a-f]{64}")
HEX_BYTES = re.compile(r"(?:[0-9a-f]{2})+")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
HOST = re.compile(r"[0-9A-Za-z.:_-]{1,253}")
EVERYWHERE = frozenset({"0.0.0.0", "::"})
PORT_MAX = 65_535
MAGIC_MAX = 2**32 - 1


class NetworkMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    public_key: str
    host: str
    port: int
    is_validator: bool

    @property
    def key(self) -> bytes:
        return bytes.fromhex(self.public_key)

    @property
    def address(self) -> TcpAddress:
        return TcpAddress(self.host, self.port)


class RempNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the network file. For the chain every member has links to all others, in the order of `members`."""

    network_magic: int
    genesis: str
    members: tuple[NetworkMember, ...]

    @property
    def chain(self) -> Genesis:
        return Genesis.decode(bytes.fromhex(self.genesis))

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        return tuple(member.key for member in self.members)

    @property
    def link_members(self) -> tuple[LinkMember, ...]:
        return tuple(LinkMember(member.key, member.address) for member in self.members)

    @property
    def validators(self) -> tuple[NetworkMember, ...]:
        return tuple(member for member in self.members if member.is_validator)

    @property
    def full_nodes(self) -> tuple[NetworkMember, ...]:
        return tuple(member for member in self.members if not member.is_validator)

    def place_of(self, public_key: bytes) -> int:
        try:
            return self.public_keys.index(public_key)
        except ValueError:
            raise ConfigError(
                f"key {public_key.hex()} is not the key of a member of the network",
                advice="give the key of a member, or add it to the network file",
            ) from None

    def write(self, path: Path) -> None:
        replace_file(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n", FILE_MODE)


class WatchedNetworkFile:
    """Network file of a running node. The operator adds members to it, and the node takes them up without a restart."""

    def __init__(self, path: Path | None, network: RempNetwork) -> None:
        self.network = network
        self._path = path
        self._seen_ns = self._changed_ns()

    def added(self) -> tuple[NetworkMember, ...]:
        """Return the members that the file has gained since the last call. A file that cannot be read, or that changes
        anything else, is left alone, with a line in the log.
        """
        changed_ns = self._changed_ns()
        if self._path is None or changed_ns == self._seen_ns:
            return ()
        self._seen_ns = changed_ns
        before = self.network
        try:
            found = load_network(self._path)
        except (ConfigError, ConfigFaults, OSError) as error:
            log.warning("network file is left alone", extra={"path": str(self._path), "reason": str(error)})
            return ()
        places = len(before.members)
        if (found.network_magic, found.genesis) != (before.network_magic, before.genesis) or found.members[
            :places
        ] != before.members:
            reason = (
                "it changes the network or its present members; a running node only takes further members"
            )
            log.warning("network file is left alone", extra={"path": str(self._path), "reason": reason})
            return ()
        self.network = found
        return found.members[places:]

    def _changed_ns(self) -> int:
        try:
            return 0 if self._path is None else self._path.stat().st_mtime_ns
        except OSError:
            return -1


def faults_in_member(member: NetworkMember) -> list[FileFault]:
    """Return everything that is wrong in one member, whatever the others are."""
    faults = []
    if NAME.fullmatch(member.name) is None:
        text = f"{member.name!r} is not 1 to 40 lower-case letters, digits and inner hyphens"
        faults.append(FileFault("name", text))
    if HOST.fullmatch(member.host) is None:
        faults.append(FileFault("host", f"{member.host!r} is not a host name or an address"))
    if member.host in EVERYWHERE:
        text = f"{member.host} means every address of this machine: give one that others reach"
        faults.append(FileFault("host", text))
    if not 1 <= member.port <= PORT_MAX:
        faults.append(FileFault("port", f"{member.port} is not 1 to {PORT_MAX}"))
    if HEX_KEY.fullmatch(member.public_key) is None:
        faults.append(FileFault("public_key", "is not 64 lower-case hexadecimal digits"))
    return faults


def faults_among(members: Iterable[NetworkMember]) -> list[FileFault]:
    """Return where two members share a name, a key or an address, each of which one member has alone."""
    faults = []
    seen: dict[tuple[str, str], str] = {}
    for member in members:
        address = f"{member.host.lower()}:{member.port}"
        for entry in (("name", member.name), ("public_key", member.public_key), ("address", address)):
            if entry in seen:
                both = "two members" if entry[0] == "name" else f"{seen[entry]} and of {member.name}"
                faults.append(FileFault(entry[0], f"{entry[1]} is that of {both}"))
            seen.setdefault(entry, member.name)
    return faults


def load_network(path: Path, genesis: str | None = None) -> RempNetwork:
    """Read the network file at `path`; `ConfigFaults` names everything that is wrong in it. `genesis` is the hash, in
    hexadecimal digits, of the genesis that the operators agreed on; None takes any.
    """
    if genesis is not None and HEX_KEY.fullmatch(genesis.lower()) is None:
        raise ConfigError(
            f"{genesis!r} is not the hash of a genesis, which has 64 hexadecimal digits",
            advice="take the hash from `stagepost network show --network FILE`, and compare it with the other operators",
        )
    content, _ = read_small_file(path, NETWORK_BYTES_MAX, "a network file")
    try:
        network = decode_foreign(content, RempNetwork)
    except msgspec.MsgspecError as error:
        faults = [FileFault("the whole file", str(error))]
        raise ConfigFaults({str(path): faults}, advice=FROM_ITS_MAKER) from error
    faults = [
        FileFault(f"members[{place}].{fault.where}", fault.text)
        for place, member in enumerate(network.members)
        for fault in faults_in_member(member)
    ]
    genesis_faults = _faults_in_genesis(network, genesis, has_keys=not faults)
    if not 0 <= network.network_magic <= MAGIC_MAX:
        faults.append(FileFault("network_magic", f"{network.network_magic} is not 0 to {MAGIC_MAX}"))
    faults += [*faults_among(network.members), *genesis_faults]
    if faults:
        raise ConfigFaults({str(path): faults}, advice=FROM_ITS_MAKER)
    return network


def _faults_in_genesis(network: RempNetwork, agreed: str | None, *, has_keys: bool) -> list[FileFault]:
    """Return why no node of this file can begin with its genesis. The keys of members are compared if they are keys."""
    if HEX_BYTES.fullmatch(network.genesis) is None:
        return [FileFault("genesis", "is not lower-case hexadecimal digits, two for each byte")]
    try:
        genesis = network.chain
    except (DecodeError, ValueError) as error:
        return [FileFault("genesis", str(error))]
    faults = []
    if agreed is not None and genesis.hash.hex() != agreed.lower():
        faults.append(
            FileFault(
                "genesis",
                f"has the hash {genesis.hash.hex()}, not {agreed.lower()}, on which you agreed",
            )
        )
    fault = fault_in(genesis.configuration)
    if fault is not None:
        faults.append(FileFault("genesis", fault))
    known = {member.key for member in network.validators} if has_keys else set()
    faults += [
        FileFault("genesis", f"validator {one.public_key.hex()} is not among the validators in members")
        for one in genesis.configuration.current.validators
        if has_keys and one.public_key not in known
    ]
    return faults
