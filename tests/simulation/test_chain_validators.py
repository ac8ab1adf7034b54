"""Ledger and agreement together: validators make blocks of shards and of the masterchain, through sessions and a split."""

from __future__ import annotations

import pytest

from rigs.chain_messages import a_transfer, address
from stagepost.chain.agreement.certificate import check, decode_certificate
from stagepost.chain.contracts import ContractKind
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.chain.chain_validators import LIFETIME_MS, ChainWorld

RUN_S = 3 * LIFETIME_MS / 1_000
ACCOUNTS = [address(ContractKind.BALANCE, number) for number in range(12)]


@pytest.mark.parametrize("size", [4])
def test_validators_agree_on_every_block_and_every_message_counts_once(size: int, run_seed: int) -> None:
    print(f"seed {run_seed}")
    world = ChainWorld(size, run_seed, tuple((one, 1_000) for one in ACCOUNTS))
    world.run(1.0)
    (whole,) = world.nodes[0].ledger.sessions()
    for node in world.nodes:
        node.plans = [Plan(PlanKind.SPLIT, whole.shard, world.now_ms + 1_000)]
    offered = []
    for number in range(60):
        source, to = world.random.sample(ACCOUNTS, 2)
        offered.append(a_transfer(source, to, 1 + number, salt=number))
        world.offer(offered[-1])
        world.run(world.now + 0.1)
    world.run(RUN_S)

    first = world.nodes[0]
    for node in world.nodes:
        assert not node.pending
        assert not node.declined
        taken = [one for event in node.applied for final in event.blocks for one in final.messages]
        assert sorted(one.message_id for one in taken) == sorted(one.message_id for one in offered)
        least = min(node.ledger.master.seqno, first.ledger.master.seqno)
        assert [one.master_id for one in node.applied[:least]] == [
            one.master_id for one in first.applied[:least]
        ]
        assert len(node.ledger.sessions()) == 2
        assert node.ledger.master.catchain_seqno >= 3
    payloads = [kept.payload for kept in first.kept.blocks()]
    Oracle(world.genesis).run(payloads)


def test_every_block_that_was_kept_has_a_certificate_that_anybody_can_check(run_seed: int) -> None:
    world = ChainWorld(4, run_seed, tuple((one, 1_000) for one in ACCOUNTS))
    world.run(1.0)
    world.offer(a_transfer(ACCOUNTS[0], ACCOUNTS[1], 5))
    world.run(4.0)

    (session,) = world.nodes[0].ledger.sessions()
    keys = {session.session_id: session.public_keys}
    master = world.nodes[0].ledger.master_session()
    keys[master.session_id] = master.public_keys
    kept = list(world.nodes[0].kept.blocks())
    assert len(kept) >= 2
    for one in kept:
        certificate = decode_certificate(one.certificate)
        assert (certificate.session_id, certificate.block) == (one.session_id, one.candidate)
        check(certificate, keys[one.session_id])
