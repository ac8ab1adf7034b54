"""`stagepost queue ls --outbox|show|check` and `check --outbox`: an outbox on disk, as its operator sees it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stagepost.chain.contracts import primes_body
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.messages import MessageDraft, read_message
from stagepost.cli import main as command
from stagepost.delivery.identity import nonce_of_key
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import DeadLetter, Finished, OutboxChange, OutboxRecord
from stagepost.delivery.stores.outbox_stores import SqliteOutbox
from stagepost.delivery.stores.reading import read_outbox
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.ground.identifiers import MESSAGES_TOPIC
from stagepost.ground.telemetry.health import (
    OLDEST_CRITICAL_S,
    OLDEST_WARNING_S,
    Finding,
    HealthFacts,
    Severity,
    judge,
)
from stagepost.trace.folder_health import outbox_reading
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import ProvedChain, a_message, an_account
from tests.worlds.ground.damaged_files import UNREADABLE, change_row, content_of_folder, made_unreadable

NOW_MS = int(time.time() * 1_000)
PEERS = ("ab" * 28, "cd" * 28)


def record(number: int, *, age_s: float = 2.0, tier: Tier = Tier.QUEUED, topic: str = "demo") -> OutboxRecord:
    return OutboxRecord(
        sequence=number,
        delivery_id=bytes([number]) * 32,
        tier=tier,
        topic=topic,
        payload=b"secret words",
        nonce=bytes(16),
        created_ms=NOW_MS - int(age_s * 1_000),
        ackers=PEERS if tier is Tier.ACKED else (),
        required=1 if tier is Tier.ACKED else 0,
    )


def finding_in(folder: Path, queue_size: int, now_s: float) -> Finding:
    report = judge(HealthFacts(outbox=outbox_reading(folder, queue_size, now_s)), now_s)
    (finding,) = report.findings
    return finding


def buried(one: OutboxRecord, error: str = "ErrAckTimeout", *, ago_s: float = 60.0) -> DeadLetter:
    return DeadLetter(one, error, "nobody answered in time", NOW_MS - int(ago_s * 1_000))


def make_outbox(folder: Path, records: Sequence[OutboxRecord], changes: Sequence[OutboxChange] = ()) -> Path:
    async def fill() -> None:
        outbox = SqliteOutbox(folder)
        outbox.load()
        for one in records:
            await outbox.insert(one)
        for change in changes:
            outbox.mark(change)
        await outbox.close()

    asyncio.run(fill())
    return folder


@pytest.fixture(autouse=True)
def _now() -> None:
    """Commands look at the real clock, and a whole suite may have run since this file was read."""
    global NOW_MS
    NOW_MS = int(time.time() * 1_000)


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    """Two wait, one failed, one was sent."""
    records = [record(1), record(2, tier=Tier.ACKED, topic="bell\x07"), record(3, tier=Tier.ACKED), record(4)]
    changes: list[OutboxChange] = [buried(records[2]), Finished(4, DeliveryStatus.SENT, NOW_MS)]
    return make_outbox(tmp_path / "outbox", records, changes)


def run(*arguments: object) -> int:
    return command.run([str(argument) for argument in arguments])


def test_what_waits_is_listed_in_the_order_of_sending(
    outbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queue", "ls", "--outbox", outbox) == 0

    header, first, second, summary = capsys.readouterr().out.splitlines()
    assert header.split() == ["place", "message", "topic", "tier", "status", "bytes", "attempts", "age"]
    assert first.split()[:7] == ["1", "01010101…010101", "demo", "queued", "Queued", "12", "0"]
    assert second.split()[:4] == ["2", "02020202…020202", "bell·", "acked"]
    assert summary == f"2 wait; 1 dead letter: stagepost queue ls --outbox {outbox} --dead"


def test_dead_letters_say_why(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("queue", "ls", "--outbox", outbox, "--dead") == 0

    header, row, advice = capsys.readouterr().out.splitlines()
    assert header.split() == ["place", "message", "topic", "tier", "attempts", "failed", "error", "text"]
    assert "ErrAckTimeout" in row
    assert "1m" in row
    assert row.endswith("nobody answered in time")
    assert advice == f"replay: stagepost queue replay ID --outbox {outbox}"


def test_json_has_whole_ids_and_no_payload(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("queue", "ls", "--outbox", outbox, "--json") == 0
    assert run("queue", "ls", "--outbox", outbox, "--dead", "--json") == 0

    output = capsys.readouterr().out
    first, second, dead = [json.loads(line) for line in output.splitlines()]
    assert (first["delivery_id"], first["status"]) == ("01" * 32, "Queued")
    assert (second["critical_peers"], second["required"]) == (list(PEERS), 1)
    assert (dead["status"], dead["error"], dead["failed_ms"]) == ("Failed", "ErrAckTimeout", NOW_MS - 60_000)
    assert "secret" not in output


def test_long_lists_say_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outbox = make_outbox(tmp_path / "outbox", [record(number) for number in range(1, 61)])

    assert run("queue", "ls", "--outbox", outbox) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"more: stagepost queue ls --outbox {outbox} --after 50"
    assert run("queue", "ls", "--outbox", outbox, "--after", 50) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 10
    assert run("queue", "ls", "--outbox", outbox, "--all") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 60


def test_empty_outbox_and_missing_one_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outbox = make_outbox(tmp_path / "outbox", [])

    assert run("queue", "ls", "--outbox", outbox) == 0
    assert capsys.readouterr().out == "nothing waits, and there are no dead letters\n"
    assert run("queue", "ls", "--outbox", tmp_path / "nowhere") == 3
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists(), "looking makes nothing"


def test_one_message_is_shown_by_the_beginning_of_its_id(
    outbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queue", "show", "02020202", "--outbox", outbox) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["message"] == "02" * 32
    assert lines["acknowledged"].startswith("by  1 needed of 2: pool1")
    assert run("queue", "show", "03030303", "--outbox", outbox) == 0
    assert "ErrAckTimeout: nobody answered in time" in capsys.readouterr().out


def test_id_that_is_unknown_ambiguous_or_too_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twins = [record(1), record(2)]
    twins = [
        OutboxRecord(
            one.sequence,
            b"\x05" * 31 + bytes([one.sequence]),
            one.tier,
            one.topic,
            one.payload,
            one.nonce,
            one.created_ms,
        )
        for one in twins
    ]
    outbox = make_outbox(tmp_path / "outbox", twins)

    assert run("queue", "show", "99999999", "--outbox", outbox) == 1
    assert "begins with 99999999" in capsys.readouterr().err
    assert run("queue", "show", "05050505", "--outbox", outbox) == 1
    error = capsys.readouterr().err
    assert ("05" * 31 + "01") in error
    assert ("05" * 31 + "02") in error
    assert run("queue", "show", "0505", "--outbox", outbox) == 2


@pytest.fixture
def failed_twice(tmp_path: Path) -> Path:
    """One message failed at places 1 and 3, another one at place 2, which failed last."""
    first, other, again = record(1), record(2), record(3)
    again = msgspec.structs.replace(again, delivery_id=first.delivery_id)
    letters = [buried(first, ago_s=90), buried(other, ago_s=10), buried(again, "ErrNacked", ago_s=30)]
    return make_outbox(tmp_path / "outbox", [first, other, again], letters)


def test_each_copy_of_a_message_that_failed_twice_can_be_shown(
    failed_twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queue", "show", "01" * 32, "--outbox", failed_twice, "--json") == 0
    copies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["sequence"], one["error"]) for one in copies] == [(1, "ErrAckTimeout"), (3, "ErrNacked")]

    assert run("queue", "show", "01010101", "--outbox", failed_twice) == 0
    shown = capsys.readouterr().out.split("\n\n")
    assert [line for copy in shown for line in copy.splitlines() if line.startswith("place")] == [
        "place            1",
        "place            3",
    ]
    for place, error in ((1, "ErrAckTimeout"), (3, "ErrNacked")):
        assert run("queue", "show", f"01010101@{place}", "--outbox", failed_twice, "--json") == 0
        (copy,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert (copy["delivery_id"], copy["sequence"], copy["error"]) == ("01" * 32, place, error)


def test_a_key_finds_its_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keyed = msgspec.structs.replace(record(1), nonce=nonce_of_key("order-17"))
    outbox = make_outbox(tmp_path / "outbox", [keyed, record(2)])

    assert run("queue", "show", "order-17", "--outbox", outbox) == 0
    assert keyed.delivery_id.hex() in capsys.readouterr().out
    assert run("queue", "show", "order-18", "--outbox", outbox) == 1
    assert "the idempotency key 'order-18'" in capsys.readouterr().err


def test_a_place_that_the_message_does_not_have_is_unknown(
    failed_twice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queue", "show", "01010101@2", "--outbox", failed_twice) == 1
    assert "begins with 01010101 and the place 2" in capsys.readouterr().err
    for name in ("01010101@", "01010101@x", "01010101@-1", "0101@1", "01010101@" + "9" * 20):
        assert run("queue", "show", name, "--outbox", failed_twice) == 2
        assert "5f0c91aa@12" in capsys.readouterr().err
    assert run("queue", "show", "01010101@1", "--data", failed_twice) == 2


def test_pages_of_dead_letters_skip_none(failed_twice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The order in which messages failed is another one than the order of their places."""
    seen, after = [], 0
    for _ in range(3):
        arguments = ("--dead", "--json", "--limit", 1, "--after", after)
        assert run("queue", "ls", "--outbox", failed_twice, *arguments) == 0
        after = json.loads(capsys.readouterr().out)["sequence"]
        seen.append(after)
    assert seen == [1, 2, 3]


