"""The answers that a message gets, or misses: receipts of its peers, their time-out, and the wait before the next attempt."""

from __future__ import annotations

from random import Random

from stagepost.delivery import endings
from stagepost.delivery.acks import AckTally
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.deadlines import Deadlines, delay_before, spread
from stagepost.delivery.entry import AWAITING, BACKING_OFF, LEAVING, STORING, ClockTimes, OutboxEntry
from stagepost.delivery.envelope import RETRY_AFTER_MS_MAX, AckReceipt
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.settlement import Settlement
from stagepost.delivery.status import ACK, SENT
from stagepost.delivery.transport import IncomingAcks

RECEIPT_AHEAD_MAX_MS = 60_000
"""Milliseconds, at most, that a receipt may be dated in the future; the core drops any other."""


class Answers:
    """The judge of answers: each one ends the message, lets it wait on, or begins another attempt after a while."""

    def __init__(
        self,
        config: ReliablePublisherConfig,
        outbox: Outbox,
        settlement: Settlement,
        deadlines: Deadlines,
        random: Random,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._settlement = settlement
        self._deadlines = deadlines
        self._random = random

    def receive(self, acks: IncomingAcks, now: ClockTimes) -> None:
        """Take the receipts of one peer, and count those that do not count."""
        counters = self._settlement.counters
        if acks.sender != acks.carrier:
            counters.bad_acks += len(acks.receipts)
            return
        peer, live, results = acks.sender, self._outbox.by_id, self._settlement.ended.results
        latest_ms = now.unix_ms + RECEIPT_AHEAD_MAX_MS
        for receipt in acks.receipts:
            entry = live.get(receipt.message_id)
            if entry is None and results.get(receipt.message_id) is None:
                continue  # another publisher's message: the network carries receipts to everybody
            if receipt.timestamp_ms > latest_ms:
                counters.bad_acks += 1
            elif entry is not None and receipt.timestamp_ms + RECEIPT_AHEAD_MAX_MS < entry.stamped_ms:
                counters.late_acks += 1  # it answers a copy with an earlier stamp
            elif entry is None:
                counters.late_acks += 1
            elif entry.tally is None or peer not in entry.tally.critical:
                counters.outside_acks += 1
            elif entry.phase is not STORING and entry.phase is not LEAVING:
                self._weigh(entry, entry.tally, peer, receipt, now)

    def _weigh(
        self, entry: OutboxEntry, tally: AckTally, peer: str, receipt: AckReceipt, now: ClockTimes
    ) -> None:
        if receipt.ack_type is ACK:
            is_news = tally.acknowledge(peer)
        else:
            is_news = tally.refuse(peer, receipt.reason, for_now=receipt.is_transient, text=receipt.text)
        if not is_news:
            self._settlement.counters.duplicates_in += 1
        elif tally.is_complete:
            if entry.status is not SENT:
                # A receipt can overtake the network's answer, or come after a restart: it proves that the message was sent.
                self._settlement.become_sent(entry, now)
            self._settlement.end(entry, None, now)
        elif tally.is_out_of_reach:
            self._settlement.become_sent(entry, now)
            self._settlement.end(entry, endings.nacked(entry), now)
        elif receipt.is_transient:
            self.try_again_soon(entry, receipt.retry_after_ms, now)

    def try_again_soon(self, entry: OutboxEntry, retry_after_ms: int | None, now: ClockTimes) -> None:
        """Back off without waiting for the time-out. At the last attempt a refusal for now counts as one for good."""
        assert entry.tally is not None
        asked_s = min(retry_after_ms or 0, RETRY_AFTER_MS_MAX) / 1_000
        if entry.phase is BACKING_OFF and entry.is_sent:
            entry.wait_until = max(entry.wait_until, now.mono_s + asked_s)
        elif entry.phase is AWAITING:
            if entry.attempts < self._config.attempts_max:
                self._outbox.enter(entry, BACKING_OFF)
                entry.wait_until = now.mono_s + max(self.delay(entry), asked_s)
                self._deadlines.set(entry)
            elif entry.tally.is_out_of_reach_for_now:
                self._settlement.end(entry, endings.nacked(entry), now)

    def time_out(self, entry: OutboxEntry, now: ClockTimes) -> None:
        """Begin the wait before the next attempt, or end the message after the last."""
        self._settlement.counters.ack_timeouts += 1
        if entry.attempts < self._config.attempts_max:
            self._outbox.enter(entry, BACKING_OFF)
            entry.wait_until = now.mono_s + self.delay(entry)
            return
        assert entry.tally is not None
        is_refused = entry.tally.is_out_of_reach_for_now
        self._settlement.end(entry, endings.nacked(entry) if is_refused else endings.ack_timeout(entry), now)

    def delay(self, entry: OutboxEntry) -> float:
        """Return the seconds before the next attempt."""
        config = self._config
        delay_s = delay_before(max(1, entry.attempts), config.retry_delay, config.retry_delay_max)
        return spread(delay_s, config.retry_jitter, self._random)
