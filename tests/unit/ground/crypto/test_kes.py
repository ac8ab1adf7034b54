"""Sum-KES against keys and signatures of other implementations, through all periods, and on bad input."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import KeyFileError, LocalProtocolError, SigningError
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.operational_certificate import OperationalCertificate

VECTORS = Path(__file__).parents[3] / "vectors" / "dmq"
GOLDEN: dict[str, Any] = json.loads((VECTORS / "kes-sum6-golden.json").read_text())
GOLDEN_BY_ID = {vector["id"]: vector for vector in GOLDEN["vectors"]}
HEADERS: list[dict[str, Any]] = json.loads((VECTORS / "kes-opcert-chain-headers.json").read_text())["vectors"]
MESSAGE_FACTS: dict[str, Any] = json.loads((VECTORS / "message-cbor.json").read_text())["vectors"][0]

SEED = bytes.fromhex(GOLDEN["seed_hex"])
MESSAGE = bytes.fromhex(GOLDEN["message_hex"])
PERIODS = range(64)


def a_key(period: int = 0, *, seed: bytes = SEED, depth: int = 6) -> kes.SigningKey:
    key = kes.SigningKey.generate(seed, depth)
    for _ in range(period):
        key.evolve()
    return key


# Other implementations' bytes


@pytest.mark.parametrize("depth", [0, 1, 6])
def test_key_generation_matches_the_golden_key(depth: int) -> None:
    vector = GOLDEN_BY_ID[f"sum{depth}-keygen"]
    key = a_key(depth=depth)

    assert key.to_bytes().hex() == vector["secret_key_hex"]
    if "derived_verification_key_hex" in vector:
        assert key.verification_key.hex() == vector["derived_verification_key_hex"]


def test_evolution_matches_the_golden_key() -> None:
    vector = GOLDEN_BY_ID["sum6-update-0-to-1"]
    key = a_key(vector["from_period"])
    key.evolve()

    assert key.to_bytes().hex() == vector["secret_key_hex"]
    assert key.period == vector["to_period"]


def test_signature_matches_the_golden_one_and_verifies() -> None:
    vector = GOLDEN_BY_ID["sum6-sign-period-0"]
    signature = bytes.fromhex(vector["signature_hex"])
    verification_key = bytes.fromhex(vector["derived_verification_key_hex"])

    assert a_key(vector["period"]).sign(MESSAGE) == signature
    assert kes.verify(verification_key, vector["period"], MESSAGE, signature)


def test_all_29_headers_are_there() -> None:
    assert len(HEADERS) == 29


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: str(header["id"]))
def test_block_header_is_valid_at_exactly_one_evolution(header: dict[str, Any]) -> None:
    verification_key = bytes.fromhex(header["kes_vk_hex"])
    message = bytes.fromhex(header["message_hex"])
    signature = bytes.fromhex(header["kes_signature_hex"])

    valid = [period for period in PERIODS if kes.verify(verification_key, period, message, signature)]

    assert valid == [header["evolution"]]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: str(header["id"]))
def test_block_header_has_a_valid_certificate_and_the_pool_id(header: dict[str, Any]) -> None:
    cold_key = bytes.fromhex(header["cold_vk_hex"])
    certificate = OperationalCertificate(
        bytes.fromhex(header["kes_vk_hex"]),
        header["opcert_issue_number"],
        header["opcert_start_period"],
        bytes.fromhex(header["opcert_cold_signature_hex"]),
    )

    assert certificate.verify(cold_key)
    assert pool_id(cold_key).hex() == header["derived_pool_id_hex"]


def test_signature_of_the_message_vector_is_reproduced() -> None:
    facts, fields = MESSAGE_FACTS["crypto_facts"], MESSAGE_FACTS["fields"]
    key = a_key(facts["kes_signature_valid_at_evolution"], seed=bytes.fromhex(facts["kes_seed_hex"]))
    text = bytes.fromhex(facts["kes_signature_is_valid_over_hex"])

    assert key.sign(text).hex() == fields["kes_signature_hex"]
    assert key.verification_key.hex() == fields["opcert"]["kes_vk_hex"]


# The life of a key


def test_key_signs_for_its_own_period_and_no_other_through_all_64() -> None:
    key = a_key()
    verification_key = key.verification_key

    for period in PERIODS:
        signature = key.sign(MESSAGE)
        assert key.period == period
        assert key.periods_left == 63 - period
        assert key.verification_key == verification_key
        assert len(signature) == 448
        assert [p for p in PERIODS if kes.verify(verification_key, p, MESSAGE, signature)] == [period]
        assert not kes.verify(verification_key, period, MESSAGE + b"!", signature)
        if period < 63:
            key.evolve()


def test_after_the_last_period_the_key_is_exhausted_and_stays_as_it_is() -> None:
    key = a_key(63)
    before = key.to_bytes()

    for _ in range(2):
        with pytest.raises(kes.KesExhausted, match="last period, 63") as caught:
            key.evolve()
        assert isinstance(caught.value, SigningError)
        assert caught.value.advice

    assert key.to_bytes() == before
    assert kes.verify(key.verification_key, 63, MESSAGE, key.sign(MESSAGE))


def test_key_of_depth_zero_is_plain_ed25519_and_never_evolves() -> None:
    key = a_key(depth=0)

    assert key.verification_key == ed25519.public_key(SEED)
    assert key.sign(MESSAGE) == ed25519.sign(SEED, MESSAGE)
    assert kes.verify(key.verification_key, 0, MESSAGE, key.sign(MESSAGE))
    assert not kes.verify(key.verification_key, 1, MESSAGE, key.sign(MESSAGE))
    with pytest.raises(kes.KesExhausted):
        key.evolve()


def all_leaf_seeds(seed: bytes, depth: int) -> Iterator[tuple[bytes, list[bytes]]]:
    """Each period's leaf seed with every seed on the way to it, by the rule of the specification."""
    if depth == 0:
        yield seed, [seed]
        return
    for prefix in (b"\x01", b"\x02"):
        child = blake2b(prefix + seed, digest_size=32).digest()
        for leaf, ancestors in all_leaf_seeds(child, depth - 1):
            yield leaf, [seed, *ancestors]


