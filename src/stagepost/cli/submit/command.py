"""`stagepost submit`: give an external message to a full node, and follow it as far as `--wait` says."""

from __future__ import annotations

from math import inf, isinf
from pathlib import Path

import click

from stagepost.cli.options.shared import data_option, duration_given, duration_option, json_option

EXPIRES_NEVER = (
    "the message never expires: it can be proved executed, and never that it will not be executed; "
    "do not send it again under another id"
)


def _life_given(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    return inf if value == "never" else duration_given(context, option, value)


@click.command()
@click.argument("source", metavar="[FILE|-|TEXT]", required=False)
@click.option(
    "--to",
    metavar="ACCOUNT|NAME",
    help="Make a message of the embedded chain for this account; needs --number.",
)
@click.option(
    "--number",
    type=int,
    help="With --to: add the sum of the primes up to this number to the account's balance.",
)
@click.option(
    "--expires",
    "life_s",
    metavar="DURATION|never",
    callback=_life_given,
    help="With --to: how long after its submission the message expires. After that, and only then, it can be proved that "
    "it will never be executed. `never` works only in networks whose configuration allows it. [60s]",
)
@data_option
@click.option(
    "--wait",
    type=click.Choice(["queued", "optimistic", "accepted", "final"]),
    help="End when a validator has queued the message, when a block holds it (optimistic), when an accepted block holds it, "
    "or when it is final. [end when the full node has it]",
)
@duration_option(
    "--timeout",
    "timeout_s",
    default=None,
    help="How long to wait for the full node's answer, or for the stage of --wait. [30s; 5m with --wait]",
)
@json_option
@click.pass_context
def submit(
    context: click.Context,
    source: str | None,
    to: str | None,
    number: int | None,
    life_s: float | None,
    data: Path | None,
    wait: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Submit an external message to the full node that runs in --data, and print each stage that the message reaches.

    FILE, standard input (-) or TEXT is the whole message as the chain reads it: the command signs and adds nothing.
    --to and --number make a message of the embedded chain instead.

    Exit code 0 means that the outcome asked for has come, for --wait final with a proof that the message was executed; 1
    that the message was refused here and nothing was sent, that it is proved that it will never be executed or was executed
    as another one, or that it did not come as far as another --wait asks within --timeout; 4, for --wait final, that the end
    is not known yet: do not send the message again under another id; 3 that no full node could be reached.

    \b
    Example:
      stagepost submit message.bin --wait final --data stagepost-devnet
      stagepost submit --to alice --number 100 --wait final --data stagepost-devnet
    """
    context.exit(submit_external(context, source, to, number, data, wait, timeout_s, as_json, life_s))


def submit_external(
    context: click.Context,
    source: str | None,
    to: str | None,
    number: int | None,
    data: Path | None,
    wait: str | None,
    timeout_s: float | None,
    as_json: bool,
    life_s: float | None = None,
) -> int:
    """Submit the message and return the exit status. A message is either `source`, or `to` and `number`, and then
    expires after `life_s`.
    """
    import asyncio

    from stagepost.chain.messages import CLIENT_LIFE_S
    from stagepost.cli.options.shared import read_content
    from stagepost.cli.submit.external import (
        ANSWER_TIMEOUT_S,
        WAIT_TIMEOUT_S,
        SubmitRequest,
        submit_and_follow,
        sum_message,
    )
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.remp.message import MESSAGE_BYTES_MAX
    from stagepost.remp.verdict.message_verdict import Awaited

    if (to is None) is not (number is None):
        raise click.UsageError("--to and --number need each other", context)
    if to is not None and number is not None and source is None:
        content = sum_message(to, number, CLIENT_LIFE_S if life_s is None else life_s, context)
        if life_s is not None and isinf(life_s):
            click.echo(EXPIRES_NEVER, err=True)
    elif life_s is not None:
        raise click.UsageError(
            "--expires needs --to and --number: other messages name their expiry themselves", context
        )
    elif source is not None and to is None:
        content = read_content(source, MESSAGE_BYTES_MAX, "stagepost submit")
    else:
        raise click.UsageError("give either a message (FILE|-|TEXT), or --to and --number", context)
    awaited = None if wait is None else Awaited(wait)
    limit_s = timeout_s or (ANSWER_TIMEOUT_S if awaited is None else WAIT_TIMEOUT_S)
    submission = SubmitRequest(data or Path(DATA_DIR), content, awaited, limit_s, as_json)
    return asyncio.run(submit_and_follow(submission))
