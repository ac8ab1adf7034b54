"""Which nodes a client finds, and what it sends by way of a DMQ node: best effort, queued and acknowledged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagepost.chain.contracts import primes_body
from stagepost.chain.messages import CanonicalMessage, MessageDraft
from stagepost.client import AsyncClient, Client
from stagepost.client.client import find_places
from stagepost.delivery import (
    DmqTransport,
    ErrAckDisabled,
    ErrConfig,
    Message,
    Receiver,
    ReliablePublisherConfig,
)
from stagepost.delivery.config import OUTBOX_DIR
from stagepost.delivery.envelope import read_data_envelope
from stagepost.delivery.transports.dmq import TTL_S
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.outcome import rejected
from stagepost.errors import ErrorCode, LocalProtocolError, StagepostError, StorageError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.files.running_nodes import DATA_DIR, FullNodeFacts
from stagepost.remp.message import MESSAGES_TOPIC
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.small_node import MAGIC, SmallNode
from tests.worlds.ground.waiting import WITHIN_S, wait_until

FULL_NODE = FullNodeFacts(1, "/full-node.socket", 5, "/sets.json")


def a_note(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"pid": 1, "local_socket": str(folder / "node.socket"), "network_magic": 9}
    (folder / NODE_FILE).write_text(json.dumps(facts))
    return folder


# Finding


def test_a_socket_that_is_given_is_taken_and_its_network_found_in_the_note_if_need_be(tmp_path: Path) -> None:
    assert find_places("a.socket", 7, None, None).network_magic == 7
    found = find_places("a.socket", None, a_note(tmp_path), None)
    assert (found.socket_path, found.network_magic, found.full_node) == (Path("a.socket"), 9, None)


def test_the_usual_folder_is_looked_into_and_may_hold_either_node_or_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=f"no node runs in {DATA_DIR}"):
        find_places(None, None, None, None)
    (tmp_path / DATA_DIR).mkdir()
    FULL_NODE.write(tmp_path / DATA_DIR)
    found = find_places(None, None, None, None)
    assert (found.socket_path, found.full_node) == (None, FULL_NODE)
    a_note(tmp_path / DATA_DIR)
    found = find_places(None, None, None, None)
    assert (found.network_magic, found.full_node) == (9, FULL_NODE)


def test_a_full_node_may_run_elsewhere_and_alone(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    FULL_NODE.write(tmp_path / "full")
    alone = find_places(None, None, None, tmp_path / "full")
    assert (alone.socket_path, alone.full_node) == (None, FULL_NODE)
    both = find_places(None, None, a_note(tmp_path / "dmq"), tmp_path / "full")
    assert (both.socket_path, both.full_node) == (tmp_path / "dmq" / "node.socket", FULL_NODE)
    with pytest.raises(StorageError, match="no full node runs"):
        find_places(None, None, None, tmp_path / "nothing")


# What a client without the one or the other says


def test_a_client_of_a_dmq_node_alone_knows_no_external_messages_and_needs_keys_to_send(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run" / "node.socket"
    with node_in_background(path), Client.connect(path, MAGIC) as client:
        with pytest.raises(LocalProtocolError, match="not connected to a full node"):
            client.wait_for("ab" * 32, "final", timeout_s=1)
        with pytest.raises(LocalProtocolError, match="not connected to a full node"):
            client.trace("ab" * 32)
        with pytest.raises(LocalProtocolError, match="cannot publish"):
            client.send(b"hello")


def test_a_full_nodes_client_neither_submits_nor_listens() -> None:
    from stagepost.dmq.endpoints.local_client import ClientLimits
    from stagepost.ground.loop.clock import SystemClock

    client = AsyncClient(None, ClientLimits(), SystemClock())
    with pytest.raises(LocalProtocolError, match="to a full node only"):
        client.listen()


@pytest.mark.parametrize("wrong", ["", "ab", "zz" * 32, b"short", "ab" * 33])
def test_what_is_no_id_is_said_to_be_none(wrong: str | bytes) -> None:
    from stagepost.full_node.local_client import id_bytes

    with pytest.raises(StagepostError, match="is not a message id"):
        id_bytes(wrong)
    assert id_bytes("ab" * 32) == id_bytes(b"\xab" * 32)


# Sending by way of a DMQ node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    make_keys(tmp_path / "alice", start_kes_period=0, issue_number=0)
    with node_in_background(tmp_path / "run" / "node.socket") as started:
        yield started


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued lies in the working directory unless told otherwise."""
    monkeypatch.chdir(tmp_path)


def test_what_is_queued_is_on_disk_and_the_next_client_sends_it(node: SmallNode, tmp_path: Path) -> None:
    keys = tmp_path / "alice"
    node.refusal = rejected(ErrorCode.QUEUE_FULL, "try again later")
    with Client.connect(node.socket_path, MAGIC, keys=keys) as client:
        client.send(b"five", topic="demo", tier="queued")
    assert (tmp_path / OUTBOX_DIR).is_dir()
    assert not node.messages

    node.refusal = None
    heard: set[bytes] = set()
    with Client.connect(node.socket_path, MAGIC, keys=keys) as client:
        client.send(b"six", topic="demo", tier="queued")
        for message in client.listen():
            envelope = read_data_envelope(message.body)
            assert envelope is not None
            heard.add(envelope.payload)
            if heard == {b"five", b"six"}:
                break


