"""`stagepost listen` at a full node: receipts as they reach its topic, beside the node that writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click

from stagepost.cli.listen.acknowledging import printable
from stagepost.errors import StorageError
from stagepost.ground.files.durations import clock_text, format_duration
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord, check_record, read_record
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.topics.log.file_topic import open_topic
from stagepost.trace.session_records import SetsFolder

LOOK_EVERY_S = 0.2


def has_receipts(data: Path) -> bool:
    return (data / "topics" / STATUSES_TOPIC).is_dir()


def tail_receipts(
    data: Path,
    *,
    kinds: frozenset[str],
    since_unix_s: float | None,
    count: int | None,
    idle_timeout_s: float | None,
    as_json: bool,
) -> int:
    """Show receipts as they come and return how many were shown. Begin at the present end, or with the first receipt that is
    not older than `since_unix_s`. `StorageError` at the end, if nobody could read the sets that the signatures need."""
    shown = 0
    last = time.monotonic()
    sets = _Sets(data / SETS_FILE)
    for record in _records(data, from_start=since_unix_s is not None):
        if record is None:
            if idle_timeout_s is not None and time.monotonic() - last >= idle_timeout_s:
                break
            time.sleep(LOOK_EVERY_S)
            continue
        receipt = read_record(record)
        if isinstance(receipt, Quarantined) or (kinds and receipt.kind.name not in kinds):
            continue
        if since_unix_s is not None and receipt.timestamp_ms < since_unix_s * 1_000:
            continue
        last = time.monotonic()
        signature = sets.signature_of(record)
        click.echo(_json_line(record, signature) if as_json else _text_line(receipt, signature, sets))
        shown += 1
        if shown == count:
            break
    if shown and sets.fault is not None:
        raise sets.fault
    return shown


def _records(data: Path, *, from_start: bool) -> Iterator[StatusRecord | None]:
    """None whenever all that is there has been given."""
    reader = open_topic(data, STATUSES_TOPIC).reader()
    places = {
        partition: reader.start_offset(partition) if from_start else reader.end_offset(partition)
        for partition in range(reader.partitions)
    }
    while True:
        for partition, place in places.items():
            for batch in reader.batches(partition, place):
                for one in batch:
                    key = None if one.key is None else one.key.decode(errors="replace")
                    position = f"{partition}:{one.offset}"
                    yield StatusRecord(
                        one.value, key, STATUSES_TOPIC, one.timestamp_ms, one.headers, position
                    )
                    places[partition] = one.offset + 1
        yield None


class _Sets:
    """Validator sets of a data folder, read on when there are more sessions; None until there are any."""

    def __init__(self, path: Path) -> None:
        self._folder = SetsFolder(path)
        self._is_known = False
        self.fault: StorageError | None = None
        """Reason for which the sets have not been read so far."""

    def _present(self) -> ValidatorSets | None:
        try:
            self._is_known = self._folder.look() or self._is_known
            self.fault = None
        except StorageError as error:
            if not self._is_known:
                self.fault = error
        return self._folder.sets if self._is_known else None

    def signature_of(self, record: StatusRecord) -> str:
        """In the words of all our screens."""
        sets = self._present()
        if sets is None:
            return "not checked"
        checked = check_record(record, sets)
        if not isinstance(checked, Quarantined):
            return "valid"
        named = {"RECEIPT_SIGNATURE": "invalid", "RECEIPT_SOURCE": "unknown signer"}
        return named.get(str(checked.reason), "not checked")

    def name_of(self, receipt: Receipt) -> str:
        sets = self._present()
        if sets is not None:
            if receipt.source_id in sets.full_nodes:
                return "full node"
            held = sets.held_by(receipt.source_id, receipt.timestamp_ms, receipt.timestamp_ms)
            newest = max(held, key=lambda found: found[0].age_key, default=None)
            if newest is not None:
                return sets.name_of(receipt.source_id, newest[1].index)
        return receipt.source_id.hex()[:8]


def _text_line(receipt: Receipt, signature: str, sets: _Sets) -> str:
    digits = receipt.message_id.hex()
    age_s = time.time() - receipt.timestamp_ms / 1_000
    parts = [
        clock_text(receipt.timestamp_ms / 1_000),
        f"{digits[:8]}…{digits[-6:]}",
        f"{sets.name_of(receipt):<11}",
        f"{receipt.kind.name:<25}",
    ]
    if signature != "valid":
        parts.append(f"SIGNATURE {signature.upper()}" if signature == "invalid" else signature)
    error = getattr(receipt.status, "error", "")
    if error:
        parts.append(printable(error))
    if age_s >= 60:
        parts.append(f"{format_duration(age_s)} ago")
    return "  ".join(parts).rstrip()


def _json_line(record: StatusRecord, signature: str) -> str:
    value = json.loads(record.value or b"{}")
    return json.dumps(
        {
            **value,
            "arrived_ms": record.arrived_ms,
            "session": record.session_hint,
            "signature_state": signature.replace(" ", "_"),
            "position": record.position,
        }
    )
