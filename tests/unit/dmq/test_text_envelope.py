"""Text envelopes: cardano-cli's shape exactly, both ways, and clear refusals that tell no secret."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq import key_texts as text_envelope
from stagepost.dmq.key_texts import (
    ColdSigningKey,
    ColdVerificationKey,
    Content,
    EvolvedSigningKey,
    IssuedCertificate,
    KesVerificationKey,
)
from stagepost.errors import KeyFileError
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import issue

COLD_SEED = bytes(range(100, 132))
COLD_KEY = ed25519.public_key(COLD_SEED)
KES_KEY = kes.SigningKey.generate(bytes(range(32)))
CERTIFICATE = issue(KES_KEY.verification_key, issue_number=7, start_kes_period=300, cold_seed=COLD_SEED)

CONTENTS: dict[str, tuple[Content, object]] = {
    "KesSigningKey_ed25519_kes_2^6": (KES_KEY, KES_KEY.to_bytes()),
    "KesVerificationKey_ed25519_kes_2^6": (
        KesVerificationKey(KES_KEY.verification_key),
        KES_KEY.verification_key,
    ),
    "StakePoolSigningKey_ed25519": (ColdSigningKey(COLD_SEED), COLD_SEED),
    "StakePoolVerificationKey_ed25519": (ColdVerificationKey(COLD_KEY), COLD_KEY),
    "NodeOperationalCertificate": (
        IssuedCertificate(CERTIFICATE, COLD_KEY),
        [[KES_KEY.verification_key, 7, 300, CERTIFICATE.cold_signature], COLD_KEY],
    ),
}


def an_envelope(type_name: str, content: object = b"", **changes: Any) -> bytes:
    fields = {"type": type_name, "description": "", "cborHex": cbor2.dumps(content).hex(), **changes}
    return json.dumps(fields).encode()


def refusal(text: bytes) -> KeyFileError:
    with pytest.raises(KeyFileError) as caught:
        text_envelope.decode(text, source="my.file")
    assert "my.file" in caught.value.text
    assert caught.value.advice
    return caught.value


@pytest.mark.parametrize("type_name", CONTENTS)
def test_what_is_written_has_the_published_type_and_another_decoder_reads_it(type_name: str) -> None:
    content, plain = CONTENTS[type_name]
    fields = json.loads(text_envelope.encode(content))

    assert list(fields) == ["type", "description", "cborHex"]
    assert fields["type"] == type_name
    assert cbor2.loads(bytes.fromhex(fields["cborHex"])) == plain


@pytest.mark.parametrize("type_name", CONTENTS)
def test_what_is_written_is_read_back(type_name: str) -> None:
    content, _ = CONTENTS[type_name]
    text = text_envelope.encode(content)
    again = text_envelope.decode(text, source="f")

    assert type(again) is type(content)
    assert text_envelope.encode(again) == text


@pytest.mark.parametrize("type_name", CONTENTS)
def test_what_another_encoder_wrote_is_read(type_name: str) -> None:
    content, plain = CONTENTS[type_name]
    again = text_envelope.decode(an_envelope(type_name, plain), source="f")

    assert text_envelope.encode(again) == text_envelope.encode(content)


def test_certificate_keeps_its_numbers_and_knows_whether_it_is_valid() -> None:
    text = text_envelope.encode(IssuedCertificate(CERTIFICATE, COLD_KEY))
    issued = text_envelope.decode_as(IssuedCertificate, text, source="f")

    assert issued == IssuedCertificate(CERTIFICATE, COLD_KEY)
    assert issued.is_valid
    assert not IssuedCertificate(CERTIFICATE, bytes(32)).is_valid


def evolved_key() -> kes.SigningKey:
    key = kes.SigningKey.generate(bytes(32))
    for _ in range(33):
        key.evolve()
    return key


def test_evolved_key_has_a_type_of_its_own_and_keeps_its_period() -> None:
    text = text_envelope.encode(EvolvedSigningKey(evolved_key()))

    assert json.loads(text)["type"] == "StagepostEvolvedKesSigningKey_ed25519_kes_2^6"
    assert text_envelope.decode_as(EvolvedSigningKey, text, source="f").key.period == 33
    with pytest.raises(KeyFileError, match="f holds an evolved KES signing key"):
        text_envelope.decode_as(kes.SigningKey, text, source="f")


def test_evolved_key_is_never_written_under_the_type_that_others_take_for_period_0() -> None:
    with pytest.raises(KeyFileError, match="at period 33") as caught:
        text_envelope.encode(evolved_key())

    assert caught.value.advice


def test_evolved_key_that_somebody_wrote_under_that_type_is_read_with_its_period() -> None:
    text = an_envelope("KesSigningKey_ed25519_kes_2^6", evolved_key().to_bytes())

    assert text_envelope.decode_as(kes.SigningKey, text, source="f").period == 33


def test_evolved_signing_key_is_not_copied() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(EvolvedSigningKey(evolved_key()))


def test_key_with_its_period_appended_is_read_and_written_without() -> None:
    text = an_envelope("KesSigningKey_ed25519_kes_2^6", KES_KEY.to_bytes() + bytes(4))
    key = text_envelope.decode_as(kes.SigningKey, text, source="f")

    assert text_envelope.encode(key) == text_envelope.encode(KES_KEY)


def test_wrong_kind_names_what_was_found_and_what_was_expected() -> None:
    text = text_envelope.encode(KesVerificationKey(KES_KEY.verification_key))

    with pytest.raises(KeyFileError) as caught:
        text_envelope.decode_as(kes.SigningKey, text, source="kes.vkey")

    assert caught.value.text == (
        "kes.vkey holds a KES verification key (type KesVerificationKey_ed25519_kes_2^6); "
        "expected a KES signing key (type KesSigningKey_ed25519_kes_2^6)"
    )


@pytest.mark.parametrize("length", [0, 32, 288, 448, 607, 609, 611, 613, 2000])
def test_kes_signing_key_of_wrong_length_is_refused_with_both_lengths(length: int) -> None:
    error = refusal(an_envelope("KesSigningKey_ed25519_kes_2^6", bytes([7]) * length))

    assert f"has {length} bytes, expected 608" in error.text
    assert error.found == length


@pytest.mark.parametrize("type_name", sorted(CONTENTS.keys() - {"NodeOperationalCertificate"}))
@pytest.mark.parametrize("content", [5, "text", [], {}, [b""], None, True, bytes(31), bytes(33), bytes(288)])
def test_key_that_is_something_else_is_refused(type_name: str, content: object) -> None:
    refusal(an_envelope(type_name, content))


K, S = bytes(32), bytes(64)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (K, "expected an array"),
        ([[K, 0, 0, S]], "1 elements, expected 2"),
        ([[K, 0, 0, S], K, K], "3 elements, expected 2"),
        ([[K, 0, 0], K], "3 elements, expected 4"),
        ([[K, 0, 0, S, 0], K], "5 elements, expected 4"),
        ([[K[1:], 0, 0, S], K], "the KES verification key has 31 bytes, expected exactly 32"),
        ([[K, 0, 0, S[1:]], K], "the cold signature has 63 bytes, expected exactly 64"),
        ([[K, 0, 0, S], K + b"x"], "the cold verification key has 33 bytes, expected exactly 32"),
        ([[K, -1, 0, S], K], "an unsigned integer for the issue number, found a negative integer"),
        ([[K, 0, 2**64, S], K], "an unsigned integer for the start KES period, found a tag"),
        ([[K, 0, b"0", S], K], "an unsigned integer for the start KES period, found a byte string"),
    ],
)
def test_certificate_of_another_shape_is_refused_with_the_reason(content: object, reason: str) -> None:
    assert reason in refusal(an_envelope("NodeOperationalCertificate", content)).text


def test_bytes_after_the_value_are_refused() -> None:
    text = an_envelope("StakePoolVerificationKey_ed25519", cborHex=cbor2.dumps(K).hex() + "00")

    assert "1 bytes left over" in refusal(text).text


@pytest.mark.parametrize(
    "type_name",
    ["StakePoolExtendedSigningKey_ed25519_bip32", "StakePoolExtendedVerificationKey_ed25519_bip32"],
)
def test_extended_keys_are_refused_with_a_sentence_of_their_own(type_name: str) -> None:
    assert "extended (BIP-32) key" in refusal(an_envelope(type_name, bytes(128))).text


def test_unknown_type_is_refused_with_the_known_ones() -> None:
    error = refusal(an_envelope("VrfSigningKey_PraosVRF", bytes(64)))

    assert "'VrfSigningKey_PraosVRF'" in error.text
    assert all(type_name in error.text for type_name in CONTENTS)


def test_overlong_type_is_cut_in_the_refusal() -> None:
    assert len(refusal(an_envelope("x" * 10_000)).text) < 500


@pytest.mark.parametrize(
    ("digits", "reason"),
    [("582", "3 digits is an odd number"), ("58zz", "not all"), ("58 20", "odd number"), ("5ü", "not all")],
)
def test_hex_that_is_cut_or_wrong_is_refused(digits: str, reason: str) -> None:
    assert reason in refusal(an_envelope("StakePoolSigningKey_ed25519", cborHex=digits)).text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"type": "\xff"}',
        b"[" * 5_000,
        b'{"type":' * 2_000,
        json.dumps({"type": "a", "description": ""}).encode(),
        json.dumps({"type": 1, "description": "", "cborHex": ""}).encode(),
        json.dumps({"type": "a", "description": "", "cborHex": "", "more": 1}).encode(),
        text_envelope.encode(KES_KEY)[:-20],
    ],
)
def test_text_that_is_no_envelope_is_refused(text: bytes) -> None:
    assert "is not a text envelope" in refusal(text).text


@given(st.sampled_from(sorted(CONTENTS)), st.binary(max_size=700))
def test_any_content_is_either_read_or_refused_as_a_key_file(type_name: str, content: bytes) -> None:
    try:
        text_envelope.decode(an_envelope(type_name, cborHex=content.hex()), source="f")
    except KeyFileError:
        return
    assert type_name != "KesSigningKey_ed25519_kes_2^6"


def test_no_part_of_a_secret_shows_in_a_refusal() -> None:
    secret = bytes.fromhex("5ec2e7ca11ab1e" * 90)[:608]
    whole = an_envelope("KesSigningKey_ed25519_kes_2^6", secret)

    for text in (
        whole,
        whole[:-9],
        whole.replace(b"cborHex", b"cborHey"),
        whole.replace(b"e7ca", b"e7cz"),
        an_envelope("KesSigningKey_ed25519_kes_2^6", secret[:600]),
        an_envelope("StakePoolSigningKey_ed25519", secret[:64]),
        an_envelope("NodeOperationalCertificate", secret),
        an_envelope("StakePoolExtendedSigningKey_ed25519_bip32", secret[:128]),
    ):
        error = refusal(text)
        assert (
            "5ec2e7" not in f"{error.text} {error.advice} {error.found} {error!r} {error.__cause__!r}".lower()
        )


def test_cold_signing_key_hides_its_seed_and_is_not_copied() -> None:
    key = ColdSigningKey(COLD_SEED)

    assert COLD_SEED.hex() not in f"{key} {key!r}"
    assert repr(COLD_SEED) not in f"{key} {key!r}"
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            attempt(key)


def test_kes_key_of_another_depth_does_not_go_under_this_type() -> None:
    with pytest.raises(KeyFileError, match="the key has depth 3"):
        text_envelope.encode(kes.SigningKey.generate(bytes(32), depth=3))
