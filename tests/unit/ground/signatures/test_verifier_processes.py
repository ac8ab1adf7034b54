"""Few messages are checked where they are; what is more is shared out among the loop and processes, and stays in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.intake import NOT_CHECKED
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.validation import MessageValidator, rules_for
from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.signatures import process as verifying_helper
from stagepost.ground.signatures import verifier as verifier_module
from stagepost.ground.signatures.verifier import (
    KEPT_MESSAGES_MAX,
    PIECE_MESSAGES,
    SLICE_MESSAGES,
    Errand,
    Request,
    Verifier,
    processors,
)
from stagepost.ground.signatures.worker import question as worker_question
from tests.worlds.dmq.pool_signers import KnownPools, Signer

MESSAGES = [Signer().sign(tag) for tag in range(2 * verifying_helper.UNANSWERED_CLAIMS_MAX)]
PRIVATE = rules_for(42)
LIMIT_S = 120.0

Result = TypeVar("Result")


class Watched:
    """A validator that notes what is checked on the loop, and what is left to somebody else."""

    def __init__(self) -> None:
        self.validator = MessageValidator(PRIVATE, KnownPools())
        self.here: list[DmqMessage] = []
        self.elsewhere: list[DmqMessage] = []

    def check(self, message: DmqMessage) -> Rejected | None:
        self.here.append(message)
        return self.validator.check_signatures(message)

    def claims(self, message: DmqMessage) -> Sequence[Claim] | None:
        self.elsewhere.append(message)
        return self.validator.claims(message)

    def conclude(
        self, message: DmqMessage, claims: Sequence[Claim], holds: Sequence[bool]
    ) -> Rejected | None:
        return self.validator.conclude(message, claims, holds)


def play(run: Callable[[Verifier, Watched], Coroutine[Any, Any, Result]], processes: int = 1) -> Result:
    async def whole() -> Result:
        verifier = Verifier(processes)
        try:
            async with asyncio.timeout(LIMIT_S):
                return await run(verifier, Watched())
        finally:
            await verifier.close()

    return asyncio.run(whole())


async def ready(verifier: Verifier, watched: Watched) -> None:
    """All the processes run and are waiting."""
    await verifier.check(MESSAGES[: KEPT_MESSAGES_MAX + 1], watched.check, watched)
    while not verifier.helpers or not all(helper.is_ready for helper in verifier.helpers):
        await asyncio.sleep(0.005)
    watched.here.clear()
    watched.elsewhere.clear()


async def verdicts_of(
    verifier: Verifier, watched: Watched, messages: list[DmqMessage]
) -> list[Rejected | None]:
    return await verifier.check(messages, watched.check, watched)


@pytest.mark.parametrize("count", [1, KEPT_MESSAGES_MAX])
def test_a_handful_is_not_worth_asking_another_process(count: int) -> None:
    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        messages = [*MESSAGES[: count - 1], forged(MESSAGES[count])]
        verdicts = await verdicts_of(verifier, watched, messages)
        assert [verdict is None for verdict in verdicts] == [True] * (count - 1) + [False]
        assert watched.here == messages
        assert not watched.elsewhere

    play(run)


def test_more_than_a_handful_is_shared_with_the_processes() -> None:
    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        messages = list(MESSAGES)
        messages[3] = forged(messages[3])
        verdicts = await verdicts_of(verifier, watched, messages)
        assert [number for number, verdict in enumerate(verdicts) if verdict is not None] == [3]
        assert verdicts[3] == MessageValidator(PRIVATE, KnownPools()).check_signatures(messages[3])
        assert watched.here, "the loop does its part"
        assert watched.elsewhere
        assert len(watched.here) + len(watched.elsewhere) == len(messages)

    play(run)


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_and_loop_say_of_every_message_what_the_check_says(processes: int) -> None:
    """Known and unknown signers, forged leaves, forged certificates, paths that lead nowhere."""
    signers = [Signer(number) for number in range(4)]
    messages = [signers[tag % 4].sign(tag) for tag in range(60)]
    for place in (4, 17, 24, 59):
        messages[place] = forged(messages[place])
    for place in (9, 31):
        messages[place] = other_certificate(messages[place])
    for place in (11, 43):
        messages[place] = other_path(messages[place])
    alone = MessageValidator(PRIVATE, KnownPools())
    wanted = [alone.check_signatures(message) for message in messages]
    assert {verdict.reason for verdict in wanted if verdict is not None}
    assert len({verdict.text for verdict in wanted if verdict is not None}) == 2

    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        for _ in range(2):  # the second time, the signers are known
            assert await verdicts_of(verifier, watched, messages) == wanted
            assert watched.elsewhere

    play(run, processes)


def changed(message: DmqMessage, offset: int) -> DmqMessage:
    raw = bytearray(message.raw)
    raw[offset] ^= 1
    return DmqMessage.decode(bytes(raw))


def forged(message: DmqMessage) -> DmqMessage:
    """The leaf's own signature, which is the first part."""
    return changed(message, message.raw.index(message.kes_signature) + 5)


