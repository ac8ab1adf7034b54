"""Output of `stagepost demo`: lines for people, or one JSON object for each of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stagepost.devnet.demo.findings import DemoFindings
    from stagepost.remp.verdict.trace import Trace

LABEL = 12
BAR = 20
DMQ_NODES, FULL_NODES, VALIDATORS = 3, 1, 7
TABLES_SHOWN = ("messages", "rejections", "validators")

VERDICTS = {
    "finalized": "finalized",
    "executed_as": "executed as another message",
    "rejected": "rejected",
    "rejected_by_fullnode": "rejected by the full node",
    "expired": "expired",
}
"""In this order; what else there is stands behind, under its own name."""
REFUSALS = {
    "KES_SIGNATURE": "bad signature",
    "MSG_DUPLICATE": "already received",
    "MSG_EXPIRY_TOO_FAR": "too far in the future",
}
RECEIPT_REFUSALS = {"RECEIPT_SIGNATURE": "invalid signature"}


class Output:
    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._has_bar = not as_json and sys.stdout.isatty() and sys.stderr.isatty()

    def begun(self, seed: int, data: Path) -> None:
        text = (
            f"seed {seed} · {DMQ_NODES} DMQ nodes · {FULL_NODES} full node · {VALIDATORS} validators · "
            f"data in {data}"
        )
        facts = {"dmq_nodes": DMQ_NODES, "full_nodes": FULL_NODES, "validators": VALIDATORS}
        self._say("network", {"seed": seed, "data": str(data), **facts}, text)

    def progress(self, sent: int, count: int) -> None:
        if self._has_bar:
            click.echo(f"\r{_labelled('sending', _bar(sent, count))}", nl=False, err=True)

    def sent(self, sent: int, count: int) -> None:
        if self._has_bar:
            click.echo("\r", nl=False, err=True)
        self._say("sending", {"sent": sent, "messages": count}, _labelled("sending", _bar(sent, count)))

    def findings(self, found: DemoFindings, refused: Mapping[str, int]) -> None:
        names = [*VERDICTS, *sorted(found.verdicts.keys() - VERDICTS)]
        delivered = _counts({VERDICTS.get(name, name): found.verdicts.get(name, 0) for name in names})
        if found.final_p50_ms is not None and found.final_p95_ms is not None:
            delivered += (
                f"       time to final p50 {_seconds(found.final_p50_ms)}  p95 {_seconds(found.final_p95_ms)}"
            )
        facts = {
            "verdicts": found.verdicts,
            "final_p50_ms": found.final_p50_ms,
            "final_p95_ms": found.final_p95_ms,
        }
        self._say("delivered", facts, _labelled("delivered", delivered))
        answers = _counts({REFUSALS.get(code, code): count for code, count in _in_order(refused).items()})
        self._say("refused", {"codes": dict(refused)}, _labelled("refused", answers or "nothing"))
        self._say("receipts", _receipt_facts(found), _labelled("receipts", _receipts(found)))

    def close_up(self, trace: Trace) -> None:
        from stagepost.trace.reading import trace_object

        if self._as_json:
            self._say("trace", trace_object(trace), "")
            return
        from stagepost.cli.trace.lanes import trace_lines

        click.echo()
        click.echo("one message, close up")
        for line in trace_lines(trace):
            click.echo(f"  {line}".rstrip())
        click.echo()

    def starting_tables(self) -> None:
        if not self._as_json:
            click.echo(_labelled("tables", "starting Spark (about 10 s) … "), nl=False)
            sys.stdout.flush()

    def tables(self, rows: Mapping[str, int]) -> None:
        if self._as_json:
            self._say("tables", {"rows": dict(rows)}, "")
            return
        shown = [f"{name} {_grouped(rows[name])}" for name in TABLES_SHOWN]
        click.echo(" · ".join([f"{shown[0]} rows", *shown[1:]]))

    def no_tables(self, why: str) -> None:
        if not self._as_json and "skipped" in why:
            click.echo()
        self._say("tables", {"rows": None, "why": why}, _labelled("tables", why))

    def next_steps(self, data: Path, message_id: str) -> None:
        commands = [
            (f"stagepost serve --data {data}", "the same in a browser"),
            (f"stagepost trace {message_id[:8]} --data {data}", ""),
            ("stagepost demo --live", "a network that runs, and that you can break"),
        ]
        if self._as_json:
            self._say("next", {"commands": [command for command, _ in commands]}, "")
            return
        for number, (command, about) in enumerate(commands):
            click.echo(_labelled("" if number else "next", f"{command:<48}{about}".rstrip()))

    def _say(self, part: str, facts: Mapping[str, Any], text: str) -> None:
        click.echo(json.dumps({"part": part, **facts}, ensure_ascii=False) if self._as_json else text)
        sys.stdout.flush()


def _labelled(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _bar(sent: int, count: int) -> str:
    full = BAR * sent // max(1, count)
    return f"{'━' * full}{' ' * (BAR - full)} {sent}/{count}"


def _counts(counts: Mapping[str, int]) -> str:
    return " · ".join(f"{_grouped(count)} {name}" for name, count in counts.items() if count)


def _in_order(refused: Mapping[str, int]) -> dict[str, int]:
    return {
        code: refused[code] for code in (*REFUSALS, *sorted(refused.keys() - REFUSALS)) if code in refused
    }


def _receipts(found: DemoFindings) -> str:
    text = f"{_grouped(found.receipts)} signed, {_grouped(found.verified)} verified"
    for one in found.refused:
        reason = RECEIPT_REFUSALS.get(one.reason, one.reason)
        text += f", {_grouped(one.count)} refused ({reason}{'' if one.who is None else f', {one.who}'})"
    return text


def _receipt_facts(found: DemoFindings) -> dict[str, Any]:
    refused = [{"reason": one.reason, "source": one.who, "count": one.count} for one in found.refused]
    return {"receipts": found.receipts, "verified": found.verified, "refused": refused}


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:.1f} s"
