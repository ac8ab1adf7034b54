"""`stagepost submit`: give an external message to a full node, and follow it as far as `--wait` says."""

from __future__ import annotations

from pathlib import Path

import click

from stagepost.cli.options.shared import data_option, duration_given, json_option


@click.command()
@click.argument("source", metavar="[FILE|-|TEXT]", required=False)
@click.option("--to", metavar="ACCOUNT|NAME", help="A message of the embedded chain, to this account …")
@click.option("--number", type=int, help="… adding the primes up to this number to what the account holds.")
@data_option
@click.option(
    "--wait",
    type=click.Choice(["queued", "optimistic", "accepted", "final"]),
    help="End when validators have queued the message, when a block has it (optimistic), when an accepted block has it, "
    "or when it is final. [end when the full node has it]",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    callback=duration_given,
    help="How long to wait for the full node's answer, or for the outcome of --wait. [30s; 5m with --wait]",
)
@json_option
@click.pass_context
def submit(
    context: click.Context,
    source: str | None,
    to: str | None,
    number: int | None,
    data: Path | None,
    wait: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Submit an external message to the chain, by the full node that runs in --data, and print each stage that it reaches.

    FILE, standard input (-) or TEXT is the message as the chain has it: nothing is signed and nothing is added.
    --to and --number make a message of the embedded chain instead.

    Exit code 0 means that the outcome asked for has come; 1 that the message was refused, was rejected, has expired, or
    did not come so far within --timeout; 3 that no full node could be reached.

    \b
    Example:
      stagepost submit message.bin --wait final --data stagepost-devnet
      stagepost submit --to alice --number 100 --wait final --data stagepost-devnet
    """
    context.exit(submit_external(context, source, to, number, data, wait, timeout_s, as_json))


def submit_external(
    context: click.Context,
    source: str | None,
    to: str | None,
    number: int | None,
    data: Path | None,
    wait: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Submit the message and return the exit status. A message is either `source`, or `to` and `number`."""
    import asyncio

    from stagepost.cli.options.shared import read_content
    from stagepost.cli.submit.external import (
        ANSWER_TIMEOUT_S,
        WAIT_TIMEOUT_S,
        Submission,
        submit_and_follow,
        sum_message,
    )
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.remp.message import MESSAGE_BYTES_MAX
    from stagepost.remp.verdict.message_verdict import Awaited

    if (to is None) is not (number is None):
        raise click.UsageError("--to and --number belong together", context)
    if to is not None and number is not None and source is None:
        content = sum_message(to, number, context)
    elif source is not None and to is None:
        content = read_content(source, MESSAGE_BYTES_MAX, "stagepost submit")
    else:
        raise click.UsageError("give either a message (FILE|-|TEXT), or --to and --number", context)
    awaited = None if wait is None else Awaited(wait)
    limit_s = timeout_s or (ANSWER_TIMEOUT_S if awaited is None else WAIT_TIMEOUT_S)
    submission = Submission(data or Path(DATA_DIR), content, awaited, limit_s, as_json)
    return asyncio.run(submit_and_follow(submission))
