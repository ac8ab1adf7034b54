"""What a chain's blocks come to, worked out a second time with plain dictionaries and as little as possible of the package.

All accounts of all shards stand in one table: if an account were ever served by two shards at once, the hashes of one
of them would not come out.
"""

from __future__ import annotations

import struct
from functools import cache
from hashlib import sha256
from itertools import pairwise
from zlib import crc32

from stagepost.chain.configuration import Configuration
from stagepost.chain.genesis import Genesis
from stagepost.chain.master_block import MASTER_BLOCK_ID, MasterBlock, decode_master_block
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.remp.shard import BlockId
from tests.worlds.chain.agreement_checker import tree_root

SPLIT = 1
WHOLE = 1 << 63


def tag(line: str) -> bytes:
    return struct.pack("<I", crc32(line.encode()))


_ACCOUNT = tag("stagepost.chain.account balance:long memory:bytes recent:int256 = stagepost.chain.Account")
_INCLUSION = tag(
    "stagepost.chain.inclusion message:int256 catchain_seqno:int time:long = stagepost.chain.Inclusion"
)
_STATE = tag(
    "stagepost.chain.shardState workchain:int shard:long seqno:int time:long remembers_from:long master_seqno:int "
    "accounts:int256 = stagepost.chain.State"
)
_TWIN = tag("stagepost.chain.twin expires_at:int body:bytes = stagepost.chain.Twin")


class PlainAccount:
    def __init__(self, balance: int = 0) -> None:
        self.balance = balance
        self.memory = b""
        self.recent: dict[bytes, tuple[bytes, int, int]] = {}
        self._known: tuple[object, bytes] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.balance or self.memory or self.recent)

    def hash(self) -> bytes:
        content = (self.balance, self.memory, tuple(sorted(self.recent.items())))
        if self._known is None or self._known[0] != content:
            recent = tree_root(
                {
                    place: sha256(_INCLUSION + struct.pack("<32sIq", *when)).digest()
                    for place, when in self.recent.items()
                }
            )
            memory = short_bytes(self.memory)
            found = sha256(_ACCOUNT + struct.pack("<q", self.balance) + memory + recent).digest()
            self._known = content, found
        return self._known[1]


def short_bytes(value: bytes) -> bytes:
    assert len(value) < 254
    return bytes([len(value)]) + value + bytes(-(len(value) + 1) % 4)


def span(prefix: int) -> range:
    """The first 64 bits of the accounts of a shard."""
    lowest = prefix & -prefix
    return range(prefix - lowest, prefix + lowest)


def halves(prefix: int) -> tuple[int, int]:
    half = (prefix & -prefix) >> 1
    return prefix - half, prefix + half


@cache
def is_prime(number: int) -> bool:
    """Return whether nothing from 2 on divides `number`, by trial of everything."""
    return all(number % divisor for divisor in range(2, number))


@cache
def primes_up_to(limit: int) -> int:
    """Return the sum of the primes from 2 to `limit`."""
    return sum(one for one in range(2, limit + 1) if is_prime(one))


class PlainShard:
    def __init__(self, prefix: int, ends_ms: int, credited_to: int, remembers_from_ms: int = 0) -> None:
        self.prefix = prefix
        self.remembers_from_ms = remembers_from_ms
        self.ends_ms = ends_ms
        self.credited_to = credited_to
        self.plan: tuple[int, int] | None = None


