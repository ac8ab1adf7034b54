"""The command `stagepost`: finds the subcommand, and turns errors into one sentence, advice, code and exit status.

What stands before the command counts for it: `stagepost --config FILE --context NAME …`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass

import click

from stagepost import __version__
from stagepost.cli.exit_codes import DONE, INTERRUPTED, NOT_THAT_OUTCOME, UNREACHABLE, USAGE
from stagepost.cli.options.completion import completion_asked
from stagepost.cli.options.local_paths import take_local_paths_only
from stagepost.errors import (
    ConfigError,
    ConfigFaults,
    ErrorCode,
    StagepostError,
    StorageError,
    TransportError,
)


@dataclass
class Common:
    """Kept as the object of the outermost context. `is_used`: whether the command has asked for the settings file."""

    verbose: bool = False
    quiet: bool = False
    config_file: str | None = None
    context_name: str | None = None
    is_used: bool = False


def common() -> Common:
    """Return the common options of the command that runs now; empty options where none runs."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, Common) else Common()


def file_and_context(config_file: str | None, context_name: str | None) -> tuple[str | None, str | None]:
    """Return the options given to the command itself, else those given before it."""
    given = common()
    given.is_used = True
    return config_file or given.config_file, context_name or given.context_name


def unused_options() -> str | None:
    """A sentence if something was given that the command does not look at."""
    given = common()
    names = [
        name
        for name, value in (("--config", given.config_file), ("--context", given.context_name))
        if value is not None
    ]
    if given.is_used or not names:
        return None
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect on this command"


# Loaded when asked for, so that `stagepost --help` stays quick whatever a subcommand needs.
SUBCOMMANDS = {
    "demo": ("stagepost.cli.demo.command", "the whole thing, embedded: network, messages, a trace, tables"),
    "devnet": ("stagepost.cli.devnet", "a network of full node and validators, from one seed"),
    "keys": ("stagepost.cli.keys", "test keys; KES periods left"),
    "config": ("stagepost.cli.config", "write, test, print the effective configuration"),
    "node": ("stagepost.cli.node", "run one node"),
    "message": ("stagepost.cli.message", "one DMQ message: make, send, inspect, verify"),
    "wire": ("stagepost.cli.wire.command", "a captured byte stream, explained"),
    "send": ("stagepost.cli.send.command", "a message to a topic: signed, sent once or delivered reliably"),
    "submit": (
        "stagepost.cli.submit.command",
        "an external message to the chain, followed until it is final",
    ),
    "listen": (
        "stagepost.cli.listen.command",
        "messages of a DMQ node, receipts of a full node, as they come",
    ),
    "trace": ("stagepost.cli.trace.command", "every receipt of one message, as lanes"),
    "sets": ("stagepost.cli.sets", "validator sets of a data folder, as a file"),
    "verify": ("stagepost.cli.verify", "check receipts or a topic dump offline"),
    "queue": (
        "stagepost.cli.queue.command",
        "what waits, in a node or an outbox: ls, show, flush, replay, check",
    ),
    "peers": ("stagepost.cli.peers", "connections of a node and their state"),
    "export": ("stagepost.cli.export", "messages and receipts of the tables, by filter, as one file"),
    "pipeline": ("stagepost.cli.pipeline.command", "verified tables from topics and dumps, by Spark"),
    "kafka": (
        "stagepost.cli.kafka",
        "a broker on this machine, to try things out: start, stop, status, jars",
    ),
    "check": ("stagepost.cli.check.command", "health of a node, for monitors"),
    "chain": ("stagepost.cli.chain", "the embedded chain of a data folder: shards, sessions, certificates"),
    "serve": ("stagepost.cli.serve", "dashboard, API and metrics of a data folder, in a browser"),
    "topic": ("stagepost.cli.topic", "topics of a data folder: ls, check, dump"),
}


class Subcommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        take_local_paths_only(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in SUBCOMMANDS.items()])


@click.command(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stagepost")
@click.option("-q", "--quiet", is_flag=True, help="Results and errors only: no progress, no notes.")
@click.option("-v", "--verbose", is_flag=True, help="Print the traceback of an error to stderr.")
@click.option("--no-color", is_flag=True, help="No colours, also on a terminal (as NO_COLOR does).")
@click.option("--config", metavar="FILE", help="Settings file, for commands that read one. [stagepost.toml]")
@click.option("--context", "name", metavar="NAME", help="A named part of it: [contexts.NAME].")
@click.option(
    "--install-completion",
    is_flag=False,
    flag_value="auto",
    metavar="[bash|zsh|fish]",
    expose_value=False,
    is_eager=True,
    callback=completion_asked,
    help="Let the shell complete commands and options.",
)
@click.pass_context
def stagepost(
    context: click.Context,
    quiet: bool,
    verbose: bool,
    no_color: bool,
    config: str | None,
    name: str | None,
) -> None:
    """Carry a message from a program's hand to finality, and prove every step.

    \b
    Example:
      stagepost demo
    """
    context.obj = Common(verbose, quiet, config, name)
    if quiet:
        # Errors are shown after the command has ended, by `run`, on the stream that is put back there.
        context.with_resource(redirect_stderr(_Nowhere()))
    context.call_on_close(_tell_unused)
    if no_color or os.environ.get("NO_COLOR"):
        context.color = False


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def _tell_unused() -> None:
    """Report unused options once the command has ended well: after an error people have enough to read."""
    failure = sys.exc_info()[1]
    sentence = unused_options()
    if sentence is not None and (failure is None or isinstance(failure, click.exceptions.Exit)):
        click.echo(sentence, err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit status that it ends with."""
    verbose = any(argument in ("-v", "--verbose") for argument in arguments)
    try:
        outcome = stagepost.main(args=list(arguments), prog_name="stagepost", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except StagepostError as error:
        if verbose:
            import traceback

            traceback.print_exc()
        show_error(error)
        return exit_status(error)
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; that is no fault.
        sys.stderr.close()
        return DONE
    return outcome if isinstance(outcome, int) else DONE


def show_error(error: StagepostError) -> None:
    click.echo(error.text, err=True)
    if error.advice:
        click.echo(f"  {error.advice}", err=True)
    consequence = "  nothing was started" if isinstance(error, ConfigFaults) else ""
    click.echo(f"{error.code}{consequence}", err=True)


def exit_status(error: StagepostError) -> int:
    if isinstance(error, StorageError | TransportError) or error.code is ErrorCode.STORAGE_UNAVAILABLE:
        return UNREACHABLE
    if isinstance(error, ConfigError):
        return USAGE
    return NOT_THAT_OUTCOME


if __name__ == "__main__":
    main()
