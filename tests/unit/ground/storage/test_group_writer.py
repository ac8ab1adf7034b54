"""Many callers, one transaction: who joins which group, what a failure keeps, and when the disk is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stagepost.errors import StorageError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.storage.group_writer import (
    GROUP_JOBS_MAX,
    RETRY_S,
    SOON_S,
    SYNC_EVERY_S,
    GroupWriter,
    Settled,
)
from stagepost.ground.storage.tables import Draft


class Notes:
    """A book that only remembers who wrote into it."""

    def __init__(self, draft: Draft) -> None:
        self.written: list[str] = []

    def note(self, text: str) -> str:
        self.written.append(text)
        return text.upper()

    def finish(self) -> None:
        self.written.append(".")


class Hand:
    """A backend worked by hand: a group is settled when the test says so."""

    def __init__(self) -> None:
        self.groups: list[tuple[list[str], bool]] = []
        self.closings = 0
        self.rests_s = 0.0
        self._settled: Settled | None = None

    def rest_s(self) -> float:
        return self.rests_s

    def write(self, fill: Callable[[Draft], None], is_synced: bool, settled: Settled) -> None:
        assert self._settled is None, "one at a time"
        fill(Draft({}))
        self.groups.append((books[-1].written, is_synced))
        self._settled = settled

    def settle(self, error: str | None = None) -> None:
        settled, self._settled = self._settled, None
        assert settled is not None
        settled(None if error is None else StorageError(error))

    async def close(self) -> None:
        self.closings += 1

    def kill(self) -> None:
        self.closings += 1


books: list[Notes] = []


def opened(draft: Draft) -> Notes:
    books.append(Notes(draft))
    return books[-1]


def a_writer(fsync: str = "commit") -> tuple[GroupWriter[Notes], Hand, list[StorageError]]:
    hand = Hand()
    told: list[StorageError] = []
    return GroupWriter(hand, opened, fsync=fsync, on_error=told.append), hand, told


def test_what_is_asked_while_the_disk_is_busy_is_one_group_in_its_order() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer()
        first = asyncio.create_task(writer.do(lambda book: book.note("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [asyncio.create_task(writer.do(lambda book, n=n: book.note(n))) for n in "bcd"]  # type: ignore[misc]
        await asyncio.sleep(0)
        writer.soon(lambda book: book.note("mark"))
        assert [words for words, _ in hand.groups] == [["a", "."]]
        hand.settle()
        assert await first == "A"
        assert [words for words, _ in hand.groups] == [["a", "."], ["b", "c", "d", "mark", "."]]
        assert not any(task.done() for task in rest)
        hand.settle()
        assert await asyncio.gather(*rest) == ["B", "C", "D"]
        assert (writer.counters.groups, writer.counters.jobs) == (2, 5)
        await writer.close()
        assert hand.closings == 1

    run_in_virtual_time(main())


def test_who_would_rather_be_called_is_called_at_once_in_order_whatever_another_does() -> None:
    async def main() -> None:
        writer, hand, told = a_writer()
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context["exception"])
        )
        heard: list[str] = []

        def fail(error: StorageError | None) -> None:
            heard.append("b")
            raise ValueError("its own")

        writer.ask(lambda book: book.note("a"), lambda error: heard.append(f"a {error}"))
        writer.ask(lambda book: book.note("b"), fail)
        writer.ask(lambda book: book.note("c"), lambda error: heard.append(f"c {error}"))
        await asyncio.sleep(0)
        assert [words for words, _ in hand.groups] == [["a", "b", "c", "."]]
        assert heard == []
        hand.settle()
        assert heard == ["a None", "b", "c None"], "nobody waits for another turn of the loop"
        assert [type(fault) for fault in faults] == [ValueError]
        writer.ask(lambda book: book.note("d"), lambda error: heard.append(f"d {type(error).__name__}"))
        await asyncio.sleep(0)
        hand.settle("no space")
        assert heard[3:] == ["d StorageError"]
        assert told == [], "whoever asked knows it"
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(2 * RETRY_S)
        hand.settle()
        await closing

    run_in_virtual_time(main())


def test_what_is_owed_is_tried_again_before_everything_later_and_told_once() -> None:
    async def main() -> None:
        writer, hand, told = a_writer()
        heard: list[str] = []
        writer.owe(lambda book: book.note("a"), lambda: heard.append("a"))
        writer.soon(lambda book: book.note("mark"))
        await asyncio.sleep(0)
        writer.owe(lambda book: book.note("b"), lambda: heard.append("b"))
        hand.settle("no space")
        assert heard == []
        assert [error.text for error in told] == ["no space"]
        assert hand.groups[1][0] == ["a", "mark", "b", "."], "what came meanwhile asks the disk at once"
        hand.settle("no space")
        writer.owe(lambda book: book.note("c"), lambda: heard.append("c"))
        await asyncio.sleep(RETRY_S / 2)
        assert hand.groups[2][0] == ["a", "mark", "b", "c", "."]
        hand.settle()
        assert heard == ["a", "b", "c"]
        assert writer.counters.failures == 2
        writer.owe(lambda book: book.note("d"), lambda: heard.append("d"))
        await asyncio.sleep(0)
        hand.settle("no space")
        await asyncio.sleep(RETRY_S)
        assert hand.groups[-1][0] == ["d", "."], "nobody asked for it again"
        writer.kill()
        hand.settle()
        assert heard == ["a", "b", "c"], "a killed writer tells nobody"

    run_in_virtual_time(main())


def test_a_group_is_bounded_and_the_rest_follows_by_itself() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer()
        tasks = [
            asyncio.create_task(writer.do(lambda book: book.note("x"))) for _ in range(GROUP_JOBS_MAX + 1)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hand.settle()
        hand.settle()
        await asyncio.gather(*tasks)
        assert [len(words) - 1 for words, _ in hand.groups] == [GROUP_JOBS_MAX, 1]

    run_in_virtual_time(main())


def test_marks_wait_for_company_but_not_long() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer()
        writer.soon(lambda book: book.note("one"))
        writer.soon(lambda book: book.note("two"))
        await asyncio.sleep(SOON_S * 0.9)
        assert hand.groups == []
        await asyncio.sleep(SOON_S * 0.2)
        assert hand.groups == [(["one", "two", "."], True)]
        writer.soon(lambda book: book.note("three"))
        await asyncio.sleep(SOON_S * 5)
        hand.settle()
        await asyncio.sleep(SOON_S * 1.1)
        assert [words for words, _ in hand.groups][1:] == [["three", "."]]

    run_in_virtual_time(main())


def test_after_a_failure_callers_are_refused_marks_come_first_and_the_disk_is_asked_again() -> None:
    async def main() -> None:
        writer, hand, told = a_writer()
        writer.soon(lambda book: book.note("mark"))
        asking = asyncio.create_task(writer.do(lambda book: book.note("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hand.settle("the disk is full")
        with pytest.raises(StorageError, match="the disk is full"):
            await asking
        writer.soon(lambda book: book.note("later"))
        assert [error.text for error in told] == ["the disk is full"]
        await asyncio.sleep(RETRY_S * 1.1)
        assert hand.groups[-1][0] == ["mark", "later", "."]
        hand.settle("the disk is full")
        await asyncio.sleep(RETRY_S * 1.1)
        hand.settle()
        assert len(told) == 1, "it is said once until something goes well again"
        await asyncio.sleep(RETRY_S * 5)
        assert len(hand.groups) == 3

    run_in_virtual_time(main())


def test_a_failure_that_only_a_caller_knows_is_repaired_all_the_same() -> None:
    """The failed transaction may have happened: nobody asks again, and still it must be undone."""

    async def main() -> None:
        writer, hand, told = a_writer()
        asking = asyncio.create_task(writer.do(lambda book: book.note("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        hand.settle("fsync failed")
        with pytest.raises(StorageError):
            await asking
        await asyncio.sleep(RETRY_S * 1.1)
        assert hand.groups[1:] == [(["."], True)]
        hand.settle()
        assert told == []

    run_in_virtual_time(main())


def test_a_sync_that_falls_due_while_a_group_is_written_is_not_forgotten() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer("interval")

        def ask(text: str) -> asyncio.Task[str]:
            return asyncio.create_task(writer.do(lambda book: book.note(text)))

        first = ask("a")
        await asyncio.sleep(0.01)
        hand.settle()
        second = ask("b")
        await asyncio.sleep(SYNC_EVERY_S + 0.01)
        assert [is_synced for _, is_synced in hand.groups] == [False, False]
        hand.settle()
        assert hand.groups[2:] == [(["."], True)]
        hand.settle()
        await asyncio.gather(first, second)
        await asyncio.sleep(SYNC_EVERY_S * 3)
        assert len(hand.groups) == 3, "what is synced needs no sync"

    run_in_virtual_time(main())


def test_a_failed_sync_is_tried_again_and_told() -> None:
    async def main() -> None:
        writer, hand, told = a_writer("interval")
        asking = asyncio.create_task(writer.do(lambda book: book.note("a")))
        await asyncio.sleep(0.01)
        hand.settle()
        await asking
        await asyncio.sleep(SYNC_EVERY_S + 0.01)
        hand.settle("fsync failed")
        assert len(told) == 1
        await asyncio.sleep(RETRY_S + 0.01)
        assert hand.groups[-1] == (["."], True)
        hand.settle()

    run_in_virtual_time(main())


def test_closing_goes_on_when_whoever_closes_stops_waiting() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer()
        writer.soon(lambda book: book.note("mark"))
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        await asyncio.sleep(0.01)
        assert hand.closings == 0
        hand.settle()
        await writer.close()
        assert hand.closings == 1
        assert [words for words, _ in hand.groups] == [["mark", "."]]
        with pytest.raises(StorageError, match="closed"):
            await writer.do(lambda book: book.note("late"))

    run_in_virtual_time(main())


def test_a_write_that_rests_takes_along_what_comes_meanwhile() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer("commit")
        hand.rests_s = 0.5

        def ask(text: str) -> asyncio.Task[str]:
            return asyncio.create_task(writer.do(lambda book: book.note(text)))

        first = ask("a")
        await asyncio.sleep(0.01)
        assert hand.groups == [(["a", "."], True)], "after a silence there is nothing to wait for"
        hand.settle()
        others = [ask("b")]
        await asyncio.sleep(0.4)
        others.append(ask("c"))
        assert len(hand.groups) == 1
        await asyncio.sleep(0.1)
        assert hand.groups[1:] == [(["b", "c", "."], True)]
        hand.settle()
        await asyncio.gather(first, *others)

    run_in_virtual_time(main())


def test_the_last_writes_do_not_rest() -> None:
    async def main() -> None:
        writer, hand, _ = a_writer("commit")
        hand.rests_s = 1_000.0
        first = asyncio.create_task(writer.do(lambda book: book.note("a")))
        await asyncio.sleep(0.01)
        hand.settle()
        last = asyncio.create_task(writer.do(lambda book: book.note("b")))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.01)
        assert hand.groups[1:] == [(["b", "."], True)]
        hand.settle()
        await asyncio.gather(first, last, closing)

    run_in_virtual_time(main())


def test_a_killed_writer_writes_nothing_more_and_answers_nobody() -> None:
    async def main() -> None:
        writer, hand, told = a_writer()
        begun = asyncio.create_task(writer.do(lambda book: book.note("begun")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = asyncio.create_task(writer.do(lambda book: book.note("waiting")))
        writer.soon(lambda book: book.note("mark"))
        await asyncio.sleep(0)

        writer.kill()
        hand.settle("the disk is gone")
        await asyncio.sleep(2)

        assert [words for words, _ in hand.groups] == [["begun", "."]]
        assert not begun.done()
        assert not waiting.done()
        assert (told, hand.closings) == ([], 1)
        with pytest.raises(StorageError):
            writer.soon(lambda book: book.note("late"))
        begun.cancel()
        waiting.cancel()

    run_in_virtual_time(main())
