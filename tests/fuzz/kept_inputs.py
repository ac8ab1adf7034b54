"""Inputs that are tried in every run: the corpus, and shapes that go to the limits.

The corpus has two kinds. A `.hex` file is one input with the reason why it is kept, mostly a past failure. `reaching.lines`
holds what guided fuzzing has found, a line of hex digits each: few and short inputs that reach, together with the
samples, every line that any of them reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.fuzz.harness import Target
from tests.fuzz.mutate import hostile_lengths
from tests.fuzz.reached import fewest_reaching_all

CORPUS = Path(__file__).parent / "corpus"
REACHING = "reaching.lines"
CORPUS_BYTES_MAX = 400_000
"""All files together: what is read by everyone who clones the repository should be small."""

SAMPLE_HEADS_MAX = 6


def corpus() -> list[tuple[str, Path]]:
    """(target, file) for each kept input; a file lies in the folder of its target."""
    return [(path.parent.name, path) for path in sorted(CORPUS.glob("*/*.hex"))]


def read_kept(path: Path) -> bytes:
    """Hex digits, in as many lines as one likes; a line that begins with # says why the input is kept."""
    lines = path.read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def kept_for(name: str) -> list[bytes]:
    """Every input in the folder of a target."""
    return [read_kept(path) for target, path in corpus() if target == name] + reaching_for(name)


def reaching_for(name: str) -> list[bytes]:
    path = CORPUS / name / REACHING
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def keep_reached(target: Target, inputs: Iterable[bytes]) -> None:
    """Choose again what is kept, from what was kept before and `inputs`."""
    chosen = fewest_reaching_all(target, [*inputs, *reaching_for(target.name)], target.samples)
    path = CORPUS / target.name / REACHING
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{data.hex()}\n" for data in chosen))


def at_the_limits() -> Iterator[bytes]:
    """Too many, too long, too deep, and never finished: what a decoder must give up on in time."""
    yield b""
    for opening in (b"\x81", b"\x9f", b"\xa1\x00", b"\xbf\x00", b"\xc1", b"\x82\x00"):
        yield opening * 5_000
    for item in (b"\x00", b"\x40", b"\x80", b"\xf5", b"\x60", b"\xff"):
        yield b"\x9f" + item * 5_000 + b"\xff"
        yield b"\x82\x02\x9f" + item * 20_000
        yield b"\x82\x01\x99\x13\x88" + item * 5_000
    for length in (65_535, 65_536, 100_000):
        yield b"\x82\x00\x5a" + length.to_bytes(4, "big") + bytes(length)
        yield b"\x7a" + length.to_bytes(4, "big") + b"a" * length
    for tag in range(1, 6):
        for count in (1_024, 1_025):
            yield bytes((0x82, tag, 0x9F)) + (b"\x58\x20" + bytes(32)) * count + b"\xff"
            yield bytes((0x82, tag, 0x9F)) + (b"\x82\x58\x20" + bytes(33)) * count + b"\xff"
    yield b"\x82\x00\xb9\x01\x01" + b"".join(
        b"\x19" + n.to_bytes(2, "big") + b"\x00" for n in range(257, 514)
    )
    yield b"\x82\x02\x82\x00\x99\x01\x01" + b"\x19\x01\x00" * 257
    yield b"\x82\x01\x9f" + b"\x83\x00\x00\x00" * 256 + b"\xff"
    yield b"\x00\x00\x00\x01\x00\x0b\xff\xff" * 3
    yield (b"\x00\x00\x00\x01\x00\x0b\x00\x01" + b"\x00") * 5_000
    yield (b"\x00\x00\x00\x01\x80\x0b\xff\xff" + bytes(65_535)) * 2


def lying_lengths(samples: tuple[bytes, ...]) -> Iterator[bytes]:
    for sample in samples:
        yield from hostile_lengths(sample, SAMPLE_HEADS_MAX)
