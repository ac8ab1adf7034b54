"""Nodes that run on this machine: where they are reached and what they report about themselves.

A running node leaves a note in its data folder: a DMQ node `node.json`, a full node `full-node.json` (the
address where programs submit external messages), and a full node or validator a file of `STATUS_FILES` (the
port that serves its status). The functions here read those notes and fetch the status over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.files.data_folder import FILE_MODE, NODE_FILE
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.wire.foreign_json import decode_foreign

DATA_DIR = "stagepost-data"
FULL_NODE_FILE = "full-node.json"
NODE_FILE_BYTES_MAX = 65_536
LOOK_EVERY_S = 0.02

Facts = TypeVar("Facts", "NodeFacts", "FullNodeFacts")


class CardanoFacts(msgspec.Struct, frozen=True):
    """Cardano-node that a DMQ node asks: its socket and the magic number of its network."""

    socket: str
    network_magic: int


class NodeFacts(msgspec.Struct, frozen=True):
    """Content of node.json: the process of a DMQ node, and where it is reached. `tcp` holds the addresses for its peers."""

    pid: int
    local_socket: str
    network_magic: int
    tcp: tuple[str, ...] = ()
    metrics_port: int | None = None
    started_ms: int = 0
    cardano: CardanoFacts | None = None


class FullNodeFacts(msgspec.Struct, frozen=True):
    """Content of full-node.json. `http` is the address of the full node's HTTP intake, if it has one."""

    pid: int
    local_socket: str
    network_magic: int
    validator_sets: str
    started_ms: int = 0
    http: str | None = None

    def write(self, data: Path) -> None:
        path = data / FULL_NODE_FILE
        try:
            replace_file(path, json.dumps(msgspec.to_builtins(self)).encode() + b"\n", FILE_MODE)
        except OSError as error:
            raise StorageError(
                f"could not write {path}: {error.strerror}", advice="check the space left on the disk"
            ) from error


def find_node(data: Path) -> NodeFacts:
    return _found(
        data, NODE_FILE, NodeFacts, "start one with `stagepost node dmq`, or give its folder with --data"
    )


def node_beside(local_socket: Path, data: Path | None = None) -> NodeFacts | None:
    """Return the note of the node that serves `local_socket`; None if there is no note of that node.

    `data` is the node's data folder, if that is not the folder of its socket.
    """
    try:
        with ((data or local_socket.parent) / NODE_FILE).open("rb") as file:
            note = decode_foreign(file.read(NODE_FILE_BYTES_MAX), NodeFacts)
    except (OSError, msgspec.MsgspecError):
        return None
    return note if os.path.realpath(note.local_socket) == os.path.realpath(local_socket) else None


def find_full_node(data: Path) -> FullNodeFacts:
    return _found(
        data,
        FULL_NODE_FILE,
        FullNodeFacts,
        "start one with `stagepost devnet` or `stagepost node full`, or give its folder with --data",
    )


async def full_node_told(data: Path, since_ms: int, *, with_http: bool, within_s: float) -> FullNodeFacts:
    """Wait for the note of a full node that started after `since_ms`, perhaps in another process.

    Raise `TimeoutError` if there is no such note within `within_s` seconds. `with_http` waits for a note that
    names the address of the HTTP intake.
    """
    async with asyncio.timeout(within_s):
        while True:
            if (data / FULL_NODE_FILE).exists():
                facts = find_full_node(data)
                if facts.started_ms >= since_ms and (facts.http or not with_http):
                    return facts
            await asyncio.sleep(LOOK_EVERY_S)


def _found(data: Path, name: str, kind: type[Facts], advice: str) -> Facts:
    path = data / name
    what = "node" if kind is NodeFacts else "full node"
    try:
        with path.open("rb") as file:
            content = file.read(NODE_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise StorageError(f"no {what} runs in {data}: there is no {name}", advice=advice) from error
    except OSError as error:
        raise StorageError(
            f"could not read {path}: {(error.strerror or 'unknown reason').lower()}",
            advice=_unread_advice(error),
        ) from error
    try:
        return decode_foreign(content, kind)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} cannot be read: {error}", advice="restart the node") from error


FULL_NODE, VALIDATOR = "full node", "validator"
STATUS_FILES = {FULL_NODE: "full-node-status.json", VALIDATOR: "validator-status.json"}
NOTE_BYTES_MAX = 65_536


class StatusFacts(msgspec.Struct, frozen=True):
    """Note that a full node or validator leaves in its data folder. `kind` is FULL_NODE or VALIDATOR."""

    pid: int
    kind: str
    metrics_port: int | None

    def write(self, data: Path) -> None:
        path = data / STATUS_FILES[self.kind]
        try:
            replace_file(path, json.dumps(msgspec.to_builtins(self)).encode() + b"\n", FILE_MODE)
        except OSError as error:
            raise StorageError(
                f"could not write {path}: {error.strerror}", advice="check the space left on the disk"
            ) from error


def _unread_advice(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "run this command as the user that runs the node"
    return "give the data folder of a node with --data"


def find_remp_node(data: Path) -> StatusFacts | None:
    """Return the note in the folder `data`; None if neither a full node nor a validator has left one."""
    for name in STATUS_FILES.values():
        path = data / name
        try:
            with path.open("rb") as file:
                return decode_foreign(file.read(NOTE_BYTES_MAX), StatusFacts)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(
                f"could not read {path}: {(error.strerror or 'unknown reason').lower()}",
                advice=_unread_advice(error),
            ) from error
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} cannot be read: {error}", advice="restart the node") from error
    return None
