"""Every `stagepost …` that a page of the documentation shows: the command is there, and so are its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stagepost.cli import main
from stagepost.cli.pipeline.submit import JOBS

ROOT = Path(__file__).parents[4]
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"})
"""Without that which tells of commands as they once were."""

BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUOTED = re.compile(r"`(stagepost [^`\n]+)`")
COMMAND = re.compile(r"(?:\$ )?(stagepost (?:-|[a-z]+(?: |$)).*)")
FORM = re.compile(r"stagepost [a-z -]*\[OPTIONS\]")
"""Beginning of the line that says how a command is called; nobody copies it."""
OPTION = re.compile(r"--?[A-Za-z][A-Za-z-]*")
FOR_ALL = {"--help"}


def written_out(text: str) -> Iterator[str]:
    """The lines of blocks that are commands, as somebody would copy them."""
    for block in BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if (found := COMMAND.fullmatch(line)) and not FORM.match(found[1]):
                yield found[1].partition(" # ")[0]


def mentioned(text: str) -> Iterator[str]:
    """What stands in a sentence: it need not be whole."""
    for found in QUOTED.findall(BLOCK.sub("", text)):
        if COMMAND.fullmatch(found):
            yield found


def faults(line: str, *, is_whole: bool) -> list[str]:
    """What the command line would not take. Brackets around what may be left out are none of it."""
    words = re.sub(r"[\[\]]", " ", line).split()[1:]
    command: click.Command = main.stagepost
    named = ["stagepost"]
    while isinstance(command, click.Group) and words and words[0].isidentifier() and words[0].islower():
        below = command.get_command(click.Context(command), words[0])
        if below is None:
            return [f"{' '.join(named)} has no command {words[0]}"]
        command = below
        named.append(words.pop(0))
    if named[1:] == ["pipeline", "submit"] and (places := [words.index(job) for job in JOBS if job in words]):
        # What stands behind the job's name is the job's own.
        job = f"stagepost pipeline {' '.join(words[min(places) :])}"
        return [*_faults_of(command, named, words[: min(places)], is_whole), *faults(job, is_whole=is_whole)]
    return _faults_of(command, named, words, is_whole)


def _faults_of(command: click.Command, named: list[str], words: list[str], is_whole: bool) -> list[str]:
    name = " ".join(named)
    options = [one for one in command.params if isinstance(one, click.Option)]
    known = {opt for one in options for opt in (*one.opts, *one.secondary_opts)} | FOR_ALL
    given = {word.partition("=")[0] for word in words if OPTION.fullmatch(word.partition("=")[0])}
    found = [f"{name} has no option {one}" for one in sorted(given - known)]
    if is_whole:
        found += [
            f"{name} needs {one.opts[0]}" for one in options if one.required and not given & {*one.opts}
        ]
        if isinstance(command, click.Group) and not given:
            found.append(f"{name} needs a command")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_options_that_a_page_shows_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = [(line, fault) for line in written_out(text) for fault in faults(line, is_whole=True)]
    found += [(line, fault) for line in mentioned(text) for fault in faults(line, is_whole=False)]
    assert found == []


def test_pages_show_commands_at_all() -> None:
    by_page = {
        str(path.relative_to(ROOT)): [*written_out(path.read_text(encoding="utf-8"))] for path in PAGES
    }
    assert len(by_page["docs/kafka.md"]) >= 5
    assert len(by_page["docs/cluster.md"]) >= 3
    assert sum(map(len, by_page.values())) >= 40


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("stagepost pipelin run", "stagepost has no command pipelin"),
        ("stagepost pipeline rum --once", "stagepost pipeline has no command rum"),
        ("stagepost kafka start --dat broker [--port N]", "stagepost kafka start has no option --dat"),
        ("stagepost kafka jars -E a=b", "stagepost kafka jars has no option -E"),
        ("stagepost pipeline report --out=page.html", "stagepost pipeline report needs --tables"),
        ("stagepost pipeline", "stagepost pipeline needs a command"),
        (
            "stagepost pipeline submit --master spark://HOST:PORT --archive a.zip compact --tables t --kept 1d",
            "stagepost pipeline compact has no option --kept",
        ),
        (
            "stagepost pipeline submit --archive a.zip --conf a=b compact --tables t",
            "stagepost pipeline submit needs --master",
        ),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, fault: str) -> None:
    (shown,) = written_out(f"Do this:\n\n```bash\n{line}  # at once\n```\n")
    assert faults(shown, is_whole=True) == [fault]


def test_a_sentence_may_show_a_part_of_a_command() -> None:
    assert [*mentioned("with `stagepost pipeline run --once`, not `stagepost publish, acked`")] == [
        "stagepost pipeline run --once"
    ]
    assert faults("stagepost pipeline run --once", is_whole=False) == []
