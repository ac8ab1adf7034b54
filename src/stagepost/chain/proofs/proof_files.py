"""Files of proofs and checkpoints: JSON in one spelling, so that a file has no second form."""

from __future__ import annotations

import json

import msgspec

from stagepost.chain.configuration import Configuration
from stagepost.chain.proofs.proof_form import PROOF_VERSION, EndKind, MessageProof, decode_proof
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import INT256_BYTES

FILE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of a proof file, at most: a proof over a few dozen full key blocks."""

CHECKPOINT_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of a checkpoint file, at most: a configuration with its validators, as hexadecimal digits."""

SEQNO_MAX = (1 << 32) - 1
"""Number of a block, at most."""

TIME_MS_MAX = (1 << 63) - 1
"""Milliseconds of a block's time, at most: as many as a block has room for."""


def write_file(proof: MessageProof, message_id: bytes) -> bytes:
    """Return the content of a proof file: one JSON object without blanks."""
    fields = f'"kind":"{proof.kind}","id":"{message_id.hex()}","proof":"{proof.encode().hex()}"'
    return f'{{"stagepost_proof":{PROOF_VERSION},{fields}}}'.encode()


def read_file(content: bytes) -> tuple[MessageProof, EndKind, bytes]:
    """Return the proof in a file, with the kind and the id that the file names; `DecodeError` for any other spelling."""
    if len(content) > FILE_BYTES_MAX:
        raise DecodeError(
            f"the proof file has {len(content)} bytes; at most {FILE_BYTES_MAX} are accepted",
            limit=FILE_BYTES_MAX,
            found=len(content),
        )
    try:
        found = json.loads(content)
        kind, identifier, data = (
            EndKind(found["kind"]),
            bytes.fromhex(found["id"]),
            bytes.fromhex(found["proof"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DecodeError("the file is not a valid proof: it is not the JSON object of one") from error
    spelled = f'"kind":"{kind}","id":"{identifier.hex()}","proof":"{data.hex()}"'
    if content != f'{{"stagepost_proof":{PROOF_VERSION},{spelled}}}'.encode() or len(identifier) != 32:
        raise DecodeError(
            "the file is not a valid proof: its JSON is spelled otherwise, or is of another version",
            advice="take the file as it was written, byte for byte",
        )
    return decode_proof(data), kind, identifier


class Checkpoint(msgspec.Struct, frozen=True):
    """A key block from which verifiers trust. Number 0 is the genesis; `root_hash` is zero there.
    `configuration`: in force after the block.
    """

    network: bytes
    seqno: int
    root_hash: bytes
    time_ms: int
    configuration: bytes


def write_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint file: one JSON object without blanks."""
    fields = {
        "stagepost_checkpoint": PROOF_VERSION,
        "network": checkpoint.network.hex(),
        "seqno": checkpoint.seqno,
        "root_hash": checkpoint.root_hash.hex(),
        "time_ms": checkpoint.time_ms,
        "configuration": checkpoint.configuration.hex(),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def read_checkpoint(content: bytes) -> Checkpoint:
    """Return the checkpoint in a file; `DecodeError` for any other spelling."""
    try:
        found = json.loads(content)
        checkpoint = Checkpoint(
            bytes.fromhex(found["network"]),
            int(found["seqno"]),
            bytes.fromhex(found["root_hash"]),
            int(found["time_ms"]),
            bytes.fromhex(found["configuration"]),
        )
        Configuration.decode(checkpoint.configuration)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise DecodeError("the file is not a valid checkpoint: it is not the JSON object of one") from error
    if content != write_checkpoint(checkpoint) or len(checkpoint.root_hash) != INT256_BYTES:
        raise DecodeError("the file is not a valid checkpoint: its JSON is spelled otherwise")
    numbers = ("block number", checkpoint.seqno, SEQNO_MAX), ("time", checkpoint.time_ms, TIME_MS_MAX)
    for what, number, most in numbers:
        if not 0 <= number <= most:
            raise DecodeError(
                f"the file is not a valid checkpoint: it has a {what} outside of 0 to {most}", limit=most
            )
    return checkpoint
