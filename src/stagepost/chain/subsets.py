"""Which validators of a set work for a shard under a catchain number: everybody works it out alike."""

from __future__ import annotations

from hashlib import sha256

from stagepost.chain.configuration import ChainValidator, Configuration
from stagepost.ground.wire.tl import Writer, constructor_id
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import Member, SessionFacts
from stagepost.remp.shard import MASTERCHAIN

_SUBSET_ID = constructor_id(
    "stagepost.chain.subset workchain:int shard:long catchain_seqno:int public_key:int256 = stagepost.chain.Subset"
)


def subset(
    configuration: Configuration, shard: Shard, catchain_seqno: int, *, of_next: bool = False
) -> tuple[ChainValidator, ...]:
    """In the order of their indexes in the session. All weigh the same here, since all counting is by head."""
    chosen = configuration.next if of_next else configuration.current
    assert chosen is not None, "there is a next set, or nobody asks for it"
    wanted = (
        configuration.master_validators if shard.workchain == MASTERCHAIN else configuration.shard_validators
    )
    drawn = sorted(chosen.validators, key=lambda one: _lot(shard, catchain_seqno, one))
    return tuple(drawn[: wanted or len(drawn)])


def session_facts(
    network: bytes,
    configuration: Configuration,
    shard: Shard,
    catchain_seqno: int,
    last_key_block_seqno: int,
    members: tuple[ChainValidator, ...],
) -> SessionFacts:
    """`network` is the hash of the genesis: sessions of different chains are never taken for one another."""
    return SessionFacts(
        shard.workchain,
        shard.prefix,
        0,
        last_key_block_seqno,
        catchain_seqno,
        sha256(network + configuration.hash).digest(),
        tuple(Member(one.key_id, one.adnl, one.weight) for one in members),
    )


def _lot(shard: Shard, catchain_seqno: int, validator: ChainValidator) -> bytes:
    writer = Writer()
    writer.write_constructor(_SUBSET_ID)
    writer.write_int(shard.workchain)
    writer.write_unsigned_long(shard.prefix)
    writer.write_unsigned_int(catchain_seqno)
    writer.write_int256(validator.public_key)
    return sha256(writer.written()).digest()
