"""The in-memory channels keep the contract of `Channel`."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.errors import LocalProtocolError, TransportError
from stagepost.runtime.channel import Channel
from stagepost.runtime.memory import memory_channels
from stagepost.runtime.virtual_time import run_in_virtual_time


def test_both_directions_carry_bytes() -> None:
    async def main() -> None:
        left, right = memory_channels()
        as_channel: Channel = left
        await as_channel.write(b"ping")
        assert await right.read() == b"ping"
        await right.write(b"pong")
        assert await left.read() == b"pong"

    asyncio.run(main())


def test_written_bytes_are_cut_where_asked() -> None:
    async def main() -> list[bytes]:
        left, right = memory_channels(cut=lambda data: (data[:1], b"", data[1:4], data[4:]))
        await left.write(b"abcdefg")
        return [await right.read() for _ in range(3)]

    assert asyncio.run(main()) == [b"a", b"bcd", b"efg"]


def test_writer_waits_above_the_limit_until_the_reader_catches_up() -> None:
    async def main() -> None:
        left, right = memory_channels(bytes_max=10)
        await left.write(bytes(10))
        await left.write(b"x")  # ten bytes are not above ten
        waiting = asyncio.ensure_future(left.write(b"late"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.shield(waiting)

        assert await right.read() == bytes(10)
        await waiting
        assert [await right.read(), await right.read()] == [b"x", b"late"]

    run_in_virtual_time(main())


def test_close_lets_the_other_end_read_the_rest_and_then_end() -> None:
    async def main() -> None:
        left, right = memory_channels()
        await left.write(b"last words")
        left.close()

        assert [await right.read(), await right.read(), await right.read()] == [b"last words", b"", b""]
        assert await left.read() == b""
        with pytest.raises(LocalProtocolError, match="closed on this side"):
            await left.write(b"x")
        with pytest.raises(TransportError, match="other end"):
            await right.write(b"x")

    asyncio.run(main())


def test_close_wakes_a_sleeping_reader() -> None:
    async def main() -> bytes:
        left, right = memory_channels()
        reading = asyncio.ensure_future(right.read())
        asyncio.get_running_loop().call_later(1, left.close)
        return await reading

    assert run_in_virtual_time(main()) == b""


def test_failure_reaches_both_ends_after_what_was_written() -> None:
    async def main() -> None:
        left, right = memory_channels()
        await left.write(b"before")
        left.fail(TransportError("cable cut"))

        assert await right.read() == b"before"
        for channel in (left, right):
            with pytest.raises(TransportError, match="cable cut"):
                await channel.read()
            with pytest.raises(TransportError, match="cable cut"):
                await channel.write(b"x")

    asyncio.run(main())
