"""Counts of messages that leave the node: to peers and to programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.node.mempool_feed import Audience, MempoolFeed
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.supplying import MessagesHeld
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.net.conversation import Conversation

OnSent: TypeAlias = Callable[[MiniProtocol, int], None]
"""Callback with the mini-protocol and the number of messages sent on it."""


class CountedFeed(MempoolFeed):
    """Feed that counts the messages sent to one program."""

    def __init__(
        self,
        mempool: Mempool,
        bell: Bell,
        layouts: Collection[MessageLayout],
        audience: Audience,
        on_sent: OnSent,
    ) -> None:
        super().__init__(mempool, bell, layouts, audience)
        self._on_sent = on_sent

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        taken = super().take(count_max)
        if taken[0]:
            self._on_sent(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, len(taken[0]))
        return taken


class CountedSupplier(Supplier):
    """Supplier that counts the messages sent to one peer."""

    def __init__(
        self, talk: Conversation, profile: Profile, mempool: MessagesHeld, bell: Bell, on_sent: OnSent
    ) -> None:
        super().__init__(talk, profile, mempool, bell)
        self._on_sent = on_sent

    def _messages(self, ids: tuple[MessageId, ...]) -> Sequence[DmqMessage]:
        messages = super()._messages(ids)
        if messages:
            self._on_sent(MiniProtocol.MESSAGE_SUBMISSION, len(messages))
        return messages
