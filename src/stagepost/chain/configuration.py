"""The configuration in the masterchain: the validators, their terms, and how much fits into a block."""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256

import msgspec

from stagepost.catchain.budgets import Rates
from stagepost.chain.agreement.votes import VALIDATORS_MAX
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id, key_id
from stagepost.remp.message import MESSAGE_BYTES_MAX

NETWORK_VERSION = 1
"""Newest network version that this node speaks; it also speaks the version before, from 1 on. What a version
adds is made only after a key block that says it.
"""

SHARD_BITS_MAX = 16
"""Splits of a workchain, at most, whatever its configuration says."""

BLOCK_BYTES_MAX = 256 * 1024
"""Bytes of any encoded block, at most: as much as validators can agree on at once."""

MESSAGES_BYTES_MAX = BLOCK_BYTES_MAX * 3 // 4
"""Bytes of a block's messages, at most; the rest is for its other fields."""

BLOCK_MESSAGES_MAX = 4_096
LIFETIME_MS_MIN = 1_000
WINDOW_MS_MAX = 7 * 86_400_000
"""Milliseconds, at most, of `expiry_ahead_max_ms` and of `proof_window_ms`: the state remembers so long."""

BEHIND_MS_MIN = 40_000
"""Milliseconds, at least, of `behind_max_ms`: the longest time-out of the agreement and 10 s."""

SKEW_MS_MAX = 60_000
RATE_MAX = (1 << 31) - 1
"""Headers, digest ids or bytes, at most, in a rate or a burst."""

CALL_WEIGHT_MAX = 2_000
"""Weight of a call, at most, except for contracts that fill a block on purpose."""

_VALIDATOR_BYTES = 72
_CONFIGURATION_ID = constructor_id(
    "stagepost.chain.configuration network_version:int current:stagepost.chain.validatorSet "
    "next:(vector stagepost.chain.validatorSet) shard_validators:int master_lifetime:long shard_lifetime:long "
    "expiry_ahead_max:long proof_window:long must_expire:int behind_max:long skew:long rates:stagepost.chain.rates "
    "messages_max:int bytes_max:int weight_max:int shard_bits_max:int ordering:int takes_cells:int guards_uids:int "
    "= stagepost.chain.Configuration"
)


class Ordering(IntEnum):
    """The order of the messages in a block. The queue checks its own order, because it alone knows the
    messages' ages.
    """

    QUEUE = 0
    HASH = 1


class ChainValidator(msgspec.Struct, frozen=True):
    public_key: bytes
    adnl: bytes
    weight: int = 1

    @property
    def key_id(self) -> bytes:
        return key_id(self.public_key)


class ValidatorSet(msgspec.Struct, frozen=True):
    """Validators that work from `from_ms` on until another set follows; `until_ms` is the time at which that
    is planned.
    """

    from_ms: int
    until_ms: int
    validators: tuple[ChainValidator, ...]


class Limits(msgspec.Struct, frozen=True):
    """Limits of the external messages in one block."""

    messages_max: int = 1_000
    bytes_max: int = 128 * 1024
    weight_max: int = 100_000


