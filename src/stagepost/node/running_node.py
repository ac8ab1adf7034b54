"""A node that runs on this machine: where it is, from node.json in its data folder, and what it tells of itself."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import TypeVar

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError, TransportError

DATA_DIR = "stagepost-data"
NODE_FILE = "node.json"
NODE_FILE_BYTES_MAX = 65_536
ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0
HOST = "127.0.0.1"

T = TypeVar("T")


class NodeFacts(msgspec.Struct, frozen=True):
    """node.json: who runs the node, and where it is reached."""

    pid: int
    local_socket: str
    network_magic: int
    metrics_port: int | None = None
    started_ms: int = 0


class MempoolStatus(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    oldest_ms: int | None = None


class PeerStatus(msgspec.Struct, frozen=True):
    """One connection with another node."""

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
    """One entry of the mempool. `expires_at` is the message's own field, in Unix seconds."""

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


class NodeIsSilent(TransportError):
    """The node has left its note but does not answer there."""


def find_node(data: Path) -> NodeFacts:
    path = data / NODE_FILE
    try:
        with path.open("rb") as file:
            content = file.read(NODE_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise StorageError(
            f"no node runs in {data}: there is no {NODE_FILE}",
            advice="start one with `stagepost node dmq`, or give its folder with --data",
        ) from error
    except OSError as error:
        raise StorageError(
            f"could not read {path}: {(error.strerror or 'unknown reason').lower()}",
            advice="run this command as the user that runs the node",
        ) from error
    try:
        return msgspec.json.decode(content, type=NodeFacts)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} is not understood: {error}", advice="restart the node") from error


def node_status(facts: NodeFacts) -> NodeStatus:
    return _decoded(_fetch(facts, "/status"), NodeStatus)


def held_messages(facts: NodeFacts, after: int, limit: int) -> HeldMessages:
    """A page of the mempool: entries with an index greater than `after`."""
    return _decoded(_fetch(facts, f"/mempool?after={after}&limit={limit}"), HeldMessages)


def _fetch(facts: NodeFacts, target: str) -> bytes:
    if facts.metrics_port is None:
        raise StorageError(
            "this node serves no status: it runs with --metrics-port off",
            advice="restart it with --metrics-port 0 or a port of your choice",
        )
    where = f"the node at {HOST}:{facts.metrics_port} (process {facts.pid})"
    connection = http.client.HTTPConnection(HOST, facts.metrics_port, timeout=ANSWER_TIMEOUT_S)
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


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise TransportError(
            f"the node's answer is not understood: {error}",
            advice="use the same version for node and commands",
        ) from error
