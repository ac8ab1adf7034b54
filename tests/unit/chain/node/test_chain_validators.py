"""Validators and full nodes with real agreement, ledgers and stores in virtual time: what they agree on under loss and
crashes, and what a restart finds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import count

import msgspec
import pytest

from rigs.agreement_keys import public_key_of
from rigs.chain_messages import address, external, some_primes
from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.effects import (
    BlamedValidator,
    DisputedBlock,
    Halt,
    Record,
    RecoveredVotes,
    StalledSlot,
)
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.votes import VoteKind
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.contracts import ContractKind
from stagepost.chain.genesis import Genesis
from stagepost.chain.master_state import PlanKind
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.validator import LINGER_S, Answer, ChainValidator
from stagepost.chain.rotation import Plan
from stagepost.errors import ConfigError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.storage.group_writer import Written
from stagepost.ground.storage.tables import Held
from stagepost.remp.ledger import CandidateLost, LedgerSession, MasterApplied
from stagepost.remp.message import ExternalMessage
from tests.worlds.chain.chain_overlay_runs import run_once
from tests.worlds.chain.chain_overlay_world import OPTIONS, ChainHouse, ChainOverlayWorld
from tests.worlds.chain.chain_replay import replay
from tests.worlds.chain.chain_validators import genesis_of
from tests.worlds.chain.chain_world import START_MS


def masters(world: ChainOverlayWorld) -> set[bytes]:
    return {house.running.ledger.master.hash for house in world.houses if house.follower is not None}


def included(house: ChainHouse, genesis: Genesis) -> Counter[bytes]:
    """Messages of the whole chain on this house's disk, played again from the genesis."""
    assert house.store is not None
    played = replay(genesis, [kept.payload for kept in house.store.blocks()])
    assert played.master.hash == house.running.ledger.master.hash
    return Counter(message_id for block in played.order for message_id in block.message_ids)


async def settled(world: ChainOverlayWorld) -> None:
    """Everything offered is in the chain, and everybody knows the same one."""
    ledgers = [house.running.ledger for house in world.houses]
    await world.until(
        lambda: (
            all(not house.pending for house in world.validators)
            and all(not ledger.following.known for ledger in ledgers)
            and len(masters(world)) == 1
        ),
        "every message in the masterchain, and one chain for all",
    )


def test_messages_become_final_everywhere_and_an_idle_chain_makes_no_blocks() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 1, full_nodes=1, configure=long_lived)
        world.start()
        for number in range(10):
            world.offer(some_primes(number))
            await asyncio.sleep(0.3)
        await settled(world)
        height = world.houses[0].running.ledger.master.seqno
        assert height <= 12
        await asyncio.sleep(20.0)
        assert {house.running.ledger.master.seqno for house in world.houses} == {height}
        for house in world.houses:
            assert house.included == Counter(dict.fromkeys(world.offered, 1))
        assert world.houses[-1].running.counters.taken > 0
        assert [house.notices for house in world.houses] == [[]] * 5
        world.check()
        await world.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(3))
def test_under_loss_crashes_splits_and_merges_all_end_with_one_chain_and_no_message_twice(seed: int) -> None:
    run_once(seed)


def test_links_that_are_slow_make_no_more_blocks_than_quick_ones() -> None:
    """Who has proposed, or sees a proposal, does not wish for another block before it knows what this one holds."""

    async def main() -> None:
        world = ChainOverlayWorld(7, 1, delay_s=(0.01, 0.06), configure=long_lived)
        world.start()
        await asyncio.sleep(3.0)
        for number in range(12):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(0.3)
        await settled(world)
        await asyncio.sleep(3.0)
        ledger = world.houses[0].running.ledger
        assert ledger.master.seqno <= 14
        assert ledger.master.shards[0].seqno <= 13
        world.check()
        await world.close()

    run_in_virtual_time(main())


