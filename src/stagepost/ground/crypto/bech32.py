"""Bech32 (BIP-173): bytes as text with a readable prefix and a checksum that finds typing errors.

The decoder is strict: it wants one case only, checks the checksum and refuses stray bits in the padding. The
reason for a refusal never quotes more than one character of the text.
"""

from __future__ import annotations

from stagepost.errors import ConfigError

TEXT_CHARACTERS_MAX = 90

_ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_GENERATORS = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_CHECKSUM_CHARACTERS = 6


def encode(prefix: str, content: bytes) -> str:
    if not prefix or prefix != prefix.lower() or any(not 33 <= ord(c) <= 126 for c in prefix):
        raise ValueError(f"a bech32 prefix is lower-case printable ASCII, found {prefix!r}")
    values = _five_bit_groups(content)
    remainder = _polymod([*_expand(prefix), *values, *[0] * _CHECKSUM_CHARACTERS]) ^ 1
    checksum = [remainder >> 5 * (_CHECKSUM_CHARACTERS - 1 - i) & 31 for i in range(_CHECKSUM_CHARACTERS)]
    text = prefix + "1" + "".join(_ALPHABET[value] for value in [*values, *checksum])
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ValueError(
            f"bech32 text has at most {TEXT_CHARACTERS_MAX} characters, this would be {len(text)}"
        )
    return text


def decode(text: str) -> tuple[str, bytes]:
    """Return the prefix in lower case, and the bytes. Raise `ConfigError` for any text that is not valid
    bech32."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise ConfigError(f"bech32 text has at most {TEXT_CHARACTERS_MAX} characters, found {len(text)}")
    if any(not 33 <= ord(character) <= 126 for character in text):
        raise ConfigError("bech32 text is printable ASCII without spaces; this has another character")
    if text.lower() != text and text.upper() != text:
        raise ConfigError("bech32 text is all lower or all upper case; this mixes both")
    prefix, separator, symbols = text.lower().rpartition("1")
    if not separator or not prefix:
        raise ConfigError("bech32 text has a prefix, then the digit 1; this has none")
    if len(symbols) < _CHECKSUM_CHARACTERS:
        raise ConfigError(
            f"bech32 text ends with {_CHECKSUM_CHARACTERS} checksum characters; this is too short"
        )
    stray = next((character for character in symbols if character not in _VALUES), None)
    if stray is not None:
        raise ConfigError(f"bech32 text does not use the character {stray!r} after its prefix")
    values = [_VALUES[character] for character in symbols]
    if _polymod([*_expand(prefix), *values]) != 1:
        raise ConfigError("the bech32 checksum does not match: at least one character is wrong or missing")
    return prefix, _eight_bit_groups(values[:-_CHECKSUM_CHARACTERS])


def _expand(prefix: str) -> list[int]:
    return [*(ord(c) >> 5 for c in prefix), 0, *(ord(c) & 31 for c in prefix)]


def _polymod(values: list[int]) -> int:
    """Return the remainder of the BCH code over GF(32) from which the checksum is made."""
    remainder = 1
    for value in values:
        top = remainder >> 25
        remainder = (remainder & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_GENERATORS):
            if top >> bit & 1:
                remainder ^= generator
    return remainder


def _five_bit_groups(content: bytes) -> list[int]:
    groups = -(-len(content) * 8 // 5)
    number = int.from_bytes(content, "big") << groups * 5 - len(content) * 8
    return [number >> 5 * (groups - 1 - i) & 31 for i in range(groups)]


def _eight_bit_groups(values: list[int]) -> bytes:
    length, padding_bits = divmod(len(values) * 5, 8)
    number = 0
    for value in values:
        number = number << 5 | value
    # A whole character of padding, or padding that is not zero, would give one value several texts.
    if padding_bits >= 5 or number & (1 << padding_bits) - 1:
        raise ConfigError("the bech32 text ends in padding that is not empty")
    return (number >> padding_bits).to_bytes(length, "big")
