"""What is put off runs after everybody who is ready, in the same turn of the loop, and never later than in the next."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stagepost.ground.loop.turn_end import TurnEnd, turn_end
from stagepost.ground.loop.virtual_time import run_in_virtual_time


class Said:
    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, word: str) -> Callable[[], None]:
        return lambda: self.words.append(word)


def run(main: Callable[[Said], Coroutine[Any, Any, None]]) -> list[str]:
    said = Said()
    asyncio.run(main(said))
    return said.words


def test_it_runs_soon_though_nothing_else_happens() -> None:
    async def main(said: Said) -> None:
        turn_end()(said("put off"))
        assert said.words == []
        await asyncio.sleep(0.01)

    assert run(main) == ["put off"]


def test_in_a_busy_loop_it_runs_behind_all_that_is_ready_and_before_the_next_look_at_the_sockets() -> None:
    async def main(said: Said) -> None:
        loop = asyncio.get_running_loop()
        put_off = turn_end()
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        with here, there:
            heard = loop.create_future()

            def send() -> None:
                said.words.append("sent")
                here.send(b"x")

            def next_turn() -> None:
                said.words.append("next turn")
                loop.call_soon(said("turn after"))

            def read() -> None:
                there.recv(1)
                said.words.append("read")
                if said.words.count("read") == 2:
                    heard.set_result(None)
                    return
                put_off(send)
                loop.call_soon(next_turn)

            loop.add_reader(there, read)
            # Something is put off in two turns, so that the end of the second is awaited.
            put_off(lambda: None)
            loop.call_soon(put_off, send)
            await heard
            await asyncio.sleep(0)
            loop.remove_reader(there)

    assert run(main) == ["sent", "read", "sent", "next turn", "read", "turn after"]


def test_what_is_put_off_meanwhile_runs_in_the_same_go() -> None:
    async def main(said: Said) -> None:
        put_off = turn_end()

        def first() -> None:
            said.words.append("first")
            put_off(said("second"))

        put_off(first)
        put_off(said("third"))
        while len(said.words) < 3:
            assert said.words in ([], ["first", "third", "second"])
            await asyncio.sleep(0)

    assert run(main) == ["first", "third", "second"]


def test_one_that_fails_keeps_nobody_from_running() -> None:
    faults: list[str] = []

    def fail() -> None:
        raise RuntimeError("by itself")

    async def main(said: Said) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: faults.append(str(context["exception"]))
        )
        turn_end()(fail)
        turn_end()(said("the other"))
        await asyncio.sleep(0.01)
        turn_end()(said("later"))
        await asyncio.sleep(0.01)

    assert run(main) == ["the other", "later"]
    assert faults == ["by itself"]


def test_a_loop_that_has_nothing_to_do_rests() -> None:
    async def main(said: Said) -> None:
        turn_end()(said("once"))
        await asyncio.sleep(0.01)
        end = turn_end()
        assert isinstance(end, TurnEnd)
        assert not end._is_armed

    assert run(main) == ["once"]


def test_a_loop_that_is_over_is_not_kept() -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        turn_end()(lambda: None)
        await asyncio.sleep(0)
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


@pytest.mark.parametrize("runner", [asyncio.run, run_in_virtual_time])
def test_each_loop_has_one_of_its_own(runner: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    words: list[str] = []

    async def main() -> None:
        turn_end()(lambda: words.append("here"))
        await asyncio.sleep(0.01)

    runner(main())
    runner(main())
    assert words == ["here", "here"]