def test_tiers_are_those_of_the_publisher(node: SmallNode, tmp_path: Path) -> None:
    with Client.connect(node.socket_path, MAGIC, keys=tmp_path / "alice") as client:
        best_effort = client.send(b"one", topic="demo")
        assert (best_effort.message_id, best_effort.tier) == (None, "best-effort")
        queued = client.send(b"two", topic="demo", tier="queued", key="k")
        assert queued.message_id == queued.delivery_id is not None
        again = client.send(b"two", topic="demo", tier="queued", key="k")
        assert again.delivery_id == queued.delivery_id
        with pytest.raises(ErrAckDisabled):
            client.send(b"three", topic="demo", tier="acked")
        # The queue is in memory, so that a close would drop a message that the node does not have yet.
        wait_until(lambda: len(node.messages) == 2)
    bodies = [read_data_envelope(message.body) for message in node.messages]
    assert sorted(body.payload for body in bodies if body is not None) == [b"one", b"two"]


def test_a_mistake_of_the_caller_is_named_before_anything_is_sent(node: SmallNode, tmp_path: Path) -> None:
    send: Any
    with Client.connect(node.socket_path, MAGIC, keys=tmp_path / "alice") as client:
        send = client.send
        with pytest.raises(ErrConfig, match="content of a message is int, expected bytes"):
            send(5)
        with pytest.raises(ErrConfig, match="expected 'best-effort', 'queued', 'acked' or None"):
            send(b"x", tier="at-least-once")
        for tier in (None, "best-effort"):
            with pytest.raises(ErrConfig, match="only tiers that store a message know it again"):
                send(b"x", tier=tier, key="order-17")


FORKING = """
import os, sys
from stagepost.client import Client
from stagepost.errors import LocalProtocolError

with Client.connect(sys.argv[1], int(sys.argv[2]), keys=sys.argv[3]) as client:
    if (child := os.fork()) == 0:
        try:
            client.send(b"of the child", topic="demo")
        except LocalProtocolError as error:
            client.close()
            os._exit(7 if "connect in each process" in error.advice else 8)
        os._exit(9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    client.send(b"of the parent", topic="demo")
sys.exit(code)
"""


def test_a_forked_process_is_told_to_connect_and_its_parent_goes_on(node: SmallNode, tmp_path: Path) -> None:
    """The thread of the client is not there after a fork; before, the child waited for ever."""
    words = [str(node.socket_path), str(MAGIC), str(tmp_path / "alice")]
    program = [sys.executable, "-W", "ignore", "-c", FORKING, *words]
    done = subprocess.run(program, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    bodies = [read_data_envelope(message.body) for message in node.messages]
    assert [body.payload for body in bodies if body is not None] == [b"of the parent"]


def test_a_stage_that_there_is_not_is_named(node: SmallNode, tmp_path: Path) -> None:
    wait: Any
    with Client.connect(node.socket_path, MAGIC, keys=tmp_path / "alice") as client:
        wait = client.wait_for
        with pytest.raises(
            LocalProtocolError, match=r"'finished', expected one of queued, .*, final, stored"
        ):
            wait("ab" * 32, "finished")


def test_an_external_message_by_way_of_dmq_keeps_its_own_id(node: SmallNode, tmp_path: Path) -> None:
    from hashlib import sha256

    message = CanonicalMessage(bytes(32), primes_body(10), 2_000_000_000).encode()
    with Client.connect(node.socket_path, MAGIC, keys=tmp_path / "alice") as client:
        sent = client.send(message, topic=MESSAGES_TOPIC, tier="queued")
        assert sent.message_id == sha256(message).hexdigest()
        assert sent.delivery_id not in (None, sent.message_id)
        other = client.send(b"no message of the chain", topic=MESSAGES_TOPIC, tier="queued")
        assert other.message_id == other.delivery_id


def test_an_external_message_without_expiry_is_queued_as_a_draft_unless_told_otherwise(
    node: SmallNode, tmp_path: Path
) -> None:
    message = CanonicalMessage(bytes(32), primes_body(10)).encode()
    with Client.connect(node.socket_path, MAGIC, keys=tmp_path / "alice") as client:
        sent = client.send(message, topic=MESSAGES_TOPIC, tier="queued")
        assert sent.message_id == sent.delivery_id, "the first transmission makes the id"
        client.send(message, topic=MESSAGES_TOPIC, tier="queued", expires=False)
        wait_until(lambda: len(node.messages) == 2)
    drafted, told = (read_data_envelope(one.body) for one in node.messages)
    assert MessageDraft.decode(drafted.payload) == MessageDraft(bytes(32), primes_body(10), int(TTL_S))
    assert told.payload == message


def test_an_acknowledged_send_returns_when_the_critical_peer_has_it(node: SmallNode, tmp_path: Path) -> None:
    import asyncio

    issued = make_keys(tmp_path / "bob", start_kes_period=0, issue_number=0)
    config = ReliablePublisherConfig(
        enable_ack=True, critical_peers=(pool_id(issued.cold_verification_key).hex(),)
    )
    heard: list[bytes] = []

    async def handle(message: Message) -> None:
        heard.append(message.data)

    async def main() -> None:
        async with (
            DmqTransport(node.socket_path, MAGIC, tmp_path / "bob") as transport,
            Receiver(transport, {"demo": handle}),
            AsyncClient.connect(node.socket_path, MAGIC, keys=tmp_path / "alice", publisher=config) as client,
        ):
            sent = await client.send(b"four", topic="demo", tier="acked", timeout_s=30)
            assert sent.delivery_id is not None
        assert heard == [b"four"]

    asyncio.run(main())
