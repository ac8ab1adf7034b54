"""Keys and certificates as cardano-cli writes them: JSON with a type, a description and CBOR in hex.

This module knows text and values only; `keys/key_files.py` reads and writes the files. A refusal names what
was found and what was expected, and never repeats any part of the content, which may be secret.
"""

from __future__ import annotations

from binascii import Error as HexError
from binascii import unhexlify
from typing import NoReturn, TypeAlias, TypeVar

import msgspec

from stagepost.errors import DecodeError, KeyFileError
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import OperationalCertificate
from stagepost.ground.wire import cbor

KES_SIGNING_KEY_BYTES = 608
# The same key with its period appended, as the `kes` crate and mithril write it.
KES_SIGNING_KEY_WITH_PERIOD_BYTES = 612


class KesVerificationKey(msgspec.Struct, frozen=True):
    verification_key: bytes


class ColdVerificationKey(msgspec.Struct, frozen=True):
    verification_key: bytes


class ColdSigningKey:
    """Secret seed of a pool's cold key. It cannot be printed, copied or pickled."""

    __slots__ = ("seed", "verification_key")

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self.verification_key = ed25519.public_key(seed)

    def __repr__(self) -> str:
        return f"<cold signing key of {self.verification_key.hex()}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a cold signing key is neither copied nor pickled")


class EvolvedSigningKey:
    """KES signing key past its first period, in a file format of our own.

    Other programs take every KES signing key file for a key at its first period. They do not know the type
    line of this kind, so none of them reads an evolved key by mistake.
    """

    __slots__ = ("key",)

    def __init__(self, key: kes.SigningKey) -> None:
        self.key = key

    @property
    def verification_key(self) -> bytes:
        return self.key.verification_key

    def __repr__(self) -> str:
        return f"<evolved {self.key!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KES signing key is neither copied nor pickled")


class IssuedCertificate(msgspec.Struct, frozen=True):
    """Certificate together with the cold verification key that checks it."""

    certificate: OperationalCertificate
    cold_verification_key: bytes

    @property
    def is_valid(self) -> bool:
        return self.certificate.verify(self.cold_verification_key)


Content: TypeAlias = (
    kes.SigningKey
    | EvolvedSigningKey
    | KesVerificationKey
    | ColdSigningKey
    | ColdVerificationKey
    | IssuedCertificate
)
ContentT = TypeVar("ContentT", bound=Content)

SECRET_KINDS = (kes.SigningKey, EvolvedSigningKey, ColdSigningKey)


class ContentNames(msgspec.Struct, frozen=True):
    """Names of one kind of content: in the envelope, and for people."""

    type_name: str
    description: str
    title: str


KINDS: dict[type[object], ContentNames] = {
    kes.SigningKey: ContentNames("KesSigningKey_ed25519_kes_2^6", "KES Signing Key", "a KES signing key"),
    EvolvedSigningKey: ContentNames(
        "StagepostEvolvedKesSigningKey_ed25519_kes_2^6",
        "KES Signing Key past its first period",
        "an evolved KES signing key",
    ),
    KesVerificationKey: ContentNames(
        "KesVerificationKey_ed25519_kes_2^6", "KES Verification Key", "a KES verification key"
    ),
    ColdSigningKey: ContentNames(
        "StakePoolSigningKey_ed25519", "Stake Pool Operator Signing Key", "a cold signing key"
    ),
    ColdVerificationKey: ContentNames(
        "StakePoolVerificationKey_ed25519", "Stake Pool Operator Verification Key", "a cold verification key"
    ),
    IssuedCertificate: ContentNames("NodeOperationalCertificate", "", "an operational certificate"),
}
_CONTENT_BY_TYPE_NAME = {kind.type_name: content_type for content_type, kind in KINDS.items()}


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    type: str
    description: str
    cbor_hex: str


def encode(content: Content) -> bytes:
    """Return the envelope as text, ready to be written. It is secret if the content is."""
    kind = KINDS[type(content)]
    envelope = _Envelope(kind.type_name, kind.description, _write(content).hex())
    return msgspec.json.format(msgspec.json.encode(envelope), indent=4) + b"\n"


def decode(text: bytes, *, source: str) -> Content:
    """Return the content of the envelope, of any of our kinds. `source` names the file in a refusal."""
    envelope = _parse(text, source)
    content_type = _CONTENT_BY_TYPE_NAME.get(envelope.type)
    if content_type is None:
        raise _unknown_type(envelope.type, source)
    return _read(content_type, _from_hex(envelope.cbor_hex, source), source)


def decode_as(expected: type[ContentT], text: bytes, *, source: str) -> ContentT:
    """Return the content of the envelope, which must be of the kind `expected`."""
    return require_kind(expected, decode(text, source=source), source=source)


def require_kind(expected: type[ContentT], content: Content, *, source: str) -> ContentT:
    """Return `content` if it is of the expected kind; refuse it with both kinds named if not."""
    if not isinstance(content, expected):
        found, wanted = KINDS[type(content)], KINDS[expected]
        raise KeyFileError(
            f"{source} holds {found.title} (type {found.type_name}); "
            f"expected {wanted.title} (type {wanted.type_name})",
            advice=f"give the file that holds {wanted.title}",
            found=found.type_name,
        )
    return content