def crash_after_write(house: ChainHouse, at: int) -> None:
    """The power goes when the house has written this often, before anybody hears of it."""
    store = house.store
    assert store is not None
    written_before = store.put_records
    writes = count(1)

    def put_records(session_id: bytes, records: Sequence[Record], written: Written) -> None:
        def power_goes() -> None:
            house.crash()

        written_before(session_id, records, power_goes if next(writes) == at else written)

    store.put_records = put_records  # type: ignore[method-assign]  # a house whose power goes on order


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_who_crashes_between_disk_and_network_goes_on_without_contradicting_itself(at: int) -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, at, configure=long_lived)
        world.start()
        victim = world.houses[2]
        await world.until(lambda: all(is_started(house) for house in world.houses), "all started")
        crash_after_write(victim, at)
        number = 0
        while victim.follower is not None:
            world.offer(some_primes(number, salt=number))
            number += 1
            await asyncio.sleep(0.3)
            assert number < 50
        victim.start()
        world.offer(some_primes(1_000))
        await settled(world)
        assert [house.notices for house in world.houses] == [[]] * 4
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_a_lone_validator_signs_nothing_until_a_quorum_has_answered() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 1, configure=long_lived)
        alone = world.houses[0]
        alone.start()
        world.offer(some_primes(1))
        await asyncio.sleep(120.0)
        assert not is_started(alone)
        assert alone.store is not None
        assert not [one for session in alone.store.sessions for one in alone.store.load_records(session)]
        assert {type(one) for _, one in alone.notices} == {StalledSlot}
        world.houses[1].start()
        await asyncio.sleep(10.0)
        assert not is_started(alone), "two of four are not a quorum"
        world.houses[2].start()  # the fourth is dead for good
        living = world.houses[:3]
        await world.until(lambda: all(is_started(house) for house in living), "three of four started")
        await world.until(lambda: all(house.included for house in living), "the message in the masterchain")
        await world.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_safe", [True, False])
def test_who_speaks_before_the_disk_is_found_out_and_nobody_else(is_safe: bool) -> None:
    """A planted defect: others remember votes that the restarted validator does not."""

    async def notices(seed: int) -> list[object]:
        world = ChainOverlayWorld(4, seed, configure=long_lived)
        victim = world.houses[2]
        victim.is_safe = is_safe
        world.start()
        await world.until(lambda: all(is_started(house) for house in world.houses), "all started")
        for number in range(3):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(world.random.uniform(0.01, 0.06))
        victim.crash()
        victim.start()
        await asyncio.sleep(5.0)
        await world.close()
        kinds = RecoveredVotes | BlamedValidator | Halt
        return [one for house in world.houses for _, one in house.notices if isinstance(one, kinds)]

    found = [one for seed in range(5) for one in run_in_virtual_time(notices(seed))]
    assert bool(found) is not is_safe


