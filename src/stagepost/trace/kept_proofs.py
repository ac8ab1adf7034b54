"""Reading of proofs from the topic of proofs in a data folder: the parts of one message's proof, put together and checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from stagepost.chain.genesis import Genesis
from stagepost.chain.proofs.proof_files import write_file
from stagepost.chain.proofs.proof_form import (
    AwaitedPart,
    KeyBlockPart,
    MasterPart,
    MessageProof,
    OwnPart,
    ProofPart,
    decode_part,
)
from stagepost.chain.proofs.proof_making import assembled
from stagepost.chain.proofs.proof_rules import CheckedEnd, ProofRefused, ProofVerifier
from stagepost.errors import DecodeError, LocalProtocolError, StorageError
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.identifiers import PROOFS_TOPIC
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.topics.batch import Batch, Read
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, open_topic
from stagepost.topics.topic import partition_of

log = logging.getLogger(__name__)

GENESIS_FILE = "genesis.tl"
"""Name of the file, in a full node's data folder, with the genesis of its network."""

GENESIS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes, at most, of a file that holds a genesis."""

SHARED_KEPT_MAX = 1_024
"""Master blocks, at most, whose shared part a tail of proofs remembers; a forgotten one is read from the topic again."""


READ_AT_ONCE = 2_048
"""Records, at most, that a reading from the end of the topic holds at a time."""


class IncompleteProof(StorageError):
    """A kept proof that rests on a part which is not kept."""

    def __init__(self, message_id: bytes, missing: str) -> None:
        super().__init__(
            f"the proof of message {message_id.hex()} lacks a part: {missing}",
            advice="ask another full node for the proof",
        )


class _NetworkFile(msgspec.Struct):
    genesis: str


def load_genesis(path: Path) -> Genesis:
    """Read a genesis: its bytes, or a network file that holds it. `StorageError` if the file is neither."""
    content, _ = read_small_file(path, GENESIS_BYTES_MAX, "a genesis")
    try:
        if content.startswith(b"{"):
            content = bytes.fromhex(decode_foreign(content, _NetworkFile).genesis)
        return Genesis.decode(content)
    except (DecodeError, ValueError, msgspec.MsgspecError) as error:
        raise StorageError(
            f"{path} is not a valid genesis: {error}",
            advice="give the network file, or genesis.tl of a full node's data folder",
        ) from error


def keeps_proofs(data: Path) -> bool:
    """Return whether a full node keeps proofs in the data folder: then a message without one may still get one."""
    return (data / TOPICS_FOLDER / PROOFS_TOPIC / TOPIC_FILE).exists()


def kept_proof(data: Path, message_id: bytes) -> MessageProof | None:
    """Return the proof of a message's end that the full node of the data folder keeps; None if it has none yet."""
    if not keeps_proofs(data):
        return None
    from_end = _FromEnd(data)
    own = from_end.find(message_id, lambda part: isinstance(part, OwnPart))
    if not isinstance(own, OwnPart):
        return None

    def shared(root_hash: bytes) -> SharedPart | None:
        part = from_end.find(root_hash, lambda part: isinstance(part, SharedPart))
        return part if isinstance(part, SharedPart) else _shared(data, root_hash)

    return _whole(own, message_id, shared)


def kept_proof_file(data: Path, message_id: bytes) -> bytes | None:
    """Return the proof as a file holds it; None if there is none yet."""
    proof = kept_proof(data, message_id)
    return None if proof is None else write_file(proof, message_id)


def proved_end(data: Path, message_id: bytes) -> ProvedEnd | None:
    """Return the end that the kept proof shows; None if there is none, or none that holds."""
    if not (data / GENESIS_FILE).exists():
        return None
    try:
        proof = kept_proof(data, message_id)
    except IncompleteProof:
        return None
    return (
        None
        if proof is None
        else _checked(ProofVerifier(load_genesis(data / GENESIS_FILE)), proof, message_id)
    )


def _checked(verifier: ProofVerifier, proof: MessageProof, message_id: bytes) -> ProvedEnd | None:
    try:
        checked = verifier.check(proof)
    except ProofRefused as refused:
        log.warning("a kept proof is refused", extra={"message_id": message_id.hex(), "reason": refused.text})
        return None
    return end_of(checked) if checked.message_id == message_id else None


def end_of(checked: CheckedEnd) -> ProvedEnd:
    master = checked.master
    executed_as = None if checked.executed_as is None else checked.executed_as.hex()
    return ProvedEnd(
        checked.kind.value, master.block_id.seqno, master.signers, master.validators, executed_as
    )


SharedPart = KeyBlockPart | MasterPart


