"""Layouts: a tag and fields in schema order, from which both the encoder and the decoder come.

Every protocol message of the DMQ family is written `[tag, field, …]`. A layout stands right under the message
it describes; since one description serves both ways, they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any, Protocol

from stagepost.errors import DecodeError, WireRule
from stagepost.ground.wire.cbor import (
    ARRAY,
    BREAK,
    BYTE_STRING,
    INDEFINITE_ARRAY,
    CborReader,
    head,
    write_array,
    write_bytes,
    write_text,
    write_unsigned,
)

TAG_BITS = 8
_SMALL_NUMBERS = tuple(write_unsigned(number) for number in range(24))
_EMPTY_ARRAY = 0x80
_ITEMS_AROUND_A_LIST = 3  # the message itself, its tag and the list


class Field(Protocol):
    """Value inside a message. Values differ in type from field to field, hence `Any`."""

    def read(self, reader: CborReader, what: str) -> Any: ...

    def write(self, value: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Unsigned:
    bits: int

    def read(self, reader: CborReader, what: str) -> int:
        return reader.unsigned(self.bits, what)

    def write(self, value: int) -> bytes:
        if 0 <= value < 24:
            return _SMALL_NUMBERS[value]
        if value >> self.bits:
            raise OverflowError(f"{value} does not fit in {self.bits} bits")
        return write_unsigned(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, reader: CborReader, what: str) -> bool:
        return reader.boolean(what)

    def write(self, value: bool) -> bytes:
        return b"\xf5" if value else b"\xf4"


@dataclass(frozen=True, slots=True)
class ByteString:
    bytes_min: int
    bytes_max: int
    usual_head: bytes = field(init=False)  # of a string of the greatest length: fixed sizes have no other

    def __post_init__(self) -> None:
        object.__setattr__(self, "usual_head", head(BYTE_STRING, self.bytes_max))

    def read(self, reader: CborReader, what: str) -> bytes:
        return reader.byte_string(self.bytes_min, self.bytes_max, what)

    def write(self, value: bytes) -> bytes:
        return self.usual_head + value if len(value) == self.bytes_max else write_bytes(value)


@dataclass(frozen=True, slots=True)
class Text:
    bytes_max: int

    def read(self, reader: CborReader, what: str) -> str:
        return reader.text(self.bytes_max, what)

    def write(self, value: str) -> bytes:
        return write_text(value)


class ListForm(Enum):
    """Form in which lists are written; both forms are read. Nodes written in Haskell read only the indefinite
    one."""

    DEFINITE = "definite"
    INDEFINITE = "indefinite"
    EMPTY_DEFINITE = "definite if empty, else indefinite"


class UsualItems(Protocol):
    """List elements that fill most of the traffic, read all together at a fraction of the cost of one by one."""

    @property
    def items_each(self) -> int:
        """Number of CBOR items that one element holds, itself among them."""
        ...

    def read_all(self, data: bytes, start: int, end: int) -> list[Any] | None:
        """Return the elements that fill `data` from `start` to `end`; None if any of them is not in its usual
        shape."""
        ...


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Field
    form: ListForm
    count_max: int
    count_min: int = 0
    usual: UsualItems | None = None

    def read_usual(self, data: bytes, start: int, items_max: int) -> tuple[Any, ...] | None:
        """Return the list that fills the rest of `data`; None unless every element has its usual shape and
        all limits hold."""
        assert self.usual is not None
        end = len(data)
        if end <= start:
            return None
        form = data[start]
        count = None
        if form == INDEFINITE_ARRAY:
            end -= 1
            if data[end] != BREAK:
                return None
        else:
            count = form - _EMPTY_ARRAY
            if not 0 <= count < 24:
                return None
        items = self.usual.read_all(data, start + 1, end)
        if items is None or (count is not None and count != len(items)):
            return None
        if (
            not self.count_min <= len(items) <= self.count_max
            or len(items) * self.usual.items_each > items_max
        ):
            return None
        return tuple(items)

    def read(self, reader: CborReader, what: str) -> tuple[Any, ...]:
        start = reader.offset
        count = reader.list_start(what)
        if count is not None and count > self.count_max:
            raise reader.over_limit(f"the length of {what}", count, self.count_max, at=start)
        items: list[Any] = []
        read_item = self.item.read
        while not reader.take_break() if count is None else len(items) < count:
            if len(items) >= self.count_max:
                raise reader.over_limit(f"the length of {what}", len(items) + 1, self.count_max, at=start)
            at = reader.offset
            try:
                items.append(read_item(reader, what))
            except DecodeError:
                # Building the name of each element would cost more than reading it, so only a faulty one is
                # read again with its name.
                reader.offset = at
                read_item(reader, f"{what}[{len(items)}]")
                raise
        if len(items) < self.count_min:
            raise reader.invalid(
                f"{what} has {len(items)} elements, at least {self.count_min} are required",
                at=start,
                rule=WireRule.EMPTY_BLOCKING_REPLY,
            )
        return tuple(items)

    def write(self, value: tuple[Any, ...]) -> bytes:
        definite = self.form is ListForm.DEFINITE or (self.form is ListForm.EMPTY_DEFINITE and not value)
        items = b"".join(map(self.item.write, value))
        return head(ARRAY, len(value)) + items if definite else b"\x9f" + items + b"\xff"


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Definite array without a tag, such as an `[id, size]` pair."""

    make: Callable[..., Any]
    fields: tuple[tuple[str, Field], ...]

    def read(self, reader: CborReader, what: str) -> Any:
        at = reader.offset
        try:
            reader.array(len(self.fields), what)
            return self.make(*[part.read(reader, what) for _, part in self.fields])
        except DecodeError:
            # As with lists: only a faulty value is read again with its name.
            reader.offset = at
            reader.array(len(self.fields), what)
            for name, part in self.fields:
                part.read(reader, f"{what}.{name}")
            raise

    def write(self, value: Any) -> bytes:
        return write_array(*(part.write(getattr(value, name)) for name, part in self.fields))


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout `[tag, fields…]` of one message type.

    `surplus` names fields that some peers append: they are read and dropped, never written. If
    `surplus_may_be_missing`, the head may announce them although they do not follow.
    """

    message: type[Any]
    tag: int
    fields: tuple[tuple[str, Field], ...] = ()
    surplus: tuple[tuple[str, Field], ...] = ()
    surplus_may_be_missing: bool = False
    beginning: bytes = field(init=False)  # as it is written: the head and the tag
    usual_list: ListOf | None = field(init=False)  # the only field, if it is a list that has a usual shape

    def __post_init__(self) -> None:
        beginning = head(ARRAY, 1 + len(self.fields)) + write_unsigned(self.tag)
        object.__setattr__(self, "beginning", beginning)
        only = self.fields[0][1] if len(self.fields) == 1 else None
        is_usual = isinstance(only, ListOf) and only.usual is not None
        object.__setattr__(self, "usual_list", only if is_usual else None)

    @property
    def lengths(self) -> range:
        """Element counts that the head of this message may announce."""
        least = 1 + len(self.fields)
        return range(least, least + len(self.surplus) + 1)

    def read_fields(self, reader: CborReader, length: int) -> Any:
        """Return the message from the bytes after its head and tag."""
        name = self.message.__name__
        values = [part.read(reader, f"{name}.{label}") for label, part in self.fields]
        for label, part in self.surplus[: length - 1 - len(self.fields)]:
            if self.surplus_may_be_missing and not reader.remaining:
                break
            part.read(reader, f"{name}.{label}")
        return self.message(*values)

    def constants(self) -> list[Any]:
        """Return every message of this layout if only booleans tell them apart; otherwise an empty list."""
        if not all(isinstance(part, Boolean) for _, part in self.fields):
            return []
        return [self.message(*values) for values in product((False, True), repeat=len(self.fields))]

    def read_usual(self, data: bytes, items_max: int) -> Any | None:
        """Return the message if `data`, which begins like this message, is exactly one in its usual shape;
        else None."""
        assert self.usual_list is not None
        values = self.usual_list.read_usual(data, len(self.beginning), items_max - _ITEMS_AROUND_A_LIST)
        return None if values is None else self.message(values)

    def write(self, message: Any) -> bytes:
        written = self.beginning
        for label, part in self.fields:
            written += part.write(getattr(message, label))
        return written


def read_head(reader: CborReader) -> tuple[int, int]:
    """Return the number of elements that the message announces, and its tag."""
    length = reader.array_length("the message")
    if length < 1:
        raise reader.invalid(
            "a message is an array that begins with a tag; this array is empty", at=reader.offset - 1
        )
    return length, reader.unsigned(TAG_BITS, "the message's tag")


@dataclass(frozen=True, slots=True)
class Union:
    """Choice of several tagged layouts, nested inside a message: a reject reason, a peer's address."""

    choices: tuple[Layout, ...]

    def read(self, reader: CborReader, what: str) -> Any:
        start = reader.offset
        length, tag = read_head(reader)
        for layout in self.choices:
            if layout.tag == tag and length in layout.lengths:
                return layout.read_fields(reader, length)
        raise reader.invalid(
            f"{what} has tag {tag} and {length} elements, which is none of its forms",
            at=start,
            rule=WireRule.UNKNOWN_MESSAGE,
        )

    def write(self, value: Any) -> bytes:
        layout = next((choice for choice in self.choices if choice.message is type(value)), None)
        if layout is None:
            raise TypeError(f"{type(value).__name__} is none of the forms of this field")
        return layout.write(value)
