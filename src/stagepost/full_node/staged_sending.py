"""Sending of messages from a full node to validators: one after the other, until more than a third of the
session at work has each.

    begin → SendTo one, at random for a moment → a receipt: the next at once; no receipt: the next after a pause → enough: Report, rest

Near a change, members of the sessions that follow get a message at once, beside the others: they keep it until their
session begins, and nobody waits for their answers. When the session changes, `move` sends to the new one what too few of
the old one have answered for. Validators pass a message on among themselves, so most of them answer without having got it
from the full node. A validator that has not answered gets the message again; one that has answered does not.
The history of a message outlives its sending for a while, because receipts still come in.

Shares of submitters limit the work that one user, token, address or sender may have under way. Validators execute messages in
the order in which they come, so whatever one submitter has in processing, all others wait for. The node therefore keeps at
most `BLOCKS_MAX` blocks' worth of messages without an end, and lets a submitter add to its own only while it has less than
the room that is left. A single submitter gets a half, two get a third each, n get 1/(n + 1) each: the last part is free, so a
submitter that comes later never finds the door closed.
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
from stagepost.remp.receipts.status import Level, Status
from stagepost.remp.validator_sets import is_more_than_a_third

LOOK_AHEAD_S = 15.0
"""Seconds: a change of sets or catchains, a split or a merge within this time is taken into account."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 0.2
PAUSE_LONGEST_S = 2.0
"""Seconds, at most, between two validators, where validators answer slowly: sending to more of them would
make them slower.
"""

ORDER_LASTS_S = 0.2
"""Seconds for which all messages go to validators in the same random order. A validator that gets several
messages at a time writes, announces and answers them together.
"""

ROUND_PAUSE_S = 2.0
"""Seconds until the next round, after all validators got the message and too few answered."""

ANSWER_WEIGHT = 1 / 8
ANSWERS_WAITED = 2.0
DIES_AFTER_FINAL_S = 100.0
CATCHAINS_KEPT, CATCHAINS_KEPT_NEAR_SWITCH = 3, 4
RECEIPTS_PER_SOURCE_MAX = 64
"""Receipts of one validator about one message, at most. An honest validator sends fewer, however often the
message returns into the queue.
"""

MESSAGES_MAX = 100_000


class SendingOptions(msgspec.Struct, frozen=True):
    pause_min_s: float = PAUSE_MIN_S
    pause_max_s: float = PAUSE_MAX_S
    round_pause_s: float = ROUND_PAUSE_S
    messages_max: int = MESSAGES_MAX


REFUSED_AT_QUEUE = Status.REJECTED, Level.QUEUE


class SendTo(msgspec.Struct, frozen=True):
    """Send the message to `validator`; call `StagedSending.not_sent` if there is no link to it now."""

    validator: bytes
    message_id: bytes


class ReportSent(msgspec.Struct, frozen=True):
    """Report, once for each message, that more than a third of the session at work has answered, or that all of it have
    got the message and too few answered. `sent_to`: members that got it; `total`: all of them; `since`: time of the
    first sending.
    """

    message_id: bytes
    sent_to: int
    total: int
    since: float


class Forget(msgspec.Struct, frozen=True):
    """Forget the message: nothing more is expected of it."""

    message_id: bytes


SendingEffect: TypeAlias = SendTo | ReportSent | Forget


