"""A full node and a validator in processes of their own, on a disk that fills up and is freed: refused by code, nothing told
before the disk has it, nothing lost, ready again without a restart."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import pytest

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.devnet.devnet import DevnetPlan, devnet
from stagepost.devnet.member import COMMANDS
from stagepost.errors import StagepostError, StorageError
from stagepost.full_node.local_client import ExternalMessages
from stagepost.full_node.running import COMPLAINTS_FILE
from stagepost.ground.files.running_nodes import FullNodeFacts, find_full_node, find_remp_node
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.log.file_topic import TOPICS_FOLDER, open_topic
from stagepost.trace.kept_proofs import kept_proof
from tests.hostile.bad_disks import small_filesystem
from tests.hostile.disk_shim import FOR_EVER, Calls, DiskControl, NotToBeHad

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("devnet")]

WITHIN_S = 120.0
OFFERED_MAX = 200
VALIDATORS = 4
SESSION_S = 10.0
ACCOUNT = bytes(31) + bytes([ContractKind.SUM_OF_PRIMES])


class Disk(Protocol):
    def fill(self) -> None: ...

    def free(self) -> None: ...


class ShimDisk:
    """Every write of the node below its data folder fails for want of space, the first after half of it was done."""

    def __init__(self, control: DiskControl) -> None:
        self._control = control

    def fill(self) -> None:
        self._control.fail(count=FOR_EVER, kinds=Calls.WRITES, error=errno.ENOSPC, short=True)

    def free(self) -> None:
        self._control.heal()


class SmallDisk:
    """A real file system, which a file that has nothing to do with the node takes up."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while file.write(os.urandom(4_096)):
                pass

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def failing_calls(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    control = DiskControl(data.with_name("control"), f"{data.name}/")
    for name, value in control.environment.items():
        monkeypatch.setenv(name, value)
    yield ShimDisk(control)


@contextmanager
def full_filesystem(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    data.mkdir(mode=0o700)
    with small_filesystem(data / TOPICS_FOLDER) as disk:
        yield SmallDisk(disk)


class Node:
    """The running full node, as its users see it."""

    def __init__(self, data: Path, facts: FullNodeFacts, metrics_port: int) -> None:
        self.data = data
        self.facts = facts
        self._metrics_port = metrics_port
        assert facts.http is not None
        self._http = facts.http.removeprefix("http://")

    async def post(self, number: int) -> tuple[int, dict[str, Any]]:
        message = CanonicalMessage(ACCOUNT, primes_body(number), expires_soon_s()).encode()
        return await asyncio.to_thread(_ask, self._http, "/api/v1/messages", message)

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        return await asyncio.to_thread(_ask, f"127.0.0.1:{self._metrics_port}", "/readyz")

    async def status(self) -> dict[str, Any]:
        return (await asyncio.to_thread(_ask, f"127.0.0.1:{self._metrics_port}", "/status"))[1]

    def on_disk(self) -> list[Receipt]:
        reader = open_topic(self.data, STATUSES_TOPIC).reader()
        return [Receipt.from_json(one.value or b"") for batch in reader.batches(0, 0) for one in batch]


def _ask(address: str, target: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        method = "GET" if body is None else "POST"
        connection.request(method, target, body, {"Content-Type": "application/octet-stream"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await condition():
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("disk_of", [failing_calls, full_filesystem])
def test_a_full_node_on_a_full_disk_tells_and_loses_nothing_and_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk_of: Any
) -> None:
    data = tmp_path / "the-full-node"
    try:
        with disk_of(data, monkeypatch) as disk:
            asyncio.run(_story(data, disk))
    except NotToBeHad as reason:
        pytest.skip(str(reason))


async def _story(data: Path, disk: Disk) -> None:
    plan = DevnetPlan(validators=VALIDATORS)
    flags = ("--metrics-port", "0", "--http", "127.0.0.1:0")
    async with devnet(plan, data, full_node_here=False, full_node_flags=flags):
        node = await _started(data)
        await until(lambda: _is(node, 200))
        assert (await node.post(2))[0] == 202
        await until(lambda: _are_final(node, 1))
        disk.fill()
        try:
            accepted = await _fill(node)
            await _while_full(node, accepted)
        finally:
            disk.free()
        await until(lambda: _is(node, 200))
        assert (await node.post(3 + OFFERED_MAX))[0] == 202, "without a restart"
        accepted += 2
        await until(lambda: _are_final(node, accepted))
        await until(lambda: _nothing_waits(node))
        status = await node.status()
        receipts = node.on_disk()
        assert len(receipts) == status["statuses"]
        _require_whole(receipts, accepted)


@pytest.mark.parametrize("kinds", [Calls.WRITES, Calls.SYNCS], ids=["full", "flushes fail"])
def test_a_validator_on_a_full_disk_is_silent_and_takes_part_again_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: Calls
) -> None:
    """The other three finish messages meanwhile; afterwards another one is killed, and nothing is finished without this one."""
    data = tmp_path / "the-net"
    control = DiskControl(tmp_path / "control", "validator-2/")
    try:
        environment = control.environment
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asyncio.run(_story_of_a_validator(data, control, kinds))


async def _story_of_a_validator(data: Path, control: DiskControl, kinds: Calls) -> None:
    plan = DevnetPlan(validators=VALIDATORS, session_lifetime_s=SESSION_S)
    flags = ("--metrics-port", "0", "--http", "127.0.0.1:0")
    async with devnet(plan, data, one_process=False, full_node_here=False, full_node_flags=flags) as network:
        node = await _started(data)
        await until(lambda: _is(node, 200))
        sent = 0

        async def finish(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                assert (await node.post(2 + sent))[0] == 202
                sent += 1
            await until(lambda: _are_final(node, sent))

        await finish(3)
        error = errno.ENOSPC if kinds is Calls.WRITES else errno.EIO
        control.fail(count=FOR_EVER, kinds=kinds, error=error, short=kinds is Calls.WRITES)
        await finish(5)
        await until(lambda: _is_ready(data / "validator-2", 503))
        await asyncio.sleep(SESSION_S)  # into another session
        await finish(5)
        control.heal()
        await until(lambda: _is_ready(data / "validator-2", 200))
        await network.members["validator-3"].kill()
        await finish(5)
        assert [name for name, one in network.members.items() if one.fault] == []
        assert not (data / COMPLAINTS_FILE).exists()


async def _is_ready(folder: Path, status: int) -> bool:
    with suppress(OSError, StagepostError):
        noted = find_remp_node(folder)
        assert noted is not None
        return (await asyncio.to_thread(_ask, f"127.0.0.1:{noted.metrics_port}", "/readyz"))[0] == status
    return False


async def _started(data: Path) -> Node:
    found: list[Node] = []

    async def is_there() -> bool:
        with suppress(StagepostError):
            facts, noted = find_full_node(data), find_remp_node(data)
            if facts.http is not None and noted is not None and noted.metrics_port is not None:
                found.append(Node(data, facts, noted.metrics_port))
        return bool(found)

    await until(is_there)
    return found[0]


async def _is(node: Node, status: int) -> bool:
    return (await node.readiness())[0] == status


async def _are_final(node: Node, count: int) -> bool:
    with suppress(StorageError):  # a reader that looks while the disk fails
        return sum(one.kind.name == "Finalized" for one in node.on_disk()) == count
    return False


async def _nothing_waits(node: Node) -> bool:
    return bool((await node.status())["statuses_waiting"] == 0)


async def _fill(node: Node) -> int:
    """Messages until one is refused; how many were taken. The node knows of its disk from the first write that fails."""
    for number in range(OFFERED_MAX):
        status, answer = await node.post(3 + number)
        if status != 202:
            assert (status, answer["code"]) == (503, "STORAGE_UNAVAILABLE")
            return number
        await asyncio.sleep(0.05)
    raise AssertionError(f"{OFFERED_MAX} messages were taken on a full disk")


async def _while_full(node: Node, accepted: int) -> None:
    status, parts = await node.readiness()
    assert status == 503
    # The topic of statuses and the chain's store word the same fault differently; either may meet it first.
    reasons = json.dumps(parts)
    assert "no space left on device" in reasons or "database or disk is full" in reasons
    # The chain goes on: what it makes final waits for the disk.
    await until(lambda: _says(node, finalized=1 + accepted))
    assert (await node.status())["statuses_waiting"] >= accepted
    for number in range(5):
        refused, answer = await node.post(3 + OFFERED_MAX + number)
        assert (refused, answer["code"]) == (503, "STORAGE_UNAVAILABLE")
    command = [
        sys.executable,
        "-m",
        COMMANDS,
        "send",
        "--to",
        "alice",
        "--number",
        "9",
        "--data",
        str(node.data),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    sent = await asyncio.to_thread(
        subprocess.run,
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=WITHIN_S,
    )
    assert sent.returncode
    assert "STORAGE_UNAVAILABLE" in sent.stdout + sent.stderr
    await _followers_hear_what_is_on_disk(node)


async def _says(node: Node, **wanted: int) -> bool:
    status = await node.status()
    return {name: status[name] for name in wanted} == wanted


async def _followers_hear_what_is_on_disk(node: Node) -> None:
    held = {receipt.to_json() for receipt in node.on_disk()}
    client = ExternalMessages(node.facts)
    for number in range(3, 8):
        message = sha256(CanonicalMessage(ACCOUNT, primes_body(number), expires_soon_s()).encode()).digest()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                async for progress in client.follow(message):
                    told = {Receipt.from_json(one.value or b"").to_json() for one in progress.records}
                    assert told <= held
                    assert not progress.has_ended or kept_proof(node.data, message) is not None
    await client.close()


def _require_whole(receipts: list[Receipt], accepted: int) -> None:
    """Of every message all that a good disk holds, each validator's statuses in the order in which it dated them."""
    lanes: dict[bytes, dict[bytes, list[Receipt]]] = {}
    for one in receipts:
        lanes.setdefault(one.message_id, {}).setdefault(one.source_id, []).append(one)
    assert len(lanes) == accepted
    for sources in lanes.values():
        kinds = [one.kind.name for lane in sources.values() for one in lane]
        assert kinds.count("SentToValidators") == kinds.count("Finalized") == 1
        assert kinds.count("PutIntoQueue") >= VALIDATORS
        assert len(sources) == VALIDATORS + 1
        for lane in sources.values():
            dates = [one.timestamp_ms for one in lane]
            assert dates == sorted(dates)