def test_nothing_that_could_sign_for_a_past_period_stays_in_the_key() -> None:
    ways = [ancestors for _, ancestors in all_leaf_seeds(SEED, 6)]
    key = a_key()

    for period in PERIODS:
        secret = key.to_bytes()
        for past in range(period):
            assert not any(seed in secret for seed in ways[past])
        assert ways[period][-1] in secret
        if period < 63:
            key.evolve()


def test_raw_form_is_read_back_at_every_period() -> None:
    key = a_key()

    for period in PERIODS:
        again = kes.SigningKey.from_bytes(key.to_bytes())
        assert (again.period, again.depth) == (period, 6)
        assert again.verification_key == key.verification_key
        assert again.sign(MESSAGE) == key.sign(MESSAGE)
        with_period = kes.SigningKey.from_bytes(key.to_bytes() + period.to_bytes(4, "big"))
        assert with_period.to_bytes() == key.to_bytes()
        if period < 63:
            key.evolve()


@given(st.binary(min_size=32, max_size=32), st.integers(0, 4), st.binary(max_size=60), st.data())
def test_any_key_of_any_small_depth_keeps_the_rules(
    seed: bytes, depth: int, message: bytes, data: st.DataObject
) -> None:
    period = data.draw(st.integers(0, 2**depth - 1))
    key = a_key(period, seed=seed, depth=depth)
    signature = key.sign(message)

    assert len(key.to_bytes()) == 32 + 96 * depth
    assert len(signature) == 64 + 64 * depth
    valid = [p for p in range(-1, 2**depth + 1) if kes.verify(key.verification_key, p, message, signature)]
    assert valid == [period]
    assert kes.SigningKey.from_bytes(key.to_bytes()).period == period
    bit = data.draw(st.integers(0, len(signature) * 8 - 1))
    altered = (int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(len(signature), "big")
    assert not kes.verify(key.verification_key, period, message, altered)


# Bad input


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 288, 384, 447, 449, 512, 64 + 64 * 17, 100_000])
def test_signature_of_wrong_length_is_false(length: int) -> None:
    key = a_key()
    signature = (key.sign(MESSAGE) * (length // 448 + 1))[:length]

    assert kes.verify(key.verification_key, 0, MESSAGE, signature) is False


@pytest.mark.parametrize("period", [-1, 1, 63, 64, 128, 2**64, -(2**64)])
def test_wrong_period_is_false(period: int) -> None:
    key = a_key()

    assert kes.verify(key.verification_key, period, MESSAGE, key.sign(MESSAGE)) is False


@pytest.mark.parametrize("length", [0, 31, 33])
def test_verification_key_of_wrong_length_is_false(length: int) -> None:
    key = a_key()
    wrong = (key.verification_key + b"\0")[:length]

    assert kes.verify(wrong, 0, MESSAGE, key.sign(MESSAGE)) is False
    assert kes.verify(wrong, 0, MESSAGE, key.sign(MESSAGE)[:64]) is False


@pytest.mark.parametrize("length", [0, 31, 33, 127, 288, 448, 607, 609, 611, 613, 32 + 96 * 17])
def test_raw_key_of_wrong_length_is_refused_by_name(length: int) -> None:
    with pytest.raises(KeyFileError, match=f"found {length}$"):
        kes.SigningKey.from_bytes(bytes([7]) * length)


@pytest.mark.parametrize("period", [0, 5, 31])
def test_raw_key_damaged_anywhere_is_refused(period: int) -> None:
    raw = a_key(period).to_bytes()

    for at in range(0, len(raw), 9):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        with pytest.raises(KeyFileError, match="damaged"):
            kes.SigningKey.from_bytes(damaged)


@pytest.mark.parametrize("period", [32, 63])
def test_damage_in_the_second_half_is_refused_or_gives_another_verification_key(period: int) -> None:
    key = a_key(period)
    raw = key.to_bytes()
    root_left_key = range(544, 576)

    for at in range(0, len(raw), 9):
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        if at in root_left_key:
            assert kes.SigningKey.from_bytes(damaged).verification_key != key.verification_key
        else:
            with pytest.raises(KeyFileError, match="damaged"):
                kes.SigningKey.from_bytes(damaged)


def test_seed_erased_too_early_is_refused() -> None:
    raw = bytearray(a_key().to_bytes())
    raw[32:64] = bytes(32)

    with pytest.raises(KeyFileError, match="do not belong together at period 1"):
        kes.SigningKey.from_bytes(bytes(raw))


def test_appended_period_that_contradicts_the_key_is_refused() -> None:
    with pytest.raises(KeyFileError, match="says it is at period 4, but its erased seeds say 3"):
        kes.SigningKey.from_bytes(a_key(3).to_bytes() + (4).to_bytes(4, "big"))


def test_unusable_seed_or_depth_is_an_error() -> None:
    with pytest.raises(ValueError, match="32 bytes, found 31"):
        kes.SigningKey.generate(bytes(31))
    for depth in (-1, 17):
        with pytest.raises(ValueError, match=f"found {depth}"):
            kes.SigningKey.generate(bytes(32), depth)


# Secrets


def test_no_secret_shows_in_the_text_forms_of_a_key() -> None:
    key = a_key(5)
    shown = f"{key} {key!r}"

    secret = key.to_bytes()
    for start in (0, 32, 128, 224):
        assert secret[start : start + 32].hex() not in shown
    assert not hasattr(key, "__dict__")


def test_key_is_neither_pickled_nor_copied() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            attempt(a_key())


def test_erased_key_holds_no_secret_and_neither_signs_nor_evolves() -> None:
    key = kes.SigningKey.generate(bytes(range(32)))
    secret = key._secret
    key.erase()

    assert not any(secret)
    for attempt in (lambda: key.sign(b"message"), key.evolve, key.to_bytes):
        with pytest.raises(LocalProtocolError, match="was erased"):
            attempt()
