"""Intake of a full node from reliable delivery, where the node is a critical peer: it acknowledges what validators have.

    intake = DeliveryIntake(full_node)            # whose on_settled calls intake.heard
    async with Receiver(intake.over(transport), intake.handlers, …): …

The intake refuses with the reason what can never be taken. A message that cannot be sent now, the sender sends again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stagepost.chain.messages import stamped_draft
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.identity import delivery_id, identity_bytes
from stagepost.delivery.shell.handling import Busy, Handler, Message, Reject
from stagepost.delivery.status import NackReason
from stagepost.delivery.transport import (
    Incoming,
    IncomingAcks,
    MessageCallback,
    Outgoing,
    Published,
    Transport,
    Unsubscribe,
)
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.full_node.from_topic import MESSAGES_TOPIC, NOT_YET
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.status_topic import EarlierIds
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level

HANDED_WITHIN_S = 10.0
"""Seconds without an answer of enough validators, after which the sender is told to try again."""

KEPT_MAX = 10_000
"""Messages whose ids in the network are remembered; the oldest is forgotten."""


class DeliveryIntake:
    """Intake of the external messages that come on `topic` of reliable delivery."""

    def __init__(self, full_node: FullNode, topic: str = MESSAGES_TOPIC) -> None:
        self.taken = 0
        self._full_node = full_node
        self._topic = topic
        self._network_ids: dict[str, str] = {}
        self._waiting: dict[bytes, asyncio.Future[Receipt]] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {self._topic: self.handle}

    def over(self, transport: Transport) -> Transport:
        """Return `transport` with a look at the id that the network gives each message."""
        return _NotingTransport(transport, self._note)

    def heard(self, receipt: Receipt) -> None:
        """Answer the sender whose message a status on disk settles, or refuses."""
        waiting = self._waiting.get(receipt.message_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    async def handle(self, message: Message) -> None:
        """Return when the statuses topic holds on disk that enough validators have the message, or its end."""
        earlier = EarlierIds(self._network_ids.get(message.message_id), message.message_id)
        message_id = self._submit(message, earlier)
        if not self._full_node.is_settled(message_id):
            status = (await self._settling_status(message_id)).status
            # A validator that refuses the message has answered, all the same: only the node's own refusal counts here.
            if isinstance(status, Rejected) and status.level is Level.FULLNODE:
                raise Reject(NackReason.INVALID, status.error)
        elif self._full_node.is_final(message_id):
            return  # an earlier delivery was counted
        self.taken += 1

    def _submit(self, message: Message, earlier: EarlierIds) -> bytes:
        """Submit a message that may have come before, by this way or another: this delivery is ours to acknowledge, too. A
        draft becomes the message that its sender first sent at the time in the envelope, whichever copy comes.
        """
        try:
            data = stamped_draft(message.data, message.created_ms)
            return self._full_node.submit(data, earlier, f"sender:{message.sender}")
        except DecodeError as error:
            raise Reject(NackReason.INVALID, error.text) from error
        except StagepostError as error:
            if error.code in NOT_YET:
                raise Busy from error
            if error.code is not ErrorCode.MSG_DUPLICATE:
                raise
        return self._full_node.id_of(data)

    async def _settling_status(self, message_id: bytes) -> Receipt:
        """Wait for the status of this node that settles the message, or refuses it, to be on disk."""
        waiting: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting[message_id] = waiting
        try:
            async with asyncio.timeout(HANDED_WITHIN_S):
                return await waiting
        except TimeoutError:
            raise Busy from None
        finally:
            self._waiting.pop(message_id, None)

    def _note(self, message: Incoming) -> None:
        if message.topic == self._topic and message.network_id is not None:
            sender = identity_bytes(message.sender)
            known = delivery_id(sender, message.topic, message.nonce, message.payload).hex()
            self._network_ids.setdefault(known, message.network_id.hex())
            while len(self._network_ids) > KEPT_MAX:
                del self._network_ids[next(iter(self._network_ids))]


class _NotingTransport:
    """Transport that shows each message that comes to `note` first."""

    def __init__(self, transport: Transport, note: Callable[[Incoming], None]) -> None:
        self._transport = transport
        self._note = note

    @property
    def self_id(self) -> str:
        return self._transport.self_id

    @property
    def max_payload(self) -> int:
        return self._transport.max_payload

    @property
    def connected_peers(self) -> int:
        return self._transport.connected_peers

    def payload_room(self, topic: str, ackers: Sequence[str]) -> int:
        return self._transport.payload_room(topic, ackers)

    async def publish(self, message: Outgoing) -> Published:
        return await self._transport.publish(message)

    async def publish_acks(self, receipts: Sequence[AckReceipt]) -> None:
        await self._transport.publish_acks(receipts)

    def on_connectivity(self, callback: Callable[[int], None]) -> Unsubscribe:
        return self._transport.on_connectivity(callback)

    def on_message(self, callback: MessageCallback) -> Unsubscribe:
        def noted(message: Incoming | IncomingAcks) -> None:
            if isinstance(message, Incoming):
                self._note(message)
            callback(message)

        return self._transport.on_message(noted)
