"""Binary form of proofs. The reader accepts only bytes that the writer would have written the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeAlias, TypeVar

import msgspec

from stagepost.chain.agreement.certificate import SIGNATURE_BYTES_MIN
from stagepost.chain.agreement.votes import VALIDATORS_MAX, read_slot, read_validator
from stagepost.chain.configuration import BLOCK_BYTES_MAX
from stagepost.chain.hash_tree import EMPTY_HASH, KEY_BITS
from stagepost.chain.shard_block import write_head
from stagepost.chain.shard_state import MEMORY_BYTES_MAX, PREVIOUS_MAX
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.remp.shard import BLOCK_ID_BYTES, BlockId, Shard, read_block_id

PROOF_VERSION = 1
KEY_BLOCKS_MAX = 4_096
"""Key blocks on the way of one proof, at most."""

STEPS_MAX = 64
"""Candidates, at most, between a master block and the candidate by which it is final."""

_SEAL_BYTES_MIN = 48
_KEY_BLOCK_BYTES_MIN = 4 + _SEAL_BYTES_MIN
_MASTER_BYTES_MIN = 4 + BLOCK_ID_BYTES + 8 + 6 * 32 + _SEAL_BYTES_MIN
_STEP_BYTES = 36
_LEAF_BYTES = 64

_ACCOUNT = "account:stagepost.proof.account"
EXECUTED_ID = constructor_id(
    f"stagepost.proof.executed id:int256 address:int256 {_ACCOUNT} path:stagepost.proof.path catchain_seqno:int "
    "time:long = stagepost.proof.End"
)
EXECUTED_AS_ID = constructor_id(
    f"stagepost.proof.executedAs message:bytes {_ACCOUNT} path:stagepost.proof.path by:int256 catchain_seqno:int "
    "time:long = stagepost.proof.End"
)
NEVER_ID = constructor_id(
    f"stagepost.proof.never message:bytes {_ACCOUNT} id:stagepost.proof.absence uid:stagepost.proof.absence "
    "= stagepost.proof.End"
)
NEVER_THERE_ID = constructor_id(
    "stagepost.proof.neverThere message:bytes account:stagepost.proof.absence = stagepost.proof.End"
)
PROOF_ID = constructor_id(
    "stagepost.proof.proof version:int from:int way:(vector stagepost.proof.keyBlock) "
    "master:(vector stagepost.proof.master) shard:stagepost.proof.shard end:stagepost.proof.End "
    "= stagepost.proof.Proof"
)
KEY_BLOCK_PART_ID = constructor_id(
    "stagepost.proof.sharedKeyBlock version:int key:int256 block:stagepost.proof.keyBlock = stagepost.proof.Part"
)
MASTER_PART_ID = constructor_id(
    "stagepost.proof.sharedMaster version:int key:int256 master:stagepost.proof.master = stagepost.proof.Part"
)
AWAITED_PART_ID = constructor_id("stagepost.proof.awaited version:int message:bytes = stagepost.proof.Part")
OWN_PART_ID = constructor_id(
    "stagepost.proof.own version:int master:int256 shard:stagepost.proof.shard end:stagepost.proof.End "
    "= stagepost.proof.Part"
)


class EndKind(StrEnum):
    """The ends that a message can have."""

    EXECUTED = "executed"
    NEVER = "never"
    EXECUTED_AS = "executed_as"


class ProofPath(msgspec.Struct, frozen=True):
    """Hashes beside the way of a key, from the root down; `EMPTY_HASH` where nothing stands."""

    siblings: tuple[bytes, ...]

    def write(self, writer: Writer) -> None:
        present = bytearray(-(-len(self.siblings) // 8))
        for level, sibling in enumerate(self.siblings):
            if sibling != EMPTY_HASH:
                present[level // 8] |= 0x80 >> level % 8
        writer.write_int(len(self.siblings))
        writer.write_bytes(bytes(present))
        there = [sibling for sibling in self.siblings if sibling != EMPTY_HASH]
        writer.write_vector_count(len(there))
        for sibling in there:
            writer.write_int256(sibling)


class AbsenceProof(msgspec.Struct, frozen=True):
    """`other`: key and hash of the value of the leaf at the place; None for an empty place."""

    path: ProofPath
    other: tuple[bytes, bytes] | None

    def write(self, writer: Writer) -> None:
        self.path.write(writer)
        writer.write_vector_count(0 if self.other is None else 1)
        if self.other is not None:
            writer.write_int256(self.other[0])
            writer.write_int256(self.other[1])


class AccountProof(msgspec.Struct, frozen=True):
    path: ProofPath
    balance: int
    memory: bytes

    def write(self, writer: Writer) -> None:
        self.path.write(writer)
        writer.write_long(self.balance)
        writer.write_bytes(self.memory)


class ExecutedEnd(msgspec.Struct, frozen=True):
    message_id: bytes
    address: bytes
    account: AccountProof
    path: ProofPath
    catchain_seqno: int
    time_ms: int

    def write(self, writer: Writer) -> None:
        writer.write_constructor(EXECUTED_ID)
        writer.write_int256(self.message_id)
        writer.write_int256(self.address)
        self.account.write(writer)
        self.path.write(writer)
        writer.write_unsigned_int(self.catchain_seqno)
        writer.write_long(self.time_ms)


class ExecutedAsEnd(msgspec.Struct, frozen=True):
    """`by`: the message that took the uid, included at `time_ms`."""

    message: bytes
    account: AccountProof
    path: ProofPath
    by: bytes
    catchain_seqno: int
    time_ms: int

    def write(self, writer: Writer) -> None:
        writer.write_constructor(EXECUTED_AS_ID)
        writer.write_bytes(self.message)
        self.account.write(writer)
        self.path.write(writer)
        writer.write_int256(self.by)
        writer.write_unsigned_int(self.catchain_seqno)
        writer.write_long(self.time_ms)


class NeverEnd(msgspec.Struct, frozen=True):
    """`account` is an `AbsenceProof` for an account that is not there; then neither id nor uid has a place."""

    message: bytes
    account: AccountProof | AbsenceProof
    id_absence: AbsenceProof | None = None
    uid_absence: AbsenceProof | None = None

    def write(self, writer: Writer) -> None:
        writer.write_constructor(NEVER_THERE_ID if isinstance(self.account, AbsenceProof) else NEVER_ID)
        writer.write_bytes(self.message)
        self.account.write(writer)
        for absence in (self.id_absence, self.uid_absence):
            if absence is not None:
                absence.write(writer)


End: TypeAlias = ExecutedEnd | ExecutedAsEnd | NeverEnd


def kind_of(end: End) -> EndKind:
    match end:
        case ExecutedEnd():
            return EndKind.EXECUTED
        case ExecutedAsEnd():
            return EndKind.EXECUTED_AS
        case NeverEnd():
            return EndKind.NEVER


class ShardProof(msgspec.Struct, frozen=True):
    """A shard block without its messages, and the facts of the state after it that the block does not hold.
    `path`: of the block's root hash among the last blocks of the master block.
    """

    path: ProofPath
    file_hash: bytes
    session_id: bytes
    shard: Shard
    seqno: int
    previous: tuple[BlockId, ...]
    master: BlockId
    time_ms: int
    ordering: int
    messages_hash: bytes
    remembers_from_ms: int

    def write(self, writer: Writer) -> None:
        self.path.write(writer)
        writer.write_int256(self.file_hash)
        self.write_root(writer)
        writer.write_long(self.remembers_from_ms)

    def write_root(self, writer: Writer) -> None:
        """Write the fields of the block's root up to the hash of the messages."""
        write_head(writer, self)
        writer.write_int256(self.messages_hash)


