"""The Shelley genesis: the constants of a Cardano network that bind DMQ, from its file or from a cardano-node; and the system
start, the moment of the first slot, from a calendar date to picoseconds and back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from stagepost.dmq.pools import KES_EVOLUTIONS_LIMIT
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.ground.files.documents import DocumentPart, NotADocument, read_object
from stagepost.ground.files.expected import Expected, decimal, unfit, whole
from stagepost.ground.wire.cbor import CborReader

PICOSECONDS = 10**12
"""Picoseconds in a second."""
DAY_PS = 86_400 * PICOSECONDS
YEAR_MIN = 1970
YEAR_MAX = 9999
INTEGER_BYTES_MAX = 64
"""Bytes of a big integer in a date. Dates need none; genuine test data hold some of 30 bytes, which are refused as dates."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?(?:Z|\+00:00)", re.ASCII)


def read_system_start(reader: CborReader, what: str) -> int:
    """Return picoseconds since 1970 from `[year, day of year, picoseconds of day]`."""
    start = reader.offset
    reader.array(3, what)
    year = reader.integer(INTEGER_BYTES_MAX, f"{what}: year")
    day = reader.integer(INTEGER_BYTES_MAX, f"{what}: day of year")
    picoseconds = reader.integer(INTEGER_BYTES_MAX, f"{what}: picoseconds of day")
    if not YEAR_MIN <= year <= YEAR_MAX:
        raise reader.invalid(f"{what} is not a possible date: its year is {_shown(year)}", at=start)
    days = (date(year, 12, 31) - date(year, 1, 1)).days + 1
    if not 1 <= day <= days:
        raise reader.invalid(f"{what} is not a possible date: day {_shown(day)} of {year}", at=start)
    if not 0 <= picoseconds < DAY_PS:
        raise reader.invalid(f"{what} is not a possible date: the time of day is not within a day", at=start)
    return (date(year, 1, 1).toordinal() - _EPOCH_DAY + day - 1) * DAY_PS + picoseconds


def parse_system_start(text: str) -> int | None:
    """Return picoseconds since 1970 from a text such as 2022-06-01T00:00:00Z; None if it is not such a text."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if year < YEAR_MIN or hour > 23 or minute > 59 or second > 59:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    fraction = int((found[7] or "").ljust(12, "0"))
    return days * DAY_PS + (hour * 3600 + minute * 60 + second) * PICOSECONDS + fraction


def moment_text(unix_s: float) -> str:
    """Return a moment as people write it, to the second: 2025-12-15 21:44:51 UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(unix_s))
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**9 else "far too large"


GENESIS_FILE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes; public files have three thousand, those of test networks list their first funds."""
SLOT_SECONDS_MAX = 86_400
MICROSECOND_PS = PICOSECONDS // 1_000_000


@dataclass(frozen=True, slots=True)
class ShelleyGenesis:
    """Constants of one Cardano network."""

    network_magic: int
    system_start_ps: int
    epoch_slots: int
    slot_us: int
    slots_per_kes_period: int
    kes_evolutions_max: int

    def fault(self) -> str | None:
        """Return why no network can have these constants; None if one can."""
        if not 1 <= self.kes_evolutions_max <= KES_EVOLUTIONS_LIMIT:
            return f"{self.kes_evolutions_max} KES evolutions are not in 1..{KES_EVOLUTIONS_LIMIT}"
        if not self.slots_per_kes_period or not self.epoch_slots or not self.slot_us:
            return "an epoch, a KES period or a slot has length 0"
        return None


def _read_moment(value: object) -> int:
    moment = parse_system_start(value) if isinstance(value, str) else None
    if moment is None:
        raise unfit(_MOMENT.what, value)
    return moment


_MOMENT: Expected[int] = Expected("a moment such as 2022-06-01T00:00:00Z", _read_moment)
_COUNT = whole(1, 2**63 - 1)


def genesis_hash(content: bytes) -> str:
    """Return the hash by which configuration files name a genesis file."""
    return blake2b_256(content).hex()


def parse_genesis(content: bytes, source: str, wanted_hash: str | None = None) -> ShelleyGenesis:
    """Return the constants, or raise `ConfigFaults` with every fault in the file.

    Fields that do not matter to DMQ are ignored. `wanted_hash` is the hash that the configuration demands.
    """
    faults: list[FileFault] = []
    if wanted_hash is not None and genesis_hash(content) != wanted_hash.lower():
        text = f"expected the file with the BLAKE2b-256 hash {wanted_hash}, found {genesis_hash(content)}"
        raise ConfigFaults({source: [FileFault("the whole file", text)]})
    try:
        file = DocumentPart(read_object(content), faults)
    except NotADocument as error:
        raise ConfigFaults({source: [error.fault]}) from error
    slot_s = file.required("slotLength", decimal(0, SLOT_SECONDS_MAX, "seconds", above_low=True), 1)
    genesis = ShelleyGenesis(
        network_magic=file.required("networkMagic", whole(0, 2**32 - 1), 0),
        system_start_ps=file.required("systemStart", _MOMENT, 0),
        epoch_slots=file.required("epochLength", _COUNT, 1),
        slot_us=max(1, round(slot_s * 1_000_000)),
        slots_per_kes_period=file.required("slotsPerKESPeriod", _COUNT, 1),
        kes_evolutions_max=file.required("maxKESEvolutions", whole(1, KES_EVOLUTIONS_LIMIT), 1),
    )
    if faults:
        raise ConfigFaults({source: faults})
    return genesis
