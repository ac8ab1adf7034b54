"""A Finalized that nobody else can confirm, signed with a full node's own key: a valid receipt, and a proof nowhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
from click.testing import CliRunner

from stagepost.cli.prove import prove
from stagepost.cli.submit.external import SubmitRequest, submit_and_follow
from stagepost.cli.trace.command import trace
from stagepost.cli.verify import verify
from stagepost.full_node.local_client import ExternalMessages
from stagepost.full_node.metrics import FullNodeMetrics
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict
from stagepost.trace.kept_proofs import GENESIS_FILE, proved_end
from stagepost.trace.reading import topic_records
from stagepost.web.access.settings import WebSettings
from tests.browser.served import served
from tests.worlds.full_node.full_node_desk import FullNodeDesk, a_served_desk, primes

WITHIN_S = 0.5
SHARD_BLOCK = BlockId(0, 1 << 63, 5, b"\x05" * 32, b"\x06" * 32)
MASTER_BLOCK = BlockId(-1, 1 << 63, 9, b"\x07" * 32, b"\x08" * 32)


class Claimed:
    """What a full node answers after it has signed a Finalized of its own invention."""

    def __init__(self, data: Path) -> None:
        asyncio.run(self._claim(data))

    async def _claim(self, data: Path) -> None:
        async with a_served_desk(data) as (desk, facts):
            messages = ExternalMessages(facts)
            self.message_id = (await messages.submit(primes(), 5)).message_id
            metrics = self._measured(desk)
            made_up = Accepted(Level.MASTERCHAIN, SHARD_BLOCK, MASTER_BLOCK)
            receipt = desk.node._signed(self.message_id, made_up)
            desk.node._publish_counted(receipt)
            metrics.heard(receipt, desk.node.now_ms)
            self.waited: MessageVerdict = await messages.wait_for(self.message_id, Awaited.FINAL, WITHIN_S)
            self.metrics = metrics.render(desk.node.now_ms).decode()
            self.proof = await messages.proof(self.message_id, WITHIN_S)
            request = SubmitRequest(data, primes(), Awaited.FINAL, WITHIN_S, as_json=True)
            self.exit_code = await submit_and_follow(request)
            await messages.close()

    def _measured(self, desk: FullNodeDesk) -> FullNodeMetrics:
        metrics = FullNodeMetrics(240_000, lambda: desk.proofs.awaited)
        metrics.taken(self.message_id, "0:8000000000000000", desk.node.now_ms)
        return metrics


def test_a_made_up_finalized_is_a_claim_and_a_proof_nowhere(tmp_path: Path) -> None:
    claimed = Claimed(tmp_path)
    identifier, run = claimed.message_id.hex(), CliRunner()

    assert (claimed.waited.verdict, claimed.waited.is_reached) == ("finalized", False), "the claim is shown"
    assert not claimed.waited.has_ended
    assert claimed.waited.proof is None
    assert claimed.proof is None
    assert claimed.exit_code == 4

    assert "stagepost_remp_unproved_messages 1.0" in claimed.metrics
    assert 'stagepost_remp_proved_total{end="executed"} 0.0' in claimed.metrics

    assert proved_end(tmp_path, claimed.message_id) is None
    asked = run.invoke(prove, [identifier, "--data", str(tmp_path)], standalone_mode=False)
    assert asked.return_value == 4
    traced = run.invoke(trace, [identifier, "--data", str(tmp_path)], standalone_mode=False)
    assert "Finalized" in traced.output
    assert "end not known yet" in traced.output

    dump = tmp_path / "dump.jsonl"
    values = [
        record.value or b"" for record in topic_records(tmp_path) if b"Finalized" in (record.value or b"")
    ]
    assert len(values) == 1
    dump.write_text(json.dumps({"key": identifier, "value": values[0].decode()}) + "\n")
    receipts = run.invoke(
        verify, [str(dump), "--validator-sets", str(tmp_path / SETS_FILE)], standalone_mode=False
    )
    assert receipts.return_value == 0, "the signature is valid"
    assert "receipts are claims: they prove no end" in receipts.output
    proof = run.invoke(verify, [str(dump), "--genesis", str(tmp_path / GENESIS_FILE)], standalone_mode=False)
    assert proof.return_value == 1
    assert "refused   FORM" in proof.output

    with served(WebSettings(tmp_path, port=0)) as server, httpx.Client(base_url=server.base) as client:
        page = client.get(f"/trace/{identifier}").text
        row = client.get(f"/api/v1/messages/{identifier}").json()
        listed = client.get("/api/v1/messages").json()["rows"]
    assert "<strong>not known yet</strong>" in page
    assert 'class="seal proved"' not in page
    assert '<section class="verdict good">' in page, "the colour of a claim"
    assert (row["verdict"], row["proof"], row["end"]) == ("finalized", "none", "not known yet")
    assert [(one["verdict"], one["proof"]) for one in listed] == [("finalized", "none")]
    assert json.loads(values[0])["kind"] == "Finalized"
