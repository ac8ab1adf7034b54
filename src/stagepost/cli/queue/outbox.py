"""`stagepost queue show|flush|replay|check`: the outbox of a publisher, looked at and emptied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.delivery import (
    EntryName,
    SigningSource,
    delivery_settings,
    entry_given,
    kes_clock_given,
    keys_given,
    keys_option,
    outbox_option,
    publisher_config,
    webhook_in,
    with_settings_file,
    with_signing_source,
)
from stagepost.cli.options.shared import duration_given, json_option, socket_and_magic, with_local_node
from stagepost.cli.send.lines import print_json
from stagepost.delivery.stores.reading import OutboxCheck

if TYPE_CHECKING:
    from stagepost.ground.net.webhook import WebhookConfig


FLUSH_TIMEOUT = "60s"

_timeout_option = click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    default=FLUSH_TIMEOUT,
    show_default=True,
    callback=duration_given,
    help="How long to try; messages not sent by then stay in the outbox.",
)


@click.command()
@click.argument("message", metavar="ID", callback=entry_given)
@outbox_option
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Show a message of the node that runs in this folder instead.",
)
@json_option
@click.pass_context
def show(context: click.Context, message: EntryName, outbox: Path, data: Path | None, as_json: bool) -> int:
    """Show one message of an outbox, waiting or failed, or of a running node. ID is at least the first eight digits.

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
        return show_held(data, message.prefix, as_json=as_json)

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
@keys_option
@outbox_option
@with_local_node
@with_signing_source
@_timeout_option
@with_settings_file
@json_option
@click.pass_context
def flush(
    context: click.Context,
    folder: Path | None,
    outbox: Path,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    signing: SigningSource,
    timeout_s: float,
    config_file: Path | None,
    config_context: str | None,
    as_json: bool,
) -> None:
    """Send all messages that wait in an outbox. Exit code 1 if a message is left or has failed.

    \b
    Example:
      stagepost queue flush --keys my-pool
    """
    node, settings = (socket, network_magic, profile, data), delivery_settings(config_file, config_context)
    webhook = webhook_in(config_file, config_context)
    _send_all(context, folder, outbox, node, signing, settings, webhook, None, timeout_s, as_json)


@click.command()
@click.argument("message", metavar="[ID]", required=False, callback=entry_given)
@click.option("--all", "everything", is_flag=True, help="Replay all dead letters.")
@click.option(
    "--proof",
    type=click.Path(path_type=Path),
    help="Give an external message a new expiry, and so a new id: this file proves that it was never executed.",
)
@click.option(
    "--chain-genesis",
    type=click.Path(path_type=Path),
    help="For --proof: the genesis of the chain's network, as the network file or genesis.tl has it.",
)
@keys_option
@outbox_option
@with_local_node
@with_signing_source
@_timeout_option
@with_settings_file
@json_option
@click.pass_context
def replay(
    context: click.Context,
    message: EntryName | None,
    everything: bool,
    proof: Path | None,
    chain_genesis: Path | None,
    folder: Path | None,
    outbox: Path,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    signing: SigningSource,
    timeout_s: float,
    config_file: Path | None,
    config_context: str | None,
    as_json: bool,
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
    wanted = EntryName("") if message is None else message
    node, settings = (socket, network_magic, profile, data), delivery_settings(config_file, config_context)
    webhook = webhook_in(config_file, config_context)
    never = None if proof is None or chain_genesis is None else (proof, chain_genesis)
    _send_all(context, folder, outbox, node, signing, settings, webhook, wanted, timeout_s, as_json, never)


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
    from stagepost.cli.queue.outbox import print_check
    from stagepost.delivery.stores.reading import check_outbox

    if not print_check(check_outbox(outbox), as_json):
        context.exit(NOT_THAT_OUTCOME)


def _send_all(
    context: click.Context,
    folder: Path | None,
    outbox: Path,
    node: tuple[str | None, int | None, str, Path | None],
    signing: SigningSource,
    settings: dict[str, Any],
    webhook: WebhookConfig | None,
    replayed: EntryName | None,
    timeout_s: float,
    as_json: bool,
    never: tuple[Path, Path] | None = None,
) -> None:
    """Send what waits in the outbox. `replayed` names dead letters to try again; an empty prefix names all of them.
    `never`: files of a proof and of the genesis, by which they are stamped anew.
    """
    import asyncio

    from stagepost.cli.options.shared import disable_core_dumps
    from stagepost.cli.queue.listing import UnknownMessage, find_dead_letters, report_damage
    from stagepost.cli.queue.sending import empty_outbox, never_executed
    from stagepost.cli.send.reliably import DeliverySession
    from stagepost.delivery.stores.reading import read_outbox
    from stagepost.ground.files.audit import record_action, user_name

    keys = keys_given(context, folder, signing)
    disable_core_dumps()
    content = read_outbox(outbox)
    try:
        letters = [] if replayed is None else find_dead_letters(content, replayed)
    except UnknownMessage:
        if not content.damage:
            raise
        context.exit(report_damage(content, outbox))
    require_never = None if never is None else never_executed(*never)
    if require_never is not None:
        for letter in letters:
            require_never(letter.record)
    socket, network_magic, profile, data = node
    socket_path, magic = socket_and_magic(socket, network_magic, data)
    # Messages that wait for acknowledgement keep the critical peers whom they were published with.
    kes_clock = kes_clock_given(signing, magic, socket_path, data)
    config = publisher_config(outbox, settings)
    session = DeliverySession(socket_path, magic, profile, keys, config, kes_clock, data, webhook=webhook)
    what = "queue flush" if replayed is None else f"queue replay {str(replayed) or '--all'}"
    record_action(outbox, what, through="cli", who=user_name())
    tiers = {record.delivery_id.hex(): record.tier for record in content.records}
    again = [letter.record for letter in letters]
    status = asyncio.run(empty_outbox(session, tiers, again, timeout_s, as_json, require_never))
    # What could be read was sent; what could not is unknown, and the publisher has set it aside.
    context.exit(report_damage(content, outbox) or status)


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
