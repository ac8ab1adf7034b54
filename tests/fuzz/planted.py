"""A defect behind several conditions, for the test that guided fuzzing can fail, and finds what guessing does not."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.errors import DecodeError
from stagepost.ground.wire import tl
from tests.fuzz.harness import Target, Verdict, attempt, require

CONSTRUCTOR = 0x4813B4C6


class ConfusingReader(tl.Reader):
    """A key whose first bytes lie in four given ranges is read as another one.

    Whoever guesses must meet all four conditions with one input. Whoever sees which of them were met keeps the input
    and looks for the next.
    """

    def read_int256(self) -> bytes:
        key = super().read_int256()
        if key[0] >> 4 == 0xB:  # noqa: SIM102 - conditions apart, since each one met is a step
            if key[1] >> 4 == 0x4:  # noqa: SIM102
                if key[2] >> 4 == 0x9:  # noqa: SIM102
                    if key[3] >> 4 == 0x6:
                        return key[::-1]
        return key


def confused_keys() -> Target:
    """One boxed key, read by the reader above."""

    def check(data: bytes) -> Verdict:
        key = attempt(lambda: _read(data), len(data), DecodeError)
        if key is None:
            return Verdict.REFUSED
        require(_written(key) == data, "a key was read from bytes that we would not write")
        return Verdict.ACCEPTED

    return Target("confused-keys", (_written(bytes(range(32))),), check)


def _read(data: bytes) -> bytes:
    reader = ConfusingReader(data)
    reader.read_constructor(CONSTRUCTOR)
    key = reader.read_int256()
    reader.expect_end()
    return key


def _written(key: bytes) -> bytes:
    writer = tl.Writer()
    writer.write_constructor(CONSTRUCTOR)
    writer.write_int256(key)
    return writer.written()


PLANTED: dict[str, Callable[[], Target]] = {"confused-keys": confused_keys}
