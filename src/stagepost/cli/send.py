"""`stagepost send`: sign a message and hand it to a node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.durations import duration_given
from stagepost.cli.local_node_options import json_option, socket_and_magic, with_local_node

if TYPE_CHECKING:
    from stagepost.client import Accepted, DmqMessage, Rejected

TTL = "29m50s"
"""Ten seconds below what networks allow: a clock that is a little fast must not make a message too far ahead."""

TOPIC = "default"
SUBMIT_TIMEOUT = "30s"


@click.command()
@click.argument("source", metavar="FILE|-|TEXT")
@click.option(
    "--keys", "folder", required=True, type=click.Path(path_type=Path), help="Folder of `keys new`."
)
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
@click.option("--kes-period", type=click.IntRange(min=0), help="Default: the present period of the key.")
@click.option("--raw", is_flag=True, help="The bytes are the whole body: no envelope, no padding.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    default=SUBMIT_TIMEOUT,
    show_default=True,
    callback=duration_given,
    help="How long to wait for the node's answer.",
)
@json_option
@click.pass_context
def send(
    context: click.Context,
    source: str,
    folder: Path,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    topic: str,
    ttl_s: float,
    kes_period: int | None,
    raw: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Sign FILE, standard input (-) or TEXT and submit it to a node. Exit code 1 if the node rejects it.

    Content goes into the delivery envelope, with its topic, and is padded to the least that networks carry.
    An argument that names no file is taken as text, unless it looks like the name of one.

    \b
    Example:
      stagepost send "hello" --keys my-pool --topic demo
    """
    import asyncio
    import time

    from stagepost.cli.core_dumps import disable_core_dumps

    disable_core_dumps()
    content = _content(source)
    socket_path, magic = socket_and_magic(socket, network_magic, data)
    now = time.time()
    message, delivery_id = _sign(content, folder, None if raw else topic, ttl_s, kes_period, now)
    outcome = asyncio.run(_submit(message, socket_path, magic, profile, timeout_s))
    _show(message, delivery_id, outcome, ttl_s, as_json)
    if _is_rejected(outcome):
        context.exit(1)


def _content(source: str) -> bytes:
    from stagepost.cli.input_bytes import read_input
    from stagepost.dmq.message import BODY_BYTES_MAX
    from stagepost.errors import StorageError

    if source == "-" or os.path.isfile(source):  # long texts are no names, and no error either
        return read_input(source, BODY_BYTES_MAX)
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
    content: bytes, folder: Path, topic: str | None, ttl_s: float, kes_period: int | None, now: float
) -> tuple[DmqMessage, bytes | None]:
    """The message and its delivery id. Without a topic the content is the whole body."""
    import secrets

    from stagepost.crypto.hashing import pool_id
    from stagepost.crypto.kes import SigningKey
    from stagepost.delivery.envelope import NONCE_BYTES, DataEnvelope
    from stagepost.dmq.message import sign_message
    from stagepost.dmq.text_envelope import IssuedCertificate
    from stagepost.identifiers import PoolId
    from stagepost.runtime import key_files
    from stagepost.runtime.pool_keys import CERTIFICATE, KES_SIGNING_KEY

    key = key_files.load_as(SigningKey, folder / KES_SIGNING_KEY)
    issued = key_files.load_as(IssuedCertificate, folder / CERTIFICATE)
    body, delivery_id = content, None
    if topic is not None:
        envelope = DataEnvelope(topic, secrets.token_bytes(NONCE_BYTES), int(now * 1_000), content)
        body = envelope.encode()
        delivery_id = envelope.delivery_id(PoolId(pool_id(issued.cold_verification_key)))
    message = sign_message(
        body,
        key=key,
        certificate=issued.certificate,
        cold_verification_key=issued.cold_verification_key,
        kes_period=issued.certificate.start_kes_period + key.period if kes_period is None else kes_period,
        expires_at=int(now + ttl_s),
    )
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

    from stagepost.cli import rejections
    from stagepost.cli.durations import format_duration
    from stagepost.client import Rejected
    from stagepost.identifiers import abbreviated

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
