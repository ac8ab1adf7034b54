"""Submit DMQ messages to a node and listen for them: `AsyncClient`, and `Client` for programs without a loop."""

from __future__ import annotations

from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.dmq.outcome import Accepted, Reason, Rejected
from stagepost.runtime.blocking_client import Client
from stagepost.runtime.client import AsyncClient, ClientLimits
from stagepost.runtime.message_stream import ListenLimits, MessageStream

__all__ = [
    "Accepted",
    "AsyncClient",
    "Client",
    "ClientLimits",
    "DmqMessage",
    "ListenLimits",
    "MessageStream",
    "Reason",
    "Rejected",
    "sign_message",
]
