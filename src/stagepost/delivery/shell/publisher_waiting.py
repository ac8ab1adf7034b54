"""How an acked call waits for the end of its message, and what it leaves behind when it goes earlier."""

from __future__ import annotations

import asyncio

from stagepost.delivery.entry import Entry, Moment
from stagepost.delivery.errors import ErrAckTimeout
from stagepost.delivery.result import Outcome
from stagepost.delivery.shell.acceptance import PublisherStoring


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
