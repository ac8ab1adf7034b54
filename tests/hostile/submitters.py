"""Programs of a devnet that submit as people do, while one submitter floods the full node with messages that fill a block
each, or while strangers besiege a validator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from rigs.chain_messages import expires_soon_s
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.client import AsyncClient
from stagepost.full_node.network import NETWORK_FILE, load_network
from stagepost.ground.files.running_nodes import STATUS_FILES, VALIDATOR
from tests.hostile.devnet_process import DevnetProcess
from tests.hostile.storms import Figure
from tests.hostile.strangers import Siege, besieged

AT_ONCE = 8
HONEST_EVERY_S = 0.5
ENDS_WITHIN_S = 90.0
"""Seconds, with room for a busy machine; 1,500 messages in a row took 232 s."""
BACKLOG_S_MAX = 20.0
"""Seconds that an honest message may take after the flood, in soak runs: a half of 32 blocks, at 0.6 s each, twice."""


def _of(kind: ContractKind, number: int, body: bytes) -> bytes:
    account = f"{kind.name} {number}".encode().ljust(31, b".")[:31] + bytes([kind])
    return CanonicalMessage(account, body, expires_soon_s()).encode()


async def _flood(http: str, count: int) -> dict[int, int]:
    """Submit `count` costly messages, each once; return how often each status came."""
    statuses: dict[int, int] = {}
    numbers = iter(range(count))

    async def submit(client: httpx.AsyncClient) -> None:
        for number in numbers:
            data = _of(ContractKind.HEAVY, number, b"%d" % number)
            answer = await client.post(
                f"{http}/api/v1/messages",
                content=data,
                headers={"Content-Type": "application/octet-stream"},
            )
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1

    async with httpx.AsyncClient(timeout=ENDS_WITHIN_S) as client:
        await asyncio.gather(*(submit(client) for _ in range(AT_ONCE)))
    return statuses


async def _honest(client: AsyncClient, number: int) -> float:
    """Submit a small message and wait for its end; return the seconds that this took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(ENDS_WITHIN_S):
        sent = await client.send(_of(ContractKind.SUM_OF_PRIMES, number, primes_body(50)))
        verdict = await client.wait_for(str(sent.message_id), "final", timeout_s=ENDS_WITHIN_S)
    if verdict.verdict != "finalized":
        raise AssertionError(f"an honest message ended as {verdict.verdict}")
    return loop.time() - began


async def costly_messages(http: str, data: Path, count: int) -> tuple[Figure, list[str]]:
    """Flood the intake at `http` of the full node in `data`; honest messages go to its socket meanwhile, and one afterwards."""
    faults: list[str] = []
    took: list[float] = []
    async with AsyncClient.connect(data=data) as client:
        calm = await _honest(client, 0)
        flood = asyncio.create_task(_flood(http, count))
        number = 0
        try:
            while not flood.done():
                number += 1
                took.append(await _honest(client, number))
                await asyncio.sleep(HONEST_EVERY_S)
            statuses = await flood
            backlog = await _honest(client, number + 1)
        finally:
            flood.cancel()
    if set(statuses) - {202, 429}:
        faults.append(f"costly messages were answered with {statuses}")
    if not statuses.get(429):
        faults.append("nothing of the flood was refused")
    figure: Figure = {
        "promise": "N6",
        "target": "full node, one submitter's costly messages",
        "costly": count,
        "taken": statuses.get(202, 0),
        "refused": statuses.get(429, 0),
        "honest": len(took) + 2,
        "calm_s": round(calm, 2),
        "longest_s": round(max(took, default=0.0), 2),
        "after_s": round(backlog, 2),
        "failures": len(faults),
    }
    return figure, faults


def silent_links(devnet: DevnetProcess, count: int) -> tuple[Figure, list[str]]:
    """Connections to a validator's listener that send nothing keep neither full nodes nor members out: the validator is
    killed and started by nobody, so its links must stay, and messages must end."""
    network = load_network(devnet.data / NETWORK_FILE)
    besieged_one = network.validators[0]
    (note,) = (devnet.data / besieged_one.name).rglob(STATUS_FILES[VALIDATOR])
    pid = json.loads(note.read_text())["pid"]
    number = 0

    async def scene() -> tuple[Figure, list[str]]:
        async with AsyncClient.connect(data=devnet.data) as client:

            async def honest() -> None:
                nonlocal number
                number += 1
                await _honest(client, 1_000 + number)

            siege = Siege(besieged_one.address.port, count)
            return await besieged("validator", pid, siege, honest)

    return asyncio.run(scene())
