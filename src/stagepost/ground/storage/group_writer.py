"""Many callers, one transaction: what is asked for while the disk is busy is written together as soon as it is free.

Everything here runs on the event loop. A backend makes a draft durable, in a thread or in simulated time, one at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.loop.clock import loop_time
from stagepost.ground.loop.pacer import pacer
from stagepost.ground.loop.turn_end import PutOff, turn_end
from stagepost.ground.storage.table_file import TableFile
from stagepost.ground.storage.tables import Draft

GROUP_JOBS_MAX = 4_096
SOON_S = 0.1
"""Seconds, at most: the wait for company of a change that no caller waits for."""
SYNC_EVERY_S = 0.5
"""Seconds: half of what is promised, so that a slow disk has the other half."""
REST_MAX_S = 0.05
"""Seconds between the beginnings of two writes under the pacer's full pressure."""
RETRY_S = 1.0
LAST_ATTEMPTS = 2
"""The second one opens the file anew."""

B = TypeVar("B", bound="DraftBook")
B_co = TypeVar("B_co", covariant=True)
R = TypeVar("R")
Settled = Callable[[StorageError | None], None]
Written = Callable[[], None]


class DraftBook(Protocol):
    """The rules by which a draft is changed; `finish` is called when a group is complete."""

    def finish(self) -> None: ...


class RowWriter(Protocol[B_co]):
    """Face of a writer by which a store asks for rows to be changed."""

    async def do(self, act: Callable[[B_co], R]) -> R: ...

    def soon(self, act: Callable[[B_co], object]) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...


