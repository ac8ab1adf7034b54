"""What the specification and the three documents say, typed in by hand: state graphs, tags and plain CBOR values.

Nothing here is taken from the package's own tables, so that a mistake there cannot hide here. Only the message
types are the package's, since the tests say something about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cbor2

from stagepost.dmq import local_notification, local_submission, peer_sharing, submission
from stagepost.dmq.cardano import state_query
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.ground.net import handshake
from stagepost.ground.net import keep_alive_protocol as keep_alive

MIB = 1024 * 1024


@dataclass(frozen=True)
class PublishedState:
    name: str
    speaker: str | None
    timeout_s: float | None = None
    bytes_max: int | None = 65_535  # None: the sources name no limit
    id: int | None = None


@dataclass(frozen=True)
class PublishedEdge:
    source: str
    message: str
    target: str
    where: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedProtocol:
    states: tuple[PublishedState, ...]  # the first is the initial one
    edges: tuple[PublishedEdge, ...]

    def state(self, name: str) -> PublishedState:
        return next(state for state in self.states if state.name == name)

    def target(self, state: str, message: object) -> str | None:
        for edge in self.edges:
            if edge.source == state and edge.message == type(message).__name__:
                chosen = all(getattr(message, name) == value for name, value in edge.where.items())
                if chosen:
                    return edge.target
        return None


CLIENT, SERVER = "client", "server"
BLOCKING: Mapping[str, object] = {"blocking": True}
NON_BLOCKING: Mapping[str, object] = {"blocking": False}


def _submission_edges(*more: PublishedEdge) -> tuple[PublishedEdge, ...]:
    """What both published versions and the documents share."""
    return (
        PublishedEdge("Idle", "RequestMessageIds", "MessageIdsBlocking", BLOCKING),
        PublishedEdge("Idle", "RequestMessageIds", "MessageIdsNonBlocking", NON_BLOCKING),
        PublishedEdge("Idle", "RequestMessages", "Messages"),
        PublishedEdge("MessageIdsBlocking", "ReplyMessageIds", "Idle"),
        PublishedEdge("MessageIdsNonBlocking", "ReplyMessageIds", "Idle"),
        PublishedEdge("Messages", "ReplyMessages", "Idle"),
        *more,
    )


_LOCAL_SUBMISSION_EDGES = (
    PublishedEdge("Idle", "SubmitMessage", "Busy"),
    PublishedEdge("Idle", "Done", "Done"),
    PublishedEdge("Busy", "AcceptMessage", "Idle"),
    PublishedEdge("Busy", "RejectMessage", "Idle"),
)
_LOCAL_NOTIFICATION_EDGES = (
    PublishedEdge("Idle", "RequestMessages", "BusyNonBlocking", NON_BLOCKING),
    PublishedEdge("Idle", "RequestMessages", "BusyBlocking", BLOCKING),
    PublishedEdge("Idle", "ClientDone", "Done"),
    PublishedEdge("BusyNonBlocking", "ReplyMessagesNonBlocking", "Idle"),
    PublishedEdge("BusyBlocking", "ReplyMessagesBlocking", "Idle"),
)

PUBLISHED: Mapping[str, PublishedProtocol] = {
    "Handshake": PublishedProtocol(
        (
            PublishedState("Propose", CLIENT, 10, 5_760),
            PublishedState("Confirm", SERVER, 10, 5_760),
            PublishedState("Done", None),
        ),
        (
            PublishedEdge("Propose", "ProposeVersions", "Confirm"),
            PublishedEdge("Confirm", "AcceptVersion", "Done"),
            PublishedEdge("Confirm", "Refuse", "Done"),
            PublishedEdge("Confirm", "QueryReply", "Done"),
            PublishedEdge("Confirm", "ReplyVersions", "Done"),
        ),
    ),
    "KeepAlive": PublishedProtocol(
        (
            PublishedState("Client", CLIENT, 97),
            PublishedState("Server", SERVER, 60),
            PublishedState("Done", None),
        ),
        (
            PublishedEdge("Client", "KeepAlive", "Server"),
            PublishedEdge("Client", "Done", "Done"),
            PublishedEdge("Server", "KeepAliveResponse", "Client"),
        ),
    ),
    "PeerSharing": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT, None, 5_760),
            PublishedState("Busy", SERVER, 60, 5_760),
            PublishedState("Done", None),
        ),
        (
            PublishedEdge("Idle", "ShareRequest", "Busy"),
            PublishedEdge("Idle", "Done", "Done"),
            PublishedEdge("Busy", "SharePeers", "Idle"),
        ),
    ),
    "MessageSubmission version 1": PublishedProtocol(
        (
            PublishedState("Init", CLIENT),
            PublishedState("Idle", SERVER),
            PublishedState("MessageIdsBlocking", CLIENT),
            PublishedState("MessageIdsNonBlocking", CLIENT, 10),
            PublishedState("Messages", CLIENT, 10, 98_000),
            PublishedState("Done", None),
        ),
        _submission_edges(
            PublishedEdge("Init", "Init", "Idle"),
            PublishedEdge("MessageIdsBlocking", "Done", "Done"),
        ),
    ),
    "MessageSubmission version 2": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT),
            PublishedState("MessageIdsBlocking", SERVER, 20),
            PublishedState("MessageIdsNonBlocking", SERVER, 10),
            PublishedState("Messages", SERVER, 10, 98_000),
            PublishedState("Done", None),
        ),
        _submission_edges(
            PublishedEdge("MessageIdsBlocking", "ReplyNoMessageIds", "Idle"),
            PublishedEdge("Idle", "Done", "Done"),
        ),
    ),
    "MessageSubmission seed": PublishedProtocol(
        (
            PublishedState("Init", CLIENT, 30, id=1),
            PublishedState("Idle", SERVER, 300, id=2),
            PublishedState("MessageIdsBlocking", CLIENT, 30, id=3),
            PublishedState("MessageIdsNonBlocking", CLIENT, 10, id=4),  # "0 (immediate)"
            PublishedState("Messages", CLIENT, 30, None, id=5),
            PublishedState("Done", None, 10, id=6),
        ),
        _submission_edges(
            PublishedEdge("Init", "Init", "Idle"),
            PublishedEdge("Idle", "Done", "Done"),
            PublishedEdge("MessageIdsBlocking", "Done", "Done"),
            PublishedEdge("MessageIdsNonBlocking", "Done", "Done"),
        ),
    ),
    "LocalMessageSubmission": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT, None, None),
            PublishedState("Busy", SERVER, None, None),
            PublishedState("Done", None),
        ),
        _LOCAL_SUBMISSION_EDGES,
    ),
    "LocalMessageSubmission seed": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT, 300, None, id=1),
            PublishedState("Busy", SERVER, 30, None, id=2),
            PublishedState("Done", None, 10, id=3),
        ),
        _LOCAL_SUBMISSION_EDGES,
    ),
    "LocalMessageNotification": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT, None, None),
            PublishedState("BusyNonBlocking", SERVER, None, 4 * MIB),
            PublishedState("BusyBlocking", SERVER, None, 4 * MIB),
            PublishedState("Done", None),
        ),
        _LOCAL_NOTIFICATION_EDGES,
    ),
    "LocalMessageNotification seed": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT, 300, None, id=1),
            PublishedState("BusyNonBlocking", SERVER, 10, 4 * MIB, id=2),  # "0 (immediate)"
            PublishedState("BusyBlocking", SERVER, None, 4 * MIB, id=3),  # "0 (indefinite)"
            PublishedState("Done", None, 10, id=4),
        ),
        _LOCAL_NOTIFICATION_EDGES,
    ),
    # Nodes set no limits here: the times are those of a client that asks them today, the sizes our own.
    "LocalStateQuery": PublishedProtocol(
        (
            PublishedState("Idle", CLIENT),
            PublishedState("Acquiring", SERVER, 5),
            PublishedState("Acquired", CLIENT),
            PublishedState("Querying", SERVER, 180, 16 * MIB),
            PublishedState("Done", None),
        ),
        (
            PublishedEdge("Idle", "AcquirePoint", "Acquiring"),
            PublishedEdge("Idle", "AcquireVolatileTip", "Acquiring"),
            PublishedEdge("Idle", "AcquireImmutableTip", "Acquiring"),
            PublishedEdge("Idle", "QueriesDone", "Done"),
            PublishedEdge("Acquiring", "StateAcquired", "Acquired"),
            PublishedEdge("Acquiring", "AcquireFailure", "Idle"),
            PublishedEdge("Acquired", "StateQuery", "Querying"),
            PublishedEdge("Querying", "StateResult", "Acquired"),
            PublishedEdge("Acquired", "ReacquirePoint", "Acquiring"),
            PublishedEdge("Acquired", "ReacquireVolatileTip", "Acquiring"),
            PublishedEdge("Acquired", "ReacquireImmutableTip", "Acquiring"),
            PublishedEdge("Acquired", "ReleaseState", "Idle"),
        ),
    ),
}

MAY_BE_SENT_AHEAD = {"MessageIdsNonBlocking", "Messages"}
"""States whose answer the asker need not await before it asks for more."""

HASKELL, CIP = "haskell", "cip"
SUBMISSION_TAGS: Mapping[tuple[int, str], Mapping[type[object], int]] = {
    (1, HASKELL): {
        submission.Init: 6,
        submission.RequestMessageIds: 0,
        submission.ReplyMessageIds: 1,
        submission.RequestMessages: 2,
        submission.ReplyMessages: 3,
        submission.Done: 4,
    },
    (1, CIP): {
        submission.Init: 0,
        submission.RequestMessageIds: 1,
        submission.ReplyMessageIds: 2,
        submission.RequestMessages: 3,
        submission.ReplyMessages: 4,
        submission.Done: 5,
    },
    (2, HASKELL): {
        submission.RequestMessageIds: 1,
        submission.ReplyMessageIds: 2,
        submission.ReplyNoMessageIds: 3,
        submission.RequestMessages: 4,
        submission.ReplyMessages: 5,
        submission.Done: 6,
    },
    (2, CIP): {
        submission.RequestMessageIds: 1,
        submission.ReplyMessageIds: 2,
        submission.RequestMessages: 3,
        submission.ReplyMessages: 4,
        submission.Done: 5,
    },
}
OTHER_TAGS: Mapping[type[object], int] = {
    handshake.ProposeVersions: 0,
    handshake.ReplyVersions: 0,
    handshake.AcceptVersion: 1,
    handshake.Refuse: 2,
    handshake.QueryReply: 3,
    keep_alive.KeepAlive: 0,
    keep_alive.KeepAliveResponse: 1,
    keep_alive.Done: 2,
    peer_sharing.ShareRequest: 0,
    peer_sharing.SharePeers: 1,
    peer_sharing.Done: 2,
    local_submission.SubmitMessage: 0,
    local_submission.AcceptMessage: 1,
    local_submission.RejectMessage: 2,
    local_submission.Done: 3,
    local_notification.RequestMessages: 0,
    local_notification.ReplyMessagesNonBlocking: 1,
    local_notification.ReplyMessagesBlocking: 2,
    local_notification.ClientDone: 3,
    state_query.AcquirePoint: 0,
    state_query.StateAcquired: 1,
    state_query.AcquireFailure: 2,
    state_query.StateQuery: 3,
    state_query.StateResult: 4,
    state_query.ReleaseState: 5,
    state_query.ReacquirePoint: 6,
    state_query.QueriesDone: 7,
    state_query.AcquireVolatileTip: 8,
    state_query.ReacquireVolatileTip: 9,
    state_query.AcquireImmutableTip: 10,
    state_query.ReacquireImmutableTip: 11,
}

LISTS_OF_IDS_AND_MESSAGES = (
    submission.ReplyMessageIds,
    submission.RequestMessages,
    submission.ReplyMessages,
    local_notification.ReplyMessagesNonBlocking,
    local_notification.ReplyMessagesBlocking,
)
"""Messages whose one list is written indefinite by nodes in Haskell and definite by the others."""


def plain_message(message: DmqMessage) -> list[Any]:
    """The signed message as nested lists, as its two published layouts arrange it."""
    certificate = message.operational_certificate
    tail = [
        message.kes_signature,
        [
            certificate.kes_verification_key,
            certificate.issue_number,
            certificate.start_kes_period,
            certificate.cold_signature,
        ],
        message.cold_verification_key,
    ]
    payload = [message.body, message.kes_period, message.expires_at]
    if message.layout is MessageLayout.FOUR:
        return [[message.message_id, *payload], *tail]
    return [message.message_id, payload, *tail]


def _plain_versions(versions: tuple[handshake.OfferedVersion, ...]) -> dict[int, Any]:
    return {offered.number: cbor2.loads(offered.parameters) for offered in versions}


def _plain_reason(reason: object) -> list[Any]:
    match reason:
        case handshake.VersionMismatch(versions):
            return [0, list(versions)]
        case handshake.HandshakeDecodeError(version, text):
            return [1, version, text]
        case handshake.Refused(version, text):
            return [2, version, text]
        case local_submission.Invalid(text):
            return [0, text]
        case local_submission.AlreadyReceived():
            return [1]
        case local_submission.Expired():
            return [2]
        case local_submission.Other(text):
            return [3, text]
        case _:
            raise TypeError(f"{reason!r} is no published reason")


def _plain_address(peer: peer_sharing.PeerAddress) -> list[int]:
    if ":" not in peer.host:
        first, second, third, fourth = map(int, peer.host.split("."))
        return [0, first | second << 8 | third << 16 | fourth << 24, peer.port]
    left, _, right = peer.host.partition("::")
    before = [int(group, 16) for group in left.split(":") if group]
    behind = [int(group, 16) for group in right.split(":") if group]
    groups = before + [0] * (8 - len(before) - len(behind)) + behind
    words = [groups[at] << 16 | groups[at + 1] for at in (0, 2, 4, 6)]
    return [1, *words, peer.port]


def plain(message: Any, tag: int) -> list[Any]:
    """What another CBOR library must read from our bytes of `message`."""
    match message:
        case submission.RequestMessageIds(blocking, acknowledged, requested):
            return [tag, blocking, acknowledged, requested]
        case submission.ReplyMessageIds(ids):
            return [tag, [[announced.message_id, announced.size_in_bytes] for announced in ids]]
        case submission.RequestMessages(ids):
            return [tag, list(ids)]
        case submission.ReplyMessages(messages) | local_notification.ReplyMessagesBlocking(messages):
            return [tag, [plain_message(entry) for entry in messages]]
        case local_notification.ReplyMessagesNonBlocking(messages, has_more):
            return [tag, [plain_message(entry) for entry in messages], has_more]
        case local_notification.RequestMessages(blocking):
            return [tag, blocking]
        case local_submission.SubmitMessage(entry):
            assert isinstance(entry, DmqMessage)
            return [tag, plain_message(entry)]
        case local_submission.RejectMessage(reason):
            return [tag, _plain_reason(reason)]
        case handshake.Refuse(reason):
            return [tag, _plain_reason(reason)]
        case handshake.ProposeVersions(versions) | handshake.ReplyVersions(versions):
            return [tag, _plain_versions(versions)]
        case handshake.QueryReply(versions):
            return [tag, _plain_versions(versions)]
        case handshake.AcceptVersion(version, parameters):
            return [tag, version, cbor2.loads(parameters)]
        case keep_alive.KeepAlive(cookie) | keep_alive.KeepAliveResponse(cookie):
            return [tag, cookie]
        case peer_sharing.ShareRequest(amount):
            return [tag, amount]
        case peer_sharing.SharePeers(peers):
            return [tag, [_plain_address(peer) for peer in peers]]
        case state_query.AcquirePoint(point) | state_query.ReacquirePoint(point):
            return [tag, [] if point is None else [point.slot, point.block_hash]]
        case state_query.AcquireFailure(fault):
            return [tag, ["POINT_TOO_OLD", "POINT_NOT_ON_CHAIN"].index(fault.name)]
        case state_query.StateQuery(content) | state_query.StateResult(content):
            return [tag, cbor2.loads(content)]
        case _:
            return [tag]
