"""`stagepost send --tier …`: one message through a publisher, told step by step.

A publisher for the length of one command: transport, outbox and events, opened together and closed in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.send.lines import (
    acked_line,
    error_facts,
    exit_status,
    print_json,
    result_facts,
    shortened,
    show_failure,
    status_line,
)
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.errors import DeliveryError, ErrNoConnectedPeers
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.shell.status_webhook import StatusWebhook, together
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.transports.dmq import TTL_S, DmqTransport
from stagepost.dmq.keys.kes_agent import KesAgent
from stagepost.dmq.keys.kes_clock import KesClock
from stagepost.errors import ErrorCode, StagepostError, TransportError
from stagepost.ground.files.durations import format_duration
from stagepost.ground.net.webhook import WebhookConfig
from stagepost.trace.layer_topics import events_log


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
    keys: Path | KesAgent
    config: ReliablePublisherConfig
    kes_clock: KesClock
    node_data: Path | None = None
    ttl_s: float = TTL_S
    webhook: WebhookConfig | None = None

    @property
    def flush_command(self) -> str:
        """Return the command that sends what waits in the outbox."""
        node = f"--socket {self.socket_path}" if self.node_data is None else f"--data {self.node_data}"
        keys = f"--keys {self.keys}"
        if isinstance(self.keys, KesAgent):
            keys = f"--kes-agent {self.keys.socket} --cold-vkey FILE"
        return f"stagepost queue flush --outbox {self.config.queue_path} {keys} {node}"

    def nobody_there(self, transport: DmqTransport | None) -> StagepostError | None:
        """Why nothing can be sent at present, and what to do; None if it can."""
        if transport is None:
            return TransportError(
                f"no node answers at {self.socket_path}", advice="start it, or look at its log"
            )
        return transport.absence

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
            kes_clock=self.kes_clock,
        )
        quiet_logs()
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(transport)
            events = events_log(self.node_data, self.config.queue_path)
            if events is not None:
                parts.callback(events.close)
            posted = None
            if self.webhook is not None:
                posted = StatusWebhook(self.webhook, transport.self_id)
                parts.push_async_callback(asyncio.to_thread, posted.close)
            sinks = together(events, posted)
            publisher = ReliablePublisher(
                transport, self.config, events=sinks, on_storage_error=_report_storage_error
            )
            publisher.on_delivery_status(on_status)
            await parts.enter_async_context(publisher)
            yield publisher, transport


@dataclass(frozen=True)
class Delivery:
    """Request for one delivery. `timeout_s` None: the publisher's own limit."""

    content: bytes
    topic: str
    tier: Tier
    wait: DeliveryStatus
    timeout_s: float | None
    key: str | None
    outbox: Path | None
    as_json: bool
    traceparent: str | None = None


class ProgressLines:
    """Follows one message among all that a publisher reports, and tells each of its steps once."""

    def __init__(self, delivery: Delivery) -> None:
        self.message_id: str | None = None
        self.peers: DmqTransport | None = None
        self.last_trouble: str | None = None
        self._delivery = delivery
        self._started = time.monotonic()
        self._reached: dict[DeliveryStatus, DeliveryError | None] = {}
        self._change = asyncio.Event()

    def note(self, message_id: str, status: object, error: object) -> None:
        """Called by the publisher. Ours is the only one that begins: others are left from earlier."""
        if status is DeliveryStatus.PENDING and self.message_id is None:
            self.message_id = message_id
        if message_id != self.message_id or not isinstance(status, DeliveryStatus):
            return
        if isinstance(error, DeliveryError):
            self.last_trouble = error.text
        self._reached[status] = error if isinstance(error, DeliveryError) else None
        if status in (DeliveryStatus.QUEUED, DeliveryStatus.SENT):
            self._tell(status)
        self._change.set()

    async def until(self, *statuses: DeliveryStatus) -> DeliveryStatus:
        """The first of these that is reached."""
        while True:
            for status in statuses:
                if status in self._reached:
                    return status
            self._change.clear()
            await self._change.wait()

    def error(self) -> DeliveryError | None:
        return self._reached.get(DeliveryStatus.FAILED)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _tell(self, status: DeliveryStatus) -> None:
        assert self.message_id is not None
        if self._delivery.as_json:
            facts = {"delivery_id": self.message_id, "status": status.value, "timestamp_ms": _now_ms()}
            print_json(facts | {"peers": None if self.peers is None else self.peers.counted_peers})
        elif status is DeliveryStatus.QUEUED:
            where = "in memory" if self._delivery.outbox is None else f"in {self._delivery.outbox}"
            is_alone = self.peers is not None and not self.peers.connected_peers
            why = self.last_trouble or ("no peer is connected yet" if is_alone else None)
            text = where if why is None else f"{where}; {why}"
            click.echo(status_line(status, self.message_id, text))
        else:
            click.echo(status_line(status, self.message_id, peers_text(self.peers)))


