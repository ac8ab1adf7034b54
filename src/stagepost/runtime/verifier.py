"""Checks signatures beside the event loop, in threads: the library lets go of Python's lock while it computes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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


class Verifier:
    """A pool of threads. A chunk of messages costs one change of thread, not one each."""

    def __init__(self, workers: int = WORKERS, *, chunk_messages: int = CHUNK_MESSAGES) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="verify")
        self._chunk_messages = chunk_messages

    async def check(self, messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
        loop = asyncio.get_running_loop()
        size = self._chunk_messages
        if len(messages) <= size:
            return await loop.run_in_executor(self._threads, _check_all, messages, check)
        chunks = [messages[start : start + size] for start in range(0, len(messages), size)]
        verdicts = await asyncio.gather(
            *(loop.run_in_executor(self._threads, _check_all, chunk, check) for chunk in chunks)
        )
        return [verdict for chunk in verdicts for verdict in chunk]

    async def close(self) -> None:
        """Waits for what is under way; the threads need a fraction of a millisecond for each message."""
        self._threads.shutdown()


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


def _check_all(messages: Sequence[DmqMessage], check: Check) -> list[Rejected | None]:
    return [check(message) for message in messages]
