"""What a data folder offers, and what happens where a part of it is absent or broken; the tail, the ring and the book."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rigs.dashboard_world import TIMEOUT_MS, DashboardWorld, message_id
from rigs.remp_world import FULL_NODE, session, sets_file, sets_of, source_of
from stagepost.pipeline.tables.delta import LOG_FOLDER
from stagepost.pipeline.tables.filter import MessageFilter
from stagepost.pipeline.tables.manifest import COMMITS, FORMER_MANIFEST_FILE
from stagepost.remp.receipts.message_status import New, SentToValidators
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.topic import Record
from stagepost.web import message_book
from stagepost.web.access.settings import WebSettings
from stagepost.web.app import metrics_text
from stagepost.web.charts import charts_of
from stagepost.web.figures import HEAT_FROM_MS, heat, lately, quantile, sessions_of
from stagepost.web.listing import Cursor, ListSource, Page, page_of
from stagepost.web.live import Ring, Tail, event_id, read_event_id
from stagepost.web.message_book import MessageBook, ShownRecord, Told
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.queues import queues_object
from stagepost.web.sources import Remembered, Sources
from stagepost.web.stream import row_filter
from stagepost.web.tables import TableQueries
from tests.browser.tables_world import write_tables
from tests.unit.web.test_session_figures import a_record as a_status
from tests.worlds.delivery.outbox_records import a_dead, a_record, filled
from tests.worlds.ground.damaged_files import UNREADABLE, change_row, made_unreadable

NOW_MS = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DashboardWorld]:
    found = DashboardWorld(tmp_path / "data", NOW_MS)
    yield found
    found.close()


def read(world: DashboardWorld, **options: Any) -> Sources:
    """Everything that is there, without a thread."""
    sources = Sources(WebSettings(world.data, **options), now_ms=lambda: NOW_MS + 2_000)
    while sources.tail.step():
        pass
    return sources


# The tail


def test_an_absent_folder_an_empty_one_and_missing_sets_are_three_things(tmp_path: Path) -> None:
    def state(data: Path) -> Nothing | Unreadable | None:
        tail = Tail(data, MessageBook(10), Ring(), lambda: NOW_MS)
        assert tail.step() is False
        return tail.state

    absent = state(tmp_path / "none")
    assert isinstance(absent, Unreadable)
    assert "there is no folder" in absent.text
    assert isinstance(state(tmp_path), Nothing)
    world = DashboardWorld(tmp_path / "data", NOW_MS)
    world.close()
    (tmp_path / "data" / SETS_FILE).unlink()
    blind = state(tmp_path / "data")
    assert isinstance(blind, Unreadable)
    assert "receipts cannot be checked" in blind.text


def test_a_damaged_topic_is_said_and_not_shown_as_nothing(world: DashboardWorld) -> None:
    world.finalized()
    sources = read(world)
    (world.data / SETS_FILE).write_text("{")
    sources.tail.start()
    deadline = time.monotonic() + 30
    while not isinstance(sources.tail.state, Unreadable) and time.monotonic() < deadline:
        sources.tail.is_caught_up.wait(0.05)
    sources.tail.stop()
    assert isinstance(sources.tail.state, Unreadable)
    page = page_of(sources, MessageFilter(), ListSource.LIVE, None, 10)
    assert isinstance(page, Unreadable)
    assert sources.readiness()["topic"]["ready"] is False


def test_every_story_gets_its_verdict(world: DashboardWorld) -> None:
    names = ("finalized", "rejected", "returned", "open", "forged", "expired")
    ids = {name: getattr(world, name)() for name in names}
    book = read(world).book
    words = {name: found.words for name, one in ids.items() if (found := book.get(one, NOW_MS + 2_000))}
    assert words == {
        "finalized": "Finalized",
        "rejected": "Rejected",
        "returned": "Finalized",
        "open": "Queued at 5 of 7",
        "forged": "Finalized",
        "expired": "Expired",
    }
    forged = book.get(ids["forged"], NOW_MS)
    assert forged is not None
    assert len(forged.bad) == 2
    assert book.bad_by_reason == {"RECEIPT_SIGNATURE": 1, "RECEIPT_SOURCE": 1}


def test_time_alone_ends_an_open_message_and_that_is_told_once(world: DashboardWorld) -> None:
    identifier = world.open()
    sources = read(world)
    later = NOW_MS + TIMEOUT_MS + 1_000
    assert [one.words for one in sources.book.changed(later, everything=True)] == ["Expired"]
    assert list(sources.book.changed(later, everything=True)) == []
    assert sources.book.get(identifier, later) is not None


def test_sets_that_come_later_make_strangers_known(world: DashboardWorld) -> None:
    sessions = (session(1, range(3), seqno=100),)
    (world.data / SETS_FILE).write_text(json.dumps(sets_file(*sessions, timeout_ms=TIMEOUT_MS)))
    identifier = world.finalized()
    sources = read(world)
    kept = sources.book.get(identifier, NOW_MS)
    assert kept is not None
    assert kept.bad
    before = len(kept.state.signed)
    world.write_sets()
    sources.tail.step()
    assert len(kept.state.signed) == before + 4 * 3
    assert sources.book.source_words(bytes(32), None).startswith("unknown")


def test_a_record_that_is_no_receipt_is_heard_and_counted(world: DashboardWorld) -> None:
    identifier = world.finalized()
    world.append([Record(identifier.encode(), b"{"), Record(None, None), Record(b"key", b"\xff")])
    sources = read(world)
    rows = [one.row for one in sources.ring.newest(10).rows if isinstance(one.row, ShownRecord)]
    assert [row.refused for row in rows[-3:]] == ["RECEIPT_FORMAT"] * 3
    assert rows[-3].message_id == identifier
    kept = sources.book.get(identifier, NOW_MS)
    assert kept is not None
    assert len(kept.bad) == 1


def test_a_tail_begins_near_the_end_and_marks_what_it_has_not_seen_whole(world: DashboardWorld) -> None:
    world.finalized("old")
    cut = world.open("cut")
    for number in range(3):
        world.finalized(f"new {number}")
    book, ring = MessageBook(100), Ring()
    tail = Tail(world.data, book, ring, lambda: NOW_MS, records_at_start=3 * 23 + 2)
    while tail.step():
        pass
    assert len(book) == 4
    kept = book.get(cut, NOW_MS)
    assert kept is not None
    assert kept.is_cut
    whole = book.get(message_id("new 1").hex(), NOW_MS)
    assert whole is not None
    assert not whole.is_cut


def test_several_partitions_are_followed_as_one(tmp_path: Path) -> None:
    world = DashboardWorld(tmp_path / "data", NOW_MS, partitions=3)
    ids = {world.finalized(f"{number}") for number in range(8)}
    sources = read(world)
    assert {kept.message_id for kept in sources.book.all(NOW_MS)} == ids
    offsets = sources.ring.next_offsets
    assert read_event_id(event_id(offsets)) == offsets
    world.close()


# The book and the ring are bounded


def test_the_book_keeps_the_newest_messages(world: DashboardWorld) -> None:
    ids = [world.open(f"{number}") for number in range(6)]
    book = read(world, messages_kept=5).book
    assert len(book) == 5
    assert book.dropped == 1
    assert book.get(ids[0], NOW_MS) is None
    assert book.get(ids[1], NOW_MS) is not None


def test_the_book_keeps_no_more_receipts_than_it_may(
    world: DashboardWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_book, "RECEIPTS_KEPT", 2 * 23)
    for number in range(3):
        world.finalized(f"{number}")
    assert len(read(world).book) == 2


def test_one_message_cannot_fill_the_book(world: DashboardWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_book, "RECEIPTS_OF_ONE_MAX", 10)
    identifier = world.finalized()
    kept = read(world).book.get(identifier, NOW_MS)
    assert kept is not None
    assert len(kept.state.signed) == 10
    assert kept.is_cut


def a_row(number: int) -> Told:
    return Told(f"{number:064x}", "sent", "Sent", NOW_MS, NOW_MS, None, True, False)


def test_the_ring_forgets_the_oldest_and_says_how_many() -> None:
    ring = Ring(rows_max=4)
    for number in range(6):
        ring.append((0, number), a_row(number))
    since = ring.since(0)
    assert [row.number for row in since.rows] == [2, 3, 4, 5]
    assert (since.dropped, since.next_number) == (2, 6)
    assert ring.since(6) == ([], 6, 0)
    resumed = ring.after_places({0: 5})
    assert [row.place for row in resumed.rows] == [(0, 5)]
    assert resumed.dropped == 0
    assert ring.after_places({0: 1}).dropped == 1


@pytest.mark.parametrize("text", ["", "x", "-1", "1.x", "1..2", "9" * 19, ".".join(["1"] * 65), "١"])
def test_event_ids_of_others_are_none(text: str) -> None:
    assert read_event_id(text) is None


def test_event_ids_are_read_as_they_are_written() -> None:
    assert event_id({}) == "0"
    assert read_event_id(event_id({0: 17, 2: 5})) == {0: 17, 1: 0, 2: 5}


# Lists


def test_pages_follow_each_other_without_gap_or_repetition(world: DashboardWorld) -> None:
    ids = world.many(25)
    sources = read(world)
    found: list[str] = []
    before: Cursor | None = None
    while True:
        page = page_of(sources, MessageFilter(), ListSource.LIVE, before, 10)
        assert isinstance(page, Page)
        assert page.total == 25
        found += [row["message_id"] for row in page.rows]
        if page.next is None:
            break
        before = Cursor.read(page.next.text())
    assert found == ids[::-1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"outcome": "rejected"}, {"rejected"}),
        ({"outcome": "rejected,expired"}, {"rejected", "expired"}),
        ({"kind": "RejectedByCollator"}, {"rejected", "returned"}),
        ({"validator": "V7", "outcome": "finalized"}, {"finalized", "forged"}),
        ({"until": str(NOW_MS - TIMEOUT_MS)}, {"expired"}),
        ({"since": str(NOW_MS), "kind": "Finalized", "validator": "V5"}, {"finalized", "returned", "forged"}),
    ],
)
def test_the_filter_chooses(world: DashboardWorld, given: dict[str, str], expected: set[str]) -> None:
    names = ("finalized", "rejected", "returned", "open", "forged", "expired")
    ids = {getattr(world, name)(): name for name in names}
    sources = read(world)
    page = page_of(sources, MessageFilter.read(given, NOW_MS / 1_000), ListSource.LIVE, None, 50)
    assert isinstance(page, Page)
    assert {ids[row["message_id"]] for row in page.rows} == expected


# Figures


def test_the_overview_counts_what_happened_lately(world: DashboardWorld) -> None:
    for number in range(4):
        world.finalized(f"{number}", NOW_MS - 10_000)
    world.rejected()
    world.open()
    figures = lately(read(world).book, NOW_MS)
    assert figures.by_outcome == {"finalized": 4, "rejected": 1, "queued": 1}
    assert (figures.accepted, figures.open) == (4, 1)
    assert figures.reasons == [("contract error 52", 1)]
    assert figures.final_p50_ms == figures.final_p95_ms == 1_230
    assert sum(figures.per_bucket) == 4


def test_validators_that_are_silent_differ_or_lie_stand_out(world: DashboardWorld) -> None:
    world.returned()
    world.forged()
    (figures,) = sessions_of(read(world).book, NOW_MS + 2_000)
    seats = {seat.validator: seat for seat in figures.seats}
    assert [seats[f"V{number}"].silent for number in range(1, 8)] == [0, 0, 0, 0, 0, 0, 1]
    assert seats["V5"].differs == 1
    assert seats["V6"].bad_signatures == 1
    assert heat(figures, seats["V1"], "queued") == 0


@pytest.mark.parametrize(
    ("own_ms", "warmth"), [(40 + HEAT_FROM_MS - 1, 0), (40 + HEAT_FROM_MS, 5), (40, 0), (None, 0)]
)
def test_a_difference_of_a_few_milliseconds_is_not_warm(
    world: DashboardWorld, own_ms: int | None, warmth: int
) -> None:
    world.finalized()
    (figures,) = sessions_of(read(world).book, NOW_MS + 2_000)
    slow = msgspec.structs.replace(figures.seats[0], p50_ms={"queued": own_ms})
    usual = [msgspec.structs.replace(one, p50_ms={"queued": 40}) for one in figures.seats[1:]]
    assert heat(msgspec.structs.replace(figures, seats=[slow, *usual]), slow, "queued") == warmth


def test_figures_of_a_book_that_is_not_whole_say_since_when(world: DashboardWorld) -> None:
    """What was left out is no 0: five minutes are shown as five minutes only if all of their messages are known."""
    for number in range(6):
        world.finalized(f"{number}", NOW_MS - 60_000 + 10_000 * number)
    whole = lately(read(world).book, NOW_MS)
    assert (whole.accepted, whole.since_ms) == (6, None)
    book = read(world, messages_kept=2).book
    assert book.dropped == 4
    part = lately(book, NOW_MS)
    assert (part.accepted, part.since_ms) == (2, NOW_MS - 20_000)
    assert part.accepted_per_s == pytest.approx(2 / 20), "of the time that is known, and not of a minute"
    late = lately(book, NOW_MS + 290_000)
    assert late.since_ms is None, "the last five minutes are whole"


def test_every_figure_of_a_session_is_of_that_session(tmp_path: Path) -> None:
    """A validator that lies and speaks in the second session only has told nothing in the first."""
    start_ms = NOW_MS - 5_000
    windows = {number: session(number, (0, 1, 2, 3), seqno=100 + number) for number in (1, 2)}
    book = MessageBook(100)
    book.learn(sets_of(*windows.values(), timeout_ms=3_600_000))
    for number in (1, 2):
        at_ms = start_ms + 1_000 * number
        book.add(a_status(FULL_NODE, number, SentToValidators(4, 4), at_ms, number))
        for who in (0, 1, 2) if number == 1 else (0, 1, 2, 3):
            book.add(a_status(who, number, New(), at_ms + 10, number))
    true = a_status(3, 2, New(), start_ms + 2_020, 2)
    value = json.loads(true.value or b"")
    value["signature"] = "00" + value["signature"][2:]
    forged = json.dumps(value).encode()
    book.add(msgspec.structs.replace(true, value=forged))

    second, first = sessions_of(book, NOW_MS)

    told = {seat.source_id: seat for seat in first.seats}[source_of(3).hex()]
    assert (told.messages, told.bad_signatures, told.last_ms) == (0, 0, None)
    told = {seat.source_id: seat for seat in second.seats}[source_of(3).hex()]
    assert (told.messages, told.bad_signatures, told.last_ms) == (1, 1, start_ms + 2_010)
    told = {seat.source_id: seat for seat in first.seats}[source_of(0).hex()]
    assert told.last_ms == start_ms + 1_010, "not the time of the later session"


def test_names_of_validators_choose_on_pages_and_in_the_stream(world: DashboardWorld) -> None:
    kept = world.finalized()
    world.open()
    sources = read(world)
    assert sources.book.sets is not None
    for place in range(7):
        sources.book.sets.names[source_of(place)] = f"validator-{place + 1}"
    now_s = NOW_MS / 1_000
    wanted = MessageFilter.read({"validator": "validator-7"}, now_s, sources.validator_names)
    page = page_of(sources, wanted, ListSource.LIVE, None, 50)
    assert isinstance(page, Page)
    assert kept in {row["message_id"] for row in page.rows}
    rows = [row.row for row in sources.ring.newest(1_000).rows if row_filter(wanted, sources)(row)]
    assert {row.source for row in rows if isinstance(row, ShownRecord)} <= {"V7", "validator-7"}
    assert {row.source_id for row in rows if isinstance(row, ShownRecord)} == {source_of(6).hex()}
    by_place = MessageFilter.read({"validator": "V7"}, now_s, sources.validator_names)
    assert [row.row for row in sources.ring.newest(1_000).rows if row_filter(by_place, sources)(row)] == rows


def test_validators_stand_in_the_order_of_their_names(world: DashboardWorld) -> None:
    world.finalized()
    book = read(world).book
    assert book.sets is not None
    for place in range(7):
        book.sets.names[source_of(place)] = f"validator-{12 - place}"
    (figures,) = sessions_of(book, NOW_MS + 2_000)
    assert [seat.validator for seat in figures.seats] == [f"validator-{number}" for number in range(6, 13)]


def test_charts_name_validators_and_say_reasons_in_words(tmp_path: Path) -> None:
    world = DashboardWorld(tmp_path / "data", NOW_MS)
    world.finalized()
    world.close()
    write_tables(tmp_path / "data" / "tables", NOW_MS, count=60)
    sources = Sources(WebSettings(tmp_path / "data"), now_ms=lambda: NOW_MS)
    sources.tail.step()
    assert sources.book.sets is not None
    sources.book.sets.names[source_of(2)] = "harbour-3"
    charts = charts_of(sources, ("validators", "trust", "rejections"))
    assert isinstance(charts, list)
    by_key = {chart.key: chart for chart in charts}
    for key in ("validators", "trust"):
        assert "harbour-3" in by_key[key].series[0].x
        assert "V2" in by_key[key].series[0].x
    assert all(not reason.startswith("Contract rejected") for reason in by_key["rejections"].series[0].x)


def test_quantiles_are_of_what_there_is() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(100), 0.95) == 95


# Other sources


def test_tables_that_are_not_there_or_not_whole_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    tables = TableQueries(tmp_path, 5)
    assert isinstance(tables.state(), Nothing)
    (tmp_path / FORMER_MANIFEST_FILE).write_text("{")
    former = tables.state()
    assert isinstance(former, Unreadable)
    assert "tables of a former release" in former.text
    (tmp_path / FORMER_MANIFEST_FILE).unlink()
    (tmp_path / COMMITS / LOG_FOLDER).mkdir(parents=True)
    (tmp_path / COMMITS / LOG_FOLDER / f"{0:020d}.json").write_text("{")
    broken = tables.state()
    assert isinstance(broken, Unreadable)
    assert COMMITS in broken.text


def test_a_query_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from tests.browser.tables_world import write_tables

    write_tables(tmp_path, NOW_MS, count=60)
    tables = TableQueries(tmp_path, 0.05)
    answer = tables.ask(
        lambda asking: asking.rows(
            "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range % 7 = b.range"
        )
    )
    assert isinstance(answer, Unreadable)
    assert answer.code == "PROTOCOL_TIMEOUT"


def test_while_one_asks_all_others_get_the_answer_before() -> None:
    asked, is_asked, may_answer = [0], threading.Event(), threading.Event()

    def ask() -> int:
        asked[0] += 1
        if asked[0] > 1:
            is_asked.set()
            assert may_answer.wait(30)
        return asked[0]

    remembered = Remembered(ask, fresh_s=0)
    assert remembered() == 1
    slow: list[int] = []
    asking = threading.Thread(target=lambda: slow.append(remembered()))
    asking.start()
    assert is_asked.wait(30)
    assert remembered() == 1
    may_answer.set()
    asking.join(30)
    assert slow == [2]
    remembered.forget()
    assert remembered() == 3


def test_an_answer_is_kept_for_a_while() -> None:
    asked: list[int] = []
    remembered = Remembered(lambda: asked.append(1) or len(asked), fresh_s=60)  # type: ignore[func-returns-value]
    assert [remembered(), remembered()] == [1, 1]


def test_nodes_and_outboxes_may_be_absent_or_broken(tmp_path: Path) -> None:
    sources = Sources(WebSettings(tmp_path))
    assert isinstance(sources.nodes(), Nothing)
    assert isinstance(sources.outbox(), Nothing)
    (tmp_path / "node.json").write_text(
        '{"pid": 1, "local_socket": "s", "network_magic": 1, "metrics_port": 9}'
    )
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "outbox.sqlite").write_text("no database")
    sources = Sources(WebSettings(tmp_path))
    nodes = sources.nodes()
    assert isinstance(nodes, list)
    assert isinstance(nodes[0].status, Unreadable)
    parts = sources.readiness()
    assert parts["node"]["ready"] is False
    assert "does not answer" in parts["node"]["reason"]


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("how", UNREADABLE)
def test_an_outbox_that_cannot_be_read_is_unknown_and_has_no_figures(
    tmp_path: Path, how: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.ground.storage.table_file.BUSY_S", 0.05)
    folder = tmp_path / "data" / "outbox"
    filled(folder, [a_record(1), a_record(2)], [a_dead(a_record(1))])
    sources = Sources(WebSettings(tmp_path / "data", outbox=folder if is_named else None))
    with made_unreadable(folder / "outbox.sqlite", how):
        outbox = queues_object(sources)["outbox"]
        ready = sources.readiness()["outbox"]
        shown = metrics_text(sources).decode()
    assert outbox.keys() == {"state", "reason", "code"}
    assert outbox["state"] == "unreadable"
    assert UNREADABLE[how] in outbox["reason"]
    assert (ready["ready"], ready["reason"]) == (False, outbox["reason"])
    assert "stagepost_delivery_outbox_readable 0.0" in shown
    assert "stagepost_delivery_queue_messages" not in shown
    assert "stagepost_delivery_dead_letters" not in shown


def test_figures_of_a_damaged_outbox_are_unknown(tmp_path: Path) -> None:
    filled(tmp_path / "outbox", [a_record(1), a_record(2)], [a_dead(a_record(1))])
    sources = Sources(WebSettings(tmp_path))
    assert "stagepost_delivery_outbox_readable 1.0" in metrics_text(sources).decode()
    change_row(tmp_path / "outbox" / "outbox.sqlite", "UPDATE dead_letters SET checksum = x'00'")
    sources = Sources(WebSettings(tmp_path))

    outbox = queues_object(sources)["outbox"]

    assert (outbox["state"], outbox["messages"], outbox["dead"], outbox["failed"]) == (
        "damaged",
        None,
        None,
        None,
    )
    assert (outbox["readable_messages"], outbox["readable_dead"]) == (1, 0)
    assert "a row of dead_letters" in outbox["reason"]
    assert sources.readiness()["outbox"]["ready"] is False
    shown = metrics_text(sources).decode()
    assert "stagepost_delivery_outbox_readable 0.0" in shown
    assert "stagepost_delivery_dead_letters" not in shown


def test_a_named_outbox_that_is_not_there_is_unknown_and_an_unnamed_one_is_nothing(tmp_path: Path) -> None:
    named = Sources(WebSettings(tmp_path, outbox=tmp_path / "nowhere"))
    assert isinstance(named.outbox(), Unreadable)
    assert f"there is no outbox in {tmp_path / 'nowhere'}" in named.readiness()["outbox"]["reason"]
    unnamed = Sources(WebSettings(tmp_path))
    assert isinstance(unnamed.outbox(), Nothing)
    assert "outbox_readable" not in metrics_text(unnamed).decode()


def test_commands_in_sentences_are_shown_as_code() -> None:
    from stagepost.web.pages import coded

    assert coded("start `a --b <c>` & see") == "start <code>a --b &lt;c&gt;</code> &amp; see"
    assert coded("one ` alone <b>") == "one ` alone &lt;b&gt;"
