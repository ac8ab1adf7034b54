"""Holds receipts for a moment, so that several travel together, and hands them to the network once."""

from __future__ import annotations

import asyncio
import logging

from stagepost.delivery.receipts import AckReceipt
from stagepost.delivery.transport import Transport
from stagepost.errors import StagepostError

RECEIPTS_WAITING_MAX = 100_000
"""Beyond it the oldest are dropped: a sender who misses one asks again."""

CLOSED_WITHIN_S = 5.0

log = logging.getLogger(__name__)


class AckSending:
    """`delay_s` is how long a receipt may wait for company. Nothing is repeated here: a lost receipt is asked for again."""

    def __init__(self, transport: Transport, delay_s: float) -> None:
        self.sent = 0
        self.lost = 0
        self._transport = transport
        self._delay_s = delay_s
        # By message: a newer answer replaces one that has not left yet.
        self._waiting: dict[bytes, AckReceipt] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="delivery-acks")

    def put(self, receipt: AckReceipt) -> None:
        if len(self._waiting) >= RECEIPTS_WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self.lost += 1
        self._waiting[receipt.message_id] = receipt
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def close(self) -> None:
        """What waits is sent first."""
        self._is_closing = True
        self._ring()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSED_WITHIN_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                if self._is_closing:
                    return
                self._wake = loop.create_future()
                await self._wake
                self._wake = None
                continue
            if self._delay_s and not self._is_closing:
                await asyncio.sleep(self._delay_s)
            batch, self._waiting = tuple(self._waiting.values()), {}
            try:
                await self._transport.publish_acks(batch)
                self.sent += len(batch)
            except StagepostError as error:
                self.lost += len(batch)
                log.info("receipts were not sent", extra={"count": len(batch), "reason": error.text})
            except Exception:
                self.lost += len(batch)
                log.exception("the transport failed by a bug")
