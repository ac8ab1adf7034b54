"""What a node tells over HTTP is what its parts know, and never the body of a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from stagepost.dmq.equivocation import Equivocations
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.node.blame import OnViolation
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.local_service import LOCAL_SOURCE
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.node.mempool_feed import Audience, OnSent
from stagepost.dmq.node.metrics import Metrics
from stagepost.dmq.node.peer_book import PeerBook, PeerOrigin
from stagepost.dmq.node.pools_file import PoolsFile
from stagepost.dmq.node.status import CLOCK_BEHIND_MAX_S, DmqNodeStatus
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import MiniProtocol
from stagepost.dmq.validation import MessageValidator, ValidationRules
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.signatures.verifier import InlineVerifier
from stagepost.ground.telemetry.status import (
    DmqNodePage,
    HeldMessages,
    MempoolStatus,
    PeerStatus,
    PoolsStatus,
)
from tests.worlds.dmq.pool_signers import NOW, Signer


class Node:
    """The parts of a node that are asked, without a network."""

    def __init__(self, pools: PoolsFile) -> None:
        self.disk = MemoryDisk()
        self.store = MemoryStore(self.disk)
        self.store.load()
        self.clock = LoopClock(NOW)
        self.mempool = Mempool()
        validator = MessageValidator(ValidationRules(message_gap_s=0), pools)
        self.intake = Intake(validator, self.mempool, self.store, self.clock, verifier=InlineVerifier())
        self.book = PeerBook(Random(1))
        self.on_violation: list[OnViolation] = []
        self.on_sent: list[OnSent] = []
        self.audience = Audience()
        self.equivocations = Equivocations()
        self.kes_periods_remaining: int | None = None
        self.peers: list[PeerStatus] = []
        self.told = DmqNodeStatus(self, self.store, pools, Metrics())

    def status(self) -> DmqNodePage:
        return DmqNodePage(
            version="1",
            uptime_s=0.0,
            network_magic=1,
            ready=True,
            mempool=MempoolStatus(),
            peers=tuple(self.peers),
            kes_periods_remaining=self.kes_periods_remaining,
        )


@pytest.fixture
def pools(tmp_path: Path) -> PoolsFile:
    path = tmp_path / "pools.json"
    entries = [{"pool_id": Signer().pool_id.hex(), "stake": 1}]
    path.write_text(json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 1, "pools": entries}))
    pools = PoolsFile(path)
    pools.load()
    return pools


def with_node(pools: PoolsFile, test: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await test(Node(pools))

    run_in_virtual_time(run())


def test_messages_are_counted_by_where_they_came_from_and_what_became_of_them(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        await node.intake.submit(Signer().sign(1), LOCAL_SOURCE)
        await node.intake.submit(Signer().sign(1), "10.0.0.1:3141")
        await node.intake.submit(Signer(number=1).sign(2), "10.0.0.1:3141")

        shown = node.told.metrics().decode()

        local, peer = 'protocol="local-message-submission"', 'protocol="message-submission"'
        assert f'stagepost_dmq_messages_total{{outcome="accepted",{local}}} 1.0' in shown
        assert f'stagepost_dmq_messages_total{{outcome="rejected",{peer}}} 2.0' in shown
        assert 'stagepost_dmq_rejections_total{reason="MSG_DUPLICATE"} 1.0' in shown
        assert 'stagepost_dmq_rejections_total{reason="POOL_UNKNOWN"} 1.0' in shown
        assert "stagepost_dmq_mempool_messages 1.0" in shown
        assert f"stagepost_dmq_mempool_bytes {len(Signer().sign(1).raw)}.0" in shown

    with_node(pools, test)


def test_peers_are_counted_by_state(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        node.book.add(PeerAddress("10.0.0.1", 1), PeerOrigin.PUBLIC_ROOT, "dmq-node")
        node.peers = [PeerStatus("10.0.0.1:1", state=state) for state in ("hot", "hot", "warm")]

        shown = node.told.metrics().decode()

        for state, count in (("cold", 1), ("warm", 1), ("hot", 2)):
            assert f'stagepost_dmq_peers{{state="{state}"}} {count}.0' in shown

    with_node(pools, test)


def test_messages_that_leave_are_counted_as_sent(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        for hook in node.on_sent:
            hook(MiniProtocol.MESSAGE_SUBMISSION, 2)
            hook(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, 3)

        shown = node.told.metrics().decode()

        assert 'stagepost_dmq_messages_total{outcome="sent",protocol="message-submission"} 2.0' in shown
        name = 'stagepost_dmq_messages_total{outcome="sent",protocol="local-message-notification"}'
        assert f"{name} 3.0" in shown

    with_node(pools, test)


def test_periods_left_are_shown_while_a_key_is_in_use(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        name = "stagepost_kes_periods_remaining"
        assert f"\n{name} " not in node.told.metrics().decode()
        node.kes_periods_remaining = 12
        assert f"\n{name} 12.0" in node.told.metrics().decode()
        node.kes_periods_remaining = None
        assert f"\n{name} " not in node.told.metrics().decode()

    with_node(pools, test)


def test_second_bodies_are_counted_also_those_found_before_anybody_asked(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        for tag in (1, 2, 3):
            node.equivocations.hold(Signer().sign(tag))
        late = DmqNodeStatus(node, node.store, pools, Metrics())
        node.equivocations.check(Signer().sign(4))

        name = "stagepost_dmq_equivocations_total"
        for told in (node.told, late):
            shown = told.metrics().decode()
            assert f'{name}{{outcome="held"}} 2.0' in shown
            assert f'{name}{{outcome="refused"}} 1.0' in shown

    with_node(pools, test)


def test_everything_is_ready_at_first(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        assert node.told.readiness() == {"store": None, "pools": None, "clock": None}

    with_node(pools, test)


def test_a_full_disk_makes_the_store_not_ready_and_freed_space_makes_it_ready(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        node.disk.is_full = True
        await node.intake.submit(Signer().sign(1), LOCAL_SOURCE)
        assert node.told.readiness()["store"] is not None

        node.disk.is_full = False
        await node.intake.submit(Signer().sign(1), LOCAL_SOURCE)
        assert node.told.readiness()["store"] is None

    with_node(pools, test)


def test_a_clock_that_was_set_back_is_told_beyond_the_tolerance(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        await node.intake.submit(Signer().sign(1), LOCAL_SOURCE)
        node.clock.step(-CLOCK_BEHIND_MAX_S)
        assert node.told.readiness()["clock"] is None

        node.clock.step(-100)
        assert str(node.told.readiness()["clock"]).startswith(
            "this machine's clock was set back by 105 s, and"
        )

    with_node(pools, test)


def test_status_adds_pools_and_parts_to_what_the_node_says(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        status = node.told.status()

        assert status.ready is True
        assert status.pools == PoolsStatus(1, None, pools.works_with)
        assert "pools.json" in pools.works_with
        assert status.parts == {"store": None, "pools": None, "clock": None}
        assert msgspec.json.decode(json.dumps(msgspec.to_builtins(status)), type=DmqNodePage) == status

    with_node(pools, test)


def test_messages_held_are_listed_page_by_page_without_their_bodies(pools: PoolsFile) -> None:
    async def test(node: Node) -> None:
        messages = [Signer().sign(tag) for tag in (1, 2, 3)]
        await node.intake.submit_many(messages, LOCAL_SOURCE)

        first = node.told.held_messages(0, 2)
        second = node.told.held_messages(first.next or 0, 2)

        assert [entry.message_id for entry in first.entries + second.entries] == [
            message.message_id.hex() for message in messages
        ]
        assert msgspec.to_builtins(first.entries[0]) == {
            "index": 1,
            "message_id": messages[0].message_id.hex(),
            "pool_id": format_pool_id(Signer().pool_id),
            "expires_at": messages[0].expires_at,
            "received_ms": NOW * 1_000,
            "source": LOCAL_SOURCE,
            "bytes": len(messages[0].raw),
        }
        assert (first.next, second.next) == (2, None)
        assert node.told.held_messages(3, 2) == HeldMessages((), None)
        assert messages[0].body.hex() not in json.dumps(msgspec.to_builtins(first))

    with_node(pools, test)
