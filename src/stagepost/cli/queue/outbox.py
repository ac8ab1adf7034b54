"""`stagepost queue show|flush|replay|check`: the outbox of a publisher, looked at and emptied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.delivery import (
    EmptyingOptions,
    EntryName,
    entry_given,
    entry_or_key_given,
    outbox_option,
    with_emptying_options,
)
from stagepost.cli.options.shared import json_option, path_option
from stagepost.cli.send.lines import print_json

if TYPE_CHECKING:
    from stagepost.delivery.stores.reading import OutboxCheck


@click.command()
@click.argument("message", metavar="ID", callback=entry_or_key_given)
@outbox_option
@path_option("--data", metavar="DIR", help="Show a message of the node that runs in this folder instead.")
@json_option
@click.pass_context
def show(context: click.Context, message: EntryName, outbox: Path, data: Path | None, as_json: bool) -> int:
    """Show one message of an outbox, waiting or failed, or of a running node. ID is any of its ids, at least eight of
    the first digits of one, or its idempotency key.

    A message that failed several times has several dead letters, and all are shown; ID@PLACE shows one of them.

    \b
    Example:
      stagepost queue show 5f0c91aa
      stagepost queue show 5f0c91aa@12
      stagepost queue show 5f0c91aa --data validator-1
    """
    import time

    if data is not None:
        from stagepost.cli.queue.listing import show_held

        if message.place is not None:
            raise click.UsageError(
                "ID@PLACE names a dead letter of an outbox; with --data give the ID only", context
            )
        return show_held(data, message, as_json=as_json)

    from stagepost.cli.queue.listing import UnknownMessage, find_entries, report_damage, show_entries
    from stagepost.delivery.stores.reading import read_outbox

    content = read_outbox(outbox)
    try:
        show_entries(find_entries(content, message, outbox), time.time(), as_json)
    except UnknownMessage:
        # In a damaged outbox nobody knows whether the message is there.
        if not content.damage:
            raise
    return report_damage(content, outbox)


@click.command()
@with_emptying_options
@click.pass_context
def flush(context: click.Context, sending: EmptyingOptions) -> None:
    """Send all messages that wait in an outbox. Exit code 1 if a message is left or has failed.

    \b
    Example:
      stagepost queue flush --keys my-pool
    """
    from stagepost.cli.queue.sending import send_all

    context.exit(send_all(context, sending))


@click.command()
@click.argument("message", metavar="[ID]", required=False, callback=entry_given)
@click.option("--all", "everything", is_flag=True, help="Replay all dead letters.")
@path_option(
    "--proof",
    help="Give an external message a new expiry, and so a new id: this file proves that it was never executed.",
)
@path_option(
    "--chain-genesis",
    help="For --proof: the genesis of the chain's network, as the network file or genesis.tl has it.",
)
@with_emptying_options
@click.pass_context
def replay(
    context: click.Context,
    message: EntryName | None,
    everything: bool,
    proof: Path | None,
    chain_genesis: Path | None,
    sending: EmptyingOptions,
) -> None:
    """Send a dead letter again, or all of them. A receiver that has handled the message does not handle it twice.

    A message that failed several times has several dead letters, and all are replayed; ID@PLACE replays one of them.

    An external message keeps the expiry that its first transmission fixed. If it expired, prove that it was never executed
    (stagepost prove, with the external id that queue show names), and replay it with --proof: it is sent under a new expiry.

    \b
    Example:
      stagepost queue replay 5f0c91aa --keys my-pool
      stagepost queue replay 5f0c91aa@12 --keys my-pool
      stagepost queue replay 5f0c91aa --keys my-pool --proof never.json --chain-genesis network.json
    """
    if (message is None) is not everything:
        raise click.UsageError("give the ID of one dead letter, or --all", context)
    if (proof is None) is not (chain_genesis is None) or (proof is not None and everything):
        raise click.UsageError("--proof and --chain-genesis belong together, and to one ID", context)
    from stagepost.cli.queue.sending import send_all

    wanted = EntryName("") if message is None else message
    never = None if proof is None or chain_genesis is None else (proof, chain_genesis)
    context.exit(send_all(context, sending, wanted, never))


@click.command(name="check")
@outbox_option
@json_option
@click.pass_context
def check_balance(context: click.Context, outbox: Path, as_json: bool) -> None:
    """Verify that every row of an outbox is whole, and that published = acked + sent + failed + waiting. Exit code 1 if not,
    3 if the outbox cannot be read.

    The command changes nothing, and works while the publisher runs.

    \b
    Example:
      stagepost queue check --outbox stagepost-outbox
    """
    from stagepost.delivery.stores.reading import check_outbox

    if not print_check(check_outbox(outbox), as_json):
        context.exit(NOT_THAT_OUTCOME)


def print_check(check: OutboxCheck, as_json: bool) -> bool:
    """Print the totals of the outbox and return whether they balance."""
    if as_json:
        print_json(_facts(check))
        return check.is_sound
    totals = check.totals
    click.echo(f"{_verdict(check.imbalance == 0)}  balance   {_balance(check)}")
    rows = f"{check.live} waiting, dead letters {check.dead_letters}, remembered keys {check.done_keys}"
    click.echo(f"{_verdict(not check.damage)}  rows      {rows}, {check.file_bytes} bytes on disk")
    for sentence in check.damage:
        click.echo(f"        {sentence}")
    for name in check.set_aside:
        click.echo(
            f"        {name}: was damaged; what could be read of it is in the outbox, the rest is lost"
        )
    if totals.failed:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(totals.failed.items()))
        click.echo(f"        failed: {reasons}")
    if check.used_by is not None:
        click.echo(f"        in use by process {check.used_by}")
    return check.is_sound


def _balance(check: OutboxCheck) -> str:
    totals, imbalance = check.totals, check.imbalance
    if imbalance is None:
        return f"unknown: the totals cannot be read; {check.live} waiting"
    balance = (
        f"published {totals.published} = acked {totals.acked} + sent {totals.sent_final}"
        f" + failed {sum(totals.failed.values())} + waiting {check.live}"
    )
    if not imbalance:
        return balance
    what = "missing" if imbalance > 0 else "too many"
    return balance.replace(" = ", " ≠ ") + f": {abs(imbalance)} {what}"


def _verdict(is_well: bool) -> str:
    return click.style("ok   ", fg="green") if is_well else click.style("wrong", fg="red")


def _facts(check: OutboxCheck) -> dict[str, Any]:
    totals = check.totals if check.has_totals else None
    return {
        "sound": check.is_sound,
        "published": None if totals is None else totals.published,
        "acked": None if totals is None else totals.acked,
        "sent_final": None if totals is None else totals.sent_final,
        "failed": None if totals is None else dict(totals.failed),
        "live": check.live,
        "imbalance": check.imbalance,
        "dead_letters": check.dead_letters,
        "damaged_rows": check.damaged_rows,
        "damage": list(check.damage),
        "set_aside": list(check.set_aside),
        "used_by": check.used_by,
        "oldest_created_ms": check.oldest_created_ms,
        "file_bytes": check.file_bytes,
    }
