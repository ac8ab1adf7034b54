"""Checks signatures, on the event loop and in threads beside it: the library lets go of Python's lock while it computes.

A change of thread costs as much as a check or two, so the loop keeps a handful of messages for itself. What is more is
cut into pieces that the threads and the loop take one by one, each as fast as it can: nobody waits while there is work,
and nobody is woken more often than he falls asleep. With one processor there are no threads, for they could only take
turns with the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from stagepost.crypto.bounded_cache import BoundedCache
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Reason, Rejected

SLICE_MESSAGES = 20
"""How many the loop checks before it looks at everything else again: about a millisecond."""

PIECE_MESSAGES = 5
KEPT_MESSAGES_MAX = 5
"""Up to so many are not worth waking a thread."""

VALID_MESSAGES_MEMOISED_MAX = 65_536

Check: TypeAlias = Callable[[DmqMessage], Rejected | None]


NOT_CHECKED = Rejected(Reason.OTHER, "not looked at, because another message of the same relay is forged")


class Request:
    """Messages of one caller. Once it is answered there is a verdict for each, or the bug that kept us from it.

    `gives_up`: whoever brought them is cut off for a single forgery, so that the first one found ends the checking.
    Otherwise one connection could make us check as many forgeries as a reply may hold.
    """

    __slots__ = ("bug", "gives_up", "is_given_up", "messages", "unchecked", "verdicts")

    def __init__(self, messages: Sequence[DmqMessage], *, gives_up: bool = False) -> None:
        self.messages = messages
        self.gives_up = gives_up
        self.is_given_up = False
        self.unchecked = len(messages)
        self.verdicts: list[Rejected | None] = [None] * len(messages)
        self.bug: Exception | None = None


Answered: TypeAlias = Callable[[list[Request]], None]


class MessageVerifier(Protocol):
    def verify(self, requests: Sequence[Request], check: Check, answered: Answered) -> None:
        """`check` for each message. `answered` is called on the loop, perhaps at once, with what is ready together."""
        ...

    async def close(self) -> None: ...


def processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Piece:
    """A part of one request, checked in one go."""

    __slots__ = ("answered", "check", "end", "request", "start")

    def __init__(self, request: Request, start: int, end: int, check: Check, answered: Answered) -> None:
        self.request = request
        self.start = start
        self.end = end
        self.check = check
        self.answered = answered

    def run(self) -> None:
        request, check = self.request, self.check
        messages, verdicts = request.messages, request.verdicts
        try:
            for position in range(self.start, self.end):
                verdict = NOT_CHECKED if request.is_given_up else check(messages[position])
                if verdict is not None:
                    verdicts[position] = verdict
                    request.is_given_up = request.gives_up
        except Exception as bug:
            request.bug = bug


class Verifier:
    """`workers` are threads beside the loop; one for each further processor unless told."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = processors() - 1 if workers is None else workers
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        # For the loop alone, and for whoever comes first.
        self._kept: deque[_Piece] = deque()
        self._shared: SimpleQueue[_Piece | None] = SimpleQueue()
        self._shared_unanswered = 0
        # What the threads are done with. They wake the loop only if it has nothing left to do itself.
        self._checked: deque[_Piece] = deque()
        self._loop_waits = False
        self._is_turn_due = False

    def verify(self, requests: Sequence[Request], check: Check, answered: Answered) -> None:
        count = 0
        for request in requests:
            count += len(request.messages)
        if self._workers and (count > KEPT_MESSAGES_MAX or self._shared_unanswered):
            self._share(requests, check, answered)
        else:
            for request in requests:
                for start in range(0, len(request.messages), SLICE_MESSAGES):
                    end = min(start + SLICE_MESSAGES, len(request.messages))
                    self._kept.append(_Piece(request, start, end, check, answered))
        if not self._is_turn_due:
            self._take_turn()

    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        """The verdicts, in the order of the messages."""
        return await checked(self, messages, check)

    def _share(self, requests: Sequence[Request], check: Check, answered: Answered) -> None:
        if not self._threads:
            self._loop = asyncio.get_running_loop()
            self._threads = [
                threading.Thread(target=self._work, name=f"verify_{number}", daemon=True)
                for number in range(self._workers)
            ]
            for thread in self._threads:
                thread.start()
        for request in requests:
            for start in range(0, len(request.messages), PIECE_MESSAGES):
                end = min(start + PIECE_MESSAGES, len(request.messages))
                self._shared_unanswered += 1
                self._shared.put(_Piece(request, start, end, check, answered))

    def _take_turn(self) -> None:
        """Check a slice, then hand out the answers that it and the threads have given meanwhile."""
        self._is_turn_due = True
        done: list[_Piece] = []
        count = 0
        while count < SLICE_MESSAGES:
            piece = self._next_piece()
            if piece is None:
                break
            piece.run()
            count += piece.end - piece.start
            done.append(piece)
        self._answer(done)
        if self._kept or not self._shared.empty():
            asyncio.get_running_loop().call_soon(self._take_turn)
            return
        self._is_turn_due = False
        self._wait_for_threads()

    def _next_piece(self) -> _Piece | None:
        if self._kept:
            return self._kept.popleft()
        if not self._shared_unanswered:
            return None
        try:
            piece = self._shared.get_nowait()
        except Empty:
            return None
        self._shared_unanswered -= 1
        return piece

    def _wait_for_threads(self) -> None:
        # First the flag, then the look: whatever a thread puts down after the look, it sees the flag.
        while self._shared_unanswered:
            self._loop_waits = True
            if not self._checked:
                return
            self._loop_waits = False
            self._answer([])

    def _came_back(self) -> None:
        self._answer([])
        if not self._is_turn_due:
            self._wait_for_threads()

    def _answer(self, done: list[_Piece]) -> None:
        while self._checked:
            done.append(self._checked.popleft())
            self._shared_unanswered -= 1
        answers: dict[Answered, list[Request]] = {}
        for piece in done:
            request = piece.request
            request.unchecked -= piece.end - piece.start
            if not request.unchecked:
                answers.setdefault(piece.answered, []).append(request)
        for answered, requests in answers.items():
            answered(requests)

    def _work(self) -> None:
        """What a thread does."""
        while (piece := self._shared.get()) is not None:
            piece.run()
            self._checked.append(piece)
            if self._loop_waits:
                self._loop_waits = False
                assert self._loop is not None
                # A loop that was closed meanwhile has nobody left who waits.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._came_back)

    async def close(self) -> None:
        """Waits for what the threads are busy with; they need a fraction of a millisecond for each message."""
        for _ in self._threads:
            self._shared.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []


