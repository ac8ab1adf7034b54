"""The acceptance of messages: offered to the core, stored if there is a store, accepted, and waited for."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from stagepost.delivery import endings
from stagepost.delivery.entry import STORING, ClockTimes, OutboxEntry
from stagepost.delivery.errors import ErrAckTimeout, ErrStorage
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.shell.sender import Sender
from stagepost.delivery.status import DeliveryResult, Tier
from stagepost.delivery.stores.outbox import OutboxStore, buried, record_of
from stagepost.delivery.transport import Outgoing
from stagepost.errors import StorageError

IDLE_TURNS_MAX = 3
"""Turns of the loop without progress, after which a full queue counts as full."""


Waiter: TypeAlias = asyncio.Future[DeliveryResult]


class Waiters:
    """Futures of waiting callers, by the sequence of their entry."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Waiter]] = {}

    def add(self, entry: OutboxEntry) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(entry.sequence, []).append(waiter)
        return waiter

    def remove(self, entry: OutboxEntry, waiter: Waiter) -> bool:
        """Remove a caller who has no answer yet; return whether it was the last one of the entry."""
        waiting = self._waiting.get(entry.sequence)
        if waiting is None:
            return False
        waiting.remove(waiter)
        if not waiting:
            del self._waiting[entry.sequence]
        return not waiting

    def wake(self, entry: OutboxEntry, result: DeliveryResult) -> None:
        """Give the result to every caller who waits for the entry."""
        for waiter in self._waiting.pop(entry.sequence, ()):
            if not waiter.done():
                waiter.set_result(result)


class Acceptance:
    """The way of a message into the outbox, durable before the publishing call returns."""

    def __init__(
        self, core: PublisherCore, sender: Sender, store: OutboxStore | None, waiters: Waiters
    ) -> None:
        self._core = core
        self._sender = sender
        self._store = store
        self._waiters = waiters
        self._being_stored: dict[int, asyncio.Future[StorageError | None]] = {}
        """Inserts that have not ended, by sequence: a call that publishes the same message waits for them too."""

    @property
    def is_full(self) -> bool:
        """Return whether the queue has no room, while messages in it could be sent."""
        core = self._core
        return len(core.outbox.entries) >= core.config.queue_size and core.conditions.is_connected

    async def let_flusher_work(self) -> None:
        """Give up the loop while the queue is full, so that messages are sent rather than evicted.

        A program that publishes without pause must not evict a message that could be sent at this very moment. This
        takes turns of the loop, no time: if the network does not take messages at once, the queue's rules hold.
        """
        counters = self._core.counters
        turns, ended = 0, counters.ended
        while turns < IDLE_TURNS_MAX and self.is_full:
            await asyncio.sleep(0)
            turns = turns + 1 if counters.ended == ended else 0
            ended = counters.ended

    async def take(self, entry: OutboxEntry, now: ClockTimes) -> bool:
        """Return when the entry is accepted; False if another call published the same message before."""
        if entry.phase is not STORING or entry.sequence in self._being_stored:
            await self._join(entry)
            return False
        if self._store is None:
            self._accept(entry, now)
        else:
            await self._insert(self._store, entry)
            self._sender.look_at_connection()
            self._accept(entry, self._sender.now())
        return True

    async def take_and_wait(self, entry: OutboxEntry, now: ClockTimes, budget_s: float) -> DeliveryResult:
        """Return the result of the entry once it has ended.

        If it is the entry's turn, the caller's own task sends it: no message needs a task of its own.
        """
        waiter = self._waiters.add(entry)
        if entry.phase is not STORING or entry.sequence in self._being_stored:
            return await self._wait_for_another(entry, waiter, budget_s)
        try:
            if self._store is None:
                message = self._accept_to_send(entry, now)
            else:
                await self._insert(self._store, entry)
                self._sender.look_at_connection()
                message = self._accept_to_send(entry, self._sender.now())
            if message is not None:
                await self._sender.hand_over(entry, message)
            return await waiter
        except asyncio.CancelledError:
            self._leave(entry, waiter)
            raise
        except ErrStorage:
            self._waiters.remove(entry, waiter)
            raise

    async def _join(self, entry: OutboxEntry) -> None:
        """Return when the entry is stored by the call that published it first."""
        self._sender.perform(self._core.take_effects())
        stored = self._being_stored.get(entry.sequence)
        if stored is not None and (failure := await asyncio.shield(stored)) is not None:
            raise _not_accepted(entry, failure) from failure

    async def _insert(self, store: OutboxStore, entry: OutboxEntry) -> None:
        """Make the entry durable, together with the end of the entries that make room for it."""
        sender = self._sender
        self._being_stored[entry.sequence] = stored = asyncio.get_running_loop().create_future()
        unix_ms = sender.now().unix_ms
        dead = [buried(victim, endings.evicted(victim, entry.id_text), unix_ms) for victim in entry.evicted]
        failure: StorageError | None = None
        try:
            await store.insert(record_of(entry), dead, replayed=entry.replayed)
        except StorageError as error:
            failure = error
        except asyncio.CancelledError:
            # The store writes on without the caller, and so the message counts as accepted.
            sender.look_at_connection()
            self._accept(entry, sender.now())
            if entry.tier is Tier.ACKED:
                sender.perform(self._core.abandon(entry, sender.now()))
            raise
        finally:
            del self._being_stored[entry.sequence]
            stored.set_result(failure)
        if failure is not None:
            self._core.withdraw(entry)
            sender.arm()
            raise _not_accepted(entry, failure) from failure

    def _accept(self, entry: OutboxEntry, now: ClockTimes) -> None:
        sender = self._sender
        sender.perform(self._core.accept(entry, now))
        if sender.is_stopped:
            # The publisher was stopped while the entry was being stored.
            sender.perform(self._core.close(now))
        else:
            sender.wake_flusher()

    def _accept_to_send(self, entry: OutboxEntry, now: ClockTimes) -> Outgoing | None:
        """Accept an entry; return what the caller has to send, or None if the flusher sends it."""
        if self._sender.is_stopped:
            self._accept(entry, now)
            return None
        message = self._core.accept_to_send(entry, now)
        self._sender.perform(self._core.take_effects())
        if message is None:
            self._sender.wake_flusher()
        return message

    async def _wait_for_another(self, entry: OutboxEntry, waiter: Waiter, budget_s: float) -> DeliveryResult:
        """Wait for a message that another call published before, with a budget of this call alone."""
        try:
            await self._join(entry)
        except BaseException:
            self._remove(entry, waiter)
            raise
        try:
            async with asyncio.timeout(budget_s):
                return await waiter
        except TimeoutError:
            self._remove(entry, waiter)
            raise ErrAckTimeout(
                "the same message was published before, and did not end in time",
                message_id=entry.id_text,
                result=self._core.result_of(entry.delivery_id),
                may_have_been_delivered=True,
            ) from None
        except asyncio.CancelledError:
            self._leave(entry, waiter)
            raise

    def _remove(self, entry: OutboxEntry, waiter: Waiter) -> None:
        """Stop waiting; the message goes on."""
        if self._waiters.remove(entry, waiter):
            self._core.unawait(entry)

    def _leave(self, entry: OutboxEntry, waiter: Waiter) -> None:
        """Stop waiting; the last caller who leaves cancels the message."""
        if self._waiters.remove(entry, waiter):
            self._sender.perform(self._core.abandon(entry, self._sender.now()))


def _not_accepted(entry: OutboxEntry, failure: StorageError) -> ErrStorage:
    return ErrStorage(
        f"the message was not accepted: {failure.text}", advice=failure.advice, message_id=entry.id_text
    )