def other_path(message: DmqMessage) -> DmqMessage:
    return changed(message, message.raw.index(message.kes_path) + 5)


def other_certificate(message: DmqMessage) -> DmqMessage:
    return changed(message, message.raw.index(message.operational_certificate.cold_signature) + 5)


def test_a_process_that_is_killed_is_missed_by_nobody_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "STARTED_AGAIN_AFTER_S", 0.0)

    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        (first,) = verifier.process_ids
        asked = asyncio.create_task(verdicts_of(verifier, watched, MESSAGES))
        await asyncio.sleep(0)
        assert verifier.helpers[0].unanswered
        os.kill(first, signal.SIGKILL)
        assert await asked == [None] * len(MESSAGES)
        while first in verifier.process_ids:
            await asyncio.sleep(0.005)
        await ready(verifier, watched)
        (second,) = verifier.process_ids
        assert second != first
        assert await verdicts_of(verifier, watched, MESSAGES) == [None] * len(MESSAGES)
        assert watched.elsewhere

    play(run)


def test_a_process_that_does_not_answer_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying_helper, "ANSWERED_WITHIN_S", 0.2)

    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        (stopped,) = verifier.process_ids
        os.kill(stopped, signal.SIGSTOP)
        assert await verdicts_of(verifier, watched, MESSAGES) == [None] * len(MESSAGES)
        assert stopped not in verifier.process_ids
        with pytest.raises(ProcessLookupError):
            os.kill(stopped, 0)

    play(run)


