"""Level and status of an external message, and the kind that names each pair: one table, read by everybody else.

A status says what happened, a level says where. Receipts on topics carry neither, but one word, the kind; the two
are in one-to-one relation, so nothing but the word decides how a receipt is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """The place of a message on its way; greater is nearer to finality."""

    FULLNODE = 0
    QUEUE = 1
    COLLATOR = 2
    SHARDCHAIN = 3
    MASTERCHAIN = 4


class Status(Enum):
    __hash__ = object.__hash__  # as quick as the look-ups in the tables of steps and kinds are many

    ACCEPTED = "Accepted"
    IGNORED = "Ignored"
    REJECTED = "Rejected"
    SENT_TO_VALIDATORS = "SentToValidators"
    NEW = "New"
    DUPLICATE = "Duplicate"
    TIMEOUT = "Timeout"


class Colour(Enum):
    """The colour in which screens show a kind."""

    GREEN = "green"  # the main path
    ORANGE = "orange"  # a warning: one validator's opinion, or a step back
    RED = "red"  # it will never be included
    BLUE = "blue"  # it is final
    QUIET = "quiet"  # nothing to look at: another validator was faster


class Stage(Enum):
    """A step of a message's life whose first moment is kept."""

    SENT = "sent"
    QUEUED = "queued"
    INCLUDED = "included"
    ACCEPTED = "accepted"
    FINALIZED = "finalized"
    REJECTED = "rejected"
    TIMEOUT = "timeout"


class Fields(Enum):
    """The members of a kind's JSON object beside the five that all kinds have."""

    NOTHING = "nothing"
    COUNTS = "sent_to and total_validators"
    ERROR = "error"
    ERROR_AND_NAMED_BLOCK = "error; the block if one is named"
    BLOCK = "the block, zeros where it is unknown"
    BLOCK_AND_NAMED_MASTER = "the block; the master block if one is named"
    BLOCK_AND_MASTER = "the block and the master block"


class Kind(NamedTuple):
    """A cell of the table. `is_emitted` is False for a kind that we read and understand but never send."""

    name: str
    status: Status
    level: Level
    fields: Fields
    colour: Colour = Colour.ORANGE
    stage: Stage | None = None
    is_emitted: bool = True

    @property
    def rank(self) -> int:
        """Number that decides between two receipts of one validator with equal time and level; the greater
        one is the last.
        """
        return RANKS[self.status]


RANKS: Mapping[Status, int] = {
    Status.SENT_TO_VALIDATORS: 0,
    Status.NEW: 1,
    Status.IGNORED: 2,
    Status.DUPLICATE: 3,
    Status.TIMEOUT: 4,
    Status.REJECTED: 5,
    Status.ACCEPTED: 6,
}

_S, _L, _F, _C = Status, Level, Fields, Colour
# fmt: off
KINDS: tuple[Kind, ...] = (
    Kind("AcceptedByFullnode", _S.ACCEPTED, _L.FULLNODE, _F.BLOCK_AND_NAMED_MASTER, _C.GREEN, is_emitted=False),
    Kind("AcceptedByQueue", _S.ACCEPTED, _L.QUEUE, _F.BLOCK_AND_NAMED_MASTER, _C.GREEN, is_emitted=False),
    Kind("IncludedIntoBlock", _S.ACCEPTED, _L.COLLATOR, _F.BLOCK_AND_NAMED_MASTER, _C.GREEN, Stage.INCLUDED),
    Kind("IncludedIntoAcceptedBlock", _S.ACCEPTED, _L.SHARDCHAIN, _F.BLOCK_AND_NAMED_MASTER, _C.GREEN, Stage.ACCEPTED),
    Kind("Finalized", _S.ACCEPTED, _L.MASTERCHAIN, _F.BLOCK_AND_MASTER, _C.BLUE, Stage.FINALIZED),
    Kind("IgnoredByFullNode", _S.IGNORED, _L.FULLNODE, _F.BLOCK, is_emitted=False),
    Kind("IgnoredByQueue", _S.IGNORED, _L.QUEUE, _F.BLOCK),
    Kind("IgnoredByCollator", _S.IGNORED, _L.COLLATOR, _F.BLOCK),
    Kind("IgnoredByShardchain", _S.IGNORED, _L.SHARDCHAIN, _F.BLOCK),
    Kind("IgnoredByMasterchain", _S.IGNORED, _L.MASTERCHAIN, _F.BLOCK),
    Kind("RejectedByFullnode", _S.REJECTED, _L.FULLNODE, _F.ERROR, _C.RED, Stage.REJECTED),
    Kind("RejectedByQueue", _S.REJECTED, _L.QUEUE, _F.ERROR_AND_NAMED_BLOCK, stage=Stage.REJECTED),
    Kind("RejectedByCollator", _S.REJECTED, _L.COLLATOR, _F.ERROR_AND_NAMED_BLOCK, stage=Stage.REJECTED),
    Kind("RejectedByShardchain", _S.REJECTED, _L.SHARDCHAIN, _F.ERROR_AND_NAMED_BLOCK, _C.RED, Stage.REJECTED),
    Kind("RejectedByMasterchain", _S.REJECTED, _L.MASTERCHAIN, _F.ERROR_AND_NAMED_BLOCK, stage=Stage.REJECTED),
    Kind("SentToValidators", _S.SENT_TO_VALIDATORS, _L.FULLNODE, _F.COUNTS, _C.GREEN, Stage.SENT),
    Kind("PutIntoQueue", _S.NEW, _L.QUEUE, _F.NOTHING, _C.GREEN, Stage.QUEUED),
    Kind("Duplicate", _S.DUPLICATE, _L.QUEUE, _F.BLOCK, _C.QUIET),
    Kind("Timeout", _S.TIMEOUT, _L.QUEUE, _F.NOTHING, _C.RED, Stage.TIMEOUT),
)
# fmt: on

