"""Reliable publishing on top of a message network.

    from stagepost.delivery import MemoryNetwork, Receiver, ReliablePublisher, ReliablePublisherConfig

Names are loaded when they are first used, so that the modules below, which are pure, stay free of the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
    from stagepost.delivery.endings import FailedMessage
    from stagepost.delivery.errors import (
        DeliveryError,
        ErrAckDisabled,
        ErrAckTimeout,
        ErrAlreadyStarted,
        ErrCancelled,
        ErrClosed,
        ErrConfig,
        ErrKeyConflict,
        ErrMaxRetries,
        ErrMessageExpired,
        ErrMessageTooLarge,
        ErrNacked,
        ErrNoConnectedPeers,
        ErrNoCriticalPeers,
        ErrNotStarted,
        ErrQueueCorrupt,
        ErrQueueEvicted,
        ErrQueueFull,
        ErrQueueLocked,
        ErrRejected,
        ErrReservedTopic,
        ErrSendFailed,
        ErrStorage,
    )
    from stagepost.delivery.shell.handling import Busy, Message, Reject
    from stagepost.delivery.shell.publisher import ReliablePublisher
    from stagepost.delivery.shell.receiver import Receiver
    from stagepost.delivery.status import AckType, DeliveryResult, DeliveryStatus, NackReason, Tier
    from stagepost.delivery.stores.inbox_stores import claim_within
    from stagepost.delivery.transport import (
        Incoming,
        IncomingAcks,
        Outgoing,
        Published,
        SendFailed,
        SendPaced,
        SendRefused,
        Transport,
    )
    from stagepost.delivery.transports.dmq import DmqTransport
    from stagepost.delivery.transports.memory import MemoryNetwork
    from stagepost.delivery.transports.sockets import SocketPeer, SocketTransport

_HOMES = {
    "stagepost.delivery.config": ("ReceiverConfig", "ReliablePublisherConfig"),
    "stagepost.delivery.endings": ("FailedMessage",),
    "stagepost.delivery.errors": (
        "DeliveryError",
        "ErrAckDisabled",
        "ErrAckTimeout",
        "ErrAlreadyStarted",
        "ErrCancelled",
        "ErrClosed",
        "ErrConfig",
        "ErrKeyConflict",
        "ErrMaxRetries",
        "ErrMessageExpired",
        "ErrMessageTooLarge",
        "ErrNacked",
        "ErrNoConnectedPeers",
        "ErrNoCriticalPeers",
        "ErrNotStarted",
        "ErrQueueCorrupt",
        "ErrQueueEvicted",
        "ErrQueueFull",
        "ErrQueueLocked",
        "ErrRejected",
        "ErrReservedTopic",
        "ErrSendFailed",
        "ErrStorage",
    ),
    "stagepost.delivery.status": ("AckType", "DeliveryResult", "DeliveryStatus", "NackReason", "Tier"),
    "stagepost.delivery.transport": (
        "Incoming",
        "IncomingAcks",
        "Outgoing",
        "Published",
        "SendFailed",
        "SendPaced",
        "SendRefused",
        "Transport",
    ),
    "stagepost.delivery.transports.dmq": ("DmqTransport",),
    "stagepost.delivery.shell.handling": ("Busy", "Message", "Reject"),
    "stagepost.delivery.stores.inbox_stores": ("claim_within",),
    "stagepost.delivery.transports.memory": ("MemoryNetwork",),
    "stagepost.delivery.transports.sockets": ("SocketPeer", "SocketTransport"),
    "stagepost.delivery.shell.publisher": ("ReliablePublisher",),
    "stagepost.delivery.shell.receiver": ("Receiver",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AckType",
    "Busy",
    "DeliveryError",
    "DeliveryResult",
    "DeliveryStatus",
    "DmqTransport",
    "ErrAckDisabled",
    "ErrAckTimeout",
    "ErrAlreadyStarted",
    "ErrCancelled",
    "ErrClosed",
    "ErrConfig",
    "ErrKeyConflict",
    "ErrMaxRetries",
    "ErrMessageExpired",
    "ErrMessageTooLarge",
    "ErrNacked",
    "ErrNoConnectedPeers",
    "ErrNoCriticalPeers",
    "ErrNotStarted",
    "ErrQueueCorrupt",
    "ErrQueueEvicted",
    "ErrQueueFull",
    "ErrQueueLocked",
    "ErrRejected",
    "ErrReservedTopic",
    "ErrSendFailed",
    "ErrStorage",
    "FailedMessage",
    "Incoming",
    "IncomingAcks",
    "MemoryNetwork",
    "Message",
    "NackReason",
    "Outgoing",
    "Published",
    "Receiver",
    "ReceiverConfig",
    "Reject",
    "ReliablePublisher",
    "ReliablePublisherConfig",
    "SendFailed",
    "SendPaced",
    "SendRefused",
    "SocketPeer",
    "SocketTransport",
    "Tier",
    "Transport",
    "claim_within",
]


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
