"""The network of this machine: one call for TCP and Unix addresses, and how addresses are written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.errors import TransportError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Network, SocketNetwork, TcpAddress, UnixAddress
from stagepost.ground.wire.mux import Direction


async def echo(bearer: Bearer) -> None:
    channel = bearer.channel(14, Direction.RESPONDER, 1_000)
    while data := await channel.read():
        await channel.write(data)


async def ask(bearer: Bearer, question: bytes) -> bytes:
    channel = bearer.channel(14, Direction.INITIATOR, 1_000)
    await channel.write(question)
    return await channel.read()


def test_tcp_round_trip_at_a_port_that_the_listener_tells() -> None:
    async def main() -> None:
        network: Network = SocketNetwork()
        listener = await network.serve(TcpAddress("127.0.0.1", 0), echo)
        assert listener.port
        bearer = await network.connect(TcpAddress("127.0.0.1", listener.port))
        assert await ask(bearer, b"hello") == b"hello"
        assert listener.address == f"127.0.0.1:{listener.port}"
        assert listener.connection_count == 1
        await listener.close()
        await bearer.wait_closed()
        with pytest.raises(TransportError, match="nobody is listening"):
            await network.connect(TcpAddress("127.0.0.1", listener.port))

    asyncio.run(main())


def test_unix_round_trip(tmp_path: Path) -> None:
    async def main() -> None:
        network: Network = SocketNetwork()
        address = UnixAddress(tmp_path / "run" / "node.socket")
        listener = await network.serve(address, echo)
        bearer = await network.connect(address)
        assert await ask(bearer, b"hello") == b"hello"
        assert (listener.address, listener.port, bearer.peer) == (str(address), None, str(address))
        await listener.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (TcpAddress("10.0.0.1", 3141), "10.0.0.1:3141"),
        (TcpAddress("::1", 3141), "[::1]:3141"),
        (TcpAddress("node.example", 1), "node.example:1"),
        (UnixAddress(Path("/run/node.socket")), "/run/node.socket"),
    ],
)
def test_addresses_are_written_as_people_do(address: TcpAddress | UnixAddress, text: str) -> None:
    assert str(address) == text
