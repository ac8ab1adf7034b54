"""`stagepost keys`: make test keys, renew KES keys, look at key files, write an evolved KES key to a file of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.options.shared import disable_core_dumps, json_option, path_option

if TYPE_CHECKING:
    from stagepost.dmq.key_texts import Content, IssuedCertificate
    from stagepost.ground.crypto.kes import SigningKey

WORD64_MAX = 2**64 - 1
WORD64 = click.IntRange(0, WORD64_MAX)

Facts = dict[str, str | int | bool | list[str] | None]


@click.group()
def keys() -> None:
    """Make test keys, renew a KES key, show key files and the KES periods left, or write an evolved KES key.

    No command changes an existing key file.

    \b
    Example:
      stagepost keys new my-pool
    """


@keys.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--start-kes-period",
    type=WORD64,
    default=0,
    show_default=True,
    help="First KES period of the certificate.",
)
@click.option(
    "--issue-number",
    type=WORD64,
    default=0,
    show_default=True,
    help="Number of the certificate; a pool's later certificate has a higher one.",
)
@json_option
def new(folder: Path, start_kes_period: int, issue_number: int, as_json: bool) -> None:
    """Make a cold key, a KES key and an operational certificate in DIR.

    The files have the format of cardano-cli. The cold key lies beside the others. Use these keys for tests only: the
    cold key of a real pool belongs on a machine without a network.

    \b
    Example:
      stagepost keys new my-pool --start-kes-period 120
    """
    from stagepost.dmq.keys.pool_keys import FILE_NAMES, make_keys

    disable_core_dumps()
    issued = make_keys(folder, start_kes_period=start_kes_period, issue_number=issue_number)
    summary = _pool_facts(issued.cold_verification_key) | _certificate_facts(issued)
    _print({"folder": str(folder), "files": list(FILE_NAMES), **summary}, as_json)


@keys.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@path_option("--out", required=True, metavar="DIR", help="Folder to make.")
@click.option(
    "--start-kes-period",
    type=WORD64,
    required=True,
    help="First KES period of the new certificate: the present one of the chain.",
)
@path_option("--cold-key", metavar="FILE", help="Cold key of the pool. [cold.skey in DIR]")
@json_option
def renew(folder: Path, out: Path, start_kes_period: int, cold_key: Path | None, as_json: bool) -> None:
    """Make a new KES key and certificate for the pool whose certificate in force lies in DIR. The cold key stays.

    The new certificate has the next number. The keys in DIR stay as they are, and its audit.jsonl gets a line; the new
    files go to another folder, without the cold key.
    Run this on the machine that has the cold key, and move the two files kes.skey and opcert.cert to the programs that
    sign. They use the new pair once both files are in place.

    \b
    Example:
      stagepost keys renew my-pool --out my-pool-renewed --start-kes-period 160
    """
    from stagepost.dmq.keys.pool_keys import RENEWED_NAMES, renew_keys
    from stagepost.ground.files.audit import record_action, user_name

    def record(number: int) -> None:
        what = f"keys renew to {out}: certificate {number} from KES period {start_kes_period}"
        record_action(folder, what, through="cli", who=user_name())

    disable_core_dumps()
    issued = renew_keys(folder, out, start_kes_period=start_kes_period, cold_key=cold_key, on_begin=record)
    summary = _pool_facts(issued.cold_verification_key) | _certificate_facts(issued)
    _print({"folder": str(out), "files": list(RENEWED_NAMES), **summary}, as_json)


@keys.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def show(context: click.Context, path: Path, as_json: bool) -> None:
    """Show the content of a key or certificate file, or of all such files in DIR. Secrets are never shown.

    Exit code 1 if a certificate is not valid, or does not belong to the keys beside it, or if a file that
    cardano-node takes for a KES key at period 0 holds an evolved one.

    \b
    Example:
      stagepost keys show my-pool
    """
    from stagepost.dmq.key_texts import IssuedCertificate
    from stagepost.dmq.keys import key_files

    paths = _files_in(path) if os.path.isdir(path) else [path]
    contents = {file: key_files.load(file) for file in paths}
    all_good = True
    for index, (file, content) in enumerate(contents.items()):
        facts = {"file": str(file), **_facts(content)}
        all_good &= facts.get("usable_by_cardano_node") is not False
        if isinstance(content, IssuedCertificate):
            neighbours = [other for other in contents.values() if other is not content]
            facts |= _agreement(content, neighbours)
            all_good &= content.is_valid and False not in (
                facts["matches_cold_key"],
                facts["matches_kes_key"],
            )
        if index and not as_json:
            click.echo()
        _print(facts, as_json)
    if not all_good:
        context.exit(NOT_THAT_OUTCOME)


@keys.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "to_period",
    type=click.IntRange(min=0),
    metavar="PERIOD",
    help="Period of the new key, 1 to 63. [one more than the period of FILE]",
)
@path_option("--out", required=True, help="File to write, in another folder than FILE.")
@json_option
def evolve(file: Path, to_period: int | None, out: Path, as_json: bool) -> None:
    """Evolve the KES signing key in FILE to a later period and write it to a new file. FILE stays as it is.

    PERIOD counts from the certificate's start: the KES period of the chain minus the start KES period. The new
    file cannot sign for earlier periods. It has a type of its own, so that cardano-node and cardano-cli do not take it
    for a key at period 0. Signing needs no evolved file: `send` evolves the key in memory.

    \b
    Example:
      stagepost keys evolve my-pool/kes.skey --to 3 --out evolved/period-3.skey
    """
    from stagepost.dmq.keys.pool_keys import write_evolved_key

    disable_core_dumps()
    evolved = write_evolved_key(file, out, to_period)
    _print({"file": str(out), **_facts(evolved)}, as_json)


def _files_in(folder: Path) -> list[Path]:
    from stagepost.dmq.keys.pool_keys import FILE_NAMES
    from stagepost.errors import StorageError

    found = [folder / name for name in FILE_NAMES if os.path.lexists(folder / name)]
    if not found:
        raise StorageError(
            f"{folder} holds none of {', '.join(FILE_NAMES)}",
            advice="give a folder with keys, as `stagepost keys new` makes it",
        )
    return found


def _facts(content: Content) -> Facts:
    """Return the facts of one file that may be shown."""
    from stagepost.dmq import key_texts as text_envelope
    from stagepost.ground.crypto import kes

    facts: Facts = {"type": text_envelope.KINDS[type(content)].type_name}
    match content:
        case kes.SigningKey():
            facts |= _kes_facts(content)
            facts |= {"usable_by_cardano_node": content.period == 0}
        case text_envelope.EvolvedSigningKey():
            facts |= _kes_facts(content.key)
        case text_envelope.KesVerificationKey():
            facts |= {"verification_key": content.verification_key.hex()}
        case text_envelope.ColdSigningKey() | text_envelope.ColdVerificationKey():
            facts |= _pool_facts(content.verification_key)
            facts |= {"verification_key": content.verification_key.hex()}
        case text_envelope.IssuedCertificate():
            facts |= _pool_facts(content.cold_verification_key) | _certificate_facts(content)
    return facts


def _kes_facts(key: SigningKey) -> Facts:
    return {
        "verification_key": key.verification_key.hex(),
        "period": key.period,
        "periods_left": key.periods_left,
    }


def _pool_facts(cold_verification_key: bytes) -> Facts:
    from stagepost.ground.crypto.hashing import format_pool_id, pool_id

    pool = pool_id(cold_verification_key)
    return {"pool_id": format_pool_id(pool), "pool_id_hex": pool.hex()}


def _certificate_facts(issued: IssuedCertificate) -> Facts:
    from stagepost.ground.crypto import kes

    certificate = issued.certificate
    return {
        "cold_verification_key": issued.cold_verification_key.hex(),
        "kes_verification_key": certificate.kes_verification_key.hex(),
        "issue_number": certificate.issue_number,
        "first_kes_period": certificate.start_kes_period,
        "last_kes_period": certificate.start_kes_period + kes.periods_of(kes.DMQ_DEPTH) - 1,
        "certificate_valid": issued.is_valid,
    }


def _agreement(issued: IssuedCertificate, neighbours: list[Content]) -> Facts:
    """Return whether the certificate fits the keys beside it; None where there are no keys to compare with."""
    from stagepost.dmq import key_texts as text_envelope
    from stagepost.ground.crypto import kes

    cold_kinds = (text_envelope.ColdSigningKey, text_envelope.ColdVerificationKey)
    kes_kinds = (kes.SigningKey, text_envelope.KesVerificationKey)
    cold = {other.verification_key for other in neighbours if isinstance(other, cold_kinds)}
    kes_keys = {other.verification_key for other in neighbours if isinstance(other, kes_kinds)}
    return {
        "matches_cold_key": cold == {issued.cold_verification_key} if cold else None,
        "matches_kes_key": kes_keys == {issued.certificate.kes_verification_key} if kes_keys else None,
    }


def _print(facts: Facts, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<22} {_shown(value)}")


def _shown(value: str | int | bool | list[str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)
