"""`stagepost send --tier`, `queue flush|replay` and `listen --ack` against a small node on a real Unix socket."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.cli import main as command
from stagepost.delivery import (
    AckType,
    DmqTransport,
    Message,
    NackReason,
    Receiver,
    Reject,
    ReliablePublisherConfig,
)
from stagepost.delivery.envelope import read_ack_envelope
from stagepost.delivery.stores.outbox_rules import OutboxLimits
from stagepost.delivery.stores.outbox_stores import SqliteOutbox
from stagepost.delivery.stores.reading import check_outbox, read_outbox
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.outcome import rejected
from stagepost.errors import ErrorCode
from stagepost.ground.crypto.hashing import format_pool_id, pool_id
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC
from stagepost.ground.net.version_data import NETWORK_MAGICS
from stagepost.topics.log.file_topic import open_topic
from tests.worlds.delivery.outbox_records import a_dead, a_record, filled
from tests.worlds.dmq.background_node import a_status, node_in_background, status_page
from tests.worlds.dmq.small_node import MAGIC, SmallNode
from tests.worlds.ground.damaged_files import change_row

STARTED_WITHIN_S = 120.0
QUICK = ("--ack-timeout", "300ms", "--max-retries", "0")


@pytest.fixture(autouse=True)
def _core_dump_limit_is_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


class Place:
    """A folder with keys of a sender and a receiver, an outbox, and room for a node's socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "node.socket"
        self.outbox = folder / "outbox"
        make_keys(folder / "alice", start_kes_period=0, issue_number=0)
        issued = make_keys(folder / "bob", start_kes_period=0, issue_number=0)
        self.bob = format_pool_id(pool_id(issued.cold_verification_key))

    def _node(self) -> list[str]:
        return ["--socket", str(self.socket), "--network-magic", str(MAGIC)]

    def send(self, *arguments: object) -> int:
        keys = ["--keys", str(self.folder / "alice")]
        return command.run(["send", "hello", *keys, *self._node(), *map(str, arguments)])

    def queue(self, verb: str, *arguments: object) -> int:
        keys = ["--keys", str(self.folder / "alice"), "--outbox", str(self.outbox)]
        return command.run(["queue", verb, *keys, *self._node(), *map(str, arguments)])

    def listen(self, *arguments: object) -> int:
        keys = ["--keys", str(self.folder / "bob")]
        return command.run(["listen", "--ack", *keys, *self._node(), *map(str, arguments)])

    @contextmanager
    def receiving(self, handler: Callable[[Message], None]) -> Iterator[None]:
        """Bob, in a thread with a loop of its own."""
        started, loop = threading.Event(), asyncio.new_event_loop()
        ended = asyncio.Event()

        async def receive() -> None:
            async with (
                DmqTransport(self.socket, MAGIC, self.folder / "bob") as transport,
                Receiver(transport, {"default": handler}),
            ):
                started.set()
                await ended.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(receive()))
        thread.start()
        try:
            assert started.wait(STARTED_WITHIN_S)
            yield
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join(STARTED_WITHIN_S)
            loop.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def node(place: Place) -> Iterator[SmallNode]:
    with node_in_background(place.socket) as started:
        yield started


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_best_effort_is_told_when_the_node_has_it(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.send("--tier", "best-effort") == 0

    assert re.fullmatch(r"sent     [0-9a-f]{8}…[0-9a-f]{6}   the node holds it\n", capsys.readouterr().out)
    assert len(node.messages) == 1


def test_best_effort_without_a_node_or_without_peers_fails_and_says_which(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.send("--tier", "best-effort") == 3
    first, *_, code = capsys.readouterr().err.splitlines()
    assert first.endswith(f"{place.socket}: there is no such socket")
    assert code == "NO_CONNECTED_PEERS"

    with (
        node_in_background(place.socket) as node,
        status_page(
            place.socket.parent, lambda _: (200, json.dumps(a_status(peers=[])).encode()), str(place.socket)
        ),
    ):
        assert place.send("--tier", "best-effort") == 3
        assert "the node runs, but no peer is connected to it" in capsys.readouterr().err
        assert node.messages == []


def test_peers_are_counted_where_the_node_tells(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    status = json.dumps(a_status()).encode()
    with (
        node_in_background(place.socket),
        status_page(place.socket.parent, lambda _: (200, status), str(place.socket)),
    ):
        assert place.send("--tier", "best-effort") == 0
    assert capsys.readouterr().out.endswith("   1 peer\n")


def test_queued_is_stored_then_sent_and_the_books_balance(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.send("--tier", "queued", "--outbox", place.outbox, "--json") == 0

    *_, last = objects(capsys.readouterr().out)
    assert last["status"] == "Sent"
    check = check_outbox(place.outbox)
    assert (check.is_sound, check.live, check.totals.sent_final) == (True, 0, 1)
    reader = open_topic(place.outbox, DELIVERY_EVENTS_TOPIC).reader()
    events = [record for batch in reader.batches(0, 0) for record in batch]
    values = [json.loads(event.value or b"") for event in events]
    assert [value["status"] for value in values] == ["Pending", "Sent"]
    assert {event.key for event in events} == {last["delivery_id"].encode()}
    assert values[-1]["dmq_id"] == node.messages[0].message_id.hex()


def test_queued_waits_without_a_node_and_goes_with_the_flush(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.send("--tier", "queued", "--outbox", place.outbox, "--timeout", "50ms") == 1
    output = capsys.readouterr()
    assert output.out.startswith("queued ")
    assert "not sent within 50 ms: cannot connect to " in output.err
    assert f"stagepost queue flush --outbox {place.outbox} --keys " in output.err

    assert place.queue("flush", "--timeout", "50ms") == 1
    assert capsys.readouterr().out.startswith("1 still waiting after 50 ms: cannot connect to ")
    with node_in_background(place.socket) as node:
        assert place.queue("flush") == 0
        assert len(node.messages) == 1
        sent, summary = capsys.readouterr().out.splitlines()
        assert sent.startswith("sent ")
        assert summary == "1 sent"
        assert place.queue("flush") == 0
        assert capsys.readouterr().out == "nothing was waiting\n"


def test_wait_queued_ends_as_soon_as_it_is_stored(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.send("--tier", "queued", "--wait", "queued", "--outbox", place.outbox) == 0
    assert "   send it with: stagepost queue flush --outbox " in capsys.readouterr().out
    assert len(read_outbox(place.outbox).records) == 1


def test_same_key_is_one_message(place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert place.send("--tier", "queued", "--outbox", place.outbox, "--key", "order 7") == 0

    first, second = capsys.readouterr().out.splitlines()
    assert second == first.removesuffix("the node holds it") + "already, with the same --key"
    assert len(node.messages) == 1


def test_acked_names_who_acknowledged_and_how_long_it_took(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Message] = []
    with place.receiving(heard.append):
        assert place.send("--tier", "acked", "--critical", place.bob) == 0

    _, acked = capsys.readouterr().out.splitlines()
    shown = f"{place.bob[:10]}…{place.bob[-4:]}"
    pattern = rf"acked    [0-9a-f]{{8}}…[0-9a-f]{{6}}   by {shown} after \S+ m?s \(the only critical peer\)"
    assert re.fullmatch(pattern, acked), acked
    assert [message.data for message in heard] == [b"hello"]


def test_silence_is_exit_1_and_a_dead_letter_that_can_be_replayed(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.send("--tier", "acked", "--critical", place.bob, *QUICK, "--outbox", place.outbox) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[0].endswith(": 0 of 1 acknowledgements came in time")
    assert error[1] == f"  no answer from {place.bob[:10]}…{place.bob[-4:]}"
    assert error[-1] == "ACK_TIMEOUT"
    (letter,) = read_outbox(place.outbox).dead_letters
    prefix = letter.record.delivery_id.hex()[:8]

    heard: list[Message] = []
    with place.receiving(heard.append):
        assert place.queue("replay", prefix) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "1 acked"
        assert place.queue("replay", prefix) == 1, "it is no dead letter any more"
    assert [message.message_id for message in heard] == [letter.record.delivery_id.hex()]
    check = check_outbox(place.outbox)
    assert (check.is_sound, check.live, check.dead_letters) == (True, 0, 0)


def test_sending_over_a_damaged_outbox_says_what_became_of_it(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new message is accepted, the whole rows are kept, and people hear of the row that is not."""
    records = [a_record(1), a_record(2)]
    filled(place.outbox, records, [a_dead(records[0])])
    change_row(place.outbox / "outbox.sqlite", "UPDATE dead_letters SET checksum = x'00'")

    assert place.send("--tier", "queued", "--outbox", place.outbox) == 0

    assert "a row of dead_letters was set aside" in capsys.readouterr().err


def test_a_file_that_is_no_outbox_is_not_sent_over(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    place.outbox.mkdir(mode=0o700)
    (place.outbox / "outbox.sqlite").write_bytes(b"these are my notes" * 500)

    assert place.send("--tier", "queued", "--outbox", place.outbox) == 3

    assert "it is not a SQLite database" in capsys.readouterr().err
    assert (place.outbox / "outbox.sqlite").read_bytes() == b"these are my notes" * 500
    assert node.messages == []


def test_flushing_a_damaged_outbox_sends_the_rest_and_is_exit_3(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [msgspec.structs.replace(a_record(number), ackers=(), required=0) for number in (1, 2)]
    filled(place.outbox, records, [a_dead(records[0])])
    change_row(place.outbox / "outbox.sqlite", "UPDATE dead_letters SET checksum = x'00'")

    assert place.queue("flush") == 3

    assert len(node.messages) == 1
    assert "damage: a row of dead_letters was set aside" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["--all", "ID", "ID@PLACE of each"])
def test_every_copy_of_a_message_that_failed_twice_can_be_replayed(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for _ in range(2):
        arguments = ("--tier", "acked", "--critical", place.bob, *QUICK, "--outbox", place.outbox)
        assert place.send(*arguments, "--key", "order 7") == 1
    letters = read_outbox(place.outbox).dead_letters
    (message_id,) = {letter.record.delivery_id.hex() for letter in letters}
    assert len({letter.record.sequence for letter in letters}) == 2
    names = {
        "--all": ["--all"],
        "ID": [message_id],
        "ID@PLACE of each": [f"{message_id}@{letter.record.sequence}" for letter in letters],
    }[name]

    heard: list[Message] = []
    with place.receiving(heard.append):
        for left, one in zip(range(len(names) - 1, -1, -1), names, strict=True):
            capsys.readouterr()
            assert place.queue("replay", one) == 0, capsys.readouterr().err
            assert capsys.readouterr().out.splitlines()[-1] == "1 acked"
            assert len(read_outbox(place.outbox).dead_letters) == left

    assert [message.message_id for message in heard] == [message_id], "receivers handle it once"
    check = check_outbox(place.outbox)
    assert (check.is_sound, check.live, check.dead_letters) == (True, 0, 0)


def test_copies_that_ask_for_other_confirmations_are_replayed_one_after_the_other(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--tier", "acked", *QUICK, "--outbox", place.outbox, "--key", "order 7")
    assert place.send(*arguments, "--critical", place.bob) == 1
    assert place.send(*arguments, "--critical", place.bob, "--critical", "ab" * 28) == 1
    assert len(read_outbox(place.outbox).dead_letters) == 2

    capsys.readouterr()
    with place.receiving(lambda message: None):
        assert place.queue("replay", "--all") == 0, capsys.readouterr().err

    assert capsys.readouterr().out.splitlines()[-1] == "2 acked"
    assert read_outbox(place.outbox).dead_letters == ()


def test_a_dead_letter_that_is_no_longer_kept_is_named(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program may keep more dead letters than commands do: those cannot be replayed here, and that is said."""
    kept = ReliablePublisherConfig().dead_letters_max
    records = [a_record(number) for number in range(1, kept + 2)]
    limits = OutboxLimits(dead_letters_max=kept + 1)

    async def fill() -> None:
        outbox = SqliteOutbox(place.outbox, fsync="off", limits=limits)
        await asyncio.gather(*map(outbox.insert, records))
        for record in records:
            outbox.mark(a_dead(record))
        await outbox.close()

    asyncio.run(fill())
    oldest = records[0].delivery_id.hex()

    assert place.queue("replay", oldest) == 1

    assert f"dead letter {oldest}@1 was not replayed" in capsys.readouterr().err
    assert node.messages == []


def test_refusal_by_the_receiver_gives_its_reason(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(message: Message) -> None:
        raise Reject(NackReason.UNAUTHORISED)

    with place.receiving(refuse):
        assert place.send("--tier", "acked", "--critical", place.bob, "--json") == 1
    failed = objects(capsys.readouterr().out)[-1]
    assert (failed["status"], failed["error"], failed["code"]) == ("Failed", "ErrNacked", "NO_QUORUM")
    assert list(failed["nacked_by"].values()) == ["unauthorised"]


def test_refusal_by_the_node_is_exit_1_with_its_code(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = rejected(ErrorCode.POOL_UNKNOWN, "pool is not in the stake distribution")
    with node_in_background(place.socket, refusal=refusal):
        assert place.send("--tier", "queued", "--outbox", place.outbox) == 1

    lines = capsys.readouterr().err.splitlines()
    assert "pool is not in the stake distribution" in lines[0]
    assert lines[-1] == "POOL_UNKNOWN"


def test_keys_that_cannot_sign_are_named_and_the_message_is_kept(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    mainnet = NETWORK_MAGICS["mithril-mainnet"]  # whose periods are known: these keys ended long ago
    with node_in_background(place.socket, magic=mainnet) as node:
        magic = ["--network-magic", mainnet]
        assert place.send("--tier", "queued", "--outbox", place.outbox, "--timeout", "300ms", *magic) == 1
        output = capsys.readouterr()
        assert "cannot sign: " in output.out
        assert re.search(r"not sent within 300 ms: .*cannot sign: .* ended on \d{4}-\d\d-\d\d", output.err)
        assert place.queue("flush", "--timeout", "300ms", *magic) == 1
        assert "1 still waiting after 300 ms: cannot sign: " in capsys.readouterr().out
        assert place.send("--tier", "best-effort", *magic) == 1
        assert "cannot sign: " in capsys.readouterr().err
        assert node.submissions == 0
    (record,) = read_outbox(place.outbox).records
    assert record.attempts == 0


def test_outbox_of_another_program_is_left_alone(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def occupied() -> int:
        store = SqliteOutbox(place.outbox)
        try:
            return await asyncio.to_thread(place.send, "--tier", "queued", "--outbox", place.outbox)
        finally:
            store.load()
            await store.close()

    assert asyncio.run(occupied()) == 3
    assert "in use by process" in capsys.readouterr().err


def test_settings_file_names_critical_peers_and_flags_win(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place.folder / "settings.toml"
    file.write_text(
        f'[delivery]\ncritical_peers = ["{place.bob}"]\nack_timeout_s = 0.2\nmax_retries = 0\nqueue_size = 1\n'
        f'[contexts.more]\ndelivery.critical_peers = ["{place.bob}", "{"ab" * 28}"]\ndelivery.require_all_acks = true\n'
    )
    with place.receiving(lambda message: None):
        assert place.send("--tier", "acked", "--config", file, "--ack-timeout", "20s") == 0
        assert "(the only critical peer)" in capsys.readouterr().out
        assert place.send("--tier", "acked", "--config", file, "--context", "more", "--require", "any",
                          "--ack-timeout", "20s") == 0  # fmt: skip
        assert "(any of 2 critical peers)" in capsys.readouterr().out
    assert place.send("--tier", "acked", "--config", file, "--context", "more") == 1
    assert "0 of 2 acknowledgements" in capsys.readouterr().err
    assert place.send("--tier", "queued", "--config", file, "--wait", "queued", "--outbox", place.outbox) == 0
    assert command.run(["check", "--outbox", str(place.outbox)]) == 2, "the outbox itself says what fits"
    assert "outbox 1 of 1, " in capsys.readouterr().out


def test_bad_settings_file_is_told_with_its_place(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    file = place.folder / "settings.toml"
    file.write_text('[delivery]\ncritical_peers = ["relay-1"]\n')

    assert place.send("--tier", "acked", "--config", file) == 2
    assert (
        f'{file}: 1 problem\n  delivery.critical_peers   expected a pool id, as pool1… or 56 hex digits, found "relay-1"'
        in capsys.readouterr().err
    )
    make = place.send("--tier", "queued", "--wait", "queued", "--outbox", place.outbox)
    assert make == 0
    assert command.run(["check", "--outbox", str(place.outbox), "--config", str(file)]) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--config", "x"], "--config needs --tier"),
        (["--wait", "sent"], "--wait needs --tier"),
        (["--outbox", "x"], "--outbox needs --tier"),
        (["--require", "all"], "--require needs --tier"),
        (["--tier", "acked"], "--tier acked needs --critical"),
        (["--tier", "acked", "--critical", "relay-1"], "is not a pool id"),
        (["--tier", "acked", "--critical", "ab" * 28, "--require", "2"], "--require 2 cannot be reached"),
        (["--tier", "acked", "--critical", "ab" * 28, "--require", "most"], "is not a valid number of peers"),
        (["--tier", "acked", "--critical", "ab" * 28, "--wait", "sent"], "cannot wait for sent"),
        (["--tier", "queued", "--critical", "ab" * 28], "--critical needs --tier acked"),
        (["--tier", "best-effort", "--wait", "queued"], "cannot wait for queued"),
        (["--tier", "queued", "--raw"], "--raw cannot be used with --tier"),
        (["--tier", "queued", "--topic", "/dep2p/sys/ack/1.0.0"], "are reserved"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    arguments: list[str],
    text: str,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place.folder)

    assert place.send(*arguments) == 2
    assert text in capsys.readouterr().err


def test_listener_acknowledges_what_it_shows_and_not_what_is_meant_for_others(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    listened: list[int] = []
    inbox = place.folder / "inbox"

    def listen() -> None:
        listened.append(place.listen("--topic", "default", "--count", "1", "--inbox", inbox, "--json"))

    thread = threading.Thread(target=listen)
    thread.start()
    assert place.send("--tier", "acked", "--critical", place.bob, "--json") == 0
    thread.join(STARTED_WITHIN_S)
    assert listened == [0]
    shown = [one for one in objects(capsys.readouterr().out) if "payload_base64" in one]
    assert [(one["topic"], one["attempt"]) for one in shown] == [("default", 0)]

    assert place.listen("--topic", "default", "--count", "1", "--until-idle", "200ms", "--inbox", inbox) == 1
    assert capsys.readouterr().out == "", "what was shown before the restart is not shown again"
    assert place.send("--tier", "acked", "--critical", place.bob, "--topic", "other", *QUICK) == 1
    assert place.listen("--topic", "default", "--until-idle", "200ms") == 0
    answers = [read_ack_envelope(one.body) for one in node.messages if one.body[1:3] == b"\x01\x01"]
    assert [
        receipt for answer in answers for receipt in answer.receipts if receipt.ack_type is not AckType.ACK
    ] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ack"], "--ack needs --keys"),
        (["--ack", "--keys", "k"], "--ack needs --topic"),
        (["--ack", "--keys", "k", "--topic", "t", "--since", "5m"], "--since cannot be used with --ack"),
        (["--keys", "k"], "--keys is for --ack"),
        (["--inbox", "i"], "--inbox is for --ack"),
    ],
)
def test_options_of_acknowledging_must_fit(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["listen", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_node_of_another_network_is_told_as_such(
    place: Place, node: SmallNode, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["send", "hi", "--tier", "best-effort"], ["listen", "--ack", "--topic", "t"]):
        keys = ["--keys", str(place.folder / "alice"), "--socket", str(place.socket)]
        assert command.run([*arguments, *keys, "--network-magic", "7"]) in (1, 3)
        error = capsys.readouterr().err
        assert str(MAGIC) in error
        assert "7" in error


def test_listener_without_a_node_is_exit_3(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.listen("--topic", "default") == 3
    assert f"{place.socket}: there is no such socket" in capsys.readouterr().err


def test_replay_wants_one_or_all(place: Place) -> None:
    assert place.queue("replay") == 2
    assert place.queue("replay", "0123abcd", "--all") == 2
