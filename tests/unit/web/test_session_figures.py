"""Figures of validators by session: equal to those of a second program over a thousand messages and three sessions."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random

from rigs.remp_world import FULL_NODE, seed_of, session, session_name, sets_of, source_of
from stagepost.remp.receipts.message_status import Accepted, New, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord
from stagepost.remp.shard import BlockId
from stagepost.web.figures import sessions_of
from stagepost.web.message_book import MessageBook

MESSAGES = 1_000
SESSIONS = {1: (0, 1, 2, 3), 2: (3, 1, 0, 4), 3: (2, 4, 1, 0)}
START_MS = 1_700_000_000_000
BLOCK = BlockId(0, 0x8000_0000_0000_0000, 17, b"r" * 32, b"f" * 32)
STAGES = {"PutIntoQueue": "queued", "IncludedIntoBlock": "included"}


def a_record(who: int, number: int, status: object, at_ms: int, of_session: int) -> StatusRecord:
    message_id = ExternalMessageId(number.to_bytes(32, "big"))
    receipt = Receipt(message_id, status, at_ms, b"").sign(seed_of(who))  # type: ignore[arg-type]
    headers = {"session": session_name(of_session).hex()}
    return StatusRecord(receipt.to_json().encode(), message_id.hex(), STATUSES_TOPIC, at_ms, headers, "0:0")


def test_figures_equal_those_of_a_second_program() -> None:
    random = Random(7)
    records: list[StatusRecord] = []
    for number in range(MESSAGES):
        of_session = 1 + number % 3
        sent_ms = START_MS + number * 10
        told = [a_record(FULL_NODE, number, SentToValidators(4, 4), sent_ms, of_session)]
        for who in SESSIONS[of_session]:
            if random.random() < 0.05 or (of_session == 3 and who == 4):
                continue  # silent; one seat of the third session is silent about everything
            queued_ms = sent_ms + random.randrange(-20, 300)
            told.append(a_record(who, number, New(), queued_ms, of_session))
            if random.random() < 0.8:
                included = Accepted(Level.COLLATOR, BLOCK)
                told.append(a_record(who, number, included, queued_ms + random.randrange(500), of_session))
        random.shuffle(told)  # the full node's own receipt is read whenever it comes
        records += told
    windows = {number: session(number, seats, seqno=100 + number) for number, seats in SESSIONS.items()}
    book = MessageBook(10_000)
    book.learn(sets_of(*windows.values(), timeout_ms=3_600_000))
    for record in records:
        book.add(record)

    found = sessions_of(book, START_MS + 60_000)

    assert {figures.session_id: figures.messages for figures in found} == {
        session_name(number).hex(): sum(1 + one % 3 == number for one in range(MESSAGES))
        for number in SESSIONS
    }
    expected = second_program(records)
    for figures in found:
        for seat in figures.seats:
            for stage in ("queued", "included"):
                delays = sorted(expected[figures.session_id, seat.source_id, stage])
                places = {0.5: seat.p50_ms[stage], 0.95: seat.p95_ms[stage]}
                for share, shown in places.items():
                    wanted = delays[min(len(delays) - 1, int(share * len(delays)))] if delays else None
                    assert shown == wanted, (figures.catchain_seqno, seat.validator, stage, share)
    last = next(figures for figures in found if figures.session_id == session_name(3).hex())
    (silent,) = (seat for seat in last.seats if seat.source_id == source_of(4).hex())
    assert silent.p50_ms["queued"] is None, "it spoke in another session only"


def second_program(records: list[StatusRecord]) -> dict[tuple[str, str, str], list[int]]:
    """Work out the delays from the JSON of the receipts, with nothing of the book's code."""
    read = [(record.headers["session"], json.loads(record.value or b"")) for record in records]
    sent = {row["message_id"]: row["timestamp"] for _, row in read if row["kind"] == "SentToValidators"}
    delays: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for of_session, row in read:
        stage = STAGES.get(row["kind"])
        if stage is not None:
            delays[of_session, row["source_id"], stage].append(row["timestamp"] - sent[row["message_id"]])
    return delays