def peers_text(transport: DmqTransport | None) -> str:
    """Return how many peers the node can pass a message on to; a node of another make does not say."""
    count = None if transport is None else transport.counted_peers
    if count is None:
        return "the node holds it"
    return f"{count} peer{'' if count == 1 else 's'}"


async def deliver(session: DeliverySession, delivery: Delivery) -> int:
    """The exit status. Everything has been told by then."""
    progress = ProgressLines(delivery)
    try:
        async with session.open(progress.note) as (publisher, transport):
            progress.peers = transport
            try:
                return await _deliver(publisher, delivery, progress, session)
            except DeliveryError as error:
                # Told while the transport still knows whether anybody is there.
                _fail(error, progress, delivery, session)
                return exit_status(error)
    except DeliveryError as error:
        _fail(error, progress, delivery, session)
        return exit_status(error)


async def _deliver(
    publisher: ReliablePublisher, delivery: Delivery, progress: ProgressLines, session: DeliverySession
) -> int:
    topic, content = delivery.topic, delivery.content
    match delivery.tier:
        case Tier.BEST_EFFORT:
            await publisher.publish(topic, content, traceparent=delivery.traceparent)
            await progress.until(DeliveryStatus.SENT)
        case Tier.QUEUED:
            return await _deliver_queued(publisher, delivery, progress, session)
        case Tier.ACKED:
            result = await publisher.publish_with_ack(
                topic,
                content,
                timeout=delivery.timeout_s,
                key=delivery.key,
                traceparent=delivery.traceparent,
            )
            config = session.config
            if delivery.as_json:
                facts: dict[str, Any] = {
                    "delivery_id": result.message_id,
                    "status": result.status.value,
                    "timestamp_ms": result.timestamp_ms,
                    "after_ms": round(progress.elapsed_s * 1_000),
                }
                print_json(facts | result_facts(result))
            else:
                text = acked_line(result, progress.elapsed_s, len(config.critical_peers), config.required)
                click.echo(status_line(result.status, result.message_id, text))
    return DONE


async def _deliver_queued(
    publisher: ReliablePublisher, delivery: Delivery, progress: ProgressLines, session: DeliverySession
) -> int:
    message_id = await publisher.publish_queued(
        delivery.topic, delivery.content, key=delivery.key, traceparent=delivery.traceparent
    )
    if progress.message_id is None:
        # The key was used before: the message is there already, and its steps were told to whoever sent it.
        progress.message_id = message_id
        known = await publisher.status(message_id)
        if known in (DeliveryStatus.SENT, DeliveryStatus.ACKED):
            click.echo(status_line(known, message_id, "already, with the same --key"))
            return DONE
    if delivery.wait is DeliveryStatus.QUEUED:
        if delivery.as_json:
            print_json(
                {"delivery_id": message_id, "status": "Queued", "timestamp_ms": _now_ms(), "peers": None}
            )
        else:
            click.echo(status_line("stored", message_id, f"send it with: {session.flush_command}"))
        return DONE
    try:
        async with asyncio.timeout(delivery.timeout_s):
            reached = await progress.until(DeliveryStatus.SENT, DeliveryStatus.FAILED)
    except TimeoutError:
        _still_waiting(message_id, delivery, progress, session)
        return NOT_THAT_OUTCOME
    error = progress.error()
    if reached is DeliveryStatus.FAILED and error is not None:
        _fail(error, progress, delivery, session)
        return exit_status(error)
    return DONE


def _still_waiting(
    message_id: str, delivery: Delivery, progress: ProgressLines, session: DeliverySession
) -> None:
    assert delivery.timeout_s is not None
    nobody = session.nobody_there(progress.peers)
    failure = None if progress.peers is None else progress.peers.last_failure
    why = failure or "older messages go first, and are not through yet"
    if nobody is not None:
        why = nobody.text
    text = f"not sent within {format_duration(delivery.timeout_s)}: {why}"
    code = ErrorCode.NO_CONNECTED_PEERS if nobody else ErrorCode.NOT_READY
    if delivery.as_json:
        facts = {"delivery_id": message_id, "status": "Queued", "timestamp_ms": _now_ms()}
        print_json(facts | {"error": "StillQueued", "text": text, "code": str(code)})
        return
    click.echo(f"waiting  {shortened(message_id)}: {text}", err=True)
    click.echo(f"  it is kept; send it later with: {session.flush_command}", err=True)
    click.echo(str(code), err=True)


def _fail(
    error: DeliveryError, progress: ProgressLines, delivery: Delivery, session: DeliverySession
) -> None:
    message_id = error.message_id or progress.message_id
    nobody = session.nobody_there(progress.peers) if isinstance(error, ErrNoConnectedPeers) else None
    if not delivery.as_json:
        show_failure(error, None if message_id is None else shortened(message_id), nobody)
        return
    facts = {"delivery_id": message_id, "status": "Failed", "timestamp_ms": _now_ms()} | error_facts(error)
    print_json(facts | (result_facts(error.result) if error.result is not None else {}))


def _now_ms() -> int:
    return int(time.time() * 1_000)
