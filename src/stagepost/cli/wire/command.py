"""`stagepost wire`: explain a captured byte stream."""

from __future__ import annotations

import re

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME

_COMMENT = re.compile(rb"#[^\n]*")
_TEXT = frozenset(b"\t\n\r" + bytes(range(0x20, 0x7F)))


@click.group()
def wire() -> None:
    """Explain the bytes of a connection.

    \b
    Example:
      stagepost wire inspect capture.bin
    """


@wire.command()
@click.argument("source", metavar="FILE|-")
@click.option("--hex/--raw", "as_hex", default=None, help="Form of the capture. [recognised by itself]")
@click.option(
    "--one-direction/--both-directions",
    "one_direction",
    default=None,
    help="Sides that the capture holds. The order of messages is checked only with both. [recognised by itself]",
)
@click.option("--segments", "show_segments", is_flag=True, help="Show every segment as well.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with whole ids.")
@click.pass_context
def inspect(
    context: click.Context,
    source: str,
    as_hex: bool | None,
    one_direction: bool | None,
    show_segments: bool,
    as_json: bool,
) -> None:
    """Decode every message of a captured byte stream, name its protocols and wire profile, and show the first
    violation.

    FILE holds multiplexer segments from the start of a connection: what one side sent, or both sides' segments in
    the order in which they passed. It is raw, or hex digits with blanks and `#` comments between them. If both
    sides opened the same mini-protocol (a connection used both ways), inspect the bytes of each side in a file of its own.

    Exit code 0 if no rule was broken, 1 if one was or if the stream ends within a segment or message. A DMQ message
    with an invalid proof is reported, but breaks no rule of the protocols.

    \b
    Example:
      stagepost wire inspect capture.hex
    """
    from stagepost.cli.options.shared import read_input
    from stagepost.cli.wire import json as wire_json
    from stagepost.cli.wire import text as wire_text
    from stagepost.dmq.inspection.inspector import inspect_stream
    from stagepost.dmq.inspection.report import InspectionResult

    data = _bytes_meant(read_input(source), source, as_hex)
    report = inspect_stream(data, one_direction=one_direction)
    show = wire_json.lines if as_json else wire_text.lines
    for line in show(report, data, with_segments=show_segments):
        click.echo(line)
    if report.verdict is not InspectionResult.CLEAN:
        context.exit(NOT_THAT_OUTCOME)


def _bytes_meant(content: bytes, source: str, as_hex: bool | None) -> bytes:
    from stagepost.cli.options.shared import from_hex

    if as_hex is None:
        # Segment headers hold bytes that no text has, so a capture that is text must be hex.
        as_hex = _TEXT.issuperset(content)
    return from_hex(_COMMENT.sub(b"", content), source) if as_hex else content
