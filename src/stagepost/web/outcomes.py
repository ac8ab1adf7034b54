"""Results of looking somewhere: something, nothing yet, or a failure to look. The three must never be mixed up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from stagepost.errors import ErrorCode, StagepostError

T = TypeVar("T")


class Nothing(NamedTuple):
    """There is nothing yet, and that is no fault. `text` says what would be here; `advice` how it gets here."""

    text: str
    advice: str = ""


class Unreadable(NamedTuple):
    """Failure to look: nobody knows what is there."""

    text: str
    advice: str = ""
    code: str = ErrorCode.STORAGE_UNAVAILABLE

    @classmethod
    def of(cls, error: StagepostError) -> Unreadable:
        return cls(error.text, error.advice, error.code)


def attempt(look: Callable[[], T]) -> T | Unreadable:
    """Whatever goes wrong while looking at one source must not take the others from the page."""
    try:
        return look()
    except StagepostError as error:
        return Unreadable.of(error)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = f"{error.filename}: " if error.filename else ""
        return Unreadable(f"{where}{reason}", "check the disk and who may read the file")
