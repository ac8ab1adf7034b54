"""Network of validators and full nodes, as its file describes it: the chain's genesis, and the address of each member.

{"network_magic": 7, "genesis": "<hex>", "members": [{"name": "validator-1", "public_key": "<64 hex>",
 "host": "127.0.0.1", "port": 4001, "is_validator": true}, …]}
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from stagepost.chain.genesis import Genesis
from stagepost.errors import ConfigError, ConfigFaults, DecodeError, FileFault
from stagepost.ground.files.small_files import read_small_file, replace_file
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.overlay_links import LinkMember

log = logging.getLogger(__name__)

NETWORK_FILE = "network.json"
MEMBERS_EVERY_S = 1.0
"""Seconds between two looks of a running node at its network file."""

NETWORK_BYTES_MAX = 64 * 1024 * 1024
FILE_MODE = 0o644


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

    @property
    def keys_by_id(self) -> dict[bytes, bytes]:
        return {key_id(key): key for key in self.public_keys}

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


def load_network(path: Path) -> RempNetwork:
    """Read the network file at `path`; `ConfigFaults` names what is wrong in it."""
    content, _ = read_small_file(path, NETWORK_BYTES_MAX, "a network file")
    try:
        network = decode_foreign(content, RempNetwork)
        if any(len(key) != 32 for key in network.public_keys):
            raise ValueError("a public key has 64 hexadecimal digits")
        if len(set(network.public_keys)) < len(network.members):
            raise ValueError("every member has a key of its own")
        network.chain  # noqa: B018  # decoded now, so that its faults are reported now
    except (msgspec.MsgspecError, ValueError, DecodeError) as error:
        raise ConfigFaults({str(path): [FileFault("the whole file", str(error))]}) from error
    return network
