"""Checks of proofs: the certificate of a master block once in the driver, and then the paths of all messages that rest on it,
in Spark's workers where they are many.

The parts of a proof are records under different keys, so they may come in any order and in different batches. A proof whose
shared parts have not all come waits; nothing that is not checked counts anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from stagepost.chain.genesis import Genesis
from stagepost.chain.proofs.proof_files import Checkpoint, read_checkpoint, write_checkpoint
from stagepost.chain.proofs.proof_form import KeyBlockPart, MasterPart, MessageProof, OwnPart, decode_part
from stagepost.chain.proofs.proof_rules import CheckedMaster, ProofRefused, ProofVerifier, check_end
from stagepost.errors import DecodeError, StorageError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.pipeline.schemas import PROOFS, arrow_schema, batch_of, with_day
from stagepost.pipeline.tables.manifest import TRUST_FOLDER, keep_copy, kept_copy
from stagepost.pipeline.tables.store import TableStore

log = logging.getLogger(__name__)

MASTERS_REMEMBERED_MAX = 4_096
"""Master blocks, at most, whose checked certificates a driver remembers; a forgotten one is checked again."""

KEY_BLOCKS_AT_ONCE_MAX = 4_096
"""Key blocks, at most, that are walked back for one master block before the way is given up."""

OWN_PARTS = pa.schema(
    [(name, pa.string()) for name in ("message_id", "master", "signed_hash", "day")]
    + [("value", pa.binary())]
)
"""Columns of messages' own parts, as they are handed to the check."""

Find: TypeAlias = Callable[[list[str]], Mapping[str, list[bytes]]]
"""Function that returns the values of the topic's records under some keys."""
Masters: TypeAlias = Mapping[str, CheckedMaster]
"""Master blocks that are final, by root hash."""


class TrustedMasters(NamedTuple):
    """Master blocks that are final, and the root hashes of those of which no shared part has come that holds."""

    masters: dict[str, CheckedMaster]
    awaited: set[str]


class ProofBook:
    """The master blocks that one network's certificates show to be final. Every certificate is checked once."""

    def __init__(self, store: TableStore, genesis: Genesis) -> None:
        self._store, self._genesis = store, genesis
        self._masters: dict[str, CheckedMaster] = {}
        self._checkpoints: dict[bytes, Checkpoint | None] = {ZERO_INT256: None}
        self.signature_checks = 0

    def look_at(self, root_hashes: Iterable[str], find: Find) -> TrustedMasters:
        """Check the master blocks that are not known yet."""
        wanted = sorted(set(root_hashes))
        values = find([one for one in wanted if one not in self._masters])
        found, awaited = dict[str, CheckedMaster](), set[str]()
        for root_hash in wanted:
            master = self._masters.get(root_hash) or self._checked(root_hash, values.get(root_hash, ()), find)
            if master is None:
                awaited.add(root_hash)
            else:
                found[root_hash] = master
        while len(self._masters) > MASTERS_REMEMBERED_MAX:
            del self._masters[next(iter(self._masters))]
        return TrustedMasters(found, awaited)

    def _checked(self, root_hash: str, values: Iterable[bytes], find: Find) -> CheckedMaster | None:
        """Return the block, checked by the first shared part that holds; None while there is none."""
        for part in _shared(values):
            try:
                master = self._verified(part, find)
            except ProofRefused as refused:
                log.warning("a block is refused", extra={"master_block": root_hash, "reason": refused.text})
                continue
            if master is not None and master.block_id.root_hash.hex() == root_hash:
                self._masters[root_hash] = master
                return master
        return None

    def _verified(self, part: KeyBlockPart | MasterPart, find: Find) -> CheckedMaster | None:
        """Return the block of a shared part; None if a key block before it has not come."""
        if not self._is_known(part.key, find):
            return None
        checkpoint = self._checkpoints[part.key]
        verifier = ProofVerifier(self._genesis, checkpoint)
        begins_at = 0 if checkpoint is None else checkpoint.seqno
        way = (part.block,) if isinstance(part, KeyBlockPart) else ()
        try:
            return verifier.final_master(
                begins_at, way, part.master if isinstance(part, MasterPart) else None
            )
        finally:
            self.signature_checks += verifier.signature_checks

    def _is_known(self, key: bytes, find: Find) -> bool:
        """Return whether the key block is checked, after checking the key blocks before it that have come."""
        way: list[tuple[bytes, list[KeyBlockPart]]] = []
        while key not in self._checkpoints and not self._is_kept(key):
            parts = [
                one for one in _shared(find([key.hex()]).get(key.hex(), ())) if isinstance(one, KeyBlockPart)
            ]
            if not parts or len(way) >= KEY_BLOCKS_AT_ONCE_MAX:
                return False
            way.append((key, parts))
            key = parts[0].key
        return all(any(self._entered(one, part, find) for part in parts) for one, parts in reversed(way))

    def _entered(self, key: bytes, part: KeyBlockPart, find: Find) -> bool:
        if part.key not in self._checkpoints:
            return False
        try:
            found = self._verified(part, find)
        except ProofRefused:
            return False
        if found is None or found.block_id.root_hash != key:
            return False
        keep_copy(self._store, TRUST_FOLDER, f"{key.hex()}.json", write_checkpoint(found.newest))
        self._checkpoints[key] = found.newest
        return True

    def _is_kept(self, key: bytes) -> bool:
        """Return whether an earlier driver has checked the key block: its record may have been dropped with its day."""
        try:
            content = kept_copy(self._store, TRUST_FOLDER, f"{key.hex()}.json", "")
        except StorageError:
            return False
        self._checkpoints[key] = read_checkpoint(content)
        return True


def _shared(values: Iterable[bytes]) -> Iterator[KeyBlockPart | MasterPart]:
    for value in values:
        try:
            part = decode_part(value)
        except DecodeError:
            continue  # another program has written it
        if isinstance(part, KeyBlockPart | MasterPart):
            yield part


def checking_ends(masters: Masters) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that checks messages' own parts, with the columns of `OWN_PARTS`, and yields rows of `proofs`."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(with_day(PROOFS))
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in OWN_PARTS.names)
            yield batch_of([_end(masters, *row) for row in zip(*columns, strict=True)], schema)

    return check


def _end(
    masters: Masters, message_id: str, master: str, signed_hash: str, day: str, value: bytes
) -> tuple[Any, ...]:
    part = decode_part(value)
    if not isinstance(part, OwnPart):
        raise DecodeError("the record is not a message's own part of a proof")
    proof, found = MessageProof(0, (), None, part.shard, part.end), masters[master]
    refusal = OTHER_MESSAGE
    try:
        end = check_end(proof, found)
        if end.message_id.hex() == message_id:
            by = None if end.executed_as is None else end.executed_as.hex()
            shown = (proof.kind.value, found.block_id.seqno, by, None, end.time_ms, master)
            return (message_id, *shown, found.signers, found.validators, signed_hash, day)
    except ProofRefused as refused:
        refusal = refused.refusal.name
    return (message_id, proof.kind.value, None, None, refusal, None, master, None, None, signed_hash, day)


OTHER_MESSAGE = "OTHER_MESSAGE"
"""Refusal of a proof that stands under another id than that of its message."""
