"""A program's side of nodes: `AsyncClient`, and `Client` for programs without a loop.

    with Client.connect() as client:                      # the nodes that run in stagepost-data
        sent = client.send(message)                       # an external message, to the full node
        verdict = client.wait_for(sent.message_id, "final", timeout_s=30)
        print(verdict, verdict.missing)

`Client` runs an `AsyncClient` in a thread of its own.
"""

from __future__ import annotations

from stagepost.client.blocking import Client
from stagepost.client.client import AsyncClient, DeliveryProgress, Sent
from stagepost.client.receiving import Received
from stagepost.dmq.endpoints.local_client import ClientLimits
from stagepost.dmq.endpoints.message_stream import ListenLimits, MessageStream
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.dmq.outcome import Accepted, Reason, Rejected
from stagepost.full_node.local_client import RefusedByFullNode
from stagepost.ground.net.webhook import WebhookConfig
from stagepost.remp.verdict.message_verdict import MessageVerdict
from stagepost.remp.verdict.trace import Trace

__all__ = [
    "Accepted",
    "AsyncClient",
    "Client",
    "ClientLimits",
    "DeliveryProgress",
    "DmqMessage",
    "ListenLimits",
    "MessageStream",
    "MessageVerdict",
    "Reason",
    "Received",
    "RefusedByFullNode",
    "Rejected",
    "Sent",
    "Trace",
    "WebhookConfig",
    "sign_message",
]