def _parse(text: bytes, source: str) -> _Envelope:
    # The original exceptions are dropped, because they may hold the text, and that may be secret.
    try:
        return msgspec.json.decode(text, type=_Envelope)
    except msgspec.ValidationError as error:
        why = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = "it is not JSON"
    raise KeyFileError(
        f"{source} is not a text envelope (JSON with type, description and cborHex): {why}",
        advice="give a key file as `stagepost keys new`, `stagepost network join` and cardano-cli write them",
    ) from None


def _from_hex(digits: str, source: str) -> bytes:
    try:
        return unhexlify(digits)
    except (HexError, ValueError):
        pass
    why = f"{len(digits)} digits is an odd number" if len(digits) % 2 else "not all of it is hex digits"
    raise KeyFileError(
        f"{source}: cborHex is not whole bytes in hex: {why}",
        advice="the file may be cut short or altered; take it from its origin again",
        found=len(digits),
    )


def _unknown_type(found: str, source: str) -> KeyFileError:
    shown = found if len(found) <= 80 else found[:80] + "…"
    if "Extended" in found:
        return KeyFileError(
            f"{source} holds an extended (BIP-32) key, type {shown!r}; only plain Ed25519 keys can sign here",
            advice="give a cold key of type StakePoolSigningKey_ed25519",
            found=shown,
        )
    known = ", ".join(kind.type_name for kind in KINDS.values())
    return KeyFileError(
        f"{source} has the envelope type {shown!r}; expected one of: {known}",
        advice="give a KES key, a cold key or an operational certificate",
        found=shown,
    )


def _write(content: Content) -> bytes:
    match content:
        case kes.SigningKey():
            if content.period:
                raise KeyFileError(
                    f"the KES signing key is at period {content.period}; every program that reads such a file "
                    "takes its key for one at period 0",
                    advice=f"write it as {KINDS[EvolvedSigningKey].title}",
                    found=content.period,
                )
            return cbor.write_bytes(_raw_key(content))
        case EvolvedSigningKey(key=key):
            period = key.period.to_bytes(kes.PERIOD_SUFFIX_BYTES, "big")
            return cbor.write_bytes(_raw_key(key) + period)
        case ColdSigningKey():
            return cbor.write_bytes(content.seed)
        case KesVerificationKey() | ColdVerificationKey():
            return cbor.write_bytes(content.verification_key)
        case IssuedCertificate(certificate=certificate):
            return cbor.write_array(
                cbor.write_array(
                    cbor.write_bytes(certificate.kes_verification_key),
                    cbor.write_unsigned(certificate.issue_number),
                    cbor.write_unsigned(certificate.start_kes_period),
                    cbor.write_bytes(certificate.cold_signature),
                ),
                cbor.write_bytes(content.cold_verification_key),
            )


def _raw_key(key: kes.SigningKey) -> bytes:
    if key.depth != kes.DMQ_DEPTH:
        raise KeyFileError(
            f"the envelope type says KES depth {kes.DMQ_DEPTH}, the key has depth {key.depth}",
            found=key.depth,
        )
    return key.to_bytes()


def _read(content_type: type[object], encoded: bytes, source: str) -> Content:
    title = KINDS[content_type].title.removeprefix("an ").removeprefix("a ")
    reader = cbor.CborReader(encoded)
    try:
        content = _read_content(content_type, reader, title)
        reader.finish(f"the {title}")
    except (DecodeError, KeyFileError) as error:
        raise KeyFileError(
            f"{source}: {error.text}",
            advice=error.advice or "the file is damaged or of another kind; take it from its origin again",
            limit=error.limit,
            found=error.found,
            offset=error.offset,
        ) from None
    return content


def _read_content(content_type: type[object], reader: cbor.CborReader, title: str) -> Content:
    if content_type is IssuedCertificate:
        return _read_certificate(reader)
    if content_type is kes.SigningKey:
        return _read_kes_signing_key(reader, title)
    if content_type is EvolvedSigningKey:
        return EvolvedSigningKey(_read_kes_signing_key(reader, title))
    key = reader.byte_string(ed25519.SEED_BYTES, ed25519.SEED_BYTES, f"the {title}")
    if content_type is ColdSigningKey:
        return ColdSigningKey(key)
    return KesVerificationKey(key) if content_type is KesVerificationKey else ColdVerificationKey(key)


def _read_kes_signing_key(reader: cbor.CborReader, title: str) -> kes.SigningKey:
    key = reader.byte_string(0, reader.remaining, f"the {title}")
    if len(key) not in (KES_SIGNING_KEY_BYTES, KES_SIGNING_KEY_WITH_PERIOD_BYTES):
        raise KeyFileError(
            f"the {title} has {len(key)} bytes, expected {KES_SIGNING_KEY_BYTES} "
            f"(or {KES_SIGNING_KEY_WITH_PERIOD_BYTES} with its period appended)",
            found=len(key),
        )
    return kes.SigningKey.from_bytes(key)


def _read_certificate(reader: cbor.CborReader) -> IssuedCertificate:
    reader.array(2, "the certificate with its cold key")
    reader.array(4, "the certificate")
    certificate = OperationalCertificate(
        kes_verification_key=reader.byte_string(32, 32, "the KES verification key"),
        issue_number=reader.unsigned(64, "the issue number"),
        start_kes_period=reader.unsigned(64, "the start KES period"),
        cold_signature=reader.byte_string(64, 64, "the cold signature"),
    )
    return IssuedCertificate(certificate, reader.byte_string(32, 32, "the cold verification key"))
