"""A validator over real links and disks.

    validator = await start_validator(network, seed, data)
    await validator.close()

Its folder: `chain/` and `sessions/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec

from stagepost.catchain.effects import Deliver
from stagepost.chain.agreement.effects import (
    BlamedValidator,
    DisputedBlock,
    Halt,
    RecoveredVotes,
    RefusedPeer,
    StalledSlot,
)
from stagepost.chain.configuration import Configuration
from stagepost.chain.master_state import PlanKind
from stagepost.chain.node.agreement_runner import Notice
from stagepost.chain.node.own_memory import open_memory
from stagepost.chain.node.store import STORE_FILE as CHAIN_FILE
from stagepost.chain.node.store import open_chain_store
from stagepost.chain.rotation import Plan
from stagepost.errors import StorageError
from stagepost.full_node.network import MEMBERS_EVERY_S, NetworkMember, RempNetwork, WatchedNetworkFile
from stagepost.full_node.node_health import NetworkMembers, log_sessions
from stagepost.full_node.running import CHAIN_FOLDER, our_end
from stagepost.ground.files.audit import record_action
from stagepost.ground.files.data_folder import make_private, own_folder
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.loop.clock import Clock
from stagepost.ground.wire.tl import key_id
from stagepost.network.approvals import ApprovedProposals
from stagepost.remp.ledger import LedgerEvent, LedgerSession, MasterApplied
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import Overlay, OverlayEvents, ValidatorLinks
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import MESSAGE_TIMEOUT_S
from stagepost.remp.receipts.statements import AskedChallenge
from stagepost.validator.links import ListeningValidatorLinks
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import STORE_FILE as SESSIONS_FILE
from stagepost.validator.session_store import open_session_store
from stagepost.validator.sessions import OnSessionEvent
from stagepost.validator.validator import RempValidator

log = logging.getLogger(__name__)

SESSIONS_FOLDER = "sessions"
CHAIN_KEPT_MS = 86_400_000
"""Milliseconds for which a validator keeps ended blocks, at least: a full node, or another validator, that was away for so long
follows the chain again although no other full node is there.
"""

PLAN_EVERY_S = 0.5
PLAN_AHEAD_MS = 500
"""Milliseconds from the proposal of a split or merge to its moment."""


class LinkLayer(Protocol):
    """The layer that a devnet which shows faults puts between a validator and its links."""

    def overlay(self, overlay: Overlay) -> Overlay: ...

    def events(self, events: OverlayEvents) -> OverlayEvents: ...

    def links(self, links: ValidatorLinks) -> ValidatorLinks: ...


class RunningValidator:
    """`shards`: the wanted number of shards; the validator proposes splits and merges, and votes for those of others, until
    there are as many. None: it does neither."""

    def __init__(
        self,
        network: RempNetwork,
        end: OurEnd,
        data: Path,
        listener: LinkListener,
        *,
        shards: int | None,
        message_timeout_s: float,
        between: LinkLayer | None,
        network_file: Path | None = None,
    ) -> None:
        self.watchers: list[OnSessionEvent] = []
        self.data = data
        self.network = network
        self.members = NetworkMembers(network)
        self.public_key = end.public_key
        self.blamed: Counter[str] = Counter()
        self.halted: str | None = None
        make_private(data, "data folder", advice="choose another folder with --data")
        own_folder(data, end.public_key)
        genesis = network.chain
        self._full_nodes = {key_id(member.key): member.key for member in network.full_nodes}
        self.links = ListeningValidatorLinks(end, listener, lambda key: key_id(key) in self._full_nodes)
        options = SessionOptions()
        queue_options = msgspec.structs.replace(options.queue, message_timeout_s=message_timeout_s)
        is_new = not all(
            path.exists()
            for path in (data / CHAIN_FOLDER / CHAIN_FILE, data / SESSIONS_FOLDER / SESSIONS_FILE)
        )
        # The note comes before the stores: a kill between them must not leave a folder that seems to remember everything.
        memory = open_memory(data, lambda: int(end.clock.unix_s() * 1_000), is_new=is_new)
        chain_store = open_chain_store(
            data / CHAIN_FOLDER, genesis, has_archive=True, archive_keep_ms=CHAIN_KEPT_MS, makes_proofs=False
        )
        session_store = open_session_store(data / SESSIONS_FOLDER)
        self._chain_store, self._session_store = chain_store, session_store
        chain_store.on_error = session_store.on_error = _report_disk
        self.validator = RempValidator(
            genesis,
            end.seed,
            chain_store,
            session_store,
            network.public_keys,
            self.links if between is None else between.links(self.links),
            end.clock,
            Random(end.random.getrandbits(64)),
            full_node_keys=self._full_nodes,
            session_options=msgspec.structs.replace(options, queue=queue_options),
            memory=memory,
            on_notice=self._noticed,
            on_events=self._chain_spoke,
            on_event=self._queue_spoke,
            on_asked=self._record_asked,
        )
        place = network.place_of(end.public_key)
        overlay_id = self.validator.chain.overlay_id
        self.overlay = OverlayLinks(end, listener, overlay_id, place, network.link_members)
        self._between = between
        self._listener = listener
        self._shards = shards
        self.validator.chain.want_shards(shards)
        self._clock = end.clock
        self._approved = ApprovedProposals(data, network)
        self._network_file = WatchedNetworkFile(network_file, network)
        self._wanted: list[Configuration] = []
        self._timer: asyncio.TimerHandle | None = None
        self._approvals_timer: asyncio.TimerHandle | None = None

    @property
    def own_name(self) -> str:
        """Name of this validator in the network file."""
        return self.members.name_of(self.public_key)

    def _chain_spoke(self, events: Sequence[LedgerEvent]) -> None:
        for event in events:
            if isinstance(event, MasterApplied):
                log_sessions(self.own_name, self.members, event.started, event.ended)

    def _noticed(self, session: LedgerSession, notice: Notice) -> None:
        """Log what agreement noticed, with names; remember what decides on the health of this validator."""
        said: dict[str, object] = {"node": self.own_name, "session": session.session_id.hex()}
        said["notice"] = type(notice).__name__
        match notice:
            case BlamedValidator(evidence):
                name = self.members.name_of(session.public_keys[evidence.validator])
                self.blamed[name] += 1
                said |= {"validator": name, "slot": evidence.left.slot}
            case RefusedPeer(peer, rule, text):
                said |= {"validator": self.members.name_of(session.public_keys[peer]), "rule": rule}
                said["reason"] = text
            case DisputedBlock(slot, block_hash, reason):
                said |= {"slot": slot, "block": block_hash.hex(), "reason": reason}
            case StalledSlot(slot, heard, needed):
                silent = [key for index, key in enumerate(session.public_keys) if index not in heard]
                said |= {"slot": slot, "heard": len(heard), "needed": needed}
                said["not_heard"] = [self.members.name_of(key) for key in silent]
            case RecoveredVotes(slot):
                said["slot"] = slot
            case Halt(text):
                self.halted = text
                said["reason"] = text
        log.warning("agreement", extra=said)

    def _queue_spoke(self, plan: SessionPlan, event: SessionEvent) -> None:
        _report_event(plan, event)
        for watcher in self.watchers:
            watcher(plan, event)

    def _record_asked(self, full_node: bytes, asked: AskedChallenge) -> None:
        """Write to the audit file that a full node asks for a challenge, by the names of the network file."""
        accused, who = (self.members.name_of_id(one) for one in (asked.accused, full_node))
        what = f"challenge of {accused} about message {asked.last.message_id.hex()}"
        record_action(self.data, what, through="link", who=who)

    @property
    def disk_fault(self) -> StorageError | None:
        """Return why the data folder cannot be written now; None while every write goes well."""
        return self._chain_store.fault or self._session_store.fault

    def start(self) -> None:
        between, board = self._between, self.validator.board
        self.overlay.start(board if between is None else between.events(board))
        self.validator.start(self.overlay if between is None else between.overlay(self.overlay))
        self.links.start(self.validator.queues)
        self._plan()
        self._read_approvals()

    async def close(self) -> None:
        for timer in (self._timer, self._approvals_timer):
            if timer is not None:
                timer.cancel()
        await self.links.close()
        await self.validator.close()
        await self.overlay.close()
        await self._listener.close()

    def _read_approvals(self) -> None:
        """Take up the members that the operator has added to the network file. Want the configurations that the operator
        approved, from now on and after each restart; and no others.
        """
        self._approvals_timer = asyncio.get_running_loop().call_later(MEMBERS_EVERY_S, self._read_approvals)
        try:
            self.validator.remember_sessions()
        except StorageError as error:
            _report_disk(error)  # the next look writes it, and until then a restart listens once more
        for member in self._network_file.added():
            self._add_member(member)
        chain = self.validator.chain
        master = chain.ledger.master
        wanted = self._approved.wanted(master.configuration, master.last_key_block_seqno)
        if wanted != self._wanted:
            self._wanted = wanted
            chain.want_only(wanted)

    def _add_member(self, member: NetworkMember) -> None:
        log.info("member added", extra={"member": member.name, "address": str(member.address)})
        self.network = self._approved.network = self._network_file.network
        self.members.add(member)
        self.validator.add_member(member.key)
        self.overlay.add_member(LinkMember(member.key, member.address))
        if not member.is_validator:
            self._full_nodes[key_id(member.key)] = member.key

    def _plan(self) -> None:
        if self._shards is None:
            return
        self._timer = asyncio.get_running_loop().call_later(PLAN_EVERY_S, self._plan)
        chain = self.validator.chain
        now_ms = int(self._clock.unix_s() * 1_000)
        # A plan that the others want later is still ahead then: full nodes foresee the sessions that follow.
        if all(plan.at_ms <= now_ms for plan in chain.plans):
            present = [entry.shard for entry in chain.ledger.master.shards]
            chain.plans[:] = plans_towards(self._shards, present, now_ms + PLAN_AHEAD_MS)


def plans_towards(wanted: int, present: Sequence[Shard], at_ms: int) -> list[Plan]:
    """Return the splits or merges, all at `at_ms`, that bring the `present` shards nearer to the `wanted` number: splits of
    the largest shards, or merges of the smallest halves.
    """
    missing = wanted - len(present)
    if missing >= 0:
        largest = sorted(present, key=lambda shard: (shard.bits, shard.prefix))
        return [Plan(PlanKind.SPLIT, shard, at_ms) for shard in largest[:missing]]
    known = set(present)
    parents = {one.parent for one in present if one.bits and known.issuperset(one.parent.children)}
    smallest = sorted(parents, key=lambda shard: (-shard.bits, shard.prefix))
    return [Plan(PlanKind.MERGE, parent, at_ms) for parent in smallest[:-missing]]


async def start_validator(
    network: RempNetwork,
    seed: bytes,
    data: Path,
    *,
    listener: LinkListener | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    shards: int | None = None,
    message_timeout_s: float = MESSAGE_TIMEOUT_S,
    between: LinkLayer | None = None,
    network_file: Path | None = None,
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
) -> RunningValidator:
    """Start a validator. `listener`: a listener that listens already, at the address that the network has for
    this validator. `network_file`: file of the network, from which the running node takes further members.
    """
    end = our_end(network, seed, clock, random, encryption)
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
        between=between,
        network_file=network_file,
    )
    validator.start()
    return validator


def _report_disk(error: StorageError) -> None:
    log.error("disk refused", extra={"reason": error.text})


def _report_event(plan: SessionPlan, event: SessionEvent) -> None:
    if not isinstance(event, Deliver):
        log.warning("queue", extra={"session": plan.session_id.hex(), "notice": str(event)})
