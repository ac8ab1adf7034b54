"""Reliable publishing on top of a message network.

    from stagepost.delivery import MemoryNetwork, Receiver, ReliablePublisher, ReliablePublisherConfig

Names are loaded when they are first used, so that the modules below, which are pure, stay free of the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
    from stagepost.delivery.ended import FailedMessage
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
    from stagepost.delivery.status import AckType, DeliveryStatus, NackReason, Tier
    from stagepost.runtime.delivery.dmq_transport import DmqTransport
    from stagepost.runtime.delivery.handling import Busy, Message, Reject
    from stagepost.runtime.delivery.inbox_rows import claim_within
    from stagepost.runtime.delivery.memory_network import MemoryNetwork
    from stagepost.runtime.delivery.publisher import ReliablePublisher
    from stagepost.runtime.delivery.receiver import Receiver
    from stagepost.runtime.delivery.result import DeliveryResult

_HOMES = {
    "stagepost.delivery.config": ("ReceiverConfig", "ReliablePublisherConfig"),
    "stagepost.delivery.ended": ("FailedMessage",),
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
    "stagepost.delivery.status": ("AckType", "DeliveryStatus", "NackReason", "Tier"),
    "stagepost.runtime.delivery.dmq_transport": ("DmqTransport",),
    "stagepost.runtime.delivery.handling": ("Busy", "Message", "Reject"),
    "stagepost.runtime.delivery.inbox_rows": ("claim_within",),
    "stagepost.runtime.delivery.memory_network": ("MemoryNetwork",),
    "stagepost.runtime.delivery.publisher": ("ReliablePublisher",),
    "stagepost.runtime.delivery.receiver": ("Receiver",),
    "stagepost.runtime.delivery.result": ("DeliveryResult",),
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
    "MemoryNetwork",
    "Message",
    "NackReason",
    "Receiver",
    "ReceiverConfig",
    "Reject",
    "ReliablePublisher",
    "ReliablePublisherConfig",
    "Tier",
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
