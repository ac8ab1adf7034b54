"""The one way into the mempool, for local programs and other nodes alike.

    duplicate? → cheap checks → signatures → commit → durable → mempool → bell

`offer` looks at messages at once and never waits; the steps after the cheap checks run together for all
messages offered in one turn of the loop. From `commit` on there is one group of messages at a time: messages
that prove valid while a group is being written form the next one, so that a slow disk makes groups larger and
not more of them, and a group that cannot be written is undone without touching any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from stagepost.dmq.mempool import Mempool, MempoolEntry, file_key
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.message_store import MessageStore, Restored, restore
from stagepost.dmq.outcome import ACCEPTED, Outcome, Reason, Rejected, rejected
from stagepost.dmq.pool_memory import PoolMemory
from stagepost.dmq.validation import MessageValidator
from stagepost.errors import ErrorCode, StorageError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.loop.clock import Clock, FlooredClock
from stagepost.ground.signatures.verifier import Errand, Request, SignatureVerifier

GROUP_MESSAGES_MAX = 512
RING_EVERY_S = 0.002
RING_PER_READER_S = 0.001
"""Seconds of silence per reader. Waking every peer and program for each message would cost more than checking its
signature. Waking one takes about 25 microseconds: so under load all of them together take a fortieth of the node's time,
however many they are."""

SWEEP_WAIT_MAX_S = 10.0
"""Seconds between sweeps at most. Sweeps come exactly when a message expires; this limit is for wall clocks that were set."""

OnAccepted: TypeAlias = Callable[[MempoolEntry], None]
OnRejected: TypeAlias = Callable[[DmqMessage, str, Rejected], None]
OnExpired: TypeAlias = Callable[[list[MempoolEntry]], None]
Settled: TypeAlias = Callable[[list[Outcome]], None]

_log = logging.getLogger(__name__)
_HELD = rejected(ErrorCode.MSG_DUPLICATE, "this message is held already")
_NOT_HANDLED = Rejected(Reason.OTHER, "the message could not be handled")
"""Answer for a message whose handling failed by a bug of ours, which is in the log."""


class _Offer:
    """Messages of one caller. `outcomes` is complete when `unsettled` is 0."""

    __slots__ = ("gives_up", "messages", "outcomes", "settled", "source", "unsettled")

    def __init__(self, messages: Sequence[DmqMessage], source: str, settled: Settled, gives_up: bool) -> None:
        self.messages = messages
        self.source = source
        self.settled = settled
        self.gives_up = gives_up
        self.outcomes: list[Outcome] = [_NOT_HANDLED] * len(messages)
        self.unsettled = len(messages)


NOT_CHECKED = Rejected(Reason.OTHER, "not checked, because another message of the same relay is forged")


class _Batch(Request[DmqMessage, Rejected]):
    """Messages of one offer whose signatures have to be checked, each with its place in the offer and its
    claimed key."""

    __slots__ = ("keys", "mono_s", "offer", "places", "pool_ids", "received_ms")

    def __init__(
        self,
        offer: _Offer,
        messages: list[DmqMessage],
        places: list[int],
        keys: list[bytes],
        pool_ids: list[PoolId],
        unix_s: float,
        mono_s: float,
    ) -> None:
        super().__init__(messages, given_up=NOT_CHECKED if offer.gives_up else None)
        self.offer = offer
        self.places = places
        self.keys = keys
        self.pool_ids = pool_ids
        self.received_ms = int(unix_s * 1_000)
        self.mono_s = mono_s


_Waiting: TypeAlias = list[tuple[_Offer, int]]


class Intake:
    """Intake of one node."""

    def __init__(
        self,
        validator: MessageValidator,
        mempool: Mempool,
        store: MessageStore,
        clock: Clock,
        *,
        verifier: SignatureVerifier,
    ) -> None:
        self.bell = Bell(at_most_every_s=RING_EVERY_S, per_waiter_s=RING_PER_READER_S)
        self.clock = clock if isinstance(clock, FlooredClock) else FlooredClock(clock)
        self.on_accepted: list[OnAccepted] = []
        self.on_rejected: list[OnRejected] = []
        self.on_expired: list[OnExpired] = []
        self._validator = validator
        self._mempool = mempool
        self._store = store
        self._verifier = verifier
        self._errand = Errand(validator.check_signatures, self._judged, validator)
        # Each message under way, by its key, and the copies of it that wait for its outcome.
        self._under_way: dict[bytes, _Waiting | None] = {}
        self._claimed: list[_Batch] = []
        self._valid: list[_Batch] = []
        self._is_writing = False
        self._nothing_under_way: asyncio.Future[None] | None = None
        self._swept_until: int | None = None
        self._expires_sooner = asyncio.Event()

    def restore(self, *, accept_stored_time: bool = False) -> Restored:
        """Take over the stored messages: once, before the first message."""
        restored = restore(
            self._store, self._validator, self._mempool, self.clock, accept_stored_time=accept_stored_time
        )
        for line in restored.damage:
            _log.warning("message store was damaged", extra={"detail": line})
        return restored

    @property
    def is_under_way(self) -> int:
        """Number of messages between their arrival and their answer."""
        return len(self._under_way)

    async def submit(self, message: DmqMessage, source: str) -> Outcome:
        return (await self.submit_many((message,), source))[0]

    async def submit_many(self, messages: Sequence[DmqMessage], source: str) -> list[Outcome]:
        """Do what `offer` does, for a caller that waits. Cancelling the wait does not take the messages back."""
        done: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

        def settled(outcomes: list[Outcome]) -> None:
            if not done.done():
                done.set_result(outcomes)

        self.offer(messages, source, settled)
        return await done

    def offer(
        self, messages: Sequence[DmqMessage], source: str, settled: Settled, *, gives_up: bool = False
    ) -> None:
        """Judge messages and call `settled` once, perhaps at once, with the outcome of each, in the same
        order.

        `gives_up`: the source is cut off for one forgery, so its other messages need not be checked after
        that.
        """
        offer = _Offer(messages, source, settled, gives_up)
        self._look(offer, range(len(messages)))

    def _look(self, offer: _Offer, places: Iterable[int]) -> None:
        """Settle the messages that need no signature check, and claim the rest.

        A second copy waits for the outcome of the first. Only the acceptance of the first makes the copy a
        duplicate: the first may carry the same id with a forged signature, or the disk may be too full for
        it.
        """
        unix_s, mono_s = self.clock.unix_s(), self.clock.mono_s()
        mempool, validator, under_way = self._mempool, self._validator, self._under_way
        messages: list[DmqMessage] = []
        claimed: list[int] = []
        keys: list[bytes] = []
        pool_ids: list[PoolId] = []
        fits = len(offer.messages) > 1 and _fits(mempool, offer.messages)
        for place in places:
            message = offer.messages[place]
            key = file_key(message)
            fault: Rejected | None = None
            if mempool.holds_key(key):
                fault = _HELD
            elif key in under_way:
                waiting = under_way[key]
                if waiting is None:
                    under_way[key] = [(offer, place)]
                else:
                    waiting.append((offer, place))
                continue
            else:
                pool_id = validator.pool_of(message)
                fault = validator.check_cheaply(message, unix_s, mono_s, pool_id)
                if fault is None and not fits:
                    fault = mempool.check_limits(message)
            if fault is not None:
                offer.outcomes[place] = fault
                offer.unsettled -= 1
            else:
                under_way[key] = None
                messages.append(message)
                claimed.append(place)
                keys.append(key)
                pool_ids.append(pool_id)
        if claimed:
            if not self._claimed:
                asyncio.get_running_loop().call_soon(self._verify_claimed)
            self._claimed.append(_Batch(offer, messages, claimed, keys, pool_ids, self.clock.sure_s, mono_s))
        if not offer.unsettled:
            self._finish(offer)

    def _verify_claimed(self) -> None:
        """Verify all messages that were claimed in one turn of the loop."""
        claimed, self._claimed = self._claimed, []
        self._verifier.verify(claimed, self._errand)

    def _judged(self, batches: Sequence[Request[DmqMessage, Rejected]]) -> None:
        """Pass the valid messages on; settle the others, and look at their copies."""
        for batch in batches:
            assert isinstance(batch, _Batch)
            verdicts = batch.verdicts
            if batch.bug is not None:
                _log.error("checking signatures failed", exc_info=batch.bug)
                verdicts = [_NOT_HANDLED] * len(verdicts)
            if verdicts.count(None) == len(verdicts):
                self._valid.append(batch)
                continue
            offer, kept = batch.offer, [number for number, verdict in enumerate(verdicts) if verdict is None]
            refused = [(number, verdict) for number, verdict in enumerate(verdicts) if verdict is not None]
            for number, verdict in refused:
                offer.outcomes[batch.places[number]] = verdict
            offer.unsettled -= len(refused)
            keys = [batch.keys[number] for number, _ in refused]
            if kept:
                batch.messages = [batch.messages[number] for number in kept]
                batch.places = [batch.places[number] for number in kept]
                batch.keys = [batch.keys[number] for number in kept]
                batch.pool_ids = [batch.pool_ids[number] for number in kept]
                self._valid.append(batch)
            elif not offer.unsettled:
                self._finish(offer)
            self._release(keys)
        self._write_groups()

    def _write_groups(self) -> None:
        while self._valid and not self._is_writing:
            self._is_writing = True
            group = self._next_group()
            try:
                entries, before = self._commit(group)
            except Exception:
                _log.exception("messages could not be committed")
                self._settle(group, _NOT_HANDLED)
                continue
            written = partial(self._written, group, entries, before)
            if entries:
                self._store.write(entries, written)
            else:
                written(None)

    def _next_group(self) -> list[_Batch]:
        count = 0
        for number, batch in enumerate(self._valid):
            count += len(batch.messages)
            if number and count > GROUP_MESSAGES_MAX:
                group, self._valid = self._valid[:number], self._valid[number:]
                return group
        group, self._valid = self._valid, []
        return group

    def _commit(self, group: list[_Batch]) -> tuple[list[MempoolEntry], dict[PoolId, PoolMemory | None]]:
        """Return the entries of the group to write, and the pools' memories before the commit."""
        validator, mempool = self._validator, self._mempool
        remembered = validator.pools_remembered
        entries: list[MempoolEntry] = []
        before: dict[PoolId, PoolMemory | None] = {}
        reserved_bytes = 0
        of_pool: dict[PoolId, tuple[int, int]] = {}
        index = mempool.last_index
        fits = _fits(mempool, [message for batch in group for message in batch.messages])
        for batch in group:
            outcomes, places = batch.offer.outcomes, batch.places
            for message, place, pool_id in zip(batch.messages, places, batch.pool_ids, strict=True):
                if pool_id not in before:
                    before[pool_id] = remembered.get(pool_id)
                # Nobody else can have added this message since it was claimed, so it is not a duplicate here.
                mine = of_pool.get(pool_id, (0, 0))
                fault = None if fits else mempool.check_limits(message, len(entries), reserved_bytes, mine)
                fault = fault or validator.commit(message, batch.mono_s, pool_id)
                if fault is not None:
                    outcomes[place] = fault
                    continue
                index += 1
                entries.append(MempoolEntry(index, message, batch.received_ms, batch.offer.source))
                reserved_bytes += len(message.raw)
                of_pool[pool_id] = mine[0] + 1, mine[1] + len(message.raw)
                outcomes[place] = ACCEPTED
        return entries, before

    def _written(
        self,
        group: list[_Batch],
        entries: list[MempoolEntry],
        before: dict[PoolId, PoolMemory | None],
        error: StorageError | None,
    ) -> None:
        answer: Outcome | None = None
        if error is not None:
            for pool_id, memory in before.items():
                self._validator.pools_remembered.put_back(pool_id, memory)
            # Messages that were refused because of a message that now does not count get this answer, too.
            answer = rejected(ErrorCode.STORAGE_UNAVAILABLE, error.text)
        else:
            try:
                self._hold(entries)
            except Exception:
                _log.exception("messages could not be held")
                answer = _NOT_HANDLED
        self._settle(group, answer)
        self._write_groups()

    def _settle(self, group: list[_Batch], answer: Outcome | None) -> None:
        """End a group: report its outcomes, and look again at copies of its messages."""
        self._is_writing = False
        for batch in group:
            offer = batch.offer
            if answer is not None:
                for place in batch.places:
                    offer.outcomes[place] = answer
            offer.unsettled -= len(batch.places)
            if not offer.unsettled:
                self._finish(offer)
        for batch in group:
            self._release(batch.keys)

    def _release(self, keys: list[bytes]) -> None:
        under_way = self._under_way
        for key in keys:
            waiting = under_way.pop(key)
            if waiting is not None:
                for offer, place in waiting:
                    self._look(offer, (place,))
        if not under_way and self._nothing_under_way is not None:
            self._nothing_under_way.set_result(None)
            self._nothing_under_way = None

    def _finish(self, offer: _Offer) -> None:
        if self.on_rejected:
            for message, outcome in zip(offer.messages, offer.outcomes, strict=True):
                if outcome is not ACCEPTED and isinstance(outcome, Rejected):
                    _call(self.on_rejected, message, offer.source, outcome)
        try:
            offer.settled(offer.outcomes)
        except Exception:
            # A bug of one caller must not reach the others of the group.
            _log.exception("a caller of the intake failed")

    def _hold(self, entries: list[MempoolEntry]) -> None:
        if not entries:
            return
        mempool = self._mempool
        mempool.insert(*entries)
        if self._swept_until is None or (mempool.next_expiry or 0) < self._swept_until:
            self._expires_sooner.set()
        # These times are on disk now.
        self.clock.raise_floor(max([entry.received_ms for entry in entries]) / 1_000)
        for hook in self.on_accepted:
            _call_for_each(hook, entries)
        self.bell.ring()

    def sweep(self) -> list[MempoolEntry]:
        """Forget expired messages, when they have expired by clocks that are behind ours, too."""
        now = self.clock.sure_s
        gone = self._mempool.expire(now - self._validator.rules.skew_s)
        if gone:
            self._store.forget(gone, now)
            self.clock.raise_floor(now)
            if self.on_expired:
                _call(self.on_expired, gone)
        return gone

    async def expire_loop(self) -> None:
        """Sweep whenever a message expires, until cancelled."""
        while True:
            self.sweep()
            self._expires_sooner.clear()
            self._swept_until = self._mempool.next_expiry
            wait_s = SWEEP_WAIT_MAX_S
            if self._swept_until is not None:
                due = self._swept_until + self._validator.rules.skew_s
                wait_s = min(SWEEP_WAIT_MAX_S, max(0.0, due - self.clock.sure_s))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._expires_sooner.wait()

    async def close(self) -> None:
        """Wait until all offered messages are settled. The caller has stopped everybody who offers."""
        if self._under_way:
            if self._nothing_under_way is None:
                self._nothing_under_way = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._nothing_under_way)


def _fits(mempool: Mempool, messages: Sequence[DmqMessage]) -> bool:
    """Return whether there is room for all messages together, so that none has to be checked by itself."""
    return mempool.has_room_for(
        len(messages),
        sum([len(message.raw) for message in messages]),
        min([message.expires_at for message in messages], default=0),
    )


def _call_for_each(hook: OnAccepted, entries: list[MempoolEntry]) -> None:
    rest = iter(entries)
    while True:
        try:
            for entry in rest:
                hook(entry)
            return
        except Exception:
            _log.exception("a listener of the intake failed")


def _call(hooks: Sequence[Callable[..., None]], *values: object) -> None:
    for hook in hooks:
        try:
            hook(*values)
        except Exception:
            # A listener cannot undo what has happened, and must not keep others from hearing of it.
            _log.exception("a listener of the intake failed")
