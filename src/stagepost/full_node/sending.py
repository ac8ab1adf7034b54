"""A full node: hands messages to validators one after the other, and counts receipts that pass every check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from stagepost.errors import ErrorCode, TlDecodeError
from stagepost.full_node.receipt_checks import ReceiptChecks, ReceiptJudge
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import Clock
from stagepost.ground.signatures.verifier import SignatureVerifier
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.overlay import FullNodeLinks
from stagepost.remp.message import RempMessage
from stagepost.remp.queue.staged_sending import (
    Forget,
    ReportSent,
    SendingEffect,
    SendingOptions,
    SendTo,
    StagedSending,
    Subset,
)
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Quarantined, Receipt
from stagepost.remp.validator_sets import ValidatorSets

OnReceipt = Callable[[Receipt], None]
OnRefused = Callable[[Receipt, Quarantined], None]


class FullNodeCounters(msgspec.Struct):
    """`quarantined` by code: receipts that do not count."""

    messages: int = 0
    sent: int = 0
    not_sent: int = 0
    receipts: int = 0
    repeated: int = 0
    of_unknown: int = 0
    quarantined: Counter[str] = msgspec.field(default_factory=Counter)


class FullNode:
    """`on_receipt` hears of every receipt that counts, once; its own SentToValidators among them. `on_refused` hears of
    those that do not count, each time."""

    def __init__(
        self,
        seed: bytes,
        links: FullNodeLinks,
        sets: ValidatorSets,
        clock: Clock,
        random: Random,
        on_receipt: OnReceipt,
        options: SendingOptions | None = None,
        verifier: SignatureVerifier | None = None,
    ) -> None:
        self.counters = FullNodeCounters()
        self.sending = StagedSending(random, options)
        self._seed = seed
        self._public_key = ed25519.public_key(seed)
        self.source_id = key_id(self._public_key)
        self._links = links
        self._sets = sets
        self._clock = clock
        self.on_refused: OnRefused = lambda receipt, reason: None
        self._on_receipt = on_receipt
        self._checks = ReceiptChecks(self._judged, verifier)
        self._frames: dict[bytes, bytes] = {}
        self._alarm = Alarm(clock, self._wake)

    def use_sets(self, sets: ValidatorSets) -> None:
        self._sets = sets

    # Messages

    def send(
        self,
        message_id: bytes,
        message: bytes,
        subsets: Sequence[Subset],
        masterchain_seqno: int,
        *,
        is_near_switch: bool = False,
    ) -> None:
        """`StagepostError` if it cannot be begun, above all because it is in processing already."""
        now = self._clock.mono_s()
        effects = self.sending.begin(
            message_id, subsets, masterchain_seqno, now, is_near_switch=is_near_switch
        )
        self.counters.messages += 1
        sent = RempMessage(message, message_id, int(self._clock.unix_s() * 1_000))
        signature = ed25519.sign(self._seed, sent.signed_bytes(self.source_id), public_key=self._public_key)
        self._frames[message_id] = msgspec.structs.replace(sent, signature=signature).encode()
        self._perform(effects)

    def follow(self, message_id: bytes, subsets: Sequence[Subset], masterchain_seqno: int) -> None:
        """A message that an earlier life has handed to validators."""
        self.sending.follow(message_id, subsets, masterchain_seqno, self._clock.mono_s())

    def finalized(self, message_id: bytes) -> None:
        """As the chain says."""
        self._perform(self.sending.finalized(message_id, self._clock.mono_s()))

    def master_advanced(self, masterchain_seqno: int) -> list[bytes]:
        """The ids of messages whose life is over."""
        over = self.sending.master_advanced(masterchain_seqno)
        for message_id in over:
            self._frames.pop(message_id, None)
        return over

    def close(self) -> None:
        self._alarm.cancel()

    # Receipts

    def receipts_came(self, validator: bytes, combined_receipt: bytes) -> None:
        """`DecodeError` closes the link by name."""
        packet = CombinedReceipt.decode(combined_receipt)
        if packet.source_id != validator:
            raise TlDecodeError(
                f"validator {validator.hex()} sent receipts of {packet.source_id.hex()}",
                code=ErrorCode.RECEIPT_SOURCE,
            )
        wanted = [receipt for receipt in packet.receipts if self._is_wanted(receipt)]
        if wanted:
            now_ms = int(self._clock.unix_s() * 1_000)
            self._checks.check(validator, wanted, ReceiptJudge(self._sets, now_ms))

    def validator_linked(self, validator: bytes) -> None:
        self._perform(self.sending.validator_linked(self._clock.mono_s()))

    def _is_wanted(self, receipt: Receipt) -> bool:
        """What costs nothing is looked at first, the signature last."""
        if receipt.message_id not in self.sending:
            self.counters.of_unknown += 1
            return False
        if self.sending.is_repeated(receipt):
            self.counters.repeated += 1
            return False
        return True

    def _judged(self, receipt: Receipt, fault: Quarantined | None) -> None:
        if fault is not None:
            self.counters.quarantined[fault.reason] += 1
            self.on_refused(receipt, fault)
            return
        # Its message may have been forgotten while it was checked, and the same may have come twice.
        if not self._is_wanted(receipt):
            return
        self.counters.receipts += 1
        effects = self.sending.receipt_came(receipt, self._clock.mono_s())
        self._on_receipt(receipt)
        self._perform(effects)

    # Details

    def _perform(self, effects: Sequence[SendingEffect]) -> None:
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            match effect:
                case SendTo(validator, message_id):
                    self.counters.sent += 1
                    if not self._links.send(validator, self._frames[message_id]):
                        self.counters.not_sent += 1
                        now = self._clock.mono_s()
                        waiting += self.sending.not_sent(validator, message_id, now)
                case ReportSent(message_id, sent_to, total, since):
                    self._report(message_id, SentToValidators(sent_to, total), since)
                case Forget(message_id):
                    self._frames.pop(message_id, None)
        self._alarm.set(self.sending.next_wake)

    def _report(self, message_id: bytes, status: SentToValidators, since: float) -> None:
        """Told when enough of them have it, and dated when it went out: everybody counts the times of later stages from it."""
        date_ms = int((self._clock.unix_s() - (self._clock.mono_s() - since)) * 1_000)
        receipt = Receipt(ExternalMessageId(message_id), status, date_ms, self.source_id)
        signature = ed25519.sign(self._seed, receipt.signed_bytes, public_key=self._public_key)
        self._on_receipt(receipt.with_signature(signature))

    def _wake(self) -> None:
        self._perform(self.sending.tick(self._clock.mono_s()))
