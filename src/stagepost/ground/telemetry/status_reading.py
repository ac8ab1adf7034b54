"""Status pages of nodes that run on this machine, read over HTTP."""

from __future__ import annotations

import http.client
from typing import Protocol, TypeVar

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError, TransportError
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.telemetry.status import DmqNodePage, HeldMessages, QueuedMessages
from stagepost.ground.wire.foreign_json import decode_foreign

ANSWER_BYTES_MAX = 64 * 1024 * 1024
ANSWER_TIMEOUT_S = 10.0

T = TypeVar("T")


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
            f"the node's answer cannot be read: {error}",
            advice="use the same version for node and commands",
        ) from error
