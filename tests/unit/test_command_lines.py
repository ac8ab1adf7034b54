"""Every command line that docs, pages and help print is one that the command takes: names, required options, values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stagepost.cli import main

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"```(?:bash|sh|console|text)?\n(.*?)```", re.DOTALL)
_EXAMPLE = re.compile(r"^ +(stagepost [a-z](?:[^\n\\]|\\\\\n)*)$", re.MULTILINE)
_INLINE = re.compile(r"(?:`|<code>)(stagepost (?:[a-z]+ )*[^`<{}\n]*--[^`<{}\n]*)(?:`|</code>)")
_SYNOPSIS = re.compile(r"\[|\bSOURCE\b|…|\.\.\.|\{")
NOT_COMMANDS = {"docs/benchmarks.md"}
"""Pages whose tables name Stagepost beside other systems."""


def printed() -> Iterator[tuple[str, str]]:
    pages = [*ROOT.glob("docs/*.md"), ROOT / "README.md"]
    for path in sorted([*pages, *ROOT.glob("src/stagepost/web/templates/*.html")]):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if name in NOT_COMMANDS:
            continue
        for block in _BLOCK.findall(text):
            for line in re.sub(r"\\\n\s*", " ", block).splitlines():
                if line.strip().removeprefix("$ ").startswith("stagepost "):
                    yield name, line.strip().removeprefix("$ ")
        for line in _INLINE.findall(_BLOCK.sub("", text)):
            yield name, line.strip()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line in _EXAMPLE.findall(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), re.sub(r"\\\\\n\s*", " ", line)


_MENTION = re.compile(r"`(stagepost [a-z][^`\n]*)`|[\"']  (stagepost [a-z][^\"'\n]*)[\"']")
_FIELD = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def mentioned() -> Iterator[tuple[str, str]]:
    """Yield the commands that errors, advice and docstrings name: whole lines, or the command's name and some options."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for quoted, shown in _MENTION.findall(path.read_text(encoding="utf-8")):
            line = _FIELD.sub("\0", quoted or shown)
            # A field behind an option is its value; any other may be words of its own, or none.
            line = re.sub(r"(--[a-z-]+) \0", r"\1 x", line).replace("\0", "")
            if not re.search(r"[|…{]", line):
                yield str(path.relative_to(ROOT)), line


LINES = [(name, line) for name, line in printed() if not _SYNOPSIS.search(line)]


def fault_in(line: str) -> str | None:
    """Return why the command line cannot be run; None if the command takes it."""
    try:
        own = re.split(r"\s+#|\s+[|>]\s*|\s&&\s", re.sub(r"\bID\b", "16923245c4bd5776", line))[0]
        words = shlex.split(own)[1:]
        command: click.Command = main.stagepost
        context = click.Context(command)
        while isinstance(command, click.Group):
            while words and words[0].startswith("-"):
                if words.pop(0) in ("--config", "--context"):
                    words.pop(0)
            if not words:
                return None
            found = command.get_command(context, words[0])
            if found is None:
                return f"there is no command {words[0]}"
            command, words = found, words[1:]
            context = click.Context(command, parent=context)
        command.make_context(command.name, words, parent=context.parent)
    except click.exceptions.Exit:
        return None
    except (click.ClickException, ValueError) as error:
        return str(error)
    return None


def test_there_are_command_lines_of_every_kind() -> None:
    assert len(LINES) > 100
    for start in ("docs/", "README.md", "src/stagepost/cli/"):
        assert any(name.startswith(start) for name, _ in LINES), start


@pytest.mark.parametrize(("name", "line"), LINES, ids=[f"{name}: {line[:60]}" for name, line in LINES])
def test_a_printed_command_line_is_taken(name: str, line: str) -> None:
    # A word for words may follow the command after spaces, in output that is shown.
    parts = [line, *(re.split(rf"\s{{{width},}}", line)[0] for width in (2, 5))]
    assert None in [fault_in(one) for one in parts], fault_in(line)


def test_wrong_command_lines_are_found() -> None:
    assert fault_in("stagepost chekc --data x") is not None
    assert fault_in("stagepost check --dta x") is not None
    assert fault_in("stagepost backup --data d") is not None
    assert fault_in("stagepost pipeline run --once --kafka h:1 --topic x extra") is not None


def test_commands_that_errors_and_advice_name_exist() -> None:
    found = {*mentioned()}
    assert len(found) > 100
    faults = [(name, line, fault) for name, line in sorted(found) if (fault := fault_in(line))]
    # A command that is only named lacks what it needs.
    assert [one for one in faults if not one[2].startswith("Missing parameter")] == []
