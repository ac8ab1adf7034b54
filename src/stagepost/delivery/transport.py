"""What reliable delivery asks of the network below it, whatever that network is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from stagepost.delivery.envelope import AckReceipt
from stagepost.errors import ErrorCode, StagepostError


class Outgoing(msgspec.Struct, frozen=True):
    """One attempt. `ackers` are the nodes that shall confirm it; `created_ms` is the same for every attempt."""

    topic: str
    nonce: bytes
    created_ms: int
    attempt: int
    ackers: tuple[str, ...]
    payload: bytes


class Incoming(msgspec.Struct, frozen=True):
    """`sender` is authenticated: whoever signed it. `expires_at_ms` is when the network forgets this copy."""

    sender: str
    topic: str
    nonce: bytes
    created_ms: int
    attempt: int
    ackers: tuple[str, ...]
    payload: bytes
    expires_at_ms: int | None = None
    network_id: bytes | None = None


class IncomingAcks(msgspec.Struct, frozen=True):
    """`carrier` is the authenticated identity, `sender` what the envelope says: only if both agree do they count."""

    carrier: str
    sender: str
    receipts: tuple[AckReceipt, ...]


class Published(msgspec.Struct, frozen=True):
    """`network_id` names this attempt in the network; `relayed_to` counts the peers that have taken it, if known."""

    network_id: bytes | None = None
    relayed_to: int | None = None


class SendFailed(StagepostError):
    """It may go better later. `retry_after_s` is what the other side asked for; None: back off as usual."""

    default_code = ErrorCode.NO_CONNECTED_PEERS

    def __init__(
        self,
        text: str,
        retry_after_s: float | None = None,
        costs_attempt: bool = True,
        *,
        code: ErrorCode | None = None,
    ) -> None:
        super().__init__(text, code=code)
        self.retry_after_s = retry_after_s
        self.costs_attempt = costs_attempt


class SendRefused(StagepostError):
    """It will never be taken: trying again is of no use."""


MessageCallback: TypeAlias = Callable[[Incoming | IncomingAcks], None]
Unsubscribe: TypeAlias = Callable[[], None]


class Transport(Protocol):
    """`publish` may be cancelled at any time and must leave the transport usable; it must also end by itself."""

    @property
    def self_id(self) -> str:
        """This node's id, as others see it in `Incoming.sender`."""
        ...

    @property
    def max_payload(self) -> int:
        """Bytes of payload that fit with the longest topic and no ackers."""
        ...

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        """Bytes of payload that fit with this topic and these ackers."""
        ...

    @property
    def connected_peers(self) -> int: ...

    async def publish(self, message: Outgoing) -> Published:
        """`SendFailed` or `SendRefused` if the network did not take it."""
        ...

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        """On the reserved topic, from this node. Never repeated: who misses one asks again."""
        ...

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        """`callback` gets the new number of peers after every change."""
        ...

    def on_message(self, callback: MessageCallback) -> Unsubscribe: ...
