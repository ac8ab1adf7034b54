"""What must hold for the decoders below the protocols: CBOR items, multiplexer segments, TL objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import cbor2

from stagepost.errors import DecodeError, RemoteProtocolError
from stagepost.ground.wire import tl
from stagepost.ground.wire.cbor import (
    ARRAY,
    BYTE_STRING,
    FALSE,
    MAP,
    TEXT_STRING,
    TRUE,
    UNSIGNED,
    CborReader,
    write_array,
    write_boolean,
    write_bytes,
    write_indefinite_array,
    write_map,
    write_text,
    write_unsigned,
)
from stagepost.ground.wire.framing import Framer, ItemLimits, ItemScanner
from stagepost.ground.wire.mux import Direction, Segment, SegmentReader
from stagepost.ground.wire.mux_queues import Demultiplexer
from tests.fuzz.harness import Mismatch, Verdict, attempt, pieces, require

BYTE_BY_BYTE_MAX = 200
ITEMS_COMPARED_MAX = 300
CUTS = 7


class Independent(NamedTuple):
    """What the other decoder makes of the bytes, and where it stopped."""

    value: Any
    end: int


def independent(data: bytes) -> Independent | None:
    """None where cbor2 refuses: it acts on tags, and raises whatever the acting raises."""
    source = BytesIO(data)
    try:
        value = cbor2.CBORDecoder(source).decode()
    except Exception:
        return None
    return Independent(value, source.tell())


# CBOR

_OUR_TYPES = ItemLimits(bytes_max=65_535)
_ANY_TYPES = ItemLimits(bytes_max=5_760, any_type=True)


def check_cbor(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for limits in (_OUR_TYPES, _ANY_TYPES):
        end = attempt(partial(ItemScanner(limits).scan, data), max(len(data), limits.bytes_max))
        if end is None:
            continue
        verdict = max(verdict, Verdict.ACCEPTED)
        other = independent(data)
        if other is not None:
            require(other.end == end, f"the item ends at {end}, cbor2 stops at {other.end}")
            verdict = Verdict.AGREED
        if limits is _OUR_TYPES:
            _check_value(data[:end], other)
    _check_cuts(data)
    return verdict


def _check_cuts(data: bytes) -> None:
    """However the stream is cut, the same items come out, and the same fault."""
    whole = _framed([data])
    cut = _framed(
        [data[at : at + 1] for at in range(len(data))]
        if len(data) <= BYTE_BY_BYTE_MAX
        else pieces(data, CUTS)
    )
    # A fault may show before the bytes that lie ahead of it are complete, but never change what came before.
    require(whole == cut, f"whole the stream gives {whole}, cut into pieces {cut}")


def _framed(stream: Sequence[bytes]) -> tuple[list[bytes], int | None]:
    framer = Framer()
    items: list[bytes] = []
    for piece in stream:
        framer.feed(piece)
        while True:
            try:
                item = framer.next_item(_OUR_TYPES)
            except DecodeError as fault:
                return items, fault.offset
            if item is None:
                break
            require(bool(item), "an item of no bytes")
            items.append(item)
            if len(items) == ITEMS_COMPARED_MAX:
                return items, None
    require(sum(map(len, items)) + framer.buffered == sum(map(len, stream)), "bytes went missing")
    return items, None


class _List(list[Any]):
    """A list that remembers whether it was written with its length."""

    is_definite = True


def _check_value(item: bytes, other: Independent | None) -> None:
    tolerant = attempt(lambda: _read_value(CborReader(item, any_width=True)), len(item))
    if (tolerant is None) != (other is None):
        raise AssertionError(f"we read {tolerant!r}, cbor2 reads {other!r}")
    if tolerant is None or other is None:
        return
    # The text of a large value is as large again: it is made where it is needed, as the memory taken here counts.
    if repr(_plain(tolerant[0])) != repr(other.value):
        raise Mismatch(f"we read {tolerant[0]!r}, cbor2 reads {other.value!r}")
    del tolerant  # two readings at once would count as memory of one
    strict = attempt(lambda: _read_value(CborReader(item)), len(item))
    if strict is not None:
        require(_write_value(strict[0]) == item, "what was read strictly is written differently")


def _read_value(reader: CborReader) -> tuple[Any]:
    """A whole item through the reader's own methods, in a tuple since a value may be anything."""
    value = _value(reader)
    reader.finish("the item")
    return (value,)


def _value(reader: CborReader) -> Any:
    initial = reader.peek()
    match initial >> 5:
        case major if major == UNSIGNED:
            return reader.unsigned(64, "a number")
        case major if major == BYTE_STRING:
            return reader.byte_string(0, reader.remaining, "bytes")
        case major if major == TEXT_STRING:
            return reader.text(reader.remaining, "a text")
        case major if major == MAP:
            return {_value(reader): _value(reader) for _ in range(reader.map_length("a map"))}
        case major if major == ARRAY:
            found = _List()
            count = reader.list_start("a list")
            found.is_definite = count is not None
            while not reader.take_break() if count is None else len(found) < count:
                found.append(_value(reader))
            return found
    if initial in (FALSE, TRUE):
        return reader.boolean("a claim")
    raise reader.invalid("of another type")


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, _List) else value


def _write_value(value: Any) -> bytes:
    match value:
        case bool():
            return write_boolean(value)
        case int():
            return write_unsigned(value)
        case bytes():
            return write_bytes(value)
        case str():
            return write_text(value)
        case _List():
            write = write_array if value.is_definite else write_indefinite_array
            return write(*map(_write_value, value))
    return write_map(*((_write_value(key), _write_value(entry)) for key, entry in value.items()))


