"""An external message after it was read, in whichever form it came."""

from __future__ import annotations

import msgspec

from stagepost.remp.ledger import ParsedMessage
from stagepost.remp.message import ExternalMessage

CELLS_MAGIC = bytes.fromhex("b5ee9c72")
NEVER = 0


class ReadMessage(msgspec.Struct, frozen=True, gc=False):
    """`expires_at_s`: the first second, in Unix time, at which the message is of no use any more; `NEVER` if
    it names none. `content`: the bytes that the contract is given.
    """

    external: ExternalMessage
    expires_at_s: int
    content: bytes

    @property
    def parsed(self) -> ParsedMessage:
        return ParsedMessage(self.external, None if self.expires_at_s == NEVER else self.expires_at_s)
