"""`stagepost message`: make one DMQ message, send it to a node, look into it, and check what it proves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.delivery import (
    SOURCE_FLAGS,
    SigningSource,
    evolved_key_option,
    is_given,
    kes_clock_given,
    keys_given,
    with_signing_options,
)
from stagepost.cli.options.shared import json_option, path_option, socket_and_magic, with_local_node

if TYPE_CHECKING:
    from stagepost.dmq.message import DmqMessage

TTL_S = 1_790
"""Seconds, ten seconds below what networks allow: a clock that is a little fast must not make a message too far ahead."""

profile_option = click.option(
    "--profile",
    type=click.Choice(["dmq-node", "gouroboros", "seed"]),
    default="dmq-node",
    show_default=True,
    help="Wire profile; `seed` also reads messages of 4 elements.",
)


@click.group()
def message() -> None:
    """Make, send, inspect or verify one DMQ message.

    \b
    Example:
      stagepost message make note.txt --keys my-pool --out note.cbor
    """


@message.command()
@click.argument("source", metavar="FILE|-")
@path_option("--keys", "folder", required=True, help="Folder with the pool's keys, as `keys new` makes it.")
@click.option(
    "--ttl",
    "ttl_s",
    type=click.IntRange(min=1),
    default=TTL_S,
    show_default=True,
    help="Seconds until the message expires.",
)
@click.option(
    "--kes-period", type=click.IntRange(min=0), help="KES period to sign for. [the period of the key file]"
)
@evolved_key_option
@click.option(
    "--pad", is_flag=True, help="Fill a short body with zeros to the 90 bytes that networks require."
)
@path_option("--out", help="File for the raw message. [hex on standard output]")
@json_option
def make(
    source: str,
    folder: Path,
    ttl_s: int,
    kes_period: int | None,
    evolved_key: Path | None,
    pad: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Sign the content of FILE as a message.

    For a later --kes-period the KES key is evolved in memory; its file stays as it is.

    \b
    Example:
      stagepost message make note.txt --keys my-pool --pad --out note.cbor
    """
    import time

    from stagepost.cli.options.shared import read_input
    from stagepost.dmq.keys.signing_pair import load_signing_pair
    from stagepost.dmq.message import BODY_BYTES_MAX, BODY_BYTES_MIN

    body = read_input(source, BODY_BYTES_MAX)
    if pad:
        body = body.ljust(BODY_BYTES_MIN, b"\0")
    pair = load_signing_pair(folder, evolved_key)
    try:
        signed = pair.sign(
            body,
            kes_period=pair.earliest_period if kes_period is None else kes_period,
            expires_at=int(time.time()) + ttl_s,
        )
    finally:
        pair.erase()
    if out is not None:
        _write(out, signed.raw)
    if as_json:
        click.echo(json.dumps(_facts(signed)))
    elif out is None:
        click.echo(signed.raw.hex())
    else:
        click.echo(f"{signed.message_id.hex()}   {len(signed.raw)} bytes in {out}   expires in {ttl_s} s")


_SIGNING_ONLY = {
    "ttl_s": "--ttl",
    "kes_period": "--kes-period",
    "evolved_key": "--evolved-key",
} | SOURCE_FLAGS
"""Parameter name to flag: options that a message has no use for once it is signed."""