class Backend(Protocol):
    def rest_s(self) -> float:
        """Return the seconds from the beginning of one write to that of the next, so that more changes come together."""
        ...

    def write(self, fill: Callable[[Draft], None], is_synced: bool, settled: Settled) -> None:
        """Let the draft be filled, make it durable, and say so on the event loop. One at a time."""
        ...

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Let go of the rows at once; a write that has begun may still end."""
        ...


class WriterCounters(msgspec.Struct):
    groups: int = 0
    jobs: int = 0
    failures: int = 0


class _WriteJob(Generic[B]):
    """Change that a caller asked for. Somebody waits for `done`, or `settled` is called with the outcome; a job with neither is
    owed: it is kept until it is written, however often that fails, and then `written` is called."""

    __slots__ = ("act", "done", "result", "settled", "written")

    def __init__(
        self,
        act: Callable[[B], object],
        done: asyncio.Future[object] | None = None,
        settled: Settled | None = None,
        written: Written | None = None,
    ) -> None:
        self.act = act
        self.done = done
        self.settled = settled
        self.written = written
        self.result: object = None

    @property
    def is_owed(self) -> bool:
        return self.done is None and self.settled is None

    def settle(self, error: StorageError | None) -> None:
        if self.written is not None:
            if error is None:
                self.written()
        elif self.settled is not None:
            self.settled(error)
        elif self.done is None or self.done.done():
            return
        elif error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(error)


class GroupWriter(Generic[B]):
    """`fsync` is "commit", "interval" or "off". Used on one event loop, the one that runs when it is first asked."""

    def __init__(
        self,
        backend: Backend,
        open_book: Callable[[Draft], B],
        *,
        fsync: str = "commit",
        on_error: Callable[[StorageError], None],
    ) -> None:
        self.counters = WriterCounters()
        self.fault: StorageError | None = None
        """Error of the last group; None if that group was written."""
        self._backend = backend
        self._open_book = open_book
        self._fsync = fsync
        self._on_error = on_error
        self._jobs: list[_WriteJob[B]] = []
        self._written: list[_WriteJob[B]] | None = None
        self._put_off: PutOff | None = None
        self._began_at = -inf
        self._is_asked = False
        self._is_closed = False
        self._is_killed = False
        self._is_sync_due = False
        self._is_sync_written = False
        self._is_repair_due = False
        """True after a failed write that may have happened all the same: the backend has to undo it, even if nobody asks."""
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._idle: asyncio.Future[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def do(self, act: Callable[[B], R]) -> R:
        """The answer of `act`, once it is as durable as was asked for; `StorageError`, and it did not happen."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._take(_WriteJob(act, done))  # type: ignore[arg-type]  # a future is invariant
        return await done

    def ask(self, act: Callable[[B], object], settled: Settled) -> None:
        """`do` for those who would rather be called than wait: in the turn of the loop in which the disk answers."""
        self._take(_WriteJob(act, settled=settled))

    def owe(self, act: Callable[[B], object], written: Written) -> None:
        """Do `act` with the next group, and call `written` once the change is durable. What the disk refuses is tried again
        before everything that was owed later, so no change is ever on disk without those before it, and `act` must bear to
        be tried again."""
        self._take(_WriteJob(act, written=written))

    def _take(self, job: _WriteJob[B]) -> None:
        self._require_open()
        self._jobs.append(job)
        if not self._is_asked:
            # Whoever else is ready to run in this turn of the loop joins the group.
            self._is_asked = True
            if self._put_off is None:
                self._put_off = turn_end()
            self._put_off(self._begin)

    def soon(self, act: Callable[[B], object]) -> None:
        """Do `act` with the next group, or a little later; `act` must bear to be tried again."""
        self._require_open()
        self._jobs.append(_WriteJob(act))
        if not self._is_asked and self._written is None:
            self._set_timer(self._ask, SOON_S)

    async def close(self) -> None:
        """Write what can be written; what cannot is reported. May be repeated, and goes on if the caller does not wait."""
        self._is_closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._wait()
        self._is_sync_due = self._fsync != "commit"
        failures = self.counters.failures
        while self._has_work and self.counters.failures < failures + LAST_ATTEMPTS:
            self._ask()
            await self._wait()
        for timer in self._timers.values():
            timer.cancel()
        await self._backend.close()

    def kill(self) -> None:
        """Stop at once, as a crash would: write nothing more, and answer nobody."""
        self._is_closed = self._is_killed = True
        self._is_asked = False
        self._jobs.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._backend.kill()

    async def _wait(self) -> None:
        """Wait until no group is being written."""
        while self._written is not None:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _require_open(self) -> None:
        if self._is_closed:
            raise StorageError("the store is closed")

    def _set_timer(self, act: Callable[[], None], delay_s: float) -> None:
        if act not in self._timers and not self._is_closed:
            self._timers[act] = asyncio.get_running_loop().call_later(delay_s, self._ring, act)

    def _ring(self, act: Callable[[], None]) -> None:
        del self._timers[act]
        act()

    def _ask(self) -> None:
        self._is_asked = True
        self._begin()

    def _ask_for_sync(self) -> None:
        self._is_sync_due = True
        self._ask()

    @property
    def _has_work(self) -> bool:
        return bool(self._jobs) or self._is_sync_due or self._is_repair_due

    def _begin(self) -> None:
        if self._written is not None:
            return
        if not self._is_asked or not self._has_work:
            self._is_asked = False
            return
        now = loop_time()
        rest_s = 0.0 if self._is_closed else self._began_at + self._backend.rest_s() - now
        if rest_s > 0:
            self._set_timer(self._begin, rest_s)
            return
        self._began_at = now
        self._written, self._jobs = self._jobs[:GROUP_JOBS_MAX], self._jobs[GROUP_JOBS_MAX:]
        self._is_asked = bool(self._jobs)
        self._is_sync_written, self._is_sync_due = self._is_sync_due, False
        is_synced = self._fsync == "commit" or self._is_sync_written
        self._backend.write(self._fill, is_synced, self._settled)

    def _fill(self, draft: Draft) -> None:
        assert self._written is not None
        book = self._open_book(draft)
        for job in self._written:
            job.result = job.act(book)
        book.finish()

    def _settled(self, error: StorageError | None) -> None:
        if self._is_killed:
            return
        group, self._written = self._written, None
        assert group is not None
        owed = [job for job in group if job.is_owed]
        was_sync = self._is_sync_written
        self.fault = error
        was_repair, self._is_repair_due = self._is_repair_due, error is not None
        if error is None:
            self.counters.groups += 1
            self.counters.jobs += len(group)
            if self._fsync == "interval" and not was_sync and not self._is_sync_due:
                self._set_timer(self._ask_for_sync, SYNC_EVERY_S)
        else:
            self.counters.failures += 1
            # In order: before everything that came later.
            self._jobs[:0] = owed
            self._is_sync_due = self._is_sync_due or was_sync
            self._set_timer(self._ask, RETRY_S)
        # The disk goes on while we tell what has happened.
        if not self._is_closed:
            self._begin()
            if self._jobs and self._written is None and error is None:
                self._set_timer(self._ask, SOON_S)
        for job in group:
            try:
                job.settle(error)
            except Exception as fault:
                # Theirs, of whoever was called: the others hear of it all the same.
                loop = asyncio.get_running_loop()
                loop.call_exception_handler(
                    {"message": "whoever was told of a write has failed", "exception": fault}
                )
        # Once, until something goes well again: a full disk must not fill the log as well.
        if error is not None and (owed or was_sync) and not was_repair:
            self._on_error(error)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class FileBackend:
    """Thread that writes to a file. The first write starts it; `close` ends it, closes the file and calls `release`.

    `rests`: where many stores share a loop, and the loop has hardly any time left, each write waits for company: it costs the
    same however much is in it."""

    def __init__(
        self, file: TableFile, name: str, release: Callable[[], None], *, rests: bool = False
    ) -> None:
        self._file = file
        self._rests = rests
        self._name = name
        self._release = release
        self._thread: threading.Thread | None = None
        self._tasks: SimpleQueue[tuple[Callable[[Draft], None], bool, Settled] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_unsynced = False

    def rest_s(self) -> float:
        return pacer().pause_s(0.0, REST_MAX_S) if self._rests else 0.0

    def write(self, fill: Callable[[Draft], None], is_synced: bool, settled: Settled) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._write_all, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put((fill, is_synced, settled))

    async def close(self) -> None:
        if self._thread is not None:
            self._tasks.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._file.close()
        self._release()

    def kill(self) -> None:
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
        self._file.close()
        self._release()

    def _write_all(self) -> None:
        """Runs in the thread."""
        assert self._loop is not None
        while (task := self._tasks.get()) is not None:
            fill, is_synced, settled = task
            error: StorageError | None = None
            try:
                draft = Draft(self._file.held)
                fill(draft)
                if draft.changes or (is_synced and self._has_unsynced) or self._file.is_suspect:
                    self._file.commit(draft, is_synced=is_synced)
                    self._has_unsynced = not is_synced
            except StorageError as failed:
                error = failed
            except Exception as fault:
                # A fault of ours. Nobody may wait for ever because of it.
                error = StorageError(f"the store has an internal fault: {fault!r}")
            with suppress(RuntimeError):  # the loop is gone, and everybody who could have waited
                self._loop.call_soon_threadsafe(settled, error)
