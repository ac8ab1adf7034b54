"""The report of `stagepost conform` as one HTML file that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from stagepost.cli.conform.text import plain
from stagepost.dmq.conform.attacker import PassedBytes
from stagepost.dmq.conform.report import MEGABYTE, ConformReport, sentences
from stagepost.dmq.conform.runner import CaseResult, CaseState
from stagepost.errors import StorageError

PIECES_SHOWN_MAX = 12
"""Pieces of a conversation that the page shows, of both sides together."""
_TITLES = {
    CaseState.DEVIATES: "Deviates from a document",
    CaseState.DIFFERS: "Differs from Stagepost's own limits, which no document asks for",
    CaseState.NOT_LOOKED: "Not looked at",
    CaseState.HOLDS: "Holds",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c0392b; --odd: #b7791f; --grey: #777; --good: #2e7d4f }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.counts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none }
.counts li { border: 1px solid var(--line); border-left: .4rem solid var(--grey); border-radius: .3rem; padding: .3rem .8rem }
.counts b { font-size: 1.3rem; margin-right: .3rem }
.counts .deviates { border-left-color: var(--bad) } .counts .differs { border-left-color: var(--odd) }
.counts .holds { border-left-color: var(--good) }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
td { overflow-wrap: anywhere } td:first-child { width: 34% }
code, pre { font: 12px/1.4 ui-monospace, monospace } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 }
.rule { color: var(--grey) } .fault { color: var(--bad) } summary { cursor: pointer; margin-top: 2rem }
"""


def check_page(path: Path) -> None:
    """Raise `StorageError` unless the page can be written: a run is long, and its report must not be lost."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise StorageError(f"could not write {path}: {error.strerror}") from error


def write_page(path: Path, report: ConformReport) -> None:
    try:
        path.write_text("\n".join(_page(report)) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"could not write {path}: {error.strerror}") from error


def _page(report: ConformReport) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>Conformance of {_text(report.place)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>Conformance of {_text(report.place)}</h1>"
    yield f"<p>Network {report.magic}, {len(report.results)} cases in {report.seconds:.0f} s.</p>"
    yield '<ul class="counts">'
    for state in _TITLES:
        name = state.value
        yield f'<li class="{name.replace(" ", "-")}"><b>{len(report.of(state))}</b>{name}</li>'
    yield "</ul><h2>Found before the first case</h2><ul>"
    yield from (f"<li>{_text(note)}</li>" for note in report.notes)
    grown = report.memory.grown_bytes
    seen = "nobody could look" if grown is None else f"grew by {grown / MEGABYTE:,.0f} MB at most"
    yield f"<li>memory of the node: {seen}</li>"
    yield from (f"<li>left out: {number}, {_text(why)}</li>" for why, number in report.left_out.items())
    yield "</ul>"
    for state, title in _TITLES.items():
        if found := report.of(state):
            yield from _section(state, title, found)
    yield "</body></html>"


def _section(state: CaseState, title: str, found: Iterable[CaseResult]) -> Iterator[str]:
    if state is CaseState.HOLDS:
        yield f"<details><summary>{title}</summary>"
    else:
        yield f"<h2>{_text(title)}</h2>"
    yield '<table><thead><tr><th scope="col">Case and rule</th><th scope="col">Result</th></tr></thead><tbody>'
    for one in found:
        rule = one.rule
        yield (
            f"<tr><td>{_text(one.case.name)}<br>"
            f'<span class="rule"><code>{_text(rule.name)}</code> {_text(rule.text)} <i>{_text(rule.source)}</i></span>'
        )
        yield "</td><td>"
        yield from (f'<span class="fault">{_text(text)}</span><br>' for text in sentences(one))
        if one.closed_after_s is not None:
            yield f"closed after {one.closed_after_s:.2f} s"
        if state is not CaseState.HOLDS:
            yield from _conversation(one)
        yield "</td></tr>"
    yield "</tbody></table>"
    if state is CaseState.HOLDS:
        yield "</details>"


def _conversation(result: CaseResult) -> Iterator[str]:
    pieces = result.transcript.pieces
    if not pieces:
        return
    yield "<pre>"
    yield from (_line(piece) for piece in pieces[:PIECES_SHOWN_MAX])
    if len(pieces) > PIECES_SHOWN_MAX:
        yield f"… and {len(pieces) - PIECES_SHOWN_MAX} pieces more"
    yield "</pre>"


def _line(piece: PassedBytes) -> str:
    who = "kit " if piece.is_ours else "peer"
    rest = f" … of {piece.length:,} bytes" if piece.length > len(piece.data) else ""
    return f"{piece.after_s:7.3f} s  {who}  {piece.data.hex()}{rest}"


def _text(text: str) -> str:
    return escape(plain(text))