class Seal(msgspec.Struct, frozen=True):
    """`later`: slot and block of each candidate upon that of the master block, up to the certified one."""

    catchain_seqno: int
    slot: int
    parent: bytes
    later: tuple[tuple[int, bytes], ...]
    signatures: tuple[tuple[int, bytes], ...]

    def write(self, writer: Writer) -> None:
        writer.write_unsigned_int(self.catchain_seqno)
        writer.write_int(self.slot)
        writer.write_int256(self.parent)
        writer.write_vector_count(len(self.later))
        for slot, block in self.later:
            writer.write_int(slot)
            writer.write_int256(block)
        writer.write_vector_count(len(self.signatures))
        for validator, signature in self.signatures:
            writer.write_int(validator)
            writer.write_int512(signature)


class KeyBlockProof(msgspec.Struct, frozen=True):
    block: bytes
    seal: Seal

    def write(self, writer: Writer) -> None:
        writer.write_bytes(self.block)
        self.seal.write(writer)


class MasterProof(msgspec.Struct, frozen=True):
    """The root of a master block without its session, which a verifier computes."""

    seqno: int
    previous: BlockId
    time_ms: int
    last_hash: bytes
    commits_hash: bytes
    plans_hash: bytes
    configuration_hash: bytes
    state_hash: bytes
    file_hash: bytes
    seal: Seal

    def write(self, writer: Writer) -> None:
        self.write_root(writer)
        writer.write_int256(self.file_hash)
        self.seal.write(writer)

    def write_root(self, writer: Writer) -> None:
        """Write the fields of the block's root behind its session."""
        writer.write_unsigned_int(self.seqno)
        self.previous.write(writer)
        writer.write_long(self.time_ms)
        for one in (
            self.last_hash,
            self.commits_hash,
            self.plans_hash,
            self.configuration_hash,
            self.state_hash,
        ):
            writer.write_int256(one)