KIND_OF: Mapping[tuple[Status, Level], Kind] = {(kind.status, kind.level): kind for kind in KINDS}

# Other words that documents and older nodes use, and three published misspellings. Written in small letters, because
# kinds are read without regard to case.
ALIASES: Mapping[str, str] = {
    "rejectedbynode": "RejectedByFullnode",
    "addedtoblock": "IncludedIntoBlock",
    "addedintoblock": "IncludedIntoBlock",
    "addedtoshardchain": "IncludedIntoAcceptedBlock",
    "addedintoshardchain": "IncludedIntoAcceptedBlock",
    "incudedintoacceptedblock": "IncludedIntoAcceptedBlock",
    "addedtomasterchain": "Finalized",
    "blockacceptedbymasterchain": "Finalized",
    "skippedasduplicate": "Duplicate",
    "rejectedasduplicate": "Duplicate",
    "blockignoredbyshardchain": "IgnoredByShardchain",
    "blockignoredbymasterchain": "IgnoredByMasterchain",
    "blockrejectedbyvalidator": "IgnoredByShardchain",
    "blockrejectedbyshardchain": "IgnoredByShardchain",
    "blockrejectedbymasterchain": "IgnoredByMasterchain",
    "ignoredaftervoting": "IgnoredByShardchain",
    "rejectedaftertimeout": "Timeout",
    "putintoquenue": "PutIntoQueue",
    "new": "PutIntoQueue",
}

_BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}
_BY_ANY_NAME: Mapping[str, Kind] = {
    **{alias: _BY_NAME[name] for alias, name in ALIASES.items()},
    **{kind.name.lower(): kind for kind in KINDS},
}


def kind_named(text: str) -> Kind | None:
    """Return the kind that a word means, in any case and by any known alias; None if there is none."""
    return _BY_NAME.get(text) or _BY_ANY_NAME.get(text.lower())


def is_finally_accepted(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level is Level.MASTERCHAIN


def is_closed(status: Status) -> bool:
    """Return whether a validator with this status has finished with the message; only the masterchain can
    overrule it.
    """
    return status in (Status.REJECTED, Status.TIMEOUT)


_CLOSING = tuple(kind.name for kind in KINDS if is_closed(kind.status) and kind.level is not Level.FULLNODE)


def _steps() -> dict[str, frozenset[str]]:
    """From each kind that a validator says, those that it may say next about the same message.

    Beside what it says, a validator goes through states of which it does not speak: a message that the collator has
    taken is neither in the queue nor in a block yet. So a step here is a way through the state machine between two
    receipts, and what a collator makes of a message may follow directly on its being put into the queue.
    """
    shardchain = {"IncludedIntoAcceptedBlock", "RejectedByShardchain"}
    collator = {"IncludedIntoBlock", "RejectedByCollator", "IgnoredByCollator"}
    in_queue = collator | shardchain | {"RejectedByQueue", "Duplicate", "Timeout"}
    # A step back is followed by a new entry into the queue, or directly by what came of it there.
    returned = in_queue | {"PutIntoQueue"}
    steps: dict[str, Iterable[str]] = {
        "PutIntoQueue": in_queue,
        "AcceptedByQueue": returned,
        "IgnoredByQueue": returned,
        "IgnoredByCollator": returned,
        "IgnoredByShardchain": returned,
        "IgnoredByMasterchain": returned,
        "IncludedIntoBlock": shardchain
        | {"IgnoredByCollator", "IgnoredByShardchain", "Duplicate", "Timeout"},
        "Duplicate": shardchain | {"IgnoredByCollator", "IgnoredByShardchain", "Timeout"},
        "IncludedIntoAcceptedBlock": {"IgnoredByMasterchain"},
        **dict.fromkeys(_CLOSING, ()),
        "Finalized": (),
    }
    # The masterchain has the last word, whatever was said before. AcceptedByQueue, which older nodes say when the
    # collator takes a message, may stand wherever a collator's own word may.
    allowed: dict[str, frozenset[str]] = {}
    for kind, following in steps.items():
        found = set(following)
        if kind != "Finalized":
            found.add("Finalized")
        if found & {"IncludedIntoBlock"} and kind != "AcceptedByQueue":
            found.add("AcceptedByQueue")
        allowed[kind] = frozenset(found)
    return allowed


LEGAL_STEPS: Mapping[str, frozenset[str]] = _steps()
FIRST_KINDS = frozenset(
    {
        "PutIntoQueue",
        "IgnoredByQueue",
        "RejectedByQueue",
        "Duplicate",
        "IncludedIntoAcceptedBlock",
        "Finalized",
    }
)
"""Kinds that may be a validator's first receipt of a message."""


def is_legal_step(before: Kind | None, after: Kind) -> bool:
    """Return whether one validator may report `after` directly after `before`. A repetition is legal."""
    if before is None:
        return after.name in FIRST_KINDS
    return before is after or after.name in LEGAL_STEPS.get(before.name, frozenset())
