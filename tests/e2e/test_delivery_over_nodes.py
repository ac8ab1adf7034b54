"""Reliable delivery over real nodes: processes that publish and receive, and kills of everybody in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.envelope import AckEnvelope, AckReceipt
from stagepost.delivery.errors import ErrAckTimeout
from stagepost.delivery.identity import delivery_id
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.status import AckType
from stagepost.delivery.transport import Incoming, IncomingAcks
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.keys.signer import DmqSigner
from stagepost.dmq.outcome import ACCEPTED
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC
from stagepost.topics.log.file_topic import open_topic
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, NodeProcess, ending

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("delivery-nodes")]

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0
COMMAND = [sys.executable, "-m", "stagepost.cli.main"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
PATIENT = ("--ack-timeout", "1s", "--max-retries", "30", "--timeout", f"{WITHIN_S:g}s")


class Process:
    """One command in the background, its output in a file: it may be killed and started again on the same file."""

    def __init__(self, output: Path, command: list[str], *, given: bytes | None = None) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=ENVIRONMENT,
            )
        if given is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(given)
            self._process.stdin.close()

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WITHIN_S)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def wait(self) -> int:
        return self._process.wait(WITHIN_S)

    def wait_for(self, text: str) -> None:
        """Until the output has it. A real process cannot be told when to say something."""
        until = time.monotonic() + WITHIN_S
        while not any(text in line for line in self.lines):
            assert time.monotonic() < until, f"{text!r} did not come: {self.lines}"
            time.sleep(0.02)


@dataclass
class Net:
    """Three nodes in a line, four pools, and whoever was started on them."""

    folder: Path
    nodes: list[NodeProcess] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        for name in ("alice", "bob", "carol", "mallory"):
            issued = make_keys(self.folder / name, start_kes_period=0, issue_number=0)
            self.ids[name] = pool_id(issued.cold_verification_key).hex()
        pools = [{"pool_id": pool, "stake": 1} for pool in self.ids.values()]
        facts = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": pools}
        (self.folder / "pools.json").write_text(json.dumps(facts))
        for number in range(3):
            peers = [(self.nodes[-1].port, "dmq-node")] if self.nodes else []
            node = NodeProcess(self.folder / f"node-{number}", self.folder / "pools.json", peers=peers)
            self.nodes.append(node)
            node.start()

    def start(self, output: str, *arguments: str, given: bytes | None = None) -> Process:
        process = Process(self.folder / output, [*COMMAND, *arguments], given=given)
        self.processes.append(process)
        return process

    def listen(self, name: str, node: int, topic: str) -> Process:
        """A receiver that acknowledges and remembers."""
        return self.start(
            f"{name}-{topic}.out",
            *("listen", "--ack", "--json", "--topic", topic),
            *("--keys", str(self.folder / name), "--data", str(self.nodes[node].folder)),
            *("--inbox", str(self.folder / f"{name}-inbox")),
        )

    def send(self, output: str, text: str, topic: str, *arguments: str) -> Process:
        return self.start(
            output,
            *("send", text, "--json", "--topic", topic),
            *("--keys", str(self.folder / "alice"), "--data", str(self.nodes[0].folder)),
            *arguments,
        )

    def critical(self, *names: str) -> list[str]:
        return [part for name in names for part in ("--critical", self.ids[name])]

    def transport(self, name: str, node: int) -> DmqTransport:
        return DmqTransport(self.nodes[node].socket, NETWORK_MAGIC, self.folder / name)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    folder = tmp_path_factory.mktemp("net")
    os.chmod(folder, 0o700)
    net = Net(folder)
    with ending(net.nodes):
        try:
            net.make()
            yield net
        finally:
            for process in net.processes:
                process.end()


def ids_shown(receiver: Process) -> list[str]:
    return [heard["delivery_id"] for heard in receiver.objects]


def test_any_and_all_of_two_receivers_and_one_of_them_killed_in_between(net: Net) -> None:
    bob, carol = net.listen("bob", 1, "demo"), net.listen("carol", 2, "demo")
    critical = net.critical("bob", "carol")
    sent: list[str] = []
    for require in ("any", "all"):
        output = f"acked-{require}.out"
        sending = net.send(
            output, "hello", "demo", "--tier", "acked", *critical, "--require", require, *PATIENT
        )
        assert sending.wait() == 0, sending.lines
        *_, before, last = sending.objects
        assert (before["status"], last["status"]) == ("Sent", "Acked")
        assert len(last["acked_by"]) >= (1 if require == "any" else 2)
        assert set(last["acked_by"]) <= {net.ids["bob"], net.ids["carol"]}
        sent.append(last["delivery_id"])

    carol.kill()
    sending = net.send(
        "acked-late.out", "late", "demo", "--tier", "acked", *critical, "--require", "all", *PATIENT
    )
    sending.wait_for('"Sent"')
    carol = net.listen("carol", 2, "demo")
    assert sending.wait() == 0, sending.lines
    last = sending.objects[-1]
    assert set(last["acked_by"]) == {net.ids["bob"], net.ids["carol"]}
    sent.append(last["delivery_id"])

    bob.end()
    carol.end()
    # However often it was sent again, and though a restarted receiver is told everything anew: each once.
    assert sorted(ids_shown(bob)) == sorted(sent)
    assert sorted(ids_shown(carol)) == sorted(sent)


def test_nothing_is_lost_or_repeated_when_node_publisher_and_receiver_are_killed(net: Net) -> None:
    """Forty lines through programs as a user writes them; everybody on the way is killed once."""
    lines = [f"line {number}" for number in range(40)]
    database = net.folder / "lines.sqlite"

    def receive() -> Process:
        command = [sys.executable, str(ROOT / "examples" / "receive_reliably.py"), str(net.nodes[2].socket)]
        command += [
            str(NETWORK_MAGIC),
            str(net.folder / "carol"),
            str(net.folder / "lines-inbox"),
            str(database),
        ]
        net.processes.append(process := Process(net.folder / "receive.out", command))
        return process

    def publish(given: list[str]) -> Process:
        command = [sys.executable, str(ROOT / "examples" / "publish_reliably.py"), str(net.nodes[0].socket)]
        command += [str(NETWORK_MAGIC), str(net.folder / "alice"), str(net.folder / "lines-outbox")]
        text = "".join(f"{line}\n" for line in given).encode()
        process = Process(net.folder / "publish.out", [*command, net.ids["carol"]], given=text)
        net.processes.append(process)
        return process

    receiver = receive()
    publisher = publish(lines[:20])
    publisher.wait_for("Acked")
    publisher.kill()
    stored = {line.split()[0] for line in publisher.lines if "Pending" in line}
    net.nodes[0].kill()
    receiver.kill()
    publisher = publish(lines[20:])
    until = time.monotonic() + WITHIN_S
    while len({line.split()[0] for line in publisher.lines if "Pending" in line} - stored) < 20:
        assert time.monotonic() < until, publisher.lines
        time.sleep(0.02)
    net.nodes[0].start()
    net.nodes[1].kill()
    receiver = receive()
    net.nodes[1].start()
    assert publisher.wait() == 0, publisher.lines

    with closing(sqlite3.connect(database)) as kept:
        found = [line for (line,) in kept.execute("SELECT line FROM lines")]
    assert len(found) == len(set(found)), "an effect happened twice"
    # The first publisher was killed at some point: what it had reported as taken must be there, and all of the second.
    assert set(lines[20:]) <= set(found)
    assert len(set(found) & set(lines[:20])) >= len(stored)
    balance = net.start(
        "balance.out", "queue", "check", "--outbox", str(net.folder / "lines-outbox"), "--json"
    )
    assert balance.wait() == 0
    (books,) = balance.objects
    assert (books["live"], books["imbalance"], books["failed"]) == (0, 0, {})
    receiver.end()


def test_queued_message_waits_for_its_node_and_goes_with_the_next_flush(net: Net) -> None:
    outbox = str(net.folder / "waiting-outbox")
    net.nodes[0].kill()
    waiting = net.start(
        "queued.out",
        *("send", "patience", "--json", "--topic", "later", "--tier", "queued", "--timeout", "200ms"),
        *("--keys", str(net.folder / "alice"), "--socket", str(net.nodes[0].socket)),
        *("--network-magic", str(NETWORK_MAGIC), "--outbox", outbox),
    )
    assert waiting.wait() == 1
    assert waiting.objects[-1]["error"] == "StillQueued"
    net.nodes[0].start()
    flush = net.start(
        "flush.out",
        *("queue", "flush", "--json", "--outbox", outbox, "--keys", str(net.folder / "alice")),
        *("--data", str(net.nodes[0].folder)),
    )
    assert flush.wait() == 0, flush.lines
    (sent,) = flush.objects
    assert (sent["delivery_id"], sent["status"]) == (waiting.objects[0]["delivery_id"], "Sent")
    # The second command knows the node's folder, where its events belong to the node's messages.
    events = [
        json.loads(record.value or b"")
        for folder in (Path(outbox), net.nodes[0].folder)
        for batch in open_topic(folder, DELIVERY_EVENTS_TOPIC).reader().batches(0, 0)
        for record in batch
        if (record.key or b"").decode() == sent["delivery_id"]
    ]
    assert [event["status"] for event in events] == ["Pending", "Queued", "Queued", "Sent"]
    assert events[-1]["dmq_id"] is not None


def test_receipts_of_a_forger_and_of_a_stranger_count_for_nothing(net: Net) -> None:
    """Mallory is a pool of the network, so his messages travel; but he cannot sign as Bob."""

    async def forge(mallory: DmqTransport, incoming: Incoming) -> None:
        message_id = delivery_id(
            bytes.fromhex(incoming.sender), incoming.topic, incoming.nonce, incoming.payload
        )
        receipt = AckReceipt(message_id, int(time.time() * 1_000), AckType.ACK)
        await mallory.publish_acks([receipt])
        signer = DmqSigner(net.folder / "mallory")
        body = AckEnvelope(bytes.fromhex(net.ids["bob"]), (receipt,)).encode()
        forged = await signer.sign(body, int(time.time()) + 60)
        async with net.nodes[2].client() as client:
            assert await client.submit(forged) == ACCEPTED
        await signer.close()

    async def scenario() -> None:
        config = ReliablePublisherConfig(
            enable_ack=True, critical_peers=(net.ids["bob"],), max_retries=0, ack_timeout=WITHIN_S
        )
        forging: set[asyncio.Task[None]] = set()
        async with (
            net.transport("mallory", 2) as mallory,
            net.transport("alice", 0) as transport,
            ReliablePublisher(transport, config) as publisher,
        ):

            def on_message(message: Incoming | IncomingAcks) -> None:
                if isinstance(message, Incoming) and message.topic == "forged":
                    forging.add(asyncio.create_task(forge(mallory, message)))

            mallory.on_message(on_message)
            call = asyncio.create_task(publisher.publish_with_ack("forged", b"are you there, Bob?"))
            async with asyncio.timeout(WITHIN_S):
                while not (publisher.stats().bad_acks and publisher.stats().outside_acks):
                    await asyncio.sleep(0.02)
            assert not call.done(), "both receipts are here, and neither of them counts"
            await asyncio.gather(*forging)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

            with pytest.raises(ErrAckTimeout) as failed:
                await publisher.publish_with_ack("forged", b"Bob?", timeout=1.0)
            assert failed.value.result is not None
            assert failed.value.result.acked_by == ()
            assert failed.value.result.missing == (net.ids["bob"],)

    asyncio.run(scenario())
