"""`append_soon` for those who would rather wait: the answers of a writer's threads, given on the caller's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from stagepost.errors import StorageError
from stagepost.topics.topic import Appended, Place, Record

AppendSoon = Callable[[Sequence[Record], Appended], None]


class AwaitedAppends:
    """Of one writer. It serves one event loop at a time, the one that runs when it is asked."""

    def __init__(self, append_soon: AppendSoon) -> None:
        self._append_soon = append_soon
        self._answers: LoopAnswers | None = None

    async def append(self, records: Sequence[Record]) -> list[Place]:
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = LoopAnswers(loop)
        answers, appended = self._answers, loop.create_future()

        def settle(outcome: list[Place] | StorageError) -> None:
            answers.give(lambda: answer(appended, outcome))

        self._append_soon(records, settle)
        places: list[Place] = await appended
        return places


def answer(appended: asyncio.Future[list[Place]], outcome: list[Place] | StorageError) -> None:
    if appended.done():
        return
    if isinstance(outcome, StorageError):
        appended.set_exception(outcome)
    else:
        appended.set_result(outcome)


class LoopAnswers:
    """Answers from threads, given on one event loop: a whole group of them with one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answers: deque[Callable[[], None]] = deque()
        self._is_called = False
        self._lock = threading.Lock()

    def give(self, answer: Callable[[], None]) -> None:
        """From any thread."""
        with self._lock:
            self._answers.append(answer)
            if self._is_called:
                return
            self._is_called = True
        with suppress(RuntimeError):  # the loop is gone, and everybody who could have waited
            self.loop.call_soon_threadsafe(self.give_all)

    def give_all(self) -> None:
        """Give the answers that wait, on the loop; also for a caller that has seen the writer close."""
        with self._lock:
            self._is_called = False
            answers, self._answers = self._answers, deque()
        for answer in answers:
            try:
                answer()
            except Exception as fault:
                # A fault of one receiver must not keep the other answers back.
                self.loop.call_exception_handler(
                    {"message": f"{answer!r} failed with the answer of a writer", "exception": fault}
                )
