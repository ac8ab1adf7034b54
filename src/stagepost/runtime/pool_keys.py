"""A pool's folder of keys: which files it has, and how a new one is made."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from stagepost.crypto import kes
from stagepost.crypto.operational_certificate import issue
from stagepost.dmq import text_envelope
from stagepost.dmq.text_envelope import Content, IssuedCertificate
from stagepost.errors import KeyFileError, StorageError
from stagepost.runtime import key_files

COLD_SIGNING_KEY = "cold.skey"
COLD_VERIFICATION_KEY = "cold.vkey"
KES_SIGNING_KEY = "kes.skey"
KES_VERIFICATION_KEY = "kes.vkey"
CERTIFICATE = "opcert.cert"
FILE_NAMES = (COLD_SIGNING_KEY, COLD_VERIFICATION_KEY, KES_SIGNING_KEY, KES_VERIFICATION_KEY, CERTIFICATE)


def make_keys(
    folder: Path,
    *,
    start_kes_period: int,
    issue_number: int,
    random_bytes: Callable[[int], bytes] = secrets.token_bytes,
) -> IssuedCertificate:
    """A cold key, a KES key and the certificate that binds them, all new, as files in `folder`. Keys of another source of
    `random_bytes` can be guessed by whoever knows it: they are for demonstrations that must repeat."""
    _require_room(folder)
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


def _require_room(folder: Path) -> None:
    """All names must be free before the first is written; the folder is made if it is missing."""
    taken = [name for name in FILE_NAMES if os.path.lexists(folder / name)]
    if taken:
        raise KeyFileError(
            f"{folder} holds {', '.join(taken)} already; keys are not overwritten",
            advice="choose another folder, or move the old keys away",
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"could not make the folder {folder}: {error.strerror}", advice="choose a folder you may write to"
        ) from error
