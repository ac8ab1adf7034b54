"""Interfaces between the links of one session and the parts above them: calls of the parts, and events of the
links.

Calls, not tasks: a frame that came is handled in the same turn of the loop, so that nothing stands between a
message and its receipt. A member is named by its index in the session; links have proved who is at the other
end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RESYNC_WAIT_S = 300.0
"""Seconds for which a member listens before it speaks, if its disk may have lost blocks of its own: others
remember them.
"""


Answered = Callable[[bytes | None], None]
"""Function that gets the answer; None if the link broke or the time was over."""


class Overlay(Protocol):
    """The links of one member to the others of its session. A frame that cannot be sent now is dropped, and
    the caller is told.
    """

    def push(self, peer: int, frame: bytes) -> bool:
        """Send a frame, one way and at most once. Return False if there is no link, or if its queue is full."""

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        """Send a query. `answered` is called once, never before this call returns."""

    def refuse(self, peer: int, rule: str, text: str) -> None:
        """Close the link of a peer that sent what no honest member sends, and keep the peer out for a while."""


class OverlayEvents(Protocol):
    """The receiver of everything that comes over the links of one session. A `DecodeError` raised here closes
    the link by name.
    """

    def pushed(self, peer: int, frame: bytes) -> None: ...

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None: ...

    def linked(self, peer: int) -> None:
        """Note a new link to the peer, be it the first or another one."""


class ValidatorLinks(Protocol):
    """A validator's links to full nodes. A full node is named by its key id."""

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        """Send receipts to a full node, behind the statement that binds them if there is one. Return False if it has no
        link here now, or if its queue is full.
        """


class ValidatorLinkEvents(Protocol):
    def message_came(self, full_node: bytes, message: bytes) -> None:
        """A boxed `tonNode.rempMessage`."""

    def full_node_linked(self, full_node: bytes) -> None: ...


class FullNodeLinks(Protocol):
    """A full node's links to validators, named by their key ids."""

    def send(self, validator: bytes, message: bytes) -> bool:
        """Send a message to a validator. Return False if there is no link to it now, or if its queue is full."""


class FullNodeLinkEvents(Protocol):
    def receipts_came(self, validator: bytes, data: bytes) -> None:
        """A boxed `tonNode.rempCombinedReceipt`, or the `stagepost.remp.signedStatement` that binds the next one."""

    def validator_linked(self, validator: bytes) -> None: ...
