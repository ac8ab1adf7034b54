"""The content of a trace's page beside its drawing: the verdict, its stages, its numbers, and each receipt
with its proof.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from stagepost.errors import ErrorCode
from stagepost.ground.files.data_folder import NETWORK_FILE
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.remp.receipts.receipt import Quarantined
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.remp.verdict.trace import Point, Trace, block_named
from stagepost.remp.verdict.words import end_words
from stagepost.topics.log.file_topic import open_topic
from stagepost.trace.drawing import draw_trace
from stagepost.trace.reasons import counts, missing, why
from stagepost.trace.session_records import load_sets
from stagepost.trace.words import tone

HEX_GROUP = 8
HEX_GROUPS_OF_LINE = 8


class Station(NamedTuple):
    """A stage of the message's way: `state` is reached, missed (the message ended before), or ahead."""

    name: str
    after_ms: int | None
    state: str


class ReceiptRow(NamedTuple):
    position: str
    lane: str
    kind: str
    mark: str
    sign: str
    after_ms: int
    timestamp_ms: int
    error: str
    signature: str
    refused: str | None


def trace_view(trace: Trace, data: Path) -> dict[str, Any]:
    shard, master_seqno = block_named(trace)
    where = [f"shard {shard}"] if shard is not None else []
    where += [f"master block {master_seqno}"] if master_seqno is not None else []
    return {
        "trace": trace,
        "message_id": trace.message_id.hex(),
        "words": trace.words,
        "why": why(trace),
        "payload": None if trace.way.payload is None else payload_view(trace.way.payload),
        "seal": seal_of(trace, data),
        "tone": _tone(trace),
        "where": " · ".join(where),
        "stations": stations(trace),
        "counts": counts(trace),
        "missing": missing(trace),
        "drawing": Markup(draw_trace(trace, within_page=True)),  # it escapes what others wrote
        "receipts": [
            _row(lane.name, point, trace.first_ms or 0) for lane in trace.lanes for point in lane.points
        ],
        "unreadable": trace.unreadable,
        "steps": sorted(
            ((step, lane.name) for lane in trace.way.lanes for step in lane.points),
            key=lambda one: one[0].timestamp_ms,
        ),
    }


def stations(trace: Trace) -> list[Station]:
    verdict, first_ms = trace.verdict, trace.first_ms
    if first_ms is None:
        return []
    times = _stations_before(trace)
    if verdict is None:
        return _reached(times, first_ms, has_ended=trace.way.has_ended)
    times += [
        ("To validators" if times else "Sent", verdict.sent_ms),
        ("Queued", verdict.queued_ms),
        ("Included", verdict.included_ms),
        ("Accepted", verdict.accepted_ms),
        ("Final", verdict.finalized_ms),
    ]
    return _reached(times, first_ms, has_ended=trace.proved is not None)


def _stations_before(trace: Trace) -> list[tuple[str, int | None]]:
    """Return the stages of the delivery, with the first time of each; none without records of the delivery."""
    if not trace.way.lanes:
        return []
    times: dict[str, int] = {}
    for lane in trace.way.lanes:
        for step in lane.points:
            word = step.label.split(",")[0].split(" ")[0]
            times.setdefault(word, step.timestamp_ms)
    wanted = [("Published", "published"), ("Sent", "sent"), ("On the network", "accepted")]
    if "acknowledged" in times or trace.verdict is None:
        wanted.append(("Acknowledged", "acknowledged"))
    return [(name, times.get(word)) for name, word in wanted]


def _reached(times: list[tuple[str, int | None]], first_ms: int, *, has_ended: bool) -> list[Station]:
    reached = max((place for place, (_, at_ms) in enumerate(times) if at_ms is not None), default=-1)
    found = []
    for place, (name, at_ms) in enumerate(times):
        if at_ms is not None:
            state = "reached"
        elif place < reached:
            state = "passed"
        else:
            state = "missed" if has_ended else "ahead"
        found.append(Station(name, None if at_ms is None else at_ms - first_ms, state))
    return found


def _row(lane: str, point: Point, first_ms: int) -> ReceiptRow:
    refused = point.refused
    return ReceiptRow(
        point.position,
        lane,
        point.receipt.kind.name,
        point.mark.name,
        point.mark.value,
        point.timestamp_ms - first_ms,
        point.timestamp_ms,
        getattr(point.receipt.status, "error", ""),
        signature_words(refused),
        None if refused is None else str(refused.reason),
    )


def signature_words(refused: Quarantined | None) -> str:
    """Return `valid`, `invalid`, `unknown signer` or `not checked`: a check that was not reached was not
    made.
    """
    if refused is None:
        return "valid"
    if refused.reason in (ErrorCode.RECEIPT_SIGNATURE, ErrorCode.RECEIPT_UNSIGNED):
        return "invalid"
    return "unknown signer" if refused.reason is ErrorCode.RECEIPT_SOURCE else "not checked"


