"""Something to run commands against: a small node in a thread, and a status page with given content."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from stagepost.ground.net.network import SocketNetwork
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.small_node import MAGIC, SmallNode

Served = TypeVar("Served", SmallNode, PretendCardanoNode)

START_TIMEOUT_S = 120.0
TURNS = 10


@contextmanager
def node_in_background(socket_path: Path, **options: Any) -> Iterator[SmallNode]:
    async def start() -> SmallNode:
        return await SmallNode(socket_path, **options).start()

    with _in_background(start) as node:
        yield node


@contextmanager
def cardano_in_background(socket_path: Path, node: PretendCardanoNode) -> Iterator[PretendCardanoNode]:
    async def start() -> PretendCardanoNode:
        await node.start(SocketNetwork(), socket_path)
        return node

    with _in_background(start) as started:
        yield started


@contextmanager
def _in_background(start: Callable[[], Coroutine[Any, Any, Served]]) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(START_TIMEOUT_S)

    try:
        node: Served = run(start())
        try:
            yield node
        finally:
            run(node.stop())
            run(_settled())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_TIMEOUT_S)
        loop.close()
        # Whoever came while the loop ended left a transport behind that nobody could close any more.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


async def _settled() -> None:
    """Whatever a stopped node leaves behind has its turns of the loop before that ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for _ in range(TURNS):
        await asyncio.sleep(0)


Answer = Callable[[str], tuple[int, bytes]]


@contextmanager
def status_page(data: Path, answer: Answer, socket: str = "dmq-node.socket") -> Iterator[None]:
    """Serve `answer(path)` on loopback and leave the node.json that points to it in `data`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        write_node_file(data, server.server_port, socket)
        try:
            yield
        finally:
            server.shutdown()
            thread.join(START_TIMEOUT_S)


def write_node_file(
    data: Path, metrics_port: int | None, socket: str = "dmq-node.socket", **more: object
) -> None:
    facts = {
        "pid": 4711,
        "local_socket": socket,
        "network_magic": MAGIC,
        "metrics_port": metrics_port,
        **more,
    }
    (data / "node.json").write_text(json.dumps(facts))


def a_status(**changes: Any) -> dict[str, Any]:
    """What a healthy node tells, with these changes."""
    return {
        "version": "1.0",
        "uptime_s": 273_600.0,
        "network_magic": MAGIC,
        "ready": True,
        "mempool": {
            "messages": 10,
            "bytes": 7_000,
            "messages_max": 50_000,
            "bytes_max": 160_000_000,
            "oldest_ms": None,
        },
        "peers": [a_peer()],
        "rejections": {},
        "last_message_ms": None,
        "kes_periods_remaining": None,
        **changes,
    }


def a_peer(**changes: Any) -> dict[str, Any]:
    return {
        "address": "192.0.2.7:3141",
        "direction": "outbound",
        "state": "hot",
        "version": 2,
        "profile": "dmq-node",
        "flavour": "haskell",
        "unacknowledged": 12,
        "in_flight_bytes": 5_600,
        "score": 1.5,
        "first_announcer": 42,
        "round_trip_ms": 31.2,
        "last_violation": None,
        **changes,
    }
