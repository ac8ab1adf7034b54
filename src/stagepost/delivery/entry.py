"""One message while it is on its way."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from stagepost.delivery.acks import AckTally
from stagepost.delivery.status import PENDING, SENT, DeliveryStatus, Tier

NEVER = float("inf")


class Moment(NamedTuple):
    """Now, by both clocks: all waiting goes by the first, which never goes back; the second is for people."""

    mono_s: float
    unix_ms: int


class Phase(IntEnum):
    """What the publisher is doing with an entry; its status is what observers were told."""

    STORING = 0  # not accepted yet
    READY = 1  # to be sent in its turn
    BACKING_OFF = 2  # to be sent when its time has come
    HELD = 3  # to be sent when another message is resolved
    SENDING = 4
    AWAITING = 5  # for acknowledgements
    LEAVING = 6  # chosen to make room for a message that is being stored
    ENDED = 7


# Names of their own, for reaching a member through its enum costs ten times as much, and each message needs dozens.
STORING: Final = Phase.STORING
READY: Final = Phase.READY
BACKING_OFF: Final = Phase.BACKING_OFF
HELD: Final = Phase.HELD
SENDING: Final = Phase.SENDING
AWAITING: Final = Phase.AWAITING
LEAVING: Final = Phase.LEAVING
ENDED: Final = Phase.ENDED


class Entry:
    """Mutable, and touched by the core alone, except for `waiters` and `sending_task`, which belong to the shell."""

    __slots__ = (
        "attempt_first",
        "attempts",
        "budget_at",
        "created_ms",
        "delivery_id",
        "evicted",
        "expires_at",
        "id_text",
        "is_fate_unknown",
        "key_hash",
        "last_cause",
        "last_used",
        "maybe_duplicate",
        "network_id",
        "nonce",
        "payload",
        "phase",
        "replayed",
        "sending_task",
        "sends",
        "sequence",
        "size",
        "status",
        "tally",
        "tier",
        "timer_at",
        "timestamp_ms",
        "topic",
        "wait_until",
        "waiters",
    )

    def __init__(
        self,
        sequence: int,
        delivery_id: bytes,
        tier: Tier,
        topic: str,
        payload: bytes,
        nonce: bytes,
        created_ms: int,
        tally: AckTally | None,
        key_hash: bytes | None = None,
    ) -> None:
        self.sequence = sequence
        self.delivery_id = delivery_id
        self.id_text = delivery_id.hex()
        self.tier = tier
        self.topic = topic
        self.payload = payload
        self.nonce = nonce
        self.created_ms = created_ms
        self.tally = tally
        self.key_hash = key_hash
        self.size = len(payload) + len(topic)
        self.status: DeliveryStatus = PENDING
        self.phase: Phase = STORING
        self.attempts = 0
        """Sends that count against the limit."""
        self.sends = 0
        """Sends that the network took, in this life."""
        self.attempt_first = 0
        """Number of the first attempt: a replay goes on counting where the former life ended."""
        self.last_used = 0
        self.maybe_duplicate = False
        self.is_fate_unknown = False
        """It may have been sent without our knowing: before a restart, or by a send that was broken off."""
        self.wait_until = NEVER
        self.budget_at = NEVER
        self.expires_at = NEVER
        self.timer_at = NEVER
        self.network_id: bytes | None = None
        self.last_cause: Exception | None = None
        self.timestamp_ms = created_ms
        self.evicted: tuple[Entry, ...] = ()
        """Those that make room for it while it is being stored."""
        self.replayed: int | None = None
        """Sequence of the dead letter that it is made from."""
        self.waiters: list[Any] = []
        self.sending_task: Any = None

    @property
    def wants_ack(self) -> bool:
        return self.tally is not None

    @property
    def is_sent(self) -> bool:
        return self.status is SENT

    @property
    def attempt_number(self) -> int:
        """Of the next attempt, or of the running one."""
        return self.attempt_first + self.attempts

    @property
    def acked_by(self) -> tuple[str, ...]:
        return () if self.tally is None else tuple(self.tally.acked)

    @property
    def critical(self) -> tuple[str, ...]:
        """Whose confirmation counts; nobody's, where none is asked for."""
        return () if self.tally is None else self.tally.critical

    @property
    def required(self) -> int:
        """How many of them."""
        return 0 if self.tally is None else self.tally.required
