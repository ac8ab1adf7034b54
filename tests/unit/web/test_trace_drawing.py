"""The drawing of a trace: as many lanes, marks, arcs, folds and tails as there must be, each where it belongs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from rigs.remp_world import FULL_NODE, MESSAGE, seed_of, session, sets_of, shard_block, status_named
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import StatusRecord
from stagepost.remp.shard import BlockId
from stagepost.remp.verdict.trace import Trace, trace_of
from stagepost.trace.drawing import FOLD_WIDTH, TimeScale, draw_trace

SVG = "{http://www.w3.org/2000/svg}"
BLOCK = shard_block(1 << 63)
MASTER = BlockId(-1, 1 << 63, 9)


def record(who: int, status: MessageStatus, at_ms: int, *, forged: bool = False) -> StatusRecord:
    receipt = Receipt(ExternalMessageId(MESSAGE), status, at_ms, b"").sign(seed_of(who))
    return StatusRecord((receipt.with_signature(bytes(64)) if forged else receipt).to_json().encode())


def named(who: int, kind: str, at_ms: int, *, forged: bool = False) -> StatusRecord:
    return record(who, status_named(kind, block=BLOCK), at_ms, forged=forged)


def traced(records: Sequence[StatusRecord], validators: int = 4, as_of_ms: int = 500) -> Trace:
    return trace_of(MESSAGE, records, sets_of(session(1, range(validators)), timeout_ms=240_000), as_of_ms)


class Drawing:
    def __init__(self, trace: Trace) -> None:
        self.root = ElementTree.fromstring(draw_trace(trace))
        self.lanes = [part for part in self.root if part.get("class") == "lane"]

    def marks(self, lane: int) -> Counter[str]:
        return Counter(
            part.get("data-mark", "") for part in self.lanes[lane].iter(f"{SVG}g") if part.get("data-mark")
        )

    def count(self, kind: str, tag: str) -> int:
        return sum(part.get("class") == kind for part in self.root.iter(f"{SVG}{tag}"))

    def texts(self, kind: str) -> list[str]:
        return [
            "".join(part.itertext())
            for part in self.root.iter(f"{SVG}text")
            if (part.get("class") or "").split(" ")[0] == kind
        ]


def test_every_receipt_is_a_mark_in_the_lane_of_its_source() -> None:
    drawing = Drawing(
        traced(
            [
                record(FULL_NODE, SentToValidators(4, 4), 0),
                *(record(who, New(), 10 + who) for who in range(3)),
                named(0, "IncludedIntoBlock", 100),
                record(1, Rejected(Level.COLLATOR, "no <funds>"), 120),
                named(2, "IncludedIntoBlock", 130, forged=True),
                record(FULL_NODE, Accepted(Level.MASTERCHAIN, BLOCK, MASTER), 300),
            ]
        )
    )
    assert [lane.get("data-name") for lane in drawing.lanes] == ["full node", "V1", "V2", "V3", "V4"]
    assert drawing.marks(0) == {"ON_ITS_WAY": 1, "FINAL": 1}
    assert drawing.marks(1) == {"QUEUED": 1, "ON_ITS_WAY": 1}
    assert drawing.marks(2) == {"QUEUED": 1, "NEVER": 1}
    assert drawing.marks(3) == {"QUEUED": 1, "UNTRUSTED": 1}
    assert drawing.marks(4) == {}
    assert any("RejectedByCollator: no <funds>" in text for text in drawing.texts("label"))
    assert any("SIGNATURE INVALID" in text for text in drawing.texts("label"))
    assert len(drawing.texts("quiet")) >= 2  # "silent", and the ticks
    assert drawing.count("tail", "line") == 0


def test_marks_stand_to_scale() -> None:
    drawing = Drawing(traced([record(who, New(), at_ms) for who, at_ms in enumerate((0, 250, 500, 1_000))]))
    places = [float(part.get("cx", "")) for part in drawing.root.iter(f"{SVG}circle")]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert gaps == [pytest.approx(190), pytest.approx(190), pytest.approx(380)]


def test_a_return_to_the_queue_is_an_arc_and_an_open_message_has_tails() -> None:
    returned = [
        record(0, New(), 0),
        named(0, "IncludedIntoBlock", 50),
        named(0, "IgnoredByShardchain", 80),
        record(0, New(), 90),
        record(1, New(), 5),
        record(2, Rejected(Level.COLLATOR, "no"), 60),
    ]
    drawing = Drawing(traced(returned))
    assert drawing.count("back", "path") == 1
    assert drawing.count("tail", "line") == 2
    assert drawing.marks(0) == {"QUEUED": 2, "ON_ITS_WAY": 1, "RETURNED": 1}


def test_a_stranger_has_a_hollow_mark_in_a_lane_of_his_own() -> None:
    drawing = Drawing(traced([record(0, New(), 0), record(77, New(), 10)]))
    assert (drawing.lanes[-1].get("data-name") or "").startswith("unknown ")
    assert drawing.count("unknown", "circle") == 1


def test_a_long_silence_is_folded_and_its_length_written() -> None:
    drawing = Drawing(traced([record(0, New(), 0), record(1, New(), 100), record(2, New(), 60_000)]))
    assert drawing.texts("quiet")[0] == "59.9 s"
    assert drawing.count("fold", "rect") == 1


def test_the_largest_trace_is_drawn_whole() -> None:
    records = [
        record(who, New() if turn % 2 else status_named("IgnoredByCollator", block=BLOCK), 10 * turn + who)
        for who in range(21)
        for turn in range(96)
    ]
    drawing = Drawing(traced(records, validators=21))
    assert len(drawing.lanes) == 21
    assert all("IgnoredByCollator × 48" in label for label in drawing.texts("label"))
    assert sum(sum(drawing.marks(lane).values()) for lane in range(21)) == len(records) == 2_016


def test_a_trace_without_any_receipt_that_counts_is_drawn() -> None:
    drawing = Drawing(traced([record(0, New(), 5, forged=True)]))
    assert drawing.marks(0) == {"UNTRUSTED": 1}


# The scale


def test_without_long_gaps_time_is_linear() -> None:
    scale = TimeScale([100, 150, 200, 300], 600)
    assert [scale.x(at_ms) for at_ms in (100, 200, 300)] == [0, 300, 600]
    assert scale.folds == []


def test_a_folded_gap_keeps_everything_else_to_scale() -> None:
    scale = TimeScale([0, 1_000, 101_000, 102_000], 1_000)
    (fold,) = scale.folds
    assert (fold.from_ms, fold.to_ms, fold.right - fold.left) == (1_000, 101_000, FOLD_WIDTH)
    per_second = (1_000 - FOLD_WIDTH) / 2
    assert scale.x(1_000) == pytest.approx(per_second)
    assert scale.x(101_000) == pytest.approx(per_second + FOLD_WIDTH)
    assert scale.x(102_000) == pytest.approx(1_000)
    assert scale.x(51_000) == pytest.approx(per_second + FOLD_WIDTH / 2)
    assert all(not 1_000 < after_ms < 101_000 for after_ms in scale.ticks(0))


def test_a_gap_of_less_than_a_second_is_never_folded() -> None:
    assert TimeScale([0, 1, 1_000, 1_001], 100).folds == []
    assert len(TimeScale([0, 1, 1_001, 1_002], 100).folds) == 1


@pytest.mark.parametrize("times", [[], [5], [5, 5], [0, 10_000]])
def test_few_times_have_places_too(times: list[int]) -> None:
    scale = TimeScale(times, 100)
    assert all(0 <= scale.x(at_ms) <= 100 for at_ms in times)
    assert len(scale.ticks(0)) <= 12
