"""`stagepost verify`: checks receipts, or a whole dump of them, offline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME

if TYPE_CHECKING:
    from stagepost.remp.receipts.receipt import Quarantined
    from stagepost.remp.receipts.status_records import StatusRecord

LISTED_MAX = 20
"""Refused ones that are shown one by one to people; `--json` has all."""


@click.command()
@click.argument("source", metavar="FILE|-", type=click.Path(allow_dash=True, readable=False))
@click.option(
    "--validator-sets",
    "sets_path",
    required=True,
    type=click.Path(path_type=Path),
    help="Who may sign: the validator-sets file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per refused record, then the counts.")
def verify(source: str, sets_path: Path, as_json: bool) -> int:
    """Check every receipt of a file: form, kind, signer, role, time and signature. Ends with 1 if one is refused.

    \b
    Example:
      stagepost verify statuses.jsonl --validator-sets sets.json
    """
    from hashlib import sha256

    from stagepost.remp.receipts.receipt import Quarantined
    from stagepost.remp.receipts.status_records import check_record
    from stagepost.remp.validator_sets import ValidatorSets
    from stagepost.trace.reading import dump_records

    sets = ValidatorSets.load(sets_path)
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
