"""Performs what the publisher's core decides: waits, marks, reports, wakes. One timer for all messages.

How a publisher's messages go out: one task sends what waits, and whoever publishes sends what need not wait.
"""

from __future__ import annotations

import asyncio
import logging
from typing import assert_never

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.effects import (
    DeliveryEvent,
    DropDeadLetter,
    Effect,
    FlushEnded,
    Report,
    SaveEnd,
    SaveProgress,
    Wake,
)
from stagepost.delivery.entry import ENDED, NEVER, Entry, Moment
from stagepost.delivery.envelope import ACK_TOPICS, read_ack_envelope
from stagepost.delivery.errors import DeliveryError, ErrNotStarted
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.shell.events import DeliveryEventSink
from stagepost.delivery.shell.status_dispatch import StatusDispatch
from stagepost.delivery.stores.outbox import Joined, OutboxStore, change_of, progress_of
from stagepost.delivery.transport import Incoming, IncomingAcks, Outgoing, SendFailed, SendRefused, Transport
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


SLOW_BATCHES = 16
"""After a send that did not end at once, so many batches are handed over side by side."""


class PublisherSending(PublisherShell):
    _slow_batches = 0
    """So many more batches are handed over side by side, before it is tried again one by one."""

    async def _flush_forever(self) -> None:
        """The one task that sends what waits: in order, in batches, for as long as anything is ready."""
        loop = asyncio.get_running_loop()
        while True:
            if await self._send_batch(loop):
                await asyncio.sleep(0)
                continue
            self._flusher_wake = loop.create_future()
            try:
                await self._flusher_wake
            finally:
                self._flusher_wake = None

    async def _send_batch(self, loop: asyncio.AbstractEventLoop) -> int:
        """One after the other, if the network takes messages at once; else side by side, each begun in its turn.

        A network that makes messages durable before it answers takes many in the time of one.
        """
        sent = 0
        while sent < self._config.flush_batch_size and not self._slow_batches:
            taken = self._take_next()
            if taken is None:
                return sent
            # Whoever runs before the send is over shows that it waits for something.
            turn = loop.call_soon(self._notice_slow_send)
            await self._hand_over(*taken)
            turn.cancel()
            sent += 1
        batch: list[tuple[Entry, Outgoing]] = []
        while sent + len(batch) < self._config.flush_batch_size and (taken := self._take_next()) is not None:
            batch.append(taken)
        if batch:
            await self._hand_over_together(batch)
            self._slow_batches -= 1
        return sent + len(batch)

    def _notice_slow_send(self) -> None:
        self._slow_batches = SLOW_BATCHES

    def _take_next(self) -> tuple[Entry, Outgoing] | None:
        core, now = self._core, self._now()
        entry = core.next_to_send(now)
        if core.has_effects:
            self._perform(core.take_effects())
        return None if entry is None else (entry, core.begin_send(entry, now))

    async def _hand_over_together(self, batch: list[tuple[Entry, Outgoing]]) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._hand_over(entry, message)) for entry, message in batch]
        self._senders.update(tasks)
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        finally:
            self._senders.difference_update(tasks)

    async def _hand_over(self, entry: Entry, message: Outgoing) -> None:
        core = self._core
        entry.sending_task = asyncio.current_task()
        try:
            published = await self._transport.publish(message)
        except SendFailed as error:
            self._look_at_connection()
            self._perform(core.send_failed(entry, error, self._now()))
        except SendRefused as error:
            self._perform(core.send_refused(entry, error, self._now()))
        except asyncio.CancelledError:
            if not self._is_send_over(entry):
                core.send_interrupted(entry)
                self._wake_flusher()  # somebody else may be waiting for the same message
                raise
        except Exception as bug:
            log.exception("the transport failed by a bug")
            self._look_at_connection()
            failed = SendFailed(f"{type(bug).__name__}: {bug}")
            failed.__cause__ = bug
            self._perform(core.send_failed(entry, failed, self._now()))
        else:
            self._perform(core.sent(entry, published, self._now()))
        entry.sending_task = None

    def _is_send_over(self, entry: Entry) -> bool:
        """Whether the flusher's send was stopped because the message has ended: then the flusher goes on."""
        task = asyncio.current_task()
        is_flushing = task is self._flusher or task in self._senders
        if entry.phase is not ENDED or not is_flushing or self._state is not None:
            return False
        assert task is not None
        return task.uncancel() == 0
