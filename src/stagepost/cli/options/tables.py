"""Rows as columns for people to read."""

from __future__ import annotations

from collections.abc import Sequence

import click

GAP = "  "


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each column as wide as its widest cell. What strangers had a say in must not steer the terminal."""
    cells = [[_printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for number, row in enumerate(cells):
        line = GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(click.style(line, bold=True) if number == 0 else line)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "·" for character in text)
