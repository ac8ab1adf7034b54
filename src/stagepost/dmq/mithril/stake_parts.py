"""Records of the stake topic: the set stake of one epoch, in parts that fit into a topic's records.

A distribution counts once all its parts are there: the parts name the number of pools and the total, so that nobody takes
a part for the whole. Of several distributions of one epoch the one that was asked last counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from stagepost.dmq.cardano.stake_record import StakeRecord
from stagepost.dmq.mithril.body import EPOCH_MAX
from stagepost.dmq.mithril.parameters import LotteryParameters
from stagepost.dmq.pools import KES_EVOLUTIONS_LIMIT, POOLS_MAX
from stagepost.errors import ConfigError, DecodeError, ErrorCode
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.foreign_json import decode_foreign

POOLS_PER_PART = 500
"""Pools of one record, at most: some 40,000 bytes of the 65,536 that a topic takes."""
STAKE_PART_BYTES_MAX = 65_536
"""Bytes of one record, as a topic takes them."""
PARTS_MAX = POOLS_MAX // POOLS_PER_PART + 1
LOVELACE_MAX = 2**63 - 1
"""Lovelace, the most that a table can hold; the ledger has 45 · 10^15."""
TIME_MAX_MS = 2**53
DIGEST_DIGITS = 32


class StakePart(msgspec.Struct, frozen=True):
    """Record of the stake topic. `digest` is the same in all parts of one distribution; `stakes` are by pool id in hex.

    `from_ms` and `to_ms` are the epoch's beginning and end. `k`, `m` and `phi_f` are Mithril's parameters, null if unknown.
    """

    network_magic: int
    era: int
    epoch: int
    from_ms: int
    to_ms: int
    taken_ms: int
    kes_evolutions_max: int
    digest: str
    part: int
    parts: int
    pools: int
    total_stake: int
    stakes: dict[str, int]
    k: int | None = None
    m: int | None = None
    phi_f: float | None = None

    @property
    def key(self) -> str:
        return f"{self.network_magic}:{self.epoch}:{self.part}"

    @property
    def parameters(self) -> LotteryParameters | None:
        if self.k is None or self.m is None or self.phi_f is None:
            return None
        return LotteryParameters(self.k, self.m, self.phi_f)


def stake_parts(record: StakeRecord, parameters: LotteryParameters | None) -> list[StakePart]:
    """Return the records of a distribution, in order."""
    stakes = sorted((pool_id.hex(), stake) for pool_id, stake in record.stakes.items())
    taken_ms = int(record.taken_unix_s * 1_000)
    end_ms = int(record.epoch_end_unix_s * 1_000)
    from_ms = end_ms - int(record.epoch_length_s * 1_000)
    # Without the time: the same stake, asked again after a restart, is the same distribution.
    facts = (record.network_magic, record.era, record.epoch, from_ms, end_ms, record.kes_evolutions_max)
    text = repr((facts, parameters, stakes)).encode()
    digest = blake2b(text, digest_size=DIGEST_DIGITS // 2).hexdigest()
    pieces = [stakes[at : at + POOLS_PER_PART] for at in range(0, len(stakes), POOLS_PER_PART)] or [[]]
    return [
        StakePart(
            network_magic=record.network_magic,
            era=record.era,
            epoch=record.epoch,
            from_ms=from_ms,
            to_ms=end_ms,
            taken_ms=taken_ms,
            kes_evolutions_max=record.kes_evolutions_max,
            digest=digest,
            part=number,
            parts=len(pieces),
            pools=len(stakes),
            total_stake=sum(stake for _, stake in stakes),
            stakes=dict(piece),
            k=None if parameters is None else parameters.k,
            m=None if parameters is None else parameters.m,
            phi_f=None if parameters is None else parameters.phi_f,
        )
        for number, piece in enumerate(pieces)
    ]


def decode_stake_part(data: bytes) -> StakePart:
    """Return the record; raise `DecodeError` that names the first fault."""
    if len(data) > STAKE_PART_BYTES_MAX:
        raise _refused(f"the record has {len(data)} bytes, the limit is {STAKE_PART_BYTES_MAX}")
    try:
        part = decode_foreign(data, StakePart)
        parameters = part.parameters
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise _refused(str(error)) from error
    if parameters is None and (part.k, part.m, part.phi_f) != (None, None, None):
        raise _refused("of k, m and phi_f some are missing")
    for name, value, least, most in (
        ("network_magic", part.network_magic, 0, 2**32 - 1),
        ("era", part.era, 0, 255),
        ("epoch", part.epoch, 0, EPOCH_MAX),
        ("from_ms", part.from_ms, 0, TIME_MAX_MS),
        ("to_ms", part.to_ms, part.from_ms + 1, TIME_MAX_MS),
        ("taken_ms", part.taken_ms, 0, TIME_MAX_MS),
        ("kes_evolutions_max", part.kes_evolutions_max, 1, KES_EVOLUTIONS_LIMIT),
        ("parts", part.parts, 1, PARTS_MAX),
        ("part", part.part, 0, part.parts - 1),
        ("pools", part.pools, len(part.stakes), POOLS_MAX),
        ("the number of pools in the part", len(part.stakes), 0, POOLS_PER_PART),
        ("total_stake", part.total_stake, 0, LOVELACE_MAX),
    ):
        if not least <= value <= most:
            raise _refused(f"{name} is {value}, expected {least} to {most}")
    if not _is_hex(part.digest, DIGEST_DIGITS):
        raise _refused(f"digest is not {DIGEST_DIGITS} hexadecimal digits")
    for pool_id, stake in part.stakes.items():
        if not _is_hex(pool_id, 2 * POOL_ID_BYTES):
            raise _refused(f"{pool_id[:64]!r} is not a pool id of {2 * POOL_ID_BYTES} hexadecimal digits")
        if not 0 <= stake <= part.total_stake:
            raise _refused(f"the stake of {pool_id} is {stake}, expected 0 to total_stake")
    return part


class EpochStake(msgspec.Struct, frozen=True):
    """Whole distribution of one epoch. Stake 0 means known, not eligible."""

    network_magic: int
    epoch: int
    from_ms: int
    to_ms: int
    taken_ms: int
    kes_evolutions_max: int
    total_stake: int
    parameters: LotteryParameters | None
    stakes: Mapping[PoolId, int]


def joined_stake(parts: Iterable[StakePart]) -> EpochStake | None:
    """Return the distribution that the parts of one epoch give; None while none is whole, or if two networks have one."""
    by_digest: dict[tuple[int, str], dict[int, StakePart]] = {}
    for part in parts:
        held = by_digest.setdefault((part.network_magic, part.digest), {})
        if part.part not in held or held[part.part].taken_ms < part.taken_ms:
            held[part.part] = part
    whole = [found for some in by_digest.values() if (found := _whole(list(some.values()))) is not None]
    if len({one.network_magic for _, one in whole}) != 1:
        return None
    return max(whole, key=lambda one: (one[1].taken_ms, one[0]))[1]


def _whole(parts: Sequence[StakePart]) -> tuple[str, EpochStake] | None:
    first = parts[0]
    stakes = {PoolId(bytes.fromhex(name)): stake for part in parts for name, stake in part.stakes.items()}
    is_whole = (
        len(parts) == first.parts
        and len(stakes) == sum(len(part.stakes) for part in parts) == first.pools
        and sum(stakes.values()) == first.total_stake
    )
    if not is_whole:
        return None
    return first.digest, EpochStake(
        first.network_magic,
        first.epoch,
        first.from_ms,
        first.to_ms,
        max(part.taken_ms for part in parts),
        first.kes_evolutions_max,
        first.total_stake,
        first.parameters,
        stakes,
    )


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and all(one in "0123456789abcdef" for one in text)


def _refused(why: str) -> DecodeError:
    return DecodeError(f"not a record of stake: {why}", code=ErrorCode.RECEIPT_FORMAT)
