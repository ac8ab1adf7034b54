"""`stagepost trace`: every receipt of one message, as lanes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stagepost.remp.status_records import StatusRecord
    from stagepost.remp.trace import Point, Trace

PREFIX_DIGITS_MIN = 8
RECORDS_MAX = 100_000
"""Of one message: far more than all its validators have to say in its life."""
NOT_THAT_OUTCOME = 1

_PREFIX = re.compile(rf"[0-9a-fA-F]{{{PREFIX_DIGITS_MIN},64}}")


def _prefix(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if _PREFIX.fullmatch(value) is None:
        raise click.BadParameter(
            f"{value!r} is no message id; give at least {PREFIX_DIGITS_MIN} of its hexadecimal digits",
            context,
            parameter,
        )
    return value.lower()


@click.command()
@click.argument("prefix", metavar="ID", callback=_prefix)
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="Data folder of a full node or devnet."
)
@click.option("--dump", metavar="FILE|-", help="Dump of topics, or a file of receipts. [from --data]")
@click.option(
    "--validator-sets",
    "sets_path",
    type=click.Path(path_type=Path),
    help="Who may sign: the validator-sets file. [from --data]",
)
@click.option("--as-of", "as_of_ms", type=click.IntRange(min=0), help="Unix milliseconds; default: now.")
@click.option(
    "--svg", "drawing_path", type=click.Path(path_type=Path), help="Draw the lanes into this file instead."
)
@click.option(
    "--only-trouble", is_flag=True, help="Only lanes in which something went wrong, or nothing came."
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object: the row of `messages`, and all receipts."
)
@click.pass_context
def trace(
    context: click.Context,
    prefix: str,
    data: Path | None,
    dump: str | None,
    sets_path: Path | None,
    as_of_ms: int | None,
    drawing_path: Path | None,
    only_trouble: bool,
    as_json: bool,
) -> int:
    """Every receipt of one message. ID may be the beginning of an id, eight digits or more.

    \b
    Example:
      stagepost trace 16923245 --data stagepost-data
      stagepost trace 16923245 --dump statuses.jsonl --validator-sets sets.json
    """
    from stagepost.cli.status_source import dump_records, topic_records
    from stagepost.cli.trace_lanes import trace_lines
    from stagepost.remp.trace import trace_of
    from stagepost.remp.validator_sets import ValidatorSets

    if data is None and (dump is None or sets_path is None):
        raise click.UsageError("give --data, or both --dump and --validator-sets", context)
    if data is not None:
        from stagepost.node.known_sets import SETS_FILE

        sets_path = sets_path or data / SETS_FILE
    assert sets_path is not None, "one of the two was given"
    sets = ValidatorSets.load(sets_path)
    if dump is not None:
        found, source = _matching(dump_records(dump), prefix), dump
    else:
        assert data is not None, "one of the two was given"
        found, source = _matching(topic_records(data), prefix), str(data)
    if len(found) != 1:
        return _not_one(found, prefix, source)
    ((message_id, records),) = found.items()
    now_ms = int(time.time() * 1_000) if as_of_ms is None else as_of_ms
    result = trace_of(bytes.fromhex(message_id), records, sets, now_ms)
    if drawing_path is not None:
        _draw(result, drawing_path)
    elif as_json:
        click.echo(json.dumps(_as_object(result), ensure_ascii=False))
    else:
        for line in trace_lines(result, only_trouble=only_trouble):
            click.echo(line, color=context.color)
    return 0


def _draw(result: Trace, path: Path) -> None:
    from stagepost.errors import StorageError
    from stagepost.web.trace_drawing import draw_trace

    try:
        path.write_text(draw_trace(result), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}", advice="give another file with --svg"
        ) from error


def _matching(records: Iterable[StatusRecord], prefix: str) -> dict[str, list[StatusRecord]]:
    """The records of all messages whose ids begin so, by id."""
    from stagepost.errors import StorageError
    from stagepost.remp.receipt import Quarantined
    from stagepost.remp.status_records import read_record

    found: dict[str, list[StatusRecord]] = {}
    wanted = prefix.encode()
    count = 0
    for record in records:
        key = (record.key or "").lower()
        if not key.startswith(prefix) and (record.value is None or wanted not in record.value.lower()):
            continue
        receipt = read_record(record)
        message_id = key if isinstance(receipt, Quarantined) else receipt.message_id.hex()
        if not message_id.startswith(prefix) or len(message_id) != 64:
            continue
        count += 1
        if count > RECORDS_MAX:
            raise StorageError(
                f"more than {RECORDS_MAX} records begin with {prefix}",
                advice="give more digits of the id",
                limit=RECORDS_MAX,
            )
        found.setdefault(message_id, []).append(record)
    return found


def _not_one(found: dict[str, list[StatusRecord]], prefix: str, source: str) -> int:
    if not found:
        click.echo(f"no receipt in {source} is of a message that begins with {prefix}", err=True)
        return NOT_THAT_OUTCOME
    click.echo(f"{len(found)} messages begin with {prefix}:", err=True)
    for message_id in sorted(found):
        click.echo(f"  {message_id}  {len(found[message_id])} records", err=True)
    return NOT_THAT_OUTCOME


def _as_object(result: Trace) -> dict[str, Any]:
    import msgspec

    row = {} if result.verdict is None else msgspec.to_builtins(result.verdict)
    bad = sum(point.refused is not None for point in result.points) + len(result.unreadable)
    return {
        "message_id": result.message_id.hex(),
        **row,
        "delivery_id": result.delivery_id,
        "dmq_id": result.dmq_id,
        "receipts_bad": bad,
        "as_of_ms": result.as_of_ms,
        "all_receipts": [
            {"lane": lane.name, **_receipt_object(point)} for lane in result.lanes for point in lane.points
        ],
    }


def _receipt_object(point: Point) -> dict[str, Any]:
    refused = point.refused
    return {
        **json.loads(point.receipt.to_json()),
        "counts": refused is None,
        "refused": None if refused is None else str(refused.reason),
        "signed_bytes": point.receipt.signed_bytes.hex(),
        "position": point.position,
    }
