"""Each mini-protocol by itself, as the documents describe it, for people who build their own node.

The side that answers is called server, except in message submission, where the server is the side that pulls. Every
endpoint runs over one `Conversation`, which `Connection.open` gives after the handshake (`initiate`, `respond`).
"""

from __future__ import annotations

from stagepost.dmq.endpoints.connection import Connection, initiate, respond
from stagepost.dmq.endpoints.local_notification import (
    LocalMessageNotificationClient,
    LocalMessageNotificationConfig,
    LocalMessageNotificationServer,
    MessageFeed,
    Notification,
)
from stagepost.dmq.endpoints.local_submission import (
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.dmq.endpoints.submission_client import MessageSubmissionClient
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig
from stagepost.dmq.endpoints.submission_server import MessageSubmissionServer
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.dmq.outcome import Accepted, Reason, Rejected
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile, profile_named
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, run_conversations
from stagepost.ground.net.sockets import connect_tcp, connect_unix, serve_tcp, serve_unix
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role

__all__ = [
    "PROFILES",
    "Accepted",
    "Bearer",
    "Connection",
    "ConnectionKind",
    "Conversation",
    "DmqMessage",
    "LocalMessageNotificationClient",
    "LocalMessageNotificationConfig",
    "LocalMessageNotificationServer",
    "LocalMessageSubmissionClient",
    "LocalMessageSubmissionConfig",
    "LocalMessageSubmissionServer",
    "MessageFeed",
    "MessageIdAndSize",
    "MessageSubmissionClient",
    "MessageSubmissionConfig",
    "MessageSubmissionServer",
    "MiniProtocol",
    "Notification",
    "Profile",
    "Reason",
    "Rejected",
    "Role",
    "VersionData",
    "connect_tcp",
    "connect_unix",
    "initiate",
    "profile_named",
    "respond",
    "run_conversations",
    "serve_tcp",
    "serve_unix",
    "sign_message",
]
