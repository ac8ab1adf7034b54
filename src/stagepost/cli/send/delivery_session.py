"""A publisher for the length of one command: transport, outbox and events, opened together and closed in order."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.shell.events import JsonLinesEventSink, NoEventSink
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.transports.dmq import TTL_S, DmqTransport
from stagepost.errors import StagepostError, TransportError

EVENTS_FILE = "events.jsonl"
"""In the outbox folder: every change of status, as the topic of delivery events has it."""


def quiet_logs() -> None:
    """A command tells by itself what happens; without a handler, Python would print bare log messages in between."""
    log = logging.getLogger("stagepost")
    if not log.handlers:
        log.addHandler(logging.NullHandler())


OnStatus = Callable[[str, object, object], None]


def _report_storage_error(error: StagepostError) -> None:
    """Tell people at once: nobody reads the log of a command."""
    click.echo(f"outbox: {error.text}", err=True)


@dataclass(frozen=True)
class DeliverySession:
    socket_path: str
    network_magic: int
    profile: str
    keys: Path
    config: ReliablePublisherConfig
    node_data: Path | None = None
    ttl_s: float = TTL_S

    @property
    def flush_command(self) -> str:
        """What to type to send what waits in the outbox."""
        node = f"--socket {self.socket_path}" if self.node_data is None else f"--data {self.node_data}"
        return f"stagepost queue flush --outbox {self.config.queue_path} --keys {self.keys} {node}"

    def nobody_there(self, transport: DmqTransport | None) -> StagepostError | None:
        """Why nothing can be sent at present, and what to do; None if it can."""
        if transport is not None and transport.fault is not None:
            return transport.fault
        if transport is None or not transport.is_node_there:
            return TransportError(
                f"no node answers at {self.socket_path}", advice="start it, or look at its log"
            )
        if transport.connected_peers:
            return None
        return TransportError(
            "the node runs, but no peer is connected to it",
            advice="`stagepost peers` and its topology file say why; --tier queued keeps messages meanwhile",
        )

    @asynccontextmanager
    async def open(self, on_status: OnStatus) -> AsyncIterator[tuple[ReliablePublisher, DmqTransport]]:
        """`on_status` is registered before the start, so that it sees what an earlier command left as well."""
        # Before logs are quiet: a warning about the key files must reach the person who typed the command.
        transport = DmqTransport(
            self.socket_path,
            self.network_magic,
            self.keys,
            profile=self.profile,
            ttl_s=self.ttl_s,
            node_data=self.node_data,
        )
        quiet_logs()
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(transport)
            events: JsonLinesEventSink | NoEventSink = NoEventSink()
            if self.config.queue_path is not None:
                Path(self.config.queue_path).mkdir(mode=0o700, parents=True, exist_ok=True)
                events = JsonLinesEventSink(Path(self.config.queue_path) / EVENTS_FILE)
                parts.callback(events.close)
            publisher = ReliablePublisher(
                transport, self.config, events=events, on_storage_error=_report_storage_error
            )
            publisher.on_delivery_status(on_status)
            await parts.enter_async_context(publisher)
            yield publisher, transport
