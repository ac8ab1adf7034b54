"""Health of a place: can the network finish a message now?

    facts ─ judge ─ HealthReport: good, bad or unknown, with the findings behind it

Facts are what nodes tell of themselves, an outbox and the files of a data folder. `judge` reads no clock and no file, so
`stagepost check`, `/readyz`, metrics, log lines and the dashboard give the same answer for the same facts. A source that could
not be read is unknown with the reason; it never counts as empty or as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum

import msgspec

from stagepost.ground.files.durations import format_date, format_duration
from stagepost.ground.telemetry.status import (
    DiskStatus,
    DmqNodePage,
    FullNodePage,
    MemberStatus,
    NetworkStatus,
    SessionStatus,
    ValidatorPage,
)

MEMPOOL_WARNING_SHARE = 0.8
MEMPOOL_CRITICAL_SHARE = 1.0
KES_WARNING_PERIODS = 3
"""Periods; three are 4.5 days on the public networks."""
QUEUE_WARNING_SHARE = 0.8
OLDEST_WARNING_S = 300.0
OLDEST_CRITICAL_S = 3_600.0
EVICTIONS_LOOKED_BACK_S = 3_600.0
STALLED_AFTER_S = 30.0
"""Seconds without a final block, while a message or the end of a session has waited for as long, after which the chain counts
as stalled."""
CLOCK_BEHIND_WARNING_S = 5.0
"""Seconds that the last final block may be dated ahead of this machine's clock."""
DISK_FREE_WARNING_BYTES = 1 << 30
VALIDATORS = "validators"
"""Part of a report that a full node or validator answers for: its links and the quorum."""
SILENT_SHOWN = 6
"""Names of silent members in one sentence, at most; further ones are counted."""


class Health(StrEnum):
    """Answer to the question whether the network can finish a message now."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


class Severity(IntEnum):
    """Level of a finding; the value is the exit code that monitors read."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def colour(self) -> str:
        return ("green", "yellow", "red", "magenta")[self.value]


_BADNESS = (Severity.OK, Severity.WARNING, Severity.UNKNOWN, Severity.CRITICAL)
_HEALTH = {
    Severity.OK: Health.GOOD,
    Severity.WARNING: Health.GOOD,
    Severity.UNKNOWN: Health.UNKNOWN,
    Severity.CRITICAL: Health.BAD,
}


class Finding(msgspec.Struct, frozen=True):
    level: Severity
    part: str
    text: str

    @property
    def health(self) -> Health:
        return _HEALTH[self.level]


class HealthReport(msgspec.Struct, frozen=True):
    """Answer and its findings, in the order of looking. A report without any finding is unknown."""

    findings: tuple[Finding, ...] = ()

    @property
    def level(self) -> Severity:
        """Return the worst level: known to be critical is worse than unknown."""
        levels = (finding.level for finding in self.findings)
        return max(levels, key=_BADNESS.index, default=Severity.UNKNOWN)

    @property
    def health(self) -> Health:
        return _HEALTH[self.level]

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """Return the findings that decide: those that are not well, the worst first."""
        trouble = (finding for finding in self.findings if finding.level is not Severity.OK)
        return tuple(sorted(trouble, key=lambda one: -_BADNESS.index(one.level)))

    @property
    def text(self) -> str:
        """Return the answer in one sentence, with the first reason."""
        if not self.findings:
            return "nobody knows whether the network can finish a message: nothing runs or lies here"
        has_network = any(finding.part.endswith(VALIDATORS) for finding in self.findings)
        if self.health is Health.GOOD:
            warned = [finding.part for finding in self.reasons]
            if not warned:
                return "the network can finish a message" if has_network else "all that was looked at is well"
            answer = "the network can finish a message" if has_network else "nothing is broken"
            return f"{answer}; {_counted(len(warned), 'warning')}: {', '.join(warned)}"
        first = self.reasons[0]
        words = "could not look"
        if self.health is Health.BAD:
            words = "the network cannot finish a message" if has_network else "messages cannot pass"
        return f"{words}: {first.part}: {first.text}"

    def readiness(self) -> dict[str, str | None]:
        """Return each part with None if it is well enough, otherwise its reason."""
        parts: dict[str, str | None] = {}
        for finding in self.findings:
            is_well = finding.health is Health.GOOD
            parts[finding.part] = parts.get(finding.part) or (None if is_well else finding.text)
        return parts


# Facts


class Unread(msgspec.Struct, frozen=True):
    """Reason why a source could not be read."""

    text: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


NodePage = DmqNodePage | FullNodePage | ValidatorPage


class NodeReading(msgspec.Struct, frozen=True):
    """Status page of one node, or why nobody could read it."""

    name: str
    page: NodePage | Unread


class OutboxReading(msgspec.Struct, frozen=True):
    """Figures of an outbox. `damage`: the first sentence about damaged rows; `waiting` and `dead_letters` then count only rows
    that are whole. `evicted`: messages evicted within `EVICTIONS_LOOKED_BACK_S`. `balances`: whether its totals agree with its rows.
    `set_aside`: names of damaged files beside it, whose readable rows were taken over."""

    waiting: int
    capacity: int
    oldest_ms: int | None = None
    evicted: int = 0
    dead_letters: int = 0
    damage: str | None = None
    balances: bool = True
    set_aside: tuple[str, ...] = ()


class HealthFacts(msgspec.Struct, frozen=True):
    """Everything that was looked at. `sources`: files of a data folder by name, each with a word about it or why it could not
    be read. A source that nobody set up is not among them."""

    nodes: tuple[NodeReading, ...] = ()
    outbox: OutboxReading | Unread | None = None
    sources: Mapping[str, str | Unread] = {}


# Judging


def judge(facts: HealthFacts, now_s: float) -> HealthReport:
    """Answer for `facts`, at the time `now_s` in Unix seconds."""
    findings: list[Finding] = []
    for reading in facts.nodes:
        own = [*_of_node(reading, now_s)]
        if len(facts.nodes) > 1:
            own = [Finding(one.level, _part_of(reading.name, one.part), one.text) for one in own]
        findings += own
    if facts.outbox is not None:
        findings.append(_outbox(facts.outbox, now_s))
    for name, found in facts.sources.items():
        if isinstance(found, Unread):
            findings.append(Finding(Severity.UNKNOWN, name, found.sentence))
        else:
            findings.append(Finding(Severity.OK, name, found))
    return HealthReport(tuple(findings))


def _part_of(node: str, part: str) -> str:
    return node if part == "node" else f"{node} {part}"


def _of_node(reading: NodeReading, now_s: float) -> Iterator[Finding]:
    page = reading.page
    if isinstance(page, Unread):
        yield Finding(Severity.UNKNOWN, "node", page.sentence)
    elif isinstance(page, DmqNodePage):
        yield _dmq_node(page, now_s)
        for name, reason in page.parts.items():
            if reason is not None:
                yield Finding(Severity.CRITICAL, name, reason)
        yield _mempool(page, now_s)
        if page.kes_periods_remaining is not None:
            yield _keys(page.kes_periods_remaining, page.kes_period_s, now_s)
    else:
        yield _remp_node(page)
        yield from _network(page, now_s)
        if isinstance(page, FullNodePage) and page.receipts_refused:
            yield _refusals(page.receipts_refused)


def _dmq_node(page: DmqNodePage, now_s: float) -> Finding:
    hot = sum(peer.state == "hot" for peer in page.peers)
    heard = "no message yet"
    if page.last_message_ms is not None:
        heard = f"last message {_age(page.last_message_ms, now_s)} ago"
    text = f"up {format_duration(page.uptime_s)}, {_counted(hot, 'hot peer')}, {heard}"
    if not page.ready:
        return Finding(Severity.CRITICAL, "node", f"{text}; not ready: it accepts no messages")
    if hot == 0:
        advice = "nobody hears it: check the topology file and the network"
        return Finding(Severity.WARNING, "node", f"{text}; {advice}")
    return Finding(Severity.OK, "node", text)


def _mempool(page: DmqNodePage, now_s: float) -> Finding:
    held = page.mempool
    used = ((held.messages, held.messages_max), (held.bytes, held.bytes_max))
    share = max((count / limit for count, limit in used if limit > 0), default=0.0)
    text = f"{held.messages} of {held.messages_max} messages, {held.bytes} of {held.bytes_max} bytes"
    if held.oldest_ms is not None:
        text += f", oldest {_age(held.oldest_ms, now_s)}"
    if share >= MEMPOOL_CRITICAL_SHARE:
        advice = "full: new messages are refused until old ones expire"
        return Finding(Severity.CRITICAL, "mempool", f"{text}; {advice}")
    if share >= MEMPOOL_WARNING_SHARE:
        return Finding(Severity.WARNING, "mempool", f"{text}; nearly full")
    return Finding(Severity.OK, "mempool", text)


def _keys(periods: int, period_s: float, now_s: float) -> Finding:
    if periods <= 0:
        return Finding(
            Severity.CRITICAL,
            "keys",
            "KES: no period left; renew the operational certificate, nothing can be signed",
        )
    left_s = periods * period_s
    text = (
        f"KES: {_counted(periods, 'period')} left "
        f"(ends in about {format_duration(left_s)}, on {format_date(now_s + left_s)})"
    )
    if periods <= KES_WARNING_PERIODS:
        return Finding(Severity.WARNING, "keys", f"{text}; renew the operational certificate")
    return Finding(Severity.OK, "keys", text)


def _remp_node(page: FullNodePage | ValidatorPage) -> Finding:
    up = f"{page.kind} up {format_duration(page.uptime_s)}"
    if isinstance(page, FullNodePage):
        text = f"{up}, {page.messages} messages taken, {page.finalized} finalized, {page.open} open"
    else:
        linked = _counted(page.full_nodes_linked, "full node")
        text = f"{up}, {linked} linked, {page.messages} messages taken"
    return Finding(Severity.OK, "node", text)


def _network(page: FullNodePage | ValidatorPage, now_s: float) -> Iterator[Finding]:
    network = page.network
    if network is None:
        yield Finding(
            Severity.UNKNOWN,
            VALIDATORS,
            f"the node (version {page.version or 'unknown'}) does not report its links; use the same version for all",
        )
        for name, reason in page.parts.items():
            if reason is not None:
                yield Finding(Severity.CRITICAL, name, reason)
        return
    yield _members(network, now_s)
    yield _chain(network, now_s)
    if isinstance(page, ValidatorPage):
        if not page.in_set:
            text = "this validator is not in the set in force: it follows the chain and decides nothing until a set has it"
            yield Finding(Severity.WARNING, "set", text)
        for name in ("queue", "start"):
            reason = page.parts.get(name)
            if reason is not None:
                yield Finding(Severity.CRITICAL, name, reason)
    if network.blamed:
        names = ", ".join(network.blamed)
        yield Finding(
            Severity.WARNING, "agreement", f"proved to have signed two contradicting votes: {names}"
        )
    behind_s = network.last_final_ms / 1_000 - now_s
    if behind_s > CLOCK_BEHIND_WARNING_S:
        text = f"the last final block is dated {format_duration(behind_s)} ahead of this machine's clock"
        yield Finding(Severity.WARNING, "clock", f"{text}; set the clock")
    if page.disk is not None:
        yield _disk(page.disk)


def sessions_without_quorum(network: NetworkStatus) -> list[SessionStatus]:
    """Return the sessions at work in which fewer members are linked than decide."""
    linked = {member.name for member in network.members if member.linked}
    return [one for one in network.sessions if len(linked.intersection(one.members)) < one.needed]


def _members(network: NetworkStatus, now_s: float) -> Finding:
    silent = [member for member in network.members if not member.linked]
    count = len(network.members)
    text = f"{count - len(silent)} of {_counted(count, 'validator')} linked"
    if silent:
        text += f"; not linked: {_named(silent, now_s)}"
    lacking = sessions_without_quorum(network)
    if lacking:
        first = lacking[0]
        text += f"; no quorum: {first.shard} needs {first.needed} of {len(first.members)}"
        return Finding(Severity.CRITICAL, VALIDATORS, text)
    return Finding(Severity.WARNING if silent else Severity.OK, VALIDATORS, text)


def _named(silent: list[MemberStatus], now_s: float) -> str:
    shown = [
        member.text
        + ("" if member.silent_since_ms is None else f" silent for {_age(member.silent_since_ms, now_s)}")
        for member in silent[:SILENT_SHOWN]
    ]
    further = len(silent) - len(shown)
    return ", ".join(shown) + (f" and {further} more" if further else "")


def _chain(network: NetworkStatus, now_s: float) -> Finding:
    final_s = max(0.0, now_s - network.last_final_ms / 1_000)
    text = f"master block {network.height} final {format_duration(final_s)} ago"
    if network.halted is not None:
        return Finding(Severity.CRITICAL, "chain", f"{text}; this validator votes no more: {network.halted}")
    if final_s < STALLED_AFTER_S:
        return Finding(Severity.OK, "chain", text)
    waits_s = 0.0 if network.oldest_open_ms is None else now_s - network.oldest_open_ms / 1_000
    if waits_s >= STALLED_AFTER_S:
        waiting = (
            f"{_counted(network.open, 'message')} without an end, the oldest for {format_duration(waits_s)}"
        )
        return Finding(Severity.CRITICAL, "chain", f"{text}; stalled: {waiting}")
    # An idle chain makes the block that ends a session, too: where it is missing, nothing would be final.
    ends_ms = min((one.ends_ms for one in network.sessions if one.ends_ms), default=None)
    over_s = 0.0 if ends_ms is None else now_s - ends_ms / 1_000
    if over_s >= STALLED_AFTER_S:
        missing = f"a session was over {format_duration(over_s)} ago, and no block that ends it has come"
        return Finding(Severity.CRITICAL, "chain", f"{text}; stalled: {missing}")
    return Finding(Severity.OK, "chain", text)


def _disk(disk: DiskStatus) -> Finding:
    if disk.fault is not None:
        return Finding(Severity.CRITICAL, "disk", disk.fault)
    if disk.free_bytes is None:
        return Finding(Severity.UNKNOWN, "disk", disk.unread or "the system did not tell the free space")
    text = f"{disk.free_bytes / (1 << 30):.1f} GiB free"
    if disk.free_bytes < DISK_FREE_WARNING_BYTES:
        return Finding(Severity.WARNING, "disk", f"{text}; make room")
    return Finding(Severity.OK, "disk", text)


def _refusals(refused: Mapping[str, int]) -> Finding:
    count = sum(refused.values())
    reasons = ", ".join(f"{number} {code}" for code, number in sorted(refused.items()))
    text = f"{_counted(count, 'receipt')} refused since the start: {reasons}"
    return Finding(Severity.WARNING, "receipts", text)


def _outbox(reading: OutboxReading | Unread, now_s: float) -> Finding:
    if isinstance(reading, Unread):
        return Finding(Severity.UNKNOWN, "queue", reading.sentence)
    text = f"outbox {'at least ' if reading.damage else ''}{reading.waiting} of {reading.capacity}"
    levels = [Severity.OK]
    notes = []
    if reading.oldest_ms is not None:
        oldest_s = max(0.0, now_s - reading.oldest_ms / 1_000)
        text += f", oldest {format_duration(oldest_s)}"
        if oldest_s >= OLDEST_WARNING_S:
            levels.append(Severity.CRITICAL if oldest_s >= OLDEST_CRITICAL_S else Severity.WARNING)
            notes.append("nothing takes them: see `stagepost peers`, then `stagepost queue flush`")
    if reading.evicted:
        text += f", {reading.evicted} evicted in the last hour"
        levels.append(Severity.WARNING)
    if reading.dead_letters:
        text += f", {_counted(reading.dead_letters, 'dead letter')}"
    elif reading.damage:
        text += ", dead letters unknown"
    if reading.waiting >= reading.capacity:
        levels.append(Severity.CRITICAL)
        notes.append("full: each new message pushes out an old one")
    elif reading.waiting >= QUEUE_WARNING_SHARE * reading.capacity:
        levels.append(Severity.WARNING)
        notes.append("nearly full")
    if reading.damage or not reading.balances:
        levels.append(Severity.UNKNOWN)
        notes.append("its books do not balance or rows are damaged: see `stagepost queue check`")
    if reading.damage:
        notes.append(reading.damage)
    if reading.set_aside:
        levels.append(Severity.WARNING)
        kept = ", ".join(reading.set_aside[-SILENT_SHOWN:])
        notes.append(
            f"it was damaged, and rows that could not be read are lost: {kept} holds them; "
            "move the file out of the folder when nobody needs it"
        )
    return Finding(max(levels, key=_BADNESS.index), "queue", "; ".join([text, *notes]))


def _age(since_ms: int, now_s: float) -> str:
    return format_duration(max(0.0, now_s - since_ms / 1_000))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
