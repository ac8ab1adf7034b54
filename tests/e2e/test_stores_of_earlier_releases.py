"""Data folders that released revisions wrote: the current code opens each of them, and nothing is lost.

The folders lie in `tests/vectors/stores/<version>`; `expected.json` beside each says what that revision read from it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from stagepost.chain.node.reading import read_chain
from stagepost.chain.node.store import open_chain_store
from stagepost.cli.main import run
from stagepost.delivery.identity import nonce_of_key
from stagepost.delivery.stores.inbox_stores import SqliteInbox
from stagepost.delivery.stores.reading import check_outbox
from stagepost.delivery.transports.memory import MemoryNetwork
from stagepost.devnet.devnet import devnet, genesis_of
from stagepost.devnet.messages import StatusBook
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted, Outcome, Reason, Rejected
from stagepost.errors import ConfigError, ConfigFaults, ErrorCode
from stagepost.full_node.network import load_network
from stagepost.ground.storage.layout import StoreRefused
from stagepost.ground.storage.owned_folder import LOCK_FILE
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.consumer import Consumer
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import Record
from stagepost.validator.session_store import open_session_store
from tests.e2e.stored_contents import (
    DATA,
    VECTORS,
    Values,
    chain_contents,
    delivery_contents,
    devnet_contents,
    dmq_contents,
    expected,
    private_copy,
    tables_contents,
    topics_contents,
)
from tests.e2e.stored_worlds import (
    FURTHER,
    LISTENER,
    OPENED_AT_S,
    ORDERS,
    PLAN,
    PUBLISHER,
    RECEIVER,
    REFUSED,
    RENEWED,
    SECOND_LIFE_S,
    SILENT,
    STEADY,
    TOPIC,
    TOPIC_GROUP,
    HandledMessages,
    brief_message,
    delivery_clock,
    expired_messages,
    external_message,
    kept_messages,
    node_at,
    publisher_over,
)
from tests.worlds.dmq.node_processes import NodeProcess, ending, heard
from tests.worlds.dmq.pool_signers import Signer

VERSIONS = sorted(path.name for path in VECTORS.iterdir() if path.is_dir() and path.name[0].isdigit())
DMQ_FOLDERS = ("dmq", "dmq-killed")
"""One of a node that ended in order, one of a node that was killed and left its newest rows in the log of the file."""

WITHIN_S = 60.0
LOOK_EVERY_S = 0.02
LONG_ACK_S = 20.0

Opened = tuple[Path, Values]


def opened(version: str, part: str, tmp_path: Path) -> Opened:
    folder = VECTORS / version / part
    return private_copy(folder / DATA, tmp_path / DATA), expected(folder)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(LOOK_EVERY_S)


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Values]:
    """What a command prints, as JSON lines."""
    capsys.readouterr()
    assert run(arguments) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_last_release_is_among_the_versions() -> None:
    assert {"0.1", "0.2"} <= set(VERSIONS)


# DMQ node


@pytest.mark.parametrize("part", DMQ_FOLDERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_of_a_message_store_is_read(version: str, part: str, tmp_path: Path) -> None:
    data, wanted = opened(version, part, tmp_path)

    found = dmq_contents(data)

    assert found == wanted
    assert {one.message_id.hex() for one in kept_messages()} <= {
        one["message_id"] for one in found["messages"]
    }
    assert not found["damage"]


@pytest.mark.slow
@pytest.mark.parametrize("part", DMQ_FOLDERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_refuses_what_the_earlier_release_had_accepted(
    version: str, part: str, tmp_path: Path
) -> None:
    data, wanted = opened(version, part, tmp_path)
    node = node_at(OPENED_AT_S, data, tmp_path / "pools.json")
    with ending([node]):
        node.start()

        asyncio.run(check_memory(node, wanted))

        assert node.terminate() == 0


async def check_memory(node: NodeProcess, wanted: Values) -> None:
    kept = [bytes.fromhex(one["message_id"]) for one in wanted["messages"]]
    assert await heard(node, set(kept), WITHIN_S) == kept
    async with node.client() as client:
        for message in (*kept_messages(), brief_message(), *expired_messages()):
            # None has expired by the clock, which was set back: the stored floor of time says otherwise.
            reason = Reason.ALREADY_RECEIVED if message.message_id in kept else Reason.EXPIRED
            outcome = await client.submit(message)
            assert isinstance(outcome, Rejected)
            assert outcome.reason is reason
        for signer in (RENEWED[1], *STEADY, SILENT):
            lower = Signer(signer.number, signer.issue_number - 1)
            assert is_lower_certificate(await client.submit(further_message(lower)))
            assert await client.submit(further_message(signer)) == Accepted()


def further_message(signer: Signer) -> DmqMessage:
    """Return a message of a body of its own: an id covers the body, not the signer."""
    tag = 1_000 + 10 * signer.number + signer.issue_number % 10
    return signer.sign(tag, expires_at=SECOND_LIFE_S + 900)


def is_lower_certificate(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejected) and ErrorCode.OPCERT_COUNTER in outcome.text


# Reliable delivery


@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_of_an_outbox_and_an_inbox_is_read(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, wanted = opened(version, "delivery", tmp_path)
    outbox = str(data / "outbox")

    listed = lines_of(capsys, "queue", "ls", "--outbox", outbox, "--json")
    dead = lines_of(capsys, "queue", "ls", "--outbox", outbox, "--dead", "--json")
    (check,) = lines_of(capsys, "queue", "check", "--outbox", outbox, "--json")

    found = delivery_contents(data)
    assert found == wanted
    assert not found["outbox"]["damage"]
    assert not found["inbox"]["damage"]
    records = wanted["outbox"]["records"]
    assert [named(one) for one in listed] == [named(one) for one in records]
    letters = [one["record"] | {"status": "Failed"} for one in wanted["outbox"]["dead_letters"]]
    assert [named(one) for one in dead] == [named(one) for one in letters]
    assert check["live"] == len(records)


def named(entry: Values) -> Values:
    names = ("sequence", "delivery_id", "topic", "tier", "status", "created_ms", "attempts", "critical_peers")
    return {name: entry[name] for name in names}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_publisher_goes_on_with_an_outbox_and_a_receiver_with_its_inbox(
    version: str, tmp_path: Path
) -> None:
    data, wanted = opened(version, "delivery", tmp_path)

    asyncio.run(check_delivery(data, wanted))

    assert check_outbox(data / "outbox").is_sound


async def check_delivery(data: Path, wanted: Values) -> None:
    network, clock = MemoryNetwork(seed=1), delivery_clock(after_s=60.0)
    network.join(LISTENER)
    inbox = SqliteInbox(data / "inbox", clock=clock)
    handled = HandledMessages(inbox)
    handled.may_end.set()
    outbox = wanted["outbox"]
    live = [one["delivery_id"] for one in outbox["records"]]
    letters = [one["record"] for one in outbox["dead_letters"]]
    settled = {one["key_hash"]: one["delivery_id"] for one in outbox["settled"]}
    for record in wanted["inbox"]["records"]:
        if record["is_claimed"]:
            assert not await inbox.claim(record["delivery_id"])
    seen = {one["delivery_id"] for one in wanted["inbox"]["records"]}
    async with (
        handled.receiver(network.join(RECEIVER), clock),
        publisher_over(network.join(PUBLISHER), data / "outbox", clock, LONG_ACK_S) as publisher,
    ):
        assert [one.message_id for one in publisher.dead_letters()] == [one["delivery_id"] for one in letters]
        acked = await publisher.publish_with_ack(ORDERS, b"acknowledged with a key", key="order 1")
        assert acked.message_id == settled[nonce_of_key("order 1").hex()]
        sent = await publisher.publish_queued(ORDERS, b"sent, and nobody was asked", key="order 2")
        assert sent == settled[nonce_of_key("order 2").hex()]
        await until(lambda: not publisher.stats()["queue_len"] and not publisher.stats()["in_flight"])
        assert sorted(handled.ids) == sorted(live)

        for letter in letters:
            await publisher.replay(letter["delivery_id"])
        await until(lambda: not publisher.stats()["queue_len"] and not publisher.stats()["in_flight"])
        again = [one["delivery_id"] for one in letters if one["delivery_id"] not in seen]
        assert sorted(handled.ids) == sorted([*live, *again])
        refused = [one["delivery_id"] for one in letters if one["topic"] == REFUSED]
        assert [one.message_id for one in publisher.dead_letters()] == refused


# Validators and full nodes


BEFORE_NETWORK_VERSIONS = ("0.1",)
"""Releases whose chains no later release continues."""
NETWORK_VERSIONS = [one for one in VERSIONS if one not in BEFORE_NETWORK_VERSIONS]


def files_in(folder: Path) -> dict[str, str]:
    """Return a digest of every file, without the locks that each start makes anew."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_FILE
    }


