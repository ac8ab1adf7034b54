"""Nodes that run on this machine: where they are reached and what they report about themselves.

A running node leaves a note in its data folder: a DMQ node `node.json`, a full node `full-node.json` (the
address where programs submit external messages), and a full node or validator a file of `STATUS_FILES` (the
port that serves its status). The functions here read those notes and fetch the status over HTTP.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError, TransportError
from stagepost.ground.files.data_folder import FILE_MODE, NODE_FILE
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.wire.foreign_json import decode_foreign

DATA_DIR = "stagepost-data"
FULL_NODE_FILE = "full-node.json"
NODE_FILE_BYTES_MAX = 65_536
LOOK_EVERY_S = 0.02

Facts = TypeVar("Facts", "NodeFacts", "FullNodeFacts")


class NodeFacts(msgspec.Struct, frozen=True):
    """Content of node.json: the process of a DMQ node, and where it is reached."""

    pid: int
    local_socket: str
    network_magic: int
    metrics_port: int | None = None
    started_ms: int = 0


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
            advice="run this command as the user that runs the node",
        ) from error
    try:
        return decode_foreign(content, kind)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} is not understood: {error}", advice="restart the node") from error


ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0

T = TypeVar("T")


class MempoolStatus(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    oldest_ms: int | None = None


class PeerStatus(msgspec.Struct, frozen=True):
    """Status of one connection with another node."""

    address: str
    direction: str = ""
    state: str = ""
    version: int | None = None
    profile: str | None = None
    flavour: str | None = None
    unacknowledged: int = 0
    in_flight_bytes: int = 0
    score: float = 0.0
    first_announcer: int = 0
    round_trip_ms: float | None = None
    last_violation: str | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    version: str
    uptime_s: float
    network_magic: int
    ready: bool
    mempool: MempoolStatus
    peers: tuple[PeerStatus, ...] = ()
    accepted: int = 0
    rejections: dict[str, int] = {}
    last_message_ms: int | None = None
    kes_periods_remaining: int | None = None
    parts: dict[str, str | None] = {}


class HeldMessage(msgspec.Struct, frozen=True):
    """Entry of the mempool. `expires_at` is the message's own field, in Unix seconds."""

    index: int
    message_id: str
    pool_id: str
    expires_at: int
    received_ms: int
    source: str
    bytes: int


class HeldMessages(msgspec.Struct, frozen=True):
    entries: tuple[HeldMessage, ...]
    next: int | None = None


class Reachable(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def metrics_port(self) -> int | None: ...


class NodeIsSilent(TransportError):
    """Failure of a node that has left its note to answer at the address in it."""


def node_status(facts: NodeFacts) -> NodeStatus:
    return decoded(fetch(facts, "/status"), NodeStatus)


def held_messages(facts: NodeFacts, after: int, limit: int) -> HeldMessages:
    """Return a page of the mempool: at most `limit` entries with an index greater than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), HeldMessages)


def fetch(facts: Reachable, target: str) -> bytes:
    """Send a GET request for `target` to the node of `facts` on this machine, and return the body of its
    answer.

    Raise `NodeIsSilent` without an answer, and `StagepostError` for any status other than 200.
    """
    if facts.metrics_port is None:
        raise StorageError(
            "this node serves no status: it runs with --metrics-port off",
            advice="restart it with --metrics-port 0 or a port of your choice",
        )
    where = f"the node at {LOOPBACK_HOST}:{facts.metrics_port} (process {facts.pid})"
    connection = http.client.HTTPConnection(LOOPBACK_HOST, facts.metrics_port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        content = response.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NodeIsSilent(
            f"{where} does not answer: {reason.lower()}", advice="check whether the node still runs"
        ) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise StagepostError(
            f"{where} answered {response.status} to {target.partition('?')[0]}",
            code=ErrorCode.NOT_READY,
            advice="the node's log says why",
            found=response.status,
        )
    return content


def decoded(content: bytes, kind: type[T]) -> T:
    try:
        return decode_foreign(content, kind)
    except msgspec.MsgspecError as error:
        raise TransportError(
            f"the node's answer is not understood: {error}",
            advice="use the same version for node and commands",
        ) from error


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


class QueuedMessage(msgspec.Struct, frozen=True):
    """Message that has no final status yet.

    `status` is the kind of the last receipt at a validator, and the last stage at a full node.
    """

    index: int
    message_id: str
    shard: str
    status: str
    received_ms: int


class QueuedMessages(msgspec.Struct, frozen=True):
    entries: tuple[QueuedMessage, ...]
    next: int | None = None


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
                advice="run this command as the user that runs the node",
            ) from error
        except msgspec.MsgspecError as error:
            raise StorageError(f"{path} is not understood: {error}", advice="restart the node") from error
    return None


def queued_messages(facts: StatusFacts, after: int, limit: int) -> QueuedMessages:
    """Return a page of the messages without a final status: at most `limit` entries with an index greater
    than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), QueuedMessages)
