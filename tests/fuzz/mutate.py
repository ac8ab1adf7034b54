"""Hostile input from a seed and an index: the same two numbers, the same bytes, on every machine.

Some inputs are plain noise or well-formed CBOR of random shape. Most are valid samples with a few faults: bytes
changed, spans moved, and CBOR heads that lie about lengths, types and nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

INPUT_BYTES_MAX = 131_072
NOISE_BYTES_MAX = 300
NESTING_MAX = 24
HEADS_MAX = 400  # enough for twenty messages; noise has a head at every byte

# fmt: off
TELLING_NUMBERS = (
    0, 1, 2, 3, 4, 5, 8, 23, 24, 31, 32, 33, 64, 89, 90, 127, 128, 255, 256, 288, 447, 448, 1_024, 2_000, 2_001,
    4_096, 16_384, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1,
)
# fmt: on
HUGE_NUMBERS = (2**16, 2**24, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
_WIDTHS = ((24, 1), (25, 2), (26, 4), (27, 8))


class Head(NamedTuple):
    """One CBOR head inside a sample: where it lies, and what it announces."""

    offset: int
    size: int
    major: int
    argument: int | None  # None: indefinite, or a break


def input_for(samples: Sequence[bytes], seed: int, index: int) -> bytes:
    # A whole number as seed is taken alike by every version of Python; texts and tuples are not.
    random = Random(seed << 64 | index)
    choice = random.random()
    if choice < 0.04:
        return random.randbytes(random.randrange(NOISE_BYTES_MAX))
    if choice < 0.12:
        return random_item(random)
    sample = random.choice(samples)
    if choice < 0.14:
        return sample
    return mutated(random, sample, samples)


def mutated(random: Random, sample: bytes, samples: Sequence[bytes]) -> bytes:
    """`sample` with one fault, and half of the time another, and another."""
    data = bytearray(sample)
    while True:
        random.choice(_MUTATIONS)(random, data, samples)
        if random.random() < 0.5:
            del data[INPUT_BYTES_MAX:]
            return bytes(data)


def hostile_lengths(sample: bytes, heads_max: int = 40) -> list[bytes]:
    """`sample` with each of its first heads announcing each of the huge numbers."""
    changed = []
    for found in heads(sample)[:heads_max]:
        for number in HUGE_NUMBERS:
            lie = write_head(found.major, number)
            changed.append(sample[: found.offset] + lie + sample[found.offset + found.size :])
    return changed


def random_item(random: Random, depth: int = 0) -> bytes:
    """A well-formed item of random shape, now and then deeper or longer than is allowed."""
    major = random.randrange(8)
    if depth > 10:
        major = random.choice((0, 1, 7))
    if major in (0, 1):
        return _head_of_any_width(random, major, random.choice(TELLING_NUMBERS))
    if major in (2, 3):
        content = random.randbytes(random.randrange(40)) if major == 2 else b"text" * random.randrange(9)
        if random.random() < 0.1:
            return bytes((major << 5 | 31,)) + write_head(major, len(content)) + content + b"\xff"
        return _head_of_any_width(random, major, len(content)) + content
    if major == 6:
        return write_head(6, random.choice(TELLING_NUMBERS)) + random_item(random, depth + 1)
    if major == 7:
        return random.choice((b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\xf9\x3c\x00", b"\xf8\xff"))
    count = random.randrange(5)
    items = b"".join(random_item(random, depth + 1) for _ in range(count * (major - 3)))
    if random.random() < 0.3:
        return bytes((major << 5 | 31,)) + items + b"\xff"
    return write_head(major, count) + items


def write_head(major: int, argument: int, low_min: int = 0) -> bytes:
    """The shortest head for `argument`; `low_min` asks for a longer form than needed."""
    if argument < 24 and not low_min:
        return bytes((major << 5 | argument,))
    for low, width in _WIDTHS:
        if low >= low_min and argument < 1 << 8 * width:
            return bytes((major << 5 | low,)) + argument.to_bytes(width, "big")
    return bytes((major << 5 | 27,)) + b"\xff" * 8


def heads(sample: bytes | bytearray) -> list[Head]:
    """The first heads of a sequence of items, as far as it can be followed."""
    found: list[Head] = []
    offset = 0
    while offset < len(sample) and len(found) < HEADS_MAX:
        major, low = sample[offset] >> 5, sample[offset] & 0x1F
        width = 1 << low - 24 if 24 <= low < 28 else 0
        argument: int | None = low
        if low >= 28:
            argument = None
        elif width:
            argument = int.from_bytes(sample[offset + 1 : offset + 1 + width], "big")
        found.append(Head(offset, 1 + width, major, argument))
        offset += 1 + width + (argument or 0 if major in (2, 3) else 0)
    return found


def _head_of_any_width(random: Random, major: int, argument: int) -> bytes:
    return write_head(major, argument, random.choice((0, 0, 0, 24, 25, 26, 27)))


# Mutations change `data` in place. All of them accept an empty one.


def _span(random: Random, data: bytearray) -> tuple[int, int]:
    """Where a piece of `data` begins and ends; small pieces more often than large ones."""
    start = random.randrange(len(data) + 1)
    length = random.choice((1, 1, 2, 4, 8, 32, 64, 448, len(data)))
    return start, min(len(data), start + random.randrange(length + 1))


def _flip_bit(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set_byte(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _set_number(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Overwrite 2, 4 or 8 bytes: lengths outside of CBOR, in multiplexer headers and TL, are such numbers."""
    width = random.choice((2, 4, 8))
    at = random.randrange(len(data) + 1)
    number = random.choice(TELLING_NUMBERS) % (1 << 8 * width)
    data[at : at + width] = number.to_bytes(width, random.choice(("big", "little")))