# Multiplexer

# Number, bytes that may wait, payload of one segment: the last two lanes are narrow, so that limits are reached.
_LANES = ((0, 5_760, 65_535), (11, 101_640, 65_535), (14, 3_000, 100), (15, 8, 65_535))


def check_mux(data: bytes) -> Verdict:
    whole, fault = _segments([data])
    require((whole, fault) == _segments(pieces(data, CUTS)), "the segments depend on how the stream was cut")
    if len(data) <= BYTE_BY_BYTE_MAX:
        single = [data[at : at + 1] for at in range(len(data))]
        require((whole, fault) == _segments(single), "the segments depend on how the stream was cut")
    encoded = b"".join(segment.encode() for segment in whole)
    require(data.startswith(encoded), "segments put together again are not what came in")
    require(fault in (None, len(encoded)), f"the fault is said to be at {fault}, not {len(encoded)}")
    sorted_out = attempt(lambda: _demultiplexed(data, whole), len(data))
    return Verdict.REFUSED if sorted_out is None else Verdict.ACCEPTED


def _segments(stream: Sequence[bytes]) -> tuple[list[Segment], int | None]:
    found: list[Segment] = []
    reader = SegmentReader(found.append)
    try:
        for piece in stream:
            reader.feed(piece)
    except RemoteProtocolError as fault:
        return found, fault.offset
    return found, None


def _demultiplexed(data: bytes, segments: Sequence[Segment]) -> bool:
    demultiplexer = Demultiplexer()
    ingresses = {
        ingress.lane: ingress
        for number, bytes_max, payload_bytes_max in _LANES
        for direction in Direction
        for ingress in [demultiplexer.register(number, direction, bytes_max, payload_bytes_max)]
    }
    try:
        demultiplexer.reader.feed(data)
    finally:
        for ingress in ingresses.values():
            require(ingress.queued_bytes <= ingress.bytes_max, "more waits than the limit allows")
    for lane, ingress in ingresses.items():
        sent = b"".join(segment.payload for segment in segments if segment.lane == lane)
        require(ingress.take() == sent, f"lane {lane} does not hold what was sent on it")
    return True


# TL

_CONSTRUCTORS = (0x4813B4C6, 0x0B0BA110)
_VECTOR_MAX = 64
_BYTES_MAX = 4_096

_Plan = Sequence[str]
# Shapes that receipts and catchain objects have: boxed values, keys, numbers, texts and bare vectors.
TL_PLANS: tuple[_Plan, ...] = (
    ("constructor", "int256"),
    ("constructor", "int", "long", "int256", "bytes", "string"),
    ("int512", "double", "byte", "byte", "byte", "byte", "bytes"),
    ("constructor", "vector of bytes", "vector of int256", "string"),
)
_READ: dict[str, Callable[[tl.Reader], Any]] = {
    "constructor": lambda reader: reader.read_constructor(*_CONSTRUCTORS),
    "byte": tl.Reader.read_byte,
    "int": tl.Reader.read_int,
    "long": tl.Reader.read_long,
    "double": tl.Reader.read_double,
    "int256": lambda reader: reader.read_int256(),
    "int512": tl.Reader.read_int512,
    "bytes": lambda reader: reader.read_bytes(_BYTES_MAX),
    "string": lambda reader: reader.read_string(_BYTES_MAX),
    "vector of bytes": lambda reader: [
        reader.read_bytes(_BYTES_MAX) for _ in range(reader.read_vector_count(_VECTOR_MAX, 4))
    ],
    "vector of int256": lambda reader: [
        reader.read_int256() for _ in range(reader.read_vector_count(_VECTOR_MAX, tl.INT256_BYTES))
    ],
}


def check_tl(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for plan in TL_PLANS:
        values = attempt(partial(_read_tl, plan, data), len(data), DecodeError)
        if values is not None:
            verdict = Verdict.ACCEPTED
            require(write_tl(plan, values) == data, f"{plan} was read from bytes that we would not write")
    return verdict


def _read_tl(plan: _Plan, data: bytes) -> list[Any]:
    reader = tl.Reader(data)
    values = [_READ[kind](reader) for kind in plan]
    reader.expect_end()
    return values


def write_tl(plan: _Plan, values: Sequence[Any]) -> bytes:
    writer = tl.Writer()
    for kind, value in zip(plan, values, strict=True):
        if kind.startswith("vector of "):
            writer.write_vector_count(len(value))
            for entry in value:
                getattr(writer, f"write_{kind.removeprefix('vector of ')}")(entry)
        else:
            getattr(writer, f"write_{kind}")(value)
    return writer.written()


def tl_samples() -> tuple[bytes, ...]:
    values: dict[str, Any] = {
        "constructor": _CONSTRUCTORS[0],
        "byte": 200,
        "int": -5,
        "long": 2**40,
        "double": 0.5,
        "int256": bytes(range(32)),
        "int512": bytes(64),
        "bytes": b"x" * 300,
        "string": "späte Quittung",
        "vector of bytes": [b"", b"abc", b"y" * 253, b"z" * 254],
        "vector of int256": [bytes(32), b"\x01" * 32],
    }
    return tuple(write_tl(plan, [values[kind] for kind in plan]) for plan in TL_PLANS)
