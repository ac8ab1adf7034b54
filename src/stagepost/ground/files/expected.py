"""Expectations for a value in a file: each reads the value, or says in one sentence what it found instead."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

FOUND_CHARACTERS_MAX = 60
TEXT_CHARACTERS_MAX = 4_096
HOST_NAME_CHARACTERS_MAX = 253
PORT_MAX = 65_535
SECONDS_MAX = 10 * 366 * 86_400


class UnexpectedValue(Exception):
    """Value other than the expected one. The text names both; the caller who knows the file and the key adds
    them."""


@dataclass(frozen=True, slots=True)
class Expected(Generic[T_co]):
    """Reader of one kind of value: `read` returns the value or raises `UnexpectedValue`.

    `what` completes the sentence "expected …" where the value is missing. `schema` says the same in JSON Schema; `read` may
    be stricter than it, never laxer.
    """

    what: str
    read: Callable[[object], T_co]
    schema: Mapping[str, object] = field(default_factory=dict)

    def missing(self) -> str:
        return f"expected {self.what}, found nothing"


def found(value: object) -> str:
    """Return the value as its file shows it, cut after `FOUND_CHARACTERS_MAX` characters."""
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    try:
        shown = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError):
        # TOML has dates; a number of thousands of digits has no text at all.
        shown = f"a {type(value).__name__}"
    return shown if len(shown) <= FOUND_CHARACTERS_MAX else f"{shown[:FOUND_CHARACTERS_MAX]}…"


def unfit(what: str, value: object, hint: str = "") -> UnexpectedValue:
    return UnexpectedValue(f"expected {what}, found {found(value)}{f' ({hint})' if hint else ''}")


def whole(low: int, high: int, what: str = "a number") -> Expected[int]:
    """Expect an integer from `low` to `high`, both included."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise unfit(what, value, _quotes_hint(value, int))
        if not low <= value <= high:
            raise unfit(f"{what} in {low}..{high}", value)
        return value

    return Expected(what, read, {"type": "integer", "minimum": low, "maximum": high})


def decimal(low: float, high: float, what: str, *, above_low: bool = False) -> Expected[float]:
    """Expect a number with or without fraction from `low` to `high`. `above_low` excludes the lower end
    itself."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise unfit(what, value, _quotes_hint(value, float))
        # NaN compares as false with everything, so it lies outside every range.
        if not low <= value <= high or (above_low and value == low):
            range_text = f"above {low:g} and at most {high:g}" if above_low else f"in {low:g}..{high:g}"
            raise unfit(f"{what} {range_text}", value)
        return float(value)

    lowest = "exclusiveMinimum" if above_low else "minimum"
    return Expected(what, read, {"type": "number", lowest: low, "maximum": high})


def seconds(*, above_zero: bool = True) -> Expected[float]:
    return decimal(0, SECONDS_MAX, "seconds as a number", above_low=above_zero)


def spelt_number(text: str, most: int) -> int | None:
    """Return the number that `text` spells in plain digits; None for any other text, and for a number above `most`."""
    digits = text.lstrip("0") or text[-1:]
    if not (text.isascii() and text.isdecimal()) or len(digits) > len(str(most)):
        return None
    number = int(digits)
    return number if number <= most else None


def _read_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        hint = "remove the quotes" if value in ("true", "false") else ""
        raise unfit("true or false", value, hint)
    return value


BOOLEAN = Expected("true or false", _read_boolean, {"type": "boolean"})


def text(what: str = "a text", characters_max: int = TEXT_CHARACTERS_MAX) -> Expected[str]:
    """Expect a text that is not empty, is printable and has at most `characters_max` characters."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise unfit(what, value, "add quotes" if isinstance(value, int | float) else "")
        if not value or not value.isprintable():
            raise unfit(f"{what} of printable characters", value)
        if len(value) > characters_max:
            raise unfit(f"{what} of at most {characters_max} characters", value)
        return value

    return Expected(what, read, {"type": "string", "minLength": 1, "maxLength": characters_max})


def one_of(words: Sequence[str]) -> Expected[str]:
    what = "one of " + ", ".join(words)

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise unfit(what, value)
        return value

    return Expected(what, read, {"enum": list(words)})


def list_of(item: Expected[T], what: str, *, may_be_empty: bool = True) -> Expected[tuple[T, ...]]:
    """Expect a list of items of one kind, each of which differs from the others."""

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise unfit(what, value)
        if not value and not may_be_empty:
            raise unfit(f"{what} with at least one entry", value)
        items: list[T] = []
        for index, entry in enumerate(value):
            try:
                items.append(item.read(entry))
            except UnexpectedValue as error:
                raise UnexpectedValue(f"{error} at [{index}]") from None
            if items[-1] in items[:-1]:
                raise UnexpectedValue(f"expected every entry once, found {found(entry)} again at [{index}]")
        return tuple(items)

    schema: dict[str, object] = {"type": "array", "items": dict(item.schema), "uniqueItems": True}
    return Expected(what, read, schema if may_be_empty else {**schema, "minItems": 1})


def optional(inner: Expected[T]) -> Expected[T | None]:
    """Expect what `inner` expects, or null, which JSON files write for a value that they leave open."""
    schema = {"anyOf": [dict(inner.schema), {"type": "null"}]}
    return Expected(inner.what, lambda value: None if value is None else inner.read(value), schema)


def ip_address(version: int) -> Expected[str]:
    what = f"an IPv{version} address"

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise unfit(what, value)
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            raise unfit(what, value) from None
        if address.version != version:
            raise unfit(what, value, f"this is IPv{address.version}")
        return value

    return Expected(what, read, {"type": "string", "format": f"ipv{version}"})


PORT = whole(1, PORT_MAX)
PORT_OR_ANY = whole(0, PORT_MAX)
HOST = text("a host name or address", HOST_NAME_CHARACTERS_MAX)


def _quotes_hint(value: object, kind: type[int] | type[float]) -> str:
    if not isinstance(value, str):
        return ""
    try:
        kind(value)
    except ValueError:
        return ""
    return "remove the quotes"
