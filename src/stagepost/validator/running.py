"""A validator over real links and disks.

    validator = await start_validator(network, seed, data)
    await validator.close()

Its folder: `chain/` and `sessions/`.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random

import msgspec

from stagepost.catchain.effects import Deliver
from stagepost.chain.master_state import PlanKind
from stagepost.chain.node.agreement_runner import Notice
from stagepost.chain.node.store import open_chain_store
from stagepost.chain.rotation import Plan
from stagepost.errors import StorageError
from stagepost.full_node.network import RempNetwork
from stagepost.full_node.running import CHAIN_FOLDER, our_end
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.loop.clock import Clock
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import Overlay, OverlayEvents, ValidatorLinks
from stagepost.remp.links.overlay_links import OverlayLinks
from stagepost.remp.queue.state import MESSAGE_TIMEOUT_S
from stagepost.validator.links import ListeningValidatorLinks
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import open_session_store
from stagepost.validator.sessions import OnSessionEvent
from stagepost.validator.validator import RempValidator

log = logging.getLogger(__name__)

SESSIONS_FOLDER = "sessions"
PLAN_EVERY_S = 0.5
SPLIT_AFTER_MS = 500


class LinkLayer:
    """The layer between a validator and its links, which here changes nothing. A devnet that shows faults
    puts its own there.
    """

    def overlay(self, overlay: Overlay) -> Overlay:
        return overlay

    def events(self, events: OverlayEvents) -> OverlayEvents:
        return events

    def links(self, links: ValidatorLinks) -> ValidatorLinks:
        return links


class RunningValidator:
    """`shards`: the wanted number of shards; the validator proposes splits until there are as many."""

    def __init__(
        self,
        network: RempNetwork,
        end: OurEnd,
        data: Path,
        listener: LinkListener,
        *,
        shards: int,
        message_timeout_s: float,
        between: LinkLayer,
    ) -> None:
        self.watchers: list[OnSessionEvent] = []
        make_private(data, "data folder", advice="choose another folder with --data")
        genesis = network.chain
        full_nodes = {member.key for member in network.full_nodes}
        self.links = ListeningValidatorLinks(end, listener, full_nodes.__contains__)
        options = SessionOptions()
        queue_options = msgspec.structs.replace(options.queue, message_timeout_s=message_timeout_s)
        chain_store = open_chain_store(data / CHAIN_FOLDER, genesis)
        session_store = open_session_store(data / SESSIONS_FOLDER)
        chain_store.on_error = session_store.on_error = _report_disk
        self.validator = RempValidator(
            genesis,
            end.seed,
            chain_store,
            session_store,
            network.public_keys,
            between.links(self.links),
            end.clock,
            Random(end.random.getrandbits(64)),
            full_node_keys={key_id(key): key for key in full_nodes},
            session_options=msgspec.structs.replace(options, queue=queue_options),
            on_notice=_report_notice,
            on_event=self._queue_spoke,
        )
        place = network.place_of(end.public_key)
        overlay_id = self.validator.chain.overlay_id
        self._overlay = OverlayLinks(end, listener, overlay_id, place, network.link_members)
        self._between = between
        self._listener = listener
        self._shards = shards
        self._clock = end.clock
        self._timer: asyncio.TimerHandle | None = None

    def _queue_spoke(self, plan: SessionPlan, event: SessionEvent) -> None:
        _report_event(plan, event)
        for watcher in self.watchers:
            watcher(plan, event)

    def start(self) -> None:
        self._overlay.start(self._between.events(self.validator.board))
        self.validator.start(self._between.overlay(self._overlay))
        self.links.start(self.validator.queues)
        self._plan()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.links.close()
        await self.validator.close()
        await self._overlay.close()
        await self._listener.close()

    def _plan(self) -> None:
        """Propose splits, the larger shards first, until there are enough."""
        self._timer = asyncio.get_running_loop().call_later(PLAN_EVERY_S, self._plan)
        chain = self.validator.chain
        shards = sorted((entry.shard for entry in chain.ledger.master.shards), key=lambda shard: shard.bits)
        missing = self._shards - len(shards)
        if missing <= 0:
            self._timer.cancel()
        elif not chain.plans:
            at_ms = int(self._clock.unix_s() * 1_000) + SPLIT_AFTER_MS
            chain.plans[:] = [Plan(PlanKind.SPLIT, shard, at_ms) for shard in shards[:missing]]


async def start_validator(
    network: RempNetwork,
    seed: bytes,
    data: Path,
    *,
    listener: LinkListener | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    shards: int = 1,
    message_timeout_s: float = MESSAGE_TIMEOUT_S,
    between: LinkLayer | None = None,
) -> RunningValidator:
    """Start a validator. `listener`: a listener that listens already, at the address that the network has for
    this validator.
    """
    end = our_end(network, seed, clock, random)
    if listener is None:
        listener = LinkListener(end)
        await listener.start(network.members[network.place_of(end.public_key)].address)
    validator = RunningValidator(
        network,
        end,
        data,
        listener,
        shards=shards,
        message_timeout_s=message_timeout_s,
        between=between or LinkLayer(),
    )
    validator.start()
    return validator


def _report_disk(error: StorageError) -> None:
    log.error("disk refused", extra={"reason": error.text})


def _report_notice(session: LedgerSession, notice: Notice) -> None:
    log.warning("agreement", extra={"session": session.session_id.hex(), "notice": str(notice)})


def _report_event(plan: SessionPlan, event: SessionEvent) -> None:
    if not isinstance(event, Deliver):
        log.warning("queue", extra={"session": plan.session_id.hex(), "notice": str(event)})
