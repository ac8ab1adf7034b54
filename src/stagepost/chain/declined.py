"""The reasons for which a candidate is declined, each with a rule's name and a sentence for people; and
switches by which tests make a block fail in each possible way, all off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec

from stagepost.remp.shard import BlockId


class Rule(StrEnum):
    MALFORMED = "malformed"  # its bytes are not a block
    WRONG_PARENT = "wrong parent"  # it does not stand upon the blocks that it was proposed upon
    WRONG_SESSION = "wrong session"  # another session's, or of one that has ended
    WRONG_SHARD = "wrong shard"  # a message for an account that another shard serves
    WRONG_TIME = "wrong time"  # not after what it stands upon, or ahead of the clock
    WRONG_STATE = "wrong state"  # its messages lead to another state than it says
    OVER_LIMIT = "over the limit"  # more than the configuration allows in one block
    REPLAY = "replay"  # a message that was taken before, or one with the same body
    BAD_ORDER = "bad order"
    BAD_MESSAGE = "bad message"  # bytes that are not a message of this chain
    EXPIRED = "expired"  # a message whose time is over, or too far ahead
    REJECTED_BY_CONTRACT = "rejected by contract"
    UNKNOWN_MASTER = "unknown master"  # it refers to a master block that is not final here
    UNKNOWN_BLOCK = "unknown block"  # it commits a shard block that is not final here
    BAD_COMMIT = "bad commit"  # a block that does not follow the last one of its shard
    BAD_PLAN = "bad plan"  # a split or merge that cannot be, or that nobody here wants
    BAD_CONFIGURATION = "bad configuration"  # one that cannot be, or that nobody here wants
    BY_SWITCH = "by switch"  # a test asked for it


class DeclinedCandidate(msgspec.Struct, frozen=True):
    """`replayed`: the messages that were the reason, if any were."""

    rule: Rule
    text: str
    replayed: tuple[bytes, ...] = ()

    @property
    def reason(self) -> str:
        return f"{self.rule}: {self.text}"


MAY_WAIT = frozenset({Rule.UNKNOWN_MASTER, Rule.UNKNOWN_BLOCK})
"""Rules under which nothing is wrong with the candidate: we may know less than its author, and can look
again.
"""


Choice = Callable[[BlockId], bool]


def never(block_id: BlockId) -> bool:
    return False


class Switches:
    """Each switch chooses the blocks for which this node misbehaves in that way."""

    def __init__(
        self,
        *,
        loses: Choice = never,
        refuses: Choice = never,
        ignores: Choice = never,
        leaves_out: Choice = never,
    ) -> None:
        self.loses = loses  # our own candidate is built and never sent
        self.refuses = refuses  # we decline a candidate with which nothing is wrong
        self.ignores = ignores  # we never answer whether it is fine
        self.leaves_out = leaves_out  # our master block commits nothing from this shard block on
