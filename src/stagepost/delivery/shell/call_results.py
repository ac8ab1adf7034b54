"""What some calls give back: plain containers that may also be awaited, as all calls of a publisher may."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


class Stats(dict[str, Any]):
    """Counters by name. It may be awaited, as all calls of a publisher; that gives the counters themselves."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class Listed(tuple[T, ...], Generic[T]):
    """A tuple that may be awaited, as all calls of a publisher; that gives the tuple itself."""

    def __await__(self) -> Generator[Any, None, Listed[T]]:
        yield from ()
        return self
