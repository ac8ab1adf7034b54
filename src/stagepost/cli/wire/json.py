"""An inspection's report as JSON, one object per line: the summary first, what went wrong last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stagepost.cli.wire.fields import whole
from stagepost.dmq.inspection.report import (
    BrokenRule,
    InspectionReport,
    MessageFinding,
    ProtocolRecord,
    SegmentRecord,
)
from stagepost.ground.crypto.hashing import format_pool_id


def lines(report: InspectionReport, data: bytes, *, with_segments: bool) -> Iterator[str]:
    yield json.dumps(_summary(report))
    if with_segments:
        for index, segment in enumerate(report.segments):
            yield json.dumps(_segment(index, segment))
    for record in report.messages:
        yield json.dumps(_message(record))
    if report.broken is not None:
        yield json.dumps(_violation(report.broken))
    if report.unfinished is not None:
        end = report.unfinished
        yield json.dumps({"kind": report.verdict.value, "offset": end.offset, "text": end.text})


def _summary(report: InspectionReport) -> dict[str, Any]:
    return {
        "kind": "summary",
        "verdict": report.verdict.value,
        "bytes": report.bytes_total,
        "segments": len(report.segments),
        "messages": len(report.messages),
        "coverage": report.coverage.name.lower(),
        "profile": report.profile,
        "profiles": list(report.profiles),
        "flavours": list(report.flavours),
        "submission_version": report.submission_version,
        "version": None if report.agreed is None else report.agreed.version,
        "connection": None if report.agreed is None else report.agreed.kind,
        "network_magic": None if report.agreed is None else report.agreed.network_magic,
        "dmq_messages": len(report.findings),
        "dmq_messages_not_valid": sum(not finding.is_valid for finding in report.findings),
        "evidence": [
            {
                "offset": piece.offset,
                "from": piece.direction.name.lower(),
                "text": piece.text,
                "profiles": sorted(piece.profiles),
            }
            for piece in report.evidence
        ],
    }


def _segment(index: int, segment: SegmentRecord) -> dict[str, Any]:
    return {
        "kind": "segment",
        "segment": index,
        "offset": segment.offset,
        "timestamp_us": segment.timestamp_us,
        "from": segment.direction.name.lower(),
        "number": segment.number,
        "protocol": segment.protocol.value,
        "profiles": list(segment.profiles),
        "length": segment.length,
    }


def _message(record: ProtocolRecord) -> dict[str, Any]:
    return {
        "kind": "message",
        "offset": record.offset,
        "size": record.size,
        "segment": record.segment,
        "from": record.direction.name.lower(),
        "number": record.number,
        "protocol": record.protocol.value,
        "instance": record.instance,
        "state": record.state or None,
        "flavour": record.flavour,
        "name": type(record.message).__name__,
        "fields": whole(record.message),
        "dmq_messages": [_finding(finding) for finding in record.findings],
    }


def _finding(finding: MessageFinding) -> dict[str, Any]:
    return {
        "offset": finding.offset,
        "message_id": finding.message_id.hex(),
        "pool_id": format_pool_id(finding.pool_id),
        "size_in_bytes": finding.size_in_bytes,
        "kes_period": finding.kes_period,
        "kes_evolution": finding.kes_evolution,
        "expires_at": finding.expires_at,
        "elements": finding.elements,
        "is_valid": finding.is_valid,
        "faults": [{"code": fault.code, "text": fault.text} for fault in finding.faults],
    }


def _violation(broken: BrokenRule) -> dict[str, Any]:
    return {
        "kind": "violation",
        "offset": broken.offset,
        "code": broken.code.value,
        "rule": broken.rule,
        "from": broken.direction.name.lower(),
        "number": broken.number,
        "protocol": None if broken.protocol is None else broken.protocol.value,
        "state": broken.state or None,
        "segment": broken.segment,
        "message_offset": broken.message_offset,
        "text": broken.text,
        "allowed": broken.allowed,
    }
