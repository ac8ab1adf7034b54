"""The effects of a member of a graph: on its disk, its links, and the parts above it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.catchain.payloads import ForkProof


class Persist(msgspec.Struct, frozen=True):
    """Write the block; call `Member.stored` when it is durable."""

    block_hash: bytes
    frame: bytes
    is_own: bool


class Send(msgspec.Struct, frozen=True):
    """Send a block to one other member; it may get lost."""

    peer: int
    frame: bytes


class Ask(msgspec.Struct, frozen=True):
    """Send a query; call `Member.answered` with the answer."""

    peer: int
    number: int
    query: bytes


class Reply(msgspec.Struct, frozen=True):
    """Answer a query of another member."""

    peer: int
    number: int
    answer: bytes


class Deliver(msgspec.Struct, frozen=True):
    """Pass on a block whose ancestors were all delivered before: once, in causal order. `floor_ms`: nothing in it
    counts as earlier, in Unix milliseconds; None where blocks have no dates. `unanswered`: subjects of the challenges
    that its author has to answer in its next blocks.
    """

    source: int
    height: int
    block_hash: bytes
    payload: bytes
    floor_ms: int | None = None
    unanswered: tuple[bytes, ...] = ()


class BlameReport(msgspec.Struct, frozen=True):
    """Report a member that broke a rule before everybody's eyes. Nobody builds on its blocks any more. `text` says
    which rule.
    """

    source: int
    proof: ForkProof | None
    text: str = ""


class RefusalReport(msgspec.Struct, frozen=True):
    """Report a message that no honest member sends. Its sender need not be its author: blame the link, not
    the member."""

    peer: int
    rule: str
    text: str


class RecoveryReport(msgspec.Struct, frozen=True):
    """Report that others have blocks of ours which our disk lacks: the disk is older than our last block."""

    height: int


class Halt(msgspec.Struct, frozen=True):
    """Stop: another process signs with our key. Going on would make us a forker."""

    text: str


Effect: TypeAlias = (
    Persist | Send | Ask | Reply | Deliver | BlameReport | RefusalReport | RecoveryReport | Halt
)
