"""A node's stake from a cardano-node, in virtual time: restarts, absence, borders of epochs and eras, and lies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagepost.dmq.cardano.ledger_watch import BEHIND_AFTER_S, LOOK_AGAIN_S, LedgerWatch
from stagepost.dmq.cardano.state_query import ANSWER_BYTES_MAX, QUERY_TIMEOUT_S
from stagepost.dmq.node.cardano_source import STAKE_FILE
from stagepost.ground.identifiers import PoolId
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX, LOCAL_INGRESS_BYTES_MAX
from tests.worlds.dmq.cardano_answers import LedgerState, generated_pools, stake_answer, transcript
from tests.worlds.dmq.cardano_node import EPOCH, ONLY_23, STAKE, PretendCardanoNode
from tests.worlds.dmq.cardano_world import DAY_S, ELIGIBLE, LEDGER, NOT_ELIGIBLE, POOLS, World, run, world


@pytest.mark.parametrize("count", [0, 1, 23, 24, 3000])
def test_the_set_stake_of_all_pools_is_in_force_after_one_round(tmp_path: Path, count: int) -> None:
    pools = generated_pools(count)

    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER.with_pools(pools))) as here:
            source = here.source
            assert source.is_ready
            assert source.not_ready_reason is None
            assert source.pool_count == count
            assert source.kes_evolutions_max == 62
            assert {pool: source.stake(PoolId(pool)) for pool in pools} == {
                pool: stakes[1] for pool, stakes in pools.items()
            }
            assert source.stake(PoolId(bytes(28))) is None
            assert f"stake of epoch 7, {count} pools" in source.works_with
            assert here.node.held == 0, "a released state costs the cardano-node no memory"

    run(scene)


def test_a_node_that_knows_version_23_only_is_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER, versions=ONLY_23)) as here:
            assert here.knows_stake()

    run(scene)


def test_bounds_of_four_elements_are_read(tmp_path: Path) -> None:
    async def scene() -> None:
        ledger = replace(LEDGER, era=7, bound_elements=4)
        async with world(tmp_path, PretendCardanoNode(ledger)) as here:
            assert "Dijkstra" in here.source.works_with

    run(scene)


def test_within_an_epoch_only_the_epoch_is_asked_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await asyncio.sleep(5 * LOOK_AGAIN_S)
            assert here.node.count(STAKE) == 1
            assert here.node.count(EPOCH) == 6
            assert here.node.connections == 1

    run(scene)


def test_at_the_border_stake_is_asked_once_and_only_when_the_epoch_has_changed(tmp_path: Path) -> None:
    fresh = {bytes(ELIGIBLE): (5, 0, 5)}

    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.until_epoch_end(-5)
            asked = here.node.count(EPOCH)
            await asyncio.sleep(5 + 120)  # the first block of the new epoch is late
            assert here.node.count(STAKE) == 1
            assert here.node.count(EPOCH) - asked <= 8, "not once a second"
            assert here.source.not_ready_reason is None
            assert here.source.stake(ELIGIBLE), "the old stake is used meanwhile"
            here.next_epoch(fresh)
            await asyncio.sleep(31)
            assert here.node.count(STAKE) == 2
            assert here.source.stake(ELIGIBLE) == 0
            assert "epoch 8" in here.source.works_with

    run(scene)


def test_ten_epochs_pass_with_one_question_for_stake_each(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            for _ in range(10):
                await here.until_epoch_end(20)
                here.next_epoch()
                await asyncio.sleep(40)
            assert here.node.count(STAKE) == 11
            assert "epoch 17" in here.source.works_with

    run(scene)


def test_a_restart_of_the_node_is_survived_and_noticed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.node.stop()
            await asyncio.sleep(2)
            assert here.source.stake(ELIGIBLE)
            assert here.source.not_ready_reason is None
            assert "node.socket" in here.source.works_with, "the sentence names the socket"
            await here.node_up()
            await asyncio.sleep(10)
            assert here.node.connections == 2
            assert here.source.fault_text is None
            assert here.node.count(STAKE) == 2, "a new connection may lead to another node"

    run(scene)


def test_an_hour_of_absence_costs_at_most_a_minute_of_waiting_and_no_stake(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.node.stop()
            await asyncio.sleep(3_600)
            assert here.knows_stake()
            assert here.source.not_ready_reason is None
            assert here.source.stake(ELIGIBLE)
            await here.node_up()
            await asyncio.sleep(61)
            assert here.source.fault_text is None

    run(scene)


def test_readiness_is_lost_after_an_epoch_without_news_and_the_stake_stays(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.node.stop()
            await asyncio.sleep(0.9 * DAY_S)
            reason = here.source.not_ready_reason
            assert reason is None
            await asyncio.sleep(0.2 * DAY_S)
            reason = here.source.not_ready_reason
            assert reason is not None
            assert "no news of the cardano-node since" in reason
            await asyncio.sleep(2 * DAY_S)
            reason = here.source.not_ready_reason
            assert reason is not None
            assert "stale stake of epoch 7" in reason
            assert "the clock is in epoch 10" in reason
            assert here.knows_stake(), "and it serves on"
            assert here.source.stake(ELIGIBLE)

    run(scene)


def test_a_node_that_comes_later_is_awaited(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER), is_up=False) as here:
            assert not here.knows_stake()
            assert here.source.kes_evolutions_max == 0
            reason = here.source.not_ready_reason
            assert reason is not None
            assert reason.startswith("no stake yet: cardano-node at /run/cardano/node.socket")
            await asyncio.sleep(600)
            await here.node_up()
            await asyncio.sleep(61)
            assert here.knows_stake()

    run(scene)


def test_a_node_in_byron_is_awaited(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(replace(LEDGER, era=0))) as here:
            await asyncio.sleep(3_600)
            assert not here.knows_stake()
            assert "Byron" in (here.source.not_ready_reason or "")
            assert here.node.connections == 1
            assert here.node.count("era") < 75, "at most once a minute after the first minute"
            here.node.ledger = LEDGER
            await asyncio.sleep(61)
            assert here.source.not_ready_reason is None

    run(scene)


def test_an_era_that_changes_between_two_questions_is_asked_again_on_the_same_connection(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER, era_changes=1)) as here:
            assert here.knows_stake()
            assert here.node.connections == 1
            assert here.node.held == 0

    run(scene)


def test_an_era_that_changes_twice_counts_as_failure_and_is_tried_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER, era_changes=2)) as here:
            assert not here.knows_stake()
            assert "changed its era twice" in (here.source.not_ready_reason or "")
            await asyncio.sleep(5)
            assert here.knows_stake()
            assert here.node.connections == 2

    run(scene)


def test_a_new_era_at_the_border_of_an_epoch_is_asked_by_its_number(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.until_epoch_end(1)
            here.next_epoch()
            here.node.ledger = replace(here.node.ledger, era=7)
            await asyncio.sleep(30)
            assert here.node.connections == 1
            assert "Dijkstra" in here.source.works_with

    run(scene)


def test_a_node_that_synchronises_is_asked_rarely_and_called_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        ledger = replace(LEDGER, epoch=300)
        async with world(tmp_path, PretendCardanoNode(ledger)) as here:
            here.clock.step(340 * DAY_S)
            await asyncio.sleep(LOOK_AGAIN_S + BEHIND_AFTER_S)
            asked = here.node.count(EPOCH)
            await asyncio.sleep(3_600)
            assert 55 <= here.node.count(EPOCH) - asked <= 62
            assert here.node.count(STAKE) == 1
            reason = here.source.not_ready_reason
            assert reason is not None
            assert "epoch 300" in reason
            assert "the clock is in epoch 640" in reason
            assert here.source.stake(ELIGIBLE), "and its stake is used"

    run(scene)


def test_a_history_that_ends_before_the_epoch_is_asked_again_within_minutes(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(replace(LEDGER, horizon=0))) as here:
            assert here.knows_stake()
            await asyncio.sleep(600)
            assert here.node.count(EPOCH) >= 5
            assert here.node.count(STAKE) == 1

    run(scene)


# The file


def test_the_last_stake_outlives_the_process_and_the_absence_of_the_node(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            await here.node.stop()
            await asyncio.sleep(1)
            second = here.new_source()
            second.load()
            assert second.is_ready
            assert second.not_ready_reason is None
            assert second.stake(ELIGIBLE) == here.source.stake(ELIGIBLE)
            assert second.stake(NOT_ELIGIBLE) == 0
            assert second.kes_evolutions_max == 62
            here.clock.step(3 * DAY_S)
            assert "stale stake of epoch 7" in (second.not_ready_reason or "")

    run(scene)


def test_the_stake_of_another_network_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            other = here.new_source(magic=43)
            other.load()
            assert not other.is_ready
        assert "kept stake not used" in caplog.text
        async with world(
            tmp_path,
            PretendCardanoNode(replace(LEDGER, system_start_unix_s=LEDGER.system_start_unix_s + 86_400)),
            is_up=False,
        ) as here:
            assert here.knows_stake(), "nothing is known against it yet"
            here.node.stalls_at = {"era"}
            await here.node_up()
            await asyncio.sleep(2 * QUERY_TIMEOUT_S)
            assert not here.knows_stake()
            assert not (tmp_path / STAKE_FILE).exists()

    run(scene)


def test_a_stake_that_cannot_be_kept_is_in_force_and_the_fault_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STAKE_FILE).mkdir()

    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            assert here.knows_stake()
        assert "kept stake not used" in caplog.text
        assert "stake not kept" in caplog.text

    run(scene)


def test_a_bug_in_one_conversation_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object, __: object) -> None:
        raise ZeroDivisionError

    async def scene() -> None:
        with monkeypatch.context() as defect:
            defect.setattr(LedgerWatch, "connected", broken)
            async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
                assert "a fault of this node" in (here.source.not_ready_reason or "")
                assert "conversation with the cardano-node failed" in caplog.text
                defect.undo()
                await asyncio.sleep(61)
                assert here.knows_stake()

    run(scene)


@pytest.mark.parametrize("damage", ["", "{}\n{}\n", "later", "flipped"])
def test_a_damaged_or_later_file_is_reported_and_the_stake_asked_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)):
            pass
        kept = (tmp_path / STAKE_FILE).read_bytes()
        if damage == "later":
            (tmp_path / STAKE_FILE).write_bytes(kept.replace(b'"version": 1', b'"version": 2'))
        elif damage == "flipped":
            (tmp_path / STAKE_FILE).write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
        else:
            (tmp_path / STAKE_FILE).write_text(damage)
        async with world(tmp_path, PretendCardanoNode(LEDGER), is_up=False) as here:
            assert not here.knows_stake()
            assert "kept stake not used" in caplog.text
            await here.node_up()
            await asyncio.sleep(61)
            assert here.knows_stake()
        assert (tmp_path / STAKE_FILE).read_bytes() != b""

    run(scene)


# Lies and faults


def lying(**changes: Any) -> PretendCardanoNode:
    return PretendCardanoNode(LEDGER, **changes)


POOL = b"\x58\x1c" + bytes(28)
LIES = {
    "negative stake": (lying(replaced={STAKE: bytes.fromhex("8184a1") + POOL + bytes.fromhex("83002000010101")}), "negative"),
    "a pool twice": (lying(replaced={STAKE: b"\x81\x84\xa2" + (POOL + b"\x83\x00\x00\x00") * 2 + b"\x01\x01\x01"}), "twice"),
    "an impossible start": (lying(replaced={"start": bytes.fromhex("83190bb81901c800")}), "not a possible date"),
    "an empty history": (lying(replaced={"history": b"\x80"}), "has no era"),
    "epochs of no length": (lying(replaced={"history": bytes.fromhex("8183830000 00f683001903e88100".replace(" ", ""))}), "length 0"),
    "a text for an epoch": (lying(replaced={EPOCH: b"\x81\x63foo"}), "expected an unsigned integer"),
    "another network's genesis": (lying(replaced={"genesis": replace(LEDGER, magic=41).genesis()}), "41"),
    "no evolutions": (lying(replaced={"genesis": LEDGER.genesis().replace(b"\x18\x3e", b"\x18\x7b")}), "KES evolutions"),
    "a cut answer": (lying(raw={STAKE: [b"\x82\x04" + stake_answer(POOLS)[:900]]}), "silence in Querying"),
    "a huge string": (lying(raw={STAKE: [b"\x82\x04\x5a\x7f\xff\xff\xff"]}), "the limit is 16777216"),
    "too many items": (lying(raw={STAKE: [b"\x82\x04\x9a\x7f\xff\xff\xff"]}), "the limit is 500000"),
    "too deep": (lying(raw={STAKE: [b"\x82\x04" + b"\x81" * 40]}), "nesting depth"),
    "an endless list": (lying(raw={STAKE: [b"\x82\x04\x9f", *[bytes(60_000)] * 20]}), "the limit is 500000"),
    "an endless string": (lying(raw={STAKE: [b"\x82\x04\x5f", *[b"\x59\xea\x60" + bytes(60_000)] * 600]}), "the limit is 16777216"),
    "a stall": (lying(stalls_at={STAKE}), "silence in Querying for 180 s"),
    "a close": (lying(closes_at={STAKE}), "closed the connection in Querying"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_in_a_sentence_and_the_truth_taken_later(tmp_path: Path, name: str) -> None:
    node, words = LIES[name]

    async def scene() -> None:
        async with world(tmp_path, node) as here:
            await asyncio.sleep(QUERY_TIMEOUT_S + 1)
            assert not here.knows_stake()
            assert words in (here.source.not_ready_reason or "")
            assert node.connections < 30, "it is asked more and more rarely"
            wasted = node.raw_bytes_written / node.connections
            assert wasted <= ANSWER_BYTES_MAX + EGRESS_BYTES_MAX + LOCAL_INGRESS_BYTES_MAX
            await node.stop()
            here.node = PretendCardanoNode(LEDGER)
            await here.node_up()
            await asyncio.sleep(2 * QUERY_TIMEOUT_S)
            assert here.source.not_ready_reason is None

    run(scene)


@pytest.mark.parametrize("name", ["negative stake", "a cut answer", "an endless list", "a close"])
def test_a_lie_about_the_next_epoch_leaves_the_present_stake_in_force(tmp_path: Path, name: str) -> None:
    liar, _ = LIES[name]

    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(LEDGER)) as here:
            stake = here.source.stake(ELIGIBLE)
            here.node.replaced, here.node.raw, here.node.closes_at = liar.replaced, liar.raw, liar.closes_at
            await here.until_epoch_end(1)
            here.next_epoch()
            await asyncio.sleep(QUERY_TIMEOUT_S + 60)
            assert here.source.stake(ELIGIBLE) == stake
            assert here.knows_stake()
            assert here.source.fault_text is not None

    run(scene)


def test_a_node_of_another_network_is_named_with_both_magics_and_tried_slowly(tmp_path: Path) -> None:
    async def scene() -> None:
        async with world(tmp_path, PretendCardanoNode(replace(LEDGER, magic=1))) as here:
            await asyncio.sleep(600)
            reason = here.source.not_ready_reason
            assert reason is not None
            assert "42" in reason
            assert "network magic" in reason
            assert here.node.connections <= 11
            here.node.ledger = LEDGER
            await asyncio.sleep(61)
            assert here.knows_stake()

    run(scene)


@pytest.mark.parametrize("name", ["dmq-sequence-mainnet", "dmq-sequence-preview-dijkstra"])
def test_the_stored_conversations_lead_to_the_stated_epoch(tmp_path: Path, name: str) -> None:
    """The server lines of the vectors, with the questions in another order where ours differs from dmq-node's."""
    magic, steps, expected = transcript(name)
    hexes = [step["hex"] for step in steps]
    answers = {
        hexes[index][4:]: bytes.fromhex(hexes[index + 1])[2:]
        for index, step in enumerate(steps)
        if step["message"].startswith("Query")
    }

    class Replayed(LedgerState):
        def answers(self) -> dict[bytes, bytes]:
            genesis = {
                question: super(Replayed, self).answers()[question]
                for question in super().answers()
                if question.endswith(b"\x81\x0b")
            }
            return {bytes.fromhex(question): answer for question, answer in answers.items()} | genesis

    async def scene() -> None:
        ledger = Replayed(magic=magic, era=expected["era"])
        node = PretendCardanoNode(ledger)
        here = World(tmp_path, node, expected["next_epoch_unix"] - 1_000.0)
        here.source = here.new_source(magic)
        await here.node_up()
        here.begin()
        await asyncio.sleep(1)
        assert here.source.not_ready_reason is None, here.source.works_with
        assert here.source.pool_count == expected["pools"]
        assert f"stake of epoch {expected['epoch']}" in here.source.works_with
        asked = node.count(EPOCH)
        await asyncio.sleep(1_000)
        assert node.count(EPOCH) == asked, "nothing is asked before the border"
        await asyncio.sleep(2)
        assert node.count(EPOCH) == asked + 1, "and at once after it"
        await here.end()

    run(scene)
