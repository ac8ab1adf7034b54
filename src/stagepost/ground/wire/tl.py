"""TL primitives: little-endian numbers, padded byte strings, bare vectors, constructor ids and key ids.

The reader is strict: it accepts only bytes that the writer would have written the same way.
"""

from __future__ import annotations

import re
from hashlib import sha256
from struct import Struct
from struct import error as StructError
from zlib import crc32

from stagepost.errors import ErrorCode, LocalProtocolError, TlDecodeError

INT256_BYTES = 32
INT512_BYTES = 64
ZERO_INT256 = bytes(INT256_BYTES)
"""32 zero bytes, which stand for "no hash" where TL cannot leave a hash out."""

CONSTRUCTOR_BYTES = 4
LENGTH_FORM_LONG = 0xFE
LENGTH_SHORT_MAX = 253
LENGTH_MAX = 0xFF_FFFF

_INT = Struct("<i")
_UNSIGNED_INT = Struct("<I")
_LONG = Struct("<q")
_UNSIGNED_LONG = Struct("<Q")
_DOUBLE = Struct("<d")

# Bound once: a message of the network is read from hundreds of fields.
_int_in, _unsigned_int_in = _INT.unpack_from, _UNSIGNED_INT.unpack_from
_long_in, _unsigned_long_in = _LONG.unpack_from, _UNSIGNED_LONG.unpack_from
_PADDING = (b"", bytes(1), bytes(2), bytes(3))


