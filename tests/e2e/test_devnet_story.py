"""The whole story over real sockets: a program publishes reliably to its DMQ node, another DMQ node brings the message to
a full node, which hands it to validators and acknowledges; the chain makes it final, and one trace has every id."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from rigs.chain_messages import expires_soon_s
from rigs.validator_processes import until
from stagepost.chain.contracts import ContractKind, primes_body, sum_in
from stagepost.chain.messages import CanonicalMessage
from stagepost.cli import main as command
from stagepost.client import AsyncClient
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.devnet.devnet import DevnetPlan, devnet
from stagepost.devnet.messages import StatusBook
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.ground.crypto.hashing import pool_id
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, NodeProcess, ending

pytestmark = pytest.mark.xdist_group("devnet")

WITHIN_S = 60.0
ACCOUNT = bytes(31) + bytes([ContractKind.SUM_OF_PRIMES])


def test_a_message_goes_from_a_programs_hand_to_finality(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chmod(tmp_path, 0o700)
    pools = {}
    for name in ("program", "full-node"):
        issued = make_keys(tmp_path / name, start_kes_period=0, issue_number=0)
        pools[name] = pool_id(issued.cold_verification_key).hex()
    facts = {
        "max_kes_evolutions": 62,
        "slots_per_kes_period": 129_600,
        "pools": [{"pool_id": one, "stake": 1} for one in pools.values()],
    }
    (tmp_path / "pools.json").write_text(json.dumps(facts))
    first = NodeProcess(tmp_path / "dmq-1", tmp_path / "pools.json")
    nodes = [first]
    data = tmp_path / "devnet"
    with ending(nodes):
        first.start()
        second = NodeProcess(tmp_path / "dmq-2", tmp_path / "pools.json", peers=[(first.port, "dmq-node")])
        nodes.append(second)
        second.start()
        delivery, message_id = asyncio.run(_story(tmp_path, data, pools["full-node"], first, second))
    capsys.readouterr()
    assert command.run(["trace", message_id.hex(), "--data", str(data), "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)
    assert (trace["verdict"], trace["delivery_id"]) == ("finalized", delivery)
    assert len(trace["dmq_id"]) == 64
    assert trace["receipts_bad"] == 0


async def _story(
    folder: Path, data: Path, critical: str, first: NodeProcess, second: NodeProcess
) -> tuple[str, bytes]:
    message = CanonicalMessage(ACCOUNT, primes_body(100), expires_soon_s()).encode()
    book = StatusBook()
    config = ReliablePublisherConfig(
        enable_ack=True, critical_peers=(critical,), max_retries=20, ack_timeout=2.0
    )
    async with (
        devnet(DevnetPlan(validators=4), data, on_status=book) as network,
        DmqTransport(second.socket, NETWORK_MAGIC, folder / "full-node") as to_full_node,
    ):
        await network.ready()
        await network.node.take_deliveries(to_full_node)
        async with AsyncClient.connect(
            first.socket, NETWORK_MAGIC, full_node=data, keys=folder / "program", publisher=config
        ) as client:
            sent = await client.send(message, topic=MESSAGES_TOPIC, tier="acked", timeout_s=WITHIN_S)
            assert sent.message_id is not None
            assert sent.delivery_id is not None
            verdict = await client.wait_for(sent.message_id, "final", timeout_s=WITHIN_S)
            assert (str(verdict), verdict.is_reached) == ("Finalized", True)
        # The proof may be there before the full node has reported the status.
        await until(lambda: bool(book.final), "the full node reports the message as final", WITHIN_S)
        (message_id,) = book.final
        assert message_id.hex() == sent.message_id
        account = network.ledger.account(0, ACCOUNT)
        assert account is not None
        assert sum_in(account.memory) == (1_060, 1)
        await network.node.stop_deliveries()
    return sent.delivery_id, message_id
