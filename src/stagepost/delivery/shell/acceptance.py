"""How a message comes in: checked, offered to the core, stored where there is a store, and accepted.

How an acked call waits for the end of its message, and what it leaves behind when it goes earlier.
"""

from __future__ import annotations

import asyncio

from stagepost.delivery import endings
from stagepost.delivery.config import check_message
from stagepost.delivery.entry import STORING, Entry, Moment
from stagepost.delivery.errors import ErrAckTimeout, ErrClosed, ErrNotStarted, ErrStorage
from stagepost.delivery.result import Outcome
from stagepost.delivery.shell.sender import PublisherSending
from stagepost.delivery.status import Tier
from stagepost.delivery.stores.outbox import buried, record_of
from stagepost.delivery.transport import Outgoing
from stagepost.errors import StorageError

IDLE_TURNS_MAX = 3
"""Turns of the loop without progress, after which a full queue counts as full."""


class PublisherStoring(PublisherSending):
    _stored: dict[int, asyncio.Future[StorageError | None]]
    """What is being stored, by sequence: whoever publishes the same meanwhile waits for it too."""

    def _require_running(self) -> None:
        if self._state is ErrNotStarted:
            raise ErrNotStarted("the publisher was not started", advice="await start(), or use `async with`")
        if self._state is not None:
            raise ErrClosed("the publisher was stopped", advice="make a new one")

    def _check(self, topic: str, payload: bytes, ackers: tuple[str, ...]) -> None:
        """The caller's mistakes, before anything has happened; and who is connected, for what happens next."""
        check_message(self._transport, topic, payload, ackers)
        self._look_at_connection()

    @property
    def _is_full(self) -> bool:
        """Nothing more can be taken in, and something could be sent."""
        core = self._core
        return len(core.outbox.entries) >= self._config.queue_size and core.is_connected

    async def _let_flusher_work(self) -> None:
        """A program that publishes without pause must not push out what could be sent at this very moment.

        This takes turns of the loop, no time: where the network does not take messages at once, the queue's rules hold.
        """
        counters = self._core.counters
        turns, ended = 0, counters.ended
        while turns < IDLE_TURNS_MAX and self._is_full:
            await asyncio.sleep(0)
            turns = turns + 1 if counters.ended == ended else 0
            ended = counters.ended
        self._require_running()

    def _is_new(self, entry: Entry) -> bool:
        """Whether this call has to store it; else it is on its way already, under the same key."""
        return entry.phase is STORING and entry.sequence not in self._stored

    async def _join(self, entry: Entry) -> None:
        """It is on its way already: return when it is stored, whoever does that."""
        self._perform(self._core.take_effects())
        stored = self._stored.get(entry.sequence)
        if stored is not None and (failure := await asyncio.shield(stored)) is not None:
            raise _not_accepted(entry, failure) from failure

    async def _store(self, entry: Entry, *, is_awaited: bool = False) -> Outgoing | None:
        """Stored and accepted; what it gives is as with `_accept`."""
        core, store = self._core, self._outbox
        if store is None:
            return self._accept(entry, self._now(), is_awaited=is_awaited)
        self._stored[entry.sequence] = stored = asyncio.get_running_loop().create_future()
        now = self._now()
        dead = [
            buried(victim, endings.evicted(victim, entry.id_text), now.unix_ms) for victim in entry.evicted
        ]
        failure: StorageError | None = None
        try:
            await store.insert(record_of(entry), dead, replayed=entry.replayed)
        except StorageError as error:
            failure = error
        except asyncio.CancelledError:
            # The writing goes on without the one who waited for it, and so the message counts as accepted.
            self._look_at_connection()
            self._accept(entry, self._now())
            if entry.tier is Tier.ACKED:
                self._perform(core.abandon(entry, self._now()))
            raise
        finally:
            del self._stored[entry.sequence]
            stored.set_result(failure)
        if failure is not None:
            core.withdraw(entry)
            self._arm()
            raise _not_accepted(entry, failure) from failure
        self._look_at_connection()
        return self._accept(entry, self._now(), is_awaited=is_awaited)

    def _accept(self, entry: Entry, now: Moment, *, is_awaited: bool = False) -> Outgoing | None:
        """`is_awaited`: whoever publishes it waits for its end, and hands over what this gives; None: others do that."""
        core = self._core
        if self._state is not None:
            # Stopped while it was being stored.
            self._perform(core.accept(entry, now))
            self._perform(core.close(now))
            return None
        message = None
        if is_awaited:
            message = core.accept_to_send(entry, now)
            self._perform(core.take_effects())
        else:
            self._perform(core.accept(entry, now))
        if message is None:
            self._wake_flusher()
        return message


def _not_accepted(entry: Entry, failure: StorageError) -> ErrStorage:
    return ErrStorage(
        f"the message was not accepted: {failure.text}", advice=failure.advice, message_id=entry.id_text
    )


class PublisherWaiting(PublisherStoring):
    async def _outcome(self, entry: Entry, now: Moment, budget_s: float) -> Outcome:
        """Sends it in the caller's own task if it is its turn: no task for each message."""
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        if not self._is_new(entry):
            return await self._outcome_of_another(entry, waiter, budget_s)
        if self._outbox is None:
            message = self._accept(entry, now, is_awaited=True)
        else:
            message = await self._store(entry, is_awaited=True)
        try:
            if message is not None:
                await self._hand_over(entry, message)
            return await waiter
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if waiter.done() and entry.sending_task is task:
                # Not the caller was cancelled but the send, since its time is over.
                entry.sending_task = None
                if task.uncancel() == 0:
                    return waiter.result()
            self._leave(entry, waiter)
            raise

    async def _outcome_of_another(
        self, entry: Entry, waiter: asyncio.Future[Outcome], budget_s: float
    ) -> Outcome:
        """For a call that found its message on the way already, with a budget of its own or none."""
        try:
            await self._join(entry)
        except BaseException:
            entry.waiters.remove(waiter)
            raise
        try:
            async with asyncio.timeout(budget_s):
                return await waiter
        except TimeoutError:
            entry.waiters.remove(waiter)
            raise ErrAckTimeout(
                "the same message was published before, and its end did not come in time",
                message_id=entry.id_text,
                result=self._core.outcome_of(entry.delivery_id),
                may_have_been_delivered=True,
            ) from None
        except asyncio.CancelledError:
            self._leave(entry, waiter)
            raise

    def _leave(self, entry: Entry, waiter: asyncio.Future[Outcome]) -> None:
        """The last one who goes takes the message with him."""
        entry.waiters.remove(waiter)
        if not entry.waiters:
            self._perform(self._core.abandon(entry, self._now()))
