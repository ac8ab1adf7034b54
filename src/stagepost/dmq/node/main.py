"""The process around a DMQ node: it makes the real parts, runs until a signal, and ends within ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any

from stagepost import __version__
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.node.intake import OnAccepted
from stagepost.dmq.node.metrics import Metrics
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.node.peer_link import OnSupplied
from stagepost.dmq.node.pools_file import PoolsFile
from stagepost.dmq.node.status import DmqNodeStatus
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.pools import PoolSource
from stagepost.errors import ConfigError, StagepostError
from stagepost.ground.files.data_folder import MESSAGES_FILE, DataFolder, restored_note
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.loop.load import look_less_often
from stagepost.ground.net.network import Network, SocketNetwork, TcpAddress
from stagepost.ground.signatures.verifier import Verifier
from stagepost.ground.telemetry.logs import configure_logs
from stagepost.ground.telemetry.status_server import serve_metrics, serve_status

STOP_WITHIN_S = 8.0
"""Seconds for the node to end its connections; closing store and threads then fits into the ten seconds."""
SIGNALS = {signal.SIGTERM: 0, signal.SIGINT: 130}
"""Exit status of the process after each signal."""

log = logging.getLogger(__name__)


Recording = Callable[[Path, list[OnAccepted], list[OnSupplied]], AbstractAsyncContextManager[None]]
"""Maker of what a data folder records of a node, from the node's callbacks, for as long as the node runs."""


def run_process(config: NodeConfig, recording: Recording | None = None) -> int:
    """Run a node until a signal; return the exit status.

    A part that cannot start raises, and leaves at most an empty data folder.
    """
    output = sys.stdout if config.log.output == "stdout" else sys.stderr
    configure_logs(config.log.level, config.log.format, output)
    return asyncio.run(_run_until_signal(config, recording))


async def _run_until_signal(config: NodeConfig, recording: Recording | None) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(status: int) -> None:
        # A second signal finds us ending already.
        if not ended.done():
            ended.set_result(status)

    for number, status in SIGNALS.items():
        loop.add_signal_handler(number, end, status)
    try:
        async with running_node(config, recording):
            return await ended
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@asynccontextmanager
async def running_node(config: NodeConfig, recording: Recording | None = None) -> AsyncIterator[DmqNode]:
    """Run a whole node of this machine: data folder, store, threads, sockets, status server; end them in
    reverse order."""
    for note in config.notes:
        log.warning("setting without effect", extra={"detail": note})
    async with AsyncExitStack() as parts:
        folder = DataFolder(config.data_dir)
        folder.open()
        parts.callback(folder.close)
        restored = restored_note(config.data_dir)
        if restored is not None and not restored.accepts_replays:
            config = replace(config, restored_at=restored.restored_at_ms / 1_000)
        network, clock = SocketNetwork(), SystemClock()
        pools = _pool_source(config, network, clock)
        pools.load()
        store = SqliteStore(config.data_dir / MESSAGES_FILE)
        parts.push_async_callback(store.close)
        verifier = Verifier(config.verification_processes or None)
        parts.push_async_callback(verifier.close)
        node = DmqNode(
            config,
            network=network,
            clock=clock,
            store=store,
            pools=pools,
            verifier=verifier,
            random=SystemRandom(),
        )
        if isinstance(pools, CardanoSource):
            pools.on_peers.append(node.use_ledger_peers)
        if config.ledger_snapshot is not None:
            node.use_ledger_peers(config.ledger_snapshot)
        if recording is not None:
            await parts.enter_async_context(
                recording(config.data_dir, node.intake.on_accepted, node.on_supplied)
            )
        parts.push_async_callback(_stop, node)
        await node.start()
        metrics_port = await _serve_status(config, node, store, pools, parts)
        watching = asyncio.create_task(pools.watch())
        parts.push_async_callback(_cancel, watching)
        facts = _facts(config, node, metrics_port)
        folder.describe(facts)
        look_less_often()
        log.info("node started", extra=facts | {"pools": pools.pool_count, "works_with": pools.works_with})
        yield node
        log.info("node stopping")
    log.info("node stopped")


def _pool_source(config: NodeConfig, network: Network, clock: Clock) -> PoolSource:
    if config.pools_file is not None:
        return PoolsFile(config.pools_file)
    if config.cardano is None:
        raise ConfigError("neither a pools file nor a cardano-node is named", advice="give --pools FILE")
    return CardanoSource(
        config.cardano, network, clock, config.data_dir, wants_peers=config.uses_ledger_peers
    )


async def _serve_status(
    config: NodeConfig, node: DmqNode, store: SqliteStore, pools: PoolSource, parts: AsyncExitStack
) -> int | None:
    if config.metrics_port is None and config.prometheus is None:
        return None
    status = DmqNodeStatus(node, store, pools, Metrics(), config.metrics_prefix)
    if config.prometheus is not None:
        metrics = await serve_metrics(status, config.prometheus.host, config.prometheus.port)
        parts.push_async_callback(metrics.close)
    if config.metrics_port is None:
        return None
    server = await serve_status(status, config.metrics_port)
    parts.push_async_callback(server.close)
    return server.port


async def _stop(node: DmqNode) -> None:
    try:
        async with asyncio.timeout(STOP_WITHIN_S):
            await node.stop()
    except TimeoutError:
        log.error("node did not stop in time", extra={"waited_s": STOP_WITHIN_S})
    except StagepostError as error:
        log.error("node did not stop in order", extra={"reason": error.text, "code": error.code.value})


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _facts(config: NodeConfig, node: DmqNode, metrics_port: int | None) -> dict[str, Any]:
    """Return the note for other commands of this user; its keys are kept stable."""
    return {
        "pid": os.getpid(),
        "version": __version__,
        "started_ms": int(SystemClock().unix_s() * 1000),
        "network_magic": config.network_magic,
        "local_socket": str(Path(config.local_socket).absolute()),
        "tcp": [
            str(TcpAddress(host, port))
            for host, port in zip(config.host_addresses, node.tcp_ports, strict=not config.initiator_only)
        ],
        "metrics_port": metrics_port,
        "cardano": None
        if config.cardano is None
        else {
            "socket": str(config.cardano.socket.absolute()),
            "network_magic": config.cardano.network_magic,
        },
    }
