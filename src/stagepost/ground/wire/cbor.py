"""A strict CBOR reader that knows its position, and a writer of shortest forms.

It reads only the types that our protocols use: unsigned integers, byte and text strings, arrays, booleans,
maps for the handshake, and in answers of a cardano-node further integers, maps and null. It checks lengths against the bytes that are really there before it allocates
anything, and every fault carries its offset, because ids and signatures cover the bytes as received.
"""

from __future__ import annotations

from stagepost.errors import DecodeError, ErrorCode, WireRule

UNSIGNED = 0
NEGATIVE = 1
BYTE_STRING = 2
TEXT_STRING = 3
ARRAY = 4
MAP = 5
TAG = 6
SIMPLE = 7

MAJOR_TYPE_NAMES = (
    "an unsigned integer",
    "a negative integer",
    "a byte string",
    "a text string",
    "an array",
    "a map",
    "a tag",
    "a simple value",
)

FALSE = 0xF4
TRUE = 0xF5
BREAK = 0xFF
NULL = 0xF6
INDEFINITE_ARRAY = 0x9F
INDEFINITE_MAP = 0xBF

BIG_UNSIGNED = 2
"""Tag of a byte string that holds an integer of more than 64 bits."""
BIG_NEGATIVE = 3

_ARGUMENT_WIDTHS = {24: 1, 25: 2, 26: 4, 27: 8}
_LEAST_BY_WIDTH = {1: 24, 2: 0x100, 4: 0x1_0000, 8: 0x1_0000_0000}


def _describe(initial_byte: int) -> str:
    if initial_byte == BREAK:
        return "a break"
    if initial_byte in (FALSE, TRUE):
        return "a boolean"
    return MAJOR_TYPE_NAMES[initial_byte >> 5]


