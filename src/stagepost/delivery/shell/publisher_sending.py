"""How a publisher's messages go out: one task sends what waits, and whoever publishes sends what need not wait."""

from __future__ import annotations

import asyncio
import logging

from stagepost.delivery.entry import ENDED, Entry
from stagepost.delivery.shell.sender import PublisherShell
from stagepost.delivery.transport import Outgoing, SendFailed, SendRefused

SLOW_BATCHES = 16
"""After a send that did not end at once, so many batches are handed over side by side."""

log = logging.getLogger(__name__)


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
