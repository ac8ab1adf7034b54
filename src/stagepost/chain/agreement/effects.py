"""What a validator wants done for agreement: by its disk, by its links, by those above it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.evidence import Evidence


class Record(msgspec.Struct, frozen=True):
    """For the disk. It may be deleted once a block of `slot` or later, told as `Finalised`, cannot be lost any more;
    None: not while the session lives."""

    slot: int | None
    frame: bytes


class Persist(msgspec.Struct, frozen=True):
    """Write the records, all or none, after those of smaller numbers; `Member.persisted` when they cannot be lost any
    more. Our votes are spoken only then."""

    number: int
    records: tuple[Record, ...]


class Broadcast(msgspec.Struct, frozen=True):
    """For every other validator; it may get lost."""

    frame: bytes


class Ask(msgspec.Struct, frozen=True):
    """A query; `Member.answered` with what comes back."""

    peer: int
    number: int
    query: bytes


class Reply(msgspec.Struct, frozen=True):
    """The answer to a query of another validator."""

    peer: int
    number: int
    answer: bytes


class Propose(msgspec.Struct, frozen=True):
    """We lead this slot: `Member.proposed` with a payload, or None to wait. If `is_wanted`, somebody waits for the
    chain to go on: an empty block is better than none. The block's hash will be that of a `Candidate` with this slot
    and parent; no question comes about it, since those above know the state after a block of their own."""

    slot: int
    parent_hash: bytes
    is_wanted: bool


class CheckCandidate(msgspec.Struct, frozen=True):
    """`Member.checked` with the reason against it, or None. The parent was found good, made by ourselves, or is final.

    Blocks that others have notarised are asked about as well, because later ones rest on them; once more, if they had been
    found bad before: then only what no quorum can change counts against them.
    """

    slot: int
    block_hash: bytes
    payload: bytes
    parent_hash: bytes
    is_notarised: bool = False


class Finalised(msgspec.Struct, frozen=True):
    """The next block of the chain, told once and in order. Its certificate is of kind FINALISE, or else NOTARISE:
    then it is final by the next block in order that has one of kind FINALISE, which is told along with it. `record`
    is to be stored with the block; the archive gives it to those who are behind."""

    slot: int
    block_hash: bytes
    payload: bytes
    certificate: Certificate
    record: bytes


class Blamed(msgspec.Struct, frozen=True):
    """A validator signed what no honest one signs."""

    evidence: Evidence


class Disputed(msgspec.Struct, frozen=True):
    """A quorum voted for a block that we find bad: they or we are wrong. We build on nothing that rests on it."""

    slot: int
    block_hash: bytes
    reason: str


class Refused(msgspec.Struct, frozen=True):
    """Somebody sent what no honest validator sends. Say so of the link: it need not be the author."""

    peer: int
    rule: str
    text: str


class Recovered(msgspec.Struct, frozen=True):
    """Others have votes of ours that our disk does not have: it is older than what we said."""

    slot: int


class Stalled(msgspec.Struct, frozen=True):
    """Nothing was decided for long: so many validators were heard in this slot, and so many are needed."""

    slot: int
    heard: tuple[int, ...]
    needed: int


class Halt(msgspec.Struct, frozen=True):
    """Going on could make us lie: somebody else signs with our key, or a third and more of the validators are faulty."""

    text: str


Effect: TypeAlias = (
    Persist | Broadcast | Ask | Reply | Propose | CheckCandidate | Finalised
    | Blamed | Disputed | Refused | Recovered | Stalled | Halt
)  # fmt: skip
