"""Topics served by a thread of their own, as a node in a process of its own serves them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagepost.ground.net.network import Address, TcpAddress, parse_address
from stagepost.topics.remote.client import RemoteTopics
from stagepost.topics.remote.server import serve_topics

LOOPBACK = TcpAddress("127.0.0.1", 0)
WITHIN_S = 120


@contextmanager
def served_at(data: Path, address: Address = LOOPBACK, token: str | None = None) -> Iterator[str]:
    """The address that was taken."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(WITHIN_S)

    try:
        listener = on_loop(serve_topics(data, address, token=token))
        try:
            yield listener.address
        finally:
            on_loop(listener.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def served(
    data: Path, address: Address = LOOPBACK, token: str | None = None
) -> Iterator[Callable[..., RemoteTopics]]:
    """A maker of clients, without patience."""
    with served_at(data, address, token) as text:
        there = parse_address(text)
        yield lambda given=None, **more: RemoteTopics(there, given, patience_s=0, **more)
