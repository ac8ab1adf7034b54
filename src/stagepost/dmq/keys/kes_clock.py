"""KES periods of the chain beside a DMQ network: from a cardano-node, a genesis file, or the table of public networks.

KES periods are counted in slots from the beginning of a chain, not from a certificate. `KesSchedule` converts them
to time; `KesClock` finds the schedule, and asks a cardano-node for its era history where one is named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stagepost.dmq.cardano.answers import EraMismatch
from stagepost.dmq.cardano.era_history import EraHistory
from stagepost.dmq.cardano.genesis import MICROSECOND_PS, PICOSECONDS, ShelleyGenesis, moment_text
from stagepost.dmq.cardano.queries import (
    Era,
    GetCurrentEra,
    GetEraHistory,
    GetGenesisConfig,
    GetSystemStart,
)
from stagepost.dmq.endpoints.state_query_client import StateQueryClient, connect_state_query
from stagepost.dmq.validation import KES_EVOLUTIONS_MAX, SLOTS_PER_KES_PERIOD
from stagepost.errors import ErrorCode, SigningError, StagepostError
from stagepost.ground.files.running_nodes import NodeFacts, node_beside
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import Network, SocketNetwork
from stagepost.ground.net.version_data import NETWORK_MAGICS

PERIOD_S = float(SLOTS_PER_KES_PERIOD)
"""Seconds: slots take one second on the public networks."""
ASK_AGAIN_S = 3_600.0
"""Seconds for which an answer of the cardano-node holds; a change of the slot length is announced days ahead."""
RETRY_S = 60.0
"""Seconds until the next attempt after a failed one, while an earlier answer holds."""
LOOK_AGAIN_S = 1.0
"""Seconds between two looks for the note of a DMQ node that does not run yet."""
ANSWERS_WITHIN_S = 20.0
"""Seconds for all questions together; a signature waits for them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KesSchedule:
    """KES periods of a chain. `slot_zero_unix_s` is where slot 0 would lie if all slots were as long as now."""

    slot_zero_unix_s: float
    period_s: float = PERIOD_S
    evolutions_max: int = KES_EVOLUTIONS_MAX

    def period_at(self, unix_s: float) -> int:
        return max(0, int((unix_s - self.slot_zero_unix_s) // self.period_s))

    def start_of(self, period: int) -> float:
        """Return the Unix time at which `period` begins."""
        return self.slot_zero_unix_s + period * self.period_s


# The first slots of mainnet and preprod took 20 s each; these schedules hold from the first slot of one
# second onwards: slot 4 492 800 at 1 596 059 091 and slot 86 400 at 1 655 769 600.
_SCHEDULES = {
    "mainnet": KesSchedule(1_591_566_291),
    "preprod": KesSchedule(1_655_683_200),
    "preview": KesSchedule(1_666_656_000),
}
_CARDANO_MAGICS = {"mainnet": 764_824_073, "preprod": 1, "preview": 2}
_NAMES = {NETWORK_MAGICS[f"mithril-{name}"]: name for name in _SCHEDULES}


def kes_schedule_for(network_magic: int) -> KesSchedule | None:
    """Return the schedule of a DMQ network; None without a well-known chain: a key then signs for the period
    that it is at."""
    name = _NAMES.get(network_magic)
    return None if name is None else _SCHEDULES[name]


def schedule_of_genesis(genesis: ShelleyGenesis) -> KesSchedule:
    """Return the schedule of a chain by its genesis alone. Unless the chain is a public one, this is right only
    for a chain whose slots were always as long as the genesis says, that is, for one without Byron blocks."""
    for name, magic in _CARDANO_MAGICS.items():
        if magic == genesis.network_magic:
            return _SCHEDULES[name]
    return _schedule(genesis.system_start_ps, genesis.slot_us * MICROSECOND_PS, genesis)


def schedule_of_history(
    history: EraHistory, system_start_ps: int, genesis: ShelleyGenesis, unix_s: float
) -> KesSchedule | None:
    """Return the schedule of the era at a moment; None where the history says nothing about that moment."""
    era = history.era_at(int(unix_s * 1000) * (PICOSECONDS // 1000) - system_start_ps)
    if era is None:
        return None
    slot_zero_ps = system_start_ps + era.start.time_ps - era.start.slot * era.slot_ps
    return _schedule(slot_zero_ps, era.slot_ps, genesis)


def _schedule(slot_zero_ps: int, slot_ps: int, genesis: ShelleyGenesis) -> KesSchedule:
    period_s = genesis.slots_per_kes_period * slot_ps / PICOSECONDS
    return KesSchedule(slot_zero_ps / PICOSECONDS, period_s, genesis.kes_evolutions_max)


class KesClock:
    """Source of the schedule for signatures on one DMQ network.

    A cardano-node is asked where one is named, again every hour, and an earlier answer holds while the
    cardano-node is away. Otherwise a genesis file decides, otherwise the table of public networks.
    """

    def __init__(
        self,
        network_magic: int,
        *,
        cardano_socket: Path | None = None,
        cardano_magic: int | None = None,
        genesis: ShelleyGenesis | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> None:
        """Name at most one chain: `cardano_magic` may be left out on public networks and beside a genesis."""
        self._socket = cardano_socket
        self._genesis = genesis
        self._clock = clock or SystemClock()
        self._network = network or SocketNetwork()
        self._schedule = kes_schedule_for(network_magic) if genesis is None else schedule_of_genesis(genesis)
        if cardano_magic is None and genesis is not None:
            cardano_magic = genesis.network_magic
        if cardano_magic is None:
            cardano_magic = _CARDANO_MAGICS.get(_NAMES.get(network_magic, ""))
        self._magic = cardano_magic
        self._find_node: Callable[[], NodeFacts | None] | None = None
        self._is_answer = False
        self._ask_at_s = self._clock.mono_s()
        self._turn = asyncio.Lock()

    @classmethod
    def beside_node(
        cls,
        network_magic: int,
        local_socket: Path,
        node_data: Path | None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> KesClock:
        """Return the clock for programs of a DMQ node on this machine: the table of public networks, otherwise
        the cardano-node that the DMQ node names in its note."""
        made = cls(network_magic, clock=clock, network=network)
        if made._schedule is None:
            made._find_node = partial(node_beside, local_socket, node_data)
        return made

    async def schedule(self) -> KesSchedule | None:
        """Return the schedule; None if nothing is known about the chain. Raise `SigningError` if its cardano-node
        cannot be asked and has never answered."""
        if self._find_node is not None:
            self._look_for_node(self._find_node)
        if self._socket is None:
            return self._schedule
        async with self._turn:
            if self._clock.mono_s() >= self._ask_at_s:
                await self._renew(self._socket)
            return self._schedule

    def _look_for_node(self, find: Callable[[], NodeFacts | None]) -> None:
        """Look for the DMQ node's note until there is one: the node may start after its programs."""
        now_s = self._clock.mono_s()
        if now_s < self._ask_at_s:
            return
        note = find()
        if note is None:
            self._ask_at_s = now_s + LOOK_AGAIN_S
            return
        self._find_node = None
        self._ask_at_s = now_s
        if note.cardano is not None:
            self._socket, self._magic = Path(note.cardano.socket), note.cardano.network_magic

    async def _renew(self, socket: Path) -> None:
        try:
            if self._magic is None:
                raise SigningError(
                    "the magic number of its network is not known",
                    advice="give --cardano-network-magic beside --cardano-node-socket",
                )
            self._schedule = await self._asked(socket, self._magic)
        except StagepostError as error:
            if not self._is_answer:
                raise SigningError(
                    f"the present KES period is not known: cardano-node at {socket}: {error.text}",
                    code=ErrorCode.NOT_READY,
                    advice=error.advice,
                ) from error
            log.warning("KES period not confirmed", extra={"reason": error.text, "socket": str(socket)})
            self._ask_at_s = self._clock.mono_s() + RETRY_S
            return
        self._is_answer = True
        self._ask_at_s = self._clock.mono_s() + ASK_AGAIN_S

    async def _asked(self, socket: Path, magic: int) -> KesSchedule:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                client = await connect_state_query(self._network, socket, magic)
                try:
                    return await self._ask(client)
                finally:
                    with suppress(StagepostError):
                        await client.close()
        except TimeoutError:
            raise SigningError(f"it did not answer within {ANSWERS_WITHIN_S:g} s") from None

    async def _ask(self, client: StateQueryClient) -> KesSchedule:
        await client.acquire()
        system_start_ps = await client.ask(GetSystemStart())
        history: EraHistory = await client.ask(GetEraHistory())
        genesis = self._genesis
        if genesis is None:
            era = await client.ask(GetCurrentEra())
            if era == Era.BYRON:
                raise SigningError("it is still in the Byron era, which has no KES keys; it synchronises")
            genesis = await client.ask(GetGenesisConfig(era))
            if isinstance(genesis, EraMismatch):
                raise SigningError("its ledger changed the era between two questions", advice="try again")
        if genesis.system_start_ps != system_start_ps:
            begun = moment_text(genesis.system_start_ps // PICOSECONDS)
            raise SigningError(
                f"its network began {moment_text(system_start_ps // PICOSECONDS)}, that of the genesis {begun}",
                advice="check the socket and the genesis file: they belong to two networks",
            )
        now_s = self._clock.unix_s()
        found = schedule_of_history(history, system_start_ps, genesis, now_s)
        if found is None:
            raise SigningError(
                f"its era history says nothing about {moment_text(now_s)}; it synchronises, or this clock is wrong",
                advice="wait until the cardano-node has caught up, and check this machine's clock",
            )
        return found
