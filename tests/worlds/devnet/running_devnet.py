"""A devnet in a thread of the tests' own process, for many tests to hand messages to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.web.access.settings import WebSettings

START_WITHIN_S = 120.0


class RunningDevnet:
    """`http` is the address of its full node's HTTP intake."""

    def __init__(self, data: Path, network: Devnet, http: str) -> None:
        self.data = data
        self.network = network
        self.http = http


@contextmanager
def devnet_in_background(data: Path, plan: DevnetPlan) -> Iterator[RunningDevnet]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="devnet")
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(START_WITHIN_S)

    running = _running(data, plan)
    try:
        found: RunningDevnet = run(running.__aenter__())
        try:
            yield found
        finally:
            run(running.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_WITHIN_S)
        loop.close()


@asynccontextmanager
async def _running(data: Path, plan: DevnetPlan) -> AsyncIterator[RunningDevnet]:
    from stagepost.cli.options.http import serving_http

    async with AsyncExitStack() as parts:
        network = await parts.enter_async_context(devnet(plan, data))
        await network.ready(START_WITHIN_S)
        settings = WebSettings(data, port=0)
        address = await parts.enter_async_context(serving_http(network.node, settings))
        yield RunningDevnet(data, network, address)
