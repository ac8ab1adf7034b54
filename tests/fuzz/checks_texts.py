"""What must hold for what people hand in as text: key files and pool ids."""

from __future__ import annotations

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import (
    ColdSigningKey,
    ColdVerificationKey,
    Content,
    EvolvedSigningKey,
    IssuedCertificate,
    KesVerificationKey,
)
from stagepost.errors import ConfigError
from stagepost.ground.crypto import bech32
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.pool_ids import format_pool_id, parse_pool_id
from tests.fuzz.harness import Verdict, attempt, require
from tests.fuzz.samples import COLD_KEY, COLD_SEED, certificate, signing_key

# Late in its life a KES key holds few seeds, and so costs little to check: more inputs in the same time.
_LATE_PERIOD = 60


def check_texts(data: bytes) -> Verdict:
    """As a text, and as what stands in hex inside an envelope of each kind."""
    verdict = _check_envelope(data)
    for kind in text_envelope.KINDS.values():
        verdict = max(verdict, _check_envelope(_envelope(kind.type_name, data)))
    # The way arguments reach a program: bytes that are no text become lone surrogates.
    return max(verdict, _check_pool_id(data.decode("utf-8", "surrogateescape")))


def _check_envelope(text: bytes) -> Verdict:
    content = attempt(lambda: text_envelope.decode(text, source="input"), len(text), ConfigError)
    if content is None:
        return Verdict.REFUSED
    if isinstance(content, SigningKey) and content.period:
        content = EvolvedSigningKey(content)  # the type line of other programs is for keys at period 0 alone
    again = text_envelope.decode(text_envelope.encode(content), source="again")
    require(text_envelope.encode(again) == text_envelope.encode(content), "the envelope says another thing")
    return Verdict.ACCEPTED


def _check_pool_id(text: str) -> Verdict:
    pool_id = attempt(lambda: parse_pool_id(text), len(text), ConfigError)
    found = attempt(lambda: bech32.decode(text), len(text), ConfigError)
    if found is not None:
        prefix, content = found
        require(bech32.encode(prefix, content) == text.lower(), "the bech32 text has a second form")
    if pool_id is not None:
        require(text.lower() in (pool_id.hex(), format_pool_id(pool_id)), "the pool id has a third form")
    return Verdict.REFUSED if pool_id is None and found is None else Verdict.ACCEPTED


def _envelope(type_name: str, content: bytes) -> bytes:
    text = f'{{"type": "{type_name}", "description": "", "cborHex": "{content.hex()}"}}'
    return text.encode()


def text_samples() -> tuple[bytes, ...]:
    contents: tuple[Content, ...] = (
        EvolvedSigningKey(signing_key(_LATE_PERIOD)),
        KesVerificationKey(signing_key().verification_key),
        ColdSigningKey(COLD_SEED),
        ColdVerificationKey(COLD_KEY),
        IssuedCertificate(certificate(), COLD_KEY),
    )
    envelopes = [text_envelope.encode(content) for content in contents]
    inner = [bytes.fromhex(text.split(b'"')[-2].decode()) for text in envelopes]
    pool_id = bytes(range(28))
    return (
        *envelopes,
        *inner,
        format_pool_id(pool_id).encode(),
        format_pool_id(pool_id).upper().encode(),
        pool_id.hex().encode(),
        bech32.encode("stake_test", b"another").encode(),
    )
