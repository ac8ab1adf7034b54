"""An inspection's report for people: the verdict first, the exchange under it, the bytes of a violation last."""

from __future__ import annotations

from collections.abc import Iterator

import click

from stagepost.cli.wire.fields import short
from stagepost.dmq.inspection.report import (
    BrokenRule,
    InspectionReport,
    InspectionResult,
    MessageFinding,
    ProtocolRecord,
    SegmentRecord,
)
from stagepost.ground.crypto.hashing import format_pool_id
from stagepost.ground.identifiers import abbreviated
from stagepost.ground.wire.mux import Direction

_ARROWS = {Direction.INITIATOR: "→", Direction.RESPONDER: "←"}
_COLOURS = {
    InspectionResult.CLEAN: "green",
    InspectionResult.VIOLATION: "red",
    InspectionResult.TRUNCATED: "yellow",
    InspectionResult.STOPPED: "yellow",
}
_BYTES_AROUND = 8
_LABEL_WIDTH = 10


def lines(report: InspectionReport, data: bytes, *, with_segments: bool) -> Iterator[str]:
    yield from _header(report)
    if report.messages or (with_segments and report.segments):
        yield ""
        yield from _exchange(report, with_segments)
    if report.broken is not None:
        yield ""
        yield from _violation(report.broken, data)
    elif report.unfinished is not None:
        yield ""
        verdict = click.style(report.verdict.value, fg=_COLOURS[report.verdict], bold=True)
        yield f"{verdict} at byte {_place(report.unfinished.offset)}: {report.unfinished.text}"


def _header(report: InspectionReport) -> Iterator[str]:
    verdict = click.style(report.verdict.value.upper(), fg=_COLOURS[report.verdict], bold=True)
    parts = [
        verdict,
        _count(len(report.segments), "segment"),
        _count(report.bytes_total, "byte"),
        report.profile,
    ]
    parts += [f"{flavour} tags" for flavour in report.flavours]
    if report.submission_version is not None:
        parts.append(f"submission version {report.submission_version}")
    yield " · ".join(parts)
    yield _labelled("coverage", f"{report.coverage.value} (→ initiator, ← responder)")
    if report.agreed is not None:
        agreed = report.agreed
        magic = "" if agreed.network_magic is None else f", network magic {agreed.network_magic}"
        kind = "" if agreed.kind is None else f" ({agreed.kind})"
        yield _labelled("handshake", f"version {agreed.version}{kind}{magic}")
    if report.evidence:
        yield _labelled("shown by", ", ".join(f"{piece.text} at {piece.offset}" for piece in report.evidence))
    findings = report.findings
    if findings:
        bad = sum(not finding.is_valid for finding in findings)
        text = f"{_count(len(findings), 'DMQ message')}, "
        text += click.style(f"{bad} NOT VALID", fg="red", bold=True) if bad else "all valid"
        yield _labelled("proofs", text)


def _exchange(report: InspectionReport, with_segments: bool) -> Iterator[str]:
    protocols = [segment.protocol.value for segment in report.segments]
    protocol_width = max(map(len, protocols), default=0)
    state_width = max((len(record.state or "?") for record in report.messages), default=0)
    protocol_width, state_width = max(protocol_width, len("mini-protocol")), max(state_width, len("state"))
    offset_width = max(len(str(report.bytes_total)), len("byte"))
    titles = f"{'mini-protocol':<{protocol_width}}  {'state':<{state_width}}  message"
    yield click.style(f"{'byte':>{offset_width}}    {titles}", dim=True)
    shown = 0
    for record in report.messages:
        while with_segments and shown <= record.segment:
            yield _segment_line(shown, report.segments[shown], offset_width)
            shown += 1
        yield _message_line(record, offset_width, protocol_width, state_width)
        for finding in record.findings:
            yield _finding_line(finding, offset_width)
    if with_segments:
        for index in range(shown, len(report.segments)):
            yield _segment_line(index, report.segments[index], offset_width)


def _segment_line(index: int, segment: SegmentRecord, offset_width: int) -> str:
    text = (
        f"{segment.offset:>{offset_width}}  {_ARROWS[segment.direction]} segment {index} · {segment.number} "
        f"{segment.protocol.value} ({', '.join(segment.profiles)}) · {_count(segment.length, 'byte')} · "
        f"time {segment.timestamp_us}"
    )
    return click.style(text, dim=True)


def _message_line(record: ProtocolRecord, offset_width: int, protocol_width: int, state_width: int) -> str:
    name = click.style(type(record.message).__name__, bold=True)
    again = f" (run {record.instance})" if record.instance > 1 else ""
    line = (
        f"{record.offset:>{offset_width}}  {_ARROWS[record.direction]} {record.protocol.value:<{protocol_width}}  "
        f"{record.state or '?':<{state_width}}  {name}{again}  {short(record.message)}"
    )
    return line.rstrip()


def _finding_line(finding: MessageFinding, offset_width: int) -> str:
    pool = format_pool_id(finding.pool_id)
    facts = (
        f"{finding.offset:>{offset_width}}    └ {abbreviated(finding.message_id)} · {finding.size_in_bytes} B · "
        f"{pool[:9]}…{pool[-4:]} · KES period {finding.kes_period} (evolution {finding.kes_evolution})"
    )
    if finding.is_valid:
        return f"{facts} · valid"
    faults = "; ".join(f"{fault.code} {fault.text}" for fault in finding.faults)
    return f"{facts} · {click.style('NOT VALID', fg='red', bold=True)}: {faults}"


def _violation(broken: BrokenRule, data: bytes) -> Iterator[str]:
    title = click.style("violation", fg="red", bold=True)
    inside = ""
    if broken.message_offset not in (None, broken.offset):
        inside = f", in the message at byte {broken.message_offset}"
    yield f"{title} at byte {_place(broken.offset)}{inside}, segment {broken.segment}"
    yield _labelled("rule", f"{broken.rule} · {broken.code}")
    name = (
        f"mini-protocol {broken.number}"
        if broken.protocol is None
        else f"{broken.protocol.value} ({broken.number})"
    )
    where = f"{name} in {broken.state}" if broken.state else name
    yield _labelled("broken by", f"{broken.direction.name.lower()} {_ARROWS[broken.direction]} · {where}")
    yield _labelled("what", broken.text)
    yield _labelled("allowed", broken.allowed)
    yield _labelled("bytes", _around(data, broken.offset))


def _around(data: bytes, offset: int) -> str:
    first = max(offset - _BYTES_AROUND, 0)
    before = data[first:offset].hex(" ")
    marked = click.style(f"[{data[offset : offset + 1].hex()}]", fg="red", bold=True)
    after = data[offset + 1 : offset + 1 + _BYTES_AROUND].hex(" ")
    left = "… " if first else ""
    right = " …" if offset + 1 + _BYTES_AROUND < len(data) else ""
    return f"{left}{before}{' ' if before else ''}{marked} {after}".rstrip() + right


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}} {text}"


def _place(offset: int) -> str:
    return f"{offset} ({offset:#x})"


def _count(number: int, noun: str) -> str:
    grouped = f"{number:,}".replace(",", " ")
    return f"{grouped} {noun}" if number == 1 else f"{grouped} {noun}s"
