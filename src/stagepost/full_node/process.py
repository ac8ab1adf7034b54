"""Process of a validator or a full node: start from its files, run until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.errors import ConfigError
from stagepost.full_node.network import RempNetwork, load_network
from stagepost.full_node.running import RunningFullNode, start_full_node
from stagepost.full_node.status import full_node_status
from stagepost.ground.crypto import ed25519
from stagepost.ground.identifiers import LOOPBACK_HOST, LinkEncryption
from stagepost.ground.loop.load import look_less_often
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.sockets import require_free
from stagepost.ground.telemetry.logs import configure_logs
from stagepost.topics.kafka.admin import KafkaSettings

STOP_WITHIN_S = 8.0
"""Seconds that a node has to close after a signal."""
SIGNALS = {signal.SIGTERM: 0, signal.SIGINT: 130}


class ClosableNode(Protocol):
    async def close(self) -> None: ...


class DmqAccess(msgspec.Struct, frozen=True):
    """DMQ node of this machine, and the keys of the pool in whose name the full node sends there."""

    socket: str
    network_magic: int
    keys: Path
    profile: str
    node_data: Path | None = None


def run_full_node(
    network: Path,
    key: Path,
    data: Path,
    *,
    message_timeout_s: float,
    log_level: str,
    genesis: str | None = None,
    dmq: DmqAccess | None = None,
    beside: Callable[[RunningFullNode], AbstractAsyncContextManager[object]] | None = None,
    beside_at: TcpAddress | None = None,
    metrics_port: int | None = None,
    metrics_at: TcpAddress | None = None,
    kafka: KafkaSettings | None = None,
    chain_keep_s: float | None = None,
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
) -> int:
    """Run a full node; return the exit code. `beside` runs as long as the node does, such as its HTTP address. `genesis`: hash
    that the network file must have; None takes any.
    `beside_at`: address at which `beside` listens. `metrics_at`: address at which /metrics alone is served as well."""
    configure_logs(log_level, "auto")
    described, seed = load_member(network, genesis, key, is_validator=False)
    require_free_ports(metrics_port, metrics_at, beside_at)

    async def start() -> ClosableNode:
        timeout_ms = int(message_timeout_s * 1_000)
        keep_ms = None if chain_keep_s is None else int(chain_keep_s * 1_000)
        node = await start_full_node(
            described,
            seed,
            data,
            message_timeout_ms=timeout_ms,
            kafka=kafka,
            chain_keep_ms=keep_ms,
            network_file=network,
            encryption=encryption,
        )
        node.read_messages()
        running: ClosableNode = node if dmq is None else await _NodeWithDeliveries.start(node, dmq)
        served = full_node_status(
            node, data, metrics_port, message_timeout_ms=timeout_ms, metrics_at=metrics_at
        )
        running = await NodeBeside.start(running, served)
        return running if beside is None else await NodeBeside.start(running, beside(node))

    return asyncio.run(run_until_signal(start))


class _NodeWithDeliveries:
    """Full node and its transport to a DMQ node."""

    def __init__(self, node: RunningFullNode, transport: DmqTransport) -> None:
        self._node = node
        self._transport = transport

    @classmethod
    async def start(cls, node: RunningFullNode, dmq: DmqAccess) -> _NodeWithDeliveries:
        transport = DmqTransport(
            dmq.socket, dmq.network_magic, dmq.keys, profile=dmq.profile, node_data=dmq.node_data
        )
        await transport.__aenter__()
        await node.take_deliveries(transport)
        return cls(node, transport)

    async def close(self) -> None:
        await self._node.close()
        await self._transport.__aexit__(None, None, None)


class NodeBeside:
    """Node, and a context that ends before the node does."""

    def __init__(self, node: ClosableNode, other: AbstractAsyncContextManager[object]) -> None:
        self._node = node
        self._other = other

    @classmethod
    async def start(cls, node: ClosableNode, other: AbstractAsyncContextManager[object]) -> NodeBeside:
        try:
            await other.__aenter__()
        except BaseException:
            await node.close()
            raise
        return cls(node, other)

    async def close(self) -> None:
        await self._other.__aexit__(None, None, None)
        await self._node.close()


def seed_of(key: Path) -> bytes:
    return key_files.load_as(ColdSigningKey, key).seed


def load_member(
    network: Path, genesis: str | None, key: Path, *, is_validator: bool
) -> tuple[RempNetwork, bytes]:
    """Return the network and the secret of the member whose node starts; `ConfigError` if it is a member of the other kind."""
    described, seed = load_network(network, genesis), seed_of(key)
    member = described.members[described.place_of(ed25519.public_key(seed))]
    if member.is_validator is not is_validator:
        kind, command = ("validator", "validator") if member.is_validator else ("full node", "full")
        raise ConfigError(
            f"{key} is the key of {member.name}, which is a {kind} of this network",
            advice=f"start it with `stagepost node {command}`, or give the key of another member",
        )
    return described, seed


def require_free_ports(metrics_port: int | None, *others: TcpAddress | None) -> None:
    """Refuse to start where something else listens at an address of the node's status, or of what is beside the node."""
    status = None if metrics_port is None else TcpAddress(LOOPBACK_HOST, metrics_port)
    for address in (status, *others):
        if address is not None:
            require_free(address.host, address.port)


async def run_until_signal(start: Callable[[], Awaitable[ClosableNode]]) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        if not ended.done():
            ended.set_result(status)

    for number, status in SIGNALS.items():
        loop.add_signal_handler(number, end, status)
    running = await start()
    look_less_often()
    try:
        return await ended
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await running.close()
