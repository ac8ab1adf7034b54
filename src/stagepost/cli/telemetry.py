"""`stagepost telemetry`: the records of messages as spans, to an OpenTelemetry collector or as JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.options.delivery import settings_in, with_settings_file
from stagepost.cli.options.shared import path_option

if TYPE_CHECKING:
    from stagepost.remp.verdict.trace import Trace
    from stagepost.trace.spans import SpanRecord

GROUP = "telemetry"
"""Group of readers whose positions in the topics this command keeps."""
POLL_S = 0.5
DELAY_S_MAX = 30.0
"""Seconds, at most, between two attempts to reach a collector."""

Write = Callable[["Sequence[SpanRecord]"], None]


@click.command()
@click.argument("message", metavar="[ID]", required=False)
@path_option("--data", metavar="DIR", help="Data folder of a node or devnet. [stagepost-data]")
@path_option("--outbox", metavar="DIR", help="Folder of the outbox, if it lies outside of --data.")
@click.option(
    "--otlp",
    "endpoint",
    metavar="URL",
    help="OpenTelemetry collector, by OTLP over HTTP. [telemetry.otlp_endpoint; without it, JSON lines]",
)
@click.option("--once", is_flag=True, help="Write the messages whose record is whole now, then end.")
@click.option("--from-now", is_flag=True, help="Leave out messages that the topics hold already.")
@with_settings_file
@click.pass_context
def telemetry(
    context: click.Context,
    message: str | None,
    data: Path | None,
    outbox: Path | None,
    endpoint: str | None,
    once: bool,
    from_now: bool,
    config_file: Path | None,
    config_context: str | None,
) -> int:
    """Write the record of each message as a trace of OpenTelemetry: a span for every step, from the program to the proof.

    With an ID, write that message as it is now. Without one, write every message of the data folder once its record is
    whole, until interrupted; a restart goes on where the last run ended. The trace's id is the beginning of the message's
    id, or the caller's own where the message was sent with a traceparent.

    \b
    Example:
      stagepost telemetry --data stagepost-data --otlp http://127.0.0.1:4318
      stagepost telemetry 16923245 --data stagepost-data
    """
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.trace.otlp import OtlpWriter
    from stagepost.trace.reading import NotOneMessage, read_trace
    from stagepost.trace.spans import spans_of

    if message is not None and (once or from_now):
        raise click.UsageError("--once and --from-now are for all messages, not for one ID", context)
    folder = data or Path(DATA_DIR)
    endpoint = endpoint or _configured(config_file, config_context)
    with ExitStack() as parts:
        write: Write = _print_spans
        if endpoint is not None:
            write = parts.enter_context(OtlpWriter(endpoint)).write
        if message is not None:
            try:
                trace = read_trace(folder, message, _now_ms(), outbox)
            except NotOneMessage as error:
                click.echo(f"{error.text}\n  {error.advice}", err=True)
                return NOT_THAT_OUTCOME
            write(spans_of(trace))
            return DONE
        from stagepost.trace.finished import FinishedMessages
        from stagepost.trace.folder_health import require_topics

        if once:
            require_topics(folder, outbox)
        finished = FinishedMessages(folder, GROUP, outbox=outbox, from_now=from_now)
        parts.callback(finished.close)
        if once:
            traces = finished.read(_now_ms(), is_last=True)
            write(_spans(traces))
            finished.commit()
            click.echo(f"wrote {len(traces)} message{'' if len(traces) == 1 else 's'}", err=True)
            return DONE
        while True:
            traces = finished.read(_now_ms())
            if traces:
                _write_until_taken(write, _spans(traces))
                click.echo(f"wrote {len(traces)} messages, {finished.pending} are open", err=True)
            finished.commit()
            time.sleep(POLL_S)


def _configured(config_file: Path | None, config_context: str | None) -> str | None:
    found = settings_in(config_file, config_context).values["telemetry.otlp_endpoint"].value
    return None if found is None else str(found)


def _spans(traces: Sequence[Trace]) -> list[SpanRecord]:
    from stagepost.trace.spans import spans_of

    return [span for trace in traces for span in spans_of(trace)]


def _write_until_taken(write: Write, spans: Sequence[SpanRecord]) -> None:
    """Write the spans, again and again while the collector is away: the topics keep all later messages meanwhile."""
    from stagepost.errors import TransportError

    delay_s = POLL_S
    while True:
        try:
            write(spans)
            return
        except TransportError as error:
            click.echo(f"{error.text}; next attempt in {delay_s:g} s", err=True)
        time.sleep(delay_s)
        delay_s = min(2 * delay_s, DELAY_S_MAX)


def _print_spans(spans: Sequence[SpanRecord]) -> None:
    for span in spans:
        click.echo(
            json.dumps(
                {
                    "trace_id": span.trace_id.hex(),
                    "span_id": span.span_id.hex(),
                    "parent_id": span.parent_id.hex() or None,
                    "name": span.name,
                    "start_ms": span.start_ms,
                    "end_ms": span.end_ms,
                    "status": span.status.value,
                    "status_text": span.status_text,
                    "attributes": span.attributes,
                },
                ensure_ascii=False,
            )
        )


def _now_ms() -> int:
    return int(time.time() * 1_000)
