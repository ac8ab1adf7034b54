"""Serving and connecting over Unix sockets and loopback TCP, and what people are told when it fails."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path

import pytest

from stagepost.errors import ConfigError, LimitExceeded, TransportError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.sockets import connect_tcp, connect_unix, serve_tcp, serve_unix
from stagepost.ground.wire.mux import Direction


async def echo(bearer: Bearer) -> None:
    channel = bearer.channel(14, Direction.RESPONDER, 1_000)
    while data := await channel.read():
        await channel.write(data)


async def nothing(bearer: Bearer) -> None:
    await bearer.wait_closed()


async def ask(bearer: Bearer, question: bytes) -> bytes:
    channel = bearer.channel(14, Direction.INITIATOR, 1_000)
    await channel.write(question)
    return await channel.read()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_unix_round_trip_with_a_socket_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "run" / "node.socket"

    async def main() -> None:
        server = await serve_unix(path, echo)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

        bearer = await connect_unix(path)
        assert await ask(bearer, b"hello") == b"hello"
        assert bearer.peer == str(path)
        assert server.connection_count == 1
        bearer.close()
        assert await bearer.wait_closed() is None
        await server.close()
        assert not path.exists()

    asyncio.run(main())


def test_tcp_round_trip() -> None:
    async def main() -> None:
        server = await serve_tcp("127.0.0.1", 0, echo)
        assert server.port is not None
        assert server.address == f"127.0.0.1:{server.port}"

        first = await connect_tcp("127.0.0.1", server.port)
        second = await connect_tcp("127.0.0.1", server.port)
        assert list(await asyncio.gather(ask(first, b"one"), ask(second, b"two"))) == [b"one", b"two"]
        await server.close()

        assert await first.wait_closed() is None
        assert await second.wait_closed() is None
        assert server.connection_count == 0

    asyncio.run(main())


def test_socket_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()

    async def main() -> None:
        server = await serve_unix(path, echo)
        bearer = await connect_unix(path)
        assert await ask(bearer, b"alive") == b"alive"
        bearer.close()
        await server.close()

    asyncio.run(main())


def test_live_server_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.socket"

    async def main() -> None:
        server = await serve_unix(path, echo)
        with pytest.raises(ConfigError, match=f"another server is listening at {path}"):
            await serve_unix(path, echo)
        bearer = await connect_unix(path)
        assert await ask(bearer, b"still here") == b"still here"
        bearer.close()
        await server.close()

    asyncio.run(main())


def test_closing_leaves_a_socket_that_another_server_has_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "node.socket"

    async def main() -> None:
        first = await serve_unix(path, echo)
        path.unlink()
        second = await serve_unix(path, echo)
        await first.close()
        assert path.exists()
        await second.close()
        assert not path.exists()

    asyncio.run(main())


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine", encoding="utf-8")

    with pytest.raises(ConfigError, match="exists and is not a socket"):
        asyncio.run(_serve_and_close(path))
    assert path.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)

    with pytest.raises(ConfigError, match=f"has mode {mode:04o}") as caught:
        asyncio.run(_serve_and_close(folder / "node.socket"))
    assert "chmod 700" in caught.value.advice


def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="for the socket cannot be used"):
        asyncio.run(_serve_and_close(tmp_path / "file" / "node.socket"))


def test_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(ConfigError, match="cannot listen at") as caught:
        asyncio.run(_serve_and_close(path))
    assert "shorter" in caught.value.advice
    with pytest.raises(ConfigError, match="cannot connect to"):
        asyncio.run(_connect_unix(path))


def test_connecting_to_no_socket_or_to_a_dead_one_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "node.socket"
    with pytest.raises(TransportError, match=f"cannot connect to {path}: there is no such socket") as caught:
        asyncio.run(_connect_unix(path))
    assert "start the node" in caught.value.advice
    assert isinstance(caught.value.__cause__, FileNotFoundError)

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(TransportError, match="nobody is listening there"):
        asyncio.run(_connect_unix(path))


@pytest.mark.skipif(os.getuid() == 0, reason="root may use every socket")
def test_socket_of_another_user_is_a_matter_of_configuration(tmp_path: Path) -> None:
    path = tmp_path / "node.socket"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        path.chmod(0)
        with pytest.raises(ConfigError, match="may not be used by this user"):
            asyncio.run(_connect_unix(path))


def test_tcp_failures_name_the_address_and_what_to_do() -> None:
    async def main() -> None:
        port = free_port()
        with pytest.raises(
            TransportError, match=f"connect to 127.0.0.1:{port}: nobody is listening"
        ) as caught:
            await connect_tcp("127.0.0.1", port)
        assert "check host and port" in caught.value.advice
        with pytest.raises(ConfigError, match="a port is a number"):
            await connect_tcp("127.0.0.1", 70_000)
        with pytest.raises(ConfigError, match="not a valid host name"):
            await connect_tcp("a" * 70 + "..b", 3141)

        server = await serve_tcp("127.0.0.1", 0, echo)
        assert server.port is not None
        with pytest.raises(ConfigError, match=f"listen at 127.0.0.1:{server.port}: the port is in use"):
            await serve_tcp("127.0.0.1", server.port, echo)
        await server.close()
        with pytest.raises(ConfigError, match="no such address"):
            await serve_tcp("192.0.2.1", 0, echo)

    asyncio.run(main())


def test_connections_above_the_limit_are_dropped() -> None:
    async def main() -> None:
        server = await serve_tcp("127.0.0.1", 0, echo, connections_max=2)
        assert server.port is not None
        kept = [await connect_tcp("127.0.0.1", server.port) for _ in range(2)]
        for bearer in kept:
            assert await ask(bearer, b"x") == b"x"

        third = await connect_tcp("127.0.0.1", server.port)
        await third.wait_closed()

        kept[0].close()
        await kept[0].wait_closed()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
        assert server.connection_count == 1
        fourth = await connect_tcp("127.0.0.1", server.port)
        assert await ask(fourth, b"y") == b"y"
        await server.close()

    asyncio.run(main())


def test_violation_in_a_handler_closes_only_that_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures = iter([LimitExceeded("too much"), ZeroDivisionError("a bug")])
    reasons: list[str] = []

    async def handler(bearer: Bearer) -> None:
        failure = next(failures, None)
        if failure is None:
            await echo(bearer)
            return
        try:
            raise failure
        finally:
            asyncio.get_running_loop().create_task(_note_reason(bearer, reasons))

    async def main() -> None:
        server = await serve_unix(tmp_path / "node.socket", handler)
        for _ in range(2):
            await (await connect_unix(tmp_path / "node.socket")).wait_closed()
        bearer = await connect_unix(tmp_path / "node.socket")
        assert await ask(bearer, b"fine") == b"fine"
        await server.close()

    asyncio.run(main())
    assert reasons[0] == "too much"
    assert "ZeroDivisionError" in reasons[1]
    assert [record.message for record in caplog.records] == ["connection ended", "connection handler failed"]


def test_server_closes_although_a_peer_never_reads(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def flood(bearer: Bearer) -> None:
        started.set()
        channel = bearer.channel(15, Direction.RESPONDER, 1_000)
        while True:
            await channel.write(bytes(100_000))

    async def main() -> None:
        server = await serve_unix(tmp_path / "node.socket", flood)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(tmp_path / "node.socket"))
            await started.wait()
            await server.close(grace_s=0.01)
            assert server.connection_count == 0

    asyncio.run(main())


async def _note_reason(bearer: Bearer, reasons: list[str]) -> None:
    reasons.append(str(await bearer.wait_closed()))


async def _serve_and_close(path: Path) -> None:
    server = await serve_unix(path, nothing)
    await server.close()


async def _connect_unix(path: Path) -> None:
    bearer = await connect_unix(path)
    bearer.close()
