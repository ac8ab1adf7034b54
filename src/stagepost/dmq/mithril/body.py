"""The body of a message that a Mithril signer publishes: the signed entity with its beacon, and a lottery signature.

`u16 length ‖ entity ‖ u32 length ‖ signature`. The entity is a variant and its integers, the signature is written in
one of two forms. Nothing here verifies the signature: that needs the keys which pools registered with Mithril.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from stagepost.dmq.message import BODY_BYTES_MAX
from stagepost.errors import DecodeError, ErrorCode, WireRule
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import ItemLimits, skip_item

ENTITY_BYTES_MAX = 64
"""Bytes of an entity; the longest has a variant and three integers of nine bytes."""
EPOCH_MAX = 2**32 - 1
"""Epoch, the greatest that is taken; mainnet is below 1,000."""
NUMBER_MAX = 2**63 - 1
"""Number of a beacon, the greatest that a table can hold."""
INDEX_MAX = 2**31 - 1
"""Index of the lottery, the greatest that is taken; mainnet draws among 16,948."""
INDEXES_MAX = 2_000
"""Indexes of one signature; a body has no room for more."""
SIGMA_BYTES = 48
KEY_BYTES_MAX = 64
"""Bytes of a name in the newer form of a signature."""
KEYS_MAX = 16
BLOCKS_FROM = 1_000_000
"""Number of variant 3 from which on it is a block: immutable files are some ten thousand."""

_VERSION_CBOR = 1
_EXTRA = ItemLimits(bytes_max=BODY_BYTES_MAX, depth_max=8, any_type=True)
_VARINT_WIDTHS = {0xFB: 2, 0xFC: 4, 0xFD: 8}
_VARINT_LEAST = {0xFB: 251, 0xFC: 1 << 16, 0xFD: 1 << 32}
_INTEGERS = {0: (1,), 1: (1,), 2: (2,), 3: (2,), 4: (2, 3), 5: (2, 3)}
"""Numbers of integers that a variant may have, by variant."""

STAKE_DISTRIBUTION = 1
"""Variant of Cardano's stake distribution, whose beacon names the epoch before the one in which it is signed."""


class NamesAsOf(Enum):
    """The enumeration of entities was renumbered in summer 2026: releases by which a variant is named."""

    SINCE_2630 = "2630"
    UNTIL_2617 = "2617"


_NAMES = {
    NamesAsOf.SINCE_2630: {
        (0, 1): "MithrilStakeDistribution",
        (1, 1): "CardanoStakeDistribution",
        (2, 2): "CardanoDatabase",
        (3, 2): "CardanoTransactions",
        (4, 3): "CardanoBlocksTransactions",
    },
    NamesAsOf.UNTIL_2617: {
        (0, 1): "MithrilStakeDistribution",
        (1, 1): "CardanoStakeDistribution",
        (2, 2): "CardanoImmutableFilesFull",
        (3, 2): "CardanoDatabase",
        (4, 2): "CardanoTransactions",
        (5, 2): "CardanoBlocksTransactions",
        (5, 3): "CardanoBlocksTransactions",
    },
}
_TIMEOUTS_S = {0: 3_600, 1: 1_800}
_TIMEOUT_S = 600


class SignedEntity(NamedTuple):
    """Entity with its beacon: the variant's number, and the integers that say which one of that kind."""

    variant: int
    numbers: tuple[int, ...]

    @property
    def epoch(self) -> int:
        """Return the epoch in which the entity is signed: its stake decides."""
        return self.numbers[0] + 1 if self.variant == STAKE_DISTRIBUTION else self.numbers[0]

    @property
    def beacon(self) -> str:
        """Return the integers as text, which tells beacons of one variant apart."""
        return "/".join(map(str, self.numbers))

    @property
    def timeout_ms(self) -> int:
        """Return the time after which Mithril's aggregator no longer waits for signatures, in milliseconds."""
        return 1_000 * _TIMEOUTS_S.get(self.variant, _TIMEOUT_S)

    def name(self, as_of: NamesAsOf) -> str | None:
        """Return the entity's name by one numbering; None where the beacon cannot be one of that name."""
        if as_of is NamesAsOf.UNTIL_2617 and self.variant == 3 and self.numbers[1] >= BLOCKS_FROM:
            return None
        return _NAMES[as_of].get((self.variant, len(self.numbers)))


class SignatureForm(Enum):
    """Published forms of a signature."""

    LEGACY = "legacy"
    CBOR = "cbor"


class MithrilBody(msgspec.Struct, frozen=True):
    """Decoded body. `sigma` tells two signatures of one pool for one beacon apart, whatever their form."""

    entity: SignedEntity
    form: SignatureForm
    sigma: bytes
    indexes: tuple[int, ...]
    signer_index: int


def decode_body(data: bytes) -> MithrilBody:
    """Return the content of a body; raise `DecodeError` for every other body, as DMQ carries other ones too."""
    if len(data) > BODY_BYTES_MAX:
        raise _over("the body's length", len(data), BODY_BYTES_MAX, 0)
    entity_from, entity_until = _part(data, 0, 2, "the entity")
    if entity_until - entity_from > ENTITY_BYTES_MAX:
        raise _over("the entity's length", entity_until - entity_from, ENTITY_BYTES_MAX, 0)
    entity = _entity(data, entity_from, entity_until)
    start, end = _part(data, entity_until, 4, "the signature")
    if end != len(data):
        raise _invalid(f"{len(data) - end} bytes left over after the signature", end)
    if start < end and data[start] == _VERSION_CBOR:
        return _newer_signature(CborReader(data, offset=start + 1, end=end), entity)
    return _legacy_signature(data, start, end, entity)


