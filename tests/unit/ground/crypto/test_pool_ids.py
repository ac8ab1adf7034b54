"""Pool ids: the hash of the cold key, and its two text forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import ConfigError
from stagepost.ground.crypto import bech32
from stagepost.ground.crypto.hashing import blake2b_224, blake2b_256, format_pool_id, parse_pool_id, pool_id

VECTORS = Path(__file__).parents[3] / "vectors" / "dmq"
POOL: dict[str, Any] = json.loads((VECTORS / "opcert-poolid.json").read_text())["vectors"][0]


def test_pool_id_of_the_vector_is_reproduced_in_all_forms() -> None:
    pool = pool_id(bytes.fromhex(POOL["derived_cold_vk_hex"]))

    assert pool.hex() == POOL["pool_id_hex"]
    assert format_pool_id(pool) == POOL["pool_id_bech32"]


@pytest.mark.parametrize(
    "text",
    [
        POOL["pool_id_hex"],
        POOL["pool_id_hex"].upper(),
        POOL["pool_id_bech32"],
        POOL["pool_id_bech32"].upper(),
    ],
)
def test_every_text_form_names_the_same_pool(text: str) -> None:
    assert parse_pool_id(text).hex() == POOL["pool_id_hex"]


@given(st.binary(min_size=28, max_size=28))
def test_any_pool_id_survives_both_forms(pool: bytes) -> None:
    assert parse_pool_id(format_pool_id(pool)) == pool
    assert parse_pool_id(pool.hex()) == pool


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "prefix"),
        ("ab" * 27, "56 digits, found 54"),
        ("ab" * 29, "56 digits, found 58"),
        ("abc", "56 digits, found 3"),
        (bech32.encode("stake", bytes(28)), "prefix 'pool', found 'stake'"),
        (bech32.encode("pool", bytes(32)), "28 bytes, found 32"),
        (POOL["pool_id_bech32"][:-1], "checksum"),
        (" " + POOL["pool_id_bech32"], "without spaces"),
        ("pool1" + "q" * 500, "at most 90"),
    ],
)
def test_unusable_pool_id_is_refused_with_the_reason_and_advice(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parse_pool_id(text)

    assert caught.value.advice
    assert len(caught.value.text) < 300


def test_pool_id_of_wrong_length_is_not_formatted() -> None:
    with pytest.raises(ValueError, match="28 bytes, found 32"):
        format_pool_id(bytes(32))


def test_hashes_are_blake2b_of_two_sizes() -> None:
    # The empty input's digests, as published with BLAKE2.
    assert blake2b_256(b"").hex() == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"
    assert blake2b_224(b"").hex() == "836cc68931c2e4e3e838602eca1902591d216837bafddfe6f0c8cb07"