class Oracle:
    """Raises AssertionError at the first block that says something else."""

    def __init__(self, genesis: Genesis) -> None:
        self.configuration = genesis.configuration
        self.genesis_ms = genesis.time_ms
        self.times: dict[BlockId, int] = {}
        self.accounts = {address: PlainAccount(amount) for address, amount in genesis.balances}
        self.supply = sum(amount for _, amount in genesis.balances)
        self.shards = {WHOLE: PlainShard(WHOLE, self._end(genesis.time_ms), 0)}
        self.master_ends_ms = (
            genesis.time_ms // self.configuration.master_lifetime_ms + 1
        ) * self.configuration.master_lifetime_ms
        self.catchain_seqno = 1
        self.catchains = {0: 1}
        self.dues: list[tuple[int, bytes, int]] = []
        self.seqno = 0
        self.taken: dict[bytes, int] = {}
        self.changes = 0

    def run(self, payloads: list[bytes]) -> None:
        payloads = [data for data in payloads if data]  # without those that only closed a session
        masters = sorted(
            (
                decode_master_block(data)
                for data in payloads
                if data[:4] == struct.pack("<I", MASTER_BLOCK_ID)
            ),
            key=lambda block: block.seqno,
        )
        shards: dict[BlockId, ShardBlock] = {}
        for data in payloads:
            if data[:4] != struct.pack("<I", MASTER_BLOCK_ID):
                block = decode_shard_block(data)
                shards[block.block_id(data)] = block
        for master in masters:
            self.master(master, shards)

    # One block

    def master(self, master: MasterBlock, shards: dict[BlockId, ShardBlock]) -> None:
        self.seqno += 1
        assert master.seqno == self.seqno
        sent: list[tuple[int, bytes, int]] = []
        for commit in master.commits:
            for block_id in commit:
                sent += self.shard(shards[block_id])
                self.times[block_id] = shards[block_id].time_ms
        self.dues += sent
        for plan in master.plans:
            concerned = (plan.shard.prefix,) if plan.kind == SPLIT else halves(plan.shard.prefix)
            for prefix in concerned:
                self.shards[prefix].plan = int(plan.kind), plan.at_ms
        self.rotate(master)
        self.catchains[self.seqno] = self.catchain_seqno
        self.dues = [due for due in self.dues if not self._is_credited(due[0], due[1])]
        under_way = sum(amount for _, _, amount in self.dues)
        assert sum(account.balance for account in self.accounts.values()) + under_way == self.supply

    def shard(self, block: ShardBlock) -> list[tuple[int, bytes, int]]:
        shard = self.shards[block.shard.prefix]
        catchain_seqno = self.catchains[block.master.seqno]
        self._credit(shard, block.master.seqno)
        mine = span(block.shard.prefix)
        sent: list[tuple[int, bytes, int]] = []
        parents_ms = [self.times.get(one, self.genesis_ms) for one in block.previous]
        assert max(parents_ms) < block.time_ms
        for data in block.messages:
            message = CanonicalMessage.decode(data)
            assert int.from_bytes(message.account[:8], "big") in mine
            message_id = sha256(data).digest()
            self.taken[message_id] = self.taken.get(message_id, 0) + 1
            account = self.accounts.setdefault(message.account, PlainAccount())
            sent += self.call(message, account)
            when = message_id, catchain_seqno, block.time_ms
            twin = _TWIN + struct.pack("<I", message.expires_at_s) + short_bytes(message.body)
            account.recent[message_id] = when
            if self.configuration.guards_uids:
                account.recent[sha256(b"uid" + sha256(twin).digest()).digest()] = when
        leaves: dict[bytes, bytes] = {}
        for address, account in list(self.accounts.items()):
            if int.from_bytes(address[:8], "big") not in mine:
                continue
            for place, (_, under, at_ms) in list(account.recent.items()):
                kept_ms = self.configuration.expiry_ahead_max_ms + self.configuration.proof_window_ms
                if under + 2 <= catchain_seqno and at_ms + kept_ms < min(parents_ms):
                    del account.recent[place]
                    shard.remembers_from_ms = max(shard.remembers_from_ms, at_ms + 1)
            if account.is_empty:
                del self.accounts[address]
            else:
                leaves[address] = account.hash()
        facts = struct.pack(
            "<iQIqqI",
            *(0, block.shard.prefix, block.seqno, block.time_ms),
            *(shard.remembers_from_ms, block.master.seqno),
        )
        assert block.state_hash == sha256(_STATE + facts + tree_root(leaves)).digest(), f"block {block.seqno}"
        return sent

    def call(self, message: CanonicalMessage, account: PlainAccount) -> list[tuple[int, bytes, int]]:
        match message.account[-1]:
            case 1:
                (up_to,) = struct.unpack_from("<I", message.body, 4)
                total, count = struct.unpack("<QQ", account.memory or bytes(16))
                total += primes_up_to(up_to)
                account.memory = struct.pack("<QQ", total % (1 << 64), count + 1)
            case 2:
                to, amount, _ = struct.unpack_from("<32sqq", message.body, 4)
                assert 0 < amount <= account.balance
                account.balance -= amount
                return [(self.seqno, to, amount)]
            case 4 | 5:
                assert message.account[-1] == 5 or account.balance > 0
                account.memory = (int.from_bytes(account.memory, "little") + 1).to_bytes(8, "little")
            case other:
                raise AssertionError(f"contract {other} takes nothing")
        return []

    def rotate(self, master: MasterBlock) -> None:
        is_key = False
        if master.configuration:
            new = Configuration.decode(master.configuration)
            is_key, self.configuration = new != self.configuration, new
        following = self.configuration.next
        if following is not None and master.time_ms >= following.from_ms:
            is_key = True
            self.configuration = _with_next(self.configuration)
        after: dict[int, PlainShard] = {}
        for prefix, shard in sorted(self.shards.items()):
            is_planned = shard.plan is not None and master.time_ms >= shard.plan[1]
            if is_planned and shard.plan is not None and shard.plan[0] == SPLIT:
                nexts: tuple[int, ...] = halves(prefix)
            elif is_planned:
                lowest = prefix & -prefix
                nexts = ((prefix & ~lowest) | lowest << 1,) if lowest << 1 < 1 << 64 else ()
            elif is_key or master.time_ms >= shard.ends_ms:
                nexts = (prefix,)
            else:
                after[prefix] = shard
                continue
            self._credit(shard, self.seqno)
            self.changes += 1
            for one in nexts:
                both = max(shard.remembers_from_ms, after[one].remembers_from_ms if one in after else 0)
                after[one] = PlainShard(one, self._end(master.time_ms), self.seqno, both)
                if not is_planned:
                    after[one].plan = shard.plan
        self.shards = after
        if is_key or master.time_ms >= self.master_ends_ms:
            self.catchain_seqno += 1
            lifetime_ms = self.configuration.master_lifetime_ms
            self.master_ends_ms = (master.time_ms // lifetime_ms + 1) * lifetime_ms
        covered = sorted((span(prefix).start, span(prefix).stop) for prefix in self.shards)
        assert covered[0][0] == 0
        assert covered[-1][1] == 1 << 64
        assert all(one[1] == other[0] for one, other in pairwise(covered))

    def _credit(self, shard: PlainShard, up_to: int) -> None:
        for seqno, address, amount in self.dues:
            if shard.credited_to < seqno <= up_to and int.from_bytes(address[:8], "big") in span(
                shard.prefix
            ):
                self.accounts.setdefault(address, PlainAccount()).balance += amount
        shard.credited_to = max(shard.credited_to, up_to)

    def _is_credited(self, seqno: int, address: bytes) -> bool:
        first = int.from_bytes(address[:8], "big")
        return any(first in span(one.prefix) and one.credited_to >= seqno for one in self.shards.values())

    def _end(self, time_ms: int) -> int:
        return (time_ms // self.configuration.shard_lifetime_ms + 1) * self.configuration.shard_lifetime_ms


def _with_next(configuration: Configuration) -> Configuration:
    assert configuration.next is not None
    changed = {name: getattr(configuration, name) for name in configuration.__struct_fields__}
    return Configuration(**{**changed, "current": configuration.next, "next": None})
