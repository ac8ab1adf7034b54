"""The command `stagepost`: finds the subcommand, and turns errors into one sentence, advice, code and exit status.

What stands before the command counts for it: `stagepost --config FILE --context NAME …`.
"""

from __future__ import annotations

import importlib
import io
import json
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
from stagepost.cli.options.shared import name_numbers
from stagepost.errors import (
    ConfigError,
    ConfigFaults,
    ErrorCode,
    StagepostError,
    StorageError,
    TransportError,
)

SUGGESTIONS_MAX = 3
SUGGESTION_LIKENESS = 0.6
"""Share, from 0 to 1, in which two names must agree."""
USAGE_CODE = "USAGE"
"""Code of a mistake on the command line, in errors as JSON."""


@dataclass
class CommandContext:
    """Kept as the object of the outermost context. `is_used`: whether the command has asked for the settings file."""

    verbose: bool = False
    quiet: bool = False
    config_file: str | None = None
    context_name: str | None = None
    is_used: bool = False


def common() -> CommandContext:
    """Return the common options of the command that runs now; empty options where none runs."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.find_root().obj
    return found if isinstance(found, CommandContext) else CommandContext()


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
    "demo": ("stagepost.cli.demo.command", "run a whole network once: messages, a trace, tables"),
    "devnet": ("stagepost.cli.devnet", "run a network of validators and a full node on this machine"),
    "keys": ("stagepost.cli.keys", "make test keys; show key files and KES periods left"),
    "config": ("stagepost.cli.config", "write, check or print the configuration"),
    "node": ("stagepost.cli.node", "run a DMQ node, a full node or a validator"),
    "network": ("stagepost.cli.network.command", "found, join, change or show a network of validators"),
    "message": ("stagepost.cli.message", "make, send, inspect or verify one DMQ message"),
    "conform": (
        "stagepost.cli.conform.command",
        "try anybody's DMQ node and name each rule that it breaks",
    ),
    "wire": ("stagepost.cli.wire.command", "explain a captured byte stream"),
    "send": ("stagepost.cli.send.command", "sign a message for a topic; send it once or deliver it reliably"),
    "submit": (
        "stagepost.cli.submit.command",
        "submit an external message to the chain and follow it",
    ),
    "listen": (
        "stagepost.cli.listen.command",
        "show messages of a DMQ node, or receipts of a full node, as they come",
    ),
    "observe": (
        "stagepost.cli.observe.command",
        "show by stake which pools sign Mithril's beacons, and record it for the tables",
    ),
    "trace": ("stagepost.cli.trace.command", "show every receipt of one message, a lane for each source"),
    "telemetry": (
        "stagepost.cli.telemetry",
        "write the records of messages as traces to an OpenTelemetry collector",
    ),
    "sets": ("stagepost.cli.sets", "write the validator sets of a data folder to a file"),
    "prove": ("stagepost.cli.prove", "write the proof of a message's end to a file that anybody can check"),
    "verify": (
        "stagepost.cli.verify",
        "check a proof, or the receipts of a file or topic dump, without a node",
    ),
    "queue": (
        "stagepost.cli.queue.command",
        "list or handle waiting messages of a node or an outbox",
    ),
    "peers": ("stagepost.cli.peers", "show the peers of nodes and their state"),
    "export": ("stagepost.cli.export", "write messages or receipts of the tables, by filter, to a file"),
    "pipeline": ("stagepost.cli.pipeline.command", "make verified tables from topics and dumps, by Spark"),
    "kafka": (
        "stagepost.cli.kafka",
        "run a Kafka broker on this machine, to try things out",
    ),
    "check": ("stagepost.cli.check", "report whether the network can finish a message now"),
    "chain": ("stagepost.cli.chain", "show and check the embedded chain of a data folder"),
    "serve": ("stagepost.cli.serve", "serve the dashboard, API and metrics of a data folder"),
    "backup": ("stagepost.cli.backup.command", "copy the data folder of a node, also while it runs"),
    "restore": ("stagepost.cli.backup.command", "make a data folder from a backup"),
    "topic": ("stagepost.cli.topic", "list, check, dump or serve the topics of a data folder"),
}


OTHER_NAMES = {"dmq-node": ("node", "dmq")}
"""Commands by the name under which a link starts the program, so that a service line of dmq-node stays as it is."""


def _similar(name: str, known: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, known, SUGGESTIONS_MAX, SUGGESTION_LIKENESS)


class Subcommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = getattr(importlib.import_module(SUBCOMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        take_local_paths_only(command)
        name_numbers(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, name those that are written much like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = _similar(args[0], list(SUBCOMMANDS)) if args else []
            if not near or "Did you mean" in error.format_message():
                raise
            raise click.UsageError(
                f"{error.format_message()} Did you mean {' or '.join(near)}?", ctx
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in SUBCOMMANDS.items()])


@click.command(cls=Subcommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stagepost")
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only: no progress, no notes.")
@click.option("-v", "--verbose", is_flag=True, help="Print the traceback of an error to stderr.")
@click.option(
    "--no-color", is_flag=True, help="Print no colours, also on a terminal; NO_COLOR does the same."
)
@click.option("--config", metavar="FILE", help="Settings file, for commands that read one. [stagepost.toml]")
@click.option(
    "--context",
    "name",
    metavar="NAME",
    help="Let [contexts.NAME] of the settings file override its other settings.",
)
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
    """Carry a message from a program to finality, and prove every step.

    \b
    Example:
      stagepost demo
    """
    context.obj = CommandContext(verbose, quiet, config, name)
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
    if arguments is None:
        arguments = [*OTHER_NAMES.get(os.path.basename(sys.argv[0]), ()), *sys.argv[1:]]
    sys.exit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit status that it ends with."""
    verbose = any(argument in ("-v", "--verbose") for argument in arguments)
    as_json = "--json" in arguments
    try:
        outcome = stagepost.main(args=list(arguments), prog_name="stagepost", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        if as_json:
            _show_json(error.format_message(), "", USAGE_CODE, error.exit_code)
        else:
            error.show()
        return error.exit_code
    except StagepostError as error:
        if verbose:
            import traceback

            traceback.print_exc()
        if as_json:
            _show_json(error.text, error.advice, error.code, exit_status(error))
        else:
            show_error(error)
        return exit_status(error)
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; that is no fault.
        sys.stderr.close()
        return DONE
    except OSError as error:
        if verbose:
            import traceback

            traceback.print_exc()
        refusal = _refusal_of(error)
        if as_json:
            _show_json(refusal.text, refusal.advice, refusal.code, UNREACHABLE)
        else:
            show_error(refusal)
        return UNREACHABLE
    return outcome if isinstance(outcome, int) else DONE


def _refusal_of(error: OSError) -> StorageError:
    """Return what the system refused as an error with the file's name, where a command did not say it better."""
    reason = (error.strerror or str(error) or "unknown reason").lower()
    where = f"{error.filename} cannot be used" if error.filename else "the system refused a call"
    return StorageError(
        f"{where}: {reason}", advice="check the path, its permissions and the space left on the disk"
    )


def _show_json(text: str, advice: str, code: str, exit_code: int) -> None:
    """Print an error as one JSON object to stderr: results alone go to stdout."""
    facts = {"error": text, "advice": advice, "code": str(code), "exit_code": exit_code}
    click.echo(json.dumps(facts, ensure_ascii=False), err=True)


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