class CborReader:
    """Reader of values one after the other; `offset` is always that of the next unread byte.

    `any_width` admits integers and lengths in longer forms than needed. That is allowed only inside signed
    messages, where running nodes take such forms and the received bytes are kept.
    """

    __slots__ = ("any_width", "data", "end", "offset")

    def __init__(
        self, data: bytes, *, offset: int = 0, end: int | None = None, any_width: bool = False
    ) -> None:
        self.data = data
        self.offset = offset
        self.end = len(data) if end is None else end
        self.any_width = any_width

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def peek(self) -> int:
        """Return the next initial byte, left unread."""
        if self.offset >= self.end:
            raise self.truncated("a value")
        return self.data[self.offset]

    def argument(self, major: int, what: str) -> int:
        """Return the number in a head of major type `major`: a value, a length or a count."""
        start = self.offset
        if start >= self.end:
            raise self.truncated(what)
        initial = self.data[start]
        if initial >> 5 != major:
            raise self.invalid(
                f"expected {MAJOR_TYPE_NAMES[major]} for {what}, found {_describe(initial)}",
                rule=WireRule.WRONG_TYPE,
            )
        low = initial & 0x1F
        if low < 24:
            self.offset = start + 1
            return low
        width = _ARGUMENT_WIDTHS.get(low)
        if width is None:
            form = "indefinite length" if low == 31 else f"reserved form {low}"
            raise self.invalid(
                f"{what} is written with {form}; a definite one is required", rule=WireRule.INDEFINITE_FORM
            )
        if start + 1 + width > self.end:
            raise self.truncated(what)
        value = int.from_bytes(self.data[start + 1 : start + 1 + width], "big")
        if value < _LEAST_BY_WIDTH[width] and not self.any_width:
            raise self.invalid(
                f"{what} is {value} written in {width} bytes, longer than needed",
                rule=WireRule.LONGER_THAN_NEEDED,
            )
        self.offset = start + 1 + width
        return value

    def unsigned(self, bits: int, what: str) -> int:
        start = self.offset
        value = self.argument(UNSIGNED, what)
        if value >> bits:
            raise self.invalid(
                f"{what} is {value}, more than {bits} bits hold", at=start, rule=WireRule.OUT_OF_RANGE
            )
        return value

    def integer(self, bytes_max: int, what: str) -> int:
        """Return an integer of any size and sign, also a tagged one (tags 2 and 3) of at most `bytes_max` bytes."""
        start = self.offset
        major = self.peek() >> 5
        if major == NEGATIVE:
            return -1 - self.argument(NEGATIVE, what)
        if major != TAG:
            return self.argument(UNSIGNED, what)
        tag = self.argument(TAG, what)
        if tag not in (BIG_UNSIGNED, BIG_NEGATIVE):
            raise self.invalid(f"{what} has tag {tag}, expected an integer", at=start)
        value = int.from_bytes(self.byte_string(0, bytes_max, what), "big")
        return value if tag == BIG_UNSIGNED else -1 - value

    def boolean(self, what: str) -> bool:
        initial = self.peek()
        if initial not in (FALSE, TRUE):
            raise self.invalid(
                f"expected a boolean for {what}, found {_describe(initial)}", rule=WireRule.WRONG_TYPE
            )
        self.offset += 1
        return initial == TRUE

    def byte_string(self, bytes_min: int, bytes_max: int, what: str) -> bytes:
        return self._string(BYTE_STRING, bytes_min, bytes_max, what)

    def text(self, bytes_max: int, what: str) -> str:
        start = self.offset
        raw = self._string(TEXT_STRING, 0, bytes_max, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.invalid(f"{what} is not UTF-8", at=start, rule=WireRule.NOT_UTF8) from None

    def _string(self, major: int, bytes_min: int, bytes_max: int, what: str) -> bytes:
        start = self.offset
        length = self.argument(major, what)
        if not bytes_min <= length <= bytes_max:
            raise self.wrong_size(what, length, bytes_min, bytes_max, at=start)
        content = self.offset
        if length > self.end - content:
            raise self.truncated(what)
        self.offset = content + length
        return self.data[content : content + length]

    def array(self, length: int, what: str) -> None:
        """Read the head of a definite array of exactly `length` items."""
        start = self.offset
        found = self.argument(ARRAY, what)
        if found != length:
            raise self.invalid(
                f"{what} has {found} elements, expected {length}",
                at=start,
                rule=WireRule.WRONG_ELEMENT_COUNT,
            )

    def array_length(self, what: str) -> int:
        return self._count(ARRAY, 1, what)

    def map_length(self, what: str) -> int:
        return self._count(MAP, 2, what)

    def _count(self, major: int, bytes_per_item: int, what: str) -> int:
        """Return the count in a head, if that many items could follow in the bytes that are there."""
        start = self.offset
        count = self.argument(major, what)
        if count * bytes_per_item > self.end - self.offset:
            raise self.truncated(what, at=start)
        return count

    def list_start(self, what: str) -> int | None:
        """Read the head of a list: return its count, or None for an indefinite list, which ends with a break."""
        if self.peek() == INDEFINITE_ARRAY:
            self.offset += 1
            return None
        return self.array_length(what)

    def map_start(self, what: str) -> int | None:
        """Read the head of a map: return its count, or None for an indefinite map, which ends with a break."""
        if self.peek() == INDEFINITE_MAP:
            self.offset += 1
            return None
        return self.map_length(what)

    def take_null(self) -> bool:
        """Return True, and move past it, if the next value is null."""
        if self.peek() != NULL:
            return False
        self.offset += 1
        return True

    def take_break(self) -> bool:
        """Return True, and move past the break, if an indefinite list or map ends here."""
        if self.peek() != BREAK:
            return False
        self.offset += 1
        return True

    def finish(self, what: str) -> None:
        if self.offset != self.end:
            raise self.invalid(f"{self.remaining} bytes left over after {what}", rule=WireRule.LEFTOVER_BYTES)

    # Faults, in one wording for all that read through this class.

    def truncated(self, what: str, at: int | None = None) -> DecodeError:
        where = self.offset if at is None else at
        text = f"the bytes end inside {what}, which begins at offset {where}"
        return DecodeError(text, code=ErrorCode.CBOR_TRUNCATED, offset=where)

    def invalid(self, text: str, at: int | None = None, *, rule: WireRule | None = None) -> DecodeError:
        where = self.offset if at is None else at
        return DecodeError(f"{text} (offset {where})", code=ErrorCode.CBOR_INVALID, offset=where, rule=rule)

    def over_limit(self, what: str, found: int, limit: int, at: int | None = None) -> DecodeError:
        """Return the error for a list that has more elements than are allowed; `what` names the number."""
        where = self.offset if at is None else at
        return DecodeError(
            f"{what} is {found}, the limit is {limit} (offset {where})",
            code=ErrorCode.CBOR_LIMIT,
            offset=where,
            limit=limit,
            found=found,
            rule=WireRule.LIST_TOO_LONG,
        )

    def wrong_size(self, what: str, found: int, bytes_min: int, bytes_max: int, at: int) -> DecodeError:
        wanted = f"exactly {bytes_min}" if bytes_min == bytes_max else f"{bytes_min} to {bytes_max}"
        limit = bytes_max if found > bytes_max else bytes_min
        text = f"{what} has {found} bytes, expected {wanted} (offset {at})"
        return DecodeError(
            text,
            code=ErrorCode.CBOR_INVALID,
            offset=at,
            limit=limit,
            found=found,
            rule=WireRule.WRONG_LENGTH,
        )


_SHORT_HEADS = tuple(tuple(bytes((major << 5 | argument,)) for argument in range(24)) for major in range(8))


def head(major: int, argument: int) -> bytes:
    """Return the shortest head of `major` that carries `argument`."""
    if argument < 24:
        return _SHORT_HEADS[major][argument]
    if argument < 0x100:
        return bytes((major << 5 | 24, argument))
    for low, width in _ARGUMENT_WIDTHS.items():
        if argument < 1 << 8 * width:
            return bytes((major << 5 | low,)) + argument.to_bytes(width, "big")
    raise OverflowError(f"{argument} does not fit in 64 bits")


def write_unsigned(value: int) -> bytes:
    if value < 0:
        raise OverflowError(f"{value} is negative")
    return head(UNSIGNED, value)


def write_bytes(value: bytes) -> bytes:
    return head(BYTE_STRING, len(value)) + value


def write_text(value: str) -> bytes:
    raw = value.encode("utf-8")
    return head(TEXT_STRING, len(raw)) + raw


def write_boolean(value: bool) -> bytes:
    return b"\xf5" if value else b"\xf4"


def write_array(*items: bytes) -> bytes:
    """Return a definite array of items that are CBOR already."""
    return head(ARRAY, len(items)) + b"".join(items)


def write_indefinite_array(*items: bytes) -> bytes:
    return b"\x9f" + b"".join(items) + b"\xff"


def write_map(*pairs: tuple[bytes, bytes]) -> bytes:
    return head(MAP, len(pairs)) + b"".join(key + value for key, value in pairs)
