"""Validators as processes over real, authenticated sockets: messages reach all, and a crash at the worst moment costs
nothing."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from rigs.remp_overlay_world import message_bytes
from rigs.validator_processes import ValidatorProcess, until, validators_over_sockets
from stagepost.remp.receipts.receipt import Receipt

pytestmark = pytest.mark.xdist_group("validators over sockets")

SIZE = 4


class Heard:
    def __init__(self) -> None:
        self.kinds: dict[bytes, dict[bytes, list[str]]] = defaultdict(lambda: defaultdict(list))

    def __call__(self, receipt: Receipt) -> None:
        self.kinds[receipt.message_id][receipt.source_id].append(receipt.kind.name)

    def is_from_all(self, message_id: bytes) -> bool:
        return len(self.kinds[message_id]) == SIZE + 1


def check(processes: list[ValidatorProcess], ids: set[bytes]) -> None:
    for process in processes:
        process.stop()
        assert process.facts()["known"] == {message_id.hex(): True for message_id in ids}
        bad = [line for line in process.lines() if line != "Started"]
        assert bad == []


def test_messages_reach_all_and_each_gives_its_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        heard = Heard()
        async with validators_over_sockets(tmp_path, SIZE, heard) as (processes, node):
            ids = {node.hand_over(message_bytes(number)) for number in range(30)}
            large = node.hand_over(message_bytes(100, content=b"x" * 60_000))
            ids.add(large)
            await until(lambda: all(heard.is_from_all(one) for one in ids), "receipts of all for all")
            for message_id in ids:
                kinds = dict(heard.kinds[message_id])
                assert kinds.pop(node.node.source_id) == ["SentToValidators"]
                assert list(kinds.values()) == [["PutIntoQueue"]] * SIZE
            check(processes, ids)

    asyncio.run(main())


@pytest.mark.parametrize("dies_at", [1, 4])
def test_a_process_that_dies_between_disk_and_network_neither_forks_nor_loses(
    tmp_path: Path, dies_at: int
) -> None:
    async def main() -> None:
        heard = Heard()
        async with validators_over_sockets(tmp_path, SIZE, heard) as (processes, node):
            victim = processes[1]
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            victim.start(dies_at=dies_at)
            # It may not even live to see all its links.
            await until(lambda: victim.is_over or starts(victim) == 2, "it is back")
            ids: set[bytes] = set()
            while not victim.is_over:
                assert len(ids) < 1_000
                ids.add(node.hand_over(message_bytes(len(ids))))
                await asyncio.sleep(0.05)
            assert victim.process.returncode == -signal.SIGKILL
            ids |= {node.hand_over(message_bytes(1_000 + number)) for number in range(5)}
            before = starts(victim)
            victim.start()
            await until(lambda: starts(victim) > before, "it is back again")
            await until(lambda: all(heard.is_from_all(one) for one in ids), "receipts of all for all")
            # Whatever it says from now on must not contradict what it said before.
            ids.add(node.hand_over(message_bytes(2_000)))
            await until(lambda: all(heard.is_from_all(one) for one in ids), "receipts of all for the last")
            lines = [line for process in processes for line in process.lines() if line != "Started"]
            assert lines == []
            for process in processes:
                process.stop()
                assert process.facts()["known"] == {message_id.hex(): True for message_id in ids}

    asyncio.run(main())


def test_who_tells_others_before_the_disk_is_found_out(tmp_path: Path) -> None:
    """The planted defect of the test above: others know a block that the restarted process does not."""

    async def main() -> None:
        heard = Heard()
        async with validators_over_sockets(tmp_path, SIZE, heard) as (processes, node):
            victim = processes[1]
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
            victim.start(dies_at=1, is_hasty=True)
            # It may not even live to see all its links.
            await until(lambda: victim.is_over or starts(victim) == 2, "it is back")
            number = 0
            while not victim.is_over:
                node.hand_over(message_bytes(number))
                number += 1
                await asyncio.sleep(0.05)
            victim.start()
            await until(
                lambda: any(
                    line.startswith(("RecoveryReport", "Halt", "BlameReport"))
                    for line in all_lines(processes)
                ),
                "somebody notices",
            )

    asyncio.run(main())


def starts(process: ValidatorProcess) -> int:
    return process.lines().count("Started")


def all_lines(processes: list[ValidatorProcess]) -> list[str]:
    return [line for process in processes for line in process.lines()]
