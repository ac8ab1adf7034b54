"""A validator that hides its receipts from a full node, as processes: challenged through the others, it shows them in its own
block, or its own blocks convict it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.messages import SumMessage, account_of
from stagepost.full_node.running import CHALLENGES_FILE
from stagepost.ground.crypto import ed25519
from stagepost.ground.files.audit import AUDIT_FILE
from stagepost.ground.wire.tl import key_id
from tests.hostile.planted import planted

pytestmark = pytest.mark.xdist_group("devnet")

LIFE_S = 4.0
WITHIN_S = 120.0
ATTACKER = "validator-4"

NOBODY_COLLATES = """
    import sys
    from stagepost.validator.queue_bridge import QueueBridge
    QueueBridge.take = lambda self, session_id: []
    QueueBridge.has_messages = lambda self, session_id: False
    """
HIDES = """
    if any("validator-4" in one for one in sys.orig_argv):
        from stagepost.remp.receipts.compact import CombinedReceipt
        from stagepost.remp.receipts.statements import is_outcome
        from stagepost.validator.links import ReceiptLink
        honest = ReceiptLink.tell
        def tell(self, said, statement):
            if not is_outcome(said):
                if any(one.kind.name != "PutIntoQueue" for one in CombinedReceipt.decode(said).receipts):
                    return True
            return honest(self, said, statement)
        ReceiptLink.tell = tell
    """
ANSWERS_NOTHING = """
    if any("validator-4" in one for one in sys.orig_argv):
        from stagepost.validator.session_runner import SessionRunner
        SessionRunner._answer = lambda self, newest: None
    """


async def the_outcome(network: Devnet, data: Path) -> dict[str, object]:
    """Submit messages as long as no outcome of a challenge of the attacker is known; return the first one."""
    file = data / CHALLENGES_FILE
    attacker = key_id(ed25519.public_key(network.plan.seed_of(ATTACKER))).hex()
    async with asyncio.timeout(WITHIN_S):
        for number in range(3, 2_000):
            message = SumMessage(account_of(b"silent", number % 16), number)
            await network.front.submit(message.data(network.front.now_ms))
            await asyncio.sleep(0.3)
            lines = file.read_text().splitlines() if file.exists() else []
            found: list[dict[str, object]] = [json.loads(line) for line in lines]
            # On a slow machine an honest validator may be asked about, too.
            about = [one for one in found if one["source_id"] == attacker]
            if about:
                return about[0]
    raise AssertionError("no outcome")


def actions(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / AUDIT_FILE).read_text().splitlines()]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(HIDES, "further"), (HIDES + ANSWERS_NOTHING, "convicted")],
    ids=["hides receipts", "hides receipts and answers nothing"],
)
def test_a_silent_validator_is_challenged(
    code: str,
    outcome: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in planted(tmp_path / "defect", NOBODY_COLLATES + code).items():
        monkeypatch.setenv(name, value)
    data = tmp_path / "data"
    plan = DevnetPlan(validators=4, seed=25, message_timeout_s=LIFE_S)

    async def main() -> dict[str, object]:
        async with devnet(plan, data, one_process=False) as network:
            await network.ready()
            return await the_outcome(network, data)

    found = asyncio.run(main())
    logs = {name: (data / name / "log").read_text() for name in plan.names if (data / name / "log").exists()}
    assert found["outcome"] == outcome, logs
    assert found["known"] == 1
    assert found["newest"] == (2 if outcome == "further" else None)
    # Who has asked stands in the audit file of the full node, and in those of the validators that were asked.
    asked = [one for one in actions(data) if one["what"].startswith(f"challenge of {ATTACKER}")]
    assert {(one["who"], one["through"]) for one in asked} == {("full-node", "link")}
    relayed = [
        one for name in plan.names[:3] if (data / name / AUDIT_FILE).exists() for one in actions(data / name)
    ]
    assert relayed
    assert {one["who"] for one in relayed} == {"full-node"}
    assert any(one["what"].startswith(f"challenge of {ATTACKER}") for one in relayed)
    for name in plan.names[:3]:
        blamed = "BlameReport(source=" in logs[name]
        assert blamed is (outcome == "convicted"), logs[name]
    assert not any("Traceback" in text for text in logs.values())