@pytest.mark.parametrize("version", BEFORE_NETWORK_VERSIONS)
def test_chains_and_sessions_from_before_network_versions_are_refused_whole(
    version: str, tmp_path: Path
) -> None:
    data, wanted = opened(version, "devnet", tmp_path)
    before = files_in(data)
    genesis = genesis_of(PLAN, 0)

    for name in ("", *wanted["validators"]):
        with pytest.raises(StoreRefused, match="before network version 1") as refused:
            open_chain_store(data / name / "chain", genesis)
        assert "data folder of its own" in (refused.value.advice or "")
        if name:
            with pytest.raises(StoreRefused, match="before network version 1"):
                open_session_store(data / name / "sessions")
    with pytest.raises(ConfigFaults, match="before network version 1"):
        load_network(data / "network.json")

    assert files_in(data) == before
    with pytest.raises(StoreRefused, match="before network version 1"):
        read_chain(data / "chain")


@pytest.mark.parametrize("version", BEFORE_NETWORK_VERSIONS)
def test_topics_beside_a_refused_chain_stay_readable(version: str, tmp_path: Path) -> None:
    data, wanted = opened(version, "devnet", tmp_path)

    assert topics_contents(data) == wanted["full_node"]["topics"]


@pytest.mark.parametrize("version", NETWORK_VERSIONS)
def test_every_row_of_validators_and_a_full_node_is_read(version: str, tmp_path: Path) -> None:
    data, wanted = opened(version, "devnet", tmp_path)

    found = devnet_contents(data)

    assert found == wanted
    for member in (found["full_node"], *found["validators"].values()):
        assert member["chain"]["shown"]["blocks"]
        assert not member["chain"]["shown"]["damage"]
    for validator in found["validators"].values():
        assert validator["sessions"]["statements"]
        assert not validator["sessions"]["damage"]