class InlineVerifier:
    """Without threads, for virtual time. Nodes that share a `memory` check a message once between them all."""

    def __init__(self, memory: BoundedCache[bytes, bool] | None = None) -> None:
        self._memory = memory

    def verify(self, requests: Sequence[Request], check: Check, answered: Answered) -> None:
        for request in requests:
            piece = _Piece(request, 0, len(request.messages), partial(self._check_one, check), answered)
            piece.run()
        answered(list(requests))

    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        """The verdicts, in the order of the messages."""
        return await checked(self, messages, check)

    def _check_one(self, check: Check, message: DmqMessage) -> Rejected | None:
        if self._memory is None:
            return check(message)
        if self._memory.get(message.raw):
            return None
        verdict = check(message)
        # Only what is valid is kept: it depends on nothing but the message's own bytes.
        if verdict is None:
            self._memory.put(message.raw, True)
        return verdict

    async def close(self) -> None:
        return


async def checked(
    verifier: MessageVerifier, messages: Sequence[DmqMessage], check: Check
) -> list[Rejected | None]:
    """`verify` for those who would rather wait than be called."""
    if not messages:
        return []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(_: list[Request]) -> None:
        if not done.done():
            done.set_result(None)

    request = Request(messages)
    verifier.verify([request], check, answered)
    await done
    if request.bug is not None:
        raise request.bug
    return request.verdicts


def valid_messages_memory() -> BoundedCache[bytes, bool]:
    """For the nodes of one simulation."""
    return BoundedCache(VALID_MESSAGES_MEMOISED_MAX)