class MessageProof(msgspec.Struct, frozen=True):
    """The proof of one message's end. `begins_at`: number of the key block behind which `way` begins, 0 for the
    genesis. `master`: None where the last key block of `way` is the master block.
    """

    begins_at: int
    way: tuple[KeyBlockProof, ...]
    master: MasterProof | None
    shard: ShardProof
    end: End

    @property
    def kind(self) -> EndKind:
        return kind_of(self.end)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(PROOF_ID)
        writer.write_int(PROOF_VERSION)
        writer.write_unsigned_int(self.begins_at)
        writer.write_vector_count(len(self.way))
        for block in self.way:
            block.write(writer)
        writer.write_vector_count(0 if self.master is None else 1)
        if self.master is not None:
            self.master.write(writer)
        self.shard.write(writer)
        self.end.write(writer)
        return writer.written()


class KeyBlockPart(msgspec.Struct, frozen=True):
    """`key`: root hash of the key block before, zero for the genesis."""

    key: bytes
    block: KeyBlockProof

    def encode(self) -> bytes:
        return _part(KEY_BLOCK_PART_ID, self.key, self.block)


class MasterPart(msgspec.Struct, frozen=True):
    """`key`: root hash of the key block before, zero for the genesis."""

    key: bytes
    master: MasterProof

    def encode(self) -> bytes:
        return _part(MASTER_PART_ID, self.key, self.master)


class OwnPart(msgspec.Struct, frozen=True):
    """`master`: root hash of the master block, under which the topic has the shared part."""

    master: bytes
    shard: ShardProof
    end: End

    def encode(self) -> bytes:
        return _part(OWN_PART_ID, self.master, self.shard, self.end)


class AwaitedPart(msgspec.Struct, frozen=True):
    """A message whose end is awaited: its bytes are needed to prove that it was never executed."""

    message: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(AWAITED_PART_ID)
        writer.write_int(PROOF_VERSION)
        writer.write_bytes(self.message)
        return writer.written()


ProofPart: TypeAlias = KeyBlockPart | MasterPart | OwnPart | AwaitedPart


