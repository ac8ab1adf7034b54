"""The full node of REMP: messages in, every status out on a topic.

    submit ─ parse, dry run ─┬─ RejectedByFullnode ───────────────────────────┐
                             └─ staged sending ─ validators ─ receipts, checked ─┴─ topic of statuses, on_status
    the chain that it follows ─ heard ─ Finalized, once ─────────────────────────┘

Whoever submits hears of faults in the bytes themselves by an error; what the chain would not take now is a status of the
message, signed by this node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError
from stagepost.full_node.complaints import Complaint, ComplaintBook
from stagepost.full_node.earlier_life import FINALS_KEPT_MAX, EarlierLife
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.sending import FullNode
from stagepost.full_node.status_topic import FINALIZED, REJECTED, SENT, EarlierIds, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import Clock
from stagepost.ground.signatures.verifier import SignatureVerifier
from stagepost.remp.ledger import FinalBlock, Ledger, LedgerEvent, LedgerSession, MasterApplied
from stagepost.remp.links.overlay import FullNodeLinks
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.staged_sending import (
    CATCHAINS_KEPT,
    LOOK_AHEAD_S,
    SendingOptions,
    Subset,
    subsets_for,
)
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, Rejected
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level, is_finally_accepted
from stagepost.remp.sessions import member_ids
from stagepost.remp.shard import Shard

OnStatus = Callable[[Receipt], None]


class Handed(msgspec.Struct, frozen=True):
    """A message in processing. `account` is None for one of an earlier life, of which its bytes are not kept."""

    workchain: int
    account: bytes | None
    earlier: EarlierIds


class Taking(msgspec.Struct, frozen=True):
    """A message that was handed in. `refused`: why nobody else hears of it, or None if it is on its way."""

    message_id: bytes
    refused: str | None = None


class RempFullNode:
    """`sets_changed` is called when validators that may sign have come or gone, `complain` with what a validator's own
    receipts prove against it. `on_status` hears of a status once the topic holds it on disk.

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
        verifier: SignatureVerifier | None = None,
        disk_fault: Callable[[], StorageError | None] = lambda: None,
    ) -> None:
        self.rejected = 0
        self.finalized = 0
        self.known_sets = known_sets
        self._seed = seed
        self._ledger = ledger
        self._statuses = statuses
        self._clock = clock
        self._on_status = on_status
        self._disk_fault = disk_fault
        self._sets_changed = sets_changed
        self._complaints = ComplaintBook(seed, known_sets.message_timeout_ms, complain)
        self.on_taken: Callable[[bytes, Shard | None], None] = lambda message_id, shard: None
        self.on_settled: OnStatus = lambda receipt: None
        """Called with the status by which a message was handed over, when the topic holds it on disk."""
        self._handed: dict[bytes, Handed] = {}
        self._handing: dict[bytes, bool] = {}
        """Messages that too few validators have yet, and whether SentToValidators was told of each."""
        self._unsettled: set[bytes] = set()
        self._begun: dict[bytes, EarlierIds] = {}
        self._begun_until_seqno = 0
        self._finals: dict[bytes, Accepted | None] = {}
        """With what is still to be told if somebody brings it here; None if it was told."""
        self.sets = known_sets.sets
        self.node = FullNode(seed, links, self.sets, clock, random, self._receipt_came, options, verifier)

    @property
    def source_id(self) -> bytes:
        return self.node.source_id

    def start(self, earlier: EarlierLife | None = None) -> None:
        """From what the ledger knows, and with what the topic of statuses tells of an earlier life."""
        earlier = earlier or EarlierLife()
        self.known_sets.began(self._ledger.sessions())
        self._use_sets()
        everybody = [session.subset for session in self._ledger.sessions()]
        seqno = self._ledger.master_session().master_catchain_seqno
        for message_id, ids in earlier.sent.items():
            self._handed[message_id] = Handed(0, None, ids)
            self.node.follow(message_id, everybody, seqno)
        # These are not followed: what is in processing could not be sent to more validators when it is brought again.
        self._begun = dict(earlier.begun)
        self._begun_until_seqno = seqno + CATCHAINS_KEPT
        told = frozenset(earlier.finals)
        for block in self._ledger.history(0):
            self._block_is_final(block, told)
        # Behind the others, however long the chain is: of these it need not know.
        for message_id in earlier.finals:
            self._remember_final(message_id, None)

    def keep_refused(self) -> None:
        """From now on receipts that do not count go to the topic as well, as they came: readers refuse them by themselves,
        and see who sent them. A validator that means harm can fill a disk so; without this call they are only counted."""
        self.node.on_refused = lambda receipt, reason: self._statuses.publish(receipt, None, EarlierIds())

    def close(self) -> None:
        self.node.close()

    # Messages

    def submit(self, data: bytes, earlier: EarlierIds | None = None) -> bytes:
        """As `take`; the id under which its statuses come."""
        return self.take(data, earlier).message_id

    def take(self, data: bytes, earlier: EarlierIds | None = None) -> Taking:
        """`DecodeError` if the bytes are no message, `StagepostError` if it is in processing, in a block or final
        already: whoever sent it first hears of it. If nobody has, its end is told now, or when it comes. `StorageError`
        if the disk refuses: then nothing is known of the message, and nobody hears of it."""
        self._require_disk()
        message = self._ledger.parse(data).message
        message_id = message.message_id
        ids = self._begun.get(message_id) or earlier or EarlierIds()
        handed = Handed(message.workchain, message.account, ids)
        if message_id in self._finals:
            self._tell_if_untold(message_id, handed)
            raise _known_already(message_id, "is final already")
        if message_id in self.node.sending:
            self._send(message, handed)  # which says so
        reason = self._ledger.dry_run(message, self.now_ms)
        if reason is None:
            self._send(message, handed)
            self._begun.pop(message_id, None)
            return Taking(message_id)
        if self._ledger.holds(message):
            self._handing[message_id] = False
            self._follow_in_block(message_id, handed)
            raise _known_already(message_id, "is in a block already")
        if message_id in self._begun:
            self._follow_in_block(message_id, handed)
            raise _known_already(message_id, "is with a validator already")
        self.reject(message_id, reason, handed.earlier)
        return Taking(message_id, reason)

    def _require_disk(self) -> None:
        fault = self._statuses.fault or self._disk_fault()
        if fault is not None:
            raise StorageError(
                f"the full node takes no message while its disk refuses: {fault.text}",
                advice="look at the disk of the full node, then send the message again",
                reason=fault.reason,
            )

    def _follow_in_block(self, message_id: bytes, handed: Handed) -> None:
        """A block of its shard holds it, and no master block holds that one yet: an earlier life of ours has sent it, of
        which no status reached the disk, or another full node has. The account would refuse it a second time; that says
        nothing of the first, which becomes final or not, and is told then. So with one that a validator has answered for."""
        self._begun.pop(message_id, None)
        session = self._session_for(handed.workchain, handed.account or b"")
        subsets = [] if session is None else [session.subset]
        self._handed.setdefault(message_id, handed)
        self.node.follow(message_id, subsets, self._ledger.master_session().master_catchain_seqno)

    def id_of(self, data: bytes) -> bytes:
        """`DecodeError` if the bytes are no message."""
        return self._ledger.parse(data).message.message_id

    def is_final(self, message_id: bytes) -> bool:
        """As far as it is remembered."""
        return message_id in self._finals

    def is_under_way(self, message_id: bytes) -> bool:
        """Whether it was taken, and the topic does not have it on disk yet that enough validators have it, or its end:
        whoever brought it must be ready to bring it again."""
        return message_id in self._unsettled or (
            message_id in self._handing and message_id in self.node.sending
        )

    def reject(self, message_id: bytes, reason: str, earlier: EarlierIds) -> None:
        """RejectedByFullnode: nobody else hears of the message."""
        self.rejected += 1
        self._publish(self._signed(message_id, Rejected(Level.FULLNODE, reason)), None, earlier)

    def _send(self, message: ExternalMessage, handed: Handed) -> None:
        session = self._session_for(message.workchain, message.account)
        subsets: tuple[Subset, ...] = ()
        now_s = self._clock.unix_s()
        if session is not None:
            subsets = subsets_for(session.subset, self._followers(session.shard), now_s)
        is_known = message.message_id in self._handed
        if message.message_id not in self.node.sending:
            self._handing[message.message_id] = False
        # Statuses may come within the call.
        self._handed.setdefault(message.message_id, handed)
        self.on_taken(message.message_id, None if session is None else session.shard)
        try:
            self.node.send(
                message.message_id,
                message.body,
                subsets,
                self._ledger.master_session().master_catchain_seqno,
                is_near_switch=len(subsets) > 1,
            )
        except StagepostError:
            if not is_known:
                del self._handed[message.message_id]
                self._handing.pop(message.message_id, None)
            raise

    def _session_for(self, workchain: int, account: bytes) -> LedgerSession | None:
        shard = self._ledger.shard_of(workchain, account)
        return None if shard is None else self._ledger.session(shard)

    def _followers(self, shard: Shard) -> list[Subset]:
        ahead_ms = int(LOOK_AHEAD_S * 1_000)
        return [one.subset for one in self._ledger.followers(shard, self.now_ms, ahead_ms)]

    # Validators

    def receipts_came(self, validator: bytes, combined_receipt: bytes) -> None:
        self.node.receipts_came(validator, combined_receipt)

    def validator_linked(self, validator: bytes) -> None:
        self.node.validator_linked(validator)

    def _receipt_came(self, receipt: Receipt) -> None:
        """One that counts, once. What a validator says is final, the chain itself will say: that is published, and once."""
        if is_finally_accepted(receipt.kind) and receipt.source_id != self.source_id:
            return
        handed = self._handed.get(receipt.message_id)
        earlier = EarlierIds() if handed is None else handed.earlier
        if receipt.source_id != self.source_id:
            self._complaints.heard(receipt, self.now_ms)
        self._publish(receipt, self._session_hint(receipt.source_id, handed), earlier)

    def _session_hint(self, source_id: bytes, handed: Handed | None) -> bytes | None:
        """The session of the message's shard at work now, if the source is of it, or this node itself speaks."""
        if handed is None or handed.account is None:
            return None
        session = self._session_for(handed.workchain, handed.account)
        if session is None:
            return None
        is_member = source_id in member_ids(session.facts)
        return session.session_id if is_member or source_id == self.source_id else None

    # The chain

    def heard(self, events: Iterable[LedgerEvent]) -> None:
        """In the order of the ledger."""
        for event in events:
            if isinstance(event, MasterApplied):
                self._master_applied(event)

    def _master_applied(self, event: MasterApplied) -> None:
        for block in event.blocks:
            self._block_is_final(block)
        self._complaints.tick(self.now_ms)
        for message_id in self.node.master_advanced(event.catchain_seqno):
            self._handed.pop(message_id, None)
        if event.catchain_seqno >= self._begun_until_seqno:
            self._begun.clear()
        if event.started or event.ended:
            self.known_sets.began(one for one in event.started if one.facts.workchain >= 0)
            self.known_sets.ended(event.ended, event.time_ms)
            self._use_sets()
            self._handed = {key: one for key, one in self._handed.items() if key in self.node.sending}
            self._handing = {key: one for key, one in self._handing.items() if key in self.node.sending}

    def _block_is_final(self, block: FinalBlock, told: frozenset[bytes] = frozenset()) -> None:
        for message in block.messages:
            if message.message_id not in told:
                self._final(message.message_id, Accepted(Level.MASTERCHAIN, block.block_id, block.master_id))

    def _final(self, message_id: bytes, status: Accepted) -> None:
        """What others have sent is told when somebody brings it here: he may be one who has brought it before, to a life
        that was ended before anything of it reached the topic."""
        if message_id in self._finals:
            return
        self._remember_final(message_id, status)
        self._complaints.finalized(message_id)
        ids = self._begun.pop(message_id, None)
        if message_id in self.node.sending:
            self._tell_final(message_id, status)
        elif ids is not None:
            self._tell_if_untold(message_id, Handed(0, None, ids))

    def _tell_if_untold(self, message_id: bytes, handed: Handed) -> None:
        status = self._finals[message_id]
        if status is not None:
            self._handed[message_id] = handed
            self._tell_final(message_id, status)
            del self._handed[message_id]

    def _tell_final(self, message_id: bytes, status: Accepted) -> None:
        self.finalized += 1
        self._finals[message_id] = None
        self.node.finalized(message_id)
        self._receipt_came(self._signed(message_id, status))

    def _remember_final(self, message_id: bytes, untold: Accepted | None) -> None:
        self._finals.pop(message_id, None)
        self._finals[message_id] = untold
        while len(self._finals) > FINALS_KEPT_MAX:
            del self._finals[next(iter(self._finals))]

    def _use_sets(self) -> None:
        self.sets = self.known_sets.sets
        self.node.use_sets(self.sets)
        self._sets_changed(self.known_sets)

    # Details

    @property
    def now_ms(self) -> int:
        return int(self._clock.unix_s() * 1_000)

    def _signed(self, message_id: bytes, status: MessageStatus) -> Receipt:
        receipt = Receipt(ExternalMessageId(message_id), status, self.now_ms, self.source_id)
        return receipt.with_signature(ed25519.sign(self._seed, receipt.signed_bytes))

    def _publish(self, receipt: Receipt, session_id: bytes | None, earlier: EarlierIds) -> None:
        is_handed_over = self._hands_over(receipt)
        if is_handed_over:
            self._handing.pop(receipt.message_id, None)
            self._unsettled.add(receipt.message_id)
        self._statuses.publish(
            receipt, session_id, earlier, lambda: self._stored(receipt, is_handed_over=is_handed_over)
        )

    def _hands_over(self, receipt: Receipt) -> bool:
        """Whether, when this is on disk, nobody need bring the message again. That it was sent is not enough: what stands
        in a socket dies with the process, so more than a third must have answered."""
        message_id = receipt.message_id
        kind = receipt.kind.name if receipt.source_id == self.source_id else None
        if kind == FINALIZED:
            return True
        history = self.node.sending.get(message_id)
        if kind == REJECTED:
            return history is None  # or something was refused under the id of another message
        if history is None or message_id not in self._handing:
            return False
        self._handing[message_id] |= kind == SENT
        return self._handing[message_id] and history.targets.have_it(history.answered)

    def _stored(self, receipt: Receipt, *, is_handed_over: bool) -> None:
        """Tell others of a status that the topic holds on disk."""
        if is_handed_over:
            self._unsettled.discard(receipt.message_id)
            self.on_settled(receipt)
        self._on_status(receipt)


def _known_already(message_id: bytes, how: str) -> StagepostError:
    return StagepostError(
        f"message {message_id.hex()} {how}",
        code=ErrorCode.MSG_DUPLICATE,
        advice="read its statuses",
        message_id=message_id,
    )
