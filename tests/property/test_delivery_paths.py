"""Whatever network, peers, callers and time do: statuses follow the graph, each message ends once, the numbers balance."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.effects import Effect, FlushEnded, Report, Wake
from stagepost.delivery.entry import ClockTimes, OutboxEntry
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.errors import ErrKeyConflict, ErrMessageTooLarge, ErrNoConnectedPeers, ErrQueueFull
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.status import AckType, DeliveryResult, Tier
from stagepost.delivery.transport import IncomingAcks, Published, SendFailed, SendRefused

# Written down here once more, by hand, from the specification: nothing of the implementation checks itself.
GRAPH = {
    None: {"Pending"},
    "Pending": {"Queued", "Sent", "Failed"},
    "Queued": {"Sent", "Failed"},
    "Sent": {"Acked", "Failed"},
    "Acked": set(),
    "Failed": set(),
}
PEERS = ("bob", "carol", "dave")
HOW = st.sampled_from(["sent", "sent", "sent", "sent", "failed", "free", "refused", "interrupted"])


class PublisherMachine(RuleBasedStateMachine):
    """Drives a core as its shell would, with a transport that does anything at any time."""

    @initialize(
        size=st.integers(1, 6),
        in_flight=st.integers(1, 4),
        retries=st.integers(0, 2),
        max_age=st.sampled_from([0, 0, 20]),
        strict=st.booleans(),
        overflow=st.sampled_from(["evict_lru", "evict_lru", "reject_new"]),
        bytes_max=st.sampled_from([0, 0, 40]),
        seed=st.integers(0, 1000),
    )
    def begin(
        self,
        size: int,
        in_flight: int,
        retries: int,
        max_age: float,
        strict: bool,
        overflow: str,
        bytes_max: int,
        seed: int,
    ) -> None:
        self.config = ReliablePublisherConfig(
            queue_size=size,
            max_in_flight=in_flight,
            max_retries=retries,
            message_max_age=max_age,
            strict_order=strict,
            overflow=overflow,
            queue_max_bytes=bytes_max,
            enable_ack=True,
            critical_peers=PEERS,
        )
        self.core = PublisherCore(
            self.config, "alice", nonce_prefix=b"n" * 8, volatile_prefix=b"v" * 8, random=Random(seed)
        )
        self.now_s = 0.0
        self.storing: list[OutboxEntry] = []
        self.sending: list[OutboxEntry] = []
        self.trying_once: list[OutboxEntry] = []
        self.paths: dict[int, list[str]] = {}
        self.wants_ack: dict[int, bool] = {}
        self.alive: list[OutboxEntry] = []
        self.ids: list[bytes] = []
        self.outcomes: Counter[int] = Counter()
        self.is_flushing = False
        self.confirmed: dict[bytes, set[str]] = {}
        self.core.connectivity(1, self.now)

    @property
    def now(self) -> ClockTimes:
        return ClockTimes(self.now_s, 1_000_000 + int(self.now_s * 1_000))

    def see(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Report):
                key = id(effect.entry)
                self.alive.append(effect.entry)  # so that no other object gets the same number
                path = self.paths.setdefault(key, [])
                self.wants_ack[key] = effect.entry.tally is not None
                before = path[-1] if path else None
                if before == "Sent":
                    assert self.wants_ack[key], "Sent is the end without acknowledgements"
                assert effect.status.value in GRAPH[before], (path, effect.status)
                assert effect.status.value not in path
                if effect.status.value == "Acked":
                    assert effect.entry.tally is not None
                    genuine = self.confirmed.get(effect.entry.delivery_id, set())
                    assert set(effect.acked_by) <= genuine
                    assert len(genuine) >= effect.entry.tally.required
                path.append(effect.status.value)
            elif isinstance(effect, Wake):
                self.outcomes[id(effect.entry)] += 1
                assert self.outcomes[id(effect.entry)] == 1
            elif isinstance(effect, FlushEnded):
                assert self.is_flushing
                self.is_flushing = False

    # What callers do.

    @rule(
        tier=st.sampled_from(["queued", "acked", "tracked"]),
        key=st.sampled_from([None, None, b"k" * 16, b"l" * 16]),
        size=st.integers(0, 12),
        required=st.integers(1, 3),
        budget=st.sampled_from([1.0, 8.0, 30.0]),
        storing=st.sampled_from(["at once", "at once", "at once, to be sent", "later", "in vain"]),
    )
    def publish(
        self, tier: str, key: bytes | None, size: int, required: int, budget: float, storing: str
    ) -> None:
        acked = tier != "queued"
        options: dict[str, Any] = {"ackers": PEERS, "required": required} if acked else {}
        if tier == "acked":
            options["budget_s"] = budget
        kind = Tier.ACKED if tier == "acked" else Tier.QUEUED
        before = self.core.stats()
        try:
            entry = self.core.offer(kind, "t", b"x" * size, self.now, key_hash=key, **options)
        except (ErrQueueFull, ErrKeyConflict, ErrMessageTooLarge):
            assert self.core.stats() == before, "a refused message changes nothing"
            return
        self.see(self.core.take_effects())
        if isinstance(entry, DeliveryResult) or entry.phase.name != "STORING" or entry in self.storing:
            return
        assert entry.is_awaited is (tier == "acked")
        self.ids.append(entry.delivery_id)
        if storing == "later":
            self.storing.append(entry)
        elif storing == "in vain":
            self.core.withdraw(entry)
        elif storing == "at once, to be sent":
            is_taken = self.core.accept_to_send(entry, self.now) is not None
            self.see(self.core.take_effects())
            if is_taken:
                self.sending.append(entry)
        else:
            self.see(self.core.accept(entry, self.now))

    @precondition(lambda self: self.storing)
    @rule(data=st.data(), is_good=st.sampled_from([True, True, True, False]))
    def stored(self, data: st.DataObject, is_good: bool) -> None:
        entry = self.storing.pop(data.draw(st.integers(0, len(self.storing) - 1)))
        if is_good:
            self.see(self.core.accept(entry, self.now))
        else:
            self.core.withdraw(entry)

    @rule()
    def try_once(self) -> None:
        entry = self.core.attempts.begin_once("t", b"once", self.now)
        self.see(self.core.take_effects())
        if self.core.conditions.is_connected:
            self.trying_once.append(entry)
        else:
            self.see(self.core.attempts.end_once(entry, None, ErrNoConnectedPeers("nobody"), self.now))

    @precondition(lambda self: self.trying_once)
    @rule(is_good=st.booleans())
    def tried_once(self, is_good: bool) -> None:
        entry = self.trying_once.pop()
        error = None if is_good else ErrNoConnectedPeers("gone")
        self.see(self.core.attempts.end_once(entry, Published() if is_good else None, error, self.now))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        _, effects = self.core.cancel(data.draw(st.sampled_from(self.ids)), self.now)
        self.see(effects)

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        waited = [entry for entry in self.core.outbox if entry.is_awaited and entry not in self.storing]
        if waited:
            self.see(self.core.abandon(data.draw(st.sampled_from(waited)), self.now))

    @precondition(lambda self: not self.is_flushing and self.core.conditions.is_connected)
    @rule()
    def flush(self) -> None:
        self.is_flushing = bool(self.core.begin_flush())

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        letters = self.core.ended.dead_letters.values()
        if letters:
            try:
                letter = data.draw(st.sampled_from(letters))
                entry = self.core.offer_again(letter, self.now)
            except (ErrQueueFull, ErrMessageTooLarge):
                return
            if entry.phase.name == "STORING" and entry not in self.storing:
                self.storing.append(entry)
            elif entry not in self.storing:
                self.see(self.core.join(letter, entry))

    # What the network does.

    @rule(peers=st.sampled_from([0, 1, 1, 2]))
    def connectivity(self, peers: int) -> None:
        self.see(self.core.connectivity(peers, self.now))

    @rule(answers=st.lists(HOW | st.just("later"), min_size=1, max_size=4))
    def send(self, answers: list[str]) -> None:
        for how in answers:
            entry = self.core.attempts.next_to_send(self.now)
            self.see(self.core.take_effects())
            if entry is None:
                return
            self.core.attempts.begin_send(entry, self.now)
            if how == "later":
                self.sending.append(entry)
            else:
                self.answer(entry, how)

    @precondition(lambda self: self.sending)
    @rule(data=st.data(), how=HOW)
    def answered(self, data: st.DataObject, how: str) -> None:
        self.answer(self.sending.pop(data.draw(st.integers(0, len(self.sending) - 1))), how)

    def answer(self, entry: OutboxEntry, how: str) -> None:
        core, now = self.core, self.now
        if how == "sent":
            self.see(core.attempts.sent(entry, Published(b"i" * 32), now))
        elif how == "failed":
            self.see(core.attempts.send_failed(entry, SendFailed("x"), now))
        elif how == "free":
            self.see(core.attempts.send_failed(entry, SendFailed("x", 2.0, costs_attempt=False), now))
        elif how == "refused":
            self.see(core.attempts.send_refused(entry, SendRefused("never"), now))
        else:
            core.attempts.send_interrupted(entry)

    @precondition(lambda self: self.ids)
    @rule(
        data=st.data(),
        carrier=st.sampled_from([*PEERS, "eve"]),
        is_forged=st.sampled_from([False, False, True]),
        reason=st.sampled_from([None, None, 1, 2, 3, 9]),
        ahead_ms=st.sampled_from([0, 0, 70_000]),
    )
    def receipt(
        self, data: st.DataObject, carrier: str, is_forged: bool, reason: int | None, ahead_ms: int
    ) -> None:
        live = [e.delivery_id for e in self.core.outbox if e.tally is not None and e not in self.storing]
        message_id = data.draw(st.sampled_from([*live, *live, *self.ids[-3:]]))
        kind = AckType.ACK if reason is None else AckType.NACK
        receipt = AckReceipt(message_id, self.now.unix_ms + ahead_ms, kind, reason or 0)
        sender = "bob" if is_forged else carrier
        if kind is AckType.ACK and sender == carrier and not ahead_ms:
            self.confirmed.setdefault(message_id, set()).add(carrier)
        self.see(self.core.receipts(IncomingAcks(carrier, sender, (receipt,)), self.now))

    @rule(by_s=st.sampled_from([0.05, 0.3, 1.0, 5.0, 30.0]))
    def time_passes(self, by_s: float) -> None:
        end = self.now_s + by_s
        while self.core.next_at <= end:
            self.now_s = max(self.now_s, self.core.next_at)
            before = self.core.next_at
            self.see(self.core.on_time(self.now))
            assert self.core.next_at > before or self.core.next_at > self.now_s
        self.now_s = end

    # What must hold at every instant.

    @invariant()
    def numbers_balance(self) -> None:
        if not hasattr(self, "core"):
            return
        stats = self.core.stats()
        failed = stats["failed"]
        assert isinstance(failed, dict)
        ended = stats["acked"] + stats["sent_final"] + sum(failed.values())  # type: ignore[operator]
        assert stats["published"] == ended + stats["live"]  # type: ignore[operator]
        finals = Counter(path[-1] for path in self.paths.values())
        assert stats["acked"] == finals["Acked"]
        assert sum(failed.values()) == finals["Failed"]
        open_paths = [
            key
            for key, path in self.paths.items()
            if path[-1] in ("Pending", "Queued") or (path[-1] == "Sent" and self.wants_ack[key])
        ]
        assert stats["live"] == len(open_paths)
        assert stats["published"] == len(self.paths)

    @invariant()
    def queue_keeps_its_bounds_and_knows_what_it_holds(self) -> None:
        if not hasattr(self, "core"):
            return
        outbox = self.core.outbox
        entries = list(outbox)
        leaving = [victim for entry in self.storing for victim in entry.evicted]
        assert len(entries) - len(leaving) <= self.config.queue_size
        if self.config.queue_max_bytes:
            held = sum(entry.size for entry in entries) - sum(victim.size for victim in leaving)
            assert held <= self.config.queue_max_bytes
        assert outbox.bytes_held == sum(entry.size for entry in entries)
        assert [entry.sequence for entry in entries] == sorted(entry.sequence for entry in entries)
        unsent = [e for e in entries if e.status.value in ("Pending", "Queued") and e not in self.storing]
        waiting = [entry for entry in unsent if entry not in self.sending]
        assert outbox.waiting == len(waiting)
        assert outbox.in_flight == len(entries) - len(waiting) - len(self.storing)
        acked = [
            entry
            for entry in entries
            if entry.tally is not None
            and entry not in self.storing
            and (entry.status.value == "Sent" or entry in self.sending)
        ]
        assert outbox.acked_in_flight == len(acked) <= self.config.max_in_flight

    @invariant()
    def nobody_is_held_back_without_a_reason(self) -> None:
        if not hasattr(self, "core") or self.config.strict_order:
            return
        outbox = self.core.outbox
        phases = Counter(entry.phase.name for entry in outbox)
        if phases["HELD"] and not phases["LEAVING"]:
            assert outbox.acked_in_flight == self.config.max_in_flight or outbox.has_ready

    def teardown(self) -> None:
        """In the end, with a network that works and peers that confirm, everything comes to its end."""
        if not hasattr(self, "core"):
            return
        core = self.core
        for entry in self.storing:
            self.see(core.accept(entry, self.now))
        self.storing = []
        for entry in self.trying_once:
            self.see(core.attempts.end_once(entry, Published(), None, self.now))
        for entry in self.sending:
            self.see(core.attempts.sent(entry, Published(), self.now))
        self.sending = []
        self.see(core.connectivity(1, self.now))
        for _ in range(400):
            while (ready := core.attempts.next_to_send(self.now)) is not None:
                self.see(core.take_effects())
                outgoing = core.attempts.begin_send(ready, self.now)
                self.see(core.attempts.sent(ready, Published(), self.now))
                for peer in outgoing.ackers:
                    receipt = AckReceipt(ready.delivery_id, self.now.unix_ms, AckType.ACK)
                    self.confirmed.setdefault(ready.delivery_id, set()).add(peer)
                    self.see(core.receipts(IncomingAcks(peer, peer, (receipt,)), self.now))
                self.numbers_balance()
            if not core.live:
                break
            self.now_s += 0.5
            self.see(core.on_time(self.now))
        assert core.live == 0
        assert not self.is_flushing
        assert core.outbox.bytes_held == core.outbox.waiting == core.outbox.acked_in_flight == 0


PublisherMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPublisherUnderAnything = PublisherMachine.TestCase
