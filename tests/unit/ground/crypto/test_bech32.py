"""Bech32: the valid and invalid strings of BIP-173, and round trips of anything."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stagepost.errors import ConfigError
from stagepost.ground.crypto import bech32

ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

# From the test vectors of BIP-173, those whose data part is whole bytes.
VALID = {
    "A12UEL5L": ("a", ""),
    "a12uel5l": ("a", ""),
    "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1tt5tgs": (
        "an83characterlonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio",
        "",
    ),
    "abcdef1qpzry9x8gf2tvdw0s3jn54khce6mua7lmqqqxw": ("abcdef", "00443214c74254b635cf84653a56d7c675be77df"),
    "11qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqc8247j": (
        "1",
        "00" * 51,
    ),
    "split1checkupstagehandshakeupstreamerranterredcaperred2y9e3w": (
        "split",
        "c5f38b70305f519bf66d85fb6cf03058f3dde463ecd7918f2dc743918f2d",
    ),
    "?1ezyfcl": ("?", ""),
}

INVALID = {
    "\x201nwldj5": "printable ASCII",
    "\x7f1axkwrx": "printable ASCII",
    "\x801eym55h": "printable ASCII",
    "an84characterslonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1569pvx": (
        "at most 90"
    ),
    "pzry9x0s0muk": "prefix",
    "1pzry9x0s0muk": "prefix",
    "x1b4n0q5v": "character 'b'",
    "li1dgmt3": "too short",
    "A1G7SGD8": "checksum",
    "10a06t8": "prefix",
    "1qzzfhee": "prefix",
    "a12UEL5L": "mixes",
    "": "prefix",
}

contents = st.binary(max_size=40)


@pytest.mark.parametrize(("text", "expected"), VALID.items())
def test_valid_string_of_bip_173_is_read(text: str, expected: tuple[str, str]) -> None:
    assert bech32.decode(text) == (expected[0], bytes.fromhex(expected[1]))


@pytest.mark.parametrize(("text", "reason"), INVALID.items())
def test_invalid_string_of_bip_173_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        bech32.decode(text)


@given(contents)
def test_any_bytes_survive_in_either_case(content: bytes) -> None:
    text = bech32.encode("pool", content)

    assert bech32.decode(text) == ("pool", content)
    assert bech32.decode(text.upper()) == ("pool", content)


@given(contents, st.data())
def test_one_wrong_character_is_always_found(content: bytes, data: st.DataObject) -> None:
    text = bech32.encode("pool", content)
    at = data.draw(st.integers(len("pool1"), len(text) - 1))
    other = data.draw(st.sampled_from(ALPHABET))
    assume(other != text[at])

    with pytest.raises(ConfigError, match="checksum"):
        bech32.decode(text[:at] + other + text[at + 1 :])


@given(st.text(max_size=100))
def test_any_text_is_either_read_or_refused_as_configuration(text: str) -> None:
    try:
        prefix, content = bech32.decode(text)
    except ConfigError:
        return
    assert bech32.encode(prefix, content) == text.lower()


# One and three zero characters (a whole one too many), then stray bits in the last; the checksums are right.
@pytest.mark.parametrize("text", ["pool1qs0p78d", "pool1qqqcxjwtz", "pool1qp8kz2yq", "pool1ll3xv74f"])
def test_padding_that_is_too_long_or_not_empty_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="padding"):
        bech32.decode(text)


@pytest.mark.parametrize("prefix", ["", "Pool", "po ol", "poöl"])
def test_unusable_prefix_is_an_error(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        bech32.encode(prefix, b"")


def test_text_beyond_the_limit_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most 90"):
        bech32.encode("pool", bytes(60))
