"""What values in people's files must be, and the one sentence for those that are not."""

from __future__ import annotations

import pytest

from stagepost.ground.files.expected import (
    BOOLEAN,
    FOUND_CHARACTERS_MAX,
    SECONDS_MAX,
    TEXT_CHARACTERS_MAX,
    Expected,
    UnexpectedValue,
    found,
    ip_address,
    list_of,
    one_of,
    optional,
    seconds,
    spelt_number,
    text,
    whole,
)


def refusal(expected: Expected[object], value: object) -> str:
    with pytest.raises(UnexpectedValue) as caught:
        expected.read(value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expected", "value", "sentence"),
    [
        (whole(1, 9), 10, "expected a number in 1..9, found 10"),
        (whole(1, 9), 0, "expected a number in 1..9, found 0"),
        (whole(1, 9), "5", 'expected a number, found "5" (remove the quotes)'),
        (whole(1, 9), "five", 'expected a number, found "five"'),
        (whole(1, 9), 5.0, "expected a number, found 5.0"),
        (whole(0, 9), True, "expected a number, found true"),
        (whole(0, 9), None, "expected a number, found null"),
        (whole(0, 9), {}, "expected a number, found an empty object"),
        (whole(0, 9), [1], "expected a number, found a list"),
        (seconds(), "soon", 'expected seconds as a number, found "soon"'),
        (seconds(), "1.5", 'expected seconds as a number, found "1.5" (remove the quotes)'),
        (seconds(), 0, f"expected seconds as a number above 0 and at most {SECONDS_MAX:g}, found 0"),
        (seconds(above_zero=False), -1, f"expected seconds as a number in 0..{SECONDS_MAX:g}, found -1"),
        (BOOLEAN, "true", 'expected true or false, found "true" (remove the quotes)'),
        (BOOLEAN, 1, "expected true or false, found 1"),
        (text(), 3, "expected a text, found 3 (add quotes)"),
        (text(), "", 'expected a text of printable characters, found ""'),
        (text(), "a\nb", 'expected a text of printable characters, found "a\\nb"'),
        (one_of(("a", "b")), "c", 'expected one of a, b, found "c"'),
        (one_of(("a", "b")), ["a"], "expected one of a, b, found a list"),
        (list_of(whole(0, 1), "a list"), "x", 'expected a list, found "x"'),
        (list_of(whole(0, 1), "a list"), [0, 2], "expected a number in 0..1, found 2 at [1]"),
        (list_of(whole(0, 1), "a list"), [0, 0], "expected every entry once, found 0 again at [1]"),
        (
            list_of(whole(0, 1), "a list", may_be_empty=False),
            [],
            "expected a list with at least one entry, found an empty list",
        ),
        (ip_address(4), "::1", 'expected an IPv4 address, found "::1" (this is IPv6)'),
        (ip_address(6), "x", 'expected an IPv6 address, found "x"'),
        (ip_address(4), 2130706433, "expected an IPv4 address, found 2130706433"),
    ],
)
def test_the_sentence_says_what_was_expected_and_found(
    expected: Expected[object], value: object, sentence: str
) -> None:
    assert refusal(expected, value) == sentence


@pytest.mark.parametrize(
    ("expected", "value", "read"),
    [
        (whole(1, 9), 1, 1),
        (whole(1, 9), 9, 9),
        (seconds(), SECONDS_MAX, float(SECONDS_MAX)),
        (seconds(above_zero=False), 0, 0.0),
        (text(), "a" * TEXT_CHARACTERS_MAX, "a" * TEXT_CHARACTERS_MAX),
        (list_of(whole(0, 1), "a list"), [1, 0], (1, 0)),
        (optional(whole(0, 1)), None, None),
        (optional(whole(0, 1)), 1, 1),
        (ip_address(6), "fe80::1", "fe80::1"),
    ],
)
def test_a_value_that_fits_is_read(expected: Expected[object], value: object, read: object) -> None:
    assert expected.read(value) == read


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), SECONDS_MAX + 1, 10**400])
def test_numbers_out_of_all_bounds_are_refused(value: float) -> None:
    assert refusal(seconds(), value).startswith("expected seconds as a number above 0")


def test_a_text_that_is_too_long_is_refused() -> None:
    assert "at most" in refusal(text(), "a" * (TEXT_CHARACTERS_MAX + 1))


def test_a_long_value_is_cut_where_it_is_shown() -> None:
    at_limit = "a" * (FOUND_CHARACTERS_MAX - 2)

    assert found(at_limit) == f'"{at_limit}"'
    assert found(at_limit + "a").endswith("…")
    assert found(10**5_000) == "a int"


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("000", 0), ("65535", 65_535), ("0065535", 65_535), ("0" * 5_000 + "7", 7)],
)
def test_plain_digits_spell_a_number(text: str, number: int) -> None:
    assert spelt_number(text, 65_535) == number


@pytest.mark.parametrize("text", ["", "65536", "-1", "+1", " 1", "1_0", "1.0", "٣", "²", "0x10", "9" * 5_000])
def test_anything_else_spells_no_number(text: str) -> None:
    assert spelt_number(text, 65_535) is None
