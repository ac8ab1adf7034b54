"""Full node of REMP: takes messages, sends them to validators, and publishes every status on a topic.

    submit ─ parse, dry run ─┬─ RejectedByFullnode ───────────────────────────┐
                             └─ staged sending ─ validators ─ receipts, checked ─┴─ statuses topic, on_status
    the chain that the node follows ─ heard ─ Finalized, once ───────────────────┘

A caller hears of faults in the bytes themselves by an error. A refusal by the account is a status of the message, signed
by this node.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import msgspec

from stagepost.errors import DecodeError, ErrorCode, StagepostError, StorageError
from stagepost.full_node.complaints import (
    ChallengeReport,
    Complaint,
    ComplaintBook,
    QuestionBook,
    SilenceWatch,
)
from stagepost.full_node.earlier_life import FINALS_KEPT_MAX
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.message_record import MessageRecord, RecordEvent, RecordState
from stagepost.full_node.network import NetworkMember
from stagepost.full_node.receipt_checks import ReceiptChecks, ReceiptJudge, StatementIntake
from stagepost.full_node.staged_sending import (
    CATCHAINS_KEPT,
    LOOK_AHEAD_S,
    Forget,
    ReportSent,
    SendingEffect,
    SendingOptions,
    SendTo,
    StagedSending,
    SubmitterShares,
)
from stagepost.full_node.status_topic import FINALIZED, SENT, EarlierIds, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import Clock
from stagepost.ground.signatures.verifier import SignatureVerifier
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import FinalBlock, Ledger, LedgerEvent, LedgerSession, MasterApplied, ParsedMessage
from stagepost.remp.links.overlay import FullNodeLinks
from stagepost.remp.message import ExternalMessage, RempMessage
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Quarantined, Receipt
from stagepost.remp.receipts.statements import ChallengeOutcome, PlacedLink, is_outcome, is_statement
from stagepost.remp.receipts.status import Level, is_finally_accepted
from stagepost.remp.sessions import member_ids
from stagepost.remp.shard import Shard

AHEAD_MAX = 4_096
"""Receipts, at most, that wait for sessions that validators know to have begun before this node does; a further one is
refused.
"""

OnStatus = Callable[[Receipt], None]
OnRefused = Callable[[Receipt, Quarantined], None]


class Submission(msgspec.Struct, frozen=True):
    """Message that was submitted. `refused`: why no validator hears of the message; None if the node sends it."""

    message_id: bytes
    refused: str | None = None


class FullNodeCounters(msgspec.Struct):
    """Counts since the start. `quarantined` has receipts that do not count, by the code of the fault."""

    messages: int = 0
    sent: int = 0
    not_sent: int = 0
    receipts: int = 0
    repeated: int = 0
    of_unknown: int = 0
    quarantined: Counter[str] = msgspec.field(default_factory=Counter)


class FullNode:
    """Full node without sockets and files. It keeps one `MessageRecord` for each message that is in processing, final, or
    about to be refused, and for those that an earlier life left.

    `on_status` hears of a status once the topic holds the status on disk; `on_settled` only of a status by which nobody
    need submit the message again. `on_refused` hears of each receipt that does not count. `sets_changed` is called when
    validators that may sign have come or gone, `complain` with what a validator's own receipts prove against it, `expect`
    with each message whose end is awaited from now on. `record_challenge` records, before this node asks for a challenge, the
    accused and the message; `challenged` gets what became of it.

    While the topic cannot be written, or `disk_fault` returns why other files of the node cannot, no message is taken."""

    def __init__(
        self,
        seed: bytes,
        ledger: Ledger,
        links: FullNodeLinks,
        statuses: StatusTopic,
        known_sets: KnownSets,
        clock: Clock,
        random: Random,
        *,
        options: SendingOptions | None = None,
        on_status: OnStatus = lambda receipt: None,
        sets_changed: Callable[[KnownSets], None] = lambda known_sets: None,
        complain: Callable[[Complaint], None] = lambda complaint: None,
        challenged: Callable[[ChallengeReport], None] = lambda report: None,
        record_challenge: Callable[[bytes, bytes], None] = lambda accused, message_id: None,
        verifier: SignatureVerifier | None = None,
        disk_fault: Callable[[], StorageError | None] = lambda: None,
        expect: Callable[[ParsedMessage], None] = lambda parsed: None,
    ) -> None:
        self.counters = FullNodeCounters()
        self.rejected = 0
        self.finalized = 0
        self.known_sets = known_sets
        self.sets = known_sets.sets
        self.sending = StagedSending(random, options)
        self.shares = SubmitterShares()
        self.public_key = ed25519.public_key(seed)
        self.source_id = key_id(self.public_key)
        self.on_submitted: Callable[[bytes, Shard | None], None] = lambda message_id, shard: None
        self.on_settled: OnStatus = lambda receipt: None
        self.on_refused: OnRefused = lambda receipt, reason: None
        self._seed = seed
        self._ledger = ledger
        self._links = links
        self._statuses = statuses
        self._clock = clock
        self._on_status = on_status
        self._disk_fault = disk_fault
        self._expect = expect
        self._sets_changed = sets_changed
        self._complaints = ComplaintBook(seed, known_sets.message_timeout_ms, complain)
        book = QuestionBook(Random(random.getrandbits(64)), links.send, challenged, record_challenge)
        self.challenges = SilenceWatch(
            clock, self.sending, self._complaints, book, self.is_final, known_sets.message_timeout_ms
        )
        self._checks = ReceiptChecks(self._receipt_checked, verifier)
        self._bound = StatementIntake(self.sets)
        self._alarm = Alarm(clock, self._wake)
        self._records: dict[bytes, MessageRecord] = {}
        self._ahead: list[tuple[Receipt, PlacedLink | None]] = []
        """Receipts of members of coming sessions, until the node hears of the next master block that begins sessions."""
        self._finals: deque[bytes] = deque()
        """Ids of the records that are final, the oldest first."""
        self._interrupted_until_seqno: int | None = None
        """Master catchain at which the life of interrupted messages is over; None when no record is interrupted."""

    def start(self, earlier: Mapping[bytes, MessageRecord] | None = None) -> None:
        """Begin with what the ledger knows, and with the records that an earlier life left on the statuses topic."""
        self._records = dict(earlier or {})
        sessions = self._ledger.sessions()
        self.known_sets.began(sessions)
        self._use_sets()
        everybody = frozenset().union(*(member_ids(session.facts) for session in sessions))
        seqno = self._ledger.master_session().master_catchain_seqno
        ended = [message_id for message_id, record in self._records.items() if record.is_final]
        # Interrupted messages are not followed: a message in processing could not be sent to more validators when it is
        # submitted again.
        for message_id, record in self._records.items():
            if record.state is RecordState.SETTLED:
                self.sending.follow(message_id, everybody, seqno, self._clock.mono_s())
        self._interrupted_until_seqno = seqno + CATCHAINS_KEPT
        for block in self._ledger.history(0):
            self._block_is_final(block)
        # These come behind the messages of the chain, however long it is: the chain may not know them.
        for message_id in ended:
            self._remember_final(message_id)

    def keep_refused(self) -> None:
        """From now on write receipts that do not count to the topic as well, as they came: readers refuse them by themselves,
        and see who sent them. A dishonest validator can fill a disk so; without this call they are only counted."""
        self.on_refused = lambda receipt, reason: self._statuses.publish(receipt, None, EarlierIds())

    def close(self) -> None:
        self._alarm.cancel()
        self.challenges.close()

    # Questions

    def id_of(self, data: bytes) -> bytes:
        """Return the id of the message in `data`; `DecodeError` if the bytes are not a message."""
        return self._ledger.parse(data).message.message_id

    def is_final(self, message_id: bytes) -> bool:
        """Return whether a master block holds the message, as far as the node remembers."""
        record = self._records.get(message_id)
        return record is not None and record.is_final

    def is_under_way(self, message_id: bytes) -> bool:
        """Return True until the statuses topic holds on disk that more than a third of the validators have the message, or
        its end. Until then the caller must be able to submit it again."""
        record = self._records.get(message_id)
        return record is not None and record.is_under_way

    def is_settled(self, message_id: bytes) -> bool:
        """Return whether the statuses topic holds on disk that more than a third of the validators have the message, or
        its end: then the node may confirm the message to its sender."""
        record = self._records.get(message_id)
        return record is not None and record.is_settled

    @property
    def now_ms(self) -> int:
        return int(self._clock.unix_s() * 1_000)

    # Messages

    def submit(self, data: bytes, earlier: EarlierIds | None = None, submitter: str = "") -> bytes:
        """Take a message as `receive` does; return the id under which its statuses come."""
        return self.receive(data, earlier, submitter).message_id

    def receive(self, data: bytes, earlier: EarlierIds | None = None, submitter: str = "") -> Submission:
        """Send the message in `data` to validators, or refuse it by a status. `submitter` is charged for the message until
        the message has an end; `StagepostError` with `QUEUE_FULL` if `submitter` has its share.

        `DecodeError` if the bytes are not a message; `StagepostError` if the message is in processing, in a block or final
        already: the first caller hears of its statuses. If nobody has heard of its end, the end is published now, or when
        it comes. `StorageError` if the disk refuses: then the node knows nothing of the message, and nobody hears of it."""
        self._require_disk()
        parsed = self._ledger.parse(data)
        message = parsed.message
        message_id = message.message_id
        record = self._records.get(message_id) or MessageRecord()
        if record.is_final:
            self._expect(parsed)
            if record.state is RecordState.FINAL:
                record.describe(message, earlier)
                self._report_end(message_id, record)
            raise _known_already(message_id, "is final already")
        reason = None
        if not record.is_in_process:
            self.shares.check(submitter)
            trial = self._ledger.dry_run(message, self.now_ms)
            reason = trial.refused
            if reason is None:
                self.shares.take(submitter, message_id, trial.blocks)
        if reason is None:
            self._send(message, earlier)  # which raises if the message is in processing
            self._expect(parsed)
            return Submission(message_id)
        if self._ledger.holds(message):
            self._expect(parsed)
            self._follow(message, earlier, RecordEvent.FOUND_IN_BLOCK)
            raise _known_already(message_id, "is in a block already")
        if record.state is RecordState.INTERRUPTED:
            self._expect(parsed)
            self._follow(message, earlier, RecordEvent.REFUSED_BY_ACCOUNT)
            raise _known_already(message_id, "is with a validator already")
        is_expired = parsed.expires_at_s is not None and parsed.expires_at_s * 1_000 <= self.now_ms
        if is_expired or self._ledger.holds_twin(message):
            self._expect(parsed)  # it has an end: it expired, or the other message has ended it
        self.reject(message_id, reason, earlier or EarlierIds())
        return Submission(message_id, reason)

    def reject(self, message_id: bytes, reason: str, earlier: EarlierIds) -> None:
        """Publish RejectedByFullnode: no validator hears of the message."""
        self.rejected += 1
        record = self._records.setdefault(message_id, MessageRecord(earlier))
        # A record in processing belongs to another message: only these bytes were refused under its id.
        receipt = self._signed(message_id, Rejected(Level.FULLNODE, reason))
        self._publish(receipt, record, None, earlier, is_settling=not record.is_in_process)

    def _require_disk(self) -> None:
        fault = self._statuses.fault or self._disk_fault()
        if fault is not None:
            raise StorageError(
                f"the full node takes no message while its disk refuses writes: {fault.text}",
                advice="check the disk of the full node, then submit the message again",
                reason=fault.reason,
            )

    def _send(self, message: ExternalMessage, earlier: EarlierIds | None) -> None:
        """Begin staged sending; `StagepostError` if it cannot begin, above all for a message in processing."""
        message_id = message.message_id
        session = self._session_for(message.workchain, message.account)
        self.on_submitted(message_id, None if session is None else session.shard)
        try:
            effects = self.sending.begin(
                message_id,
                () if session is None else member_ids(session.facts),
                self._coming(message.workchain, message.account),
                self._ledger.master_session().master_catchain_seqno,
                self._clock.mono_s(),
            )
        except StagepostError:
            if message_id not in self.sending:
                self.shares.give_back(message_id)
            raise
        self.counters.messages += 1
        sent = RempMessage(message.body, message_id, self.now_ms)
        signature = ed25519.sign(self._seed, sent.signed_bytes(self.source_id), public_key=self.public_key)
        # The record comes first: statuses may come within the call below.
        record = self._records.setdefault(message_id, MessageRecord())
        record.describe(message, earlier)
        record.frame = msgspec.structs.replace(sent, signature=signature).encode()
        record.step(RecordEvent.SENDING_BEGINS)
        self._perform(effects)

    def _follow(self, message: ExternalMessage, earlier: EarlierIds | None, event: RecordEvent) -> None:
        """Follow a message without sending it. A block of its shard holds it, and no master block holds that one yet: an
        earlier life of this node has sent it, of which no status reached the disk, or another full node has. The account
        would refuse it a second time, which says nothing of the first: that becomes final or not, and is reported then.
        The same holds for a message that a validator has answered for."""
        record = self._records.setdefault(message.message_id, MessageRecord())
        record.describe(message, earlier)
        record.step(event)
        session = self._session_for(message.workchain, message.account)
        targets = frozenset[bytes]() if session is None else member_ids(session.facts)
        seqno = self._ledger.master_session().master_catchain_seqno
        self.sending.follow(message.message_id, targets, seqno, self._clock.mono_s())

    def _session_for(self, workchain: int, account: bytes) -> LedgerSession | None:
        shard = self._ledger.shard_of(workchain, account)
        return None if shard is None else self._ledger.session(shard)

    def _coming(self, workchain: int, account: bytes) -> frozenset[bytes]:
        """Return the members of the sessions that serve the account after the one at work, as far as they begin soon."""
        until_ms = self.now_ms + int(LOOK_AHEAD_S * 1_000)
        sessions = self._ledger.coming(workchain, account, self.now_ms, until_ms)
        return frozenset().union(*(member_ids(session.facts) for session in sessions))

    def _move(self) -> None:
        """Send what is not with enough validators yet to the sessions that have begun now. The cost does not grow with the final
        messages that are remembered."""
        for message_id in self.sending.message_ids:
            record = self._records.get(message_id)
            if record is None or record.account is None or not record.is_in_process:
                continue
            session = self._session_for(record.workchain, record.account)
            if session is not None:
                coming = frozenset[bytes]()
                if record.state in (RecordState.SENDING, RecordState.SENT):
                    coming = self._coming(record.workchain, record.account)
                targets = member_ids(session.facts)
                self._perform(self.sending.move(message_id, targets, coming, self._clock.mono_s()))

    def _perform(self, effects: Sequence[SendingEffect]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            match effect:
                case SendTo(validator, message_id):
                    self.counters.sent += 1
                    frame = self._records[message_id].frame
                    if frame is None or not self._links.send(validator, frame):
                        self.counters.not_sent += 1
                        waiting += self.sending.not_sent(validator, message_id, self._clock.mono_s())
                case ReportSent(message_id, sent_to, total, since):
                    self._report_sent(message_id, SentToValidators(sent_to, total), since)
                case Forget(message_id):
                    self._end_life(message_id)
        self._alarm.set(self.sending.next_wake)

    def _wake(self) -> None:
        self._perform(self.sending.tick(self._clock.mono_s()))

    def _end_life(self, message_id: bytes) -> None:
        """Expect nothing more of a message; a final one is still remembered."""
        self.shares.give_back(message_id)
        self.challenges.forget(message_id)
        record = self._records.get(message_id)
        if record is not None:
            self._publish_waiting(record)
            record.frame = None
            record.step(RecordEvent.LIFE_OVER)
            self._drop_if_idle(message_id, record)

    def _drop_if_idle(self, message_id: bytes, record: MessageRecord) -> None:
        """Drop the record when neither its state, nor the disk, nor receipts that still come need it."""
        if (
            record.state is RecordState.UNSENT
            and not record.unstored
            and message_id not in self.sending
            and self._records.get(message_id) is record
        ):
            del self._records[message_id]

    # Validators

    def receipts_came(self, validator: bytes, data: bytes) -> None:
        """Check the receipts of a packet, the statement that binds the next one, or the outcome of a challenge; `DecodeError`
        closes the link by name.
        """
        if is_statement(data):
            self._bound.came(validator, data)
            return
        if is_outcome(data):
            outcome = ChallengeOutcome.decode(data)
            self.challenges.outcome_came(validator, outcome, self.sets.public_key_of(outcome.accused))
            return
        packet = CombinedReceipt.decode(data)
        if packet.source_id != validator:
            raise DecodeError(
                f"validator {validator.hex()} sent receipts of {packet.source_id.hex()}",
                code=ErrorCode.RECEIPT_SOURCE,
            )
        links = self._bound.links_of(validator, packet.receipts)
        wanted = [
            (receipt, link)
            for receipt, link in zip(packet.receipts, links, strict=True)
            if self._is_wanted(receipt)
        ]
        if wanted:
            receipts, wanted_links = zip(*wanted, strict=True)
            self._checks.check(validator, receipts, ReceiptJudge(self.sets, self.now_ms), wanted_links)

    def validator_linked(self, validator: bytes) -> None:
        self._bound.linked(validator)
        self._perform(self.sending.validator_linked(self._clock.mono_s()))

    def _is_wanted(self, receipt: Receipt) -> bool:
        """Return whether the receipt is new and of a message in processing. The signature, which costs most, comes last."""
        if receipt.message_id not in self.sending:
            self.counters.of_unknown += 1
            return False
        if self.sending.is_repeated(receipt):
            self.counters.repeated += 1
            return False
        return True

    def _receipt_checked(
        self, receipt: Receipt, fault: Quarantined | None, link: PlacedLink | None = None
    ) -> None:
        if fault is not None and self._is_ahead(receipt, fault):
            self._ahead.append((receipt, link))
            return
        if fault is not None:
            self.counters.quarantined[fault.reason] += 1
            self.on_refused(receipt, fault)
            return
        # The node may have forgotten the message while the receipt was checked, and the same receipt may have come twice.
        if not self._is_wanted(receipt):
            return
        self.counters.receipts += 1
        link = self._bound.checked(link)
        effects = self.sending.receipt_came(receipt, self._clock.mono_s())
        history = self.sending.get(receipt.message_id)
        if history is not None and history.is_over:
            self.shares.give_back(receipt.message_id)
        record = self._records.get(receipt.message_id)
        if record is not None and record.state is RecordState.SENDING:
            # SentToValidators comes first on the topic; the limit for each source bounds how many wait.
            record.waiting.append((receipt, link))
        else:
            self._publish_counted(receipt, link)
        self.challenges.heard(receipt)
        self._perform(effects)

    def _is_ahead(self, receipt: Receipt, fault: Quarantined) -> bool:
        """Return whether a member of a coming session answers before this node has heard that the session began."""
        record = self._records.get(receipt.message_id)
        return (
            fault.reason == ErrorCode.RECEIPT_SOURCE
            and len(self._ahead) < AHEAD_MAX
            and record is not None
            and record.account is not None
            and receipt.source_id in self._coming(record.workchain, record.account)
        )

    def _check_ahead(self) -> None:
        """Check the receipts again whose sessions may have begun."""
        ahead, self._ahead = self._ahead, []
        for receipt, link in ahead:
            self._checks.check(receipt.source_id, [receipt], ReceiptJudge(self.sets, self.now_ms), [link])

    # Statuses

    def _publish_counted(self, receipt: Receipt, link: PlacedLink | None = None) -> None:
        """Publish a receipt that counts, with its link where it has one. When a validator calls a message final, the chain itself will say so: the node
        publishes that, and once."""
        record = self._records.get(receipt.message_id) or MessageRecord()
        if receipt.source_id != self.source_id:
            if is_finally_accepted(receipt.kind):
                return
            self._complaints.heard(receipt, link, self.now_ms)
        hint = self._session_hint(receipt.source_id, record)
        self._publish(
            receipt, record, hint, record.earlier_ids, link, is_settling=self._is_settling(receipt, record)
        )

    def _session_hint(self, source_id: bytes, record: MessageRecord) -> bytes | None:
        """Return the session of the message's shard at work now, if the source is of it, or this node itself speaks."""
        if record.account is None:
            return None
        session = self._session_for(record.workchain, record.account)
        if session is None:
            return None
        is_member = source_id in member_ids(session.facts)
        return session.session_id if is_member or source_id == self.source_id else None

    def _is_settling(self, receipt: Receipt, record: MessageRecord) -> bool:
        """Step the record by a status that is about to be published; return whether nobody need submit the message again
        when the status is on disk. SentToValidators alone is not enough, for bytes in a socket die with the process: more
        than a third must have answered."""
        kind = receipt.kind.name if receipt.source_id == self.source_id else None
        if kind == FINALIZED:
            return record.step(RecordEvent.END_REPORTED)
        if kind == SENT:
            record.step(RecordEvent.SENT_REPORTED)
            return False
        history = self.sending.get(receipt.message_id)
        is_enough = history is not None and history.is_with_enough and not record.waiting
        return is_enough and record.step(RecordEvent.ENOUGH_ANSWERED)

    def _publish(
        self,
        receipt: Receipt,
        record: MessageRecord,
        session_id: bytes | None,
        earlier: EarlierIds,
        link: PlacedLink | None = None,
        *,
        is_settling: bool,
    ) -> None:
        record.unstored += is_settling
        self._statuses.publish(
            receipt, session_id, earlier, lambda: self._stored(receipt, record, is_settling=is_settling), link
        )

    def _stored(self, receipt: Receipt, record: MessageRecord, *, is_settling: bool) -> None:
        """Tell others of a status that the topic holds on disk."""
        if is_settling:
            record.unstored -= 1
            self._drop_if_idle(receipt.message_id, record)
            self.on_settled(receipt)
        self._on_status(receipt)

    def _report_sent(self, message_id: bytes, status: SentToValidators, since: float) -> None:
        """Publish SentToValidators when enough of them have the message, dated when it went out: every reader counts the
        times of later stages from it."""
        date_ms = int((self._clock.unix_s() - (self._clock.mono_s() - since)) * 1_000)
        self._publish_counted(self._signed(message_id, status, date_ms))
        record = self._records.get(message_id)
        if record is not None:
            self._publish_waiting(record)

    def _publish_waiting(self, record: MessageRecord) -> None:
        """Publish the receipts that waited for SentToValidators, in the order in which they came."""
        while record.waiting:
            self._publish_counted(*record.waiting.pop(0))

    def _signed(self, message_id: bytes, status: MessageStatus, date_ms: int | None = None) -> Receipt:
        date_ms = self.now_ms if date_ms is None else date_ms
        receipt = Receipt(ExternalMessageId(message_id), status, date_ms, self.source_id)
        signature = ed25519.sign(self._seed, receipt.signed_bytes, public_key=self.public_key)
        return receipt.with_signature(signature)

    # The chain

    def heard(self, events: Iterable[LedgerEvent]) -> None:
        """Apply events in the order of the ledger."""
        for event in events:
            if isinstance(event, MasterApplied):
                self._master_applied(event)

    def _master_applied(self, event: MasterApplied) -> None:
        for block in event.blocks:
            self._block_is_final(block)
        self._complaints.tick(self.now_ms)
        for message_id in self.sending.master_advanced(event.catchain_seqno):
            self._end_life(message_id)
        until_seqno = self._interrupted_until_seqno
        if until_seqno is not None and event.catchain_seqno >= until_seqno:
            self._interrupted_until_seqno = None
            for message_id, record in list(self._records.items()):
                if record.state is RecordState.INTERRUPTED:
                    self._end_life(message_id)
        if event.started or event.ended:
            self.known_sets.began(one for one in event.started if one.facts.workchain >= 0)
            self.known_sets.ended(event.ended, event.time_ms)
            self._use_sets()
            self._check_ahead()
            self._move()

    def _block_is_final(self, block: FinalBlock) -> None:
        for message in block.messages:
            self._finalize(message.message_id, Accepted(Level.MASTERCHAIN, block.block_id, block.master_id))

    def _finalize(self, message_id: bytes, end: Accepted) -> None:
        """Publish the end of a message that was submitted here, or keep it until the message is submitted: the caller may
        have submitted the message before, to a life that ended before any status of it reached the topic."""
        record = self._records.setdefault(message_id, MessageRecord())
        if record.is_final:
            return
        self.shares.give_back(message_id)
        self.challenges.forget(message_id)
        is_submitted = record.state is not RecordState.UNSENT
        if is_submitted:
            # SentToValidators, if it is still owed, comes before Finalized, and so do receipts that wait for it.
            self._perform(self.sending.finalized(message_id, self._clock.mono_s()))
            self._publish_waiting(record)
        record.step(RecordEvent.FINALIZED)
        record.end = end
        self._remember_final(message_id)
        if is_submitted:
            self._report_end(message_id, record)

    def _report_end(self, message_id: bytes, record: MessageRecord) -> None:
        end, record.end = record.end, None
        if end is not None:
            self.finalized += 1
            self._publish_counted(self._signed(message_id, end))

    def _remember_final(self, message_id: bytes) -> None:
        self._finals.append(message_id)
        while len(self._finals) > FINALS_KEPT_MAX:
            oldest = self._finals.popleft()
            record = self._records[oldest]
            record.step(RecordEvent.FORGOTTEN)
            self._drop_if_idle(oldest, record)

    def add_member(self, member: NetworkMember) -> None:
        """Know a further member of the network; receipts of a further full node count."""
        self.known_sets.add_member(member)
        self._use_sets()

    def _use_sets(self) -> None:
        self.sets = self._bound.sets = self.known_sets.sets
        self._sets_changed(self.known_sets)


def _known_already(message_id: bytes, state: str) -> StagepostError:
    return StagepostError(
        f"message {message_id.hex()} {state}",
        code=ErrorCode.MSG_DUPLICATE,
        advice="read its statuses",
        message_id=message_id,
    )
