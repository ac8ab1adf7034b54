"""The generated pages in docs/cli are what the command line says now."""

from __future__ import annotations

from pathlib import Path

import click

from stagepost.cli.main import SUBCOMMANDS
from tools.cli_docs import main, options_table, pages, paragraphs

ROOT = Path(__file__).parents[2]


def test_pages_are_up_to_date() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "cli").glob("*.md")}

    assert kept == pages(), "run `make docs`"
    assert set(kept) == {"README.md", *(f"{name}.md" for name in SUBCOMMANDS)}


def test_lines_that_click_keeps_become_a_block() -> None:
    text = """Do it.

    More of
    the same.

    \b
    Example:
      stagepost it --now
    """

    assert list(paragraphs(text)) == [
        "Do it.",
        "More of the same.",
        "Example:",
        "```text\nstagepost it --now\n```",
    ]


def test_signs_of_tables_and_links_are_taken_literally() -> None:
    @click.command()
    @click.option("--kind", type=click.Choice(["a", "b"]), help="One of <two> | [default: a]")
    def command() -> None: ...

    rows = options_table(command, click.Context(command))

    assert rows[-1] == "| `--kind [a\\|b]` | One of &lt;two> \\| \\[default: a] |"


def test_writing_again_removes_pages_of_commands_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("old")

    main(tmp_path)

    assert not (tmp_path / "gone.md").exists()
    assert (tmp_path / "send.md").exists()
