"""The message on its way: an entry of the outbox, its phases, and the clocks that it follows."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from stagepost.delivery.acks import AckTally
from stagepost.delivery.status import PENDING, SENT, DeliveryStatus, Tier
from stagepost.errors import StagepostError
from stagepost.ground.identifiers import MESSAGES_TOPIC

NEVER = float("inf")


class ClockTimes(NamedTuple):
    """The present by both clocks: timers follow `mono_s`, which never goes back; `unix_ms` is for people."""

    mono_s: float
    unix_ms: int


class Phase(IntEnum):
    """The publisher's current work on an entry. The entry's status is what observers were told."""

    STORING = 0  # not accepted yet
    READY = 1  # to be sent in its turn
    BACKING_OFF = 2  # to be sent when its time has come
    HELD = 3  # to be sent when another message is resolved
    SENDING = 4
    AWAITING = 5  # for acknowledgements
    LEAVING = 6  # chosen to make room for a message that is being stored
    ENDED = 7


# Module constants, since access to a member through its enum costs ten times as much and each message needs dozens.
STORING: Final = Phase.STORING
READY: Final = Phase.READY
BACKING_OFF: Final = Phase.BACKING_OFF
HELD: Final = Phase.HELD
SENDING: Final = Phase.SENDING
AWAITING: Final = Phase.AWAITING
LEAVING: Final = Phase.LEAVING
ENDED: Final = Phase.ENDED


def is_stamped(topic: str) -> bool:
    """Return whether messages of `topic` are dated by a stamp, their first transmission. A message that is stamped again
    keeps its delivery id, and is another external message.
    """
    return topic == MESSAGES_TOPIC


class OutboxEntry:
    """A message of the outbox. Mutable, and changed by the core alone."""

    __slots__ = (
        "attempt_first",
        "attempts",
        "budget_at",
        "created_ms",
        "delivery_id",
        "evicted",
        "expires_at",
        "id_text",
        "is_awaited",
        "is_fate_unknown",
        "is_stamp_stored",
        "key_hash",
        "last_cause",
        "last_used",
        "maybe_duplicate",
        "network_id",
        "nonce",
        "outwaits_pace",
        "payload",
        "phase",
        "replayed",
        "sends",
        "sequence",
        "size",
        "stamped_ms",
        "status",
        "tally",
        "tier",
        "timer_at",
        "timestamp_ms",
        "topic",
        "traceparent",
        "wait_until",
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
        traceparent: str = "",
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
        self.traceparent = traceparent
        self.size = len(payload) + len(topic)
        self.status: DeliveryStatus = PENDING
        self.phase: Phase = STORING
        self.attempts = 0
        """Sends that count against the limit of attempts."""
        self.sends = 0
        """Sends that the network took, in this run."""
        self.attempt_first = 0
        """Number of the first attempt: a replay continues the numbers of the dead letter."""
        self.last_used = 0
        self.maybe_duplicate = False
        self.is_fate_unknown = False
        """True if the message may have been sent without this publisher's knowledge: before a restart, or by a send that was
        broken off."""
        self.wait_until = NEVER
        self.budget_at = NEVER
        self.outwaits_pace = False
        """True if the budget does not run out while the network's pace holds the message back."""
        self.expires_at = NEVER
        self.timer_at = NEVER
        self.network_id: bytes | None = None
        self.last_cause: StagepostError | None = None
        self.timestamp_ms = created_ms
        self.stamped_ms = 0
        """Time of the first transmission, in Unix milliseconds, where the topic's messages are dated by it; 0 before."""
        self.is_stamp_stored = False
        """True if the store holds `stamped_ms`: only then may the message be sent."""
        self.evicted: tuple[OutboxEntry, ...] = ()
        """Entries that make room for this one while it is being stored."""
        self.replayed: int | None = None
        """Sequence of the dead letter that this entry is made from."""
        self.is_awaited = False
        """True while a caller waits for the end."""

    @property
    def wants_ack(self) -> bool:
        return self.tally is not None

    @property
    def must_be_stamped(self) -> bool:
        """Return whether the network is to see the time of the first transmission as the time of creation: an external
        message expires so long after it, and it may have waited here for hours.
        """
        return is_stamped(self.topic)

    @property
    def is_sent(self) -> bool:
        return self.status is SENT

    @property
    def attempt_number(self) -> int:
        """Return the number of the running attempt, or of the next one."""
        return self.attempt_first + self.attempts

    @property
    def acked_by(self) -> tuple[str, ...]:
        return () if self.tally is None else tuple(self.tally.acked)

    @property
    def critical(self) -> tuple[str, ...]:
        """Return the peers whose acknowledgement counts; empty if the message asks for none."""
        return () if self.tally is None else self.tally.critical

    @property
    def required(self) -> int:
        """Return how many peers of `critical` must acknowledge."""
        return 0 if self.tally is None else self.tally.required