@pytest.mark.slow
@pytest.mark.parametrize("version", NETWORK_VERSIONS)
def test_a_devnet_goes_on_and_ends_what_had_no_end(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, wanted = opened(version, "devnet", tmp_path)
    (statuses,) = wanted["full_node"]["topics"][STATUSES_TOPIC]["partitions"]
    last = statuses["records"][-1]
    unfinished = bytes.fromhex(bytes.fromhex(last["key"]).decode())
    began_s, last_s = time.monotonic(), last["timestamp_ms"] / 1_000
    # Soon after its last status, so that the message without an end is still alive.
    monkeypatch.setattr(time, "time", lambda: last_s + 1.0 + time.monotonic() - began_s)
    book = StatusBook()

    async def go_on() -> None:
        async with devnet(PLAN, data, on_status=book) as network:
            await network.ready(WITHIN_S)
            further = network.full_node.submit(external_message(FURTHER))
            await until(lambda: {further, unfinished} <= book.final)

    asyncio.run(go_on())

    for name, member in (("", wanted["full_node"]), *wanted["validators"].items()):
        before = member["chain"]
        after = chain_contents(data / name / "chain")
        assert after["shown"]["master_height"] > before["shown"]["master_height"]
        assert not after["shown"]["damage"]
    kept = wanted["full_node"]["chain"]["block_digests"]
    assert set(kept) <= set(chain_contents(data / "chain")["block_digests"])


# Topics


@pytest.mark.parametrize("version", VERSIONS)
def test_every_record_and_position_of_a_topic_is_read(version: str, tmp_path: Path) -> None:
    data, wanted = opened(version, "topics", tmp_path)

    found = topics_contents(data)

    assert found == wanted
    assert any(one["start_offset"] > 0 for one in found[TOPIC]["partitions"])
    assert run(["topic", "check", TOPIC, "--data", str(data)]) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_group_goes_on_at_its_position_and_a_writer_at_the_end(version: str, tmp_path: Path) -> None:
    data, wanted = opened(version, "topics", tmp_path)
    partitions, positions = wanted[TOPIC]["partitions"], wanted[TOPIC]["groups"][TOPIC_GROUP]
    ends = [one["end_offset"] for one in partitions]
    unread = [
        (partition, record["offset"])
        for partition, one in enumerate(partitions)
        for record in one["records"]
        if record["offset"] >= positions.get(str(partition), 0)
    ]
    assert 0 < len(unread) < sum(len(one["records"]) for one in partitions)

    async def go_on() -> None:
        topic = open_topic(data, TOPIC)
        writer = topic.writer()
        assert not writer.repairs
        (place,) = await writer.append([Record(b"further", b"record")])
        await writer.close()
        assert place.offset == ends[place.partition]
        consumer = Consumer(topic.reader(), topic.positions(TOPIC_GROUP))
        read: list[tuple[int, int]] = []
        async for batch in consumer.batches():
            read += [(batch.partition, one.offset) for one in batch]
            if len(read) > len(unread):
                break
        assert sorted(read) == sorted([*unread, (place.partition, place.offset)])

    asyncio.run(go_on())


# Tables


FORMER_TABLES = ("0.1",)
"""Releases with tables in a format of their own, which one command takes over."""


@pytest.mark.parametrize("version", VERSIONS)
def test_every_table_is_read_and_its_checkpoint_fits_or_is_told_how_to_be_taken_over(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, wanted = opened(version, "tables", tmp_path)

    if version in FORMER_TABLES:
        with pytest.raises(ConfigError, match="tables of a former release") as refused:
            tables_contents(data)
        assert "stagepost pipeline import" in refused.value.advice
        return

    found = tables_contents(data)

    assert found == wanted
    for name in ("messages", "receipts", "validators", "dmq_messages", "delivery_events"):
        assert found["tables"][name]["rows"]
    (summary,) = lines_of(capsys, "pipeline", "check", "--tables", str(data), "--json")
    assert summary["differences"] == 0
    assert summary["messages"] == len(wanted["verdicts"])
