"""Every error of reliable delivery, by the names that programs catch.

DeliveryError
├── ErrNoConnectedPeers, ErrSendFailed, ErrRejected        the network was not there, failed, or said no
├── ErrAckTimeout, ErrNacked, ErrMaxRetries                tried, and not acknowledged or not handed over
├── ErrQueueFull, ErrQueueEvicted, ErrMessageExpired       the queue had no room, or the message waited too long
├── ErrAckDisabled, ErrNoCriticalPeers, ErrConfig, ErrReservedTopic, ErrMessageTooLarge, ErrKeyConflict
│                                                          the caller's mistake; nothing has happened
├── ErrStorage ← ErrQueueLocked, ErrQueueCorrupt           the outbox on disk
└── ErrCancelled, ErrClosed, ErrNotStarted, ErrAlreadyStarted
"""

from __future__ import annotations

from stagepost.delivery.status import DeliveryResult
from stagepost.errors import ErrorCode, StagepostError


class DeliveryError(StagepostError):
    """Base of all errors here. `message_id` has 64 hex characters; `result` names the peers that acknowledged so far."""

    message_id: str | None  # type: ignore[assignment]  # the API speaks of ids as text

    def __init__(
        self,
        text: str,
        *,
        code: ErrorCode | None = None,
        advice: str = "",
        message_id: str | None = None,
        result: DeliveryResult | None = None,
        may_have_been_delivered: bool = False,
        evicted_by: str | None = None,
        limit: int | None = None,
        found: object = None,
    ) -> None:
        super().__init__(text, code=code, advice=advice, limit=limit, found=found)
        self.message_id = message_id
        self.result = result
        self.may_have_been_delivered = may_have_been_delivered
        self.evicted_by = evicted_by


class ErrNoConnectedPeers(DeliveryError):
    default_code = ErrorCode.NO_CONNECTED_PEERS


class ErrAckTimeout(DeliveryError):
    default_code = ErrorCode.ACK_TIMEOUT


class ErrNacked(DeliveryError):
    default_code = ErrorCode.NO_QUORUM


class ErrMaxRetries(DeliveryError):
    default_code = ErrorCode.NO_CONNECTED_PEERS


class ErrQueueFull(DeliveryError):
    default_code = ErrorCode.QUEUE_FULL


class ErrQueueEvicted(DeliveryError):
    """Eviction from a full queue; `evicted_by` is the id of the message that took the place."""

    default_code = ErrorCode.QUEUE_FULL


class ErrMessageExpired(DeliveryError):
    default_code = ErrorCode.MSG_EXPIRED


class ErrAckDisabled(DeliveryError):
    default_code = ErrorCode.CONFIG_INVALID


class ErrNoCriticalPeers(DeliveryError):
    default_code = ErrorCode.CONFIG_INVALID


class ErrConfig(DeliveryError):
    default_code = ErrorCode.CONFIG_INVALID


class ErrReservedTopic(DeliveryError):
    default_code = ErrorCode.CONFIG_INVALID


class ErrMessageTooLarge(DeliveryError):
    default_code = ErrorCode.MSG_BODY_SIZE


class ErrKeyConflict(DeliveryError):
    default_code = ErrorCode.CONFIG_INVALID


class ErrSendFailed(DeliveryError):
    """Failure of the transport; the code is that of the cause, if it has one."""

    default_code = ErrorCode.NO_CONNECTED_PEERS


class ErrRejected(DeliveryError):
    """Refusal by the transport for good; the code is that of the cause, if it has one."""

    default_code = ErrorCode.CONFIG_INVALID


class ErrStorage(DeliveryError):
    default_code = ErrorCode.STORAGE_UNAVAILABLE


class ErrQueueLocked(ErrStorage):
    pass


class ErrQueueCorrupt(ErrStorage):
    pass


class ErrCancelled(DeliveryError):
    default_code = ErrorCode.PROTOCOL_STATE


class ErrClosed(DeliveryError):
    default_code = ErrorCode.NOT_READY


class ErrNotStarted(DeliveryError):
    default_code = ErrorCode.NOT_READY


class ErrAlreadyStarted(DeliveryError):
    default_code = ErrorCode.PROTOCOL_STATE


ALL_ERRORS: tuple[type[DeliveryError], ...] = (
    DeliveryError,
    ErrNoConnectedPeers,
    ErrAckTimeout,
    ErrNacked,
    ErrMaxRetries,
    ErrQueueFull,
    ErrQueueEvicted,
    ErrMessageExpired,
    ErrAckDisabled,
    ErrNoCriticalPeers,
    ErrConfig,
    ErrReservedTopic,
    ErrMessageTooLarge,
    ErrKeyConflict,
    ErrSendFailed,
    ErrRejected,
    ErrStorage,
    ErrQueueLocked,
    ErrQueueCorrupt,
    ErrCancelled,
    ErrClosed,
    ErrNotStarted,
    ErrAlreadyStarted,
)
