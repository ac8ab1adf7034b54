"""Era history: from slots and epochs to time and back, by the eras that a cardano-node reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagepost.dmq.cardano.genesis import PICOSECONDS
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import ItemLimits, skip_item

ERAS_MAX = 64
"""Eras in one history; the ledger has eight."""
RELATIVE_TIME_BYTES_MAX = 16
"""Bytes of a time in picoseconds as a big integer; times above 213 days need nine."""
BOUND_ELEMENTS_MIN = 3
PARAMETER_ELEMENTS_MIN = 3
EXTRA_ELEMENTS_MAX = 16
"""Elements at the end of a bound or of parameters that later releases may append."""
MILLISECOND_PS = PICOSECONDS // 1000

_EXTRA = ItemLimits(bytes_max=65_535, depth_max=16, any_type=True)


@dataclass(frozen=True, slots=True)
class EraBound:
    """Border between two eras, in picoseconds since the system start, as slot and as epoch."""

    time_ps: int
    slot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EraSpan:
    """Era with its lengths. `end` None: the end is not known."""

    start: EraBound
    end: EraBound | None
    epoch_slots: int
    slot_ps: int

    @property
    def epoch_ps(self) -> int:
        return self.epoch_slots * self.slot_ps


@dataclass(frozen=True, slots=True)
class EraHistory:
    """Eras in order. Beyond the last end a cardano-node promises nothing: that is the horizon."""

    eras: tuple[EraSpan, ...]

    def epoch_end_ps(self, epoch: int) -> int | None:
        """Return when `epoch` ends, in picoseconds since the system start; None beyond the horizon."""
        era = next((era for era in self.eras if _has_epoch(era, epoch)), None)
        return None if era is None else _end_ps(era, epoch)

    def estimated_epoch_end_ps(self, epoch: int) -> int:
        """Return when `epoch` ends; beyond the horizon, the time to which the last era's lengths lead."""
        known = self.epoch_end_ps(epoch)
        return _end_ps(self.eras[-1], epoch) if known is None else known

    def epoch_length_ps(self, epoch: int) -> int:
        """Return the length of `epoch`; beyond the horizon that of the last era's epochs."""
        return next((era for era in self.eras if _has_epoch(era, epoch)), self.eras[-1]).epoch_ps

    def slot_at(self, time_ps: int) -> int | None:
        """Return the slot at a time since the system start; None beyond the horizon."""
        era = self.era_at(time_ps)
        return None if era is None else era.start.slot + (time_ps - era.start.time_ps) // era.slot_ps

    def era_at(self, time_ps: int) -> EraSpan | None:
        """Return the era of a time since the system start; None before it and beyond the horizon."""
        for era in self.eras:
            if era.start.time_ps <= time_ps and (era.end is None or time_ps < era.end.time_ps):
                return era
        return None


def _end_ps(era: EraSpan, epoch: int) -> int:
    return era.start.time_ps + (epoch + 1 - era.start.epoch) * era.epoch_ps


def _has_epoch(era: EraSpan, epoch: int) -> bool:
    return era.start.epoch <= epoch and (era.end is None or epoch < era.end.epoch)


def read_era_history(reader: CborReader, what: str) -> EraHistory:
    """Return the history; raise `DecodeError` unless each era begins where the one before it ends."""
    start = reader.offset
    eras: list[EraSpan] = []
    for _ in list_items(reader, what, ERAS_MAX):
        at = reader.offset
        era = _read_era(reader, f"{what}[{len(eras)}]")
        if eras and eras[-1].end != era.start:
            raise reader.invalid(f"{what}[{len(eras)}] does not begin where the era before it ends", at=at)
        eras.append(era)
    if not eras:
        raise reader.invalid(f"{what} has no era", at=start)
    return EraHistory(tuple(eras))


def _read_era(reader: CborReader, what: str) -> EraSpan:
    at = reader.offset
    reader.array(3, what)
    start = _read_bound(reader, f"{what}.start")
    end = None if reader.take_null() else _read_bound(reader, f"{what}.end")
    epoch_slots, slot_ps = _read_lengths(reader, f"{what}.parameters")
    if end is not None:
        is_backward = end.time_ps < start.time_ps or end.slot < start.slot or end.epoch < start.epoch
        if is_backward:
            raise reader.invalid(f"{what} ends before it begins", at=at)
    return EraSpan(start, end, epoch_slots, slot_ps)


def _read_bound(reader: CborReader, what: str) -> EraBound:
    length = _elements(reader, what, BOUND_ELEMENTS_MIN)
    at = reader.offset
    time_ps = reader.integer(RELATIVE_TIME_BYTES_MAX, f"{what}.time")
    if time_ps < 0:
        raise reader.invalid(f"{what}.time is negative", at=at)
    bound = EraBound(time_ps, reader.unsigned(64, f"{what}.slot"), reader.unsigned(64, f"{what}.epoch"))
    skip_elements(reader, length - BOUND_ELEMENTS_MIN, what)
    return bound


def _read_lengths(reader: CborReader, what: str) -> tuple[int, int]:
    """Return slots per epoch and picoseconds per slot; safe zone, genesis window and later elements do not
    matter here."""
    length = _elements(reader, what, PARAMETER_ELEMENTS_MIN)
    at = reader.offset
    epoch_slots = reader.unsigned(64, f"{what}.epoch size")
    slot_ms = reader.unsigned(64, f"{what}.slot length")
    if not epoch_slots or not slot_ms:
        raise reader.invalid(f"{what} name an epoch or a slot of length 0", at=at)
    skip_elements(reader, length - 2, what)
    return epoch_slots, slot_ms * MILLISECOND_PS


def _elements(reader: CborReader, what: str, count_min: int) -> int:
    start = reader.offset
    length = reader.array_length(what)
    if not count_min <= length <= count_min + EXTRA_ELEMENTS_MAX:
        raise reader.invalid(f"{what} has {length} elements, expected at least {count_min}", at=start)
    return length


def skip_elements(reader: CborReader, count: int, what: str) -> None:
    """Move past `count` values of any type."""
    for _ in range(count):
        skip_item(reader, _EXTRA, what)


def list_items(reader: CborReader, what: str, count_max: int) -> Iterator[int]:
    """Yield the index of each element of a list, definite or not; the caller reads the element before the next."""
    start = reader.offset
    count = reader.list_start(what)
    index = 0
    while not reader.take_break() if count is None else index < count:
        if index >= count_max:
            raise reader.over_limit(f"the length of {what}", index + 1, count_max, at=start)
        yield index
        index += 1