class Configuration(msgspec.Struct, frozen=True):
    """`shard_validators`: how many validators of the set form a shard's session, 0 for all; the masterchain's
    is the whole set. `expiry_ahead_max_ms`: how far ahead of its block a message may expire.
    `proof_window_ms`: for how much longer the chain remembers a message, so that its end can be proved.
    `must_expire`: refuse a message without an expiry, for nothing can prove that it will never be executed.
    `behind_max_ms`: how far behind a validator's clock a block may be dated when it is first seen; `skew_ms`:
    how far clocks of honest members differ. `guards_uids`: refuse a message whose body and expiry the same
    account included before under another id.
    """

    current: ValidatorSet
    next: ValidatorSet | None = None
    shard_validators: int = 0
    master_lifetime_ms: int = 250_000
    shard_lifetime_ms: int = 250_000
    expiry_ahead_max_ms: int = 1_800_000
    proof_window_ms: int = 1_800_000
    must_expire: bool = True
    behind_max_ms: int = 40_000
    skew_ms: int = 5_000
    rates: Rates = Rates()
    limits: Limits = Limits()
    shard_bits_max: int = 4
    ordering: Ordering = Ordering.QUEUE
    takes_cells: bool = False
    guards_uids: bool = True
    network_version: int = NETWORK_VERSION

    @property
    def remembered_ms(self) -> int:
        """Milliseconds for which the chain remembers an inclusion, at least."""
        return self.expiry_ahead_max_ms + self.proof_window_ms

    @property
    def hash(self) -> bytes:
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_CONFIGURATION_ID)
        writer.write_unsigned_int(self.network_version)
        _write_set(writer, self.current)
        writer.write_vector_count(0 if self.next is None else 1)
        if self.next is not None:
            _write_set(writer, self.next)
        writer.write_unsigned_int(self.shard_validators)
        writer.write_long(self.master_lifetime_ms)
        writer.write_long(self.shard_lifetime_ms)
        writer.write_long(self.expiry_ahead_max_ms)
        writer.write_long(self.proof_window_ms)
        writer.write_unsigned_int(self.must_expire)
        writer.write_long(self.behind_max_ms)
        writer.write_long(self.skew_ms)
        for rate in msgspec.structs.astuple(self.rates):
            writer.write_unsigned_int(rate)
        writer.write_unsigned_int(self.limits.messages_max)
        writer.write_unsigned_int(self.limits.bytes_max)
        writer.write_unsigned_int(self.limits.weight_max)
        writer.write_unsigned_int(self.shard_bits_max)
        writer.write_unsigned_int(self.ordering)
        writer.write_unsigned_int(self.takes_cells)
        writer.write_unsigned_int(self.guards_uids)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> Configuration:
        reader = Reader(data)
        reader.read_constructor(_CONFIGURATION_ID)
        network_version = reader.read_unsigned_int()
        current = _read_set(reader)
        following = _read_set(reader) if reader.read_vector_count(1, _VALIDATOR_BYTES) else None
        shard_validators = reader.read_unsigned_int()
        lifetimes = reader.read_long(), reader.read_long()
        windows = reader.read_long(), reader.read_long()
        must_expire, clocks = reader.read_unsigned_int(), (reader.read_long(), reader.read_long())
        rates = Rates(*(reader.read_unsigned_int() for _ in Rates.__struct_fields__))
        limits = Limits(reader.read_unsigned_int(), reader.read_unsigned_int(), reader.read_unsigned_int())
        shard_bits_max = reader.read_unsigned_int()
        ordering, takes_cells, guards_uids = (
            reader.read_unsigned_int(),
            reader.read_unsigned_int(),
            reader.read_unsigned_int(),
        )
        reader.expect_end()
        if max(must_expire, ordering, takes_cells, guards_uids) > 1:
            raise TlDecodeError(
                f"configuration: must_expire {must_expire}, ordering {ordering}, takes_cells {takes_cells} and "
                f"guards_uids {guards_uids} are 0 or 1"
            )
        return cls(
            current,
            following,
            shard_validators,
            *lifetimes,
            *windows,
            bool(must_expire),
            *clocks,
            rates,
            limits,
            shard_bits_max,
            Ordering(ordering),
            bool(takes_cells),
            bool(guards_uids),
            network_version,
        )


