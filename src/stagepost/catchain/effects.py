"""What a member of a graph wants done: by its disk, by its links, by those above it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.catchain.payloads import ForkProof


class Persist(msgspec.Struct, frozen=True):
    """Write the block; `Member.stored` when it cannot be lost any more."""

    block_hash: bytes
    frame: bytes
    is_own: bool


class Send(msgspec.Struct, frozen=True):
    """A block for one other member; it may get lost."""

    peer: int
    frame: bytes


class Ask(msgspec.Struct, frozen=True):
    """A query; `Member.answered` with what comes back."""

    peer: int
    number: int
    query: bytes


class Reply(msgspec.Struct, frozen=True):
    """The answer to a query of another member."""

    peer: int
    number: int
    answer: bytes


class Deliver(msgspec.Struct, frozen=True):
    """A block with everything that it rests on delivered before: once, in an order that keeps causes first."""

    source: int
    height: int
    block_hash: bytes
    payload: bytes


class Blamed(msgspec.Struct, frozen=True):
    """A member that broke a rule before everybody's eyes. Nothing more of it is built upon."""

    source: int
    proof: ForkProof | None


class Refused(msgspec.Struct, frozen=True):
    """Somebody sent what no honest member sends. It need not be the author: say so of the link, not of the member."""

    peer: int
    rule: str
    text: str


class Recovered(msgspec.Struct, frozen=True):
    """Others have blocks of ours that our disk does not have: it is older than what we said."""

    height: int


class Halt(msgspec.Struct, frozen=True):
    """Somebody else signs with our key. Going on would make us a forker."""

    text: str


Effect: TypeAlias = Persist | Send | Ask | Reply | Deliver | Blamed | Refused | Recovered | Halt
