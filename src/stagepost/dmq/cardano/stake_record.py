"""The stake that a node works with: taken from a cardano-node, and kept in a file across restarts."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from stagepost.dmq.cardano.genesis import moment_text
from stagepost.dmq.pools import KES_EVOLUTIONS_LIMIT, POOLS_MAX, STAKE_MAX
from stagepost.errors import ErrorCode, StorageError
from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.foreign_json import decode_foreign

STAKE_FILE_BYTES_MAX = 16 * 1024 * 1024
STAKE_FILE_VERSION = 1
STALE_EPOCHS = 2
"""Epochs after which a set stake no longer decides who leads: stake of epoch e elects the leaders of e."""
_FORMAT = "stagepost-stake"


class StakeRecord(msgspec.Struct, frozen=True):
    """Set stake of every pool in one epoch of one network. Stake 0 means known, not eligible."""

    network_magic: int
    system_start_ps: int
    era: int
    epoch: int
    epoch_end_unix_s: float
    epoch_length_s: float
    taken_unix_s: float
    kes_evolutions_max: int
    stakes: Mapping[PoolId, int]

    def epochs_behind(self, now_unix_s: float) -> int:
        """Return by how many epochs the clock is ahead of this record."""
        if now_unix_s < self.epoch_end_unix_s:
            return 0
        return 1 + int((now_unix_s - self.epoch_end_unix_s) // self.epoch_length_s)

    def described(self) -> str:
        eligible = sum(1 for stake in self.stakes.values() if stake)
        taken = moment_text(self.taken_unix_s)
        return f"stake of epoch {self.epoch}, {len(self.stakes)} pools, {eligible} with stake, taken {taken}"


class _StakeFileHead(msgspec.Struct, frozen=True):
    format: str
    version: int
    blake2b_256: str


class _StakeFileBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file; pool ids are hexadecimal, as JSON has no bytes."""

    network_magic: int
    system_start_ps: str
    era: int
    epoch: int
    epoch_end_unix_s: float
    epoch_length_s: float
    taken_unix_s: float
    kes_evolutions_max: int
    stakes: dict[str, int]


def encode_record(record: StakeRecord) -> bytes:
    """Return the content of the stake file: a line about the file, and a line with the record."""
    fields = msgspec.structs.asdict(record)
    fields["system_start_ps"] = str(record.system_start_ps)
    fields["stakes"] = {pool_id.hex(): stake for pool_id, stake in record.stakes.items()}
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = {"format": _FORMAT, "version": STAKE_FILE_VERSION, "blake2b_256": blake2b_256(body).hex()}
    return json.dumps(head).encode() + b"\n" + body + b"\n"


def decode_record(content: bytes) -> StakeRecord:
    """Return the record; raise `StorageError` if the file is damaged or of a later version."""
    first, _, rest = content.partition(b"\n")
    body = rest.removesuffix(b"\n")
    try:
        head = decode_foreign(first, _StakeFileHead)
    except msgspec.MsgspecError as error:
        raise _unusable(f"its first line is not readable ({error})") from error
    if head.format != _FORMAT:
        raise _unusable(f"its format is {head.format!r}, expected {_FORMAT!r}")
    if head.version != STAKE_FILE_VERSION:
        raise _unusable(f"its version is {head.version}, this release reads {STAKE_FILE_VERSION}")
    if head.blake2b_256 != blake2b_256(body).hex():
        raise _unusable("its checksum does not fit its content")
    try:
        stored = decode_foreign(body, _StakeFileBody)
        stakes = {PoolId(bytes.fromhex(text)): stake for text, stake in stored.stakes.items()}
        system_start_ps = int(stored.system_start_ps)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unusable(f"its content is not readable ({error})") from error
    is_sound = (
        len(stakes) <= POOLS_MAX
        and all(len(pool_id) == POOL_ID_BYTES for pool_id in stakes)
        and all(0 <= stake <= STAKE_MAX for stake in stakes.values())
        and 1 <= stored.kes_evolutions_max <= KES_EVOLUTIONS_LIMIT
        and stored.epoch_length_s > 0
    )
    if not is_sound:
        raise _unusable("a value in it is outside of its range")
    return StakeRecord(
        stored.network_magic,
        system_start_ps,
        stored.era,
        stored.epoch,
        stored.epoch_end_unix_s,
        stored.epoch_length_s,
        stored.taken_unix_s,
        stored.kes_evolutions_max,
        stakes,
    )


def _unusable(why: str) -> StorageError:
    return StorageError(
        f"the kept stake is not used: {why}",
        code=ErrorCode.STORAGE_UNAVAILABLE,
        advice="nothing needs to be done: the stake is asked anew",
    )
