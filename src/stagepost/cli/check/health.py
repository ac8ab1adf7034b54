"""From a node's status to findings: what is fine, what wants attention, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stagepost.ground.files.durations import format_duration
from stagepost.ground.files.running_nodes import NodeStatus

MEMPOOL_WARNING_SHARE = 0.8
MEMPOOL_CRITICAL_SHARE = 1.0
KES_WARNING_PERIODS = 3
KES_PERIOD_S = 129_600
"""36 hours, as on the public networks."""


class Level(IntEnum):
    """The value is the exit code that monitors read."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def colour(self) -> str:
        return ("green", "yellow", "red", "magenta")[self.value]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    part: str
    text: str


def findings_of(status: NodeStatus, now: float) -> list[Finding]:
    """One for each part, in a fixed order; a part that the node says nothing of is left out."""
    findings = [_node(status, now), *_parts(status), _mempool(status, now)]
    if status.kes_periods_remaining is not None:
        findings.append(_keys(status.kes_periods_remaining))
    return findings


def _node(status: NodeStatus, now: float) -> Finding:
    hot = sum(peer.state == "hot" for peer in status.peers)
    heard = "no message yet"
    if status.last_message_ms is not None:
        heard = f"last message {format_duration(max(0.0, now - status.last_message_ms / 1_000))} ago"
    text = f"up {format_duration(status.uptime_s)}, {hot} hot peer{'' if hot == 1 else 's'}, {heard}"
    if not status.ready:
        return Finding(Level.CRITICAL, "node", f"{text}; not ready: it accepts no messages")
    if hot == 0:
        return Finding(
            Level.WARNING, "node", f"{text}; nobody hears it: check the topology file and the network"
        )
    return Finding(Level.OK, "node", text)


def _parts(status: NodeStatus) -> list[Finding]:
    return [
        Finding(Level.CRITICAL, name, reason) for name, reason in status.parts.items() if reason is not None
    ]


def _mempool(status: NodeStatus, now: float) -> Finding:
    mempool = status.mempool
    shares = [
        used / limit
        for used, limit in ((mempool.messages, mempool.messages_max), (mempool.bytes, mempool.bytes_max))
        if limit > 0
    ]
    share = max(shares, default=0.0)
    text = (
        f"{mempool.messages} of {mempool.messages_max} messages, {mempool.bytes} of {mempool.bytes_max} bytes"
    )
    if mempool.oldest_ms is not None:
        text += f", oldest {format_duration(max(0.0, now - mempool.oldest_ms / 1_000))}"
    if share >= MEMPOOL_CRITICAL_SHARE:
        return Finding(
            Level.CRITICAL, "mempool", f"{text}; full: new messages are refused until old ones expire"
        )
    if share >= MEMPOOL_WARNING_SHARE:
        return Finding(Level.WARNING, "mempool", f"{text}; nearly full")
    return Finding(Level.OK, "mempool", text)


def _keys(periods: int) -> Finding:
    if periods <= 0:
        return Finding(
            Level.CRITICAL,
            "keys",
            "KES: no period left; renew the operational certificate, nothing can be signed",
        )
    ending = f"ends in about {format_duration(periods * KES_PERIOD_S)}"
    text = f"KES: {periods} period{'' if periods == 1 else 's'} left ({ending})"
    if periods <= KES_WARNING_PERIODS:
        return Finding(Level.WARNING, "keys", f"{text}; renew the operational certificate")
    return Finding(Level.OK, "keys", text)
