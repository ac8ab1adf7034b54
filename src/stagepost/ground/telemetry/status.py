"""Pages that a running node serves over HTTP on loopback, each declared once for servers and readers, and how to read them.

    /status     DmqNodePage, FullNodePage or ValidatorPage
    /mempool    HeldMessages of a DMQ node, QueuedMessages of a full node or validator

Fields stand in the order in which a node writes them. A field with a default may be missing in a reader's page: the node may be
of another version.
"""

from __future__ import annotations

import http.client
from typing import Protocol, TypeVar

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError, TransportError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.wire.foreign_json import decode_foreign

ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0

T = TypeVar("T")


# A DMQ node


class MempoolStatus(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    messages_max: int = 0
    bytes_max: int = 0
    oldest_ms: int | None = None


class PeerStatus(msgspec.Struct, frozen=True):
    """Connection with another node. `connected_s` is left out where a node of an earlier version left it out."""

    address: str
    direction: str = ""
    state: str = ""
    version: int | None = None
    profile: str | None = None
    flavour: str | None = None
    connected_s: float | msgspec.UnsetType = msgspec.UNSET
    unacknowledged: int = 0
    in_flight_bytes: int = 0
    score: float = 0.0
    first_announcer: int = 0
    round_trip_ms: float | None = None
    last_violation: str | None = None


class EquivocatingPool(msgspec.Struct, frozen=True):
    """Pool that signed two bodies for one slot: how often, and the latest pair of message ids."""

    count: int
    pool_id: str
    first: str
    second: str
    expires_at: int
    refused: bool


class EquivocationStatus(msgspec.Struct, frozen=True):
    count: int = 0
    refused: int = 0
    pools: tuple[EquivocatingPool, ...] = ()


class PoolsStatus(msgspec.Struct, frozen=True):
    """The pools file that a node has read. `fault`: why the latest one was not taken."""

    count: int = 0
    fault: str | None = None


class DmqNodePage(msgspec.Struct, frozen=True):
    """`/status` of a DMQ node. `parts`: None for a part that is ready, otherwise the reason."""

    version: str
    uptime_s: float
    network_magic: int
    ready: bool
    mempool: MempoolStatus
    peers: tuple[PeerStatus, ...] = ()
    accepted: int = 0
    expired_unseen: int = 0
    rejections: dict[str, int] = {}
    last_message_ms: int | None = None
    storage_fault: str | None = None
    clock_behind_s: float = 0.0
    kes_periods_remaining: int | None = None
    equivocations: EquivocationStatus = EquivocationStatus()
    pools: PoolsStatus = PoolsStatus()
    parts: dict[str, str | None] = {}


class HeldMessage(msgspec.Struct, frozen=True):
    """Entry of a mempool, without its body. `expires_at` is the message's own field, in Unix seconds."""

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


# A full node or a validator


class FullNodePage(msgspec.Struct, frozen=True):
    """`/status` of a full node. `receipts_refused`: how many, by error code."""

    kind: str
    version: str = ""
    uptime_s: float = 0.0
    validators_linked: int = 0
    messages: int = 0
    finalized: int = 0
    rejected: int = 0
    receipts: int = 0
    receipts_refused: dict[str, int] = {}
    open: int = 0
    statuses: int = 0
    statuses_waiting: int = 0
    parts: dict[str, str | None] = {}


class ListeningStatus(msgspec.Struct, frozen=True):
    """Session in which a validator listens and does not speak yet. `answered`: members, by index."""

    session: str
    part: str
    answered: tuple[int, ...]
    needed: int


class ValidatorPage(msgspec.Struct, frozen=True):
    """`/status` of a validator. `refused`: messages, by reason."""

    kind: str
    version: str = ""
    uptime_s: float = 0.0
    full_nodes_linked: int = 0
    master_block: int = 0
    shards: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    listening: tuple[ListeningStatus, ...] = ()
    messages: int = 0
    refused: dict[str, int] = {}
    parts: dict[str, str | None] = {}


class QueuedMessage(msgspec.Struct, frozen=True):
    """Message without an end. `status`: the last kind of receipt at a validator, the last stage at a full node."""

    index: int
    message_id: str
    shard: str
    status: str
    received_ms: int


class QueuedMessages(msgspec.Struct, frozen=True):
    entries: tuple[QueuedMessage, ...]
    next: int | None = None


# Reading them


class Reachable(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def metrics_port(self) -> int | None: ...


class NodeIsSilent(TransportError):
    """Error: the node has left its note but does not answer there."""


def node_status(facts: Reachable) -> DmqNodePage:
    return decoded(fetch(facts, "/status"), DmqNodePage)


def held_messages(facts: Reachable, after: int, limit: int) -> HeldMessages:
    """Return a page of the mempool: entries with an index greater than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), HeldMessages)


def queued_messages(facts: Reachable, after: int, limit: int) -> QueuedMessages:
    """Return a page of open messages: entries with an index greater than `after`."""
    return decoded(fetch(facts, f"/mempool?after={after}&limit={limit}"), QueuedMessages)


def fetch(facts: Reachable, target: str) -> bytes:
    """Return the answer of a node that runs on this machine."""
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
