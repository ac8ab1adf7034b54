"""Ids of validator sessions and of their message queues: hashes over who takes part, where and since when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import msgspec

from stagepost.ground.wire.tl import Writer, constructor_id

_FIELDS = (
    "workchain:int shard:long vertical_seqno:int last_key_block_seqno:int catchain_seqno:int config_hash:int256 "
    "members:(vector validator.groupMember)"
)
GROUP_ID = constructor_id(f"validator.groupNew {_FIELDS} = validator.Group")
QUEUE_ID = constructor_id(f"tonNode.rempSessionInfo {_FIELDS} = tonNode.RempSessionInfo")


class Member(msgspec.Struct, frozen=True):
    """`adnl` is the network address; a validator without one of its own uses its key id."""

    key_id: bytes
    adnl: bytes
    weight: int


SESSIONS_REMEMBERED = 1_024
"""Sessions, at most, whose ids are kept: every receipt asks for one, so ids are not computed again."""


class SessionFacts(msgspec.Struct, frozen=True, cache_hash=True):
    """Everything that a session's id covers. `shard` is the tagged prefix, unsigned."""

    workchain: int
    shard: int
    vertical_seqno: int
    last_key_block_seqno: int
    catchain_seqno: int
    config_hash: bytes
    members: tuple[Member, ...]

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int(self.workchain)
        writer.write_unsigned_long(self.shard)
        writer.write_int(self.vertical_seqno)
        writer.write_unsigned_int(self.last_key_block_seqno)
        writer.write_unsigned_int(self.catchain_seqno)
        writer.write_int256(self.config_hash)
        writer.write_vector_count(len(self.members))
        for member in self.members:
            writer.write_int256(member.key_id)
            writer.write_int256(member.adnl)
            writer.write_long(member.weight)


@lru_cache(SESSIONS_REMEMBERED)
def session_id(facts: SessionFacts) -> bytes:
    """Return the id of a validation session."""
    return _hash(GROUP_ID, facts)


@lru_cache(SESSIONS_REMEMBERED)
def member_ids(facts: SessionFacts) -> frozenset[bytes]:
    """Return the key ids of the session's members."""
    return frozenset(member.key_id for member in facts.members)


@lru_cache(SESSIONS_REMEMBERED)
def queue_id(facts: SessionFacts) -> bytes:
    """Return the id of a message queue: its members are the previous validators, then the present ones, with
    repetitions.
    """
    return _hash(QUEUE_ID, facts)


def unsafe_rotation_id(session: bytes, rotation: int) -> bytes:
    """Return the id of a session that was restarted by hand."""
    return sha256(session + rotation.to_bytes(4, "little")).digest()


def queue_members(previous: Sequence[Sequence[Member]], current: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members of a queue: previous validators, shard by shard in sorted order, then the present
    ones, each address once.

    A member's index in the queue is its place here.
    """
    by_address: dict[bytes, Member] = {}
    for members in (*previous, current):
        for member in members:
            by_address.setdefault(member.adnl, member)
    return tuple(by_address.values())


def _hash(identifier: int, facts: SessionFacts) -> bytes:
    writer = Writer()
    writer.write_constructor(identifier)
    facts.write(writer)
    return sha256(writer.written()).digest()
