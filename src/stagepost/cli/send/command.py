"""`stagepost send`: sign a message and hand it to a node, or hand an external message to a full node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.message import evolved_key_option
from stagepost.cli.options.delivery import (
    Required,
    delivery_settings,
    goes_to_full_node,
    is_given,
    pools_given,
    publisher_config,
    require_fitting_options,
    required_given,
    with_settings_file,
)
from stagepost.cli.options.shared import duration_given, json_option, socket_and_magic, with_local_node
from stagepost.delivery.config import OUTBOX_DIR

if TYPE_CHECKING:
    from stagepost.client import Accepted, DmqMessage, Rejected

TTL = "29m50s"
"""Ten seconds below what networks allow: a clock that is a little fast must not make a message too far ahead."""

TOPIC = "default"
SUBMIT_TIMEOUT = "30s"


@click.command()
@click.argument("source", metavar="[FILE|-|TEXT]", required=False)
@click.option("--keys", "folder", type=click.Path(path_type=Path), help="Folder of `keys new`; to sign with.")
@with_local_node
@click.option("--topic", default=TOPIC, show_default=True, help="What listeners filter by; not with --raw.")
@click.option(
    "--ttl",
    "ttl_s",
    metavar="DURATION",
    default=TTL,
    show_default=True,
    callback=duration_given,
    help="Time to live.",
)
@click.option(
    "--kes-period",
    type=click.IntRange(min=0),
    help="For networks without a known clock. Default: the present period; without a clock, that of the key file.",
)
@evolved_key_option
@click.option("--raw", is_flag=True, help="The bytes are the whole body: no envelope, no padding.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    default=SUBMIT_TIMEOUT,
    show_default=True,
    callback=duration_given,
    help="How long to wait for the node's answer, or for the outcome of --wait.",
)
@click.option(
    "--tier",
    type=click.Choice(["best-effort", "queued", "acked"]),
    help="Deliver reliably: try once with a peer connected, store and send, or have it acknowledged.",
)
@click.option(
    "--wait",
    type=click.Choice(["queued", "sent", "acked", "optimistic", "accepted", "final"]),
    help="End when it is stored, sent or acknowledged. [sent; acked for --tier acked] For an external message: when "
    "validators have it queued, in a block (optimistic), in an accepted block, or it is final.",
)
@click.option(
    "--critical",
    metavar="POOL",
    multiple=True,
    callback=pools_given,
    help="Who shall acknowledge; may be repeated.",
)
@click.option(
    "--require",
    "required",
    metavar="any|all|K",
    callback=required_given,
    help="How many of them. [any]",
)
@click.option(
    "--ack-timeout",
    "ack_timeout_s",
    metavar="DURATION",
    callback=duration_given,
    help="How long to wait for them after each attempt. [5s]",
)
@click.option("--max-retries", type=click.IntRange(0, 100), help="Attempts after the first one. [3]")
@click.option(
    "--outbox",
    type=click.Path(path_type=Path),
    help=f"Folder where the message is kept until it is delivered. [{OUTBOX_DIR} for --tier queued]",
)
@click.option("--key", help="Idempotency key: the same key, topic and content are one message.")
@click.option(
    "--to", metavar="ACCOUNT|NAME", help="An external message of the embedded chain, to this account …"
)
@click.option("--number", type=int, help="… adding the primes up to this number to what it holds.")
@with_settings_file
@json_option
@click.pass_context
def send(
    context: click.Context,
    source: str | None,
    folder: Path | None,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    topic: str,
    ttl_s: float,
    kes_period: int | None,
    evolved_key: Path | None,
    raw: bool,
    timeout_s: float,
    tier: str | None,
    wait: str | None,
    critical: tuple[str, ...],
    required: Required | None,
    ack_timeout_s: float | None,
    max_retries: int | None,
    outbox: Path | None,
    key: str | None,
    to: str | None,
    number: int | None,
    config_file: Path | None,
    config_context: str | None,
    as_json: bool,
) -> None:
    """Sign FILE, standard input (-) or TEXT and submit it to a node. Exit code 1 if the node rejects it.

    Content goes into the delivery envelope, with its topic, and is padded to the least that networks carry.
    An argument that names no file is taken as text, unless it looks like the name of one.

    Without --tier the node takes it, and nobody looks what comes of it. With --tier, exit code 0 means that the
    outcome asked for has come; 1 that it has not; 3 that nobody could be reached.

    Without --keys, FILE is an external message as it stands, and goes to the full node that runs in --data; each stage is
    told as it comes. Exit code 1 means that it was rejected, has expired, or did not come so far within --timeout.

    \b
    Example:
      stagepost send "hello" --keys my-pool --topic demo
      stagepost send report.cbor --keys my-pool --tier acked --critical pool1…
      stagepost send message.bin --wait final --data stagepost-devnet
      stagepost send --to alice --number 100 --wait final --data stagepost-devnet
    """
    import asyncio
    import time

    from stagepost.cli.options.shared import disable_core_dumps

    if goes_to_full_node(context, folder, data, to, number, source):
        context.exit(asyncio.run(_to_full_node(context, source, data, to, number, wait, timeout_s, as_json)))
    if source is None:
        raise click.UsageError("Missing argument '[FILE|-|TEXT]'.", context)
    if folder is None:
        raise click.UsageError("Missing option '--keys'.", context)
    disable_core_dumps()
    settings = {} if tier is None else delivery_settings(config_file, config_context)
    if tier == "acked":
        critical = critical or settings.get("critical_peers", ())
    require_fitting_options(context, tier, wait, critical, required)
    content = _content(source)
    socket_path, magic = socket_and_magic(socket, network_magic, data)
    if tier is not None:
        from stagepost.cli.send.reliably import Delivery, DeliverySession, deliver
        from stagepost.delivery.status import DeliveryStatus, Tier

        if tier == "queued" and outbox is None:
            outbox = Path(OUTBOX_DIR)
        config = publisher_config(
            outbox,
            settings,
            critical=critical,
            required=required,
            ack_timeout_s=ack_timeout_s,
            max_retries=max_retries,
        )
        session = DeliverySession(socket_path, magic, profile, folder, config, data, ttl_s)
        goal = DeliveryStatus((wait or ("acked" if tier == "acked" else "sent")).capitalize())
        # An acked call knows by its attempts how long it takes, unless it is told.
        limit_s = timeout_s if tier == "queued" or is_given(context, "timeout_s") else None
        delivery = Delivery(content, topic, Tier(tier), goal, limit_s, key, outbox, as_json)
        context.exit(asyncio.run(deliver(session, delivery)))
    now = time.time()
    message, delivery_id = _sign(
        content, folder, evolved_key, None if raw else topic, ttl_s, magic, kes_period, now
    )
    outcome = asyncio.run(_submit(message, socket_path, magic, profile, timeout_s))
    _show(message, delivery_id, outcome, ttl_s, as_json)
    if _is_rejected(outcome):
        context.exit(1)


async def _to_full_node(
    context: click.Context,
    source: str | None,
    data: Path | None,
    to: str | None,
    number: int | None,
    wait: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    from stagepost.cli.send.external import WAIT_TIMEOUT_S, Handing, hand_over, sum_message
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.remp.message import MESSAGE_BYTES_MAX
    from stagepost.remp.verdict.message_verdict import Awaited

    if to is not None and number is not None:
        content = sum_message(to, number, context)
    else:
        assert source is not None, "one of the two was given"
        content = _content(source, MESSAGE_BYTES_MAX)
    awaited = None if wait in (None, "sent") else Awaited(wait)
    limit_s = timeout_s if awaited is None or is_given(context, "timeout_s") else WAIT_TIMEOUT_S
    return await hand_over(Handing(data or Path(DATA_DIR), content, awaited, limit_s, as_json))


def _content(source: str, bytes_max: int | None = None) -> bytes:
    from stagepost.cli.options.shared import read_input
    from stagepost.dmq.message import BODY_BYTES_MAX
    from stagepost.errors import StorageError

    if source == "-" or os.path.isfile(source):  # long texts are no names, and no error either
        return read_input(source, BODY_BYTES_MAX if bytes_max is None else bytes_max)
    if _looks_like_a_file_name(source):
        raise StorageError(
            f"there is no file {source}",
            advice="to send these very words, pipe them in: … | stagepost send -",
        )
    return source.encode()


def _looks_like_a_file_name(text: str) -> bool:
    """A mistyped name should not be published to the world in place of the file."""
    has_blanks = any(character.isspace() for character in text)
    return not has_blanks and ("/" in text or Path(text).suffix != "")


def _sign(
    content: bytes,
    folder: Path,
    evolved_key: Path | None,
    topic: str | None,
    ttl_s: float,
    magic: int,
    kes_period: int | None,
    now: float,
) -> tuple[DmqMessage, bytes | None]:
    """The message and its delivery id. Without a topic the content is the whole body."""
    import secrets

    from stagepost.delivery.envelope import DataEnvelope
    from stagepost.delivery.identity import NONCE_BYTES
    from stagepost.dmq.keys.signing_pair import kes_schedule_for, load_signing_pair

    pair = load_signing_pair(folder, evolved_key)
    try:
        body, delivery_id = content, None
        if topic is not None:
            envelope = DataEnvelope(topic, secrets.token_bytes(NONCE_BYTES), int(now * 1_000), content)
            body = envelope.encode()
            delivery_id = envelope.delivery_id(pair.pool_id)
        message = pair.sign(
            body,
            kes_period=pair.period_at(kes_schedule_for(magic), now, asked_for=kes_period),
            expires_at=int(now + ttl_s),
        )
    finally:
        pair.erase()
    return message, delivery_id


async def _submit(
    message: DmqMessage, socket_path: str, magic: int, profile: str, timeout_s: float
) -> Accepted | Rejected:
    from stagepost.client import AsyncClient

    async with AsyncClient.connect(socket_path, magic, profile) as client:
        return await client.submit(message, timeout_s=timeout_s)


def _is_rejected(outcome: Accepted | Rejected) -> bool:
    from stagepost.client import Rejected

    return isinstance(outcome, Rejected)


def _show(
    message: DmqMessage, delivery_id: bytes | None, outcome: Accepted | Rejected, ttl_s: float, as_json: bool
) -> None:
    import time

    from stagepost.cli.send import lines as rejections
    from stagepost.client import Rejected
    from stagepost.ground.files.durations import format_duration
    from stagepost.ground.identifiers import abbreviated

    rejected = outcome if isinstance(outcome, Rejected) else None
    if as_json:
        facts = {
            "message_id": message.message_id.hex(),
            "delivery_id": None if delivery_id is None else delivery_id.hex(),
            "outcome": "accepted" if rejected is None else "rejected",
            "expires_at_ms": message.expires_at * 1_000,
            "reason": None if rejected is None else rejected.reason.value,
            "text": None if rejected is None else rejections.sentence(message, rejected, time.time()),
            "code": None if rejected is None or rejected.code is None else rejected.code.value,
        }
        click.echo(json.dumps(facts))
        return
    shown_id = abbreviated(message.message_id)
    if rejected is None:
        click.echo(f"sent     {shown_id}   the node holds it   expires in {format_duration(ttl_s)}")
        return
    click.echo(f"rejected {shown_id}: {rejections.sentence(message, rejected, time.time())}", err=True)
    click.echo(f"  {rejections.advice(rejected)}", err=True)
    click.echo(rejections.code_text(rejected), err=True)