@message.command("send")
@click.argument("source", metavar="FILE|-|TEXT")
@path_option("--keys", "folder", help="Folder with the pool's keys: sign the bytes with them.")
@with_local_node
@with_signing_options
@json_option
@click.pass_context
def send_message(
    context: click.Context,
    source: str,
    folder: Path | None,
    socket: str | None,
    network_magic: int | None,
    profile: str,
    data: Path | None,
    ttl_s: float,
    kes_period: int | None,
    evolved_key: Path | None,
    signing: SigningSource,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Submit a raw DMQ message to a node once. Exit code 1 if the node rejects it.

    With --keys, the bytes of FILE, standard input (-) or TEXT are signed as the whole body: no envelope, no topic, no
    padding. Without --keys, FILE is a signed message (raw or hex), as `message make` writes it.

    \b
    Example:
      stagepost message send note.cbor --data stagepost-data
      stagepost message send body.bin --keys my-pool --data stagepost-data
    """
    import time

    from stagepost.cli.options.shared import disable_core_dumps, read_content
    from stagepost.cli.send.once import MessageSigner, NodeAddress, sign_and_submit, submit_once
    from stagepost.dmq.message import BODY_BYTES_MAX

    if folder is not None or signing.kes_agent is not None:
        keys = keys_given(context, folder, signing, evolved_key)
        disable_core_dumps()
        content = read_content(source, BODY_BYTES_MAX, "stagepost message send")
        node = NodeAddress(*socket_and_magic(socket, network_magic, data), profile)
        kes_clock = kes_clock_given(signing, node.network_magic, node.socket_path, data)
        signer = MessageSigner(keys, evolved_key, kes_period, ttl_s, kes_clock)
        context.exit(sign_and_submit(content, None, signer, node, timeout_s, as_json))
    given = next((name for name in _SIGNING_ONLY if is_given(context, name)), None)
    if given is not None:
        raise click.UsageError(f"{_SIGNING_ONLY[given]} needs --keys: {source} is signed already", context)
    signed = _decoded(source, profile)
    node = NodeAddress(*socket_and_magic(socket, network_magic, data), profile)
    left_s = max(0.0, signed.expires_at - time.time())
    context.exit(submit_once(signed, None, left_s, node, timeout_s, as_json))


@message.command()
@click.argument("source", metavar="FILE|-")
@profile_option
@json_option
def inspect(source: str, profile: str, as_json: bool) -> None:
    """Show the fields of a message (raw or hex). Nothing is verified; `message verify` does that.

    \b
    Example:
      stagepost message inspect note.cbor
    """
    decoded = _decoded(source, profile)
    facts = _facts(decoded)
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name:<24}{value}")


@message.command()
@click.argument("source", metavar="FILE|-")
@click.option(
    "--at", "at_unix_s", type=click.IntRange(min=0), help="Unix time at which expiry is checked. [now]"
)
@click.option(
    "--max-kes-evolutions",
    type=click.IntRange(1, 64),
    default=62,
    show_default=True,
    help="KES periods for which a certificate is valid on the network.",
)
@profile_option
@json_option
@click.pass_context
def verify(
    context: click.Context,
    source: str,
    at_unix_s: int | None,
    max_kes_evolutions: int,
    profile: str,
    as_json: bool,
) -> None:
    """Check id, dates, certificate and KES signature. Exit code 1 if any of them fails.

    The command does not check whether the pool is known and has stake: only a node knows that.

    \b
    Example:
      stagepost message verify note.cbor
    """
    import time

    from stagepost.dmq import validation as proof
    from stagepost.dmq.validation import check_expiry

    decoded = _decoded(source, profile)
    now = time.time() if at_unix_s is None else at_unix_s
    findings = [
        ("id", proof.check_id(decoded)),
        ("expiry", check_expiry(decoded.expires_at, now)),
        ("period", proof.check_period(decoded, max_kes_evolutions)),
        ("certificate", proof.check_certificate(decoded)),
        ("signature", proof.check_kes_signature(decoded)),
    ]
    is_valid = not any(fault for _, fault in findings)
    if as_json:
        faults = {name: None if fault is None else fault.text for name, fault in findings}
        click.echo(
            json.dumps({"message_id": decoded.message_id.hex(), "is_valid": is_valid, "faults": faults})
        )
    else:
        from stagepost.ground.crypto.hashing import format_pool_id

        click.echo(f"{decoded.message_id.hex()}   {'valid' if is_valid else 'NOT VALID'}")
        click.echo(f"pool {format_pool_id(decoded.pool_id)}")
        for name, fault in findings:
            click.echo(f"  {name:<14}{'ok' if fault is None else fault.text}")
    if not is_valid:
        context.exit(NOT_THAT_OUTCOME)


def _decoded(source: str, profile: str) -> DmqMessage:
    """Return the message that FILE holds, raw or as hex; the error names the file."""
    from stagepost.cli.options.shared import read_bytes
    from stagepost.dmq.message import DmqMessage
    from stagepost.errors import DecodeError

    try:
        return DmqMessage.decode(read_bytes(source), profile=profile)
    except DecodeError as error:
        error.text = (
            f"{'standard input' if source == '-' else source} is not a signed DMQ message: {error.text}"
        )
        error.advice = error.advice or (
            "give a file that `stagepost message make` wrote; `stagepost message send --keys FOLDER` signs other content"
        )
        raise


def _facts(decoded: DmqMessage) -> dict[str, str | int]:
    from stagepost.ground.crypto.hashing import format_pool_id

    certificate = decoded.operational_certificate
    return {
        "message_id": decoded.message_id.hex(),
        "pool_id": format_pool_id(decoded.pool_id),
        "expires_at": decoded.expires_at,
        "kes_period": decoded.kes_period,
        "kes_evolution": decoded.kes_evolution,
        "certificate_start": certificate.start_kes_period,
        "certificate_issue": certificate.issue_number,
        "kes_verification_key": certificate.kes_verification_key.hex(),
        "cold_verification_key": decoded.cold_verification_key.hex(),
        "body_bytes": len(decoded.body),
        "message_bytes": len(decoded.raw),
        "layout": f"{decoded.layout.value} elements",
    }


def _write(path: Path, content: bytes) -> None:
    from stagepost.errors import StorageError

    try:
        path.write_bytes(content)
    except OSError as error:
        raise StorageError(
            f"could not write {path}: {error.strerror}", advice="choose another --out"
        ) from error
