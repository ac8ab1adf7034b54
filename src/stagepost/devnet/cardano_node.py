"""A pretend cardano-node: it knows the stake of a few pools and counts epochs by the clock, and has no chain.

DMQ nodes of demonstrations ask it as they ask a real one, over the same socket and protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stagepost.dmq.cardano.genesis import PICOSECONDS
from stagepost.dmq.cardano.queries import (
    Era,
    GetCurrentEra,
    GetEpochNumber,
    GetEraHistory,
    GetGenesisConfig,
    GetStakeSnapshots,
    GetSystemStart,
    encode_query,
)
from stagepost.dmq.endpoints.state_query_server import AnswerQuery, WriteRaw, serve_state_queries
from stagepost.dmq.validation import KES_EVOLUTIONS_MAX, SLOTS_PER_KES_PERIOD
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import Network, SocketNetwork, UnixAddress
from stagepost.ground.wire.cbor import (
    write_array,
    write_bytes,
    write_indefinite_array,
    write_map,
    write_unsigned,
)

CARDANO_MAGIC = 42
"""Network magic of private Cardano networks."""
EPOCH_SLOTS = 86_400
SLOT_MS = 1_000
SUPPLY = 45 * 10**15
"""Lovelace, as many as can ever be on mainnet."""
DAY_S = 86_400
STOP_WITHIN_S = 1.0
_BIG_INTEGER = b"\xc2"
_WORD_MAX = 2**64 - 1


@dataclass(frozen=True)
class PretendLedger:
    """Ledger in the Conway era, with slots of a second and epochs of a day since `system_start_unix_s`, a midnight."""

    stakes: Mapping[PoolId, int]
    system_start_unix_s: int
    magic: int = CARDANO_MAGIC
    clock: Clock = field(default_factory=SystemClock)

    def acquire(self, _write: WriteRaw) -> AnswerQuery:
        answers = self._answers()

        async def answer(query: bytes) -> bytes | None:
            return answers.get(query)

        return answer

    def release(self) -> None:
        """Do nothing: no state is held in memory."""

    def _answers(self) -> dict[bytes, bytes]:
        epoch = int(self.clock.unix_s() - self.system_start_unix_s) // EPOCH_SLOTS
        era = Era.CONWAY
        return {
            encode_query(GetSystemStart()): self._system_start(),
            encode_query(GetCurrentEra()): write_unsigned(era),
            encode_query(GetEraHistory()): self._history(epoch + 2),
            encode_query(GetEpochNumber(era)): write_array(write_unsigned(epoch)),
            encode_query(GetGenesisConfig(era)): write_array(self._genesis()),
            encode_query(GetStakeSnapshots(era)): write_array(self._stake()),
        }

    def _system_start(self) -> bytes:
        begun = datetime.fromtimestamp(self.system_start_unix_s, UTC)
        of_day_ps = self.system_start_unix_s % DAY_S * PICOSECONDS
        return write_array(
            write_unsigned(begun.year), write_unsigned(begun.timetuple().tm_yday), write_unsigned(of_day_ps)
        )

    def _history(self, end_epoch: int) -> bytes:
        safe_zone = write_array(
            write_unsigned(0), write_unsigned(EPOCH_SLOTS), write_array(write_unsigned(0))
        )
        parameters = write_array(
            write_unsigned(EPOCH_SLOTS), write_unsigned(SLOT_MS), safe_zone, write_unsigned(EPOCH_SLOTS)
        )
        return write_indefinite_array(write_array(_bound(0), _bound(end_epoch), parameters))

    def _genesis(self) -> bytes:
        fields = (EPOCH_SLOTS, SLOTS_PER_KES_PERIOD, KES_EVOLUTIONS_MAX, SLOT_MS * 1_000)
        return write_array(
            self._system_start(),
            write_unsigned(self.magic),
            write_unsigned(0),
            write_array(write_unsigned(1), write_unsigned(20)),
            write_unsigned(2_160),
            *map(write_unsigned, fields),
            # Quorum, supply, protocol parameters, delegations, funds and stake: none of them matters to DMQ.
            write_unsigned(5),
            write_unsigned(SUPPLY),
            write_array(),
            write_map(),
            write_map(),
            write_array(write_map(), write_map()),
        )

    def _stake(self) -> bytes:
        pools = [(write_bytes(one), _three(stake)) for one, stake in sorted(self.stakes.items())]
        total = write_unsigned(max(1, sum(self.stakes.values())))
        return write_array(write_map(*pools), total, total, total)


def _three(stake: int) -> bytes:
    return write_array(*[write_unsigned(stake)] * 3)


def _bound(epoch: int) -> bytes:
    slot = epoch * EPOCH_SLOTS
    return write_array(_integer(slot * PICOSECONDS), write_unsigned(slot), write_unsigned(epoch))


def _integer(value: int) -> bytes:
    if value <= _WORD_MAX:
        return write_unsigned(value)
    return _BIG_INTEGER + write_bytes(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@asynccontextmanager
async def pretend_cardano_node(
    ledger: PretendLedger, socket: Path, network: Network | None = None
) -> AsyncIterator[None]:
    """Serve the ledger at `socket`."""
    listener = await (network or SocketNetwork()).serve(
        UnixAddress(socket), partial(serve_state_queries, states=ledger)
    )
    try:
        yield
    finally:
        await listener.close(STOP_WITHIN_S)
