"""The sender of a publisher: it hands messages to the network and performs what the core decides, and decides nothing.

One task sends the messages that wait; a caller sends a message itself that need not wait. One timer serves all messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, assert_never

from stagepost.delivery.effects import (
    DropDeadLetter,
    Effect,
    FlushEnded,
    Report,
    SaveEnd,
    SaveProgress,
    Wake,
)
from stagepost.delivery.entry import NEVER, ClockTimes, OutboxEntry
from stagepost.delivery.envelope import ACK_TOPICS, read_ack_envelope
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.shell.status_dispatch import StatusDispatch
from stagepost.delivery.status import DeliveryResult
from stagepost.delivery.stores.outbox import Joined, OutboxStore, change_of, progress_of
from stagepost.delivery.transport import (
    Incoming,
    IncomingAcks,
    Outgoing,
    SendFailed,
    SendRefused,
    Transport,
    absence_of,
)
from stagepost.errors import DecodeError, StorageError

SLOW_BATCHES = 16
"""Batches that are sent side by side after a send that did not end at once."""

log = logging.getLogger(__name__)


class Sender:
    """The only part of a publisher that sends, sets timers and performs effects."""

    def __init__(
        self,
        core: PublisherCore,
        transport: Transport,
        store: OutboxStore | None,
        wake: Callable[[OutboxEntry, DeliveryResult], None],
        dispatch: StatusDispatch,
        mono_s: Callable[[], float],
        unix_s: Callable[[], float],
    ) -> None:
        """`wake` gives the result of an entry to the callers who wait for it."""
        self.is_stopped = False
        """True after `stop` or `kill`: then no timer is set any more."""
        self._is_killed = False
        self._core = core
        self._transport = transport
        self._store = store
        self._wake = wake
        self._dispatch = dispatch
        self._mono_s, self._unix_s = mono_s, unix_s
        self._unsubscribe: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._flusher: asyncio.Task[None] | None = None
        self._flusher_wake: asyncio.Future[None] | None = None
        self._sends: dict[int, asyncio.Task[Any] | None] = {}
        """The task that sends an entry, by sequence. `_stop_send` takes the task out before it cancels the task."""
        self._slow_batches = 0
        """Batches that are still sent side by side, before messages are tried one by one again."""
        self._flush: asyncio.Future[FlushEnded] | None = None
        self._quiet: asyncio.Future[None] | None = None

    # Start and stop.

    def start(self) -> None:
        self._flusher = asyncio.get_running_loop().create_task(self._flush_forever(), name="delivery-flusher")
        self._unsubscribe = [
            self._transport.on_connectivity(self._connectivity),
            self._transport.on_message(self._incoming),
        ]
        self._connectivity(self._transport.connected_peers)

    async def stop(self, drain_s: float) -> None:
        """Give messages in flight `drain_s` seconds, then end every waiting call."""
        self.is_stopped = True
        if drain_s > 0 and not self._core.is_quiet:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=drain_s)
        flusher = self._halt()
        if flusher is not None and flusher is not asyncio.current_task():
            await asyncio.wait([flusher])
        self.perform(self._core.close(self.now()))

    def kill(self) -> None:
        """Stop as a crash would: nothing is sent, stored, reported or answered any more."""
        self.is_stopped = self._is_killed = True
        self._halt()

    def _halt(self) -> asyncio.Task[None] | None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flusher is not None:
            self._flusher.cancel()
        return self._flusher

    def now(self) -> ClockTimes:
        return ClockTimes(self._mono_s(), int(self._unix_s() * 1_000))

    # Connections, receipts and time.

    def _connectivity(self, peers: int) -> None:
        self._core.conditions.absence = None if peers else absence_of(self._transport)
        self.perform(self._core.connectivity(peers, self.now()))
        if self._core.conditions.is_connected:
            self.wake_flusher()

    def look_at_connection(self) -> None:
        """Ask the transport who is connected: its events may still be on their way."""
        peers = self._transport.connected_peers
        if (peers > 0) is not self._core.conditions.is_connected:
            self._connectivity(peers)
        elif not peers:
            self._core.conditions.absence = absence_of(self._transport)

    def _incoming(self, message: Incoming | IncomingAcks) -> None:
        if isinstance(message, IncomingAcks):
            self.perform(self._core.receipts(message, self.now()))
        elif message.topic in ACK_TOPICS:
            self._receipts_on_a_topic(message)

    def _receipts_on_a_topic(self, message: Incoming) -> None:
        """Read the receipts of a node that sends them as a message on the reserved topic, or on its other name."""
        try:
            envelope = read_ack_envelope(message.payload)
        except DecodeError:
            self._core.counters.bad_acks += 1
            return
        sender = message.sender
        named = sender if envelope.sender == identity_bytes(sender) else envelope.sender.hex()
        self.perform(self._core.receipts(IncomingAcks(sender, named, envelope.receipts), self.now()))

    def _time_has_come(self) -> None:
        # A loop may run a timer a little early, by the resolution of its clock: the timer is due all the same.
        mono_s, unix_ms = self.now()
        now = ClockTimes(max(mono_s, self._timer_at), unix_ms)
        self._timer, self._timer_at = None, NEVER
        self.look_at_connection()
        self.perform(self._core.on_time(now))
        self.wake_flusher()

    def arm(self) -> None:
        """Move the one timer if something is due earlier."""
        at = self._core.next_at
        if at < self._timer_at and not self.is_stopped:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._time_has_come)

    # Effects.

    def perform(self, effects: list[Effect]) -> None:
        if self._is_killed:
            return
        for effect in effects:
            match effect:
                case Wake():
                    self._wake(effect.entry, effect.outcome)
                    if effect.outcome.error is not None:
                        self._stop_send(effect.entry)
                case Report():
                    if not self._dispatch.report(effect):
                        self._core.watch(False)
                case SaveProgress():
                    assert self._store is not None
                    self._store.mark(progress_of(effect.entry))
                case SaveEnd():
                    assert self._store is not None
                    self._store.mark(change_of(effect))
                case DropDeadLetter():
                    assert self._store is not None
                    self._store.mark(Joined(effect.sequence))
                case FlushEnded():
                    if self._flush is not None:
                        flush, self._flush = self._flush, None
                        flush.set_result(effect)
                case _:
                    assert_never(effect)
        core = self._core
        if core.next_at < self._timer_at:
            self.arm()
        if core.outbox.has_ready:
            self.wake_flusher()
        if self._quiet is not None and not self._quiet.done() and core.is_quiet:
            self._quiet.set_result(None)

    async def flush(self) -> FlushEnded | None:
        """Try every queued message once and return how that ended; None if there was none to try."""
        if self._flush is None:
            if not self._core.begin_flush():
                return None
            self._flush = asyncio.get_running_loop().create_future()
            self.wake_flusher()
        return await asyncio.shield(self._flush)

    @property
    def is_flushing(self) -> bool:
        """Return whether a flush that a caller asked for is under way."""
        return self._flush is not None

    # Sending.

    def wake_flusher(self) -> None:
        wake = self._flusher_wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def _flush_forever(self) -> None:
        """Send the messages that wait: in order, in batches, for as long as any is ready."""
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
        """Send one after the other if the network takes messages at once; otherwise side by side, begun in order.

        A network that makes messages durable before it answers takes many in the time of one.
        """
        sent = 0
        batch_size = self._core.config.flush_batch_size
        while sent < batch_size and not self._slow_batches:
            taken = self._take_next()
            if taken is None:
                return sent
            # A callback that runs before the send is over shows that the send waits for something.
            turn = loop.call_soon(self._notice_slow_send)
            await self.hand_over(*taken)
            turn.cancel()
            sent += 1
        batch: list[tuple[OutboxEntry, Outgoing]] = []
        while sent + len(batch) < batch_size and (taken := self._take_next()) is not None:
            batch.append(taken)
        if batch:
            await self._hand_over_together(batch)
            self._slow_batches -= 1
        return sent + len(batch)

    def _notice_slow_send(self) -> None:
        self._slow_batches = SLOW_BATCHES

    def _take_next(self) -> tuple[OutboxEntry, Outgoing] | None:
        core, now = self._core, self.now()
        entry = core.attempts.next_to_send(now)
        if core.has_effects:
            self.perform(core.take_effects())
        return None if entry is None else (entry, core.attempts.begin_send(entry, now))

    async def _hand_over_together(self, batch: list[tuple[OutboxEntry, Outgoing]]) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.hand_over(entry, message)) for entry, message in batch]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise

    async def hand_over(self, entry: OutboxEntry, message: Outgoing) -> None:
        """Make one attempt, in the task of the caller. Return early if the message ends while it is being sent."""
        core, sequence = self._core, entry.sequence
        self._sends[sequence] = task = asyncio.current_task()
        try:
            if not entry.is_stamp_stored and entry.stamped_ms:
                await self._store_stamp(entry)
            published = await self._transport.publish(message)
        except SendFailed as error:
            self.look_at_connection()
            self.perform(core.attempts.send_failed(entry, error, self.now()))
        except SendRefused as error:
            self.perform(core.attempts.send_refused(entry, error, self.now()))
        except asyncio.CancelledError:
            core.attempts.send_interrupted(entry)
            self.wake_flusher()  # another caller may wait for the same message
            is_caller_cancelled = sequence in self._sends or task is None or task.uncancel() > 0
            if is_caller_cancelled:
                raise
        except Exception as bug:
            log.exception("the transport failed by a bug")
            self.look_at_connection()
            failed = SendFailed(f"{type(bug).__name__}: {bug}")
            failed.__cause__ = bug
            self.perform(core.attempts.send_failed(entry, failed, self.now()))
        else:
            self.perform(core.attempts.sent(entry, published, self.now()))
        finally:
            self._sends.pop(sequence, None)

    async def _store_stamp(self, entry: OutboxEntry) -> None:
        """Return when the time of the first transmission is on disk: after a crash the message must not get another one.
        `SendFailed` if it cannot be written now.
        """
        assert self._store is not None
        self._store.mark(progress_of(entry))
        try:
            await self._store.flush()
        except StorageError as error:
            raise SendFailed(error.text, costs_attempt=False, code=error.code) from error
        entry.is_stamp_stored = True

    def _stop_send(self, entry: OutboxEntry) -> None:
        """Cancel the send of a message whose callers have their answer, unless that send is the present task."""
        task = self._sends.get(entry.sequence)
        if task is not None and task is not asyncio.current_task():
            del self._sends[entry.sequence]
            task.cancel()
