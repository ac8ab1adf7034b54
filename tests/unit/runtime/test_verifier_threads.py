"""Few messages are checked where they are; what is more is shared out among the loop and the threads, and stays in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.runtime import verifier as verifier_module
from stagepost.runtime.verifier import (
    KEPT_MESSAGES_MAX,
    PIECE_MESSAGES,
    SLICE_MESSAGES,
    Check,
    Request,
    Verifier,
    processors,
)
from tests.pool_signers import Signer

MESSAGES = [Signer().sign(tag) for tag in range(4 * SLICE_MESSAGES)]
BAD = rejected(ErrorCode.KES_SIGNATURE, "bad")
LIMIT_S = 20.0


def check_in(threads: set[str], until: threading.Event | None = None) -> Check:
    """Notes where it is asked; the fourth message is bad. On the loop it waits until a thread has done its part."""

    def check(message: DmqMessage) -> Rejected | None:
        name = threading.current_thread().name.partition("_")[0]
        threads.add(name)
        if until is not None:
            if name == "MainThread":
                until.wait(LIMIT_S)
            else:
                until.set()
        return BAD if message is MESSAGES[3] else None

    return check


def verdicts_of(verifier: Verifier, messages: list[DmqMessage], check: Check) -> list[Rejected | None]:
    async def run() -> list[Rejected | None]:
        try:
            return await verifier.check(messages, check)
        finally:
            await verifier.close()

    return asyncio.run(run())


@pytest.mark.parametrize("count", [1, KEPT_MESSAGES_MAX])
def test_a_handful_is_not_worth_waking_a_thread(count: int) -> None:
    threads: set[str] = set()
    verdicts = verdicts_of(Verifier(2), MESSAGES[:count], check_in(threads))

    assert threads == {"MainThread"}
    assert verdicts == [None, None, None, BAD, *[None] * count][:count]


def test_more_than_a_handful_is_shared_with_the_threads() -> None:
    threads: set[str] = set()
    count = max(KEPT_MESSAGES_MAX + 1, 2 * PIECE_MESSAGES)
    verdicts = verdicts_of(Verifier(1), MESSAGES[:count], check_in(threads, threading.Event()))

    assert threads >= {"verify"}
    assert [number for number, verdict in enumerate(verdicts) if verdict is not None] == [3]


def test_without_threads_the_loop_checks_a_slice_and_then_looks_at_everything_else() -> None:
    threads: set[str] = set()
    order: list[str] = []

    async def run() -> None:
        verifier = Verifier(0)
        request = Request(MESSAGES)
        verifier.verify([request], check_in(threads), lambda _: order.append("answered"))
        while request.unchecked:
            order.append(f"{len(MESSAGES) - request.unchecked} checked")
            await asyncio.sleep(0)
        assert request.verdicts[3] is BAD
        await verifier.close()

    asyncio.run(run())

    assert threads == {"MainThread"}
    assert order == [*(f"{SLICE_MESSAGES * turn} checked" for turn in range(1, 4)), "answered"]


def test_requests_that_are_ready_together_are_answered_together() -> None:
    answers: list[list[int]] = []

    async def run() -> None:
        verifier = Verifier(0)
        size = SLICE_MESSAGES // 2
        requests = [Request(MESSAGES[start : start + size]) for start in range(0, 3 * size, size)]
        numbers = {id(request): number for number, request in enumerate(requests)}

        def answered(ready: list[Request]) -> None:
            answers.append([numbers[id(request)] for request in ready])

        verifier.verify(requests, lambda _: None, answered)
        while len(answers) < 2:
            await asyncio.sleep(0)
        await verifier.close()

    asyncio.run(run())

    assert answers == [[0, 1], [2]]


def test_a_storm_of_requests_is_answered_completely_by_loop_and_threads() -> None:
    """Whoever sleeps is woken: no answer is left lying, however loop and threads meet."""

    async def run() -> None:
        verifier = Verifier(2)
        for turn in range(150):
            sizes = [turn % 3, 7, 1 + turn % 13, 2]
            asked = [verifier.check(MESSAGES[:size], lambda _: None) for size in sizes]
            answers = await asyncio.wait_for(asyncio.gather(*asked), LIMIT_S)
            assert [len(answer) for answer in answers] == sizes
        await verifier.close()

    asyncio.run(run())


def test_there_is_a_thread_for_each_further_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processors() >= 1
    for count in (1, 2, 8):
        available: Callable[[], int] = lambda count=count: count  # type: ignore[misc]  # noqa: E731
        monkeypatch.setattr(verifier_module, "processors", available)
        assert Verifier()._workers == count - 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_relay_that_is_cut_off_for_one_forgery_makes_us_check_no_more_than_that(workers: int) -> None:
    checked: list[DmqMessage] = []

    def check(message: DmqMessage) -> Rejected | None:
        checked.append(message)
        return BAD

    async def run(gives_up: bool) -> list[Rejected | None]:
        verifier = Verifier(workers)
        request = Request(MESSAGES[:SLICE_MESSAGES], gives_up=gives_up)
        done = asyncio.Event()
        verifier.verify([request], check, lambda _: done.set())
        async with asyncio.timeout(LIMIT_S):
            await done.wait()
        await verifier.close()
        return request.verdicts

    assert asyncio.run(run(gives_up=False)) == [BAD] * SLICE_MESSAGES
    assert len(checked) == SLICE_MESSAGES
    checked.clear()
    verdicts = asyncio.run(run(gives_up=True))
    # Each of those who check at the same time may have begun one.
    assert 1 <= len(checked) <= workers + 1
    assert verdicts.count(BAD) == len(checked)
    assert verdicts.count(verifier_module.NOT_CHECKED) == SLICE_MESSAGES - len(checked)
