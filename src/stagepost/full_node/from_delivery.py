"""From reliable delivery into a full node, which is a critical peer there: it acknowledges what validators have.

    intake = DeliveryIntake(full_node)            # whose on_settled calls intake.heard
    async with Receiver(intake.over(transport), intake.handlers, …): …

What can never be taken is refused with the reason; what cannot be handed over now, the sender sends again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

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
from stagepost.full_node.status_topic import REJECTED, EarlierIds
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import Receipt

HANDED_WITHIN_S = 10.0
"""When no validator can be reached for so long, the sender is told to try again."""

KEPT_MAX = 10_000
"""Messages whose ids in the network, or whose first status, are remembered; the oldest is forgotten."""


class DeliveryIntake:
    """`topic`: of reliable delivery, on which external messages come."""

    def __init__(self, full_node: FullNode, topic: str = MESSAGES_TOPIC) -> None:
        self.taken = 0
        self._full_node = full_node
        self._topic = topic
        self._network_ids: dict[str, str] = {}
        self._said: dict[bytes, Receipt] = {}
        self._waiting: dict[bytes, asyncio.Future[Receipt]] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        return {self._topic: self.handle}

    def over(self, transport: Transport) -> Transport:
        """The transport, with an eye on how the network calls each message."""
        return _Noting(transport, self._note)

    def heard(self, receipt: Receipt) -> None:
        """The status by which a message was handed over."""
        self._said.setdefault(receipt.message_id, receipt)
        while len(self._said) > KEPT_MAX:
            del self._said[next(iter(self._said))]
        waiting = self._waiting.get(receipt.message_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    async def handle(self, message: Message) -> None:
        """Returns when enough validators have it."""
        earlier = EarlierIds(self._network_ids.get(message.message_id), message.message_id)
        message_id = self._submit(message.data, earlier)
        if message_id is None:
            return
        receipt = await self._first_word(message_id)
        if _is_refused(receipt):
            assert isinstance(receipt.status, Rejected)
            raise Reject(NackReason.INVALID, receipt.status.error)
        self.taken += 1

    def _submit(self, data: bytes, earlier: EarlierIds) -> bytes | None:
        """None if it is final already, and the topic has it on disk."""
        try:
            return self._full_node.submit(data, earlier)
        except DecodeError as error:
            raise Reject(NackReason.INVALID, error.text) from error
        except StagepostError as error:
            if error.code in NOT_YET:
                raise Busy from error
            if error.code is not ErrorCode.MSG_DUPLICATE:
                raise
        # It came before, by this way or another; it is ours to confirm when validators have it.
        message_id = self._full_node.id_of(data)
        node = self._full_node
        return None if node.is_final(message_id) and not node.is_under_way(message_id) else message_id

    async def _first_word(self, message_id: bytes) -> Receipt:
        said = self._said.get(message_id)
        if said is not None and not _is_refused(said):
            return said
        if said is not None:
            return self._said.pop(message_id)  # another time it may be taken
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


def _is_refused(receipt: Receipt) -> bool:
    """By the full node; what single validators think of it is another matter."""
    return receipt.kind.name == REJECTED


class _Noting:
    """A transport that shows what comes to somebody else first."""

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
