"""Receipts that are checked beside the loop get the same verdicts, and each source's stay in their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from rigs.remp_world import FULL_NODE, said, session, sets_of
from stagepost.errors import ErrorCode
from stagepost.full_node.receipt_checks import ReceiptChecks, ReceiptJudge
from stagepost.ground.signatures.verifier import KEPT_MESSAGES_MAX, Verifier
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.statements import PlacedLink

SETS = sets_of(session(1, range(7)))
ARRIVED_MS = 1_000
LIMIT_S = 120.0

KINDS_OF_FAULT: list[tuple[Receipt, ErrorCode | None]] = [
    (said(0, "PutIntoQueue", 10, signed=True).receipt, None),
    (said(1, "PutIntoQueue", 11).receipt, ErrorCode.RECEIPT_UNSIGNED),
    (said(50, "PutIntoQueue", 12, signed=True).receipt, ErrorCode.RECEIPT_SOURCE),
    (said(FULL_NODE, "PutIntoQueue", 13, signed=True).receipt, ErrorCode.RECEIPT_ROLE),
    (said(2, "PutIntoQueue", 400_000, signed=True).receipt, ErrorCode.RECEIPT_FUTURE),
    (said(3, "PutIntoQueue", 14).receipt.with_signature(bytes(64)), ErrorCode.RECEIPT_SIGNATURE),
    (said(4, "PutIntoQueue", 15).receipt.with_signature(b"short"), ErrorCode.RECEIPT_SIGNATURE),
    (said(FULL_NODE, "Finalized", 16, signed=True).receipt, None),
]
MANY = [*KINDS_OF_FAULT, *KINDS_OF_FAULT[::-1], *KINDS_OF_FAULT]


SIGNED_OR_FORGED = [pair for pair in MANY if pair[1] is None or pair[0].signature == bytes(64)] * 3
BY_SOURCE = {b"early": MANY, b"all kinds": MANY, b"signatures": SIGNED_OR_FORGED}
assert all(len(pairs) > KEPT_MESSAGES_MAX for pairs in BY_SOURCE.values())


def test_every_kind_of_fault_is_found_beside_the_loop_as_on_it() -> None:
    judged: dict[bytes, list[tuple[Receipt, ErrorCode | None]]] = defaultdict(list)
    asked_beside: dict[bytes, int] = {}

    async def run() -> None:
        verifier = Verifier(1)

        def on_judged(receipt: Receipt, fault: Quarantined | None, link: PlacedLink | None) -> None:
            judged[source].append((receipt, None if fault is None else fault.reason))

        checks = ReceiptChecks(on_judged, verifier)
        async with asyncio.timeout(LIMIT_S):
            for source, pairs in BY_SOURCE.items():
                checks.check(source, [receipt for receipt, _ in pairs], ReceiptJudge(SETS, ARRIVED_MS))
                asked_beside[source] = verifier.helpers[0].unanswered
                while len(judged[source]) < len(pairs) or not verifier.helpers[0].is_ready:
                    await asyncio.sleep(0.005)
        await verifier.close()

    asyncio.run(run())

    assert judged == BY_SOURCE
    # Nobody is there yet; a piece with something else than a signature to find is the loop's; the rest is not.
    assert asked_beside == {b"early": 0, b"all kinds": 0, b"signatures": len(SIGNED_OR_FORGED)}
