"""A running full node and validator tell of themselves: metrics, health, the queue; and receipts can be listened to."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rigs.chain_messages import expires_soon_s
from stagepost.catchain.member import START_WAIT_S as QUEUE_START_WAIT_S
from stagepost.chain.agreement.pacing import START_WAIT_S
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.cli import main as command
from stagepost.devnet.devnet import DevnetPlan, HereValidator, devnet
from stagepost.devnet.messages import StatusBook
from stagepost.full_node.status import full_node_status
from stagepost.ground.files.running_nodes import STATUS_FILES
from stagepost.validator.status import validator_status

pytestmark = pytest.mark.xdist_group("devnet")

WITHIN_S = 60.0
MESSAGES = 5
ACCOUNT = bytes(31) + bytes([ContractKind.SUM_OF_PRIMES])


def ask(port: int, target: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metric(port: int, name: str, **labels: str) -> float:
    status, text = ask(port, "/metrics")
    assert status == 200
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"{name} {labels} is not among:\n{text.decode()}")


async def until_final(book: StatusBook, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(book.final) < count:
            await asyncio.sleep(0.05)


def test_what_running_nodes_tell_of_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "net"
    asyncio.run(_story(data, capsys))
    for name in STATUS_FILES.values():
        assert not list(data.rglob(name)), "notes go when nodes do"
    _listen(data, capsys)


async def _story(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = StatusBook()
    async with devnet(DevnetPlan(validators=4), data, on_status=book) as network:
        validator = network.validators[0]
        assert isinstance(validator, HereValidator)
        assert validator.running is not None
        folder = data / "validator-1"
        async with (
            full_node_status(network.node, data, 0, message_timeout_ms=240_000) as full_port,
            validator_status(validator.running, folder, 0) as validator_port,
        ):
            assert full_port is not None
            assert validator_port is not None
            await network.ready()
            for number in range(MESSAGES):
                network.full_node.submit(
                    CanonicalMessage(ACCOUNT, primes_body(10 + number), expires_soon_s()).encode()
                )
            open_count = await asyncio.to_thread(
                metric, full_port, "stagepost_remp_open_messages", shard="0:8000000000000000"
            )
            assert open_count == MESSAGES
            listed = await asyncio.to_thread(_listed, capsys, data)
            assert [one["index"] for one in listed] == [1, 2, 3, 4, 5]
            assert {one["shard"] for one in listed} == {"0:8000000000000000"}
            await until_final(book, MESSAGES)
            # The chain may be quicker than the queue, whose members listen before they speak.
            async with asyncio.timeout(WITHIN_S):
                while not await asyncio.to_thread(metric, validator_port, "stagepost_catchain_blocks_total"):
                    await asyncio.sleep(0.05)
            await _until_ready(validator_port)
            await asyncio.to_thread(_look, full_port, validator_port, book, capsys, folder)


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while (await asyncio.to_thread(ask, port, "/readyz"))[0] != 200:
            await asyncio.sleep(0.05)


def test_a_lone_validator_listens_and_says_so_until_a_quorum_is_there(tmp_path: Path) -> None:
    asyncio.run(_alone(tmp_path / "net"))


async def _alone(data: Path) -> None:
    async with devnet(DevnetPlan(validators=4), data) as network:
        await network.ready()
        for one in network.validators:
            await one.close()
        first, second, third, _ = network.validators  # the fourth is dead for good
        await first.start()
        assert isinstance(first, HereValidator)
        assert first.running is not None
        async with validator_status(first.running, data / "validator-1", 0) as port:
            assert port is not None
            # For longer than it listens where others answer.
            await asyncio.sleep(max(START_WAIT_S, QUEUE_START_WAIT_S) + 1.0)
            code, body = await asyncio.to_thread(ask, port, "/readyz")
            part = json.loads(body)["parts"]["start"]
            assert code == 503
            assert part["ready"] is False
            assert "listens and does not speak: 0 of 2 other members have answered" in part["reason"]
            status = json.loads((await asyncio.to_thread(ask, port, "/status"))[1])
            assert {one["part"] for one in status["listening"]} == {"agreement", "queue"}
            assert all((one["answered"], one["needed"]) == ([], 2) for one in status["listening"])
            validator = first.running.validator
            members = [runner.member for runner in validator.chain.sessions.values()]
            assert not any(slot.own for member in members for _, slot in member.book.slots())
            await second.start()
            await third.start()
            await _until_ready(port)


def _listed(capsys: pytest.CaptureFixture[str], data: Path, *options: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert command.run(["queue", "ls", "--data", str(data), "--json", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _look(
    full_port: int, validator_port: int, book: StatusBook, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    name = "stagepost_remp_receipts_total"
    assert metric(full_port, name, kind="Finalized", signature="valid") == MESSAGES
    kinds = [receipt.kind.name for receipts in book.receipts.values() for receipt in receipts]
    assert metric(full_port, name, kind="PutIntoQueue", signature="valid") == kinds.count("PutIntoQueue")
    assert metric(full_port, "stagepost_remp_finality_seconds_count", verdict="finalized") == MESSAGES
    assert metric(full_port, "stagepost_remp_stage_seconds_count", stage="queued") == MESSAGES
    assert metric(validator_port, "stagepost_catchain_blocks_total") > 0
    assert metric(validator_port, "stagepost_catchain_forks_total") == 0
    assert metric(validator_port, "stagepost_remp_queue_messages", shard="0:8000000000000000") == 0
    for port, kind in ((full_port, "full node"), (validator_port, "validator")):
        assert ask(port, "/healthz")[0] == ask(port, "/readyz")[0] == 200
        status = json.loads(ask(port, "/status")[1])
        assert status["kind"] == kind
        assert status["messages"] >= 1
    capsys.readouterr()
    for data, words in ((folder.parent, "full node up"), (folder, "validator up")):
        assert command.run(["check", "--data", str(data)]) == 0
        assert words in capsys.readouterr().out
    held = _listed(capsys, folder)
    assert {one["message_id"] for one in held} == {message_id.hex() for message_id in book.final}
    assert [one["index"] for one in _listed(capsys, folder, "--after", "1", "--limit", "2")] == [2, 3]
    assert command.run(["queue", "ls", "--data", str(folder), "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    assert "IncludedIntoAcceptedBlock" in shown or "Finalized" in shown
    assert "more: stagepost queue ls --after 2" in shown


def _listen(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the folder alone: the node has ended."""
    capsys.readouterr()
    base = ["listen", "--data", str(data)]
    assert command.run([*base, "--kind", "finalized", "--since", "1h", "--count", str(MESSAGES)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MESSAGES
    assert all("full node" in line and "Finalized" in line for line in lines)
    options = ["--kind", "Finalized", "--since", "1h", "--until-idle", "10ms", "--json"]
    assert command.run([*base, *options, "--count", str(MESSAGES + 1)]) == 1
    heard = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["signature_state"] for one in heard] == ["valid"] * MESSAGES
    assert command.run([*base, "--until-idle", "10ms"]) == 0
    assert capsys.readouterr().out == "", "without --since only what comes now"
    for wrong in (["--topic", "demo"], ["--kind", "Finalised"]):
        assert command.run([*base, *wrong]) == 2
    assert command.run(["listen", "--data", str(data / "validator-1"), "--kind", "Finalized"]) == 2
    assert command.run(["listen", "--kind", "Finalized"]) == 2
