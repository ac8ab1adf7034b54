"""Write docs/cli from the command line itself: `python tools/cli_docs.py FOLDER`. A test compares the result."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from stagepost.cli import exit_codes
from stagepost.cli.main import SUBCOMMANDS, stagepost

GENERATED = "<!-- Written by `make docs` from the code; changes made here are lost. -->"
EXIT_CODES = {
    exit_codes.DONE: "The command did what it was asked for.",
    exit_codes.NOT_THAT_OUTCOME: "The command ran, and the outcome that it was asked for has not come: a message was rejected, a proof does not hold, a row is damaged.",
    exit_codes.USAGE: "The command line, a setting or a file is wrong; nothing was done.",
    exit_codes.UNREACHABLE: "No node, peer or server could be reached, or a disk refused.",
    exit_codes.NOT_KNOWN_YET: "Time ran out before the end of the message was known: neither a yes nor a no.",
    exit_codes.INTERRUPTED: "The command was interrupted from the keyboard.",
}
_SLUG = re.compile(r"[^a-z0-9]+")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown: lines that click keeps as they are become a block."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text).strip()):
        lines = [line for line in block.splitlines() if line.strip() != "\b"]
        if not lines:
            continue
        if block.lstrip().startswith("\b"):
            head = lines.pop(0) if lines[0].rstrip().endswith(":") and not lines[0].startswith(" ") else None
            if head is not None:
                yield head
            kept = inspect.cleandoc("\n".join(["", *lines]))
            yield f"```text\n{kept}\n```"
        else:
            yield escaped(" ".join(line.strip() for line in lines))


def escaped(text: str) -> str:
    """Return the text with what Markdown would take for tags taken literally."""
    return text.replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*").replace("[", "\\[")


def options_table(command: click.Command, context: click.Context) -> list[str]:
    """Return the table of the command's options, in the order of its help; nothing for a command without any."""
    records = [found for one in command.get_params(context) if (found := one.get_help_record(context))]
    rows = [
        f"| `{name}` | {escaped(' '.join(text.split()))} |"
        for name, text in ((names.replace("|", "\\|"), text) for names, text in records)
        if text and not name.endswith("--help")
    ]
    return ["", "| option | meaning |", "|---|---|", *rows] if rows else []


def section(path: tuple[str, ...], command: click.Command, parent: click.Context) -> list[str]:
    """Return the lines about a command and all commands below it."""
    context = click.Context(command, info_name=path[-1], parent=parent)
    level = "#" * min(len(path), 4)
    title = f"stagepost {' '.join(path)}"
    lines = [f"{level} {title}", ""]
    lines += ["```text", f"{title} {' '.join(command.collect_usage_pieces(context))}", "```", ""]
    for paragraph in paragraphs(command.help or ""):
        lines += [paragraph, ""]
    while lines[-1] == "":
        lines.pop()
    lines += options_table(command, context)
    if isinstance(command, click.Group):
        names = [name for name in command.list_commands(context) if _is_shown(command, context, name)]
        lines += ["", "| command | purpose |", "|---|---|"]
        for name in names:
            below = command.get_command(context, name)
            assert below is not None
            anchor = _SLUG.sub("-", f"stagepost {' '.join(path)} {name}".lower())
            lines.append(f"| [`{name}`](#{anchor}) | {escaped(below.get_short_help_str(200))} |")
        for name in names:
            below = command.get_command(context, name)
            assert below is not None
            lines += ["", *section((*path, name), below, context)]
    return lines


def _is_shown(group: click.Group, context: click.Context, name: str) -> bool:
    command = group.get_command(context, name)
    return command is not None and not command.hidden


def front_page() -> str:
    root = click.Context(stagepost, info_name="stagepost")
    lines = [
        "# Commands",
        "",
        GENERATED,
        "",
        "`stagepost COMMAND --help` prints the same in a terminal, with an example for each command.",
        "",
        "| command | purpose |",
        "|---|---|",
        *(f"| [`{name}`]({name}.md) | {escaped(purpose)} |" for name, (_, purpose) in SUBCOMMANDS.items()),
        "",
        "## Before the command",
        *options_table(stagepost, root),
        "",
        "## Exit codes",
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {escaped(meaning)} |" for code, meaning in EXIT_CODES.items()),
        "",
        "`stagepost check` has the codes that monitors expect: 0 good, 1 warning, 2 bad, 3 unknown.",
    ]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    root = click.Context(stagepost, info_name="stagepost")
    found = {"README.md": front_page()}
    for name in SUBCOMMANDS:
        command = stagepost.get_command(root, name)
        if command is None:
            raise SystemExit(f"the command {name} is listed and cannot be loaded")
        head, *rest = section((name,), command, root)
        found[f"{name}.md"] = "\n".join([head, "", GENERATED, *rest]) + "\n"
    return found


def main(folder: Path) -> None:
    """Write all pages, and remove those of commands that are gone."""
    written = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.md"):
        if stale.name not in written:
            stale.unlink()
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
