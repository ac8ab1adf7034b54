"""Full node over real links and disks: follows the chain, sends messages to validators, writes the statuses topic.

    node = await start_full_node(network, seed, data)
    node.full_node.submit(message)
    node.read_messages()                   # also takes what others write to stagepost.remp.messages in its folder
    await node.take_deliveries(transport)  # also takes what comes on that topic of reliable delivery
    await node.close()

The data folder holds `chain/`, `topics/`, `genesis.tl`, `validator-sets.json`, `complaints.jsonl` and `challenges.jsonl` if
there are any, and while the node runs `full-node.socket` for programs and `full-node.json`, which names the socket. After a
restart the node finds messages without an end on the statuses topic.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import msgspec

from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.node.store import open_chain_store
from stagepost.chain.proofs.proof_making import ProofMaker
from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.shell.receiver import Receiver
from stagepost.delivery.transport import Transport
from stagepost.errors import StorageError
from stagepost.full_node.complaints import ChallengeReport, Complaint
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.from_delivery import DeliveryIntake
from stagepost.full_node.from_topic import GROUP, MESSAGES_TOPIC, MessageIntake
from stagepost.full_node.full_node import FullNode, OnStatus
from stagepost.full_node.intake_desk import IntakeDesk
from stagepost.full_node.kafka import KafkaBridge, require_kafka
from stagepost.full_node.known_sets import KnownSets, SessionLog
from stagepost.full_node.links import ChainLinkEvents, DiallingFullNodeLinks
from stagepost.full_node.local_server import LocalIntake, serving_programs
from stagepost.full_node.network import FILE_MODE, MEMBERS_EVERY_S, RempNetwork, WatchedNetworkFile
from stagepost.full_node.node_health import LOG_NAME, NetworkMembers, log_sessions
from stagepost.full_node.owed_writes import LinesFile, OwedWrites
from stagepost.full_node.proof_keeping import OnProved, ProofKeeper
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.files.audit import record_action
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.running_nodes import FULL_NODE_FILE, FullNodeFacts
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.identifiers import PROOFS_TOPIC, LinkEncryption
from stagepost.ground.loop.clock import Clock, SystemClock
from stagepost.ground.net.network import SocketNetwork
from stagepost.ground.signatures.verifier import Verifier
from stagepost.remp.ledger import LedgerEvent, MasterApplied
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import MESSAGE_TIMEOUT_MS, SETS_FILE
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.topics.kafka.admin import KafkaSettings
from stagepost.topics.log.file_topic import create_topic
from stagepost.trace.kept_proofs import GENESIS_FILE

log = logging.getLogger(__name__)

CHAIN_FOLDER = "chain"
COMPLAINTS_FILE = "complaints.jsonl"
CHALLENGES_FILE = "challenges.jsonl"
INBOX_FOLDER = "inbox"
DELIVERIES_AT_ONCE = 256
"""Messages of one sender at a time that validators have not answered for."""


class RunningFullNode:
    """Full node of one data folder. `watchers` hear of every status that the topic holds on disk, `end_watchers` of every
    end that a proof on the topic shows, `challenge_watchers` of what became of each challenge."""

    def __init__(
        self,
        network: RempNetwork,
        end: OurEnd,
        data: Path,
        listener: LinkListener,
        on_status: OnStatus,
        message_timeout_ms: int,
        chain_keep_ms: int | None = None,
        network_file: Path | None = None,
    ) -> None:
        self.watchers: list[OnStatus] = []
        self.end_watchers: list[OnProved] = []
        self.challenge_watchers: list[Callable[[ChallengeReport], None]] = []
        self.data = data
        self.members = NetworkMembers(network)
        self._network_file = WatchedNetworkFile(network_file, network)
        self._members_timer: asyncio.TimerHandle | None = None
        self._on_status = on_status
        self._network_magic = network.network_magic
        self._programs = AsyncExitStack()
        self._facts: FullNodeFacts | None = None
        make_private(data, "data folder", advice="choose another folder with --data")
        known_sets = KnownSets(
            [member.key for member in network.full_nodes],
            message_timeout_ms=message_timeout_ms,
            members=network.members,
        )
        self._session_log = SessionLog(data, int(end.clock.unix_s() * 1_000), known_sets, _disk_refused)
        genesis = network.chain
        store = open_chain_store(
            data / CHAIN_FOLDER, genesis, has_archive=True, archive_keep_ms=chain_keep_ms
        )
        replace_file(data / GENESIS_FILE, genesis.encode(), FILE_MODE)
        self._proofs_topic = create_topic(data, PROOFS_TOPIC)
        writer = self._proofs_topic.writer(retry_s=RETRY_S, on_error=_disk_refused)
        maker = ProofMaker(genesis, store.snapshot())
        self.proofs = ProofKeeper(maker, writer)
        self.follower = ChainFollower(
            genesis,
            store,
            network.public_keys,
            end.public_key,
            end.clock,
            Random(end.random.getrandbits(64)),
            self._chain_spoke,
            on_master=lambda kept, applied: self.proofs.take(final_block(kept), applied),
            seals=maker.seals,
        )
        place = network.place_of(end.public_key)
        self._overlay = OverlayLinks(end, listener, self.follower.overlay_id, place, network.link_members)
        self._listener = listener
        self.links = DiallingFullNodeLinks(end)
        self._validators = {member.key: member.address for member in network.validators}
        self._topic = create_topic(data, STATUSES_TOPIC)
        self.statuses = StatusTopic(self._topic.writer(retry_s=RETRY_S, on_error=_disk_refused))
        self.statuses.on_full = self.links.hold
        self._owed = OwedWrites()
        self._complaints = LinesFile(data / COMPLAINTS_FILE)
        self._challenges = LinesFile(data / CHALLENGES_FILE)
        self.kafka: KafkaBridge | None = None
        self._intake: MessageIntake | None = None
        self._deliveries: DeliveryIntake | None = None
        self._receiver: Receiver | None = None
        self._clock = end.clock
        self._verifier = Verifier()
        self._message_timeout_ms = message_timeout_ms
        self.full_node = FullNode(
            end.seed,
            self.follower.ledger,
            self.links,
            self.statuses,
            known_sets,
            end.clock,
            Random(end.random.getrandbits(64)),
            on_status=self._heard,
            sets_changed=self._session_log.changed,
            complain=self._complain,
            challenged=self._challenged,
            record_challenge=self._record_challenge,
            verifier=self._verifier,
            disk_fault=lambda: self.disk_fault,
            expect=self.proofs.expect,
        )
        self.full_node.on_settled = self._settled
        self.desk = IntakeDesk(self.full_node, data, self.proofs)
        self.statuses.written = self.desk.written
        self.proofs.on_proved = self._proved

    @property
    def disk_fault(self) -> StorageError | None:
        """Return why the data folder cannot be written now; None while every write goes well."""
        return (
            self.statuses.fault
            or self.follower.store.fault
            or self.proofs.fault
            or self._owed.fault
            or self._session_log.fault
        )

    def start(self) -> None:
        now_ms = int(self._clock.unix_s() * 1_000)
        full_nodes = {self.full_node.source_id, *self.full_node.sets.full_nodes}
        life_ms = 2 * self._message_timeout_ms
        self._owed.do(SETS_FILE, lambda: self.full_node.known_sets.write(self.data / SETS_FILE))
        self.full_node.start(earlier_life(self._topic.reader(), now_ms, life_ms, full_nodes))
        configuration = self.follower.ledger.master.configuration
        self.proofs.start(self._proofs_topic.reader(), now_ms - 2 * configuration.remembered_ms)
        members = self._network_file
        events = ChainLinkEvents(
            self.follower.board, self.links, lambda peer: members.network.members[peer].key
        )
        self._overlay.start(events)
        self.follower.start(self._overlay)
        self.links.start(self.full_node)
        self.links.set_validators(self._validators)
        self._look_for_members()

    def _look_for_members(self) -> None:
        """Take up the members that the operator has added to the network file."""
        self._members_timer = asyncio.get_running_loop().call_later(MEMBERS_EVERY_S, self._look_for_members)
        for member in self._network_file.added():
            log.info("member added", extra={"member": member.name, "address": str(member.address)})
            self.members.add(member)
            self.follower.add_member(member.key)
            self._overlay.add_member(LinkMember(member.key, member.address))
            self.full_node.add_member(member)
            self._owed.do(SETS_FILE, lambda: self.full_node.known_sets.write(self.data / SETS_FILE))
            if member.is_validator:
                self._validators[member.key] = member.address
                self.links.set_validators(self._validators)

    def cut_links(self, public_keys: Collection[bytes]) -> None:
        """Keep no links to these validators, and dial all others: for demonstrations of lost links."""
        self.links.set_validators(
            {key: address for key, address in self._validators.items() if key not in public_keys}
        )

    async def serve_programs(self) -> None:
        """Serve the socket in the data folder to programs of the node's user; the note there names the socket."""
        intake = LocalIntake(self.desk, self._network_magic)
        path = await self._programs.enter_async_context(serving_programs(intake, self.data, SocketNetwork()))
        self._programs.callback((self.data / FULL_NODE_FILE).unlink, missing_ok=True)
        started_ms = int(self._clock.unix_s() * 1_000)
        sets_path = str((self.data / SETS_FILE).absolute())
        self._facts = FullNodeFacts(os.getpid(), str(path), self._network_magic, sets_path, started_ms)
        self._facts.write(self.data)

    def tell_http(self, address: str) -> None:
        """Write to the note the address at which the desk is served over HTTP."""
        assert self._facts is not None, "programs are served first"
        self._facts = msgspec.structs.replace(self._facts, http=address)
        self._facts.write(self.data)

    def read_messages(self) -> None:
        """Submit the records of the topic of messages in the data folder, as it grows."""
        topic = create_topic(self.data, MESSAGES_TOPIC)
        self._intake = MessageIntake(topic.reader(), topic.positions(GROUP), self.full_node)
        self._intake.start()

    def use_kafka(self, settings: KafkaSettings) -> None:
        """Send statuses to a broker as well, and take messages that others write there."""
        self.kafka = KafkaBridge(settings, self._topic, self.full_node)
        self.kafka.start()

    async def take_deliveries(self, transport: Transport) -> None:
        """Take messages from a network of reliable delivery. The node is a critical peer: it confirms what validators have."""
        self._deliveries = DeliveryIntake(self.full_node)
        # The node submits each message when it comes; only the answers wait for validators.
        config = ReceiverConfig(
            inbox_path=str(self.data / INBOX_FOLDER), handlers_per_sender=DELIVERIES_AT_ONCE
        )
        over = self._deliveries.over(transport)
        self._receiver = Receiver(over, self._deliveries.handlers, config=config, clock=self._clock)
        await self._receiver.start()

    async def stop_deliveries(self) -> None:
        """Stop taking deliveries, before the transport ends."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await receiver.stop()

    def _chain_spoke(self, events: Sequence[LedgerEvent]) -> None:
        self.full_node.heard(events)
        for event in events:
            if isinstance(event, MasterApplied):
                log_sessions(LOG_NAME, self.members, event.started, event.ended)

    def _heard(self, receipt: Receipt) -> None:
        for watcher in self.watchers:
            watcher(receipt)
        self._on_status(receipt)

    def _proved(self, message_id: bytes, end: ProvedEnd) -> None:
        self.desk.proved(message_id, end)
        for watcher in self.end_watchers:
            watcher(message_id, end)

    def _settled(self, receipt: Receipt) -> None:
        """Confirm a delivery by a status that is on disk: its sender does not send it again."""
        if self._deliveries is not None:
            self._deliveries.heard(receipt)

    def _complain(self, complaint: Complaint) -> None:
        log.warning(
            "validator broke a promise",
            extra={"kind": str(complaint.kind), "key_id": complaint.accused.hex()},
        )
        self._complaints.add(complaint.to_json())
        self._owed.do(COMPLAINTS_FILE, self._complaints.write)

    def _record_challenge(self, accused: bytes, message_id: bytes) -> None:
        """Write to the audit file that this node asks for a challenge."""
        what = f"challenge of {self.members.name_of_id(accused)} about message {message_id.hex()}"
        own_name = self.members.name_of(self.full_node.public_key)
        record_action(self.data, what, through="link", who=own_name)

    def _challenged(self, report: ChallengeReport) -> None:
        said = {
            "outcome": str(report.outcome),
            "validator": self.members.name_of_id(report.accused),
            "message_id": report.known.message_id.hex(),
            "known": report.known.number,
            "newest": None if report.newest is None else report.newest.number,
        }
        log.warning("validator challenged", extra=said)
        self._challenges.add(report.to_json(self.full_node.now_ms))
        self._owed.do(CHALLENGES_FILE, self._challenges.write)
        for watcher in self.challenge_watchers:
            watcher(report)

    async def close(self) -> None:
        if self._members_timer is not None:
            self._members_timer.cancel()
        await self._programs.aclose()
        await self.stop_deliveries()
        if self._intake is not None:
            await self._intake.close()
        if self.kafka is not None:
            await self.kafka.stop_taking()
        self.full_node.close()
        await self.links.close()
        self.follower.stop()
        await self._overlay.close()
        await self.follower.close()
        await self._listener.close()
        await self._verifier.close()
        await self.statuses.close()
        await self.proofs.close()
        await self._session_log.close()
        self._owed.close()
        if self.kafka is not None:
            await self.kafka.close()


async def start_full_node(
    network: RempNetwork,
    seed: bytes,
    data: Path,
    *,
    listener: LinkListener | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    on_status: OnStatus = lambda receipt: None,
    message_timeout_ms: int = MESSAGE_TIMEOUT_MS,
    kafka: KafkaSettings | None = None,
    chain_keep_ms: int | None = None,
    network_file: Path | None = None,
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
) -> RunningFullNode:
    """Start a full node. `listener` listens already, at the address that the network has for this node. `chain_keep_ms`: for
    how long blocks stay in the archive of the chain; None for ever. `network_file`: file of the network, from which the
    running node takes further members."""
    if kafka is not None:
        make_private(data, "data folder", advice="choose another folder with --data")
        await asyncio.to_thread(require_kafka, kafka, data)
    end = our_end(network, seed, clock, random, encryption)
    if listener is None:
        listener = LinkListener(end)
        await listener.start(network.members[network.place_of(end.public_key)].address)
    node = RunningFullNode(
        network, end, data, listener, on_status, message_timeout_ms, chain_keep_ms, network_file
    )
    node.start()
    await node.serve_programs()
    if kafka is not None:
        node.use_kafka(kafka)
    return node


def _disk_refused(error: StorageError) -> None:
    """Log the first of a row of refused writes; in the thread of the topic's writer."""
    log.error("statuses wait for the disk", extra={"code": error.code, "reason": error.text})


def our_end(
    network: RempNetwork,
    seed: bytes,
    clock: Clock | None,
    random: Random | None,
    encryption: LinkEncryption,
) -> OurEnd:
    return OurEnd(
        seed,
        network.network_magic,
        SocketNetwork(),
        clock or SystemClock(),
        random or Random(seed),
        encryption=encryption,
    )
