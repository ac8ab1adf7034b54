"""The configuration in the masterchain: the validators, their terms, and how much fits into a block."""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256

import msgspec

from stagepost.chain.agreement.candidate import PAYLOAD_BYTES_MAX
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id, key_id
from stagepost.remp.message import MESSAGE_BYTES_MAX

VALIDATORS_MAX = 1_024
SHARD_BITS_MAX = 16
"""Splits of a workchain, at most, whatever its configuration says."""

BLOCK_BYTES_MAX = PAYLOAD_BYTES_MAX
"""Bytes of any encoded block, at most: as much as validators can agree on at once."""

MESSAGES_BYTES_MAX = BLOCK_BYTES_MAX * 3 // 4
"""Bytes of a block's messages, at most; the rest is for its other fields."""

BLOCK_MESSAGES_MAX = 4_096
LIFETIME_MS_MIN = 1_000
CALL_WEIGHT_MAX = 2_000
"""Weight of a call, at most, except for contracts that fill a block on purpose."""

_VALIDATOR_BYTES = 72
_CONFIGURATION_ID = constructor_id(
    "stagepost.chain.configuration current:stagepost.chain.validatorSet next:(vector stagepost.chain.validatorSet) "
    "master_validators:int shard_validators:int master_lifetime:long shard_lifetime:long expiry_ahead_max:long "
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
    """`*_validators`: how many validators of the set form a session, 0 for all. `expiry_ahead_max_ms`: how
    far ahead of its block a message may expire; the chain remembers a message at least so long, so a message
    that expires is never included twice. `guards_uids`: refuse a message whose body the same account included
    before under another id.
    """

    current: ValidatorSet
    next: ValidatorSet | None = None
    master_validators: int = 0
    shard_validators: int = 0
    master_lifetime_ms: int = 250_000
    shard_lifetime_ms: int = 250_000
    expiry_ahead_max_ms: int = 300_000
    limits: Limits = Limits()
    shard_bits_max: int = 4
    ordering: Ordering = Ordering.QUEUE
    takes_cells: bool = False
    guards_uids: bool = True

    @property
    def hash(self) -> bytes:
        return sha256(self.encode()).digest()

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_CONFIGURATION_ID)
        _write_set(writer, self.current)
        writer.write_vector_count(0 if self.next is None else 1)
        if self.next is not None:
            _write_set(writer, self.next)
        writer.write_unsigned_int(self.master_validators)
        writer.write_unsigned_int(self.shard_validators)
        writer.write_long(self.master_lifetime_ms)
        writer.write_long(self.shard_lifetime_ms)
        writer.write_long(self.expiry_ahead_max_ms)
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
        current = _read_set(reader)
        following = _read_set(reader) if reader.read_vector_count(1, _VALIDATOR_BYTES) else None
        master_validators, shard_validators = reader.read_unsigned_int(), reader.read_unsigned_int()
        lifetimes = reader.read_long(), reader.read_long(), reader.read_long()
        limits = Limits(reader.read_unsigned_int(), reader.read_unsigned_int(), reader.read_unsigned_int())
        shard_bits_max = reader.read_unsigned_int()
        ordering, takes_cells, guards_uids = (
            reader.read_unsigned_int(),
            reader.read_unsigned_int(),
            reader.read_unsigned_int(),
        )
        reader.expect_end()
        if max(ordering, takes_cells, guards_uids) > 1:
            raise TlDecodeError(
                f"configuration: ordering {ordering}, takes_cells {takes_cells} and guards_uids {guards_uids} "
                "are 0 or 1"
            )
        return cls(
            current,
            following,
            master_validators,
            shard_validators,
            *lifetimes,
            limits,
            shard_bits_max,
            Ordering(ordering),
            bool(takes_cells),
            bool(guards_uids),
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
    if configuration.expiry_ahead_max_ms < 0:
        return "a message cannot have to expire in the past"
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