def test_books_that_balance_are_ok(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("queue", "check", "--outbox", outbox) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ok     balance   published 4 = acked 0 + sent 1 + failed 1 + waiting 2"
    assert lines[1].startswith("ok     rows      2 waiting, dead letters 1, remembered keys 0, ")
    assert lines[2].strip() == "failed: ErrAckTimeout 1"


def test_damaged_row_is_told_with_exit_1(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = outbox / "outbox.sqlite"
    content = file.read_bytes()
    place = content.index(b"secret words")
    file.write_bytes(content[:place] + b"S" + content[place + 1 :])

    assert run("queue", "check", "--outbox", outbox, "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["sound"] is False
    assert facts["damaged_rows"] == 1
    assert facts["damage"]
    assert run("check", "--outbox", outbox) == 3
    assert "queue check" in capsys.readouterr().out


PARTLY_READABLE = {
    "a dead letter": "UPDATE dead_letters SET checksum = x'00'",
    "a waiting message": "UPDATE records SET content = zeroblob(9) WHERE key = 1",
    "all rows": "DELETE FROM records",
    "the totals": "UPDATE head SET checksum = x'00'",
}


def every_reader(outbox: Path) -> Iterator[tuple[str, ...]]:
    """Each command that reads an outbox; those that would send find no node."""
    place = ("--outbox", str(outbox))
    yield ("queue", "ls", *place)
    yield ("queue", "ls", *place, "--json")
    yield ("queue", "ls", *place, "--dead")
    yield ("queue", "ls", *place, "--dead", "--json")
    yield ("queue", "show", "03030303", *place)
    yield ("queue", "show", "99999999", *place)
    yield ("queue", "check", *place)
    yield ("queue", "check", *place, "--json")
    yield ("check", *place)
    sending = (*place, "--socket", str(outbox.parent / "none"), "--network-magic", "1", "--timeout", "50ms")
    for verb in (("replay", "99999999"), ("replay", "--all"), ("flush",)):
        yield ("queue", *verb, "--keys", str(outbox.parent / "keys"), *sending)


SAYS_NOTHING_IS_THERE = (
    "nothing wait",
    "no dead letters",
    "0 waiting",
    "outbox 0 of",
    "published 0",
    'sound": true',
)


@pytest.mark.parametrize("how", UNREADABLE)
def test_an_outbox_that_cannot_be_read_is_unknown_to_every_command(
    outbox: Path, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.ground.storage.table_file.BUSY_S", 0.05)
    make_keys(outbox.parent / "keys", start_kes_period=0, issue_number=0)
    monkeypatch.chdir(outbox.parent)
    for arguments in every_reader(outbox):
        with made_unreadable_for_a_while(outbox, how):
            assert run(*arguments) == 3, arguments
        said = capsys.readouterr()
        assert UNREADABLE[how] in said.out + said.err
        assert not [words for words in SAYS_NOTHING_IS_THERE if words in said.out + said.err], arguments
        assert "Traceback" not in said.err


@contextmanager
def made_unreadable_for_a_while(outbox: Path, how: str) -> Iterator[None]:
    """The folder is afterwards what it was before, whatever happened to it."""
    saved = outbox.with_name("saved")
    shutil.copytree(outbox, saved)
    try:
        with made_unreadable(outbox / "outbox.sqlite", how):
            before = content_of_folder(outbox)
            yield
            assert content_of_folder(outbox) == before, "nothing was moved or made"
    finally:
        shutil.rmtree(outbox)
        saved.rename(outbox)


@pytest.mark.parametrize("what", PARTLY_READABLE)
def test_a_part_of_an_outbox_is_never_shown_as_the_whole(
    outbox: Path, what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(outbox.parent / "keys", start_kes_period=0, issue_number=0)
    monkeypatch.chdir(outbox.parent)
    for number, arguments in enumerate(every_reader(outbox)):
        copy = outbox.with_name(f"copy {number}")
        shutil.copytree(outbox, copy)
        change_row(copy / "outbox.sqlite", PARTLY_READABLE[what])
        status = run(*(str(copy) if argument == str(outbox) else argument for argument in arguments))
        said = capsys.readouterr()
        assert status == {"check": 3, "queue check": 1}.get(
            " ".join(arguments[: 1 + (arguments[0] == "queue")]), 3
        )
        assert re.search("a row of|rows of|rows are damaged", said.out + said.err), arguments
        assert not [words for words in SAYS_NOTHING_IS_THERE[:2] if words in said.out + said.err], arguments


def test_totals_that_cannot_be_read_are_unknown(outbox: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_row(outbox / "outbox.sqlite", PARTLY_READABLE["the totals"])
    assert run("queue", "check", "--outbox", outbox) == 1
    assert "wrong  balance   unknown: the totals cannot be read; 2 waiting" in capsys.readouterr().out
    assert run("queue", "check", "--outbox", outbox, "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["published"], facts["failed"], facts["imbalance"]) == (None, None, None)


@pytest.mark.parametrize(
    ("waiting", "level"), [(0, Severity.OK), (7, Severity.OK), (8, Severity.WARNING), (10, Severity.CRITICAL)]
)
def test_full_queue_is_told(waiting: int, level: Severity, tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path / "outbox", [record(number) for number in range(1, waiting + 1)])

    finding = finding_in(outbox, 10, NOW_MS / 1_000)
    assert (finding.level, finding.part) == (level, "queue")
    assert finding.text.startswith(f"outbox {waiting} of 10")


@pytest.mark.parametrize(
    ("age_s", "level"),
    [
        (OLDEST_WARNING_S - 1, Severity.OK),
        (OLDEST_WARNING_S, Severity.WARNING),
        (OLDEST_CRITICAL_S - 1, Severity.WARNING),
        (OLDEST_CRITICAL_S, Severity.CRITICAL),
    ],
)
def test_old_queue_is_told(age_s: float, level: Severity, tmp_path: Path) -> None:
    outbox = make_outbox(tmp_path / "outbox", [record(1, age_s=age_s), record(2)])

    assert finding_in(outbox, 1_000, NOW_MS / 1_000).level is level


def test_evictions_of_the_last_hour_are_a_warning_and_older_ones_are_not(tmp_path: Path) -> None:
    records = [record(number) for number in (1, 2, 3)]
    lately = [buried(records[0], "ErrQueueEvicted"), buried(records[1], "ErrQueueEvicted", ago_s=3_601)]
    outbox = make_outbox(tmp_path / "outbox", records, lately)

    finding = finding_in(outbox, 1_000, NOW_MS / 1_000)
    assert finding.level is Severity.WARNING
    assert finding.text == "outbox 1 of 1000, oldest 2 s, 1 evicted in the last hour, 2 dead letters"


def test_check_of_an_outbox_needs_no_node_of_its_own(
    outbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run("check", "--outbox", outbox) == 0
    assert "\nok        queue       outbox 2 of 1000, oldest " in capsys.readouterr().out
    assert run("check", "--outbox", outbox, "--data", tmp_path) == 3, "a node that is asked for must be there"
    assert run("check", "--outbox", tmp_path / "nowhere") == 3


@pytest.mark.parametrize("name", ["show", "flush", "replay", "check"])
def test_every_verb_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("queue", name, "--help") == 0
    assert "Example:\n    stagepost queue " in capsys.readouterr().out


def test_dead_letters_of_a_mempool_are_a_usage_error(tmp_path: Path) -> None:
    assert run("queue", "ls", "--dead", "--data", tmp_path) == 2


# External messages whose first transmission has expired


@pytest.fixture
def expired(tmp_path: Path) -> tuple[Path, ReadMessage, ReadMessage, ProvedChain]:
    """Return an outbox with the dead letter of a draft, its message, another message, and a chain that proves the ends of
    both: never, and executed.
    """
    chain = ProvedChain()
    draft = MessageDraft(an_account(1), primes_body(10), 30)
    left = read_message(draft.stamped(START_MS).encode(), takes_cells=False)
    taken = a_message(2)
    chain.maker.expect(left)
    chain.maker.expect(taken)
    chain.carry_out(taken)
    chain.pass_time(START_MS + 31_000)
    (tmp_path / "genesis.tl").write_bytes(chain.genesis.encode())
    one = msgspec.structs.replace(
        record(1, tier=Tier.ACKED, topic=MESSAGES_TOPIC), payload=draft.encode(), stamped_ms=START_MS
    )
    return make_outbox(tmp_path / "outbox", [one], [buried(one)]), left, taken, chain


def replay_with_proof(outbox: Path, content: bytes) -> int:
    """Replay the dead letter with a proof, where no node is."""
    proof = outbox.parent / "proof.json"
    proof.write_bytes(content)
    if not (outbox.parent / "keys").exists():
        make_keys(outbox.parent / "keys", start_kes_period=0, issue_number=0)
    node = ("--socket", outbox.parent / "none", "--network-magic", 77, "--timeout", "50ms")
    proved = ("--proof", proof, "--chain-genesis", outbox.parent / "genesis.tl")
    where = ("--outbox", outbox, "--keys", outbox.parent / "keys")
    return run("queue", "replay", "01010101", *where, *node, *proved)


def stamp_of(outbox: Path) -> int:
    """Return the stamp of the only message in the outbox, live or dead."""
    content = read_outbox(outbox)
    (found,) = [*content.records, *(one.record for one in content.dead_letters)]
    return found.stamped_ms


def test_a_draft_is_shown_with_the_id_that_was_sent(
    expired: tuple[Path, ReadMessage, ReadMessage, ProvedChain], capsys: pytest.CaptureFixture[str]
) -> None:
    outbox, left, _, _ = expired
    assert run("queue", "show", "01010101", "--outbox", outbox, "--json") == 0
    assert json.loads(capsys.readouterr().out)["external_id"] == left.external.message_id.hex()


def test_a_draft_is_stamped_again_with_the_proof_of_never_alone(
    expired: tuple[Path, ReadMessage, ReadMessage, ProvedChain], capsys: pytest.CaptureFixture[str]
) -> None:
    outbox, left, taken, chain = expired
    altered = chain.file(left).replace(b"0a", b"0b", 1)
    other_id = chain.file(taken).replace(
        taken.external.message_id.hex().encode(), left.external.message_id.hex().encode(), 1
    )
    for content in (chain.file(taken), altered, other_id, b"{}"):
        assert replay_with_proof(outbox, content) != 0
        assert "the proof is refused" in capsys.readouterr().err
        assert stamp_of(outbox) == START_MS
    assert replay_with_proof(outbox, chain.file(left)) == 1  # no node is there to take it
    assert "the proof is refused" not in capsys.readouterr().err
    assert stamp_of(outbox) == 0
    assert run("queue", "replay", "--all", "--proof", "p", "--chain-genesis", "g", "--outbox", outbox) == 2
