"""An account: its balance, the memory of its contract, and the messages that it took of late."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import msgspec

from stagepost.chain.hash_tree import HashTree, tree_of
from stagepost.ground.wire.tl import Writer, constructor_id
from stagepost.remp.queue.session_switch import Shard

WORKCHAIN = 0
"""Number of the workchain that has the accounts; the masterchain has none."""

SUPPLY_MAX = (1 << 63) - 1
"""Units in all balances together, at most: so no sum of amounts ever leaves its field."""

_ACCOUNT_ID = constructor_id(
    "stagepost.chain.account balance:long memory:bytes recent:int256 = stagepost.chain.Account"
)
_INCLUSION_ID = constructor_id(
    "stagepost.chain.inclusion message:int256 catchain_seqno:int time:long = stagepost.chain.Inclusion"
)
_UID_TAG = b"uid"


class Inclusion(msgspec.Struct, frozen=True):
    """The message that a block included, with the catchain of the masterchain and the block time in Unix
    milliseconds: the leaf of a uid names the message that took it.
    """

    message_id: bytes
    catchain_seqno: int
    time_ms: int


class Account(msgspec.Struct, frozen=True):
    """`recent`: ids and uids of messages that must not be included again yet."""

    balance: int
    memory: bytes
    recent: HashTree[Inclusion]

    @property
    def is_empty(self) -> bool:
        return not self.balance and not self.memory and self.recent.is_empty


class Transfer(msgspec.Struct, frozen=True):
    """An amount on its way to an account, maybe of another shard: the masterchain carries it."""

    account: bytes
    amount: int


def account_hash(account: Account) -> bytes:
    return account_value_hash(account.balance, account.memory, account.recent.hash)


def account_value_hash(balance: int, memory: bytes, recent_hash: bytes) -> bytes:
    """Return the hash of an account of whose recent messages only the root is known."""
    writer = Writer()
    writer.write_constructor(_ACCOUNT_ID)
    writer.write_long(balance)
    writer.write_bytes(memory)
    writer.write_int256(recent_hash)
    return sha256(writer.written()).digest()


@lru_cache(maxsize=64)
def inclusion_hash(inclusion: Inclusion) -> bytes:
    """Return the hash of an inclusion; the id and the uid of a message share one."""
    writer = Writer()
    writer.write_constructor(_INCLUSION_ID)
    writer.write_int256(inclusion.message_id)
    writer.write_unsigned_int(inclusion.catchain_seqno)
    writer.write_long(inclusion.time_ms)
    return sha256(writer.written()).digest()


EMPTY_ACCOUNT = Account(0, b"", tree_of(inclusion_hash))


def uid_place(uid: bytes) -> bytes:
    """Return the key of a uid in `Account.recent`; an id is its own key."""
    return sha256(_UID_TAG + uid).digest()


def part_of(accounts: HashTree[Account], shard: Shard) -> HashTree[Account]:
    bits = shard.bits
    return accounts.part(shard.prefix >> (64 - bits) if bits else 0, bits)
