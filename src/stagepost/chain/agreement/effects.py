"""Effects that a validator's agreement asks for: of its disk, of its links, and of the part above it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stagepost.chain.agreement.certificate import Certificate
from stagepost.chain.agreement.evidence import Evidence


class Record(msgspec.Struct, frozen=True):
    """A record for the disk. It may be deleted once a block of `slot` or later, reported as `FinalisedBlock`,
    cannot be lost any more; with slot None it must stay as long as the session lives.
    """

    slot: int | None
    frame: bytes


class Persist(msgspec.Struct, frozen=True):
    """Write the records, all or none, after those of smaller numbers; call `Member.persisted` when they
    cannot be lost any more. Only then our votes are sent.
    """

    number: int
    records: tuple[Record, ...]


class Broadcast(msgspec.Struct, frozen=True):
    """Send a frame to every other validator; it may get lost."""

    frame: bytes


class Ask(msgspec.Struct, frozen=True):
    """Send a query; call `Member.answered` with the answer."""

    peer: int
    number: int
    query: bytes


class Reply(msgspec.Struct, frozen=True):
    """The answer to a query of another validator."""

    peer: int
    number: int
    answer: bytes


class Propose(msgspec.Struct, frozen=True):
    """Ask the part above for a block: we lead this slot. Call `Member.proposed` with a payload, or with None
    to wait.

    If `is_wanted`, a validator waits for the chain to go on: an empty block is better than none. The block's
    hash will be that of a `Candidate` with this slot and parent. No `CheckCandidate` follows for it, since
    the part above knows the state after a block of its own.
    """

    slot: int
    parent_hash: bytes
    is_wanted: bool


class CheckCandidate(msgspec.Struct, frozen=True):
    """Ask the part above about a candidate: call `Member.checked` with the reason against it, or None. The
    parent was found good, made by ourselves, or is final.

    Blocks that others have notarised are asked about as well, because later ones rest on them; and once more,
    if they had been found bad before: then only a fault that no quorum can change counts against them.
    """

    slot: int
    block_hash: bytes
    payload: bytes
    parent_hash: bytes
    is_notarised: bool = False


class FinalisedBlock(msgspec.Struct, frozen=True):
    """The next block of the chain, reported once and in order.

    Its certificate is of kind FINALISE, or else NOTARISE: then the block is final by the next block in order
    that has one of kind FINALISE, which is reported along with it. `record` is to be stored with the block;
    the archive gives it to validators that are behind.
    """

    slot: int
    block_hash: bytes
    payload: bytes
    certificate: Certificate
    record: bytes


class BlamedValidator(msgspec.Struct, frozen=True):
    """A validator signed two votes that no honest one signs both."""

    evidence: Evidence


class DisputedBlock(msgspec.Struct, frozen=True):
    """A quorum voted for a block that we find bad: they or we are wrong. We build on nothing that rests on
    it.
    """

    slot: int
    block_hash: bytes
    reason: str


class RefusedPeer(msgspec.Struct, frozen=True):
    """A peer sent what no honest validator sends. The fault is reported for the link: the peer need not be
    the author.
    """

    peer: int
    rule: str
    text: str


class RecoveredVotes(msgspec.Struct, frozen=True):
    """Other validators have votes of ours that our disk does not have: the disk is older than what we sent."""

    slot: int


class StalledSlot(msgspec.Struct, frozen=True):
    """A block is awaited, and none has become final for long. `heard`: the validators that were heard in this
    slot; `needed`: how many are needed.
    """

    slot: int
    heard: tuple[int, ...]
    needed: int


class Halt(msgspec.Struct, frozen=True):
    """This validator stops, because going on could make it contradict itself: somebody else signs with our
    key, or a third and more of the validators are faulty.
    """

    text: str


Effect: TypeAlias = (
    Persist | Broadcast | Ask | Reply | Propose | CheckCandidate | FinalisedBlock
    | BlamedValidator | DisputedBlock | RefusedPeer | RecoveredVotes | StalledSlot | Halt
)  # fmt: skip
