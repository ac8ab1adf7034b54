"""The in-memory channels keep the contract of `ProtocolChannel`."""

from __future__ import annotations

import asyncio

import pytest

from rigs.memory_channels import memory_channels
from stagepost.errors import LocalProtocolError, TransportError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.channel import ProtocolChannel


def test_both_directions_carry_bytes() -> None:
    async def main() -> None:
        left, right = memory_channels()
        as_channel: ProtocolChannel = left
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
        with pytest.raises(LocalProtocolError, match="this side had closed the channel"):
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


def test_a_reader_can_be_called_instead_of_waiting() -> None:
    async def main() -> None:
        left, right = memory_channels(cut=lambda data: (data[:2], data[2:]))
        heard: list[bytes | None] = []
        right.on_data(lambda: heard.append(right.read_now()))
        assert right.read_now() is None

        assert left.write_now(b"ping")
        assert heard == [], "called inside of the other end's call"
        await asyncio.sleep(0)
        assert heard == [b"pi"], "one call however many pieces"
        assert (right.read_now(), right.read_now()) == (b"ng", None)

        left.close()
        await asyncio.sleep(0)
        assert heard[1:] == [b""]

        right.on_data(None)
        assert right.read_now() == b""

    asyncio.run(main())


def test_a_failure_is_raised_to_a_reader_that_does_not_wait() -> None:
    async def main() -> None:
        left, right = memory_channels()
        calls: list[None] = []
        right.on_data(lambda: calls.append(None))
        left.write_now(b"before")
        left.fail(TransportError("cable cut"))
        await asyncio.sleep(0)

        assert len(calls) == 1
        assert right.read_now() == b"before"
        with pytest.raises(TransportError, match="cable cut"):
            right.read_now()
        assert right.has_room
        with pytest.raises(TransportError, match="cable cut"):
            right.write_now(b"x")

    asyncio.run(main())


def test_a_writer_that_does_not_wait_is_told_that_there_is_no_room() -> None:
    async def main() -> None:
        left, right = memory_channels(bytes_max=10)
        assert left.write_now(bytes(11))
        assert not left.has_room
        assert not left.write_now(b"late")

        waiting = asyncio.ensure_future(left.write(b"first"))
        await asyncio.sleep(0)
        assert right.read_now() == bytes(11)
        assert not left.write_now(b"overtakes")
        await waiting
        assert left.write_now(b"second")
        assert [right.read_now(), right.read_now(), right.read_now()] == [b"first", b"second", None]

        left.close()
        with pytest.raises(LocalProtocolError, match="this side had closed the channel"):
            left.write_now(b"x")

    asyncio.run(main())
