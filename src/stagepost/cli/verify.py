"""`stagepost verify`: checks receipts, or a whole dump of them, offline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import path_option

if TYPE_CHECKING:
    from stagepost.remp.receipts.receipt import Quarantined
    from stagepost.remp.receipts.status_records import StatusRecord

LISTED_MAX = 20
"""Refused ones that are shown one by one to people; `--json` has all."""


@click.command()
@click.argument("source", metavar="FILE|-", type=click.Path(allow_dash=True, readable=False))
@path_option(
    "--validator-sets",
    "sets_path",
    help="For receipts: validator-sets file, which lists the keys that may sign.",
)
@path_option(
    "--genesis",
    "genesis_path",
    help="For a proof: the genesis of the network: the network file, or genesis.tl of a full node.",
)
@path_option(
    "--checkpoint",
    "checkpoint_path",
    help="For a proof: file with the newest key block that was checked; updated when the proof has a newer one.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per refused record, then the counts.")
@click.pass_context
def verify(
    context: click.Context,
    source: str,
    sets_path: Path | None,
    genesis_path: Path | None,
    checkpoint_path: Path | None,
    as_json: bool,
) -> int:
    """Check the proof of a message's end, or every receipt of a file, offline.

    A proof is checked from the genesis, or from a checkpoint: key blocks, certificate, block, state, place of the message.
    Receipts are checked for form, kind, signer, role, time and signature; they are claims, and prove no end.
    Ends with 1 if something is refused.

    \b
    Example:
      stagepost verify proof.json --genesis network.json --checkpoint newest.json
      stagepost verify statuses.jsonl --validator-sets sets.json
    """
    if (sets_path is None) is (genesis_path is None):
        raise click.UsageError(
            "give either --genesis, for a proof, or --validator-sets, for receipts", context
        )
    if genesis_path is not None:
        return _verify_proof(source, genesis_path, checkpoint_path, as_json=as_json)
    if checkpoint_path is not None or sets_path is None:
        raise click.UsageError("--checkpoint belongs to --genesis", context)
    return _verify_receipts(source, sets_path, as_json=as_json)


def _verify_proof(source: str, genesis_path: Path, checkpoint_path: Path | None, *, as_json: bool) -> int:
    import sys
    import time

    from stagepost.chain.proofs.proof_files import (
        CHECKPOINT_BYTES_MAX,
        FILE_BYTES_MAX,
        read_checkpoint,
        write_checkpoint,
    )
    from stagepost.chain.proofs.proof_rules import ProofRefused, ProofVerifier
    from stagepost.errors import ConfigError, DecodeError
    from stagepost.ground.files.small_files import read_small_file, replace_file
    from stagepost.trace.kept_proofs import load_genesis

    genesis = load_genesis(genesis_path)
    checkpoint = None
    if checkpoint_path is not None and checkpoint_path.exists():
        content, _ = read_small_file(checkpoint_path, CHECKPOINT_BYTES_MAX, "a checkpoint")
        try:
            checkpoint = read_checkpoint(content)
        except DecodeError as error:
            raise ConfigError(
                f"{checkpoint_path}: {error.text}", advice="give the file as `stagepost verify` wrote it"
            ) from error
    if source == "-":
        proof = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    else:
        proof, _ = read_small_file(Path(source), FILE_BYTES_MAX, "a proof")
    try:
        verifier = ProofVerifier(genesis, checkpoint)
        checked = verifier.check_file(proof)
    except ProofRefused as refused:
        if as_json:
            click.echo(json.dumps({"is_valid": False, "refusal": refused.reason, "detail": refused.text}))
        else:
            click.echo(f"refused   {refused.reason}\n          {refused.text}")
        return NOT_THAT_OUTCOME
    master = checked.master
    found = {
        "is_valid": True,
        "kind": checked.kind.value,
        "id": checked.message_id.hex(),
        "account": checked.account.hex(),
        "executed_as": None if checked.executed_as is None else checked.executed_as.hex(),
        "time_ms": checked.time_ms,
        "block": master.block_id.seqno,
        "signers": master.signers,
        "validators": master.validators,
        "trusted_from": checked.trusted_from,
        "key_blocks": master.key_blocks,
        "is_checkpoint_old": verifier.is_checkpoint_old(int(time.time() * 1_000)),
    }
    if checkpoint_path is not None and verifier.checkpoint not in (None, checkpoint):
        assert verifier.checkpoint is not None, "compared above"
        replace_file(checkpoint_path, write_checkpoint(verifier.checkpoint), CHECKPOINT_MODE)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show_proof(found)
    return 0


CHECKPOINT_MODE = 0o644


def _show_proof(found: dict[str, Any]) -> None:
    ends = {
        "executed": "was executed",
        "never": "was never executed, and never will be",
        "executed_as": f"was executed as message {found['executed_as']}",
    }
    begin = f"key block {found['trusted_from']}" if found["trusted_from"] else "the genesis"
    click.echo(f"proved    message {found['id']}\n          {ends[found['kind']]}")
    click.echo(
        f"          master block {found['block']}, signed by {found['signers']} of {found['validators']} validators\n"
        f"          trusted from {begin} over {found['key_blocks']} key blocks"
    )
    if found["is_checkpoint_old"]:
        click.echo(
            "warning   the newest key block is older than the network's trust period: keys of sets that left may be sold\n"
            "          ask people that you trust for a newer checkpoint",
            err=True,
        )


def _verify_receipts(source: str, sets_path: Path, *, as_json: bool) -> int:
    from hashlib import sha256

    from stagepost.remp.receipts.receipt import Quarantined
    from stagepost.remp.receipts.status_records import check_record
    from stagepost.trace.reading import dump_records
    from stagepost.trace.session_records import load_sets

    sets = load_sets(sets_path)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    # Digests: the bytes themselves of millions of receipts would be ten times as much.
    seen: set[bytes] = set()
    messages: set[bytes] = set()
    for record in dump_records(source):
        counts["records"] += 1
        outcome = check_record(record, sets)
        if isinstance(outcome, Quarantined):
            counts["refused"] += 1
            reasons[str(outcome.reason)] += 1
            _show_refused(record, outcome, as_json=as_json, number=counts["refused"])
            continue
        digest = sha256(outcome.receipt.signed_bytes).digest()[:16]
        counts["repeated" if digest in seen else "valid"] += 1
        seen.add(digest)
        messages.add(outcome.receipt.message_id)
    _show_counts(counts, reasons, len(messages), as_json=as_json)
    return NOT_THAT_OUTCOME if counts["refused"] or not counts["records"] else 0


def _show_refused(record: StatusRecord, refused: Quarantined, *, as_json: bool, number: int) -> None:
    if as_json:
        found: dict[str, Any] = {
            "position": record.position,
            "reason": str(refused.reason),
            "detail": refused.text,
            "key": record.key,
        }
        click.echo(json.dumps(found, ensure_ascii=False))
    elif number <= LISTED_MAX:
        text = "".join(character if character.isprintable() else "·" for character in refused.text)
        click.echo(f"refused   {record.position:<12} {refused.reason:<18} {text}")


def _show_counts(counts: Counter[str], reasons: Counter[str], messages: int, *, as_json: bool) -> None:
    if as_json:
        found = {name: counts[name] for name in ("records", "valid", "repeated", "refused")}
        click.echo(json.dumps({**found, "messages": messages, "reasons": dict(sorted(reasons.items()))}))
        return
    if counts["refused"] > LISTED_MAX:
        click.echo(f"          … and {counts['refused'] - LISTED_MAX} more (--json shows all)")
    for reason, count in sorted(reasons.items()):
        click.echo(f"          {count} × {reason}")
    if not counts["records"]:
        click.echo("nothing to check: the file holds no record of statuses")
        return
    click.echo(
        f"{counts['records']} records of {messages} messages · {counts['valid']} valid · "
        f"{counts['repeated']} repeated · {counts['refused']} refused"
    )
    click.echo("receipts are claims: they prove no end; `stagepost prove` writes a proof")
