"""Framing: cut a byte stream into whole CBOR items, however the stream was split on the way.

The scanner keeps its place between pieces, so a peer that sends one byte at a time costs linear work. It
refuses an item that is too deep, too long or of a forbidden type as soon as the head shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stagepost.errors import DecodeError, ErrorCode, WireRule
from stagepost.ground.wire.cbor import (
    ARRAY,
    BREAK,
    BYTE_STRING,
    FALSE,
    MAJOR_TYPE_NAMES,
    MAP,
    NEGATIVE,
    SIMPLE,
    TAG,
    TEXT_STRING,
    TRUE,
    UNSIGNED,
    CborReader,
)

DEPTH_MAX = 8
ITEMS_MAX = 4_096
ITEMS_IN_NOTIFICATION_REPLY_MAX = 16_384


class KnownShape(Protocol):
    """Array that fills most of the traffic, recognised whole at a fraction of the cost of looking at its
    items.

    It is well-formed, of allowed types, begins with `initial`, holds `items` items (itself among them) and is
    nested `depth` deep.
    """

    @property
    def initial(self) -> int: ...

    @property
    def items(self) -> int: ...

    @property
    def depth(self) -> int: ...

    def end(self, data: bytes | bytearray, start: int) -> int | None:
        """Return the offset after the array; None if another value begins at `start`, or the array is
        incomplete."""
        ...


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """Limits of one item. `any_type` admits all of CBOR: unknown handshake data may have any shape."""

    bytes_max: int
    items_max: int = ITEMS_MAX
    depth_max: int = DEPTH_MAX
    any_type: bool = False
    known_shape: KnownShape | None = None


# Counts on the scanner's stack: how many items are still to come, or one of these for "until a break".
_INDEFINITE_ARRAY = -1
_INDEFINITE_MAP_KEY = -2
_INDEFINITE_MAP_VALUE = -3
_INDEFINITE_BYTES = -4
_INDEFINITE_TEXT = -5
_INDEFINITE_BY_MAJOR = {
    ARRAY: _INDEFINITE_ARRAY,
    MAP: _INDEFINITE_MAP_KEY,
    BYTE_STRING: _INDEFINITE_BYTES,
    TEXT_STRING: _INDEFINITE_TEXT,
}


class ItemScanner:
    """Finder of the end of one item in a buffer that grows; call `scan` again when there are more bytes."""

    __slots__ = ("_items", "_limits", "_open", "position")

    def __init__(self, limits: ItemLimits, start: int = 0) -> None:
        self._limits = limits
        self._open: list[int] = [1]
        self._items = 0
        self.position = start

    def scan(self, data: bytes | bytearray) -> int | None:
        """Return the offset after the item, or None while it is incomplete."""
        open_counts = self._open
        size = len(data)
        position = self.position
        shape = self._limits.known_shape
        while True:
            while open_counts and open_counts[-1] == 0:
                open_counts.pop()
            if not open_counts and position <= size:
                return position
            if position >= size:
                break
            initial = data[position]
            if shape is not None and initial == shape.initial:
                end = self._skip(shape, data, position)
                if end is not None:
                    position = self.position = end
                    continue
            low = initial & 0x1F
            if low < 24:
                content, argument = position + 1, low
            elif low < 28:
                content = position + 1 + (1 << (low - 24))
                if content > size:
                    break
                argument = int.from_bytes(data[position + 1 : content], "big")
            elif initial == BREAK:
                self._close_indefinite(position)
                position += 1
                self.position = position
                continue
            else:
                content, argument = position + 1, -1
            # A string whose head is complete is skipped whole; its bytes may still be under way.
            position = self.position = content + self._enter(initial >> 5, low, argument, position)
            if position > self._limits.bytes_max:
                raise self._limit("the message", position, self._limits.bytes_max, self._limits.bytes_max)
        if size > self._limits.bytes_max:
            raise self._limit("the message", size, self._limits.bytes_max, self._limits.bytes_max)
        return None

    def _skip(self, shape: KnownShape, data: bytes | bytearray, position: int) -> int | None:
        """Return the offset after the known shape; None, without any change, if it must be scanned item by
        item or breaks a limit."""
        limits = self._limits
        top = self._open[-1]
        if (
            self._items + shape.items > limits.items_max
            or len(self._open) + shape.depth - 1 > limits.depth_max
            or not (top > 0 or top == _INDEFINITE_ARRAY)
        ):
            return None
        end = shape.end(data, position)
        if end is None or end > limits.bytes_max:
            return None
        if top > 0:
            self._open[-1] = top - 1
        self._items += shape.items
        return end

    def _enter(self, major: int, low: int, argument: int, at: int) -> int:
        """Account for one head; return the number of content bytes that follow it directly."""
        limits = self._limits
        self._items += 1
        if self._items > limits.items_max:
            raise self._limit(
                "the number of items", self._items, limits.items_max, at, WireRule.TOO_MANY_ITEMS
            )
        if argument < 0 and not (low == 31 and major in _INDEFINITE_BY_MAJOR):
            raise _invalid(f"initial byte {major << 5 | low:#04x} is not defined", at)
        top = self._open[-1]
        if top > 0:
            self._open[-1] = top - 1
        elif top != _INDEFINITE_ARRAY:
            self._consume_slot(major, low, at)
        if major == UNSIGNED:
            return 0
        if major == BYTE_STRING and 0 <= argument <= limits.bytes_max:
            return argument
        if not limits.any_type:
            self._refuse_forbidden(major, low, at)
        if major in (BYTE_STRING, TEXT_STRING):
            if argument >= 0:
                if argument > limits.bytes_max:
                    raise self._limit(MAJOR_TYPE_NAMES[major], argument, limits.bytes_max, at)
                return argument
            self._push(_INDEFINITE_BY_MAJOR[major], at)
        elif major in (ARRAY, MAP):
            if argument < 0:
                self._push(_INDEFINITE_BY_MAJOR[major], at)
            else:
                count = argument if major == ARRAY else 2 * argument
                if self._items + count > limits.items_max:
                    raise self._limit(
                        "the number of items",
                        self._items + count,
                        limits.items_max,
                        at,
                        WireRule.TOO_MANY_ITEMS,
                    )
                self._push(count, at)
        elif major == TAG:
            self._push(1, at)
        return 0

    def _consume_slot(self, major: int, low: int, at: int) -> None:
        """Use a place in an indefinite map or string; definite ones and indefinite arrays take anything."""
        top = self._open[-1]
        if top == _INDEFINITE_MAP_KEY:
            self._open[-1] = _INDEFINITE_MAP_VALUE
        elif top == _INDEFINITE_MAP_VALUE:
            self._open[-1] = _INDEFINITE_MAP_KEY
        elif top in (_INDEFINITE_BYTES, _INDEFINITE_TEXT):
            wanted = BYTE_STRING if top == _INDEFINITE_BYTES else TEXT_STRING
            if major != wanted or low == 31:
                raise _invalid("a piece of an indefinite string is not a definite string of its type", at)

    def _push(self, count: int, at: int) -> None:
        # The first entry stands for the item itself and is no nesting.
        if len(self._open) > self._limits.depth_max:
            raise self._limit(
                "the nesting depth", len(self._open), self._limits.depth_max, at, WireRule.TOO_DEEP
            )
        self._open.append(count)

    def _close_indefinite(self, at: int) -> None:
        top = self._open[-1]
        if top == _INDEFINITE_MAP_VALUE:
            raise _invalid("a map ends between a key and its value", at)
        if top > 0:
            raise _invalid("a break code is in the place of a value", at)
        self._open.pop()

    def _refuse_forbidden(self, major: int, low: int, at: int) -> None:
        if major in (NEGATIVE, MAP, TAG):
            raise _invalid(
                f"{MAJOR_TYPE_NAMES[major]} has no place in this protocol", at, WireRule.FORBIDDEN_TYPE
            )
        if major == SIMPLE and (major << 5 | low) not in (FALSE, TRUE):
            raise _invalid(
                "simple values other than booleans have no place in this protocol",
                at,
                WireRule.FORBIDDEN_TYPE,
            )
        if major in (BYTE_STRING, TEXT_STRING) and low == 31:
            raise _invalid(
                f"{MAJOR_TYPE_NAMES[major]} of indefinite length has no place in this protocol",
                at,
                WireRule.FORBIDDEN_TYPE,
            )

    @staticmethod
    def _limit(what: str, found: int, limit: int, at: int, rule: WireRule | None = None) -> DecodeError:
        text = f"{what} is {found}, the limit is {limit} (offset {at})"
        return DecodeError(text, code=ErrorCode.CBOR_LIMIT, offset=at, limit=limit, found=found, rule=rule)


def _invalid(text: str, at: int, rule: WireRule | None = None) -> DecodeError:
    return DecodeError(f"{text} (offset {at})", code=ErrorCode.CBOR_INVALID, offset=at, rule=rule)


class Framer:
    """Framer for one direction of one mini-protocol: bytes in as they come, whole items out.

    `headless_third` names a two-byte beginning whose array announces three elements of which the last, a
    boolean, may be missing: some servers write their blocking notification reply so. The item is complete
    without it; if the boolean comes after all, it belongs to the item before and is dropped.
    """

    __slots__ = ("_buffer", "_scanner", "_stray_boolean_allowed", "offset")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanner: ItemScanner | None = None
        self._stray_boolean_allowed = False
        self.offset = 0  # of the first buffered byte in the whole stream

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    @property
    def is_between_items(self) -> bool:
        """Return whether the buffer is empty and the next byte cannot belong to the last item."""
        return not self._buffer and not self._stray_boolean_allowed

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_item(self, limits: ItemLimits, *, headless_third: bytes | None = None) -> bytes | None:
        """Return the next whole item, or None while more bytes are needed."""
        buffer = self._buffer
        if self._stray_boolean_allowed and buffer:
            if buffer[0] in (FALSE, TRUE):
                self._drop(1)
            self._stray_boolean_allowed = False
        if not buffer:
            return None
        if headless_third is not None and headless_third.startswith(bytes(buffer[: len(headless_third)])):
            return self._next_headless(limits, headless_third)
        if self._scanner is None:
            self._scanner = ItemScanner(limits)
        end = self._scanner.scan(buffer)
        return None if end is None else self._take(end)

    def _next_headless(self, limits: ItemLimits, beginning: bytes) -> bytes | None:
        buffer = self._buffer
        if len(buffer) <= len(beginning):
            return None
        if self._scanner is None:
            self._scanner = ItemScanner(limits, start=len(beginning))
        end = self._scanner.scan(buffer)
        if end is None:
            return None
        if end < len(buffer) and buffer[end] in (FALSE, TRUE):
            return self._take(end + 1)
        self._stray_boolean_allowed = True
        return self._take(end)

    def _take(self, end: int) -> bytes:
        item = bytes(self._buffer[:end])
        self._drop(end)
        self._scanner = None
        return item

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self.offset += count

    def take_rest(self) -> bytes:
        """Return all bytes after the last item."""
        return self._take(len(self._buffer))

    def finish(self) -> None:
        """Raise `DecodeError` if the stream ended inside an item."""
        if self._buffer:
            text = f"the stream ended {len(self._buffer)} bytes into a message that began at offset {self.offset}"
            raise DecodeError(text, code=ErrorCode.CBOR_TRUNCATED, offset=self.offset)


def skip_item(reader: CborReader, limits: ItemLimits, what: str) -> bytes:
    """Read past one item of any allowed type; return its bytes."""
    start = reader.offset
    end = ItemScanner(limits, start).scan(reader.data)
    if end is None or end > reader.end:
        raise reader.truncated(what)
    reader.offset = end
    return reader.data[start:end]


@dataclass(frozen=True, slots=True)
class RawItem:
    """Field whose value is one CBOR item as it stands on the wire, within `limits`."""

    limits: ItemLimits

    def read(self, reader: CborReader, what: str) -> bytes:
        return skip_item(reader, self.limits, what)

    def write(self, value: bytes) -> bytes:
        return value
