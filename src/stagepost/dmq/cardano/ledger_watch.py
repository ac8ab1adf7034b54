"""The watch over a cardano-node's ledger: what to ask when, what its answers mean, and what to say meanwhile.

Pure: a round is a generator that yields questions and is sent their answers, and returns the pause until the
next round. Its caller owns the connection, the clock and the file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from stagepost.dmq.cardano.answers import EraMismatch
from stagepost.dmq.cardano.era_history import EraHistory
from stagepost.dmq.cardano.genesis import PICOSECONDS, ShelleyGenesis, moment_text
from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.cardano.queries import (
    Era,
    GetCurrentEra,
    GetEpochNumber,
    GetEraHistory,
    GetGenesisConfig,
    GetLedgerPeers,
    GetStakeSnapshots,
    GetSystemStart,
    LedgerQuery,
    era_name,
)
from stagepost.dmq.cardano.stake_record import STALE_EPOCHS, StakeRecord
from stagepost.errors import ErrorCode, RemoteProtocolError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.net.back_off import doubled_s

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
"""Seconds between two attempts to reach a cardano-node that is away."""
BORDER_PAUSE_S = 2.0
"""Seconds after the end of an epoch until the first question; the first block of the new epoch takes 20 on average."""
BORDER_PAUSE_MAX_S = 30.0
BEHIND_AFTER_S = 600.0
"""Seconds after the end of an epoch from which on a cardano-node that is still in it counts as behind."""
BEHIND_PAUSE_MAX_S = 60.0
HORIZON_PAUSE_S = 120.0
"""Seconds until the next question where the era history ends before the epoch does."""
LOOK_AGAIN_S = 3_600.0
"""Seconds between two looks within an epoch: a fork over the border may change the stake for a while."""


PEERS_LIFE_S = 1_847.0
"""Seconds after which the list of ledger peers is asked anew."""
PEERS_VERSION_MIN = 0x8000 | 23
"""Node-to-client version from which on the relays of all pools can be asked for."""


class ReacquireTip(msgspec.Struct, frozen=True):
    """Step between two questions: the ledger changed its era, so take its newest state."""


LedgerStep: TypeAlias = LedgerQuery | ReacquireTip
LedgerRound: TypeAlias = Generator[LedgerStep, Any, float]
"""Round of questions; it returns the seconds until the next one."""


@dataclass(frozen=True, slots=True)
class _LedgerNews:
    era: int
    epoch: int
    history: EraHistory
    stakes: dict[PoolId, int] | None


class LedgerWatch:
    """Keeper of the newest stake of one Cardano network, and of the reasons why there is no newer one."""

    def __init__(
        self, network_magic: int, genesis: ShelleyGenesis | None, *, wants_peers: bool = False
    ) -> None:
        self._network_magic = network_magic
        self._wants_peers = wants_peers
        self._has_peers_query = False
        self._peers_at_s: float | None = None
        self.peers: LedgerPeers | None = None
        self._genesis = genesis
        self._system_start_ps: int | None = None
        self._history: EraHistory | None = None
        self._is_confirmed = False
        self._failures = 0
        self._waits = 0
        self._last_news_s: float | None = None
        self._trouble: str | None = None
        self.record: StakeRecord | None = None

    def restore(self, record: StakeRecord) -> str | None:
        """Work with a record of an earlier process until there is news; return why that is impossible."""
        if record.network_magic != self._network_magic:
            return (
                f"the kept stake is of network {record.network_magic}, this node is on {self._network_magic}"
            )
        if self._genesis is not None and self._genesis.system_start_ps != record.system_start_ps:
            return "the kept stake is of a network with another system start"
        self.record = record
        self._last_news_s = record.taken_unix_s
        return None

    def connected(self, version: int) -> None:
        """Begin anew on a new connection of this node-to-client version: it may lead to another node."""
        self._has_peers_query = version >= PEERS_VERSION_MIN
        self._system_start_ps = None
        self._is_confirmed = False

    def lost(self, reason: str, *, is_refusal: bool = False) -> float:
        """Record that the cardano-node cannot be asked; return the seconds until the next attempt."""
        self._trouble = reason
        self._failures += 1
        return RETRY_MAX_S if is_refusal else doubled_s(RETRY_FIRST_S, RETRY_MAX_S, self._failures)

    def round(self, now: Callable[[], float]) -> LedgerRound:
        """Ask what is not known yet; `now` returns Unix seconds."""
        if self._system_start_ps is None:
            self._begin_at((yield GetSystemStart()))
        news = yield from self._ask()
        if news is None:
            yield ReacquireTip()
            news = yield from self._ask()
        if news is None:
            raise RemoteProtocolError("the cardano-node's ledger changed its era twice between two questions")
        self._failures = 0
        if isinstance(news, str):
            self._trouble = news
            return self._wait_s(BEHIND_PAUSE_MAX_S)
        pause_s = self._take(news, now())
        if self._wants_peers:
            # After the stake is in force: a list of peers that cannot be read must not cost the stake.
            yield from self._ask_peers(news.era, now())
            pause_s = min(pause_s, PEERS_LIFE_S)
        return pause_s

    def _ask_peers(self, era: int, now_s: float) -> Generator[LedgerStep, Any, None]:
        is_due = self._peers_at_s is None or now_s - self._peers_at_s >= PEERS_LIFE_S
        if not is_due or not self._has_peers_query:
            return
        # Before the answer: one that cannot be read ends the connection, and must not do so again at once.
        self._peers_at_s = now_s
        peers = yield GetLedgerPeers(era)
        if not isinstance(peers, EraMismatch):
            self.peers = peers

    @property
    def lacks_peers_query(self) -> bool:
        """Return True if ledger peers are wanted from a cardano-node that is too old to be asked."""
        return self._wants_peers and not self._has_peers_query

    def _begin_at(self, system_start_ps: int) -> None:
        if self._genesis is not None and self._genesis.system_start_ps != system_start_ps:
            here, there = self._genesis.system_start_ps // PICOSECONDS, system_start_ps // PICOSECONDS
            raise RemoteProtocolError(
                f"the cardano-node's network began {moment_text(there)}, that of the genesis file {moment_text(here)}",
                code=ErrorCode.HANDSHAKE_WRONG_NETWORK,
                advice="check CardanoNodeSocket and ShelleyGenesisFile: they belong to two networks",
            )
        self._system_start_ps = system_start_ps
        if self.record is not None and self.record.system_start_ps != system_start_ps:
            self.record = None

    def _ask(self) -> Generator[LedgerStep, Any, _LedgerNews | str | None]:
        """Return the news, a sentence if the ledger has none yet, or None if its era changed meanwhile."""
        era: int = yield GetCurrentEra()
        if era == Era.BYRON:
            return "the cardano-node is still in the Byron era, which has no stake pools; it synchronises"
        epoch = yield GetEpochNumber(era)
        if isinstance(epoch, EraMismatch):
            return None
        history: EraHistory = yield GetEraHistory()
        if self._genesis is None:
            genesis = yield GetGenesisConfig(era)
            if isinstance(genesis, EraMismatch):
                return None
            self._check_genesis(genesis)
            self._genesis = genesis
        if self._is_confirmed and self.record is not None and self.record.epoch == epoch:
            return _LedgerNews(era, epoch, history, None)
        answer = yield GetStakeSnapshots(era)
        return (
            None if isinstance(answer, EraMismatch) else _LedgerNews(era, epoch, history, answer.set_stakes())
        )

    def _check_genesis(self, genesis: ShelleyGenesis) -> None:
        if genesis.network_magic != self._network_magic:
            raise RemoteProtocolError(
                f"the cardano-node's genesis names network {genesis.network_magic}, this node is on {self._network_magic}",
                code=ErrorCode.HANDSHAKE_WRONG_NETWORK,
                advice="check CardanoNetworkMagic",
            )

    def _take(self, news: _LedgerNews, now_s: float) -> float:
        """Put the news in force; return the seconds until the next round."""
        start_ps, genesis = self._system_start_ps, self._genesis
        assert start_ps is not None
        assert genesis is not None
        end_s = (start_ps + news.history.estimated_epoch_end_ps(news.epoch)) / PICOSECONDS
        self._history = news.history
        self._is_confirmed = True
        self._last_news_s = now_s
        if news.stakes is not None:
            self.record = StakeRecord(
                network_magic=self._network_magic,
                system_start_ps=start_ps,
                era=news.era,
                epoch=news.epoch,
                epoch_end_unix_s=end_s,
                epoch_length_s=news.history.epoch_length_ps(news.epoch) / PICOSECONDS,
                taken_unix_s=now_s,
                kes_evolutions_max=genesis.kes_evolutions_max,
                stakes=news.stakes,
            )
        self._trouble = None
        if news.history.epoch_end_ps(news.epoch) is None:
            self._waits = 0
            return HORIZON_PAUSE_S
        if now_s < end_s:
            self._waits = 0
            return min(end_s - now_s + BORDER_PAUSE_S, LOOK_AGAIN_S)
        if now_s - end_s < BEHIND_AFTER_S:
            return self._wait_s(BORDER_PAUSE_MAX_S)
        self._trouble = (
            f"the cardano-node is behind: it is in epoch {news.epoch}, which ended {moment_text(end_s)}"
        )
        return self._wait_s(BEHIND_PAUSE_MAX_S)

    def _wait_s(self, most_s: float) -> float:
        self._waits += 1
        return doubled_s(BORDER_PAUSE_S, most_s, self._waits)

    # For people

    def readiness(self, now_s: float) -> str | None:
        """Return None while the stake is as new as it should be, otherwise a sentence."""
        record = self.record
        if record is None:
            return f"no stake yet: {self._trouble or 'the cardano-node has not answered yet'}"
        behind = record.epochs_behind(now_s)
        # A node that answers and is in an old epoch has no better stake. One that is away may come back soon.
        answers_late = self._failures == 0 and now_s - record.epoch_end_unix_s >= BEHIND_AFTER_S
        if behind >= STALE_EPOCHS or (behind and answers_late):
            return self._with_trouble(
                f"stale {record.described()}; the clock is in epoch {record.epoch + behind}"
            )
        if self._last_news_s is not None and now_s - self._last_news_s > record.epoch_length_s:
            since = moment_text(self._last_news_s)
            return self._with_trouble(f"{record.described()}; no news of the cardano-node since {since}")
        return None

    def works_with(self, now_s: float) -> str:
        """Return what the node works with, in one sentence, also while all is well."""
        if self.record is None:
            return self._with_trouble("no stake yet")
        parts = [self.record.described(), f"in the {era_name(self.record.era)} era"]
        period = self.kes_period(now_s)
        if period is not None:
            parts.append(f"KES period {period}")
        return self._with_trouble(", ".join(parts))

    def kes_period(self, now_s: float) -> int | None:
        """Return the KES period of the clock; None before the first era history and beyond its horizon."""
        if self._history is None or self._system_start_ps is None or self._genesis is None:
            return None
        slot = self._history.slot_at(int(now_s * 1000) * (PICOSECONDS // 1000) - self._system_start_ps)
        return None if slot is None else slot // self._genesis.slots_per_kes_period

    @property
    def trouble(self) -> str | None:
        """Reason why there is no newer stake, in words; None while there is none."""
        return self._trouble

    def _with_trouble(self, text: str) -> str:
        return text if self._trouble is None else f"{text}; {self._trouble}"
