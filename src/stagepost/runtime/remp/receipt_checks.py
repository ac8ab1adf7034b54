"""Receipts of many validators, checked beside the loop where there are many, and handed on in each validator's order.

Signatures are most of a full node's work: of one message seven validators sign twenty receipts and more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from stagepost.crypto.ed25519 import Claim
from stagepost.dmq.message import DmqMessage
from stagepost.remp.receipt import NOT_SIGNED, Quarantined, Receipt, check, check_but_signature
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.runtime.verifier import Check, Claimant, Errand, InlineVerifier, MessageVerifier, Request

OnJudged: TypeAlias = Callable[[Receipt, Quarantined | None], None]


class ReceiptJudge:
    """Why a receipt that arrived at this time does not count."""

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
    """`on_judged` is called on the loop, perhaps at once."""

    def __init__(self, on_judged: OnJudged, verifier: MessageVerifier | None = None) -> None:
        self._on_judged = on_judged
        self._verifier = verifier or InlineVerifier()
        self._under_way: dict[bytes, deque[Request]] = {}
        self._answers: set[Request] = set()

    def check(self, source: bytes, receipts: Sequence[Receipt], judge: ReceiptJudge) -> None:
        """Of one source: what it said earlier is handed on earlier."""
        # The verifier looks into nothing that it passes on, and its verdicts are whatever the check returns.
        request = Request(cast(Sequence[DmqMessage], receipts))
        self._under_way.setdefault(source, deque()).append(request)
        errand = Errand(cast(Check, judge.check), self._answered, cast(Claimant, judge))
        self._verifier.verify([request], errand)

    def _answered(self, requests: list[Request]) -> None:
        self._answers.update(requests)
        for source, waiting in list(self._under_way.items()):
            while waiting and waiting[0] in self._answers:
                self._answers.discard(waiting[0])
                self._hand_on(waiting.popleft())
            if not waiting:
                self._under_way.pop(source, None)

    def _hand_on(self, request: Request) -> None:
        if request.bug is not None:
            raise request.bug
        receipts = cast(Sequence[Receipt], request.messages)
        verdicts = cast(Sequence[Quarantined | None], request.verdicts)
        for receipt, verdict in zip(receipts, verdicts, strict=True):
            self._on_judged(receipt, verdict)