@pytest.mark.parametrize("seed", range(3))
def test_who_restarts_from_an_older_disk_catches_up_and_never_contradicts_itself(seed: int) -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, seed, loss=0.02)
        world.start()
        victim = world.houses[1]
        image: Held = {}
        for number in range(40):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(world.random.uniform(0.1, 0.6))
            if number == 12:
                image = {name: dict(rows) for name, rows in victim.disk.synced.items()}
            if number == 15 + 5 * seed:
                victim.crash()
                victim.disk.synced.clear()
                victim.disk.synced.update(image)
                victim.start()
        await settled(world)
        for house in world.houses:
            assert included(house, world.genesis) == Counter(dict.fromkeys(world.offered, 1)), f"seed {seed}"
            bad = [one for _, one in house.notices if isinstance(one, BlamedValidator | DisputedBlock | Halt)]
            assert bad == [], f"seed {seed}"
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_a_session_that_began_before_we_did_is_listened_to_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a disk that is gone we may have voted there already; in one that begins while we run, nobody can have."""
    begun: list[tuple[int, float]] = []
    begin = ChainValidator._begin

    def noting(validator: ChainValidator, session: LedgerSession, options: MemberOptions) -> None:
        if validator.public_key == public_key_of(1):
            begun.append((session.from_ms, options.start_wait_s))
        begin(validator, session, options)

    async def main() -> None:
        world = ChainOverlayWorld(4, 1)
        world.start()
        victim = world.houses[1]
        for number in range(40):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(0.5)
            if number == 19:
                victim.crash()
                for rows in victim.disk.synced.values():
                    rows.clear()
                monkeypatch.setattr(ChainValidator, "_begin", noting)
                victim.start()
                restarted_ms = int(world.clock.unix_s() * 1_000)
        await settled(world)
        await world.close()
        before = [wait_s for from_ms, wait_s in begun if from_ms <= restarted_ms]
        after = [wait_s for from_ms, wait_s in begun if from_ms > restarted_ms]
        assert len(before) > 2, "it had sessions to catch up with"
        assert set(before) == {OPTIONS.member.start_wait_s}
        assert set(after) == {0.0}

    run_in_virtual_time(main())


def test_shards_split_and_merge_and_every_message_is_served_once() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 5, full_nodes=1)
        world.start()
        whole = world.houses[0].running.ledger.sessions()[0].shard
        plans = [
            Plan(PlanKind.SPLIT, whole, START_MS + 4_000),
            Plan(PlanKind.MERGE, whole, START_MS + 14_000),
        ]
        shards: set[int] = set()
        for number in range(60):
            if number in (2, 32):
                for house in world.validators:
                    assert house.validator is not None
                    house.validator.plans.append(plans[0 if number == 2 else 1])
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(0.3)
            shards.add(len(world.houses[0].running.ledger.sessions()))
        await settled(world)
        assert shards == {1, 2}
        assert len(world.houses[0].running.ledger.sessions()) == 1
        for house in world.houses:
            assert included(house, world.genesis) == Counter(dict.fromkeys(world.offered, 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_one_validator_alone_splits_and_merges_nothing_and_a_quorum_that_wants_it_does() -> None:
    """Each split and merge costs everybody a session: with one vote a single validator could make a session a second."""

    async def main() -> None:
        world = ChainOverlayWorld(4, 5, full_nodes=1, configure=long_lived)
        world.start()
        liar, *honest = (house.validator for house in world.validators)
        assert liar is not None
        whole = liar.ledger.sessions()[0].shard

        def shards() -> int:
            return len(world.houses[-1].running.ledger.master.shards)

        async def go_on(messages: int) -> None:
            """Let the liar ask for a split of one shard, and for a merge of two, whenever it leads."""
            for _ in range(messages):
                kind = PlanKind.SPLIT if shards() == 1 else PlanKind.MERGE
                liar.plans[:] = [Plan(kind, whole, START_MS)]
                world.offer(some_primes(len(world.offered), salt=len(world.offered)))
                await asyncio.sleep(0.3)

        for one, wish in zip(honest, (None, 1, 2), strict=True):
            assert one is not None
            one.want_shards(wish)
        await go_on(40)
        assert [entry.session.catchain_seqno for entry in liar.ledger.master.shards] == [1]
        for one in honest[:2]:
            assert one is not None
            one.want_shards(2)
        await world.until(lambda: shards() == 2, "three of four want two shards")
        await go_on(40)
        assert [entry.session.catchain_seqno for entry in liar.ledger.master.shards] == [2, 2]
        await settled(world)
        for house in world.houses:
            assert included(house, world.genesis) == Counter(dict.fromkeys(world.offered, 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_another_set_of_validators_takes_over_when_all_want_it() -> None:
    async def main() -> None:
        def first_four(configuration: Configuration) -> Configuration:
            current = configuration.current
            return msgspec.structs.replace(
                configuration, current=msgspec.structs.replace(current, validators=current.validators[:4])
            )

        world = ChainOverlayWorld(5, 12, configure=first_four)
        members = genesis_of(5, ()).configuration.current.validators
        following = ValidatorSet(START_MS + 8_000, START_MS + 86_400_000, members[1:])
        wanted = msgspec.structs.replace(world.genesis.configuration, next=following)
        world.start()
        newcomer, leaver = world.houses[4], world.houses[0]
        await asyncio.sleep(1.0)
        assert newcomer.validator is not None
        assert leaver.validator is not None
        assert newcomer.validator.sessions == {}
        for house in world.houses:
            assert house.validator is not None
            house.validator.want_configuration(wanted)
        for number in range(40):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(0.5)
        await settled(world)
        assert newcomer.running.ledger.master.seqno < 80
        assert newcomer.running.ledger.master.configuration.current == following
        assert len(newcomer.validator.sessions) == 2
        await asyncio.sleep(LINGER_S)
        assert leaver.validator.sessions == {}
        for house in world.houses:
            assert included(house, world.genesis) == Counter(dict.fromkeys(world.offered, 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("newest", [1, 2])
def test_a_network_goes_to_the_next_version_by_a_key_block_once_releases_speak_it(
    newest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.chain.configuration.NETWORK_VERSION", newest)

    async def main() -> None:
        world = ChainOverlayWorld(4, 14, full_nodes=1)
        wanted = msgspec.structs.replace(world.genesis.configuration, network_version=2)
        world.start()
        world.offer(some_primes(0))
        await settled(world)
        for house in world.validators:
            assert house.validator is not None
            if newest == 2:
                house.validator.want_configuration(wanted)
                continue
            with pytest.raises(ConfigError, match="network version 2 is not spoken here, 1 is"):
                house.validator.want_configuration(wanted)
        for number in range(1, 4):
            world.offer(some_primes(number))
            await asyncio.sleep(1.0)
        await settled(world)
        for house in world.houses:
            assert house.running.ledger.master.configuration.network_version == newest
            assert included(house, world.genesis) == Counter(dict.fromkeys(world.offered, 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_blocks_that_are_larger_than_a_link_takes_at_once_arrive() -> None:
    async def main() -> None:
        accounts = [address(ContractKind.UNTIL_FUNDED, number) for number in range(6)]
        balances = tuple((account, 1) for account in accounts)
        world = ChainOverlayWorld(4, 6, full_nodes=1, balances=balances, configure=long_lived)
        world.start()
        for number, account in enumerate(accounts):
            world.offer(external(account, bytes([number]) * 40_000, salt=number))
        await settled(world)
        store = world.houses[-1].store
        assert store is not None
        assert max(len(kept.payload) for kept in store.blocks()) > OBJECT_BYTES_MAX
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_what_the_check_from_outside_declines_is_not_voted_for() -> None:
    bad = some_primes(99)

    def check(session: LedgerSession, messages: Sequence[ExternalMessage], answer: Answer) -> None:
        is_bad = any(one.message_id == bad.message_id for one in messages)
        asyncio.get_running_loop().call_later(0.02, answer, "nobody knows it" if is_bad else None)

    async def main() -> None:
        world = ChainOverlayWorld(4, 7, configure=long_lived)
        world.check_messages = check
        world.start()
        await asyncio.sleep(1.0)
        liar = world.houses[1]
        world.offered[bad.message_id] = bad
        liar.pending[bad.message_id] = bad
        for number in range(8):
            world.offer(some_primes(number))
            await asyncio.sleep(1.0)
        await world.until(
            lambda: all(
                house.included.keys() >= world.offered.keys() - {bad.message_id} for house in world.houses
            ),
            "all but the bad one",
        )
        for house in world.houses:
            assert bad.message_id not in house.included
        assert all(
            house.validator is not None and house.validator.judging.declined for house in others(world, 1)
        )
        await world.close()

    run_in_virtual_time(main())


def test_a_full_node_that_was_away_for_whole_sessions_catches_up_and_hears_everything_in_order() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 8, full_nodes=1, loss=0.02)
        world.start()
        node = world.houses[-1]
        world.offer(some_primes(0))
        await asyncio.sleep(2.0)
        node.crash()
        for number in range(1, 30):
            world.offer(some_primes(number))
            await asyncio.sleep(0.5)
        node.start()
        await settled(world)
        assert node.included == Counter(dict.fromkeys(world.offered, 1))
        heights = [event.master_id.seqno for event in node.events if isinstance(event, MasterApplied)]
        assert heights == list(range(1, len(heights) + 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_old_blocks_go_behind_a_snapshot_and_a_restart_begins_from_it() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 9, keeps_all=False)
        world.start()
        for number in range(60):
            world.offer(some_primes(number, salt=number))
            await asyncio.sleep(0.6)
        await settled(world)
        house = world.houses[0]
        assert house.store is not None
        snapshot = house.store.snapshot()
        assert snapshot is not None
        kept = len(list(house.store.blocks()))
        assert kept < 100
        before = house.running.ledger
        lives = before.master.catchain_seqno - 2
        finals = {block.block_id for block in before.history(lives)}
        state = before.master.hash
        assert house.validator is not None
        world.leave(0)
        await house.validator.close()
        house.start()
        assert house.running.ledger.master.hash == state
        assert {block.block_id for block in house.running.ledger.history(lives)} == finals
        world.offer(some_primes(1_000))
        await settled(world)
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_who_calls_final_what_is_not_is_refused_and_changes_nothing() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 10, full_nodes=1, configure=long_lived)
        world.start()
        world.offer(some_primes(0))
        await settled(world)
        await asyncio.sleep(5.0)  # until blocks that were on their way are final too
        node, liar = world.houses[-1].running, world.houses[1].running
        before = node.ledger.master.hash
        session = node.ledger.master_session()
        number = node.chains[session.session_id].next_number
        store = world.houses[1].store
        assert store is not None
        last = final_block(store.of_session(session.session_id)[-1])
        signatures = last.certificate.signatures
        candidate = Candidate(last.candidate.slot + 1, last.certificate.block, b"nobody voted for this")
        forged = Certificate(
            session.session_id, candidate.slot, VoteKind.FINALISE, candidate.hash, signatures
        )
        liar.push(number, FinalBlock(candidate, bytes(64), forged), frozenset())
        await asyncio.sleep(0.1)
        for house in world.houses:
            if house.place != 1:
                assert [rule for _, rule, _ in world.links[house.place].refused] != []
                assert house.running.ledger.master.hash == before
                world.links[house.place].refused.clear()
        world.offer(some_primes(1))
        await settled(world)
        world.check()
        await world.close()

    run_in_virtual_time(main())


def test_a_disk_that_fails_for_a_while_makes_a_validator_silent_and_nothing_else() -> None:
    async def main() -> None:
        world = ChainOverlayWorld(4, 11, configure=long_lived)
        world.start()
        await world.until(lambda: all(is_started(house) for house in world.houses), "all started")
        victim = world.houses[1]
        victim.disk.is_full = True
        for number in range(10):
            world.offer(some_primes(number))
            await asyncio.sleep(0.5)
        assert victim.validator is not None
        assert victim.store is not None
        assert victim.store.fault is not None
        victim.disk.is_full = False
        await settled(world)
        await asyncio.sleep(3.0)
        victim.crash()
        victim.start()
        world.offer(some_primes(100))
        await settled(world)
        assert included(victim, world.genesis) == Counter(dict.fromkeys(world.offered, 1))
        bad = [
            one
            for house in world.houses
            for _, one in house.notices
            if isinstance(one, BlamedValidator | Halt)
        ]
        assert bad == []
        world.check()
        await world.close()

    run_in_virtual_time(main())


def long_lived(configuration: Configuration) -> Configuration:
    return msgspec.structs.replace(configuration, master_lifetime_ms=600_000, shard_lifetime_ms=600_000)


def is_started(house: ChainHouse) -> bool:
    assert house.validator is not None
    return all(runner.member.is_started for runner in house.validator.sessions.values())


def others(world: ChainOverlayWorld, place: int) -> list[ChainHouse]:
    return [house for house in world.validators if house.place != place]


@pytest.mark.parametrize("size", [1, 4])
def test_messages_of_a_candidate_that_came_to_nothing_are_not_left_lying(size: int) -> None:
    """Its slot was skipped because the disks were slow. Nothing else is sent that would make the chain go on."""

    async def main() -> None:
        world = ChainOverlayWorld(size, 1, configure=long_lived)
        world.start()
        world.offer(some_primes(0))
        await settled(world)
        quick = [house.disk.sync_s for house in world.houses]
        for house in world.houses:
            house.disk.sync_s = lambda: 3.0
        world.offer(some_primes(1))
        await asyncio.sleep(30.0)
        for house, sync_s in zip(world.houses, quick, strict=True):
            house.disk.sync_s = sync_s
        await settled(world)
        lost = sum(isinstance(event, CandidateLost) for house in world.houses for event in house.events)
        assert lost, "a candidate has come to nothing"
        for house in world.houses:
            assert house.included == Counter(dict.fromkeys(world.offered, 1))
        world.check()
        await world.close()

    run_in_virtual_time(main())
