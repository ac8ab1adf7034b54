"""An external message after it was read, whichever form it came in."""

from __future__ import annotations

import msgspec

from stagepost.remp.ledger import ParsedMessage
from stagepost.remp.message import ExternalMessage

CELLS_MAGIC = bytes.fromhex("b5ee9c72")
NEVER = 0


class ReadMessage(msgspec.Struct, frozen=True, gc=False):
    """`expires_at_s`: the first second at which it is of no use any more, `NEVER` if it does not say.
    `content`: what the contract is given."""

    external: ExternalMessage
    expires_at_s: int
    content: bytes

    @property
    def parsed(self) -> ParsedMessage:
        return ParsedMessage(self.external, None if self.expires_at_s == NEVER else self.expires_at_s)
