"""Settings of a publisher and of a receiver: every fault is named at construction, none later.

`check_message` finds a caller's mistakes before anything has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from numbers import Real

from stagepost.delivery.deadlines import delay_before
from stagepost.delivery.envelope import ACKERS_MAX, RESERVED_TOPIC_PREFIX, TOPIC_BYTES_MAX
from stagepost.delivery.errors import ErrConfig, ErrMessageTooLarge, ErrReservedTopic
from stagepost.delivery.transport import Transport
from stagepost.ground.wire.trace_context import TraceParent

PERSISTENCES = ("memory", "disk")
FSYNCS = ("commit", "interval", "off")
RETRIES_MAX = 1_000
OVERFLOWS = ("evict_lru", "reject_new")


OUTBOX_DIR = "stagepost-outbox"
"""Folder of the outbox for commands and programs that name no other."""


@dataclass(frozen=True, kw_only=True)
class ReliablePublisherConfig:
    """Settings of a publisher. All times are seconds.

    `delivery_timeout` None is computed: the wait of every attempt and every back-off.
    """

    queue_size: int = 1_000
    flush_interval: float = 1.0
    flush_batch_size: int = 10
    enable_ack: bool = False
    ack_timeout: float = 5.0
    max_retries: int = 3
    critical_peers: tuple[str, ...] = ()
    require_all_acks: bool = False
    required_acks: int | None = None
    """Number of critical peers that must acknowledge, if neither one nor all of them is meant."""
    persistence: str = "memory"
    queue_path: str | None = None
    fsync: str = "commit"
    retry_delay: float = 0.1
    retry_delay_max: float = 5.0
    retry_jitter: float = 0.2
    max_in_flight: int = 256
    queue_max_bytes: int = 64 * 1024 * 1024
    message_max_age: float = 0.0
    overflow: str = "evict_lru"
    delivery_timeout: float | None = None
    dedup_window: float = 3_600.0
    """Seconds that receivers remember a message; a later send is flagged as a possible duplicate."""
    dedup_capacity: int = 100_000
    """Records, at most, of a receiver that is given this configuration, as is `ack_delay`."""
    ack_delay: float = 0.05
    dead_letters_max: int = 1_000
    strict_order: bool = False

    def __post_init__(self) -> None:
        peers: object = self.critical_peers
        if isinstance(peers, Iterable) and not isinstance(peers, str | bytes):
            # A peer that is listed twice could otherwise never complete the set.
            object.__setattr__(self, "critical_peers", tuple(dict.fromkeys(peers)))
        object.__setattr__(self, "queue_path", _as_text(self.queue_path))
        _refuse(self._faults())
        _refuse(self._budget_faults())

    def _faults(self) -> Iterator[str]:
        yield from _count("queue_size", self.queue_size, 1)
        yield from _seconds("flush_interval", self.flush_interval, above_zero=True)
        yield from _count("flush_batch_size", self.flush_batch_size, 1)
        yield from _seconds("ack_timeout", self.ack_timeout, above_zero=True)
        yield from _count("max_retries", self.max_retries, 0, RETRIES_MAX)
        yield from _peers(self.critical_peers)
        yield from self._required_faults()
        yield from _one_of("persistence", self.persistence, PERSISTENCES)
        if self.persistence == "disk" and not self.queue_path:
            yield 'queue_path is missing: persistence "disk" needs a folder'
        yield from _path("queue_path", self.queue_path)
        yield from _one_of("fsync", self.fsync, FSYNCS)
        yield from _seconds("retry_delay", self.retry_delay, above_zero=True)
        yield from _seconds("retry_delay_max", self.retry_delay_max, above_zero=True)
        if not _is_number(self.retry_jitter) or not 0 <= self.retry_jitter < 1:
            yield f"retry_jitter is {self.retry_jitter!r}, expected a number from 0 to below 1"
        yield from _count("max_in_flight", self.max_in_flight, 1)
        yield from _count("queue_max_bytes", self.queue_max_bytes, 0)
        yield from _seconds("message_max_age", self.message_max_age)
        yield from _one_of("overflow", self.overflow, OVERFLOWS)
        if self.delivery_timeout is not None:
            yield from _seconds("delivery_timeout", self.delivery_timeout, above_zero=True)
        yield from _seconds("dedup_window", self.dedup_window, above_zero=True)
        yield from _count("dedup_capacity", self.dedup_capacity, 1)
        yield from _seconds("ack_delay", self.ack_delay)
        yield from _count("dead_letters_max", self.dead_letters_max, 0)

    def _budget_faults(self) -> Iterator[str]:
        """Check the timeouts against the window: a message that is retried for longer could be processed twice."""
        if self.budget_s > self.dedup_window:
            yield (
                f"delivery_timeout is {self.budget_s:g} s in all, more than the receivers' dedup_window "
                f"of {self.dedup_window:g} s"
            )

    def _required_faults(self) -> Iterator[str]:
        if self.required_acks is None:
            return
        if self.require_all_acks:
            yield "required_acks and require_all_acks are both set: give one of them"
        most = len(self.critical_peers)
        if not isinstance(self.required_acks, int) or not 1 <= self.required_acks <= most:
            yield f"required_acks is {self.required_acks!r}, expected 1 to {most}, the number of critical_peers"

    @cached_property
    def required(self) -> int:
        """Return how many of the critical peers must acknowledge."""
        if self.required_acks is not None:
            return self.required_acks
        return len(self.critical_peers) if self.require_all_acks else 1

    @cached_property
    def attempts_max(self) -> int:
        return 1 + self.max_retries

    @cached_property
    def budget_s(self) -> float:
        """Return the seconds that one acked call may take altogether."""
        if self.delivery_timeout is not None:
            return self.delivery_timeout
        delays = (
            delay_before(attempt, self.retry_delay, self.retry_delay_max)
            for attempt in range(1, self.attempts_max)
        )
        return self.attempts_max * self.ack_timeout + sum(delays)


@dataclass(frozen=True, kw_only=True)
class ReceiverConfig:
    """Settings of a receiver. All times are seconds.

    `ack_delay` is how long a receipt may wait for others to travel with; 0 sends each receipt at once.
    """

    dedup_window: float = 3_600.0
    dedup_capacity: int = 100_000
    ack_delay: float = 0.05
    handlers_per_sender: int = 1
    """Handlers, at most, that run at the same time for one sender; 1 keeps the order of its messages."""
    waiting_max: int = 10_000
    """Messages, at most, that wait for a handler; further ones are refused as busy."""
    inbox_path: str | None = None
    """Folder for the memory of processed messages; None keeps the memory for as long as the process lives."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inbox_path", _as_text(self.inbox_path))
        _refuse(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from _seconds("dedup_window", self.dedup_window, above_zero=True)
        yield from _count("dedup_capacity", self.dedup_capacity, 1)
        yield from _seconds("ack_delay", self.ack_delay)
        yield from _count("handlers_per_sender", self.handlers_per_sender, 1)
        yield from _count("waiting_max", self.waiting_max, 1)
        yield from _path("inbox_path", self.inbox_path)


def _refuse(faults: Iterable[str]) -> None:
    if found := tuple(faults):
        raise ErrConfig("; ".join(found), advice="correct the named settings", found=found)


def _is_number(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Real) and isfinite(value)


def _count(name: str, value: object, least: int, most: int | None = None) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        yield f"{name} is {value!r}, expected a whole number of at least {least}"
    elif most is not None and value > most:
        yield f"{name} is {value!r}, expected at most {most}"


def _seconds(name: str, value: object, *, above_zero: bool = False) -> Iterator[str]:
    if not isinstance(value, Real) or not _is_number(value) or value < 0 or (above_zero and value == 0):
        yield f"{name} is {value!r}, expected {'more than 0' if above_zero else 'at least 0'} seconds"


def _as_text(path: object) -> object:
    """Return a path object as the text that it stands for, and anything else as it is."""
    as_text = getattr(path, "__fspath__", None)
    return path if as_text is None else as_text()


def _path(name: str, value: object) -> Iterator[str]:
    if value is not None and (not isinstance(value, str) or not value or "\0" in value):
        yield f"{name} is {value!r}, expected the path of a folder"


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> Iterator[str]:
    if value not in choices:
        yield f"{name} is {value!r}, expected {' or '.join(choices)}"


def _peers(peers: object) -> Iterator[str]:
    if not isinstance(peers, tuple) or not all(isinstance(peer, str) and peer for peer in peers):
        yield "critical_peers must be a list of node ids, each of them text"
    elif len(peers) > ACKERS_MAX:
        yield f"critical_peers names {len(peers)} nodes, at most {ACKERS_MAX} can be asked to acknowledge"


def checked_payload(data: object) -> bytes:
    """Return a copy of what a caller gives as the content of a message; `ErrConfig` for anything but bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    encode = "; text is encoded with .encode()" if isinstance(data, str) else ""
    raise ErrConfig(
        f"the content of a message is {type(data).__name__}, expected bytes",
        advice=f"give bytes, a bytearray or a memoryview{encode}",
        found=type(data).__name__,
    )


def checked_key(key: object) -> str | bytes | None:
    """Return a caller's key; `ErrConfig` for one that no second call could repeat on purpose."""
    if key is None or (isinstance(key, str | bytes) and key and _is_encodable(key)):
        return key
    raise ErrConfig(
        f"the key of a message is {key!r:.80}, expected text or bytes that are not empty",
        advice="give a name of the message, such as order-17, or no key",
        found=repr(key)[:80],
    )


def check_message(transport: Transport, topic: object, payload: bytes, ackers: tuple[str, ...]) -> None:
    if not isinstance(topic, str):
        raise ErrConfig(
            f"the topic of a message is {type(topic).__name__}, expected text",
            advice="give the name of a topic, such as orders",
            found=type(topic).__name__,
        )
    if topic.startswith(RESERVED_TOPIC_PREFIX):
        raise ErrReservedTopic(
            f"topics that begin with {RESERVED_TOPIC_PREFIX} are reserved, this one is {topic}",
            advice="choose another topic",
            found=topic,
        )
    size = len(topic) if topic.isascii() else _utf8_size(topic)
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise ErrConfig(
            f"a topic has 1 to {TOPIC_BYTES_MAX} bytes of UTF-8, this one has {size}",
            limit=TOPIC_BYTES_MAX,
            found=size,
        )
    room = transport.payload_room(topic, ackers)
    if len(payload) > room:
        raise ErrMessageTooLarge(
            f"the message has {len(payload)} bytes; with this topic and {len(ackers)} critical peers at most {room} fit",
            limit=room,
            found=len(payload),
            advice="send less, or in several messages",
        )


def checked_timeout_s(timeout: float | None, config: ReliablePublisherConfig) -> float:
    """Return how long a call may take; `ErrConfig` for a time that the receivers' memory does not cover."""
    if timeout is None:
        return config.budget_s
    if not _is_number(timeout) or not 0 < timeout <= config.dedup_window:
        raise ErrConfig(
            f"timeout is {timeout!r}, expected more than 0 and at most dedup_window, {config.dedup_window:g} s",
            found=timeout,
        )
    return timeout


def checked_traceparent(text: str | None) -> str:
    """Return a caller's trace context as it is written; empty if there is none, `ErrConfig` for another text."""
    if text is None:
        return ""
    found = TraceParent.parse(text)
    if found is None:
        raise ErrConfig(
            f"{text[:80]!r} is not a W3C traceparent",
            advice="give it as 00-<32 hex digits>-<16 hex digits>-01, or leave it out",
            found=text[:80],
        )
    return found.text


def _is_encodable(text: str | bytes) -> bool:
    return isinstance(text, bytes) or not any("\ud800" <= character <= "\udfff" for character in text)


def _utf8_size(topic: str) -> int:
    try:
        return len(topic.encode())
    except UnicodeEncodeError:
        raise ErrConfig(f"the topic {topic!r} cannot be written as UTF-8", found=topic) from None
