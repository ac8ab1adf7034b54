"""`stagepost send`: sign a message for a topic and give it to a node, once or by way of a reliable publisher."""

from __future__ import annotations

from pathlib import Path

import click

from stagepost.cli.options.delivery import (
    DeliveryOptions,
    SigningSource,
    delivery_settings,
    is_given,
    kes_clock_given,
    keys_given,
    publisher_config,
    require_fitting_options,
    webhook_in,
    with_delivery_options,
    with_signing_options,
)
from stagepost.cli.options.shared import json_option, path_option, socket_and_magic, with_local_node
from stagepost.cli.send.former import (
    SendCommand,
    WaitChoice,
    former_value,
    is_external,
    name_present_form,
    submit_external_message,
    with_former_options,
)
from stagepost.delivery.config import OUTBOX_DIR

TOPIC = "default"


@click.command(cls=SendCommand)
@click.argument("source", metavar="FILE|-|TEXT", required=False)
@path_option("--keys", "folder", help="Folder with the pool's keys, as `keys new` makes it.")
@with_local_node
@click.option(
    "--topic", default=TOPIC, show_default=True, help="Topic of the message; listeners filter by it."
)
@with_signing_options
@click.option(
    "--tier",
    type=click.Choice(["best-effort", "queued", "acked"]),
    help="Deliver reliably: send once to a connected peer, store and send, or send until acknowledged.",
)
@click.option(
    "--wait",
    type=WaitChoice(),
    metavar="[queued|sent|acked]",
    help="End when the message is stored, sent or acknowledged. [sent; acked for --tier acked]",
)
@with_delivery_options
@with_former_options
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
    signing: SigningSource,
    timeout_s: float,
    tier: str | None,
    wait: str | None,
    delivery: DeliveryOptions,
    as_json: bool,
) -> None:
    """Sign FILE, standard input (-) or TEXT for a topic and submit it to a node. Exit code 1 if the node rejects it.

    The content goes into the delivery envelope with its topic, and is padded to the least size that networks carry.
    An argument that is not the name of a file is sent as text, unless it looks like a file name.

    Without --tier the command ends when the node has answered, and does not follow the message. With --tier, exit code 0
    means that the message reached the state of --wait; 1 that it did not; 3 that no node or peer could be reached.

    `stagepost submit` is for external messages of the chain, `stagepost message send` for raw DMQ messages.

    \b
    Example:
      stagepost send "hello" --keys my-pool --topic demo
      stagepost send report.cbor --keys my-pool --tier acked --critical pool1…
    """
    import asyncio

    from stagepost.cli.options.shared import disable_core_dumps, read_content
    from stagepost.dmq.message import BODY_BYTES_MAX

    if is_external(context, folder or signing.kes_agent, data):
        context.exit(submit_external_message(context, source, data, timeout_s, as_json))
    if source is None:
        raise click.UsageError("Missing argument 'FILE|-|TEXT'.", context)
    keys = keys_given(context, folder, signing, evolved_key)
    disable_core_dumps()
    settings = {} if tier is None else delivery_settings(delivery.config_file, delivery.config_context)
    critical = delivery.critical
    if tier == "acked":
        critical = critical or settings.get("critical_peers", ())
    require_fitting_options(context, tier, wait, critical, delivery.required)
    content = read_content(source, BODY_BYTES_MAX, "stagepost send")
    socket_path, magic = socket_and_magic(socket, network_magic, data)
    kes_clock = kes_clock_given(signing, magic, socket_path, data)
    if tier is None:
        from stagepost.cli.send.once import MessageSigner, NodeAddress, sign_and_submit

        is_raw = former_value(context, "raw")
        if is_raw:
            name_present_form(context, "message send", "--raw", "--topic")
        node = NodeAddress(socket_path, magic, profile)
        signer = MessageSigner(keys, evolved_key, kes_period, ttl_s, kes_clock)
        context.exit(sign_and_submit(content, None if is_raw else topic, signer, node, timeout_s, as_json))

    from stagepost.cli.send.reliably import Delivery, DeliverySession, deliver
    from stagepost.delivery.status import DeliveryStatus, Tier

    outbox = Path(OUTBOX_DIR) if tier == "queued" and delivery.outbox is None else delivery.outbox
    config = publisher_config(
        outbox,
        settings,
        critical=critical,
        required=delivery.required,
        ack_timeout_s=delivery.ack_timeout_s,
        max_retries=delivery.max_retries,
    )
    webhook = webhook_in(delivery.config_file, delivery.config_context)
    session = DeliverySession(socket_path, magic, profile, keys, config, kes_clock, data, ttl_s, webhook)
    goal = DeliveryStatus((wait or ("acked" if tier == "acked" else "sent")).capitalize())
    # An acked call knows by its attempts how long it takes, unless a limit is given.
    limit_s = timeout_s if tier == "queued" or is_given(context, "timeout_s") else None
    asked = Delivery(
        content, topic, Tier(tier), goal, limit_s, delivery.key, outbox, as_json, delivery.traceparent
    )
    context.exit(asyncio.run(deliver(session, asked)))
