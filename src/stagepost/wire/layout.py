"""Layouts: a tag and fields in schema order, from which both the encoder and the decoder come.

`[tag, field, …]` is how every protocol message of the DMQ family is written. A layout sits right under the message it
describes; since one description serves both ways, they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from stagepost.errors import DecodeError
from stagepost.wire.cbor import (
    ARRAY,
    Reader,
    head,
    write_array,
    write_boolean,
    write_bytes,
    write_indefinite_array,
    write_text,
    write_unsigned,
)

TAG_BITS = 8


class Field(Protocol):
    """One value inside a message. Values differ in type from field to field, hence `Any`."""

    def read(self, reader: Reader, what: str) -> Any: ...

    def write(self, value: Any) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Unsigned:
    bits: int

    def read(self, reader: Reader, what: str) -> int:
        return reader.unsigned(self.bits, what)

    def write(self, value: int) -> bytes:
        if value >> self.bits:
            raise OverflowError(f"{value} does not fit in {self.bits} bits")
        return write_unsigned(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, reader: Reader, what: str) -> bool:
        return reader.boolean(what)

    def write(self, value: bool) -> bytes:
        return write_boolean(value)


@dataclass(frozen=True, slots=True)
class ByteString:
    bytes_min: int
    bytes_max: int

    def read(self, reader: Reader, what: str) -> bytes:
        return reader.byte_string(self.bytes_min, self.bytes_max, what)

    def write(self, value: bytes) -> bytes:
        return write_bytes(value)


@dataclass(frozen=True, slots=True)
class Text:
    bytes_max: int

    def read(self, reader: Reader, what: str) -> str:
        return reader.text(self.bytes_max, what)

    def write(self, value: str) -> bytes:
        return write_text(value)


class ListForm(Enum):
    """How lists are written; both forms are read. Nodes written in Haskell read only the indefinite one."""

    DEFINITE = "definite"
    INDEFINITE = "indefinite"
    EMPTY_DEFINITE = "definite if empty, else indefinite"


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Field
    form: ListForm
    count_max: int
    count_min: int = 0

    def read(self, reader: Reader, what: str) -> tuple[Any, ...]:
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
                # The name of each element would cost more than reading it, so only a fault is read again with it.
                reader.offset = at
                read_item(reader, f"{what}[{len(items)}]")
                raise
        if len(items) < self.count_min:
            raise reader.invalid(
                f"{what} has {len(items)} elements, at least {self.count_min} are required", at=start
            )
        return tuple(items)

    def write(self, value: tuple[Any, ...]) -> bytes:
        items = [self.item.write(entry) for entry in value]
        definite = self.form is ListForm.DEFINITE or (self.form is ListForm.EMPTY_DEFINITE and not items)
        return write_array(*items) if definite else write_indefinite_array(*items)


@dataclass(frozen=True, slots=True)
class Record:
    """A definite array without a tag, such as an `[id, size]` pair."""

    make: Callable[..., Any]
    fields: tuple[tuple[str, Field], ...]

    def read(self, reader: Reader, what: str) -> Any:
        at = reader.offset
        try:
            reader.array(len(self.fields), what)
            return self.make(*[field.read(reader, what) for _, field in self.fields])
        except DecodeError:
            # As with lists: names are for faults.
            reader.offset = at
            reader.array(len(self.fields), what)
            for name, field in self.fields:
                field.read(reader, f"{what}.{name}")
            raise

    def write(self, value: Any) -> bytes:
        return write_array(*(field.write(getattr(value, name)) for name, field in self.fields))


@dataclass(frozen=True, slots=True)
class Layout:
    """`[tag, fields…]` for one message type.

    `surplus` names fields that some peers append: read and forgotten, never written. If `surplus_may_be_missing`, the
    head may announce them without their being there.
    """

    message: type[Any]
    tag: int
    fields: tuple[tuple[str, Field], ...] = ()
    surplus: tuple[tuple[str, Field], ...] = ()
    surplus_may_be_missing: bool = False

    @property
    def lengths(self) -> range:
        """Element counts that the head of this message may announce."""
        least = 1 + len(self.fields)
        return range(least, least + len(self.surplus) + 1)

    def read_fields(self, reader: Reader, length: int) -> Any:
        """The rest of the message, behind its head and tag."""
        name = self.message.__name__
        values = [field.read(reader, f"{name}.{label}") for label, field in self.fields]
        for label, field in self.surplus[: length - 1 - len(self.fields)]:
            if self.surplus_may_be_missing and not reader.remaining:
                break
            field.read(reader, f"{name}.{label}")
        return self.message(*values)

    def write(self, message: Any) -> bytes:
        parts = [head(ARRAY, 1 + len(self.fields)), write_unsigned(self.tag)]
        parts += [field.write(getattr(message, label)) for label, field in self.fields]
        return b"".join(parts)


def read_head(reader: Reader) -> tuple[int, int]:
    """How many elements the message announces, and its tag."""
    length = reader.array_length("the message")
    if length < 1:
        raise reader.invalid(
            "a message is an array that begins with a tag; this one is empty", at=reader.offset - 1
        )
    return length, reader.unsigned(TAG_BITS, "the message's tag")


@dataclass(frozen=True, slots=True)
class Union:
    """One of several tagged layouts, nested inside a message: a reject reason, a peer's address."""

    choices: tuple[Layout, ...]

    def read(self, reader: Reader, what: str) -> Any:
        start = reader.offset
        length, tag = read_head(reader)
        for layout in self.choices:
            if layout.tag == tag and length in layout.lengths:
                return layout.read_fields(reader, length)
        raise reader.invalid(
            f"{what} has tag {tag} and {length} elements, which is none of its forms", at=start
        )

    def write(self, value: Any) -> bytes:
        layout = next((choice for choice in self.choices if choice.message is type(value)), None)
        if layout is None:
            raise TypeError(f"{type(value).__name__} is none of the forms of this field")
        return layout.write(value)
