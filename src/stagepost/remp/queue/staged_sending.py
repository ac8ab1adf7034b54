"""How a full node hands messages to validators: one after the other, until more than a third of them has one.

    begin → SendTo one, at random for a moment → a receipt: the next at once; no receipt: the next after a pause → enough: Report, rest

Validators pass a message on among themselves, so most of them answer without being told. Who has not answered is told
again, who has is left alone. What is known of a message outlives its sending for a while: receipts still come in.

Whom a full node tells of a message: the validators that work for it now, and near a change those who follow them.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from random import Random
from typing import TypeAlias

import msgspec

from stagepost.errors import ErrorCode, StagepostError
from stagepost.remp.queue.message_states import CLOSED, FINAL, place_of
from stagepost.remp.receipts.message_status import MessageStatus
from stagepost.remp.receipts.receipt import Receipt

LOOK_AHEAD_S = 15.0
"""A change this near is foreseen: of sets, of catchains, by split or by merge."""


class Subset(msgspec.Struct, frozen=True):
    """Validators of one session, by their key ids. `ends_s`: when others follow them, None if that is not known."""

    validators: tuple[bytes, ...]
    ends_s: float | None = None

    def ends_soon(self, now: float) -> bool:
        return self.ends_s is not None and self.ends_s - now <= LOOK_AHEAD_S


def subsets_for(current: Subset, followers: Iterable[Subset], now: float) -> tuple[Subset, ...]:
    """`followers` are those that may take over: the next set, the next catchain, both children, the parent."""
    return (current, *followers) if current.ends_soon(now) else (current,)


class Targets:
    """Those who are told, each once, and when enough of them have a message.

    More than a third of *each* subset must have it: then one honest validator of each has it, and tells the others.
    """

    def __init__(self, subsets: Iterable[Subset]) -> None:
        self._subsets = tuple(frozenset(subset.validators) for subset in subsets)
        self.all: frozenset[bytes] = frozenset().union(*self._subsets)

    def __len__(self) -> int:
        return len(self.all)

    def have_it(self, answered: frozenset[bytes] | set[bytes]) -> bool:
        return all(3 * len(subset & answered) > len(subset) for subset in self._subsets)

    def wanting(self, answered: frozenset[bytes] | set[bytes]) -> set[bytes]:
        """Those who have not answered, of subsets that have not enough yet."""
        found: set[bytes] = set()
        for subset in self._subsets:
            if 3 * len(subset & answered) <= len(subset):
                found |= subset
        return found - answered


PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 0.2
PAUSE_OLDER_S = 2.0
PAUSE_LONGEST_S = 2.0
"""Where validators are slow to answer: telling more of them would make them slower."""

ORDER_LASTS_S = 0.2
"""For so long messages go to validators in one random order, then in another: those who are told of several at a time write,
announce and answer them together."""

ROUND_PAUSE_S = 2.0
"""When all have been told and too few have answered: how long before those are told again."""

ANSWER_WEIGHT = 1 / 8
ANSWERS_WAITED = 2.0
DIES_AFTER_FINAL_S = 100.0
HUNG_AFTER_S = 20.0
CATCHAINS_KEPT, CATCHAINS_KEPT_NEAR_SWITCH = 3, 4
RECEIPTS_PER_SOURCE_MAX = 64
"""Of one message. An honest validator says less of it, however often it comes back into the queue."""

MESSAGES_MAX = 100_000


class SendingOptions(msgspec.Struct, frozen=True):
    pause_min_s: float = PAUSE_MIN_S
    pause_max_s: float = PAUSE_MAX_S
    round_pause_s: float = ROUND_PAUSE_S
    messages_max: int = MESSAGES_MAX
    goes_on_at_receipts: bool = True
    """Whether a receipt makes the next one be told at once."""


OLDER_NETWORKS = SendingOptions(PAUSE_OLDER_S, PAUSE_OLDER_S, goes_on_at_receipts=False)
"""Profile `ever-node`."""


class SendTo(msgspec.Struct, frozen=True):
    """`StagedSending.not_sent` if there is no way to it now."""

    validator: bytes
    message_id: bytes


class ReportSent(msgspec.Struct, frozen=True):
    """Once for each message: enough validators have it, or all have been told. `since`: when the first of them was."""

    message_id: bytes
    sent_to: int
    total: int
    since: float


class Forget(msgspec.Struct, frozen=True):
    """Nothing more is expected of it."""

    message_id: bytes


SendingEffect: TypeAlias = SendTo | ReportSent | Forget


class History:
    """What is known of one message."""

    __slots__ = (
        "answered",
        "dies_at",
        "last_statuses",
        "last_update",
        "lives_until_seqno",
        "message_id",
        "next_at",
        "receipts_seen",
        "reported",
        "round",
        "sent_to",
        "targets",
    )

    def __init__(self, message_id: bytes, targets: Targets, lives_until_seqno: int, now: float) -> None:
        self.message_id = message_id
        self.targets = targets
        self.lives_until_seqno = lives_until_seqno
        self.sent_to: dict[bytes, float] = {}
        self.round: set[bytes] = set()
        self.answered: set[bytes] = set()
        self.last_statuses: dict[bytes, MessageStatus] = {}
        self.receipts_seen: dict[bytes, set[int]] = {}
        self.next_at: float | None = now
        self.last_update = now
        self.dies_at: float | None = None
        self.reported = False


class StagedSending:
    def __init__(self, random: Random, options: SendingOptions | None = None) -> None:
        self._random = random
        self._options = options or SendingOptions()
        self._histories: dict[bytes, History] = {}
        self._timers: list[tuple[float, bytes]] = []
        self._dying: list[tuple[float, bytes]] = []
        self._effects: list[SendingEffect] = []
        self._answer_s = 0.0
        """How long a validator takes to answer, lately."""
        self._order: dict[bytes, float] = {}
        self._order_until = 0.0

    # What is known

    def __len__(self) -> int:
        return len(self._histories)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._histories

    def get(self, message_id: bytes) -> History | None:
        return self._histories.get(message_id)

    def hung(self, now: float) -> int:
        """Messages without an end of which nothing was heard for long: for people, nothing follows from it."""
        return sum(
            history.dies_at is None and now - history.last_update >= HUNG_AFTER_S
            for history in self._histories.values()
        )

    @property
    def next_wake(self) -> float | None:
        while self._timers and not self._is_timely(*self._timers[0]):
            heappop(self._timers)
        times = [heap[0][0] for heap in (self._timers, self._dying) if heap]
        return min(times, default=None)

    # Events

    def begin(
        self,
        message_id: bytes,
        subsets: Iterable[Subset],
        masterchain_seqno: int,
        now: float,
        *,
        is_near_switch: bool = False,
    ) -> list[SendingEffect]:
        """`StagepostError` for a message that is on its way already: whoever sent it first hears of it."""
        if message_id in self._histories:
            raise StagepostError(
                f"message {message_id.hex()} is in processing already",
                code=ErrorCode.MSG_DUPLICATE,
                advice="follow the receipts of the first sending",
                message_id=message_id,
            )
        if len(self._histories) >= self._options.messages_max:
            raise StagepostError(
                f"{len(self._histories)} messages are in processing, at most {self._options.messages_max} may be",
                code=ErrorCode.QUEUE_FULL,
                advice="send it again later",
                message_id=message_id,
                limit=self._options.messages_max,
            )
        targets = Targets(subsets)
        if not len(targets):
            raise StagepostError(
                f"no validators are known for message {message_id.hex()}",
                code=ErrorCode.NOT_READY,
                advice="wait for the validator sets of its shard",
                message_id=message_id,
            )
        kept = CATCHAINS_KEPT_NEAR_SWITCH if is_near_switch else CATCHAINS_KEPT
        history = History(message_id, targets, masterchain_seqno + kept, now)
        self._histories[message_id] = history
        self._send_next(history, now)
        return self._taken()

    def follow(
        self, message_id: bytes, subsets: Iterable[Subset], masterchain_seqno: int, now: float
    ) -> None:
        """One that an earlier life has handed over: nobody is told of it again, and receipts still come in."""
        history = History(message_id, Targets(subsets), masterchain_seqno + CATCHAINS_KEPT, now)
        history.next_at = None
        history.reported = True
        self._histories.setdefault(message_id, history)

    def not_sent(self, validator: bytes, message_id: bytes, now: float) -> list[SendingEffect]:
        """There is no link to it: the next one at once."""
        history = self._histories.get(message_id)
        if history is not None:
            history.sent_to.pop(validator, None)
            if history.next_at is not None:
                self._send_next(history, now)
        return self._taken()

    def is_repeated(self, receipt: Receipt) -> bool:
        """Cheap, before any signature is checked: the same bytes of the same source, or more than anybody needs."""
        history = self._histories.get(receipt.message_id)
        if history is None:
            return False
        seen = history.receipts_seen.get(receipt.source_id, ())
        return len(seen) >= RECEIPTS_PER_SOURCE_MAX or _fingerprint(receipt) in seen

    def receipt_came(self, receipt: Receipt, now: float) -> list[SendingEffect]:
        """One that counts, of a message in processing, not seen before."""
        history = self._histories[receipt.message_id]
        source = receipt.source_id
        history.receipts_seen.setdefault(source, set()).add(_fingerprint(receipt))
        history.last_update = now
        history.last_statuses[source] = receipt.status
        is_first = source not in history.answered
        if not history.answered and source in history.sent_to:
            # Of each message the quickest counts: whoever is slow on purpose must not slow us down.
            self._answer_s += ANSWER_WEIGHT * (now - history.sent_to[source] - self._answer_s)
        history.answered.add(source)
        self._look_for_end(history, now)
        if history.next_at is not None and is_first:
            if history.targets.have_it(history.answered):
                self._rest(history)
            elif self._options.goes_on_at_receipts:
                self._send_next(history, now)
        return self._taken()

    def finalized(self, message_id: bytes, now: float) -> list[SendingEffect]:
        """A master block holds it, as this node has seen."""
        history = self._histories.get(message_id)
        if history is not None:
            history.last_update = now
            self._rest(history)
            self._end(history, now)
        return self._taken()

    def validator_linked(self, now: float) -> list[SendingEffect]:
        """There is a way to somebody: whatever nobody could be told of does not wait for its next round."""
        for history in self._histories.values():
            if history.next_at is not None and not history.sent_to:
                self._send_next(history, now)
        return self._taken()

    def tick(self, now: float) -> list[SendingEffect]:
        while self._dying and self._dying[0][0] <= now:
            _, message_id = heappop(self._dying)
            del self._histories[message_id]
            self._effects.append(Forget(message_id))
        due: list[bytes] = []
        while self._timers and self._timers[0][0] <= now:
            at, message_id = heappop(self._timers)
            if self._is_timely(at, message_id):
                due.append(message_id)
        for message_id in due:
            self._send_next(self._histories[message_id], now)
        return self._taken()

    def master_advanced(self, masterchain_seqno: int) -> list[bytes]:
        """The clock of all messages goes on; the ids of those whose life is over, which are forgotten."""
        over = [
            message_id
            for message_id, history in self._histories.items()
            if masterchain_seqno >= history.lives_until_seqno
        ]
        for message_id in over:
            del self._histories[message_id]
        # Ids may come again: a timer of an earlier life must not end the next one.
        self._dying = [(at, message_id) for at, message_id in self._dying if message_id in self._histories]
        heapify(self._dying)
        return over

    # Details

    def _is_timely(self, at: float, message_id: bytes) -> bool:
        history = self._histories.get(message_id)
        return history is not None and history.next_at == at

    def _send_next(self, history: History, now: float) -> None:
        """To somebody of whom nothing was heard; when all such have been told, report, and begin again later."""
        wanting = history.targets.wanting(history.answered)
        untold = sorted(wanting - history.round)
        if not untold:
            self._report(history)
            history.round.clear()
            self._set_timer(history, now + self._options.round_pause_s)
            return
        validator = self._first_of(untold, now)
        history.round.add(validator)
        history.sent_to[validator] = now
        self._effects.append(SendTo(validator, history.message_id))
        self._set_timer(history, now + self._pause_s())

    def _first_of(self, validators: Iterable[bytes], now: float) -> bytes:
        """In the order of this moment, in which each has a random place."""
        if now >= self._order_until:
            self._order.clear()
            self._order_until = now + ORDER_LASTS_S
        for validator in validators:
            if validator not in self._order:
                self._order[validator] = self._random.random()
        return min(validators, key=self._order.__getitem__)

    def _pause_s(self) -> float:
        options = self._options
        pause_s = self._random.uniform(options.pause_min_s, options.pause_max_s)
        return max(pause_s, min(ANSWERS_WAITED * self._answer_s, PAUSE_LONGEST_S))

    def _set_timer(self, history: History, at: float) -> None:
        history.next_at = at
        heappush(self._timers, (at, history.message_id))

    def _rest(self, history: History) -> None:
        history.next_at = None
        self._report(history)

    def _report(self, history: History) -> None:
        if not history.reported and history.sent_to:
            history.reported = True
            since = min(history.sent_to.values())
            self._effects.append(
                ReportSent(history.message_id, len(history.sent_to), len(history.targets), since)
            )

    def _look_for_end(self, history: History, now: float) -> None:
        """One validator's refusal is an opinion; that of all is the end."""
        places = [place_of(status) for status in history.last_statuses.values()]
        is_everybody = history.targets.all <= history.last_statuses.keys()
        if is_everybody and all(place in CLOSED or place == FINAL for place in places):
            self._rest(history)
            self._end(history, now)

    def _end(self, history: History, now: float) -> None:
        if history.dies_at is None:
            history.dies_at = now + DIES_AFTER_FINAL_S
            heappush(self._dying, (history.dies_at, history.message_id))

    def _taken(self) -> list[SendingEffect]:
        effects, self._effects = self._effects, []
        return effects


def _fingerprint(receipt: Receipt) -> int:
    """Of what is signed and of the signature: a forged copy must not shadow the true one."""
    return hash((receipt.timestamp_ms, receipt.status, receipt.signature_text))