def _whole(own: OwnPart, message_id: bytes, shared: Callable[[bytes], SharedPart | None]) -> MessageProof:
    """Return the proof, put together from its parts; `IncompleteProof` if one of them is not kept."""

    def key_block(root_hash: bytes) -> KeyBlockPart | None:
        found = shared(root_hash)
        return found if isinstance(found, KeyBlockPart) else None

    found = shared(own.master)
    if found is None:
        raise IncompleteProof(message_id, f"master block {own.master.hex()}")
    try:
        return assembled(own, found, key_block)
    except LocalProtocolError as error:
        raise IncompleteProof(message_id, error.text) from error


class ProofTail:
    """Follower of the topic of proofs in a data folder. Each certificate is checked once, whatever rests on it."""

    def __init__(self, data: Path, records_at_start: int) -> None:
        self._data = data
        self._records_at_start = records_at_start
        self._verifier: ProofVerifier | None = None
        self._next: dict[int, int] = {}
        self._shared: dict[bytes, SharedPart] = {}

    def step(self) -> list[tuple[bytes, ProvedEnd]]:
        """Return the ends that further proofs on the topic show, each checked from the genesis on."""
        if not keeps_proofs(self._data):
            return []
        if self._verifier is None:
            if not (self._data / GENESIS_FILE).exists():
                return []
            self._verifier = ProofVerifier(load_genesis(self._data / GENESIS_FILE))
        verifier = self._verifier
        found: list[tuple[bytes, ProvedEnd]] = []
        for message_id, own in self._own_parts():
            try:
                proof = _whole(own, message_id, self._shared_part)
            except IncompleteProof as error:
                log.warning("a kept proof cannot be read", extra={"reason": error.text})
                continue
            end = _checked(verifier, proof, message_id)
            if end is not None:
                found.append((message_id, end))
        return found

    def _own_parts(self) -> Iterator[tuple[bytes, OwnPart]]:
        """Yield the proofs that were written since the last call, and remember the shared parts among them."""
        reader = open_topic(self._data, PROOFS_TOPIC).reader()
        for partition in range(reader.partitions):
            start, end = reader.start_offset(partition), reader.end_offset(partition)
            begin = max(start, self._next.get(partition, end - self._records_at_start // reader.partitions))
            if end <= begin:
                continue
            for batch in reader.batches(partition, begin):
                self._next[partition] = batch.next_offset
                for one in batch:
                    try:
                        key, part = (
                            bytes.fromhex((one.key or b"").decode("ascii")),
                            decode_part(one.value or b""),
                        )
                    except (DecodeError, ValueError):
                        continue  # another program has written it
                    if isinstance(part, OwnPart):
                        yield key, part
                    elif not isinstance(part, AwaitedPart):
                        self._shared[key] = part
            while len(self._shared) > SHARED_KEPT_MAX:
                del self._shared[next(iter(self._shared))]

    def _shared_part(self, root_hash: bytes) -> SharedPart | None:
        return self._shared.get(root_hash) or _shared(self._data, root_hash)


class _FromEnd:
    """A reading of the topic of proofs from its end to its beginning. A part is written before those that rest on it, so that one
    reading finds all parts of a proof.
    """

    def __init__(self, data: Path) -> None:
        self._reader = open_topic(data, PROOFS_TOPIC).reader()
        self._left: dict[int, Iterator[Batch]] = {}

    def find(self, key: bytes, is_wanted: Callable[[ProofPart], bool]) -> ProofPart | None:
        """Return the last wanted part under a key before the part that was found last; None if there is none."""
        name = key.hex().encode()
        partition = partition_of(name, self._reader.partitions)
        batches = self._left.get(partition) or self._batches(partition)
        for batch in batches:
            for one in reversed([*batch]) if name in batch.keys else ():
                part = _part_of(one) if one.key == name else None
                if part is not None and is_wanted(part):
                    self._left[partition] = chain((batch.within(batch.base_offset, one.offset),), batches)
                    return part
        return None

    def _batches(self, partition: int) -> Iterator[Batch]:
        reader = self._reader
        start, end = reader.start_offset(partition), reader.end_offset(partition)
        while start < end:
            begin = max(start, end - READ_AT_ONCE)
            yield from reversed([*reader.batches(partition, begin, end)])
            end = begin


def _part_of(record: Read) -> ProofPart | None:
    try:
        return None if record.value is None else decode_part(record.value)
    except DecodeError:
        return None  # another program has written it


def _shared(data: Path, root_hash: bytes) -> SharedPart | None:
    found = (part for part in _parts(data, root_hash) if isinstance(part, KeyBlockPart | MasterPart))
    return next(found, None)


def _parts(data: Path, key: bytes) -> Iterator[ProofPart]:
    """Yield the parts under a key, from the one partition that the key belongs to."""
    name = key.hex().encode()
    reader = open_topic(data, PROOFS_TOPIC).reader()
    partition = partition_of(name, reader.partitions)
    for batch in reader.batches(partition, reader.start_offset(partition)):
        if name in batch.keys:
            found = (_part_of(one) for one in batch if one.key == name)
            yield from (part for part in found if part is not None)