class SendingHistory:
    """The sendings and receipts of one message. `targets` are the members of the session at work, by their key ids."""

    __slots__ = (
        "answered",
        "dies_at",
        "last_statuses",
        "lives_until_seqno",
        "message_id",
        "next_at",
        "receipts_seen",
        "reported",
        "round",
        "sent_to",
        "targets",
    )

    def __init__(
        self, message_id: bytes, targets: frozenset[bytes], lives_until_seqno: int, now: float
    ) -> None:
        self.message_id = message_id
        self.targets = targets
        self.lives_until_seqno = lives_until_seqno
        self.sent_to: dict[bytes, float] = {}
        self.round: set[bytes] = set()
        self.answered: set[bytes] = set()
        self.last_statuses: dict[bytes, MessageStatus] = {}
        self.receipts_seen: dict[bytes, set[int]] = {}
        self.next_at: float | None = now
        self.dies_at: float | None = None
        self.reported = False

    @property
    def is_over(self) -> bool:
        """Return whether the message has an end, as far as the node and all members of the session say."""
        return self.dies_at is not None

    @property
    def is_with_enough(self) -> bool:
        """Return whether more than a third of the session at work has answered: at least one honest member has the
        message, and passes it to the others.
        """
        return is_more_than_a_third(len(self.targets & self.answered), len(self.targets))