def test_answers_under_another_number_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process says of each question what it should say of the one before."""
    asked: list[bytes] = []

    def question(number: int, claims: Sequence[Claim], *, gives_up: bool) -> bytes:
        asked.append(worker_question(number, claims, gives_up=gives_up))
        return worker_question(number + 1, claims, gives_up=gives_up)

    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        (process,) = verifier.process_ids
        monkeypatch.setattr(verifying_helper, "question", question)
        messages = [*MESSAGES[:-1], forged(MESSAGES[-1])]
        verdicts = await verdicts_of(verifier, watched, messages)
        assert [verdict is None for verdict in verdicts] == [True] * (len(messages) - 1) + [False]
        assert asked
        assert process not in verifier.process_ids
        assert len(watched.here) == len(messages), "the loop has done all of it"

    play(run)


def test_a_process_that_is_slow_and_answers_is_kept() -> None:
    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        (process,) = verifier.process_ids
        os.kill(process, signal.SIGSTOP)
        asked = asyncio.create_task(verdicts_of(verifier, watched, MESSAGES))
        await asyncio.sleep(0)
        (helper,) = verifier.helpers
        helper._check_progress(helper._answers_heard - 1)  # it has said something since we looked last
        assert verifier.process_ids == [process]
        os.kill(process, signal.SIGCONT)
        assert await asked == [None] * len(MESSAGES)

    play(run)


def test_a_process_that_cannot_live_is_not_started_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def run(verifier: Verifier, watched: Watched) -> None:
        for _ in range(3):
            assert await verdicts_of(verifier, watched, MESSAGES) == [None] * len(MESSAGES)
            assert not verifier.process_ids
        assert len(watched.here) == 3 * len(MESSAGES)

    play(run)


def test_a_question_that_no_pipe_holds_is_answered_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying_helper, "PIPE_BYTES", verifying_helper.PAGE_BYTES)

    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        assert await verdicts_of(verifier, watched, MESSAGES) == [None] * len(MESSAGES)
        assert len(watched.here) == len(MESSAGES)
        assert verifier.process_ids

    play(run)


def test_a_process_is_asked_no_more_than_it_can_do_until_the_loop_comes_by() -> None:
    async def run(verifier: Verifier, watched: Watched) -> None:
        await ready(verifier, watched)
        most = 0
        asked = asyncio.create_task(verdicts_of(verifier, watched, 3 * MESSAGES))
        while not asked.done():
            most = max(most, verifier.helpers[0].unanswered)
            await asyncio.sleep(0)
        limit = verifying_helper.UNANSWERED_CLAIMS_MAX
        assert limit - PIECE_MESSAGES < most < limit + PIECE_MESSAGES

    play(run)


def test_processes_end_with_the_verifier() -> None:
    async def run(verifier: Verifier, watched: Watched) -> list[int]:
        await ready(verifier, watched)
        return verifier.process_ids

    processes = play(run, 2)

    assert len(processes) == 2
    for process_id in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)


def test_without_processes_the_loop_checks_a_slice_and_then_looks_at_everything_else() -> None:
    order: list[str] = []
    messages = MESSAGES[: 4 * SLICE_MESSAGES]

    async def run(verifier: Verifier, watched: Watched) -> None:
        request: Request[DmqMessage, Rejected] = Request(messages)
        verifier.verify([request], Errand(watched.check, lambda _: order.append("answered"), watched))
        while request.unchecked:
            order.append(f"{len(messages) - request.unchecked} checked")
            await asyncio.sleep(0)
        assert watched.here == messages

    play(run, 0)

    assert order == [*(f"{SLICE_MESSAGES * turn} checked" for turn in range(1, 4)), "answered"]


def test_requests_that_are_ready_together_are_answered_together() -> None:
    answers: list[list[int]] = []

    async def run(verifier: Verifier, watched: Watched) -> None:
        size = SLICE_MESSAGES // 2
        requests: list[Request[DmqMessage, Rejected]] = [
            Request(MESSAGES[start : start + size]) for start in range(0, 3 * size, size)
        ]
        numbers = {id(request): number for number, request in enumerate(requests)}

        def answered(ready: list[Request[DmqMessage, Rejected]]) -> None:
            answers.append([numbers[id(request)] for request in ready])

        verifier.verify(requests, Errand(watched.check, answered))
        while len(answers) < 2:
            await asyncio.sleep(0)

    play(run, 0)

    assert answers == [[0, 1], [2]]


def test_a_storm_of_requests_is_answered_completely_by_loop_and_processes() -> None:
    async def run(verifier: Verifier, watched: Watched) -> None:
        for turn in range(60):
            sizes = [turn % 3, 7, 1 + turn % 13, 2]
            asked = [verdicts_of(verifier, watched, MESSAGES[:size]) for size in sizes]
            answers = await asyncio.gather(*asked)
            assert [len(answer) for answer in answers] == sizes

    play(run, 2)


def test_there_is_a_process_for_each_further_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processors() >= 1
    for count in (1, 2, 8):
        available: Callable[[], int] = lambda count=count: count  # type: ignore[misc]  # noqa: E731
        monkeypatch.setattr(verifier_module, "processors", available)
        assert Verifier().processes == count - 1


@pytest.mark.parametrize("processes", [0, 2])
def test_a_relay_that_is_cut_off_for_one_forgery_makes_us_check_no_more_than_that(processes: int) -> None:
    messages = [forged(message) for message in MESSAGES[: 2 * SLICE_MESSAGES]]

    async def run(verifier: Verifier, watched: Watched) -> None:
        if processes:
            await ready(verifier, watched)
        for gives_up in (False, True):
            watched.here.clear()
            request = Request(messages, given_up=NOT_CHECKED if gives_up else None)
            done = asyncio.Event()
            verifier.verify([request], Errand(watched.check, lambda _, done=done: done.set(), watched))  # type: ignore[misc]
            await done.wait()
            looked_at = len(messages) - request.verdicts.count(NOT_CHECKED)
            assert None not in request.verdicts
            if not gives_up:
                assert looked_at == len(messages)
            else:
                # Each piece that is under way at the same time may have begun one.
                assert 1 <= looked_at <= (len(messages) // PIECE_MESSAGES if processes else 1)

    play(run, processes)
