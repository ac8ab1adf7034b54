"""The beginning of a chain: its name, its first configuration, and the first balances."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from stagepost.chain.accounts import SUPPLY_MAX, WORKCHAIN
from stagepost.chain.configuration import Configuration, fault_in
from stagepost.chain.master_block import CONFIGURATION_BYTES_MAX
from stagepost.chain.master_state import (
    MASTER_SHARD,
    MasterState,
    SessionEntry,
    ShardEntry,
)
from stagepost.chain.shard_state import ShardState, Source, first_state
from stagepost.errors import ConfigError, TlDecodeError
from stagepost.ground.wire.tl import ZERO_INT256, Reader, Writer, constructor_bytes, constructor_id
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import MASTERCHAIN, WHOLE_SHARD, BlockId

FIRST_CATCHAIN = 1
NAME_BYTES_MAX = 64
BALANCES_MAX = 1_000_000
TRUST_PERIOD_MS = 30 * 86_400_000
"""Milliseconds, by default, for which the newest checked key block needs no successor."""

_GENESIS_ID = constructor_id(
    "stagepost.chain.genesis name:string time:long trust_period:long configuration:bytes balances:(vector stagepost.chain.balance) "
    "= stagepost.chain.Genesis"
)
_BALANCE_BYTES = 40
_FORMER = constructor_bytes(
    constructor_id(
        "stagepost.chain.genesis name:string time:long configuration:bytes "
        "balances:(vector stagepost.chain.balance) = stagepost.chain.Genesis"
    )
)
"""First bytes of a genesis from before network version 1."""


class Genesis(msgspec.Struct, frozen=True):
    """All that a validator must be given to follow the chain. An equal genesis means the same network.
    `trust_period_ms`: a verifier whose newest checked key block is older warns.
    """

    name: str
    time_ms: int
    configuration: Configuration
    balances: tuple[tuple[bytes, int], ...] = ()
    trust_period_ms: int = TRUST_PERIOD_MS

    @property
    def hash(self) -> bytes:
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_GENESIS_ID)
        writer.write_string(self.name)
        writer.write_long(self.time_ms)
        writer.write_long(self.trust_period_ms)
        writer.write_bytes(self.configuration.encode())
        writer.write_vector_count(len(self.balances))
        for account, amount in self.balances:
            writer.write_int256(account)
            writer.write_long(amount)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> Genesis:
        if data.startswith(_FORMER):
            raise TlDecodeError(
                "the genesis was made before network version 1, and no later version continues that network: "
                "found it anew, in a data folder of its own"
            )
        reader = Reader(data)
        reader.read_constructor(_GENESIS_ID)
        name, time_ms, trust_period_ms = (
            reader.read_string(NAME_BYTES_MAX),
            reader.read_long(),
            reader.read_long(),
        )
        configuration = Configuration.decode(reader.read_bytes(CONFIGURATION_BYTES_MAX, "configuration"))
        count = reader.read_vector_count(BALANCES_MAX, _BALANCE_BYTES)
        balances = tuple((reader.read_int256(), reader.read_long()) for _ in range(count))
        reader.expect_end()
        return cls(name, time_ms, configuration, balances, trust_period_ms)


class FirstStates(msgspec.Struct, frozen=True):
    master: MasterState
    shard: ShardState


def first_states(genesis: Genesis) -> FirstStates:
    """Return the states before the first block; `ConfigError` if no chain can begin with this genesis."""
    fault = fault_in(genesis.configuration) or _fault_in_balances(genesis)
    if genesis.trust_period_ms <= 0:
        fault = f"a trust period of {genesis.trust_period_ms} ms trusts nothing; it is greater than 0"
    if fault is not None:
        raise ConfigError(f"the genesis of {genesis.name} cannot be used: {fault}")
    network = genesis.hash
    whole = Shard(WORKCHAIN, WHOLE_SHARD)
    nothing = BlockId(WORKCHAIN, WHOLE_SHARD)
    shard = first_state(whole, genesis.time_ms, dict(genesis.balances), nothing)
    shard_id = BlockId(WORKCHAIN, WHOLE_SHARD, 0, shard.hash, network)
    shard = msgspec.structs.replace(shard, previous=(shard_id,))
    nobody = SessionEntry(ZERO_INT256, 0, 0, 0, 0)
    state = MasterState(
        network,
        BlockId(MASTERCHAIN, WHOLE_SHARD),
        0,
        genesis.time_ms,
        genesis.configuration,
        0,
        nobody,
        (),
    )
    session = state.new_session(whole, FIRST_CATCHAIN)
    entry = ShardEntry(whole, (Source(whole, shard_id, 0),), 0, genesis.time_ms, session)
    master_session = state.new_session(MASTER_SHARD, FIRST_CATCHAIN)
    state = msgspec.structs.replace(state, session=master_session, shards=(entry,))
    master_id = BlockId(MASTERCHAIN, WHOLE_SHARD, 0, state.hash, network)
    return FirstStates(msgspec.structs.replace(state, block_id=master_id), shard)


def _fault_in_balances(genesis: Genesis) -> str | None:
    amounts = [amount for _, amount in genesis.balances]
    if len({account for account, _ in genesis.balances}) < len(amounts):
        return "an account stands in it twice"
    if any(amount <= 0 for amount in amounts) or sum(amounts) > SUPPLY_MAX:
        return f"balances are greater than 0, and at most {SUPPLY_MAX} together"
    return None
