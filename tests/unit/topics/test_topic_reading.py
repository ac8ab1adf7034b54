"""Topics read from a running server: the same records as the files hold, bounded replies, and who may ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import cbor2
import pytest

from stagepost.errors import (
    ConfigError,
    DecodeError,
    ErrorCode,
    HandshakeRefused,
    StorageError,
    TransportError,
)
from stagepost.ground.net.network import Address, TcpAddress, UnixAddress, is_on_this_machine, parse_address
from stagepost.ground.wire.codec import Codec
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.remote import protocol
from stagepost.topics.remote.protocol import TOPIC_READING, codec_table, is_proof, proof_of
from stagepost.topics.remote.server import TOKEN_CHARACTERS_MIN, serve_topics
from stagepost.topics.topic import Record
from tests.worlds.topics.topic_records import NAME, a_topic, a_writer, append_now, odd_record
from tests.worlds.topics.topic_serving import LOOPBACK, served

TOKEN = "t" * TOKEN_CHARACTERS_MIN


def test_every_range_is_what_the_files_hold_whoever_asks_and_however_often(
    tmp_path: Path, run_seed: int
) -> None:
    chance = Random(run_seed)
    topic = a_topic(tmp_path, partitions=2)
    writer = a_writer(topic)
    for _ in range(6):
        append_now(writer, [odd_record(chance, number) for number in range(chance.randrange(1, 60))])
    writer.close_now()
    reader = topic.reader()

    with served(tmp_path) as connected, connected() as topics:
        bounds = {(one.topic, one.partition): (one.start, one.end) for one in topics.bounds()}
        for partition in range(2):
            end = reader.end_offset(partition)
            assert bounds[NAME, partition] == (reader.start_offset(partition), end)
            for _ in range(5):
                first, last = sorted(chance.randrange(end + 1) for _ in range(2))
                here = [read for batch in reader.batches(partition, first, last) for read in batch]
                there = [read for reads in topics.records(NAME, partition, first, last) for read in reads]
                assert there == here


def test_a_reply_is_bounded_by_records_and_by_bytes_and_one_record_always_fits(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    many = protocol.RECORDS_MAX + 1
    append_now(writer, [Record(b"k", b"", {}, 1)] * many)
    large = Record(b"k" * 1_024, b"v" * 65_536, {"h": "x" * 4_000}, 2**63 - 1)
    append_now(writer, [large] * 5)
    writer.close_now()

    with served(tmp_path) as connected, connected() as topics:
        replies = [len(reads) for reads in topics.records(NAME, 0, 0, many)]
        assert replies == [protocol.RECORDS_MAX, 1]
        parts = list(topics.records(NAME, 0, many, many + 5))
        assert [len(reads) for reads in parts] == [3, 2]
        assert parts[0][0].value == large.value
        assert parts[0][0].timestamp_ms == 2**63 - 1


def test_what_is_not_there_in_full_is_told_and_the_conversation_goes_on(tmp_path: Path) -> None:
    topic = a_topic(tmp_path)
    writer = a_writer(topic)
    append_now(writer, [Record(b"k", b"v")])
    writer.close_now()

    with served(tmp_path) as connected, connected() as topics:
        with pytest.raises(StorageError, match="the log ends at 1"):
            list(topics.records(NAME, 0, 0, 2))
        with pytest.raises(StorageError, match="there is no topic nowhere") as caught:
            list(topics.records("nowhere", 0, 0, 2))
        assert caught.value.code is ErrorCode.CONFIG_INVALID
        with pytest.raises(StorageError, match="has partitions 0 to 0"):
            list(topics.records(NAME, 1, 0, 2))
        assert len(topics.bounds()) == 1


def test_only_who_knows_the_token_is_answered(tmp_path: Path) -> None:
    create_topic(tmp_path, NAME)
    with served(tmp_path, token=TOKEN) as connected:
        with connected(TOKEN) as topics:
            assert len(topics.bounds()) == 1
        with connected() as topics, pytest.raises(ConfigError, match="need a token"):
            topics.bounds()
        with (
            connected("another token") as topics,
            pytest.raises(HandshakeRefused, match="the token is not") as caught,
        ):
            topics.bounds()
        assert caught.value.code is ErrorCode.CONFIG_INVALID
    nonce = bytes(range(32))
    assert is_proof(proof_of(TOKEN, nonce), TOKEN, nonce)
    assert not is_proof(proof_of(TOKEN, nonce), TOKEN, bytes(32))


def test_a_unix_socket_serves_its_owner(tmp_path: Path) -> None:
    create_topic(tmp_path, NAME)
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    with served(tmp_path, UnixAddress(folder / "topics.socket")) as connected, connected() as topics:
        assert [one.topic for one in topics.bounds()] == [NAME]


def test_an_address_for_everybody_needs_a_token_and_a_token_needs_its_length(tmp_path: Path) -> None:
    for address in ("0.0.0.0:0", "[::]:0", "node.example:4200"):
        with pytest.raises(ConfigError, match="without a token everybody"):
            asyncio.run(serve_topics(tmp_path, parse_address(address)))
    with pytest.raises(ConfigError, match="can be guessed"):
        asyncio.run(serve_topics(tmp_path, LOOPBACK, token=TOKEN[1:]))


def test_a_node_that_went_away_is_asked_again_until_patience_ends(tmp_path: Path) -> None:
    slept: list[float] = []
    with served(tmp_path) as connected:
        topics = connected()
        assert topics.bounds() == ()
        patient = connected(sleep=slept.append)
        patient._patience_s = 1.0
    for client in (topics, patient):
        with client, pytest.raises(TransportError):
            client.bounds()
    assert 1.0 <= sum(slept) < 1.5


@pytest.mark.parametrize(
    ("text", "found", "is_here"),
    [
        ("127.0.0.1:42", TcpAddress("127.0.0.1", 42), True),
        ("localhost:0", TcpAddress("localhost", 0), True),
        ("[::1]:65535", TcpAddress("::1", 65_535), True),
        ("192.0.2.1:42", TcpAddress("192.0.2.1", 42), False),
        ("./a:b", UnixAddress(Path("a:b")), True),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, found: Address, is_here: bool) -> None:
    assert parse_address(text) == found
    assert is_on_this_machine(found) is is_here


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:65536", "::1:5", "ho st:1", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid address"):
        parse_address(text)


# The protocol itself

RECORD = protocol.SentRecord(5, (b"k",), (), b"{}")
WRITTEN: list[tuple[str, Any, list[Any]]] = [
    ("Opening", protocol.Open(1), [0, 1]),
    ("Challenging", protocol.Challenge(bytes(32), True), [1, bytes(32), True]),
    ("Challenging", protocol.Refuse("A", "b"), [4, "A", "b"]),
    ("Proving", protocol.ProveKey(bytes(32)), [2, bytes(32)]),
    ("Judging", protocol.Opened(), [3]),
    ("Idle", protocol.AskBounds(), [5]),
    ("Listing", protocol.Bounds((protocol.PartitionBounds("t", 1, 2, 3),)), [6, [["t", 1, 2, 3]]]),
    ("Idle", protocol.AskRange("t", 1, 2, 3), [7, "t", 1, 2, 3]),
    ("Reading", protocol.Records((RECORD,)), [8, [[5, [b"k"], [], b"{}"]]]),
    ("Reading", protocol.Unavailable("A", "b", "c"), [9, "A", "b", "c"]),
    ("Idle", protocol.Done(), [10]),
]


@pytest.mark.parametrize(("state", "message", "plain"), WRITTEN)
def test_messages_are_plain_cbor_and_are_read_back(state: str, message: Any, plain: list[Any]) -> None:
    codec = Codec(codec_table(), protocol.DIALECT.name)
    data = codec.encode(message)
    assert cbor2.loads(data) == plain
    assert codec.decode(data, state) == message


def test_every_message_was_looked_at_and_every_state_can_be_reached_and_left() -> None:
    assert {type(message) for _, message, _ in WRITTEN} == set(TOPIC_READING.messages)
    assert [state.name for state in TOPIC_READING.states if state.speaker is None] == ["Done"]
    reached = {TOPIC_READING.initial}
    for _ in TOPIC_READING.states:
        reached |= {edge.target for edge in TOPIC_READING.edges if edge.source in reached}
    assert reached == set(TOPIC_READING.states)


def test_the_largest_reply_fits_and_one_record_more_does_not() -> None:
    codec = Codec(codec_table(), protocol.DIALECT.name)
    full = protocol.Records(
        (protocol.SentRecord(2**63 - 1, (b"k" * 40,), (b"v" * 60,), b"h" * 31),) * protocol.RECORDS_MAX
    )
    data = codec.encode(full)
    framer = Framer()
    framer.feed(data)
    assert framer.next_item(ItemLimits(protocol.REPLY_BYTES_MAX, protocol.ITEMS_MAX)) == data
    assert codec.decode(data, "Reading") == full
    more = codec.encode(protocol.Records((RECORD,) * (protocol.RECORDS_MAX + 1)))
    with pytest.raises(DecodeError):
        codec.decode(more, "Reading")
    assert protocol.CONTENT_BYTES_MAX + 80_000 + 40 * protocol.RECORDS_MAX < protocol.REPLY_BYTES_MAX
