"""The supplier sends the node's messages to one peer, from that peer's place in the mempool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.dmq.endpoints.submission_client import MessageSubmissionClient
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import Profile
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.dmq.supplying import MessagesHeld, SupplyCore
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.net.conversation import Conversation


class Supplier:
    """Supplier of one peer. It announces only messages in layouts that the peer's profile knows. `on_supplied`
    gets the messages of each reply."""

    def __init__(
        self,
        talk: Conversation,
        profile: Profile,
        mempool: MessagesHeld,
        bell: Bell,
        on_supplied: Callable[[Sequence[DmqMessage]], None] = lambda messages: None,
    ) -> None:
        self._on_supplied = on_supplied
        self._core = SupplyCore(mempool, profile.message_layouts)
        self._bell = bell
        config = MessageSubmissionConfig(
            request_message_ids=self._next_ids,
            request_messages=self._messages,
            window=profile.window,
            no_news_reply_s=profile.no_news_reply_s,
        )
        self._client = MessageSubmissionClient(talk, config)

    @property
    def cursor(self) -> int:
        return self._core.cursor

    def end(self) -> None:
        """Send `Done` as soon as a supplier may: in answer to a blocking request, where we opened the
        instance."""
        self._client.end()

    async def run(self) -> None:
        """Supply until the conversation ends. Raise, as every conversation does, if the peer is to be cut
        off."""
        await self._client.run()

    async def _next_ids(
        self, blocking: bool, acknowledged: int, requested: int
    ) -> Sequence[MessageIdAndSize]:
        self._core.acknowledge(acknowledged)
        ids = self._core.next_ids(requested)
        while blocking and not ids:
            await self._bell.wait()
            ids = self._core.next_ids(requested)
        return ids

    def _messages(self, ids: tuple[MessageId, ...]) -> Sequence[DmqMessage]:
        messages = self._core.messages(ids)
        if messages:
            self._on_supplied(messages)
        return messages
