"""Checks of validators' receipts: beside the loop where there are many, with results in each validator's order; and of
the statements that bind them, once for each packet.

Signatures are most of a full node's work: seven validators sign twenty receipts and more for one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.signatures.verifier import Errand, InlineVerifier, Request, SignatureVerifier
from stagepost.remp.receipts.receipt import NOT_SIGNED, Quarantined, Receipt, check, check_but_signature
from stagepost.remp.receipts.statements import PacketStatement, PlacedLink, placed_in
from stagepost.remp.validator_sets import ValidatorSets

OnJudged: TypeAlias = Callable[[Receipt, Quarantined | None, PlacedLink | None], None]
ReceiptRequest: TypeAlias = Request[Receipt, Quarantined]


class ReceiptJudge:
    """Judge of receipts that arrived at `arrived_ms`: returns why a receipt does not count, or None."""

    def __init__(self, sets: ValidatorSets, arrived_ms: int) -> None:
        self._sets = sets
        self._arrived_ms = arrived_ms

    def check(self, receipt: Receipt) -> Quarantined | None:
        checked = check(receipt, self._sets, self._arrived_ms)
        return checked if isinstance(checked, Quarantined) else None

    def claims(self, receipt: Receipt) -> Sequence[Claim] | None:
        source = check_but_signature(receipt, self._sets, self._arrived_ms)
        signature = receipt.signature
        if isinstance(source, Quarantined) or signature is None:
            return None
        return ((source.public_key, signature + receipt.signed_bytes),)

    def conclude(
        self, receipt: Receipt, claims: Sequence[Claim], holds: Sequence[bool]
    ) -> Quarantined | None:
        return None if all(holds) else NOT_SIGNED


class ReceiptChecks:
    """Checks that are under way. `on_judged` is called on the loop, perhaps within `check`."""

    def __init__(self, on_judged: OnJudged, verifier: SignatureVerifier | None = None) -> None:
        self._on_judged = on_judged
        self._verifier = verifier or InlineVerifier()
        self._under_way: dict[bytes, deque[ReceiptRequest]] = {}
        self._answers: set[ReceiptRequest] = set()
        self._links: dict[ReceiptRequest, Sequence[PlacedLink | None]] = {}

    def check(
        self,
        source: bytes,
        receipts: Sequence[Receipt],
        judge: ReceiptJudge,
        links: Sequence[PlacedLink | None] = (),
    ) -> None:
        """Check receipts of one source: `on_judged` gets the earlier receipts of a source first, each with its link of
        `links`, which are as many as receipts, or none.
        """
        request: ReceiptRequest = Request(receipts)
        if links:
            self._links[request] = links
        self._under_way.setdefault(source, deque()).append(request)
        self._verifier.verify([request], Errand(judge.check, self._answered, judge))

    def _answered(self, requests: list[ReceiptRequest]) -> None:
        self._answers.update(requests)
        for source, waiting in list(self._under_way.items()):
            while waiting and waiting[0] in self._answers:
                self._answers.discard(waiting[0])
                self._hand_on(waiting.popleft())
            if not waiting:
                self._under_way.pop(source, None)

    def _hand_on(self, request: ReceiptRequest) -> None:
        if request.bug is not None:
            raise request.bug
        links = self._links.pop(request, (None,) * len(request.messages))
        for receipt, verdict, link in zip(request.messages, request.verdicts, links, strict=True):
            self._on_judged(receipt, verdict, link)


class StatementIntake:
    def __init__(self, sets: ValidatorSets) -> None:
        self.sets = sets
        self._next: dict[bytes, tuple[PacketStatement, bool]] = {}
        """By validator, until its next packet: the statement, and whether it came before its session."""

    def came(self, validator: bytes, data: bytes) -> None:
        """Keep a statement for the next packet of `validator`. `DecodeError` closes the link by name."""
        statement = PacketStatement.decode(data)
        if statement.source_id != validator:
            raise DecodeError(
                f"validator {validator.hex()} sent a statement of {statement.source_id.hex()}",
                code=ErrorCode.RECEIPT_SOURCE,
            )
        is_signed = self._is_signed(statement)
        if is_signed is False:
            raise DecodeError(
                f"the statement of validator {validator.hex()} about its receipts is not signed by it",
                code=ErrorCode.RECEIPT_SIGNATURE,
            )
        self._next[validator] = statement, is_signed is None

    def links_of(self, validator: bytes, receipts: Sequence[Receipt]) -> Sequence[PlacedLink | None]:
        """Return the link of each receipt of a packet; `DecodeError` if the statement before it is of other receipts."""
        if validator not in self._next:
            return [None] * len(receipts)
        statement, is_early = self._next.pop(validator)
        return [placed._replace(is_early=is_early) for placed in placed_in(statement, receipts)]

    def checked(self, link: PlacedLink | None) -> PlacedLink | None:
        """Return the link of a receipt that counts, or None if nobody can check its statement or its signature is wrong."""
        if link is None or not link.is_early:
            return link
        return link._replace(is_early=False) if self._is_signed(link.statement) else None

    def linked(self, validator: bytes) -> None:
        """Drop the statement whose packet an earlier link has lost."""
        self._next.pop(validator, None)

    def _is_signed(self, statement: PacketStatement) -> bool | None:
        """Return whether its source has signed the statement; None if no session of that source is known here."""
        public_key = self.sets.public_key_of(statement.source_id)
        return None if public_key is None else statement.is_signed_by(public_key)