def _part(identifier: int, before: bytes, *rest: KeyBlockProof | MasterProof | ShardProof | End) -> bytes:
    writer = Writer()
    writer.write_constructor(identifier)
    writer.write_int(PROOF_VERSION)
    writer.write_int256(before)
    for one in rest:
        one.write(writer)
    return writer.written()


# Reading


def decode_proof(data: bytes) -> MessageProof:
    """Read a whole proof; `DecodeError` names the first fault."""
    reader = Reader(data)
    reader.read_constructor(PROOF_ID)
    _read_version(reader)
    begins_at = reader.read_unsigned_int()
    way = tuple(_read_many(reader, KEY_BLOCKS_MAX, _KEY_BLOCK_BYTES_MIN, _read_key_block))
    master = _read_optional(reader, _MASTER_BYTES_MIN, _read_master)
    proof = MessageProof(begins_at, way, master, _read_shard(reader), _read_end(reader))
    reader.expect_end()
    if master is None and not way:
        raise TlDecodeError("the proof has neither a master block nor a key block")
    return proof


def decode_part(data: bytes) -> ProofPart:
    """Read a record of the topic of proofs; `DecodeError` names the first fault."""
    reader = Reader(data)
    identifier = reader.read_constructor(KEY_BLOCK_PART_ID, MASTER_PART_ID, OWN_PART_ID, AWAITED_PART_ID)
    _read_version(reader)
    part: ProofPart
    if identifier == KEY_BLOCK_PART_ID:
        part = KeyBlockPart(reader.read_int256(), _read_key_block(reader))
    elif identifier == MASTER_PART_ID:
        part = MasterPart(reader.read_int256(), _read_master(reader))
    elif identifier == OWN_PART_ID:
        part = OwnPart(reader.read_int256(), _read_shard(reader), _read_end(reader))
    else:
        part = AwaitedPart(reader.read_bytes(MESSAGE_BYTES_MAX, "message"))
    reader.expect_end()
    return part


Item = TypeVar("Item")


def _read_many(reader: Reader, count_max: int, bytes_min: int, read: Callable[[Reader], Item]) -> list[Item]:
    return [read(reader) for _ in range(reader.read_vector_count(count_max, bytes_min))]


def _read_optional(reader: Reader, bytes_min: int, read: Callable[[Reader], Item]) -> Item | None:
    return read(reader) if reader.read_vector_count(1, bytes_min) else None


def _read_version(reader: Reader) -> None:
    start = reader.offset
    version = reader.read_int()
    if version != PROOF_VERSION:
        raise TlDecodeError(
            f"the proof has version {version}; this reader knows version {PROOF_VERSION}",
            found=version,
            offset=start,
        )


