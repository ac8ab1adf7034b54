"""Checks signatures beside the event loop, in threads: the library lets go of Python's lock while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeAlias

from stagepost.crypto.bounded_cache import BoundedCache
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected

CHUNK_MESSAGES = 10
WORKERS = 2
VALID_MESSAGES_MEMOISED_MAX = 65_536

Check: TypeAlias = Callable[[DmqMessage], Rejected | None]


class MessageVerifier(Protocol):
    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        """`check` for each message, in the same order."""
        ...

    async def close(self) -> None: ...


class _Request:
    """What one caller wants to know."""

    __slots__ = ("check", "done", "messages")

    def __init__(self, messages: Sequence[DmqMessage], check: Check) -> None:
        self.messages = messages
        self.check = check
        self.done: asyncio.Future[list[Rejected | None]] = asyncio.get_running_loop().create_future()


class Verifier:
    """A pool of threads, and few changes between them: one such change costs as much as checking a message.

    What is asked for in one turn of the loop travels together. If it is no more than a chunk and the threads rest, it is
    checked at once: handing over would cost as much as several checks, and nothing would run beside it.
    """

    def __init__(self, workers: int = WORKERS, *, chunk_messages: int = CHUNK_MESSAGES) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="verify")
        self._chunk_messages = chunk_messages
        self._requests: list[_Request] = []
        self._chunks_under_way = 0

    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        size = self._chunk_messages
        if len(messages) > size:
            starts = range(0, len(messages), size)
            parts = await asyncio.gather(*(self.check(messages[at : at + size], check) for at in starts))
            return [verdict for part in parts for verdict in part]
        request = _Request(messages, check)
        if not self._requests:
            asyncio.get_running_loop().call_soon(self._distribute)
        self._requests.append(request)
        return await request.done

    def _distribute(self) -> None:
        requests, self._requests = self._requests, []
        asked_for = sum(len(request.messages) for request in requests)
        if asked_for <= self._chunk_messages and not self._chunks_under_way:
            return _answer(requests, _check_all(requests))
        chunk: list[_Request] = []
        count = 0
        for request in requests:
            if chunk and count + len(request.messages) > self._chunk_messages:
                self._hand_over(chunk)
                chunk, count = [], 0
            chunk.append(request)
            count += len(request.messages)
        self._hand_over(chunk)

    def _hand_over(self, chunk: list[_Request]) -> None:
        self._chunks_under_way += 1
        self._threads.submit(_check_elsewhere, chunk, asyncio.get_running_loop(), self._came_back)

    def _came_back(self, chunk: list[_Request], answers: list[list[Rejected | None] | Exception]) -> None:
        self._chunks_under_way -= 1
        _answer(chunk, answers)

    async def close(self) -> None:
        """Waits for what is under way; the threads need a fraction of a millisecond for each message."""
        self._threads.shutdown()


def _check_all(requests: Sequence[_Request]) -> list[list[Rejected | None] | Exception]:
    answers: list[list[Rejected | None] | Exception] = []
    for request in requests:
        try:
            answers.append([request.check(message) for message in request.messages])
        except Exception as bug:
            answers.append(bug)
    return answers


def _check_elsewhere(
    requests: list[_Request],
    loop: asyncio.AbstractEventLoop,
    came_back: Callable[[list[_Request], list[list[Rejected | None] | Exception]], None],
) -> None:
    answers = _check_all(requests)
    # A loop that was closed meanwhile has nobody left who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(came_back, requests, answers)


def _answer(requests: Sequence[_Request], answers: list[list[Rejected | None] | Exception]) -> None:
    for request, answer in zip(requests, answers, strict=True):
        if request.done.done():
            continue
        if isinstance(answer, Exception):
            request.done.set_exception(answer)
        else:
            request.done.set_result(answer)


class InlineVerifier:
    """Without threads, for virtual time. Nodes that share a `memory` check a message once between them all."""

    def __init__(self, memory: BoundedCache[bytes, bool] | None = None) -> None:
        self._memory = memory

    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        # One turn of the loop, as threads would take at least: nothing may rely on an answer at once.
        await asyncio.sleep(0)
        return [self._check_one(message, check) for message in messages]

    def _check_one(self, message: DmqMessage, check: Check) -> Rejected | None:
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


def valid_messages_memory() -> BoundedCache[bytes, bool]:
    """For the nodes of one simulation."""
    return BoundedCache(VALID_MESSAGES_MEMOISED_MAX)
