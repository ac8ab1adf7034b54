"""A hundred switches of sessions at a full node with real disks; `make soak` plays a month of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