class StagedSending:
    def __init__(self, random: Random, options: SendingOptions | None = None) -> None:
        self._random = random
        self._options = options or SendingOptions()
        self._histories: dict[bytes, SendingHistory] = {}
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

    @property
    def message_ids(self) -> tuple[bytes, ...]:
        """Messages under way, in the order in which they came."""
        return tuple(self._histories)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._histories

    def get(self, message_id: bytes) -> SendingHistory | None:
        return self._histories.get(message_id)

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
        targets: Iterable[bytes],
        coming: Iterable[bytes],
        masterchain_seqno: int,
        now: float,
    ) -> list[SendingEffect]:
        """Start sending a message to `targets`, the session at work, and at once to `coming`, the members of sessions that
        follow soon. Raise `StagepostError` if it is being sent already: its first sender hears of it.
        """
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
        at_work, later = frozenset(targets), set(coming)
        if not at_work:
            raise StagepostError(
                f"no validators are known for message {message_id.hex()}",
                code=ErrorCode.NOT_READY,
                advice="wait for the validator sets of its shard",
                message_id=message_id,
            )
        kept = CATCHAINS_KEPT_NEAR_SWITCH if later else CATCHAINS_KEPT
        history = SendingHistory(message_id, at_work, masterchain_seqno + kept, now)
        self._histories[message_id] = history
        self._send_next(history, now)
        self._send_beside(history, later, now)
        return self._taken()

    def move(
        self, message_id: bytes, targets: Iterable[bytes], coming: Iterable[bytes], now: float
    ) -> list[SendingEffect]:
        """Go on with the session that works for the message now. A message that enough of an earlier session answered for
        is not sent again: that session hands it on.
        """
        history = self._histories.get(message_id)
        if history is None:
            return []
        history.targets = frozenset(targets)
        if history.next_at is not None:
            history.round.clear()
            if history.is_with_enough:
                self._rest(history)
            elif history.targets & history.sent_to.keys():
                self._set_timer(history, now + self._pause_s())  # they got it early, and answer now
            else:
                self._send_next(history, now)
            self._send_beside(history, coming, now)
        return self._taken()

    def follow(self, message_id: bytes, targets: Iterable[bytes], masterchain_seqno: int, now: float) -> None:
        """Collect the receipts of a message that an earlier run of this node sent; send it to nobody."""
        history = SendingHistory(message_id, frozenset(targets), masterchain_seqno + CATCHAINS_KEPT, now)
        history.next_at = None
        history.reported = True
        self._histories.setdefault(message_id, history)

    def not_sent(self, validator: bytes, message_id: bytes, now: float) -> list[SendingEffect]:
        """Go on with the next validator at once: there is no link to `validator`."""
        history = self._histories.get(message_id)
        if history is not None:
            history.sent_to.pop(validator, None)
            if history.next_at is not None and validator in history.targets:
                self._send_next(history, now)
        return self._taken()

    def is_repeated(self, receipt: Receipt) -> bool:
        """Return whether the receipt repeats one of the same source, or exceeds `RECEIPTS_PER_SOURCE_MAX`.
        Cheap, so that callers ask before they verify a signature.
        """
        history = self._histories.get(receipt.message_id)
        if history is None:
            return False
        seen = history.receipts_seen.get(receipt.source_id, ())
        return len(seen) >= RECEIPTS_PER_SOURCE_MAX or _fingerprint(receipt) in seen

    def receipt_came(self, receipt: Receipt, now: float) -> list[SendingEffect]:
        """Count a verified receipt, not seen before, about a message in processing."""
        history = self._histories[receipt.message_id]
        source = receipt.source_id
        history.receipts_seen.setdefault(source, set()).add(_fingerprint(receipt))
        history.last_statuses[source] = receipt.status
        is_first = source not in history.answered
        if not history.answered and source in history.round:
            # The quickest validator of each message counts: one that is slow on purpose must not slow us down.
            self._answer_s += ANSWER_WEIGHT * (now - history.sent_to[source] - self._answer_s)
        if is_first and place_of(receipt.status) == REFUSED_AT_QUEUE:
            # It did not take the message, so it passes it to nobody: the next one may.
            self._look_for_end(history, now)
            if history.next_at is not None and source in history.targets:
                self._send_next(history, now)
            return self._taken()
        history.answered.add(source)
        self._look_for_end(history, now)
        if history.next_at is not None and is_first:
            if history.is_with_enough:
                self._rest(history)
            elif source in history.targets:
                self._send_next(history, now)
        return self._taken()

    def finalized(self, message_id: bytes, now: float) -> list[SendingEffect]:
        """Note that a master block which this node has seen holds the message."""
        history = self._histories.get(message_id)
        if history is not None:
            self._rest(history)
            self._end(history, now)
        return self._taken()

    def validator_linked(self, now: float) -> list[SendingEffect]:
        """Note a new link to a validator: a message that could be sent to nobody does not wait for its next
        round.
        """
        for history in self._histories.values():
            if history.next_at is not None and not history.targets & history.sent_to.keys():
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
        """Advance the clock of all messages. Return the ids of the messages that expired; they are forgotten."""
        over = [
            message_id
            for message_id, history in self._histories.items()
            if masterchain_seqno >= history.lives_until_seqno
        ]
        for message_id in over:
            del self._histories[message_id]
        # An id may come again: a timer of its earlier history must not end the next one.
        self._dying = [(at, message_id) for at, message_id in self._dying if message_id in self._histories]
        heapify(self._dying)
        return over

    # Details

    def _is_timely(self, at: float, message_id: bytes) -> bool:
        history = self._histories.get(message_id)
        return history is not None and history.next_at == at

    def _send_next(self, history: SendingHistory, now: float) -> None:
        """Send to a validator that has not answered; when all of those have got the message, report, and
        begin again later.
        """
        untold = history.targets - history.answered - history.round
        if not untold:
            self._report(history)
            history.round.clear()
            self._set_timer(history, now + self._options.round_pause_s)
            return
        validator = self._first_of(sorted(untold - history.sent_to.keys() or untold), now)
        history.round.add(validator)
        history.sent_to[validator] = now
        self._effects.append(SendTo(validator, history.message_id))
        self._set_timer(history, now + self._pause_s())

    def _send_beside(self, history: SendingHistory, coming: Iterable[bytes], now: float) -> None:
        """Send to members of coming sessions that have not got the message and do not get it as members of the session at
        work.
        """
        for validator in sorted(set(coming) - history.targets - history.sent_to.keys()):
            history.sent_to[validator] = now
            self._effects.append(SendTo(validator, history.message_id))

    def _first_of(self, validators: Iterable[bytes], now: float) -> bytes:
        """Return the first of `validators` in the random order that holds for `ORDER_LASTS_S`."""
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

    def _set_timer(self, history: SendingHistory, at: float) -> None:
        history.next_at = at
        heappush(self._timers, (at, history.message_id))

    def _rest(self, history: SendingHistory) -> None:
        history.next_at = None
        self._report(history)

    def _report(self, history: SendingHistory) -> None:
        if not history.reported and history.sent_to:
            history.reported = True
            since = min(history.sent_to.values())
            got = history.targets & (history.sent_to.keys() | history.answered)
            self._effects.append(ReportSent(history.message_id, len(got), len(history.targets), since))

    def _look_for_end(self, history: SendingHistory, now: float) -> None:
        """End the message once every member of the session at work has closed it: the refusal of a single validator is
        only an opinion.
        """
        places = [place_of(status) for status in history.last_statuses.values()]
        is_everybody = history.targets <= history.last_statuses.keys()
        if is_everybody and all(place in CLOSED or place == FINAL for place in places):
            self._rest(history)
            self._end(history, now)

    def _end(self, history: SendingHistory, now: float) -> None:
        if history.dies_at is None:
            history.dies_at = now + DIES_AFTER_FINAL_S
            heappush(self._dying, (history.dies_at, history.message_id))

    def _taken(self) -> list[SendingEffect]:
        effects, self._effects = self._effects, []
        return effects