def normalise_schema_line(line: str) -> str:
    """Return the text that is hashed: without comments, round brackets and semicolon, one space between
    words."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", line, flags=re.DOTALL)
    words = re.sub(r"\(\s*|\s*\)|;", "", text).replace("=", " = ").split()
    if not text.isascii() or words.count("=") != 1 or words[0] == "=" or words[-1] == "=":
        raise LocalProtocolError(f"not a TL schema line of the form 'name fields = Type': {line.strip()!r}")
    return " ".join(words)


def constructor_id(line: str) -> int:
    """Return the CRC-32 of the normalised schema line."""
    return crc32(normalise_schema_line(line).encode("ascii"))


def constructor_bytes(identifier: int) -> bytes:
    """Return a constructor id as it stands on the wire."""
    return _UNSIGNED_INT.pack(identifier)


_ED25519_PUBLIC_KEY_PREFIX = constructor_bytes(constructor_id("pub.ed25519 key:int256 = PublicKey"))


def key_id(public_key: bytes) -> bytes:
    """Return the short id of an Ed25519 key: SHA-256 of its boxed form. Receipts name their source by it."""
    if len(public_key) != INT256_BYTES:
        raise LocalProtocolError(
            f"an Ed25519 public key has {INT256_BYTES} bytes, not {len(public_key)}",
            limit=INT256_BYTES,
            found=len(public_key),
        )
    return sha256(_ED25519_PUBLIC_KEY_PREFIX + public_key).digest()


class Reader:
    """Reader of one TL object from front to back; every refusal is a `DecodeError` with the fault's offset."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 0

    @property
    def remaining_bytes(self) -> int:
        return len(self._data) - self.offset

    def read_int(self) -> int:
        start = self.offset
        try:
            value: int = _int_in(self._data, start)[0]
        except StructError:
            raise self._cut_short("int", 4) from None
        self.offset = start + 4
        return value

    def read_long(self) -> int:
        start = self.offset
        try:
            value: int = _long_in(self._data, start)[0]
        except StructError:
            raise self._cut_short("long", 8) from None
        self.offset = start + 8
        return value

    def read_unsigned_int(self) -> int:
        start = self.offset
        try:
            value: int = _unsigned_int_in(self._data, start)[0]
        except StructError:
            raise self._cut_short("int", 4) from None
        self.offset = start + 4
        return value

    def read_unsigned_long(self) -> int:
        """Return a TL long that is used as 64 unsigned bits, such as the prefix of a shard."""
        start = self.offset
        try:
            value: int = _unsigned_long_in(self._data, start)[0]
        except StructError:
            raise self._cut_short("long", 8) from None
        self.offset = start + 8
        return value

    def read_double(self) -> float:
        value: float = _DOUBLE.unpack(self.read_raw(_DOUBLE.size, "double"))[0]
        return value

    def read_byte(self) -> int:
        return self.read_raw(1, "byte")[0]

    def read_int256(self) -> bytes:
        return self.read_raw(INT256_BYTES, "int256")

    def read_int512(self) -> bytes:
        return self.read_raw(INT512_BYTES, "int512")

    def read_raw(self, count: int, name: str = "raw bytes") -> bytes:
        """Return `count` bytes that have neither length nor padding."""
        start = self.offset
        if count > len(self._data) - start:
            raise self._cut_short(name, count)
        self.offset = start + count
        return self._data[start : self.offset]

    def read_bytes(self, length_max: int = LENGTH_MAX, name: str = "bytes") -> bytes:
        data, start = self._data, self.offset
        if start < len(data) and data[start] <= LENGTH_SHORT_MAX:
            end = start + 1 + data[start]
            padding = -(end - start) % 4
            # A cut or forbidden padding is not equal to zeros of its length: the way below names the fault.
            if (
                data[end : end + padding] == _PADDING[padding]
                and start + length_max >= end - 1
                and end <= len(data)
            ):
                self.offset = end + padding
                return data[start + 1 : end]
        length = self.read_byte()
        prefix_bytes = 1
        if length == LENGTH_FORM_LONG:
            length = int.from_bytes(self.read_raw(3, f"length of {name}"), "little")
            prefix_bytes = 4
            if length <= LENGTH_SHORT_MAX:
                raise TlDecodeError(
                    f"TL {name} at offset {start}: length {length} is written in the long form, "
                    f"which starts at {LENGTH_SHORT_MAX + 1}",
                    found=length,
                    offset=start,
                )
        elif length > LENGTH_FORM_LONG:
            raise TlDecodeError(
                f"TL {name} at offset {start}: {length:#x} is not a valid first byte of a length; 0..0xfe are",
                found=length,
                offset=start,
            )
        if length > length_max:
            raise self._over_limit(f"{name} has {length} bytes", length, length_max, start)
        value = self.read_raw(length, name)
        padding_at = self.offset
        if any(self.read_raw(-(prefix_bytes + length) % 4, f"padding of {name}")):
            raise TlDecodeError(
                f"TL {name} at offset {start}: padding at offset {padding_at} is not zero", offset=padding_at
            )
        return value

    def read_string(self, length_max: int = LENGTH_MAX) -> str:
        start = self.offset
        value = self.read_bytes(length_max, "string")
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TlDecodeError(
                f"TL string at offset {start} is not UTF-8: byte {error.start} of its text", offset=start
            ) from error

    def read_vector_count(self, count_max: int, item_bytes_min: int) -> int:
        """Return the number of items that follow; refuse a count that the remaining bytes cannot hold."""
        start = self.offset
        count = self.read_int()
        if count < 0:
            raise TlDecodeError(f"TL vector at offset {start} has {count} items", found=count, offset=start)
        if count > count_max:
            raise self._over_limit(f"vector has {count} items", count, count_max, start)
        if count * item_bytes_min > self.remaining_bytes:
            raise TlDecodeError(
                f"TL vector at offset {start}: {count} items of at least {item_bytes_min} bytes do not fit "
                f"into the remaining {self.remaining_bytes}",
                code=ErrorCode.TL_TRUNCATED,
                found=count,
                offset=start,
            )
        return count

    def read_constructor(self, *expected: int) -> int:
        """Return the id of a boxed value, which must be one of `expected`."""
        start = self.offset
        try:
            identifier: int = _unsigned_int_in(self._data, start)[0]
        except StructError:
            raise self._cut_short("constructor id", CONSTRUCTOR_BYTES) from None
        self.offset = start + CONSTRUCTOR_BYTES
        if identifier not in expected:
            raise TlDecodeError(
                f"TL constructor id at offset {start} is {identifier:08x}; "
                f"expected {' or '.join(f'{one:08x}' for one in expected)}",
                found=identifier,
                offset=start,
            )
        return identifier

    def expect_end(self) -> None:
        if self.remaining_bytes:
            raise TlDecodeError(
                f"{self.remaining_bytes} bytes left over after the TL object, from offset {self.offset}",
                found=self.remaining_bytes,
                offset=self.offset,
            )

    def _cut_short(self, name: str, count: int) -> TlDecodeError:
        return TlDecodeError(
            f"TL {name} at offset {self.offset} needs {count} bytes; {self.remaining_bytes} are left",
            code=ErrorCode.TL_TRUNCATED,
            limit=self.remaining_bytes,
            found=count,
            offset=self.offset,
        )

    def _over_limit(self, what: str, found: int, limit: int, offset: int) -> TlDecodeError:
        return TlDecodeError(
            f"TL {what} at offset {offset}; at most {limit} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=limit,
            found=found,
            offset=offset,
        )


