"""The network below reliable delivery, as the publisher and the receiver use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from stagepost.delivery.envelope import AckReceipt
from stagepost.errors import ErrorCode, StagepostError

T = TypeVar("T")


class Outgoing(msgspec.Struct, frozen=True):
    """An attempt to send. `ackers` are the nodes that shall acknowledge; `created_ms` is the same for every attempt.

    `traceparent` is the W3C trace context of the caller; empty if there is none.
    """

    topic: str
    nonce: bytes
    created_ms: int
    attempt: int
    ackers: tuple[str, ...]
    payload: bytes
    traceparent: str = ""


class Incoming(msgspec.Struct, frozen=True):
    """A message from the network. `sender` is the authenticated signer.

    `expires_at_ms` is when the network forgets this copy.
    """

    sender: str
    topic: str
    nonce: bytes
    created_ms: int
    attempt: int
    ackers: tuple[str, ...]
    payload: bytes
    expires_at_ms: int | None = None
    network_id: bytes | None = None
    traceparent: str = ""


class IncomingAcks(msgspec.Struct, frozen=True):
    """Receipts from the network. They count only if `sender`, which the envelope names, is the authenticated `carrier`."""

    carrier: str
    sender: str
    receipts: tuple[AckReceipt, ...]


class Published(msgspec.Struct, frozen=True):
    """The answer to a send: `network_id` names the attempt; `relayed_to` counts the peers that took it, if known."""

    network_id: bytes | None = None
    relayed_to: int | None = None


class SendFailed(StagepostError):
    """Failure of a send that may go better later.

    `retry_after_s` is the wait that the other side asked for; None: back off as usual.
    """

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


class SendPaced(SendFailed):
    """Delay of a send by the network's rule for the pace of one sender: nothing was sent, and no attempt is used up.

    `retry_after_s` is the wait until the network takes a message of this sender again.
    """

    default_code = ErrorCode.MSG_TOO_FREQUENT

    def __init__(self, text: str, retry_after_s: float, *, code: ErrorCode | None = None) -> None:
        super().__init__(text, retry_after_s, costs_attempt=False, code=code)
        self.wait_s = retry_after_s


class SendRefused(StagepostError):
    """Refusal of a message for good: another attempt is of no use."""


MessageCallback: TypeAlias = Callable[[Incoming | IncomingAcks], None]
Unsubscribe: TypeAlias = Callable[[], None]


def registered(callbacks: list[T], callback: T) -> Unsubscribe:
    """Add `callback` to the list; return the function that removes it again, which may be called more than once."""
    callbacks.append(callback)

    def unregister() -> None:
        if callback in callbacks:
            callbacks.remove(callback)

    return unregister


def absence_of(transport: object) -> StagepostError | None:
    """Return why a transport has no peer, with advice, from its attribute `absence`; None if it has no such attribute.

    The attribute is not a member of `Transport`: a network that cannot tell the reason need not have it.
    """
    found = getattr(transport, "absence", None)
    return found if isinstance(found, StagepostError) else None


def require_peers(transport: object, peers: Iterable[str]) -> None:
    """Raise if one of `peers` cannot be a node of the transport's network, by its method `check_peer`.

    The method is not a member of `Transport`: a network that takes any name need not have it.
    """
    check = getattr(transport, "check_peer", None)
    if check is not None:
        for peer in peers:
            check(peer)


class Transport(Protocol):
    """Access to a network. `publish` must end by itself, and leave the transport usable if it is cancelled."""

    @property
    def self_id(self) -> str:
        """Return this node's id, as others see it in `Incoming.sender`."""
        ...

    @property
    def max_payload(self) -> int:
        """Return the bytes of payload that fit with the longest topic and no ackers."""
        ...

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        """Return the bytes of payload that fit with this topic and these ackers."""
        ...

    @property
    def connected_peers(self) -> int: ...

    async def publish(self, message: Outgoing) -> Published:
        """Hand one attempt to the network; raise `SendFailed` or `SendRefused` if the network did not take it."""
        ...

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        """Send receipts from this node on the reserved topic, once: a sender who misses one asks again."""
        ...

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        """Call `callback` with the new number of peers after every change."""
        ...

    def on_message(self, callback: MessageCallback) -> Unsubscribe: ...
