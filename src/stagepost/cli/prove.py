"""`stagepost prove`: the proof of a message's end, from a full node's data folder or over HTTP, as a file."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stagepost.cli.exit_codes import DONE, NOT_KNOWN_YET
from stagepost.cli.options.shared import data_option, json_option, path_option

ANSWER_TIMEOUT_S = 30.0
FILE_MODE = 0o644


@click.command()
@click.argument("message_id", metavar="ID")
@data_option
@click.option("--address", metavar="URL", help="HTTP address of a full node, instead of --data.")
@path_option("--out", help="Where to write the proof. [ID.proof.json, in this folder]")
@json_option
@click.pass_context
def prove(
    context: click.Context,
    message_id: str,
    data: Path | None,
    address: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Write the proof of an external message's end to a file, which anybody can check offline: stagepost verify.

    ID is any id of the message, at least eight of the first digits of one, or its idempotency key; with --address it is the whole
    external message id, 64 hexadecimal digits. The proof says that the message was executed, that it was executed as another
    one with the same content, or that it never was and never will be.

    Exit code 0 means that the file is written; 4 that the end is not known yet: ask later, and do not send the message
    again under another id.

    \b
    Example:
      stagepost prove 330a447e… --data stagepost-devnet --out proof.json
      stagepost verify proof.json --genesis stagepost-devnet/network.json
    """
    from stagepost.full_node.local_client import id_bytes
    from stagepost.ground.files.running_nodes import DATA_DIR
    from stagepost.ground.files.small_files import replace_file
    from stagepost.trace.folder_health import require_topics
    from stagepost.trace.indexed_records import ID_DIGITS
    from stagepost.trace.kept_proofs import keeps_proofs, kept_proof_file
    from stagepost.trace.reading import external_id, not_found

    if data is not None and address is not None:
        raise click.UsageError("give either --data or --address", context)
    if address is None:
        folder = data or Path(DATA_DIR)
        if not keeps_proofs(folder):
            require_topics(folder)
        named = external_id(folder, message_id)
        if named is None and len(message_id) != ID_DIGITS:
            raise not_found(message_id, folder)
        identifier = id_bytes(named or message_id.lower())
        found = kept_proof_file(folder, identifier)
    else:
        identifier = id_bytes(message_id.lower())
        found = _fetched(address, identifier)
    if found is None:
        if as_json:
            click.echo(json.dumps({"id": identifier.hex(), "is_known": False}))
        click.echo(f"the end of message {identifier.hex()} is not known yet", err=True)
        click.echo("  do not send it again under another id; ask later", err=True)
        return NOT_KNOWN_YET
    path = out or Path(f"{identifier.hex()[:16]}.proof.json")
    replace_file(path, found, FILE_MODE)
    if as_json:
        click.echo(
            json.dumps({"id": identifier.hex(), "is_known": True, "file": str(path), "bytes": len(found)})
        )
    else:
        click.echo(f"proof     {path}   {len(found)} bytes")
    return DONE


def _fetched(address: str, message_id: bytes) -> bytes | None:
    """Return the proof that the full node at an HTTP address has; None if it has none yet. Only its form and its id are
    checked: the network's genesis, which `stagepost verify` is given, decides whether the proof holds.
    """
    from http import HTTPStatus
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    from stagepost.chain.proofs.proof_files import FILE_BYTES_MAX, read_file
    from stagepost.errors import ConfigError, DecodeError, ErrorCode, TransportError

    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"{address} is not a valid HTTP address",
            advice="give it as http://HOST:PORT, as the full node prints it",
        )
    url = f"{address.rstrip('/')}/api/v1/messages/{message_id.hex()}/proof"
    try:
        with urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:
            content: bytes = answer.read(FILE_BYTES_MAX + 1)
    except HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return None
        raise TransportError(
            f"{url} answers {error.code}", advice="check that a full node serves this address"
        ) from error
    except (URLError, OSError) as error:
        raise TransportError(
            f"{url} cannot be reached: {error}", advice="check that a full node serves this address"
        ) from error
    try:
        _, _, named = read_file(content)
        fault = "" if named == message_id else f"the proof of another message, {named.hex()}"
    except DecodeError as error:
        fault = error.text
    if fault:
        raise TransportError(
            f"{url} answers with something else than the proof: {fault}",
            code=ErrorCode.PROOF_INVALID,
            advice="check that a full node serves this address, or ask another one",
        )
    return content
