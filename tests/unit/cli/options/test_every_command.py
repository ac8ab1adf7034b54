"""The command line as a whole: every command explains itself by an example, answers in JSON, and refuses in the same way."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from stagepost.cli import main
from stagepost.cli.main import CommandContext, file_and_context
from stagepost.cli.options.completion import COMPLETE_VARIABLE, SHELLS, place_for

VERBS = (
    *(
        "demo",
        "devnet",
        "node",
        "send",
        "submit",
        "listen",
        "observe",
        "trace",
        "verify",
        "queue",
        "topic",
        "sets",
        "peers",
        "check",
    ),
    *("export", "pipeline", "kafka", "serve", "keys", "message", "wire", "config"),
)
SUBVERBS = {
    "node": {"dmq", "full", "validator"},
    "queue": {"ls", "show", "flush", "replay", "check"},
    "topic": {"ls", "dump"},
    "sets": {"export"},
    "pipeline": {"run", "backfill", "report", "compact", "check", "export", "submit"},
    "kafka": {"start", "stop"},
    "keys": {"new", "show", "evolve"},
    "message": {"make", "send", "inspect", "verify"},
    "wire": {"inspect"},
    "config": {"init", "check", "show"},
}
JOBS = ("backfill", "run", "compact")
WITHOUT_JSON = {
    "node full": "runs until it is ended, and logs",
    "node validator": "runs until it is ended, and logs",
    "telemetry": "its lines are JSON anyway",
    "topic dump": "its lines are JSON anyway",
    "sets export": "what it writes is JSON anyway",
    "pipeline catalog": "its lines are SQL",
    "pipeline report": "writes a page for people",
    "pipeline submit": "what it runs says --json for itself",
    "serve": "runs until it is ended",
}
"""Commands that print no data, each with its reason."""


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            if below.name == name:  # other names of the same command are for those who guess
                yield from walk(below, (*path, name))


COMMANDS = dict(walk(main.stagepost, ()))
LEAVES = {path: one for path, one in COMMANDS.items() if not isinstance(one, click.Group)}


def named(path: tuple[str, ...]) -> str:
    return " ".join(path) or "stagepost"


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_every_verb_is_there() -> None:
    assert set(VERBS) <= set(main.SUBCOMMANDS)
    for verb, wanted in SUBVERBS.items():
        group = COMMANDS[verb,]
        assert isinstance(group, click.Group)
        assert wanted <= set(group.list_commands(click.Context(group)))


@pytest.mark.parametrize("path", COMMANDS, ids=named)
def test_help_says_what_it_does_and_shows_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*path, "--help"]) == 0

    shown = capsys.readouterr()
    assert shown.err == ""
    examples = shown.out.partition("Example:\n")[2].splitlines()
    start = f"stagepost {' '.join(path)}".strip()
    assert any(line.strip().startswith(start) for line in examples)


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_examples_use_options_that_exist(path: tuple[str, ...]) -> None:
    text = (LEAVES[path].help or "").partition("Example:\n")[2].partition("\n\n")[0]
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = line.split()
        if words[:1] != ["stagepost"]:
            continue
        if words[1:3] == ["pipeline", "submit"]:  # behind the job's name stand the options of the job
            words = words[: next(place for place, word in enumerate(words) if word in JOBS)]
        command = next(
            COMMANDS[tuple(words[1 : 1 + depth])]
            for depth in (3, 2, 1)
            if tuple(words[1 : 1 + depth]) in COMMANDS
        )
        given = {word.partition("=")[0] for word in words if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
        assert given <= options_of(command), line


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_what_prints_data_prints_it_as_json_too(path: tuple[str, ...]) -> None:
    has_json = "--json" in options_of(LEAVES[path])
    assert has_json or named(path) in WITHOUT_JSON, "give it --json, or a reason to have none"


def test_no_reason_is_given_for_a_command_that_has_json() -> None:
    have = {named(path) for path, command in LEAVES.items() if "--json" in options_of(command)}
    assert not have & WITHOUT_JSON.keys()
    assert {named(path) for path in LEAVES} >= WITHOUT_JSON.keys()


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_a_mistake_on_the_command_line_ends_with_2(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main.run([*path, "--no-such-option"])

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--no-such-option" in shown.err
    # Monitors take 2 for critical.
    assert status == (3 if path == ("check",) else 2)


def test_an_unknown_command_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["sned"]) == 2
    assert "sned" in capsys.readouterr().err


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_nobody_is_asked_anything_without_a_terminal(path: tuple[str, ...]) -> None:
    prompting = [parameter for parameter in LEAVES[path].params if getattr(parameter, "prompt", None)]
    assert prompting == []


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("stagepost, version ")


def test_help_loads_little(tmp_path: Path) -> None:
    """How long that takes depends on the machine; how much is loaded does not."""
    code = (
        "import sys; before = set(sys.modules); from stagepost.cli.main import run; run(['--help']); "
        "after = {name for name in sys.modules if name not in before}; "
        "print(len(after), sorted(name.partition('.')[0] for name in after), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    count, _, names = done.stderr.partition(" ")
    assert int(count) <= 150
    heavy = {
        "nacl",
        "msgspec",
        "asyncio",
        "prometheus_client",
        "pyspark",
        "fastapi",
        "duckdb",
        "confluent_kafka",
    }
    assert not heavy & set(re.findall(r"'(\w+)'", names))


# What stands before the command


def test_quiet_leaves_results_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--context", "none", "topic", "ls", "--data", str(tmp_path)]) == 0
    noisy = capsys.readouterr()
    assert main.run(["-q", "--context", "none", "topic", "ls", "--data", str(tmp_path)]) == 0
    quiet = capsys.readouterr()
    assert noisy.out == quiet.out != ""
    assert (noisy.err, quiet.err) == ("--context has no effect on this command\n", "")

    assert main.run(["-q", "topic", "check", "none", "--data", str(tmp_path)]) != 0
    assert "there is no topic none" in capsys.readouterr().err


def test_no_color_is_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, environment in ((["--no-color"], ""), ([], "1")):
        monkeypatch.setenv("NO_COLOR", environment)
        main.run([*arguments, "check", "--data", str(tmp_path)])
        assert "\x1b" not in capsys.readouterr().out


def test_settings_file_and_context_may_stand_before_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "our.toml"
    file.write_text("[node]\nport = 4001\n[contexts.preview]\nnode.port = 4002\n")

    for given, port in (([], "4001"), (["--context", "preview"], "4002")):
        assert main.run(["--config", str(file), *given, "config", "show", "--json"]) == 0
        (shown,) = [line for line in capsys.readouterr().out.splitlines() if '"node.port"' in line]
        assert port in shown

    other = tmp_path / "other.toml"
    other.write_text("[node]\nport = 4003\n")
    assert main.run(["--config", str(file), "config", "show", "--config", str(other), "--json"]) == 0
    assert "4003" in capsys.readouterr().out


def test_outside_of_a_command_nothing_was_given() -> None:
    assert file_and_context("a", "b") == ("a", "b")
    assert file_and_context(None, None) == (None, None)
    assert CommandContext().is_used is False


# Completion


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_written_where_the_shell_looks(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_DATA_HOME", "ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)

    assert main.run(["--install-completion", shell]) == 0

    path = place_for(shell)
    assert path.is_relative_to(tmp_path)
    assert str(path) in capsys.readouterr().out
    assert COMPLETE_VARIABLE in path.read_text()


def test_completion_takes_the_shell_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main.run(["--install-completion"]) == 0
    assert (tmp_path / "fish" / "completions" / "stagepost.fish").exists()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main.run(["--install-completion"]) == 2
    assert main.run(["--install-completion", "tcsh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err


def test_completion_knows_commands_and_options() -> None:
    complete = BashComplete(main.stagepost, {}, "stagepost", COMPLETE_VARIABLE)

    def completed(arguments: list[str], beginning: str) -> set[str]:
        return {item.value for item in complete.get_completions(arguments, beginning)}

    assert completed([], "qu") == {"queue"}
    assert completed(["queue"], "fl") == {"flush"}
    assert completed(["trace"], "--only") == {"--only-trouble"}
    assert completed(["message"], "se") == {"send"}
    assert completed(["submit", "--wait"], "") == {"queued", "optimistic", "accepted", "final"}


def test_completion_offers_no_former_form_of_send() -> None:
    complete = BashComplete(main.stagepost, {}, "stagepost", COMPLETE_VARIABLE)

    assert {item.value for item in complete.get_completions(["send", "--wait"], "")} == {
        "queued",
        "sent",
        "acked",
    }
    offered = {item.value for item in complete.get_completions(["send"], "--")}
    assert offered >= {"--topic", "--tier"}
    assert not offered & {"--raw", "--to", "--number"}
