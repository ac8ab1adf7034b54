"""Which KES period it is: periods are counted in slots from the beginning of a chain, not from a certificate."""

from __future__ import annotations

from dataclasses import dataclass

from stagepost.ground.net.version_data import NETWORK_MAGICS

PERIOD_S = 129_600.0
"""36 hours: 129 600 slots of one second, as on the public networks."""


@dataclass(frozen=True, slots=True)
class KesSchedule:
    """`slot_zero_unix_s` is where slot 0 would lie if all slots had taken one second."""

    slot_zero_unix_s: float
    period_s: float = PERIOD_S

    def period_at(self, unix_s: float) -> int:
        return max(0, int((unix_s - self.slot_zero_unix_s) // self.period_s))

    def start_of(self, period: int) -> float:
        """Return the Unix time at which `period` begins."""
        return self.slot_zero_unix_s + period * self.period_s


# The first slots of mainnet and preprod took 20 s each; what follows is from the first slot of one second onwards:
# slot 4 492 800 at 1 596 059 091 and slot 86 400 at 1 655 769 600.
_SCHEDULES = {
    NETWORK_MAGICS["mithril-mainnet"]: KesSchedule(1_591_566_291),
    NETWORK_MAGICS["mithril-preprod"]: KesSchedule(1_655_683_200),
    NETWORK_MAGICS["mithril-preview"]: KesSchedule(1_666_656_000),
}


def kes_schedule_for(network_magic: int) -> KesSchedule | None:
    """None for a network without a chain that everybody knows: a key then signs for the period that it is at."""
    return _SCHEDULES.get(network_magic)
