"""The KES key and the certificate with which a pool signs: read from an operator's files, evolved in memory
alone.

Other programs read the same files and take the key for one at its first period. A key file at a later period
disables them, and is refused here unless the caller asks for it by name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import EvolvedSigningKey, IssuedCertificate
from stagepost.dmq.keys import key_files
from stagepost.dmq.keys.kes_agent import KesAgent
from stagepost.dmq.keys.kes_clock import KesSchedule
from stagepost.dmq.keys.pool_keys import CERTIFICATE, KES_SIGNING_KEY
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.errors import ErrorCode, KesExhausted, KeyFileError, SigningError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.identifiers import PoolId


class SigningPair:
    """KES key in memory and the certificate for it. `sign` moves the key forward, the files stay as they are."""

    def __init__(self, key: SigningKey, issued: IssuedCertificate, certificate_path: Path) -> None:
        self._key = key
        self._issued = issued
        self._certificate_path = certificate_path

    @property
    def pool_id(self) -> PoolId:
        return PoolId(pool_id(self._issued.cold_verification_key))

    @property
    def earliest_period(self) -> int:
        """KES period of the chain at which the key in memory is; the key cannot sign for an earlier one."""
        return self._issued.certificate.start_kes_period + self._key.period

    @property
    def periods_left(self) -> int:
        """Number of times that the key can still evolve."""
        return self._key.periods_left

    def period_at(self, schedule: KesSchedule | None, unix_s: float, *, asked_for: int | None = None) -> int:
        """Return the period to sign for: the present one by `schedule`, which must be one of the certificate's.

        Without a schedule nobody can tell the present period, and the key signs for the period `asked_for`, or else for
        the one that it is at. With a schedule no other period may be asked for.
        """
        if schedule is None:
            return self.earliest_period if asked_for is None else asked_for
        present = schedule.period_at(unix_s)
        if asked_for not in (None, present):
            raise SigningError(
                f"it is KES period {present} on this network; period {asked_for} was asked for",
                advice="leave --kes-period out: messages are signed for the present period",
                found=asked_for,
                limit=present,
            )
        first = self._issued.certificate.start_kes_period
        after = first + schedule.evolutions_max
        if present < first:
            raise SigningError(
                f"it is KES period {present}; the certificate in {self._certificate_path} begins with period {first}, "
                f"on {_date(schedule.start_of(first))}",
                advice="check this machine's clock, and that the certificate is for this network",
                found=present,
                limit=first,
            )
        if present >= after:
            raise KesExhausted(
                f"it is KES period {present}; the certificate in {self._certificate_path} served periods {first} to "
                f"{after - 1} and ended on {_date(schedule.start_of(after))}",
                advice=f"on a public network, make a new KES key and certificate (`stagepost keys renew`, `--start-kes-period {present}`); "
                "for a private network, name its node by --data or --network-magic; or set this machine's clock right",
                found=present,
                limit=after - 1,
            )
        return present

    def periods_until_end(self, schedule: KesSchedule, period: int) -> int:
        """Return how many periods of the certificate follow `period`."""
        return self._issued.certificate.start_kes_period + schedule.evolutions_max - 1 - period

    def sign(self, body: bytes, *, kes_period: int, expires_at: int) -> DmqMessage:
        """Return the signed message; evolve the key in memory to `kes_period` first."""
        return sign_message(
            body,
            key=self._key,
            certificate=self._issued.certificate,
            cold_verification_key=self._issued.cold_verification_key,
            kes_period=kes_period,
            expires_at=expires_at,
        )

    def erase(self) -> None:
        """Overwrite the secret in memory. The pair cannot sign afterwards."""
        self._key.erase()


def load_signing_pair(keys: Path | KesAgent, evolved_key: Path | None = None) -> SigningPair:
    """Return the key and the certificate of a folder or of a KES agent; they must belong together.

    `evolved_key` names a KES key file past its first period that replaces the folder's.
    """
    if isinstance(keys, KesAgent):
        key, issued = keys.fetch()
        return SigningPair(key, issued, keys.socket)
    folder = keys
    key_path = folder / KES_SIGNING_KEY if evolved_key is None else evolved_key
    key = _load_fresh(key_path) if evolved_key is None else _load_any(key_path)
    certificate_path = folder / CERTIFICATE
    issued = key_files.load_as(IssuedCertificate, certificate_path)
    if issued.certificate.kes_verification_key != key.verification_key:
        raise KeyFileError(
            f"{certificate_path} was issued for another KES key than that in {key_path}",
            advice="issue a certificate for this key; `stagepost keys show` shows which files belong together",
        )
    if not issued.is_valid:
        raise KeyFileError(
            f"{certificate_path} is not valid: its cold key did not sign it",
            code=ErrorCode.OPCERT_SIGNATURE,
            advice="issue the certificate again with the pool's cold key",
        )
    return SigningPair(key, issued, certificate_path)


def _load_fresh(path: Path) -> SigningKey:
    key = _load_any(path)
    if not key.period:
        return key
    raise KeyFileError(
        f"{path} holds a KES key that was evolved to period {key.period}; an operator's key file is at period 0, and "
        "cardano-node or mithril-signer would sign wrongly with this one",
        advice="put the file back that cardano-cli wrote, or make a new KES key and certificate; "
        f"`--evolved-key {quote(str(path))}` of `send` signs with the evolved key",
        found=key.period,
        limit=0,
    )


def _load_any(path: Path) -> SigningKey:
    content = key_files.load(path)
    if isinstance(content, EvolvedSigningKey):
        return content.key
    return text_envelope.require_kind(SigningKey, content, source=str(path))


def _date(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
