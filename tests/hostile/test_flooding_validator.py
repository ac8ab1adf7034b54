"""One validator of four that announces ten thousand messages without bodies, each in the name of an invented full node, as
processes: the others blame it, serve everybody else meanwhile, tell the true full node of every message, and stay small.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.member import MemberProcess
from stagepost.devnet.messages import SumMessage, account_of
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.trace.reading import topic_records
from tests.hostile.planted import planted

pytestmark = pytest.mark.xdist_group("devnet")

ATTACKER = "validator-4"
HONEST = ("validator-1", "validator-2", "validator-3")
WITHIN_S = 180.0
MESSAGES = 16
GROWN_BYTES_MAX = 128 << 20
"""Resident bytes by which an honest validator may grow: 10,000 announcements and 2.5 MB of blocks take a tenth of it."""

FLOODS = """
    import sys
    if any("validator-4" in one for one in sys.orig_argv):
        import asyncio, os
        from stagepost.catchain.block import Block, block_id, data_hash
        from stagepost.ground.crypto import ed25519
        from stagepost.remp.queue.records import (
            RECORDS_MAX, HandOver, Header, Totals, amounts_in, encode_payload, payload_bytes,
        )
        from stagepost.validator.session_runner import SessionRunner

        honest_start = SessionRunner.start
        BLOCKS = 10_000 // (RECORDS_MAX - 1) + 1

        def start(self, overlay):
            honest_start(self, overlay)
            asyncio.get_running_loop().call_later(8.0, begin, self)

        def begin(runner):
            os.nice(5)
            runner.member._is_halted = True
            print("flood by member", runner.plan.index, file=sys.stderr, flush=True)
            # A block that is under way gets there first, so the flood is no fork.
            asyncio.get_running_loop().call_later(1.0, begin_now, runner)

        def begin_now(runner):
            # All blocks have one date, so how slow this process is makes no difference.
            now_ms = int(runner._clock.unix_s() * 1_000)
            flood(runner, runner.graph.top(runner.plan.index).reference, runner.member.account, 0, now_ms)

        def flood(runner, previous, account, number, now_ms):
            graph, me = runner.graph, runner.plan.index
            names = (os.urandom(32) for _ in range(4 * RECORDS_MAX))
            headers = [
                Header(
                    next(names), next(names), 0, next(names), next(names), me, runner.plan.masterchain_seqno,
                    now_ms, HandOver(now_ms, os.urandom(64)),
                )
                for _ in range(RECORDS_MAX - 1)
            ]
            while True:
                size = payload_bytes([Totals(), *headers])
                totals = account.totals.plus(amounts_in(headers, size), now_ms)
                payload = encode_payload([totals, *headers], 100_000 + number)
                if len(payload) <= 15_000:
                    break
                headers.pop()
            of_data = data_hash(payload, previous, (), graph.rules.version)
            content = block_id(graph.incarnation, graph.key_ids[me], previous.height + 1, of_data)
            signature = ed25519.sign(runner._seed, content)
            block = Block(graph.incarnation, me, previous.height + 1, previous, (), signature, payload)
            vertex, _ = graph.receive(block)
            graph.stored(vertex)
            for peer in runner.plan.others:
                runner._overlay.push(peer, block.encode())
            account = graph.dates.budget.after(account, totals)
            if totals.headers < 10_000:
                after = asyncio.get_running_loop().call_later
                after(0.01, flood, runner, block.reference(graph.rules.version), account, number + 1, now_ms)

        SessionRunner.start = start
    """


def resident_bytes(network: Devnet, name: str) -> int:
    member = network.members[name]
    assert isinstance(member, MemberProcess)
    lines = Path(f"/proc/{member.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def blames(data: Path, name: str) -> int:
    return (data / name / "log").read_text().count("BlameReport(source=")


def kinds_by_message(data: Path) -> dict[str, dict[str, set[str]]]:
    """Kinds of receipts by message and source."""
    found: dict[str, dict[str, set[str]]] = {}
    for record in topic_records(data):
        if record.topic == STATUSES_TOPIC:
            told = json.loads(record.value or b"")
            found.setdefault(record.key or "", {}).setdefault(told["source_id"], set()).add(told["kind"])
    return found


async def under_the_flood(network: Devnet, data: Path) -> list[str]:
    """Submit messages before, during and after the flood; return their ids when all are final and the attacker is blamed."""
    await network.ready()
    before = {name: resident_bytes(network, name) for name in HONEST}
    ids: list[str] = []
    async with asyncio.timeout(WITHIN_S):
        while len(ids) < MESSAGES or not all(blames(data, name) for name in HONEST):
            if len(ids) < MESSAGES or len(ids) % 4:
                message = SumMessage(account_of(b"flood", len(ids) % 16), 3 + len(ids))
                ids.append((await network.front.submit(message.data(network.front.now_ms))).hex())
            await asyncio.sleep(0.8)
        while not all(
            "Finalized" in set().union(*kinds_by_message(data).get(one, {"": set()}).values()) for one in ids
        ):
            await asyncio.sleep(0.5)
    grown = {name: resident_bytes(network, name) - before[name] for name in HONEST}
    print({name: f"{count >> 20} MiB" for name, count in grown.items()})
    assert max(grown.values()) <= GROWN_BYTES_MAX, grown
    return ids


def test_a_flood_is_blamed_and_everybody_else_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in planted(tmp_path / "defect", FLOODS).items():
        monkeypatch.setenv(name, value)
    data = tmp_path / "data"
    plan = DevnetPlan(validators=4, seed=26)

    async def main() -> list[str]:
        async with devnet(plan, data, one_process=False) as network:
            return await under_the_flood(network, data)

    ids = asyncio.run(main())
    logs = {name: (data / name / "log").read_text() for name in (*HONEST, ATTACKER)}
    (flooder,) = set(re.findall(r"flood by member (\d+)", logs[ATTACKER]))
    for name in HONEST:
        assert set(re.findall(r"BlameReport\(source=(\d+), proof=(\w+)", logs[name])) == {(flooder, "None")}
        assert "Traceback" not in logs[name]
    told = kinds_by_message(data)
    for one in ids:
        tellers = sum("PutIntoQueue" in kinds for kinds in told[one].values())
        assert tellers >= len(HONEST), f"{tellers} of the validators told of message {one}"
