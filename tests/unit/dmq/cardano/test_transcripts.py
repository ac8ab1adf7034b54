"""Stored conversations, byte for byte: a server that replays them, with faults at every step, and a foreign client's lines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stagepost.dmq.cardano import ledger_watch
from stagepost.dmq.cardano.genesis import ShelleyGenesis, parse_genesis
from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.net.network import SocketNetwork
from tests.worlds.dmq.cardano_answers import LedgerState, transcript, vectors
from tests.worlds.dmq.cardano_node import EPOCH, STAKE, PretendCardanoNode

WITHIN_S = 30.0
RESPONDER = 0x8000
HEADER_BYTES = 8
SEGMENT_BYTES_MAX = 12_288
CLIENT_SEQUENCES = ("dmq-sequence-mainnet", "dmq-sequence-preview-dijkstra")
GENESIS: Mapping[str, ShelleyGenesis] = {
    name: parse_genesis(entry["file_text"].encode(), name)
    for name, entry in zip(CLIENT_SEQUENCES, vectors("genesis-and-clock")["genesis_files"][::2], strict=True)
}


def segments(protocol: int, payload: bytes) -> bytes:
    """As a node sends it: cut into segments, with times of zero in the headers."""
    parts = [payload[at : at + SEGMENT_BYTES_MAX] for at in range(0, len(payload), SEGMENT_BYTES_MAX)]
    return b"".join(
        bytes(4) + protocol.to_bytes(2, "big") + len(part).to_bytes(2, "big") + part for part in parts
    )


async def received(reader: asyncio.StreamReader, protocol: int, count: int) -> bytes:
    """The next `count` bytes of a protocol; segments of another one are a fault."""
    found = b""
    while len(found) < count:
        header = await reader.readexactly(HEADER_BYTES)
        assert int.from_bytes(header[4:6], "big") == protocol, header.hex()
        found += await reader.readexactly(int.from_bytes(header[6:8], "big"))
    return found


class ReplayedNode:
    """A server without a protocol: it awaits the client lines of a transcript, and sends its server lines.

    It closes after `steps` lines, in the middle of the next server line if `cuts`.
    """

    def __init__(
        self, lines: Sequence[Mapping[str, Any]], steps: int | None = None, *, cuts: bool = False
    ) -> None:
        self._lines = lines
        self._steps = len(lines) if steps is None else steps
        self._cuts = cuts
        self.differences: list[tuple[str, str]] = []
        self.is_through = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._play(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            self.differences.append(("the whole conversation", repr(error)))
        finally:
            self.is_through.set()
            writer.close()
            self.has_ended.set()

    async def _play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for index, line in enumerate(self._lines):
            content, protocol = bytes.fromhex(line["hex"]), line["protocol"]
            if index >= self._steps:
                if self._cuts and line["from"] == "server":
                    whole = segments(protocol | RESPONDER, content)
                    writer.write(whole[: len(whole) // 2])
                    await writer.drain()
                return
            if line["from"] == "server":
                writer.write(segments(protocol | RESPONDER, content))
                await writer.drain()
                continue
            found = await received(reader, protocol, len(content))
            if found != content:
                self.differences.append((content.hex(), found.hex()))
        # Keep the connection: the client sleeps until the next epoch.
        self.is_through.set()
        await reader.read()


def source_for(name: str, folder: Path, socket: Path) -> tuple[CardanoSource, list[LedgerPeers]]:
    magic, lines, expected = transcript(name)
    access = CardanoAccess(socket, magic, GENESIS[name])
    clock = LoopClock(expected["next_epoch_unix"] - 1_000.0)
    asks_peers = any("LedgerPeer" in line["message"] for line in lines)
    source = CardanoSource(access, SocketNetwork(), clock, folder, wants_peers=asks_peers)
    peers: list[LedgerPeers] = []
    source.on_peers.append(peers.append)
    return source, peers


async def ended(watching: asyncio.Task[None], node: ReplayedNode) -> None:
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    async with asyncio.timeout(WITHIN_S):
        await node.has_ended.wait()


async def until(what: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not what():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", CLIENT_SEQUENCES)
def test_our_lines_are_exactly_those_of_dmq_node(tmp_path: Path, name: str) -> None:
    _, lines, expected = transcript(name)

    async def scene() -> None:
        socket = tmp_path / "node.socket"
        node = ReplayedNode(lines)
        server = await asyncio.start_unix_server(node.serve, socket)
        source, peers = source_for(name, tmp_path, socket)
        watching = asyncio.create_task(source.watch())
        async with asyncio.timeout(WITHIN_S):
            await node.is_through.wait()
        await until(lambda: source.is_ready)
        assert node.differences == []
        assert source.pool_count == expected["pools"]
        assert f"stake of epoch {expected['epoch']}" in source.works_with
        assert len(peers) == sum("LedgerPeer" in line["message"] for line in lines)
        await ended(watching, node)
        server.close()

    asyncio.run(scene())


def _server_lines(name: str) -> list[int]:
    return [index for index, line in enumerate(transcript(name)[1]) if line["from"] == "server"]


@pytest.mark.parametrize("cuts", [False, True], ids=["between", "inside"])
@pytest.mark.parametrize(
    ("name", "steps"), [(name, step) for name in CLIENT_SEQUENCES for step in _server_lines(name)]
)
def test_a_server_that_closes_at_any_line_is_named_and_asked_again(
    tmp_path: Path, name: str, steps: int, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_watch, "RETRY_FIRST_S", 0.05)
    _, lines, expected = transcript(name)
    has_stake = steps > next(index for index, line in enumerate(lines) if "Stake" in line["message"]) + 1

    async def scene() -> None:
        socket = tmp_path / "node.socket"
        nodes = [ReplayedNode(lines, steps, cuts=cuts), ReplayedNode(lines)]
        later = iter(nodes)
        server = await asyncio.start_unix_server(lambda r, w: next(later, nodes[1]).serve(r, w), socket)
        source, _ = source_for(name, tmp_path, socket)
        watching = asyncio.create_task(source.watch())
        await until(lambda: source.fault_text is not None)
        assert str(socket) in (source.fault_text or "")
        assert source.is_ready is has_stake, "a part of an answer is not used"
        await until(lambda: source.is_ready and source.fault_text is None)
        assert source.pool_count == expected["pools"]
        await ended(watching, nodes[1])
        server.close()

    asyncio.run(scene())


def test_a_genuine_client_of_pallas_gets_the_stored_answers_from_our_server(tmp_path: Path) -> None:
    """The client lines were read off a socket of pallas-network; our server answers them byte for byte."""
    magic, lines, _ = transcript("pallas-client-conversation")
    kinds = ("start", "era", EPOCH, STAKE)
    results = [bytes.fromhex(line["hex"])[2:] for line in lines if line["hex"].startswith("8204")]
    node = PretendCardanoNode(LedgerState(magic=magic), replaced=dict(zip(kinds, results, strict=True)))

    async def scene() -> None:
        socket = tmp_path / "node.socket"
        await node.start(SocketNetwork(), socket)
        reader, writer = await asyncio.open_unix_connection(socket)
        async with asyncio.timeout(WITHIN_S):
            for line in lines:
                content, protocol = bytes.fromhex(line["hex"]), line["protocol"]
                if line["from"] == "client":
                    writer.write(segments(protocol, content))
                    await writer.drain()
                else:
                    assert (await received(reader, protocol | RESPONDER, len(content))).hex() == content.hex()
        writer.close()
        await node.stop()
        assert [question.kind for question in node.asked] == list(kinds)

    asyncio.run(scene())