def _read_path(reader: Reader) -> ProofPath:
    start = reader.offset
    depth = reader.read_int()
    if not 0 <= depth <= KEY_BITS:
        raise TlDecodeError(
            f"the path at offset {start} has depth {depth}; 0 to {KEY_BITS} are accepted",
            limit=KEY_BITS,
            found=depth,
            offset=start,
        )
    present = reader.read_bytes(KEY_BITS // 8, "bits of a path")
    bits = int.from_bytes(present, "big") >> (-depth % 8)
    if len(present) != -(-depth // 8) or bits << (-depth % 8) != int.from_bytes(present, "big"):
        raise TlDecodeError(f"the bits of the path at offset {start} are not {depth}", offset=start)
    there = _read_many(reader, depth, 32, Reader.read_int256)
    if len(there) != bits.bit_count() or EMPTY_HASH in there:
        raise TlDecodeError(
            f"the path at offset {start} announces {bits.bit_count()} siblings and has {len(there)}, or an empty one",
            found=len(there),
            offset=start,
        )
    siblings = iter(there)
    return ProofPath(
        tuple(next(siblings) if bits >> (depth - 1 - level) & 1 else EMPTY_HASH for level in range(depth))
    )


def _read_absence(reader: Reader) -> AbsenceProof:
    path = _read_path(reader)
    other = _read_optional(reader, _LEAF_BYTES, lambda one: (one.read_int256(), one.read_int256()))
    return AbsenceProof(path, other)


def _read_account(reader: Reader) -> AccountProof:
    return AccountProof(_read_path(reader), reader.read_long(), reader.read_bytes(MEMORY_BYTES_MAX, "memory"))


def _read_end(reader: Reader) -> End:
    identifier = reader.read_constructor(EXECUTED_ID, EXECUTED_AS_ID, NEVER_ID, NEVER_THERE_ID)
    if identifier == EXECUTED_ID:
        return ExecutedEnd(
            reader.read_int256(),
            reader.read_int256(),
            _read_account(reader),
            _read_path(reader),
            reader.read_unsigned_int(),
            reader.read_long(),
        )
    message = reader.read_bytes(MESSAGE_BYTES_MAX, "message")
    if identifier == EXECUTED_AS_ID:
        return ExecutedAsEnd(
            message,
            _read_account(reader),
            _read_path(reader),
            reader.read_int256(),
            reader.read_unsigned_int(),
            reader.read_long(),
        )
    if identifier == NEVER_ID:
        return NeverEnd(message, _read_account(reader), _read_absence(reader), _read_absence(reader))
    return NeverEnd(message, _read_absence(reader))


def _read_shard(reader: Reader) -> ShardProof:
    return ShardProof(
        _read_path(reader),
        reader.read_int256(),
        reader.read_int256(),
        Shard(reader.read_int(), reader.read_unsigned_long()),
        reader.read_unsigned_int(),
        tuple(_read_many(reader, PREVIOUS_MAX, BLOCK_ID_BYTES, read_block_id)),
        read_block_id(reader),
        reader.read_long(),
        reader.read_unsigned_int(),
        reader.read_int256(),
        reader.read_long(),
    )


def _read_seal(reader: Reader) -> Seal:
    return Seal(
        reader.read_unsigned_int(),
        read_slot(reader),
        reader.read_int256(),
        tuple(_read_many(reader, STEPS_MAX, _STEP_BYTES, lambda one: (read_slot(one), one.read_int256()))),
        _read_signatures(reader),
    )


def _read_signatures(reader: Reader) -> tuple[tuple[int, bytes], ...]:
    start = reader.offset
    signatures = _read_many(
        reader, VALIDATORS_MAX, SIGNATURE_BYTES_MIN, lambda one: (read_validator(one), one.read_int512())
    )
    signers = [validator for validator, _ in signatures]
    if signers != sorted(set(signers)):
        raise TlDecodeError(
            f"the signers of the seal at offset {start} do not rise, or one of them stands there twice",
            offset=start,
        )
    return tuple(signatures)


def _read_key_block(reader: Reader) -> KeyBlockProof:
    return KeyBlockProof(reader.read_bytes(BLOCK_BYTES_MAX, "key block"), _read_seal(reader))


def _read_master(reader: Reader) -> MasterProof:
    return MasterProof(
        reader.read_unsigned_int(),
        read_block_id(reader),
        reader.read_long(),
        reader.read_int256(),
        reader.read_int256(),
        reader.read_int256(),
        reader.read_int256(),
        reader.read_int256(),
        reader.read_int256(),
        _read_seal(reader),
    )


# The file


def cut(proof: MessageProof, seqnos: Sequence[int], begins_at: int) -> MessageProof:
    """Return the proof without the key blocks up to number `begins_at`, for verifiers that have that checkpoint.
    `seqnos` are the numbers of the key blocks of the way.
    """
    way = tuple(block for block, seqno in zip(proof.way, seqnos, strict=True) if seqno > begins_at)
    return msgspec.structs.replace(proof, begins_at=begins_at, way=way)
