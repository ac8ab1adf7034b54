"""Performs what the publisher's core decides: waits, marks, reports, wakes. One timer for all messages."""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.effects import (
    DropDeadLetter,
    Effect,
    FlushEnded,
    Report,
    SaveEnd,
    SaveProgress,
    Wake,
)
from stagepost.delivery.entry import NEVER, Moment
from stagepost.delivery.errors import DeliveryError, ErrNotStarted
from stagepost.delivery.events import DeliveryEvent
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.receipts import ACK_TOPICS, read_ack_envelope
from stagepost.delivery.shell.events import DeliveryEventSink
from stagepost.delivery.shell.status_dispatch import StatusDispatch
from stagepost.delivery.stores.entry_rows import change_of, progress_of
from stagepost.delivery.stores.outbox import Joined, OutboxStore
from stagepost.delivery.transport import Incoming, IncomingAcks, Transport
from stagepost.errors import DecodeError
from stagepost.ground.loop.clock import Clock, SystemClock

log = logging.getLogger(__name__)


class PublisherShell:
    """What surrounds the core: time, connections and receipts in, effects out. Its subclasses send, store and live."""

    _core: PublisherCore

    def __init__(
        self,
        transport: Transport,
        config: ReliablePublisherConfig,
        clock: Clock | None,
        outbox: OutboxStore | None,
        events: DeliveryEventSink | None,
    ) -> None:
        self._transport = transport
        self._config = config
        self._clock = clock or SystemClock()
        self._mono_s, self._unix_s = self._clock.mono_s, self._clock.unix_s
        self._outbox = outbox
        self._events = events
        self._dispatch = StatusDispatch()
        self._state: type[DeliveryError] | None = ErrNotStarted
        """What a call raises now; None while it runs."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._flusher: asyncio.Task[None] | None = None
        self._flusher_wake: asyncio.Future[None] | None = None
        self._senders: set[asyncio.Task[None]] = set()
        self._flush: asyncio.Future[FlushEnded] | None = None
        self._quiet: asyncio.Future[None] | None = None

    # What comes in, and time.

    def _connectivity(self, peers: int) -> None:
        self._perform(self._core.connectivity(peers, self._now()))
        if self._core.is_connected:
            self._wake_flusher()

    def _look_at_connection(self) -> None:
        """The transport knows first; its events may still be on their way."""
        peers = self._transport.connected_peers
        if (peers > 0) is not self._core.is_connected:
            self._connectivity(peers)

    def _incoming(self, message: Incoming | IncomingAcks) -> None:
        if isinstance(message, IncomingAcks):
            self._perform(self._core.receipts(message, self._now()))
        elif message.topic in ACK_TOPICS:
            self._acks_on_a_topic(message)

    def _acks_on_a_topic(self, message: Incoming) -> None:
        """From a node that sends receipts as a message on the reserved topic, or on the name others use for it."""
        try:
            envelope = read_ack_envelope(message.payload)
        except DecodeError:
            self._core.counters.bad_acks += 1
            return
        sender = message.sender
        named = sender if envelope.sender == identity_bytes(sender) else envelope.sender.hex()
        self._perform(self._core.receipts(IncomingAcks(sender, named, envelope.receipts), self._now()))

    def _time_has_come(self) -> None:
        # A loop may run a timer a little early, by the resolution of its clock: then it is due all the same.
        mono_s, unix_ms = self._now()
        now = Moment(max(mono_s, self._timer_at), unix_ms)
        self._timer, self._timer_at = None, NEVER
        self._look_at_connection()
        self._perform(self._core.on_time(now))
        self._wake_flusher()

    def _arm(self) -> None:
        """One timer for everything, moved only when something is due earlier."""
        at = self._core.next_at
        if at < self._timer_at and self._state is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._time_has_come)

    def _wake_flusher(self) -> None:
        wake = self._flusher_wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Wake():
                    self._wake(effect)
                case Report():
                    self._tell(effect)
                case SaveProgress():
                    assert self._outbox is not None
                    self._outbox.mark(progress_of(effect.entry))
                case SaveEnd():
                    assert self._outbox is not None
                    self._outbox.mark(change_of(effect))
                case DropDeadLetter():
                    assert self._outbox is not None
                    self._outbox.mark(Joined(effect.sequence))
                case FlushEnded():
                    if self._flush is not None:
                        flush, self._flush = self._flush, None
                        flush.set_result(effect)
                case _:
                    assert_never(effect)
        core = self._core
        if core.next_at < self._timer_at:
            self._arm()
        if core.outbox.has_ready:
            self._wake_flusher()
        if self._quiet is not None and not self._quiet.done() and core.is_quiet:
            self._quiet.set_result(None)

    def _tell(self, report: Report) -> None:
        entry = report.entry
        if self._dispatch.has_audience:
            self._dispatch.put(entry.id_text, report.status, report.error)
        else:
            self._core.is_watched = self._events is not None
        if self._events is not None:
            self._events.put(
                DeliveryEvent(
                    entry.id_text,
                    report.status,
                    entry.tier,
                    entry.topic,
                    report.timestamp_ms,
                    report.attempt,
                    None if report.network_id is None else report.network_id.hex(),
                    None if report.error is None else type(report.error).__name__,
                    report.acked_by,
                )
            )

    def _wake(self, wake: Wake) -> None:
        for waiter in wake.entry.waiters:
            if not waiter.done():
                waiter.set_result(wake.outcome)
        task = wake.entry.sending_task
        if task is not None and wake.outcome.error is not None and task is not asyncio.current_task():
            task.cancel()

    def _now(self) -> Moment:
        return Moment(self._mono_s(), int(self._unix_s() * 1_000))
