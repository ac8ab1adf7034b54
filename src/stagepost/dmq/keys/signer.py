"""A signer for one pool: it signs at the moment of sending, beside the event loop, with the keys in a folder.

An entry may have waited for hours and a certificate serves for months, so nothing is signed ahead and no key
is taken for granted: the signer reads renewed keys again, and evolves a key whose period is over in memory.
It never writes the files, so that any number of programs can share them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from stagepost.dmq.keys.kes_agent import KesAgent
from stagepost.dmq.keys.kes_clock import KesClock, KesSchedule
from stagepost.dmq.keys.pool_keys import CERTIFICATE, KES_SIGNING_KEY
from stagepost.dmq.keys.signing_pair import SigningPair, load_signing_pair
from stagepost.dmq.message import DmqMessage
from stagepost.errors import KeyFileError, LocalProtocolError, SigningError, StagepostError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import Clock, SystemClock

WARNING_PERIODS = 3
AGENT_ASKED_EVERY_S = 600.0
"""Seconds between two questions to a KES agent for a renewed pair."""

log = logging.getLogger(__name__)


class Signer(Protocol):
    """Signer of messages. `pool_id` names the pool that signs."""

    @property
    def pool_id(self) -> PoolId: ...

    async def sign(self, body: bytes, expires_at: int) -> DmqMessage:
        """Return the signed message; raise `StagepostError` if signing is impossible at present."""
        ...

    async def close(self) -> None: ...


class _Request(NamedTuple):
    body: bytes
    expires_at: int
    signed: asyncio.Future[DmqMessage]


class DmqSigner:
    """Signer that signs concurrent requests in one go: going to the thread and back costs more than a
    signature."""

    def __init__(
        self,
        keys: Path | KesAgent,
        *,
        schedule: KesSchedule | KesClock | None = None,
        clock: Clock | None = None,
        beside_the_loop: bool = True,
        evolved_key: Path | None = None,
    ) -> None:
        """Take the keys of a folder or of a KES agent.

        Without a `schedule` the key signs for the period that it is at. Set `beside_the_loop` to False in
        virtual time, which knows no threads. `evolved_key` names a KES key file past its first period, which
        is refused otherwise.
        """
        self._keys = keys
        self._evolved_key = evolved_key
        self._kes_clock = schedule if isinstance(schedule, KesClock) else None
        self._schedule = None if isinstance(schedule, KesClock) else schedule
        self._clock = clock or SystemClock()
        self._last_look = self._look()
        self._pair = self._read()
        self._pool_id = self._pair.pool_id
        self._thread = ThreadPoolExecutor(1, "stagepost-signer") if beside_the_loop else None
        self._waiting: list[_Request] = []
        self._is_signing = False
        self._is_closed = False
        self._warned_of: int | None = None

    @property
    def pool_id(self) -> PoolId:
        return self._pool_id

    @property
    def periods_left(self) -> int:
        """Number of times that the key can still evolve."""
        return self._pair.periods_left

    async def sign(self, body: bytes, expires_at: int) -> DmqMessage:
        if self._is_closed:
            raise LocalProtocolError("this signer was closed")
        if self._kes_clock is not None:
            self._schedule = await self._kes_clock.schedule()
        if self._thread is None:
            outcome = self._sign_all([(body, expires_at)])[0]
            if isinstance(outcome, StagepostError):
                raise outcome
            return outcome
        loop = asyncio.get_running_loop()
        request = _Request(body, expires_at, loop.create_future())
        self._waiting.append(request)
        if not self._is_signing:
            self._begin(loop)
        return await request.signed

    async def close(self) -> None:
        """Finish the signatures under way; requests that still wait fail."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if not request.signed.done():
                request.signed.set_exception(LocalProtocolError("this signer was closed"))
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)
        self._pair.erase()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._thread is not None
        batch, self._waiting = self._waiting, []
        self._is_signing = True
        work = [(request.body, request.expires_at) for request in batch]
        signing = loop.run_in_executor(self._thread, self._sign_all, work)
        signing.add_done_callback(partial(self._hand_out, batch, loop))

    def _hand_out(
        self,
        batch: list[_Request],
        loop: asyncio.AbstractEventLoop,
        signing: asyncio.Future[list[DmqMessage | StagepostError]],
    ) -> None:
        self._is_signing = False
        if signing.cancelled():
            return
        for request, outcome in zip(batch, signing.result(), strict=True):
            if request.signed.done():  # nobody waits for it any more
                continue
            if isinstance(outcome, StagepostError):
                request.signed.set_exception(outcome)
            else:
                request.signed.set_result(outcome)
        if self._waiting and not self._is_closed:
            self._begin(loop)

    # The methods below run in the signer's own thread, one call at a time.

    def _sign_all(self, work: Sequence[tuple[bytes, int]]) -> list[DmqMessage | StagepostError]:
        try:
            period = self._ready_for_present_period()
        except StagepostError as error:
            return [error for _ in work]
        except Exception as bug:
            log.exception("signing failed")
            return [SigningError(f"signing failed by a bug on this side: {bug!r}") for _ in work]
        return [self._signed(body, period, expires_at) for body, expires_at in work]

    def _signed(self, body: bytes, kes_period: int, expires_at: int) -> DmqMessage | StagepostError:
        try:
            return self._pair.sign(body, kes_period=kes_period, expires_at=expires_at)
        except StagepostError as error:
            return error

    def _ready_for_present_period(self) -> int:
        """Return the period to sign for, after loading a pair that has not evolved past it."""
        look = self._look()
        if look != self._last_look:  # files that could not be used are not read again until they change
            self._last_look = look
            self._read_again()
        period = self._pair.period_at(self._schedule, self._clock.unix_s())
        if period < self._pair.earliest_period:
            # The clock was set back. The key in memory cannot go back, but the files still hold an earlier
            # one.
            self._replace(self._read_same_pool())
        if self._schedule is not None:
            self._warn_of_the_end(self._pair.periods_until_end(self._schedule, period))
        return period

    def _warn_of_the_end(self, periods_left: int) -> None:
        """Warn once for each of the last periods: people renew a certificate, and need time for it."""
        if periods_left <= WARNING_PERIODS and periods_left != self._warned_of:
            self._warned_of = periods_left
            text = "the operational certificate ends soon; renew it"
            log.warning(text, extra={"periods_left": max(0, periods_left), "keys": str(self._place)})

    def _read(self) -> SigningPair:
        return load_signing_pair(self._keys, self._evolved_key)

    def _read_again(self) -> None:
        """Take a changed pair when both files fit together. Operators write one file after the other."""
        try:
            found = self._read_same_pool()
        except StagepostError as error:
            log.warning(
                "keys were changed and cannot be used; the former ones are kept", extra={"reason": error.text}
            )
            return
        self._replace(found)

    def _read_same_pool(self) -> SigningPair:
        found = self._read()
        if found.pool_id != self._pool_id:
            found.erase()
            raise KeyFileError(
                f"the keys in {self._place} were changed to another pool's",
                advice="start the program again to send as the other pool",
            )
        return found

    def _replace(self, pair: SigningPair) -> None:
        former, self._pair = self._pair, pair
        former.erase()

    def _look(self) -> tuple[object, ...]:
        """Return how both files look, so that a change of either is noticed. An agent is asked again in time."""
        if isinstance(self._keys, KesAgent):
            return (self._clock.mono_s() // AGENT_ASKED_EVERY_S,)
        key_path = self._evolved_key or self._keys / KES_SIGNING_KEY
        return _look_of(key_path), _look_of(self._keys / CERTIFICATE)

    @property
    def _place(self) -> Path:
        return self._keys.socket if isinstance(self._keys, KesAgent) else self._keys


def _look_of(path: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    # The change time also changes with the mode, which may have been the reason to refuse the file.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
