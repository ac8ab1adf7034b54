"""Few messages are checked where they are; more than a chunk goes to the threads, and comes back in order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.runtime.verifier import CHUNK_MESSAGES, Verifier
from tests.pool_signers import Signer

MESSAGES = [Signer().sign(tag) for tag in range(3 * CHUNK_MESSAGES)]


def check_in(threads: set[str]) -> object:
    def check(message: DmqMessage) -> Rejected | None:
        threads.add(threading.current_thread().name.partition("_")[0])
        return rejected(ErrorCode.KES_SIGNATURE, "bad") if message is MESSAGES[3] else None

    return check


@pytest.mark.parametrize(
    ("count", "where"),
    [(1, "MainThread"), (CHUNK_MESSAGES, "MainThread"), (CHUNK_MESSAGES + 1, "verify")],
)
def test_only_more_than_a_chunk_is_handed_over(count: int, where: str) -> None:
    threads: set[str] = set()

    async def run() -> list[Rejected | None]:
        verifier = Verifier(2)
        try:
            return await verifier.check(MESSAGES[:count], check_in(threads))  # type: ignore[arg-type]
        finally:
            await verifier.close()

    verdicts = asyncio.run(run())

    assert threads == {where}
    assert [number for number, verdict in enumerate(verdicts) if verdict is not None] == [3][: count > 3]


def test_callers_of_one_turn_count_together() -> None:
    threads: set[str] = set()
    check = check_in(threads)

    async def run() -> None:
        verifier = Verifier(2)
        halves = [MESSAGES[: CHUNK_MESSAGES - 1], MESSAGES[CHUNK_MESSAGES : 2 * CHUNK_MESSAGES - 1]]
        answers = await asyncio.gather(*(verifier.check(half, check) for half in halves))  # type: ignore[arg-type]
        assert [len(answer) for answer in answers] == [CHUNK_MESSAGES - 1] * 2
        await verifier.close()

    asyncio.run(run())

    assert threads == {"verify"}
