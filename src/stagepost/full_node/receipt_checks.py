"""Checks of validators' receipts: beside the loop where there are many, with results in each validator's order.

Signatures are most of a full node's work: seven validators sign twenty receipts and more for one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.signatures.verifier import Errand, InlineVerifier, Request, SignatureVerifier
from stagepost.remp.receipts.receipt import NOT_SIGNED, Quarantined, Receipt, check, check_but_signature
from stagepost.remp.validator_sets import ValidatorSets

OnJudged: TypeAlias = Callable[[Receipt, Quarantined | None], None]
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

    def check(self, source: bytes, receipts: Sequence[Receipt], judge: ReceiptJudge) -> None:
        """Check receipts of one source: `on_judged` gets the earlier receipts of a source first."""
        request: ReceiptRequest = Request(receipts)
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
        for receipt, verdict in zip(request.messages, request.verdicts, strict=True):
            self._on_judged(receipt, verdict)
