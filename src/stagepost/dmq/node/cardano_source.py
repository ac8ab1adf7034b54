"""The stake of a Cardano network, from the socket of a cardano-node: asked per epoch, kept on disk, used
meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.cardano.ledger_watch import LedgerWatch, ReacquireTip
from stagepost.dmq.cardano.stake_record import STAKE_FILE_BYTES_MAX, StakeRecord, decode_record, encode_record
from stagepost.dmq.endpoints.state_query_client import StateQueryClient, connect_state_query
from stagepost.dmq.node.config import CardanoAccess
from stagepost.errors import ConfigError, HandshakeRefused, StagepostError, StorageError, TransportError
from stagepost.ground.files.small_files import Files, read_small_file, replace_durably
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.network import Network

STAKE_FILE = "stake.json"

log = logging.getLogger(__name__)


class CardanoSource:
    """Implementation of `Pools` with the last stake that a cardano-node gave, in this process or an earlier one.

    A cardano-node that goes away changes nothing for peers and programs: `watch` tries to reach it again, and
    the status says what the node works with.
    """

    def __init__(
        self,
        access: CardanoAccess,
        network: Network,
        clock: Clock,
        folder: Path,
        *,
        wants_peers: bool = False,
    ) -> None:
        """Set `wants_peers` to ask for the relays of pools as well; `on_peers` is then called with each list."""
        self.on_peers: list[Callable[[LedgerPeers], None]] = []
        self._peers: LedgerPeers | None = None
        self._access = access
        self._network = network
        self._clock = clock
        self._path = folder / STAKE_FILE
        self._ledger = LedgerWatch(access.network_magic, access.genesis, wants_peers=wants_peers)
        self._record: StakeRecord | None = None
        self._said: str | None = None

    @property
    def is_ready(self) -> bool:
        return self._record is not None

    @property
    def kes_evolutions_max(self) -> int:
        """Evolutions of a key; 0 before the first stake, when the value is not known."""
        return 0 if self._record is None else self._record.kes_evolutions_max

    @property
    def record(self) -> StakeRecord | None:
        """Return the stake in force with its epoch; None before the first."""
        return self._record

    def stake(self, pool_id: PoolId) -> int | None:
        return None if self._record is None else self._record.stakes.get(pool_id)

    @property
    def pool_count(self) -> int:
        return 0 if self._record is None else len(self._record.stakes)

    @property
    def fault_text(self) -> str | None:
        return self._ledger.trouble

    @property
    def not_ready_reason(self) -> str | None:
        return self._ledger.readiness(self._clock.unix_s())

    @property
    def works_with(self) -> str:
        return self._ledger.works_with(self._clock.unix_s())

    def load(self) -> None:
        """Take the stake of an earlier process, if there is one. A file that cannot be used is reported and
        ignored."""
        if not self._path.exists():
            return
        try:
            content, _ = read_small_file(self._path, STAKE_FILE_BYTES_MAX, "the kept stake")
            reason = self._ledger.restore(decode_record(content))
        except (StorageError, ConfigError) as error:
            reason = error.text
        if reason is not None:
            log.warning("kept stake not used", extra={"file": str(self._path), "reason": reason})
            return
        self._record = self._ledger.record
        log.info("kept stake in use", extra={"detail": self.works_with})

    async def watch(self) -> None:
        """Ask the cardano-node until cancelled."""
        while True:
            await asyncio.sleep(await self._converse())

    async def _converse(self) -> float:
        """Ask on one connection for as long as it lasts; return the seconds until the next one."""
        try:
            client = await connect_state_query(self._network, self._access.socket, self._access.network_magic)
            try:
                await self._ask_rounds(client)
            finally:
                with contextlib.suppress(StagepostError):
                    await client.close()
        except StagepostError as error:
            text = f"cardano-node at {self._access.socket}: {error.text}"
            pause_s = self._ledger.lost(text, is_refusal=isinstance(error, HandshakeRefused))
            self._note_record()
            self._say(text, code=str(error.code), advice=error.advice)
            return pause_s
        except Exception:
            # The boundary of a task: a bug in one conversation must not end all later ones.
            log.exception("conversation with the cardano-node failed")
            return self._ledger.lost("a fault of this node, which its log describes", is_refusal=True)
        return 0.0

    async def _ask_rounds(self, client: StateQueryClient) -> None:
        self._ledger.connected(client.version)
        if self._ledger.lacks_peers_query:
            log.warning("ledger peers not used", extra={"reason": "the cardano-node is older than 10.7"})
        while True:
            pause_s = await self._ask_round(client)
            self._note_record()
            self._note_peers()
            self._say(self._ledger.trouble)
            if await client.has_ended_within(pause_s):
                raise TransportError("it closed the connection")

    async def _ask_round(self, client: StateQueryClient) -> float:
        await client.acquire()
        questions = self._ledger.round(self._clock.unix_s)
        try:
            step = next(questions)
            while True:
                if isinstance(step, ReacquireTip):
                    await client.acquire()
                    step = next(questions)
                else:
                    step = questions.send(await client.ask(step))
        except StopIteration as ended:
            await client.release()
            pause_s: float = ended.value
            return pause_s

    def _note_record(self) -> None:
        """Put a new record in force and on disk."""
        record = self._ledger.record
        if record is self._record:
            return
        self._record = record
        if record is None:
            log.warning("stake of another network dropped", extra={"file": str(self._path)})
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            return
        try:
            replace_durably(Files(), self._path, encode_record(record))
        except OSError as error:
            log.error("stake not kept", extra={"file": str(self._path), "reason": error.strerror})
        log.info("stake taken", extra={"detail": self.works_with, "epoch": record.epoch})

    def _note_peers(self) -> None:
        peers = self._ledger.peers
        if peers is None or peers is self._peers:
            return
        self._peers = peers
        for told in self.on_peers:
            told(peers)

    def _say(self, trouble: str | None, *, code: str = "", advice: str = "") -> None:
        """Log a trouble once, and its end."""
        if trouble == self._said:
            return
        self._said = trouble
        if trouble is None:
            log.info("cardano-node answers", extra={"detail": self.works_with})
        else:
            detail = {"reason": trouble, "works_with": self.works_with, "code": code, "advice": advice}
            log.warning("cardano-node cannot be asked", extra=detail)
