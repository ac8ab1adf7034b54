"""The report of `stagepost conform` as lines for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TextIO

from stagepost.dmq.conform.playbook import Case
from stagepost.dmq.conform.report import MEGABYTE, ConformReport, sentences
from stagepost.dmq.conform.rules import RULES, ConformRule
from stagepost.dmq.conform.runner import CaseResult, CaseState

BYTES_SHOWN_MAX = 48
"""Bytes of what the kit said that a line shows."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class CaseProgress:
    """Line on a terminal that counts the cases."""

    def __init__(self, stream: TextIO, *, is_shown: bool) -> None:
        self._stream = stream
        self._is_shown = is_shown
        self._count = 0

    def add(self, result: CaseResult) -> None:
        self._count += 1
        if self._is_shown:
            self._stream.write(f"\r\x1b[K{self._count} cases: {result.case.name}"[:100])
            self._stream.flush()

    def clear(self) -> None:
        if self._is_shown:
            self._stream.write("\r\x1b[K")


def case_lines(cases: Iterable[Case]) -> Iterator[str]:
    for case in cases:
        rule = RULES[case.rule]
        yield f"{case.name}   {rule.name}: {rule.text} ({rule.source})"


def report_lines(report: ConformReport) -> Iterator[str]:
    yield f"{report.place}   network {report.magic}   {len(report.results)} cases in {report.seconds:.0f} s"
    for note in report.notes:
        yield f"  {plain(note)}"
    for state, title in (
        (CaseState.DEVIATES, "deviates"),
        (CaseState.DIFFERS, "differs from Stagepost's own limits, which no document asks for"),
        (CaseState.NOT_LOOKED, "not looked at"),
    ):
        found = report.of(state)
        if found:
            yield ""
            yield f"{title}: {len(found)}"
            yield from _by_reason(found) if state is CaseState.NOT_LOOKED else _by_rule(found)
    yield ""
    yield from _counts(report)


def _by_rule(results: list[CaseResult]) -> Iterator[str]:
    by_rule: dict[ConformRule, list[CaseResult]] = {}
    for result in results:
        by_rule.setdefault(result.rule, []).append(result)
    for rule, those in by_rule.items():
        yield f"  {rule.name}   {rule.text}   [{rule.source}]"
        for result in those:
            yield f"    {result.case.name}: {plain('; '.join(sentences(result)))}"
            yield f"      {_said(result)}"


def _by_reason(results: list[CaseResult]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for result in results:
        by_reason.setdefault(result.not_looked, []).append(result.case.name)
    for reason, names in by_reason.items():
        yield f"  {len(names)}: {plain(reason)}"


def _said(result: CaseResult) -> str:
    """Return the last bytes that the kit said, which are those of the case itself, not of the handshake."""
    ours = [piece for piece in result.transcript.pieces if piece.is_ours]
    if not ours:
        return "the kit said nothing"
    piece = ours[-1]
    shown = piece.data[:BYTES_SHOWN_MAX].hex()
    rest = f" … of {piece.length:,} bytes" if piece.length > BYTES_SHOWN_MAX else ""
    return f"said {shown}{rest}"


def _counts(report: ConformReport) -> Iterator[str]:
    counts = ", ".join(f"{len(report.of(state))} {state.value}" for state in CaseState)
    yield counts
    if report.left_out:
        yield "left out: " + "; ".join(f"{number}, {reason}" for reason, number in report.left_out.items())
    grown = report.memory.grown_bytes
    yield "memory of the node: " + (
        "nobody could look" if grown is None else f"grew by {grown / MEGABYTE:,.0f} MB at most"
    )
    if report.memory_fault:
        yield f"differs: {report.memory_fault}"


def plain(text: str) -> str:
    """Return `text`, which may come from the node, without control characters."""
    return _CONTROL.sub(" ", text)
