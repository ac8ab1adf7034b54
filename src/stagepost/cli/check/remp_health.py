"""From the status of a full node or validator to findings, in the words and levels of all of them."""

from __future__ import annotations

import msgspec

from stagepost.cli.check.health import Finding, Level
from stagepost.ground.files.durations import format_duration
from stagepost.ground.files.running_nodes import FULL_NODE, StatusFacts, decoded, fetch


class RempStatus(msgspec.Struct, frozen=True):
    """`/status` of either; what one of them does not tell has its default."""

    kind: str
    uptime_s: float
    messages: int
    parts: dict[str, str | None]
    validators_linked: int = 0
    full_nodes_linked: int = 0
    open: int = 0
    finalized: int = 0
    master_block: int = 0
    receipts_refused: dict[str, int] = {}


def remp_findings(facts: StatusFacts) -> list[Finding]:
    status = decoded(fetch(facts, "/status"), RempStatus)
    findings = [_node(status)]
    findings += [
        Finding(Level.CRITICAL, name, reason) for name, reason in status.parts.items() if reason is not None
    ]
    refused = sum(status.receipts_refused.values())
    if refused:
        reasons = ", ".join(f"{count} {code}" for code, count in sorted(status.receipts_refused.items()))
        text = f"{refused} receipt{'' if refused == 1 else 's'} refused since the start: {reasons}"
        findings.append(Finding(Level.WARNING, "receipts", text))
    return findings


def _node(status: RempStatus) -> Finding:
    up = f"{status.kind} up {format_duration(status.uptime_s)}"
    if status.kind == FULL_NODE:
        linked = _counted(status.validators_linked, "validator")
        text = f"{up}, {linked} linked, {status.open} open, {status.finalized} finalized"
    else:
        linked = _counted(status.full_nodes_linked, "full node")
        text = f"{up}, {linked} linked, master block {status.master_block}, {status.messages} messages taken"
    return Finding(Level.OK, "node", text)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