def _part(data: bytes, offset: int, width: int, what: str) -> tuple[int, int]:
    """Return where a part begins and ends whose length stands before it."""
    start = offset + width
    if start > len(data):
        raise _truncated(what, offset)
    end = start + int.from_bytes(data[offset:start], "big")
    if end > len(data):
        raise _truncated(what, offset)
    return start, end


def _entity(data: bytes, start: int, end: int) -> SignedEntity:
    values: list[int] = []
    at = start
    while at < end:
        value, at = _varint(data, at, end)
        values.append(value)
    if not values:
        raise _truncated("the entity", start)
    variant, *numbers = values
    counts = _INTEGERS.get(variant)
    if counts is None:
        raise _invalid(f"there is no entity with the number {variant}", start)
    if len(numbers) not in counts:
        raise _invalid(f"entity {variant} has {len(numbers)} integers, expected {counts[0]}", start)
    if numbers[0] > EPOCH_MAX:
        raise _over("the epoch", numbers[0], EPOCH_MAX, start)
    if max(numbers) > NUMBER_MAX:
        raise _over("a number of the beacon", max(numbers), NUMBER_MAX, start)
    return SignedEntity(variant, tuple(numbers))


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = _VARINT_WIDTHS.get(first)
    if width is None:
        raise _invalid(f"an integer of the entity begins with 0x{first:02x}", at)
    following = at + 1 + width
    if following > end:
        raise _truncated("an integer of the entity", at)
    value = int.from_bytes(data[at + 1 : following], "little")
    if value < _VARINT_LEAST[first]:
        raise _invalid(f"an integer of the entity is {value}, written longer than needed", at)
    return value, following


def _legacy_signature(data: bytes, start: int, end: int, entity: SignedEntity) -> MithrilBody:
    """Read count, indexes, sigma and signer index; later releases append bytes, which are skipped."""
    if end - start < 8:
        raise _truncated("the signature", start)
    count = int.from_bytes(data[start : start + 8], "big")
    if count > INDEXES_MAX:
        raise _over("the number of indexes", count, INDEXES_MAX, start)
    sigma_from = start + 8 + 8 * count
    sigma_until = sigma_from + SIGMA_BYTES
    if sigma_until + 8 > end:
        raise _truncated("the signature", start)
    indexes = tuple(int.from_bytes(data[at : at + 8], "big") for at in range(start + 8, sigma_from, 8))
    if indexes and max(indexes) > INDEX_MAX:
        raise _over("an index", max(indexes), INDEX_MAX, start)
    signer = int.from_bytes(data[sigma_until : sigma_until + 8], "big")
    if signer > INDEX_MAX:
        raise _over("the signer's index", signer, INDEX_MAX, sigma_until)
    return MithrilBody(entity, SignatureForm.LEGACY, data[sigma_from:sigma_until], indexes, signer)


def _newer_signature(reader: CborReader, entity: SignedEntity) -> MithrilBody:
    start = reader.offset
    sigma: bytes | None = None
    indexes: tuple[int, ...] | None = None
    signer: int | None = None
    seen: set[str] = set()
    count = reader.map_start("the signature")
    while not reader.take_break() if count is None else len(seen) < count:
        at = reader.offset
        key = reader.text(KEY_BYTES_MAX, "a name in the signature")
        if key in seen:
            raise reader.invalid(f"the signature has {key} twice", at=at)
        seen.add(key)
        if len(seen) > KEYS_MAX:
            raise reader.over_limit("the number of names in the signature", len(seen), KEYS_MAX, at=at)
        match key:
            case "sigma":
                numbers = _numbers(reader, SIGMA_BYTES, 8, "sigma")
                if len(numbers) != SIGMA_BYTES:
                    raise reader.wrong_size("sigma", len(numbers), SIGMA_BYTES, SIGMA_BYTES, at)
                sigma = bytes(numbers)
            case "indexes":
                indexes = _numbers(reader, INDEXES_MAX, 31, "indexes")
            case "signer_index":
                signer = reader.unsigned(31, "signer_index")
            case _:
                skip_item(reader, _EXTRA, key)
    reader.finish("the signature")
    if sigma is None or indexes is None or signer is None:
        raise reader.invalid("the signature lacks sigma, indexes or signer_index", at=start)
    return MithrilBody(entity, SignatureForm.CBOR, sigma, indexes, signer)


def _numbers(reader: CborReader, count_max: int, bits: int, what: str) -> tuple[int, ...]:
    start = reader.offset
    count = reader.list_start(what)
    found: list[int] = []
    while not reader.take_break() if count is None else len(found) < count:
        if len(found) >= count_max:
            raise reader.over_limit(f"the length of {what}", len(found) + 1, count_max, at=start)
        found.append(reader.unsigned(bits, what))
    return tuple(found)


def _truncated(what: str, at: int) -> DecodeError:
    text = f"the body ends inside {what}, which begins at offset {at}"
    return DecodeError(text, code=ErrorCode.CBOR_TRUNCATED, offset=at)


def _invalid(text: str, at: int) -> DecodeError:
    return DecodeError(f"{text} (offset {at})", code=ErrorCode.CBOR_INVALID, offset=at)


def _over(what: str, found: int, limit: int, at: int) -> DecodeError:
    return DecodeError(
        f"{what} is {found}, the limit is {limit} (offset {at})",
        code=ErrorCode.CBOR_LIMIT,
        offset=at,
        limit=limit,
        found=found,
        rule=WireRule.OUT_OF_RANGE,
    )
