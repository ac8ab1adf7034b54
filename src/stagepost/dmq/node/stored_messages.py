"""The message store on disk: one SQLite file, one writing thread, one fsync for everything that waits.

What is put while the disk is busy joins the next transaction. After any error the connection is thrown away: before
the next write the file is opened anew, checked, and cleared of what the failed write may have left.

When a message store cannot be read as a whole: keep the damaged file, and copy what is readable into a new one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

import msgspec

from stagepost.dmq.mempool import Entry
from stagepost.dmq.node.message_store import StoredMessage, StoredPool, StoredState, Written, write_and_wait
from stagepost.dmq.node.stored_rows import (
    FIRST_FACTS,
    HIGHEST_MS,
    LAYOUT,
    MESSAGES_HELD,
    POOLS_HELD,
    PUT_FACT,
    PUT_MESSAGE,
    PUT_POOL,
    Changes,
    Content,
    read_content,
    read_fact,
    read_message,
    read_pool,
    write_fact,
    write_message,
    write_pool,
)
from stagepost.errors import StorageError
from stagepost.ground.files.owner_lock import OwnerLock
from stagepost.ground.storage.damage import Remains, counted, open_whole, replace_damaged
from stagepost.ground.storage.layout import check_layout, create, read_only
from stagepost.ground.storage.rows import DamagedRow, Row
from stagepost.ground.storage.sqlite_file import Connect, DamagedFile, SqliteFile, beside, connect

T = TypeVar("T")

_HELD = {"messages": MESSAGES_HELD, "pools": POOLS_HELD}
"""For each table the note of how many rows it has."""


def salvage(path: Path, why: str, connect: Connect = connect) -> str:
    """Put a new file with the readable rows in the place of a damaged one; return one sentence for the operator."""
    messages: dict[int, Entry] = {}
    pools: dict[bytes, StoredPool] = {}
    with read_only(path) as connection:
        remains = Remains(connection)
        for entry in _good(remains.numbered_rows("messages", "place"), read_message):
            messages.setdefault(entry.index, entry)
        for pool in _good(remains.named_rows("pools", "pool_id"), read_pool):
            pools[pool.pool_id] = pool
        facts = dict(_good(remains.named_rows("facts", "name"), read_fact))
    distinct = {entry.message.key: entry for entry in messages.values()}
    kept = {entry.index: entry for entry in distinct.values()}
    held = {table: facts[name] for table, name in _HELD.items() if name in facts}
    remains.refuse_loss(path, "message store", why, {"messages": len(kept), "pools": len(pools)}, held)
    new_facts = {HIGHEST_MS: facts.get(HIGHEST_MS, 0), MESSAGES_HELD: len(kept), POOLS_HELD: len(pools)}
    rows = [
        (PUT_MESSAGE, [write_message(kept[place]) for place in sorted(kept)]),
        (PUT_POOL, [write_pool(pool) for pool in pools.values()]),
        (PUT_FACT, [write_fact(name, number) for name, number in new_facts.items()]),
    ]
    old = replace_damaged(path, lambda fresh: create(fresh, connect, LAYOUT, rows))
    lost = "" if HIGHEST_MS in facts else f"; the note of {HIGHEST_MS} is lost"
    return (
        f"{path.name} could not be read ({why}); it is kept as {old.name}, and "
        f"{counted(len(kept), held.get('messages'), 'messages')} and "
        f"{counted(len(pools), held.get('pools'), 'pools')} were copied from it{lost}"
    )


def _good(rows: Iterator[Row], read: Callable[[Row], T]) -> Iterator[T]:
    for row in rows:
        with suppress(DamagedRow):
            yield read(row)


WHAT = "message store"
GROUP_JOBS_MAX = 256
_DELETE_MESSAGE = "DELETE FROM messages WHERE place = ?"
_COUNT_MESSAGE = "SELECT count(*) FROM messages WHERE place = ?"
_DELETE_LEFTOVER = "DELETE FROM messages WHERE place > ?"


class StoreCounters(msgspec.Struct):
    """What the writing thread did. `commit_s` is time spent waiting for the disk, mostly in fsync."""

    groups: int = 0
    messages: int = 0
    failures: int = 0
    commit_s: float = 0.0
    processor_s: float = 0.0


class _Put:
    __slots__ = ("error", "loop", "records", "written")

    def __init__(self, records: Sequence[Entry], written: Written, loop: asyncio.AbstractEventLoop) -> None:
        self.records = records
        self.written = written
        self.loop = loop
        self.error: StorageError | None = None


class _Forget:
    __slots__ = ("records", "unix_ms")

    def __init__(self, records: Sequence[Entry], unix_ms: int) -> None:
        self.records = records
        self.unix_ms = unix_ms


class _ResetTime:
    __slots__ = ("unix_ms",)

    def __init__(self, unix_ms: int) -> None:
        self.unix_ms = unix_ms


_Job: TypeAlias = _Put | _Forget | _ResetTime


class SqliteStore:
    """`StorageError` from the constructor if the file belongs to somebody else, or the folder cannot be used."""

    def __init__(self, path: Path, *, connect: Connect = connect) -> None:
        self._path = path
        self._connect = connect
        self.counters = StoreCounters()
        self.fault: str | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._lock = OwnerLock(beside(path, ".lock"))
        try:
            self._content, self._damage = open_whole(
                path,
                WHAT,
                LAYOUT,
                connect,
                create=lambda: create(path, connect, LAYOUT, FIRST_FACTS),
                read=self._opened,
                salvage=lambda why: salvage(path, why, connect),
            )
        except BaseException:
            self._lock.release()
            raise
        # What the file holds; only the writing thread touches these from the first job on.
        self._pools: dict[bytes, StoredPool] = {pool.pool_id: pool for pool in self._content.pools}
        self._messages_held = len(self._content.messages)
        self._place_last = self._content.index_max
        self._highest_ms = self._content.highest_ms
        self._owed = Changes()

    def _opened(self) -> Content:
        self._file: SqliteFile | None = SqliteFile(self._path, self._connect)
        try:
            return read_content(self._file)
        except BaseException:
            self._file.close()
            raise

    def load(self) -> StoredState:
        content, self._content = self._content, Content()
        return StoredState(
            content.messages,
            content.pools,
            content.highest_ms,
            content.index_max,
            (*self._damage, *content.damage),
        )

    async def put(self, records: Sequence[StoredMessage]) -> None:
        await write_and_wait(self, records)

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        if not records:
            return written(None)
        try:
            self._give(_Put(records, written, asyncio.get_running_loop()))
        except StorageError as closed:
            written(closed)

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        self._give(_Forget(records, int(unix_s * 1_000)))

    def reset_time(self, unix_s: float) -> None:
        self._give(_ResetTime(int(unix_s * 1_000)))

    def _give(self, job: _Job) -> None:
        if self._is_closed:
            raise StorageError("the message store is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="message-store", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    async def close(self) -> None:
        """After everything that was given; then the file has no log, and the next owner may come."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        if self._file is not None:
            self._file.close()
        self._lock.release()

    # From here on everything runs in the writing thread.

    def _write_all(self) -> None:
        is_last = False
        while not is_last:
            jobs: list[_Job] = []
            job = self._jobs.get()
            try:
                while job is not None and len(jobs) < GROUP_JOBS_MAX:
                    jobs.append(job)
                    job = self._jobs.get_nowait()
                if job is not None:
                    jobs.append(job)
            except Empty:
                pass
            else:
                is_last = job is None
            if jobs:
                self._write_group(jobs)

    def _write_group(self, jobs: list[_Job]) -> None:
        puts = [job for job in jobs if isinstance(job, _Put)]
        for job in jobs:
            if isinstance(job, _Forget):
                self._owed.forget(job.records, job.unix_ms)
            elif isinstance(job, _ResetTime):
                self._owed.reset_time(job.unix_ms)
        started_s = time.thread_time()
        error = self._try_to_write([record for put in puts for record in put.records])
        self.counters.processor_s += time.thread_time() - started_s
        self.fault = None if error is None else error.text
        for job in puts:
            job.error = error
        # Usually all of a group belong to one loop, which is woken once.
        for loop in dict.fromkeys(put.loop for put in puts):
            loop.call_soon_threadsafe(_complete, [put for put in puts if put.loop is loop])

    def _try_to_write(self, records: list[Entry]) -> StorageError | None:
        try:
            if self._file is None:
                self._file = self._reopened()
            self._write(self._file, records)
            return None
        except StorageError as error:
            failed = error
        except (sqlite3.Error, OSError, DamagedFile) as error:
            failed = StorageError(f"the message store cannot be written: {error}")
        if self._file is not None:
            self._file.close()
            self._file = None
        self.counters.failures += 1
        return failed

    def _write(self, file: SqliteFile, records: list[Entry]) -> None:
        owed = self._owed
        pools = owed.pools_after(self._pools)
        highest_ms = owed.time_after(self._highest_ms)
        file.begin()
        gone = file.run(_DELETE_MESSAGE, [(place,) for place in owed.places]) if owed.places else 0
        if records:
            file.run(PUT_MESSAGE, map(write_message, records))
        held = self._messages_held - gone + len(records)
        facts = [write_fact(MESSAGES_HELD, held)]
        if pools:
            file.run(PUT_POOL, map(write_pool, pools))
            facts.append(write_fact(POOLS_HELD, len(self._pools.keys() | {pool.pool_id for pool in pools})))
        if highest_ms != self._highest_ms:
            facts.append(write_fact(HIGHEST_MS, highest_ms))
        file.run(PUT_FACT, facts)
        started_s = time.monotonic()
        file.commit()
        self.counters.commit_s += time.monotonic() - started_s
        # Only now has any of it happened.
        self._owed = Changes()
        self._messages_held = held
        self._pools.update((pool.pool_id, pool) for pool in pools)
        self._highest_ms = highest_ms
        if records:
            self._place_last = records[-1].index
        self.counters.groups += 1
        self.counters.messages += len(records)

    def _reopened(self) -> SqliteFile:
        version, fault = check_layout(self._path, LAYOUT, WHAT)
        if version != LAYOUT.version:
            fault = f"it is of version {version}, not {LAYOUT.version}"
        if fault is not None:
            raise DamagedFile(fault)
        file = SqliteFile(self._path, self._connect)
        try:
            file.begin()
            file.run(_DELETE_LEFTOVER, [(self._place_last,)])
            (found,) = next(file.rows("SELECT count(*) FROM messages"))
            file.run(PUT_FACT, [write_fact(MESSAGES_HELD, found)])
            file.commit()
            missing = self._messages_held - found - self._forgotten_already(file)
            if missing > 0:
                raise StorageError(
                    f"{missing} messages are missing from {self._path} after an error",
                    advice="restart the node: it repairs the file as far as it can",
                )
            self._messages_held = found
            # Nothing may rely on what lies in a log whose fsync has failed.
            file.empty_log()
        except BaseException:
            file.close()
            raise
        return file

    def _forgotten_already(self, file: SqliteFile) -> int:
        """A transaction that was reported as failed may have happened all the same."""
        still_there: int = sum(next(file.rows(_COUNT_MESSAGE, place))[0] for place in self._owed.places)
        return len(self._owed.places) - still_there


def _complete(puts: list[_Put]) -> None:
    for job in puts:
        job.written(job.error)