def receipt_view(trace: Trace, position: str, data: Path) -> dict[str, Any] | None:
    """Return the proof of one receipt: its JSON, the signed bytes, the key, and the way to verify it again;
    None if there is none.
    """
    for lane in trace.lanes:
        for point in lane.points:
            if point.position == position:
                return _proof(lane.name, point, trace, data)
    return None


def _proof(lane: str, point: Point, trace: Trace, data: Path) -> dict[str, Any]:
    receipt = point.receipt
    text = _raw(point.position, data) or receipt.to_json()
    sets = load_sets(data)
    source = sets.source(receipt.source_id, receipt.timestamp_ms)
    # Line breaks stand between the parts of JSON only, never inside of them.
    one_line = " ".join(text.split("\n"))
    verify = f"stagepost verify - --validator-sets {shlex.quote(str(data / SETS_FILE))}"
    return {
        "row": _row(lane, point, trace.first_ms or 0),
        "json": text,
        "signed_bytes": hex_lines(receipt.signed_bytes),
        "signed_length": len(receipt.signed_bytes),
        "public_key": None if isinstance(source, str) else source.public_key.hex(),
        "role": None if isinstance(source, str) else source.role.value,
        "refused_text": None if point.refused is None else point.refused.text,
        "command": f"printf '%s\\n' {shlex.quote(one_line)} | {verify}",
    }


def _raw(position: str, data: Path) -> str | None:
    """Return the record as it stands in the topic; None if it is not there."""
    partition, _, offset = position.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        return None
    reader = open_topic(data, STATUSES_TOPIC).reader()
    for batch in reader.batches(int(partition), int(offset), int(offset) + 1):
        for one in batch:
            return None if one.value is None else one.value.decode("utf-8", "replace")
    return None


PAYLOAD_SHOWN_BYTES = 2_048
"""Bytes, at most, of a payload that pages show."""


def payload_view(payload: bytes) -> dict[str, Any]:
    """Return a payload for people: as JSON or text where it is such, and as hex, at most `PAYLOAD_SHOWN_BYTES`."""
    shown = payload[:PAYLOAD_SHOWN_BYTES]
    try:
        text: str | None = shown.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and not all(one.isprintable() or one in "\n\t" for one in text):
        text = None
    form = "hex"
    if text is not None:
        form = "text"
        try:
            text = json.dumps(decode_foreign(shown, Any), indent=1, ensure_ascii=False)
            form = "JSON"
        except msgspec.MsgspecError:
            pass
    return {
        "form": form,
        "text": text,
        "hex": hex_lines(shown),
        "bytes": len(payload),
        "is_cut": len(payload) > PAYLOAD_SHOWN_BYTES,
    }


def hex_lines(data: bytes) -> str:
    digits = data.hex()
    groups = [digits[at : at + HEX_GROUP] for at in range(0, len(digits), HEX_GROUP)]
    lines = [groups[at : at + HEX_GROUPS_OF_LINE] for at in range(0, len(groups), HEX_GROUPS_OF_LINE)]
    return "\n".join(" ".join(line) for line in lines)


def seal_of(trace: Trace, data: Path) -> dict[str, Any]:
    """Return what a page shows of the proof: the end, the block, how many signed, and how to check it oneself."""
    proved, digits = trace.proved, trace.message_id.hex()
    # A node whose network file lies elsewhere: its operator knows where.
    network = data / NETWORK_FILE if (data / NETWORK_FILE).exists() else NETWORK_FILE
    return {
        "end": end_words(trace.verdict),
        "is_proved": proved is not None,
        "block": None if proved is None else proved.block,
        "signers": None if proved is None else proved.signers,
        "validators": None if proved is None else proved.validators,
        "commands": (
            f"stagepost prove {digits} --data {shlex.quote(str(data))} --out proof.json",
            f"stagepost verify proof.json --genesis {shlex.quote(str(network))}",
        ),
    }


def _tone(trace: Trace) -> str:
    """Return the colour of the verdict: that of an end only with a proof, else that of a claim."""
    if trace.verdict is None and trace.way.words:
        is_bad = trace.way.words in ("Failed", "Refused")
        return "bad" if is_bad else "good" if trace.way.words.startswith("Acknowledged") else "open"
    found = tone(None if trace.verdict is None else trace.verdict.verdict)
    return found if trace.proved is not None else _OF_CLAIMS.get(found, found)


_OF_CLAIMS = {"final": "good", "bad": "warn"}
"""Colours of claims, by the colour that the same verdict has with a proof."""
