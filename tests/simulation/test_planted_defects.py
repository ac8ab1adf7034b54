"""The simulation can fail: each of these defects, planted into the production classes, is caught by a checker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from stagepost.dmq import downloads as downloads_module
from stagepost.dmq.downloads import Downloads
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node import intake as intake_module
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.mempool_feed import MempoolFeed
from stagepost.dmq.node.message_store import StoredMessage, StoredState, Written
from stagepost.dmq.node.peer_book import PeerBook
from stagepost.dmq.outcome import ACCEPTED
from stagepost.dmq.pulling import PullCore
from stagepost.dmq.supplying import MessagesHeld, SupplyCore
from stagepost.dmq.validation import MessageValidator
from stagepost.errors import StorageError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.loop.virtual_time import Patience
from stagepost.simulation import world as world_module
from stagepost.simulation.traffic import Traffic
from tests.simulation.dmq_scenarios import run_seed

SEEDS_TRIED = 6

Plant = Callable[[pytest.MonkeyPatch], None]


def accepts_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(world_module, "MemoryStore", partial(MemoryStore, is_safe=False))


def takes_a_full_disk_for_success(patch: pytest.MonkeyPatch) -> None:
    write = MemoryStore.write

    def write_anyhow(store: MemoryStore, records: Sequence[StoredMessage], written: Written) -> None:
        def succeeded(_: StorageError | None) -> None:
            store.fault = None
            written(None)

        write(store, records, succeeded)

    patch.setattr(MemoryStore, "write", write_anyhow)


def forgets_everything_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "load", lambda store: StoredState())


def skips_expiry(patch: pytest.MonkeyPatch) -> None:
    async def never(_: Intake) -> None:
        await asyncio.Event().wait()

    patch.setattr(Intake, "expire_loop", never)


def repeats_what_a_program_was_told(patch: pytest.MonkeyPatch) -> None:
    """The place moves to the first message of a batch instead of the last, as in running nodes."""
    take = MempoolFeed.take

    def take_with_fault(feed: MempoolFeed, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        before = feed._cursor
        messages, has_more = take(feed, count_max)
        if len(messages) > 1:
            feed._cursor = before + 1
        return messages, has_more

    patch.setattr(MempoolFeed, "take", take_with_fault)


def skips_what_a_program_was_not_told(patch: pytest.MonkeyPatch) -> None:
    """One message for each request, and the place moves behind all of them."""
    take = MempoolFeed.take

    def take_with_fault(feed: MempoolFeed, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        messages, _ = take(feed, count_max)
        return messages[:1], False

    patch.setattr(MempoolFeed, "take", take_with_fault)


def wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bell, "ring", lambda bell: None)


def acknowledges_before_the_download(patch: pytest.MonkeyPatch) -> None:
    """What another peer has announced already counts as if we had it."""
    is_held = PullCore._is_held

    def is_announced(core: PullCore, message_id: MessageId) -> bool:
        known = core._downloads._table.get(message_id)
        return is_held(core, message_id) or (known is not None and core._claimant not in known.announcers)

    patch.setattr(PullCore, "_is_held", is_announced)


def supplies_only_what_is_new_after_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    begin = SupplyCore.__init__

    def begin_at_the_end(core: SupplyCore, held: MessagesHeld, layouts: frozenset[object]) -> None:
        begin(core, held, layouts)  # type: ignore[arg-type]
        core._cursor = held.last_index

    patch.setattr(SupplyCore, "__init__", begin_at_the_end)


def leases_never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(downloads_module, "LEASE_S", 1e9)
    patch.setattr(downloads_module, "STUCK_S", 1e9)
    patch.setattr(Downloads, "withdraw", lambda table, claimant, message_id: None)


def believes_every_signature(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageValidator, "check_signatures", lambda validator, message: None)


def says_yes_to_replays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intake_module, "_HELD", ACCEPTED)


def gives_up_on_a_lost_peer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PeerBook, "disconnected", lambda *_: None)


async def spins(_: Intake) -> None:
    """Looks again and again without waiting for anything."""
    while True:
        await asyncio.sleep(0)


def test_a_node_that_spins_is_caught_with_its_seed_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "expire_loop", spins)

    result = run_seed(5, "crashes", Patience(steps_at_once_max=2_000))

    assert [violation.partition(":")[0] for violation in result.violations] == ["every_run_ends"]
    assert "the world of seed 5: 2000 turns of the loop passed" in result.report()
    assert "spins: await asyncio.sleep(0)" in result.report()
    assert "dmq_scenarios 5 crashes" in result.report()


def test_a_run_that_waits_for_ever_is_caught_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever(_: Traffic) -> None:
        while True:
            await asyncio.sleep(1)

    monkeypatch.setattr(Traffic, "settle", for_ever)

    result = run_seed(5, "crashes", Patience(virtual_s_max=600))

    assert "the world of seed 5: it is not over after 600 s of virtual time" in result.report()
    assert "for_ever: await asyncio.sleep(1)" in result.report()


@pytest.mark.parametrize(
    ("plant", "scenario", "rules"),
    [
        (accepts_before_it_is_on_disk, "crashes", {"what_was_accepted_survives_a_restart"}),
        (takes_a_full_disk_for_success, "crashes", {"what_was_accepted_survives_a_restart"}),
        (
            forgets_everything_at_a_restart,
            "crashes",
            {"what_was_accepted_survives_a_restart", "no_replay_is_accepted"},
        ),
        (skips_expiry, "faults", {"nothing_expired_is_shown"}),
        (repeats_what_a_program_was_told, "faults", {"no_cursor_repeats"}),
        (skips_what_a_program_was_not_told, "faults", {"no_cursor_skips"}),
        (wakes_nobody, "faults", {"no_cursor_skips"}),
        (acknowledges_before_the_download, "eclipse", {"every_accepted_message_is_everywhere"}),
        (supplies_only_what_is_new_after_a_reconnect, "faults", {"every_accepted_message_is_everywhere"}),
        (leases_never_expire, "eclipse", {"every_accepted_message_is_everywhere"}),
        (believes_every_signature, "crashes", {"only_genuine_messages"}),
        (says_yes_to_replays, "crashes", {"no_replay_is_accepted"}),
        (gives_up_on_a_lost_peer, "faults", {"every_accepted_message_is_everywhere"}),
        (gives_up_on_a_lost_peer, "sybil", {"every_accepted_message_is_everywhere"}),
    ],
)
def test_a_planted_defect_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, scenario: str, rules: set[str]
) -> None:
    plant(monkeypatch)

    found: set[str] = set()
    for seed in range(SEEDS_TRIED):
        found |= {violation.partition(":")[0] for violation in run_seed(seed, scenario).violations}
        if rules <= found:
            break

    assert rules <= found
