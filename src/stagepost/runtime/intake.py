"""The one way into the mempool, for local programs and other nodes alike.

    duplicate? → cheap checks → signatures (threads) → commit → durable → mempool → bell

Everything up to the signatures runs for many callers side by side. From `commit` on there is one group of messages at
a time: what arrives while a group is being written forms the next one, so that a slow disk makes groups larger and
not more of them, and a group that cannot be written is undone without touching anybody else's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from stagepost.dmq.mempool import Entry, Mempool, file_key
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Outcome, Rejected, rejected
from stagepost.dmq.pool_memory import PoolMemory
from stagepost.dmq.validation import Validator
from stagepost.errors import ErrorCode, StorageError
from stagepost.identifiers import PoolId
from stagepost.runtime.bell import Bell
from stagepost.runtime.clock import Clock, FlooredClock
from stagepost.runtime.message_store import MessageStore
from stagepost.runtime.recovery import Restored, restore
from stagepost.runtime.verifier import MessageVerifier

GROUP_MESSAGES_MAX = 512
RING_EVERY_S = 0.002
"""Waking every peer and program for each message would cost more than checking its signature."""

SWEEP_WAIT_MAX_S = 10.0
"""Sweeps come exactly when something expires; this one is for wall clocks that were set."""

OnAccepted: TypeAlias = Callable[[Entry], None]
OnRejected: TypeAlias = Callable[[DmqMessage, str, Rejected], None]

_log = logging.getLogger(__name__)
_HELD = rejected(ErrorCode.MSG_DUPLICATE, "this message is held already")


class _Claim:
    """The messages that one caller is busy with; copies of them wait for `settled`."""

    __slots__ = ("is_handed_over", "keys", "settled")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_handed_over = False


class _Batch:
    """Messages of one caller that proved valid, on their way to the disk, with the claim on them."""

    __slots__ = ("claim", "done", "messages", "mono_s", "outcomes", "received_ms", "source")

    def __init__(
        self, claim: _Claim, messages: list[DmqMessage], source: str, unix_s: float, mono_s: float
    ) -> None:
        self.claim = claim
        self.messages = messages
        self.source = source
        self.received_ms = int(unix_s * 1_000)
        self.mono_s = mono_s
        self.outcomes: list[Outcome] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Intake:
    def __init__(
        self,
        validator: Validator,
        mempool: Mempool,
        store: MessageStore,
        clock: Clock,
        *,
        verifier: MessageVerifier,
    ) -> None:
        self.bell = Bell(at_most_every_s=RING_EVERY_S)
        self.clock = clock if isinstance(clock, FlooredClock) else FlooredClock(clock)
        self.on_accepted: list[OnAccepted] = []
        self.on_rejected: list[OnRejected] = []
        self._validator = validator
        self._mempool = mempool
        self._store = store
        self._verifier = verifier
        # For each message that is being looked at: what ends when its fate is known.
        self._under_way: dict[bytes, asyncio.Future[None]] = {}
        self._verified: list[_Batch] = []
        self._writing: asyncio.Task[None] | None = None
        self._swept_until: int | None = None
        self._expires_sooner = asyncio.Event()

    def restore(self, *, accept_stored_time: bool = False) -> Restored:
        """Take over what the store holds: once, before the first message."""
        restored = restore(
            self._store, self._validator, self._mempool, self.clock, accept_stored_time=accept_stored_time
        )
        for line in restored.damage:
            _log.warning("message store was damaged", extra={"detail": line})
        return restored

    @property
    def is_under_way(self) -> int:
        """How many messages are between their arrival and their answer."""
        return len(self._under_way)

    async def submit(self, message: DmqMessage, source: str) -> Outcome:
        return (await self.submit_many((message,), source))[0]

    async def submit_many(self, messages: Sequence[DmqMessage], source: str) -> list[Outcome]:
        """The fate of each message, in the same order. A caller who goes away does not stop what is being written."""
        outcomes: dict[int, Outcome] = {}
        left = list(range(len(messages)))
        while left:
            left = await self._submit_distinct(messages, source, left, outcomes)
        if self.on_rejected:
            for position, message in enumerate(messages):
                outcome = outcomes[position]
                if isinstance(outcome, Rejected):
                    _call(self.on_rejected, message, source, outcome)
        return [outcomes[position] for position in range(len(messages))]

    async def _submit_distinct(
        self, messages: Sequence[DmqMessage], source: str, positions: list[int], outcomes: dict[int, Outcome]
    ) -> list[int]:
        """Settle what nobody else is busy with; returns the positions to look at again.

        A second copy waits for the fate of the first. Only its acceptance makes the copy a duplicate: the first may
        carry the same id with a forged signature, or may be refused by a full disk.
        """
        unix_s, mono_s = self.clock.unix_s(), self.clock.mono_s()
        mine: list[int] = []
        again: list[int] = []
        others: set[asyncio.Future[None]] = set()
        claim = _Claim()
        try:
            for position in positions:
                message = messages[position]
                key = file_key(message)
                if self._mempool.holds(message):
                    outcomes[position] = _HELD
                elif (busy := self._under_way.get(key)) is not None:
                    again.append(position)
                    if busy is not claim.settled:
                        others.add(busy)
                elif (fault := self._check_before(message, unix_s, mono_s)) is not None:
                    outcomes[position] = fault
                else:
                    self._under_way[key] = claim.settled
                    claim.keys.append(key)
                    mine.append(position)
            if mine:
                await self._settle(claim, [messages[position] for position in mine], mine, source, outcomes)
        finally:
            if not claim.is_handed_over:
                self._release(claim)
        if others:
            await asyncio.wait(others)
        return again

    def _check_before(self, message: DmqMessage, unix_s: float, mono_s: float) -> Rejected | None:
        fault = self._validator.check_cheaply(message, unix_s, mono_s)
        return fault or self._mempool.check_limits(message)

    def _release(self, claim: _Claim) -> None:
        for key in claim.keys:
            del self._under_way[key]
        claim.settled.set_result(None)

    async def _settle(
        self,
        claim: _Claim,
        messages: list[DmqMessage],
        positions: list[int],
        source: str,
        outcomes: dict[int, Outcome],
    ) -> None:
        unix_s, mono_s = self.clock.unix_s(), self.clock.mono_s()
        verdicts = await self._verifier.check(messages, self._validator.check_signatures)
        valid: list[int] = []
        for number, verdict in enumerate(verdicts):
            if verdict is None:
                valid.append(number)
            else:
                outcomes[positions[number]] = verdict
        if not valid:
            return
        # From here on the writing goes on without us, should we be cancelled: what is on disk must also come into the
        # mempool, and no copy may overtake it.
        batch = _Batch(claim, [messages[number] for number in valid], source, unix_s, mono_s)
        claim.is_handed_over = True
        self._verified.append(batch)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_groups())
        await batch.done
        for number, outcome in zip(valid, batch.outcomes, strict=True):
            outcomes[positions[number]] = outcome

    async def _write_groups(self) -> None:
        try:
            while self._verified:
                group = self._next_group()
                try:
                    await self._write_group(group)
                except Exception as bug:
                    for batch in group:
                        if not batch.done.done():
                            batch.done.set_exception(bug)
                for batch in group:
                    self._release(batch.claim)
        finally:
            self._writing = None

    def _next_group(self) -> list[_Batch]:
        count = 0
        for number, batch in enumerate(self._verified):
            count += len(batch.messages)
            if number and count > GROUP_MESSAGES_MAX:
                group, self._verified = self._verified[:number], self._verified[number:]
                return group
        group, self._verified = self._verified, []
        return group

    async def _write_group(self, group: list[_Batch]) -> None:
        entries, before = self._commit(group)
        failed: Rejected | None = None
        if entries:
            try:
                await self._store.put(entries)
            except StorageError as error:
                failed = rejected(ErrorCode.STORAGE_UNAVAILABLE, error.text)
                for pool_id, memory in before.items():
                    self._validator.pools_remembered.put_back(pool_id, memory)
        if failed is None:
            self._hold(entries)
        for batch in group:
            if failed is not None:
                # Who was refused on account of a message that now does not count is told to come again, too.
                batch.outcomes = [failed] * len(batch.messages)
            if not batch.done.done():
                batch.done.set_result(None)

    def _commit(self, group: list[_Batch]) -> tuple[list[Entry], dict[PoolId, PoolMemory | None]]:
        """What of the group may be written, and what the pools' memories were before."""
        validator, mempool = self._validator, self._mempool
        remembered = validator.pools_remembered
        entries: list[Entry] = []
        before: dict[PoolId, PoolMemory | None] = {}
        reserved_bytes = 0
        index = mempool.last_index
        for batch in group:
            for message in batch.messages:
                pool_id = validator.pool_of(message)
                if pool_id not in before:
                    before[pool_id] = remembered.get(pool_id)
                # Nobody else can have added it since it was claimed, so it is no duplicate here.
                fault = mempool.check_limits(
                    message, reserved_count=len(entries), reserved_bytes=reserved_bytes
                ) or validator.commit(message, batch.mono_s, pool_id)
                if fault is not None:
                    batch.outcomes.append(fault)
                    continue
                index += 1
                entries.append(Entry(index, message, batch.received_ms, batch.source))
                reserved_bytes += len(message.raw)
                batch.outcomes.append(ACCEPTED)
        return entries, before

    def _hold(self, entries: list[Entry]) -> None:
        if not entries:
            return
        soonest = self._swept_until
        for entry in entries:
            self._mempool.insert(entry)
            if soonest is None or entry.message.expires_at < soonest:
                soonest = entry.message.expires_at
                self._expires_sooner.set()
        # These times are on disk now.
        self.clock.raise_floor(max(entry.received_ms for entry in entries) / 1_000)
        if self.on_accepted:
            for entry in entries:
                _call(self.on_accepted, entry)
        self.bell.ring()

    def sweep(self) -> list[Entry]:
        """Let go of what has expired, also by the clocks of those who may be behind ours."""
        now = self.clock.unix_s()
        gone = self._mempool.expire(now - self._validator.rules.skew_s)
        if gone:
            self._store.forget(gone, now)
            self.clock.raise_floor(now)
        return gone

    async def expire_loop(self) -> None:
        """Sweeps whenever something expires, until cancelled."""
        while True:
            self.sweep()
            self._expires_sooner.clear()
            self._swept_until = self._mempool.next_expiry
            wait_s = SWEEP_WAIT_MAX_S
            if self._swept_until is not None:
                due = self._swept_until + self._validator.rules.skew_s
                wait_s = min(SWEEP_WAIT_MAX_S, max(0.0, due - self.clock.unix_s()))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._expires_sooner.wait()

    async def close(self) -> None:
        """Wait for what is being written. The caller has stopped everybody who submits."""
        if self._writing is not None:
            await asyncio.wait([self._writing])


def _call(hooks: Sequence[Callable[..., None]], *values: object) -> None:
    for hook in hooks:
        try:
            hook(*values)
        except Exception:
            # Whoever listens cannot undo what has happened, and must not keep others from hearing of it.
            _log.exception("a listener of the intake failed")
