"""A pool's folder of keys: its files, how a new folder is made, and the file of an evolved key in another
folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import Content, EvolvedSigningKey, IssuedCertificate
from stagepost.dmq.keys import key_files
from stagepost.errors import KeyFileError, SigningError, StorageError
from stagepost.ground.crypto import kes
from stagepost.ground.crypto.operational_certificate import issue

COLD_SIGNING_KEY = "cold.skey"
COLD_VERIFICATION_KEY = "cold.vkey"
KES_SIGNING_KEY = "kes.skey"
KES_VERIFICATION_KEY = "kes.vkey"
CERTIFICATE = "opcert.cert"
ISSUE_NUMBER_MAX = 2**64 - 1
FILE_NAMES = (COLD_SIGNING_KEY, COLD_VERIFICATION_KEY, KES_SIGNING_KEY, KES_VERIFICATION_KEY, CERTIFICATE)


def make_keys(
    folder: Path,
    *,
    start_kes_period: int,
    issue_number: int,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> IssuedCertificate:
    """Write a new cold key, a new KES key and the certificate that binds them to files in `folder`.

    Anybody who knows another source of `random_bytes` can guess its keys: use one only for demonstrations
    that must repeat.
    """
    _require_room(folder)
    _make_folder(folder)
    cold = text_envelope.ColdSigningKey(random_bytes(32))
    kes_key = kes.SigningKey.generate(random_bytes(kes.SEED_BYTES))
    certificate = issue(
        kes_key.verification_key,
        issue_number=issue_number,
        start_kes_period=start_kes_period,
        cold_seed=cold.seed,
    )
    issued = IssuedCertificate(certificate, cold.verification_key)
    contents: dict[str, Content] = {
        COLD_SIGNING_KEY: cold,
        COLD_VERIFICATION_KEY: text_envelope.ColdVerificationKey(cold.verification_key),
        KES_SIGNING_KEY: kes_key,
        KES_VERIFICATION_KEY: text_envelope.KesVerificationKey(kes_key.verification_key),
        CERTIFICATE: issued,
    }
    for name, content in contents.items():
        key_files.save(folder / name, content)
    return issued


RENEWED_NAMES = (KES_SIGNING_KEY, KES_VERIFICATION_KEY, CERTIFICATE)


def renew_keys(
    folder: Path,
    out: Path,
    *,
    start_kes_period: int,
    cold_key: Path | None = None,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    on_begin: Callable[[int], None] = lambda number: None,
) -> IssuedCertificate:
    """Write a new KES key, and a certificate for it with the next number, to the new folder `out`. `on_begin` is called with
    the number when all checks have passed; what it raises leaves everything as it was.

    `folder` has the certificate in force and stays as it is. The cold key, `cold.skey` in `folder` unless `cold_key` names
    another file, signs the certificate and is not copied. Raise `KeyFileError` if the certificate in force is not of that
    cold key, or if the new one would begin before it.
    """
    former = key_files.load_as(IssuedCertificate, folder / CERTIFICATE)
    path = cold_key or folder / COLD_SIGNING_KEY
    cold = key_files.load_as(text_envelope.ColdSigningKey, path)
    if cold.verification_key != former.cold_verification_key or not former.is_valid:
        raise KeyFileError(
            f"{folder / CERTIFICATE} was not signed with {path}",
            advice="give the cold key of the pool with --cold-key",
        )
    if start_kes_period < former.certificate.start_kes_period:
        raise KeyFileError(
            f"the certificate in force begins with KES period {former.certificate.start_kes_period}, "
            f"and a later one cannot begin with {start_kes_period}",
            advice="give the present KES period of the chain with --start-kes-period",
            found=start_kes_period,
            limit=former.certificate.start_kes_period,
        )
    if former.certificate.issue_number >= ISSUE_NUMBER_MAX:
        raise KeyFileError(f"{folder / CERTIFICATE} has the last number that a certificate can have")
    if os.path.realpath(out) == os.path.realpath(folder):
        raise KeyFileError(
            f"{out} holds the keys in force; keys are not overwritten",
            advice="choose another folder with --out",
        )
    _require_room(out)
    number = former.certificate.issue_number + 1
    on_begin(number)
    _make_folder(out)
    kes_key = kes.SigningKey.generate(random_bytes(kes.SEED_BYTES))
    certificate = issue(
        kes_key.verification_key,
        issue_number=number,
        start_kes_period=start_kes_period,
        cold_seed=cold.seed,
    )
    issued = IssuedCertificate(certificate, cold.verification_key)
    contents: dict[str, Content] = {
        KES_SIGNING_KEY: kes_key,
        KES_VERIFICATION_KEY: text_envelope.KesVerificationKey(kes_key.verification_key),
        CERTIFICATE: issued,
    }
    for name, content in contents.items():
        key_files.save(out / name, content)
    return issued


def write_evolved_key(source: Path, target: Path, to_period: int | None = None) -> EvolvedSigningKey:
    """Write the KES key of `source`, evolved to `to_period` (default: the next), to the new file `target`.

    `source` stays as it is. Nothing is written where an operator's key lies: `target` must be in another
    folder, unless `source` is an evolved key already. Costs up to some ten milliseconds: keep it off an event
    loop.
    """
    content = key_files.load(source)
    is_ours = isinstance(content, EvolvedSigningKey)
    key = (
        content.key
        if isinstance(content, EvolvedSigningKey)
        else text_envelope.require_kind(kes.SigningKey, content, source=str(source))
    )
    _require_own_place(source, target, is_ours=is_ours)
    goal = key.period + 1 if to_period is None else to_period
    last = key.period + key.periods_left
    if goal <= key.period and to_period is not None:
        raise SigningError(
            f"{source} is at KES period {key.period} and cannot go {'back ' if goal < key.period else ''}to {goal}",
            advice="a KES key can only be evolved forward; give a later period",
            found=goal,
            limit=key.period,
        )
    if goal > last:
        raise kes.KesExhausted(
            f"{source} is at KES period {key.period} of 0 to {last}; there is no period {goal}",
            advice="make a new KES key and a new operational certificate",
            found=goal,
            limit=last,
        )
    while key.period < goal:
        key.evolve()
    _make_folder(target.parent)
    evolved = EvolvedSigningKey(key)
    key_files.save(target, evolved)
    return evolved


def _require_own_place(source: Path, target: Path, *, is_ours: bool) -> None:
    if target.name in FILE_NAMES:
        raise KeyFileError(
            f"{target} has a name that other programs read as an operator's file",
            advice=f"choose another name than {', '.join(FILE_NAMES)}",
        )
    folders = {os.path.realpath(source.parent), os.path.dirname(os.path.realpath(source))}
    if not is_ours and os.path.realpath(target.parent) in folders:
        raise KeyFileError(
            f"{target} is in the folder of {source}; nothing is written into a folder with an operator's keys",
            advice="choose another folder",
        )


def _require_room(folder: Path) -> None:
    """Check that all names are free before the first is written."""
    taken = [name for name in FILE_NAMES if os.path.lexists(folder / name)]
    if taken:
        raise KeyFileError(
            f"{folder} holds {', '.join(taken)} already; keys are not overwritten",
            advice="choose another folder, or move the old keys away",
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"could not make the folder {folder}: {error.strerror}", advice="choose a folder you may write to"
        ) from error
