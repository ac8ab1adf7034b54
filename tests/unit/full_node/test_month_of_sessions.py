"""A hundred switches of sessions at a full node with real disks; `make soak` plays a month of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.full_node.message_record import MessageRecord
from tests.worlds.full_node.month_world import DRAINED_EVERY, MESSAGES_PER_SESSION, MonthOfSessions

SWITCHES = 100
BLOCKS_PER_SWITCH = 3


def test_switches_leave_nothing_behind_in_memory_and_every_record_once(tmp_path: Path, run_seed: int) -> None:
    print(f"seed {run_seed}")

    async def main() -> None:
        month = MonthOfSessions(tmp_path, run_seed)
        month.begin()
        await month.play(SWITCHES)
        counts = month.counts
        await month.end()
        month.begin()
        assert not month.replayed()
        assert month.counts["sessions"] == SWITCHES + 1, "of one day, from the topic"
        await month.play(1)
        await month.end()
        assert len(month.sent) == (SWITCHES + 1) * MESSAGES_PER_SESSION
        assert month.inexact() == []
        assert counts["charged"] == 0
        assert counts["sending"] <= MESSAGES_PER_SESSION, "of the last session alone"
        assert counts["blocks"] <= BLOCKS_PER_SWITCH * 2 * DRAINED_EVERY, (
            "older blocks are in the archive, or on their way"
        )
        assert month.bytes_by_part["validator-sets.json"] < 1_000, "a switch does not touch it"

    asyncio.run(main())


def test_a_switch_looks_at_the_messages_under_way_and_at_no_final_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node remembers up to 100,000 final messages: a walk over them at each switch would hold up its loop."""
    looked = 0
    is_in_process = MessageRecord.is_in_process.fget  # type: ignore[attr-defined]  # it is a property

    def counted(record: MessageRecord) -> bool:
        nonlocal looked
        looked += 1
        return bool(is_in_process(record))

    async def main() -> list[int]:
        found = []
        month = MonthOfSessions(tmp_path, 1)
        month.begin()
        for switches in (10, 20):
            await month.play(switches)
            before = looked
            await month.play(1)
            found.append(looked - before)
        await month.end()
        return found

    monkeypatch.setattr(MessageRecord, "is_in_process", property(counted))
    few, many = asyncio.run(main())
    assert many <= few + MESSAGES_PER_SESSION