def fault_in(configuration: Configuration) -> str | None:
    """Return why no chain can run with this configuration; None if one can."""
    for name, one in (("current", configuration.current), ("next", configuration.next)):
        if one is None:
            continue
        keys = {validator.public_key for validator in one.validators}
        if not 1 <= len(one.validators) <= VALIDATORS_MAX or len(keys) < len(one.validators):
            return f"the {name} set needs 1 to {VALIDATORS_MAX} validators, each key once"
        if one.until_ms <= one.from_ms:
            return f"the {name} set ends at {one.until_ms} ms, which is not after its start at {one.from_ms}"
    if configuration.next is not None and configuration.next.from_ms <= configuration.current.from_ms:
        return "the next set must start after the current one"
    if min(configuration.master_lifetime_ms, configuration.shard_lifetime_ms) < LIFETIME_MS_MIN:
        return f"a session lives at least {LIFETIME_MS_MIN} ms"
    oldest, asked = max(1, NETWORK_VERSION - 1), configuration.network_version
    if not oldest <= asked <= NETWORK_VERSION:
        spoken = f"{oldest} and {NETWORK_VERSION} are" if oldest < NETWORK_VERSION else f"{oldest} is"
        advice = "install a newer release first" if asked > NETWORK_VERSION else "use an older release"
        return f"network version {asked} is not spoken here, {spoken}: {advice}"
    windows = configuration.expiry_ahead_max_ms, configuration.proof_window_ms
    if not (min(windows) >= 0 and max(windows) <= WINDOW_MS_MAX):
        return f"expiry_ahead_max and proof_window are 0 to {WINDOW_MS_MAX} ms, not {windows[0]} and {windows[1]}"
    if configuration.must_expire and configuration.takes_cells:
        return "bags of cells have no expiry: a network that takes them cannot have must_expire"
    if configuration.behind_max_ms < BEHIND_MS_MIN:
        return f"behind_max is at least {BEHIND_MS_MIN} ms, not {configuration.behind_max_ms}"
    if not 0 <= configuration.skew_ms <= SKEW_MS_MAX:
        return f"skew is 0 to {SKEW_MS_MAX} ms, not {configuration.skew_ms}"
    rates = msgspec.structs.asdict(configuration.rates)
    if not all(1 <= rate <= RATE_MAX for rate in rates.values()):
        return f"rates and bursts are 1 to {RATE_MAX}, not {rates}"
    limits = configuration.limits
    if not 1 <= limits.messages_max <= BLOCK_MESSAGES_MAX:
        return f"a block holds 1 to {BLOCK_MESSAGES_MAX} messages, not {limits.messages_max}"
    if not MESSAGE_BYTES_MAX <= limits.bytes_max <= MESSAGES_BYTES_MAX:
        return f"a block has room for {MESSAGE_BYTES_MAX} to {MESSAGES_BYTES_MAX} bytes of messages, not {limits.bytes_max}"
    if limits.weight_max < CALL_WEIGHT_MAX:
        return f"a block has room for a weight of at least {CALL_WEIGHT_MAX}, not {limits.weight_max}"
    if configuration.shard_bits_max > SHARD_BITS_MAX:
        return f"a workchain is split at most {SHARD_BITS_MAX} times, not {configuration.shard_bits_max}"
    return None


def fault_in_change(before: Configuration, after: Configuration) -> str | None:
    """Return why a chain with configuration `before` cannot change to `after`; None if it can."""
    if after == before:
        return "it is the one in force"
    if after.network_version not in (before.network_version, before.network_version + 1):
        return f"network version {after.network_version} does not follow {before.network_version}"
    if after.expiry_ahead_max_ms < before.expiry_ahead_max_ms:
        return "messages may have been taken that expire later than it remembers: expiry_ahead_max only grows"
    longer_ms = after.expiry_ahead_max_ms - before.expiry_ahead_max_ms
    if longer_ms > before.proof_window_ms:
        return (
            f"expiry_ahead_max grows by {longer_ms} ms, at most by proof_window, {before.proof_window_ms} ms: nobody could "
            "prove that messages under way were never executed"
        )
    if after.proof_window_ms < before.proof_window_ms:
        return "ends could not be proved as long as was promised: proof_window only grows"
    if before.must_expire and not after.must_expire:
        return "must_expire is only switched on"
    if before.guards_uids and not after.guards_uids:
        return "a message proved executed as another one could be executed itself: guards_uids is only switched on"
    return fault_in(after)


def _write_set(writer: Writer, one: ValidatorSet) -> None:
    writer.write_long(one.from_ms)
    writer.write_long(one.until_ms)
    writer.write_vector_count(len(one.validators))
    for validator in one.validators:
        writer.write_int256(validator.public_key)
        writer.write_int256(validator.adnl)
        writer.write_long(validator.weight)


def _read_set(reader: Reader) -> ValidatorSet:
    from_ms, until_ms = reader.read_long(), reader.read_long()
    count = reader.read_vector_count(VALIDATORS_MAX, _VALIDATOR_BYTES)
    validators = (
        ChainValidator(reader.read_int256(), reader.read_int256(), reader.read_long()) for _ in range(count)
    )
    return ValidatorSet(from_ms, until_ms, tuple(validators))