def _fingerprint(receipt: Receipt) -> int:
    """Return a hash of the signed content and the signature: a forged copy must not shadow the true receipt."""
    return hash((receipt.timestamp_ms, receipt.status, receipt.signature_text))


BLOCKS_MAX = 32.0
"""Blocks that all messages in processing would fill, by weight, bytes or number: a few seconds of one shard's work."""


class Charge:
    """Amount of work that is in processing: `blocks` that it fills, and the number of its messages."""

    __slots__ = ("blocks", "messages")

    def __init__(self) -> None:
        self.blocks = 0.0
        self.messages = 0

    def add(self, blocks: float, messages: int) -> None:
        self.messages += messages
        self.blocks = self.blocks + blocks if self.messages else 0.0  # no rest of rounding stays behind


class SubmitterShares:
    """Shares at one full node. `submitter` is a text such as `uid:1000`; the empty text is the node's own process, which
    has no limit."""

    def __init__(self, blocks_max: float = BLOCKS_MAX, messages_max: int = MESSAGES_MAX) -> None:
        self.refused = 0
        self.total = Charge()
        self._blocks_max = blocks_max
        self._messages_max = messages_max
        self._by_submitter: dict[str, Charge] = {}
        self._charged: dict[bytes, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._by_submitter)

    def charge_of(self, submitter: str) -> Charge:
        return self._by_submitter.get(submitter) or Charge()

    def check(self, submitter: str) -> None:
        """Raise `StagepostError` with `QUEUE_FULL` if `submitter` has its share in processing."""
        if not submitter:
            return
        mine, total = self.charge_of(submitter), self.total
        if (
            mine.blocks < self._blocks_max - total.blocks
            and mine.messages < self._messages_max - total.messages
        ):
            return
        self.refused += 1
        raise StagepostError(
            f"{submitter} has {mine.messages} messages without an end in processing, which fill {mine.blocks:.1f} blocks; "
            "that is its share",
            code=ErrorCode.QUEUE_FULL,
            advice="submit the message again when earlier ones have ended; other submitters are served meanwhile",
            limit=int(self._blocks_max),
            found=mine.messages,
        )

    def take(self, submitter: str, message_id: bytes, blocks: float) -> None:
        """Charge `submitter` for a message that goes to validators and would fill `blocks` blocks."""
        if not submitter or message_id in self._charged:
            return
        self._charged[message_id] = submitter, blocks
        self._by_submitter.setdefault(submitter, Charge()).add(blocks, 1)
        self.total.add(blocks, 1)

    def give_back(self, message_id: bytes) -> None:
        """Charge nobody any more for a message that has an end, or of which nothing more is expected."""
        submitter, blocks = self._charged.pop(message_id, ("", 0.0))
        if not submitter:
            return
        mine = self._by_submitter[submitter]
        for charge in (mine, self.total):
            charge.add(-blocks, -1)
        if not mine.messages:
            del self._by_submitter[submitter]