def _insert(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randrange(1, 9))


def _delete(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    start, end = _span(random, data)
    del data[start:end]


def _duplicate(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    start, end = _span(random, data)
    data[end:end] = data[start:end] * random.choice((1, 1, 2, 10))


def _repeat(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """A short piece very often, to reach the limits on counts. Such inputs are slow to read, so they are rare."""
    start, end = _span(random, data)
    if random.random() < 0.05 and end - start <= 64:
        data[end:end] = data[start:end] * random.choice((300, 1_100, 5_000))


def _truncate(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    del data[random.randrange(len(data) + 1) :]


def _splice(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Put a piece of another sample in the place of a piece of this one."""
    other = bytearray(random.choice(samples))
    start, end = _span(random, data)
    other_start, other_end = _span(random, other)
    data[start:end] = other[other_start:other_end]


def _append(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """What follows: a stray boolean, a break, another whole sample."""
    data += random.choice((b"\x00", b"\xf4", b"\xf5", b"\xff", b"\x80", random.choice(samples)))


def _pick_head(random: Random, data: bytearray) -> Head | None:
    found = heads(data)
    return random.choice(found) if found else None


def _lie_about_argument(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    head = _pick_head(random, data)
    if head is None:
        return
    near = [] if head.argument is None else [max(0, head.argument - 1), head.argument + 1]
    number = random.choice((*TELLING_NUMBERS, *near))
    data[head.offset : head.offset + head.size] = _head_of_any_width(random, head.major, number)


def _rewrite_wider(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """The same number in a longer form: refused outside of messages, taken and kept inside them."""
    head = _pick_head(random, data)
    if head is None or head.argument is None:
        return
    wider = write_head(head.major, head.argument, random.choice((24, 25, 26, 27)))
    data[head.offset : head.offset + head.size] = wider


def _change_major(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    head = _pick_head(random, data)
    if head is not None:
        data[head.offset] = data[head.offset] & 0x1F | random.randrange(8) << 5


def _change_form(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Definite to indefinite and back, with the break put where it belongs, elsewhere or nowhere."""
    head = _pick_head(random, data)
    if head is None:
        return
    if head.argument is None:
        data[head.offset] = head.major << 5 | random.randrange(24)
        if data and data[-1] == 0xFF and random.random() < 0.7:
            data.pop()
        return
    data[head.offset : head.offset + head.size] = bytes((head.major << 5 | 31,))
    if random.random() < 0.8:
        at = len(data) if random.random() < 0.5 else random.randrange(head.offset + 1, len(data) + 1)
        data[at:at] = b"\xff"


def _reserved_form(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    head = _pick_head(random, data)
    if head is not None:
        data[head.offset] = head.major << 5 | random.choice((28, 29, 30, 31))


def _wrap(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    """Tags, or arrays within arrays, around whatever stands at a head."""
    head = _pick_head(random, data)
    at = 0 if head is None else head.offset
    wrapping = random.choice((b"\x81", b"\x9f", b"\xa1\x00", b"\xc0", b"\xd8\x18", b"\xd9\x01\x02"))
    data[at:at] = wrapping * random.choice((1, 1, 2, 8, NESTING_MAX))


def _insert_item(random: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    head = _pick_head(random, data)
    at = 0 if head is None else head.offset
    data[at:at] = random_item(random)


_MUTATIONS: tuple[Callable[[Random, bytearray, Sequence[bytes]], None], ...] = (
    _flip_bit,
    _set_byte,
    _set_number,
    _insert,
    _delete,
    _duplicate,
    _repeat,
    _truncate,
    _splice,
    _append,
    _lie_about_argument,
    _lie_about_argument,
    _rewrite_wider,
    _change_major,
    _change_form,
    _reserved_form,
    _wrap,
    _insert_item,
)
