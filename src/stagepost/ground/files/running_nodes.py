"""A node that runs on this machine: where it is, from node.json in its data folder, and what it tells of itself."""

from __future__ import annotations

import http.client
from typing import Protocol, TypeVar

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError, TransportError
from stagepost.ground.files.node_notes import DATA_DIR as DATA_DIR
from stagepost.ground.files.node_notes import NodeFacts as NodeFacts
from stagepost.ground.files.node_notes import find_node as find_node
from stagepost.ground.wire.foreign_json import decode_foreign

ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0
HOST = "127.0.0.1"

T = TypeVar("T")


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


class Reachable(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def metrics_port(self) -> int | None: ...


class NodeIsSilent(TransportError):
    """The node has left its note but does not answer there."""


def node_status(facts: NodeFacts) -> NodeStatus:
    return decoded(fetch(facts, "/status"), NodeStatus)


def held_messages(facts: NodeFacts, after: int, limit: int) -> HeldMessages:
    """A page of the mempool: entries with an index greater than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), HeldMessages)


def fetch(facts: Reachable, target: str) -> bytes:
    """What a node that runs on this machine answers."""
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


def decoded(content: bytes, kind: type[T]) -> T:
    try:
        return decode_foreign(content, kind)
    except msgspec.MsgspecError as error:
        raise TransportError(
            f"the node's answer is not understood: {error}",
            advice="use the same version for node and commands",
        ) from error
