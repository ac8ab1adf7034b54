"""Signs for one pool at the moment of sending, beside the event loop, with the keys that lie in a folder.

An entry may have waited for hours and a certificate serves for months, so nothing is signed ahead and no key is
taken for granted: keys that were renewed meanwhile are read again, and a key whose period is over is moved on, on
disk before in use. Processes that share a folder take turns by the lock that every writer of keys takes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from stagepost.crypto.hashing import pool_id
from stagepost.crypto.kes import SigningKey
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.dmq.proof import KES_EVOLUTIONS_MAX
from stagepost.dmq.text_envelope import IssuedCertificate
from stagepost.errors import (
    KesExhausted,
    KeyFileError,
    LocalProtocolError,
    SigningError,
    StagepostError,
    StorageError,
)
from stagepost.identifiers import PoolId
from stagepost.runtime import key_files
from stagepost.runtime.clock import Clock, SystemClock
from stagepost.runtime.delivery.kes_schedule import KesSchedule
from stagepost.runtime.pool_keys import CERTIFICATE, KES_SIGNING_KEY

EVOLVE_TRIES = 40
EVOLVE_PAUSE_S = 0.05
"""Another process moves the same key on: that takes milliseconds, and then it is done for both."""
WARNING_PERIODS = 3

log = logging.getLogger(__name__)


class Signer(Protocol):
    """Whoever signs. `pool_id` is who the messages will be from."""

    @property
    def pool_id(self) -> PoolId: ...

    async def sign(self, body: bytes, expires_at: int) -> DmqMessage:
        """`StagepostError` if it cannot be done at present."""
        ...

    async def close(self) -> None: ...


class _Keys(NamedTuple):
    key: SigningKey
    issued: IssuedCertificate
    stamp: tuple[object, ...]  # how the two files looked when they were read


class _Request(NamedTuple):
    body: bytes
    expires_at: int
    signed: asyncio.Future[DmqMessage]


class DmqSigner:
    """Requests that come together are signed in one go: going to the thread and back costs more than a signature."""

    def __init__(
        self,
        keys_folder: Path,
        *,
        schedule: KesSchedule | None = None,
        clock: Clock | None = None,
        beside_the_loop: bool = True,
    ) -> None:
        """Without a schedule the key signs for the period that it is at. Virtual time knows no threads."""
        self._folder = keys_folder
        self._schedule = schedule
        self._clock = clock or SystemClock()
        self._keys = self._read()
        self._pool_id = PoolId(pool_id(self._keys.issued.cold_verification_key))
        self._thread = ThreadPoolExecutor(1, "stagepost-signer") if beside_the_loop else None
        self._waiting: list[_Request] = []
        self._is_signing = False
        self._is_closed = False
        self._last_look = self._keys.stamp
        self._warned_of: int | None = None

    @property
    def pool_id(self) -> PoolId:
        return self._pool_id

    @property
    def periods_left(self) -> int:
        """How often the key can still move on."""
        return self._keys.key.periods_left

    async def sign(self, body: bytes, expires_at: int) -> DmqMessage:
        if self._is_closed:
            raise LocalProtocolError("this signer was closed")
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
        """What is being signed is finished; who still waits for its turn gets an error."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if not request.signed.done():
                request.signed.set_exception(LocalProtocolError("this signer was closed"))
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

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

    # What follows runs in the signer's own thread, one call at a time.

    def _sign_all(self, work: Sequence[tuple[bytes, int]]) -> list[DmqMessage | StagepostError]:
        try:
            key, issued, _ = self._ready_keys()
        except StagepostError as error:
            return [error for _ in work]
        except Exception as bug:
            log.exception("signing failed")
            return [SigningError(f"signing failed by a bug on this side: {bug!r}") for _ in work]
        return [_signed(body, expires_at, key, issued) for body, expires_at in work]

    def _ready_keys(self) -> _Keys:
        look = self._stamp()
        if look != self._last_look:  # files that could not be used are not read again until they change
            self._last_look = look
            self._read_again()
        if self._schedule is None:
            return self._keys
        start = self._keys.issued.certificate.start_kes_period
        goal = self._schedule.period_at(self._clock.unix_s()) - start
        if goal < 0:
            raise SigningError(
                f"it is KES period {start + goal}; the certificate in {self._folder} begins with period {start}",
                advice="check this machine's clock, and that the certificate is for this network",
                found=start + goal,
                limit=start,
            )
        self._warn_of_the_end(KES_EVOLUTIONS_MAX - 1 - goal)
        # A key that is ahead cannot go back; networks take what is within the certificate's periods.
        if goal > self._keys.key.period:
            self._evolve(goal)
        return self._keys

    def _warn_of_the_end(self, periods_left: int) -> None:
        """Once for each of the last periods: a certificate is renewed by people, who need their time."""
        if periods_left <= WARNING_PERIODS and periods_left != self._warned_of:
            self._warned_of = periods_left
            text = "the operational certificate ends soon; renew it"
            log.warning(text, extra={"periods_left": max(0, periods_left), "folder": str(self._folder)})

    def _evolve(self, goal: int) -> None:
        path = self._folder / KES_SIGNING_KEY
        for tries_left in range(EVOLVE_TRIES - 1, -1, -1):
            try:
                key_files.evolve(path, goal)
                log.info("KES key evolved", extra={"period": goal})
                break
            except KesExhausted:
                raise
            except SigningError:
                break  # another process, whose clock is ahead of ours, has moved it further
            except StorageError:
                if not tries_left:
                    raise
                time.sleep(EVOLVE_PAUSE_S)
        self._read_again()

    def _read(self) -> _Keys:
        stamp = self._stamp()
        key = key_files.load_as(SigningKey, self._folder / KES_SIGNING_KEY)
        issued = key_files.load_as(IssuedCertificate, self._folder / CERTIFICATE)
        if issued.certificate.kes_verification_key != key.verification_key:
            raise KeyFileError(
                f"{self._folder / CERTIFICATE} was issued for another KES key than {KES_SIGNING_KEY} beside it",
                advice="issue a certificate for this key; `stagepost keys show` tells what belongs together",
            )
        return _Keys(key, issued, stamp)

    def _read_again(self) -> None:
        """Whoever renews keys writes one file after the other: what does not fit together yet is not used."""
        try:
            found = self._read()
        except StagepostError as error:
            log.warning(
                "keys were changed and cannot be used; the former ones are kept", extra={"reason": error.text}
            )
            return
        if pool_id(found.issued.cold_verification_key) != self._pool_id:
            log.warning("keys were changed to another pool's; the former ones are kept")
            return
        self._keys = found

    def _stamp(self) -> tuple[object, ...]:
        return tuple(_look_of(self._folder / name) for name in (KES_SIGNING_KEY, CERTIFICATE))


def _signed(
    body: bytes, expires_at: int, key: SigningKey, issued: IssuedCertificate
) -> DmqMessage | StagepostError:
    try:
        return sign_message(
            body,
            key=key,
            certificate=issued.certificate,
            cold_verification_key=issued.cold_verification_key,
            kes_period=issued.certificate.start_kes_period + key.period,
            expires_at=expires_at,
        )
    except StagepostError as error:
        return error


def _look_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
