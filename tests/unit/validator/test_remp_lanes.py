"""What a validator remembers of what it said: whole lanes, so many of them, and each with a beginning that may stand first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import FIRST_KINDS, Level, is_legal_step
from stagepost.remp.shard import BlockId
from stagepost.validator.receipts import LANE_RECEIPTS_MAX, LANES_MAX, Lanes

ONE = ExternalMessageId(bytes([1]) * 32)
BLOCK = BlockId(seqno=7)
TO_AND_FRO = (New(), Accepted(Level.COLLATOR, BLOCK), Ignored(Level.SHARDCHAIN, BLOCK))


def receipt(status: MessageStatus, number: int, message_id: ExternalMessageId = ONE) -> Receipt:
    return Receipt(message_id, status, number, b"")


@pytest.mark.parametrize("count", range(1, 3 * LANE_RECEIPTS_MAX))
def test_a_long_lane_loses_its_beginning_and_begins_with_what_may_stand_first(count: int) -> None:
    lanes = Lanes()
    said = [receipt(TO_AND_FRO[number % 3], number) for number in range(count)]
    for one in said:
        lanes.extend(ONE, [one])
    kept = lanes[ONE]
    assert kept == tuple(said[-len(kept) :])
    assert kept[0].kind.name in FIRST_KINDS
    assert all(is_legal_step(before.kind, after.kind) for before, after in pairwise(kept))
    assert min(count, LANE_RECEIPTS_MAX) - 2 <= len(kept) <= LANE_RECEIPTS_MAX
    if count <= LANE_RECEIPTS_MAX:
        assert len(kept) == count


def test_at_the_limit_of_lanes_the_one_that_was_silent_longest_goes() -> None:
    lanes = Lanes()
    ids = [ExternalMessageId(number.to_bytes(32, "big")) for number in range(LANES_MAX + 1)]
    for one in ids[:LANES_MAX]:
        lanes.extend(one, [receipt(New(), 1, one)])
    assert lanes[ids[0]]
    lanes.extend(ids[0], [receipt(TO_AND_FRO[1], 2, ids[0])])
    lanes.extend(ids[-1], [receipt(New(), 3, ids[-1])])
    assert [len(lanes[one]) for one in (ids[0], ids[1], ids[2], ids[-1])] == [2, 0, 1, 1]


def test_what_is_forgotten_is_empty() -> None:
    lanes = Lanes()
    lanes.extend(ONE, [receipt(New(), 1)])
    lanes.forget(ONE)
    lanes.forget(ONE)
    assert lanes[ONE] == ()
