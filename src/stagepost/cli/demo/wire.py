"""`stagepost demo --wire`: keys, a signed message and its way through two nodes, with every protocol message explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from stagepost.dmq.key_texts import IssuedCertificate
    from stagepost.dmq.message import DmqMessage

PROFILES_SHOWN = ("dmq-node", "seed")
BODY = (
    b"a message carried by Stagepost, from one program to another, over the protocols of CIP-0137 DMQ nodes"
)
TTL_S = 600


def show_wire() -> None:
    """In the `dmq-node` and in the `seed` profile; the decoded exchange of both."""
    import tempfile
    from pathlib import Path

    click.echo(
        "stagepost demo --wire · two nodes, two programs, real sockets on this machine · nothing is kept"
    )
    with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
        message, issued = _sign(Path(folder))
        _show_message(message, issued)
        for name in PROFILES_SHOWN:
            _show_journey(message, name, Path(folder) / name)
    click.echo()
    click.echo("next        stagepost keys new my-pool        keys of your own")
    click.echo("            stagepost --help                  all commands")


def _sign(folder: Path) -> tuple[DmqMessage, IssuedCertificate]:
    """Sign a message as an operator does: write keys and certificate to disk, then sign with what the files hold."""
    import time

    from stagepost.dmq.keys.pool_keys import make_keys
    from stagepost.dmq.keys.signing_pair import load_signing_pair

    keys_folder = folder / "keys"
    issued = make_keys(keys_folder, start_kes_period=0, issue_number=0)
    pair = load_signing_pair(keys_folder)
    signed = pair.sign(BODY, kes_period=pair.earliest_period, expires_at=int(time.time()) + TTL_S)
    return signed, issued


def _show_message(message: DmqMessage, issued: IssuedCertificate) -> None:
    from stagepost.ground.crypto.hashing import format_pool_id

    certificate = issued.certificate
    click.echo()
    click.echo(f"keys        {format_pool_id(message.pool_id)}")
    click.echo(
        f"certificate number {certificate.issue_number}, from KES period {certificate.start_kes_period}, "
        f"{'valid' if issued.is_valid else 'NOT VALID'}"
    )
    click.echo(f"message     {message.message_id.hex()}")
    click.echo(
        f"            {len(message.body)} bytes signed at KES period {message.kes_period}, {len(message.raw)} in all"
    )


def _show_journey(message: DmqMessage, profile_name: str, folder: Path) -> None:
    import asyncio

    from stagepost.cli.wire.text import lines
    from stagepost.devnet.demo.wire import carry
    from stagepost.dmq.inspection.inspector import inspect_stream
    from stagepost.dmq.profiles import profile_named
    from stagepost.errors import StagepostError

    journey = asyncio.run(carry(message, profile_named(profile_name), folder))
    if journey.received.raw != message.raw:
        raise StagepostError("the message that came back is not the one that was sent")
    for title, capture in (
        ("a program submits to the first node, over its Unix socket", journey.submitter),
        ("the second node takes it from the first, over TCP", journey.between_nodes),
        ("another program is told of it by the second node", journey.listener),
    ):
        click.echo()
        click.echo(click.style(f"profile {profile_name}: {title}", bold=True))
        for line in lines(inspect_stream(capture), capture, with_segments=False):
            click.echo(line)
    click.echo(f"read back   the same {len(message.raw)} bytes, id and signature hold")
