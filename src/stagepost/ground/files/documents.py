"""JSON files that people write: read strictly, and walked so that every fault is noted, not only the first."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeVar

from stagepost.errors import FileFault
from stagepost.ground.files.expected import Expected, UnexpectedValue, found

T = TypeVar("T")

DEPTH_MAX = 32
WHOLE_FILE = "the whole file"


class NotADocument(Exception):
    """Failure to read any JSON object from the bytes; `fault` says where and why."""

    def __init__(self, fault: FileFault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def read_object(content: bytes) -> dict[str, object]:
    """Return the one JSON object in `content`.

    Raise `NotADocument` for bytes that are not UTF-8, repeated keys, NaN, anything after the object, and more
    than `DEPTH_MAX` levels.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(
            f"byte {error.start}", "expected UTF-8 text, found a byte that is not valid UTF-8"
        ) from None
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _refusal(where, f"expected JSON, found a fault: {error.msg}") from None
    except RecursionError:
        raise _refusal(WHOLE_FILE, f"expected at most {DEPTH_MAX} levels, found more") from None
    except ValueError:
        # Python refuses to read numbers of more than some thousand digits.
        raise _refusal(WHOLE_FILE, "expected JSON, found a number with too many digits") from None
    if not isinstance(value, dict):
        raise _refusal(WHOLE_FILE, f"expected a JSON object, found {found(value)}")
    if _depth_exceeds(value, DEPTH_MAX):
        raise _refusal(WHOLE_FILE, f"expected at most {DEPTH_MAX} levels, found more")
    return value


class DocumentPart:
    """Object inside a file. Reading a field returns its value, or notes the fault and returns a stand-in."""

    def __init__(self, fields: Mapping[str, object], faults: list[FileFault], path: str = "") -> None:
        self.fields = fields
        self._faults = faults
        self._path = path

    def where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def fault(self, name: str, text: str) -> None:
        self._faults.append(FileFault(self.where(name), text))

    def has(self, name: str) -> bool:
        return name in self.fields

    def optional(self, name: str, expected: Expected[T], default: T) -> T:
        if name not in self.fields:
            return default
        try:
            return expected.read(self.fields[name])
        except UnexpectedValue as error:
            self.fault(name, str(error))
            return default

    def required(self, name: str, expected: Expected[T], stand_in: T) -> T:
        """Return the value of field `name`, or note a fault and return `stand_in`.

        The stand-in only keeps the walk going: after a fault nobody uses the result.
        """
        if name not in self.fields:
            self.fault(name, expected.missing())
            return stand_in
        return self.optional(name, expected, stand_in)

    def parts(self, name: str, *, is_required: bool = True) -> Iterator[DocumentPart]:
        """Yield the objects of the list `name`; each knows its path in the file."""
        if name not in self.fields:
            if is_required:
                self.fault(name, "expected a list of objects, found nothing")
            return
        entries = self.fields[name]
        if not isinstance(entries, list):
            self.fault(name, f"expected a list of objects, found {found(entries)}")
            return
        for index, entry in enumerate(entries):
            if isinstance(entry, dict):
                yield DocumentPart(entry, self._faults, self.where(f"{name}[{index}]"))
            else:
                self.fault(f"{name}[{index}]", f"expected an object, found {found(entry)}")

    def part(self, name: str) -> DocumentPart | None:
        """Return the object `name`, or None if it is absent."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fault(name, f"expected an object, found {found(value)}")
            return None
        return DocumentPart(value, self._faults, self.where(name))

    def unknown(self, known: Iterable[str]) -> list[str]:
        """Return the field names that are not in `known`, in the order of the file."""
        names = set(known)
        return [name for name in self.fields if name not in names]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that the author of `name` most likely meant; None if none is close."""
    names = list(known)
    lowered = {candidate.lower(): candidate for candidate in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.75)
    return lowered[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    meant = nearest(name, known)
    return f"; did you mean {meant}?" if meant else ""


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise _refusal(repeated, "expected every key once, found it again")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise _refusal(WHOLE_FILE, f"expected JSON, found {name}")


def _refusal(where: str, text: str) -> NotADocument:
    return NotADocument(FileFault(where, text))


def _depth_exceeds(value: object, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []
