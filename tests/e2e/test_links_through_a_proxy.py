"""Two programs as processes of their own, and between them a TCP proxy that spoils what it passes on."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from stagepost.delivery import Outgoing, SendFailed, SocketPeer, SocketTransport
from stagepost.ground.crypto import ed25519

ALICE, BOB = bytes([1]) * 32, bytes([2]) * 32
WITHIN_S = 120.0
SECRET = b"a text that nobody on the way may read " * 20
BOBS_PROGRAM = """
import asyncio, sys
from stagepost.delivery import SocketPeer, SocketTransport

async def main():
    async with SocketTransport(bytes.fromhex(sys.argv[1]), [SocketPeer(sys.argv[2])], listen="127.0.0.1:0") as bob:
        bob.on_message(lambda message: print(message.payload[:8].decode(), flush=True))
        print(bob.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""

Spoil = Callable[[bytes], bytes]
"""Function from bytes that Alice has sent to what Bob gets."""


class Proxy:
    """Passes connections on to `port`. `spoil` is for the connections that come next; `seen` is all that passed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.spoil: Spoil = lambda data: data
        self.connections = 0
        self.seen = bytearray()
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        spoil = self.spoil
        ways = (self._pass(reader, back, spoil), self._pass(there, writer, lambda data: data))
        await asyncio.gather(*ways)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, spoil: Spoil) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                self.seen += data
                writer.write(spoil(data))
                await writer.drain()
        writer.close()

    async def ended(self) -> None:
        """Wait until every connection has ended."""
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def through_a_proxy() -> AsyncIterator[tuple[SocketTransport, Proxy, asyncio.StreamReader]]:
    alices, bobs = (ed25519.public_key(seed).hex() for seed in (ALICE, BOB))
    program = (sys.executable, "-c", BOBS_PROGRAM, BOB.hex(), alices)
    bob = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    assert bob.stdout is not None
    assert bob.stdin is not None
    try:
        port = int((await bob.stdout.readline()).decode().rpartition(":")[2])
        proxy = Proxy(port)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with SocketTransport(ALICE, [SocketPeer(bobs, address)]) as alice:
            yield alice, proxy, bob.stdout
        server.close()
        await proxy.ended()
    finally:
        bob.stdin.close()
        with suppress(ProcessLookupError):
            if await asyncio.wait_for(bob.wait(), 30.0) != 0:
                raise AssertionError("the other program failed")


async def deliver(alice: SocketTransport, name: str) -> None:
    """Send until a linked peer takes the message."""
    while True:
        try:
            await alice.publish(Outgoing("t", name.encode() * 2, 2**62, 1, (), name.encode() + SECRET))
        except SendFailed:
            await asyncio.sleep(0.05)
        else:
            return


def test_what_a_proxy_changes_ends_the_link_and_the_next_one_delivers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S), through_a_proxy() as (alice, proxy, heard):
            await deliver(alice, "message0")
            assert await heard.readline() == b"message0\n"

            proxy.spoil = lambda data: data if len(data) < len(SECRET) else data[:-1] + bytes([data[-1] ^ 1])
            for connection in list(alice._links.values()):
                connection.bearer.close()
            links = proxy.connections
            while proxy.connections == links or not alice.connected_peers:
                await asyncio.sleep(0.01)
            proxy.spoil = lambda data: data
            # It is taken by a link that the proxy spoils, and lost; the sender knows when the link is gone.
            await deliver(alice, "message1")
            while alice.connected_peers and proxy.connections == links + 1:
                await asyncio.sleep(0.01)

            await deliver(alice, "message2")
            assert await heard.readline() == b"message2\n"
            assert proxy.connections > links + 1
            assert not alice._penalties._penalties
            assert SECRET[:16] not in proxy.seen
            assert b"message" not in proxy.seen

    asyncio.run(main())
    assert not [record for record in caplog.records if record.message == "peer broke a rule"]
