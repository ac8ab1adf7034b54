"""The publisher of a client: one for the whole life of the client, started with the first message."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from stagepost.delivery.config import OUTBOX_DIR, ReliablePublisherConfig
from stagepost.delivery.effects import DeliveryEventSink
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.shell.status_webhook import StatusWebhook, together
from stagepost.delivery.status import Tier
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.ground.net.webhook import WebhookConfig

ON_DISK = ReliablePublisherConfig(persistence="disk", queue_path=OUTBOX_DIR)


class ClientSending:
    """A publisher over a node's socket. `keys` is a folder of `stagepost keys new`."""

    def __init__(
        self,
        socket_path: Path,
        network_magic: int,
        profile: str,
        keys: str | Path,
        config: ReliablePublisherConfig | None,
        node_data: str | Path | None,
        events: DeliveryEventSink | None = None,
        webhook: WebhookConfig | None = None,
    ) -> None:
        """Status changes go to `events`, and as CloudEvents to `webhook`."""
        self._transport = DmqTransport(socket_path, network_magic, keys, profile=profile, node_data=node_data)
        self._config = config or ReliablePublisherConfig()
        self._events = events
        self._webhook = webhook
        self._parts = AsyncExitStack()
        self._publisher: ReliablePublisher | None = None
        self._turn = asyncio.Lock()

    async def send(
        self,
        data: bytes,
        topic: str,
        tier: Tier,
        key: str | None,
        timeout_s: float | None,
        traceparent: str | None = None,
    ) -> str | None:
        """Send a message; return its delivery id, or None for a best effort, which nobody follows.

        Raise `DeliveryError` if the promise of the tier could not be kept.
        """
        publisher = await self._started()
        match tier:
            case Tier.BEST_EFFORT:
                await publisher.publish(topic, data, traceparent=traceparent)
                return None
            case Tier.QUEUED:
                return await publisher.publish_queued(topic, data, key=key, traceparent=traceparent)
            case Tier.ACKED:
                result = await publisher.publish_with_ack(
                    topic, data, timeout=timeout_s, key=key, traceparent=traceparent
                )
                return result.message_id

    async def close(self) -> None:
        await self._parts.aclose()

    async def _started(self) -> ReliablePublisher:
        async with self._turn:
            if self._publisher is None:
                await self._parts.enter_async_context(self._transport)
                posted = None
                if self._webhook is not None:
                    posted = StatusWebhook(self._webhook, self._transport.self_id)
                    self._parts.push_async_callback(asyncio.to_thread, posted.close)
                self._publisher = await self._parts.enter_async_context(
                    ReliablePublisher(self._transport, self._config, events=together(self._events, posted))
                )
            return self._publisher