class Writer:
    """Writer of one TL object; raise `LocalProtocolError` for values that TL cannot hold, which are a mistake
    of ours."""

    def __init__(self) -> None:
        self._written = bytearray()

    def written(self) -> bytes:
        return bytes(self._written)

    def write_int(self, value: int) -> None:
        self._written += _signed(value, 4, "int")

    def write_long(self, value: int) -> None:
        self._written += _signed(value, 8, "long")

    def write_unsigned_int(self, value: int) -> None:
        self._written += _unsigned(value, 4, "int")

    def write_unsigned_long(self, value: int) -> None:
        self._written += _unsigned(value, 8, "long")

    def write_double(self, value: float) -> None:
        self._written += _DOUBLE.pack(value)

    def write_byte(self, value: int) -> None:
        if not 0 <= value <= 255:
            raise LocalProtocolError(f"TL byte holds 0..255, not {value}", limit=255, found=value)
        self._written.append(value)

    def write_int256(self, value: bytes) -> None:
        self._written += value if len(value) == INT256_BYTES else _exactly(value, INT256_BYTES, "int256")

    def write_int512(self, value: bytes) -> None:
        self._written += _exactly(value, INT512_BYTES, "int512")

    def write_raw(self, value: bytes) -> None:
        """Write bytes without length or padding."""
        self._written += value

    def write_bytes(self, value: bytes) -> None:
        length = len(value)
        if length > LENGTH_MAX:
            raise LocalProtocolError(
                f"TL bytes hold at most {LENGTH_MAX} bytes, not {length}", limit=LENGTH_MAX, found=length
            )
        if length <= LENGTH_SHORT_MAX:
            prefix = bytes((length,))
        else:
            prefix = bytes((LENGTH_FORM_LONG,)) + length.to_bytes(3, "little")
        self._written += prefix
        self._written += value
        self._written += bytes(-(len(prefix) + length) % 4)

    def write_string(self, value: str) -> None:
        self.write_bytes(value.encode("utf-8"))

    def write_vector_count(self, count: int) -> None:
        if count < 0:
            raise LocalProtocolError(f"a TL vector cannot have {count} items", found=count)
        self._written += _signed(count, 4, "vector count")

    def write_constructor(self, identifier: int) -> None:
        self._written += _UNSIGNED_INT.pack(identifier)


def int256_bytes(value: bytes) -> bytes:
    """Return an int256 as it stands on the wire."""
    return value if len(value) == INT256_BYTES else _exactly(value, INT256_BYTES, "int256")


def long_bytes(value: int) -> bytes:
    """Return a long as it stands on the wire."""
    return _signed(value, 8, "long")


def _signed(value: int, size: int, name: str) -> bytes:
    try:
        return value.to_bytes(size, "little", signed=True)
    except OverflowError:
        bits = size * 8 - 1
        raise LocalProtocolError(f"TL {name} holds -2^{bits}..2^{bits}-1, not {value}", found=value) from None


def _unsigned(value: int, size: int, name: str) -> bytes:
    try:
        return value.to_bytes(size, "little")
    except OverflowError:
        raise LocalProtocolError(
            f"TL unsigned {name} holds 0..2^{size * 8}-1, not {value}", found=value
        ) from None


def _exactly(value: bytes, size: int, name: str) -> bytes:
    if len(value) != size:
        raise LocalProtocolError(
            f"TL {name} has {size} bytes, not {len(value)}", limit=size, found=len(value)
        )
    return value
