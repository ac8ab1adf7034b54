"""Follower of the chain: final blocks come from our own agreement, by push or by asking, are proved, and go
to the ledger.

    follower = ChainFollower(genesis, store, public_keys, own_key, clock, random, on_events)
    overlay = OverlayLinks(end, listener, follower.overlay_id, place, members)   # in the order of public_keys
    overlay.start(follower.board)
    follower.start(overlay)
    follower.ledger                       # EmbeddedLedger: accounts, sessions, history
    on_events(events)                     # what ledger.events() returns, in order, after every step
    await follower.close()                # closes the store; the owner closes the overlay

`public_keys` are those of all nodes that have links for the chain: every validator of the known sets, and
full nodes. A full node is a follower and nothing else; a `ChainValidator` has a follower inside. After a
restart the follower does not report stored blocks again: `ledger.history` has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from stagepost.chain.agreement.messages import FinalBlock, decode_final_block
from stagepost.chain.declined import Switches
from stagepost.chain.following import EVIDENCE_MAX, CertifiedFault, OnMaster
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import History, KeptBlock, Snapshot, after
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.node.final_proof import OTHER_BRANCH, FinalChain, final_block, kept_block
from stagepost.chain.node.following_messages import (
    BLOCKS_BYTES_MAX,
    BLOCKS_MAX,
    SESSIONS_ASKED_MAX,
    Final,
    Finals,
    GetFinals,
    decode_final,
    decode_finals,
    decode_get_finals,
)
from stagepost.chain.node.store import ChainStore
from stagepost.chain.proofs.proof_files import write_checkpoint
from stagepost.chain.proofs.proof_making import SealBook
from stagepost.chain.snapshots import restored, snapshot_of
from stagepost.errors import RemoteProtocolError, StagepostError, StorageError
from stagepost.ground.loop.clock import Clock
from stagepost.remp.ledger import LedgerEvent, LedgerSession, MasterApplied
from stagepost.remp.links.overlay import Overlay
from stagepost.remp.links.switchboard import Switchboard
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.remp.shard import BlockId


class SnapshotKeeper:
    """Takes a snapshot when sessions rotate, and gives it to the store when no message from before it can
    matter any more: a restart from it must still learn of every block that could hold a living message.
    `seals`: the key blocks of a node that makes proofs; None at other nodes.
    """

    def __init__(self, history: History, seals: SealBook | None = None) -> None:
        self._history = history
        self._seals = seals
        self._taken: deque[tuple[int, Snapshot]] = deque()

    def session_rotated(self, ledger: EmbeddedLedger) -> None:
        """Take a snapshot for each catchain of the masterchain; keep the youngest that is old enough."""
        catchain = ledger.master.catchain_seqno
        if self._taken and self._taken[-1][0] == catchain:
            return
        snapshot = snapshot_of(ledger)
        if self._seals is not None:
            snapshot = msgspec.structs.replace(snapshot, checkpoint=write_checkpoint(self._seals.newest))
        self._taken.append((catchain, snapshot))
        due: Snapshot | None = None
        while self._taken and self._taken[0][0] + CATCHAINS_OF_LIFE < catchain:
            due = self._taken.popleft()[1]
        if due is None:
            return
        if self._seals is not None:
            # A key block may be sealed a little after the snapshot: by now all before it are.
            parts = tuple(part.encode() for part in self._seals.key_blocks.values())
            due = msgspec.structs.replace(due, key_blocks=parts)
        self._history.keep_snapshot(due)


log = logging.getLogger(__name__)

COMMITTED_MAX = 4_096
"""Blocks, at most, that we know to be in a final master block; none waits for longer than a few master
blocks.
"""

ARCHIVE_READS_MAX = 4
"""Answers, at most, that wait for the archive; a node that asks beyond them asks again a second later."""

ENDED_MAX = 256
"""Ended sessions, at most, whose last blocks our own agreement may still report."""

OnEvents = Callable[[Sequence[LedgerEvent]], None]


class FollowerOptions(msgspec.Struct, frozen=True):
    """All times are in seconds. `ask_every_s`: interval at which a peer is asked for blocks that we may have
    missed; `hurry_s`: the wait instead, when a block that is here waits for one that is not.
    """

    ask_every_s: float = 1.0
    hurry_s: float = 0.1
    query_timeout_s: float = 2.0


class FollowerCounters(msgspec.Struct):
    pushed: int = 0
    taken: int = 0
    asked: int = 0
    answered: int = 0
    refused: int = 0
    passed_over: int = 0
    """Sessions of shards that made a block final which cannot be."""


class ChainFollower:
    def __init__(
        self,
        genesis: Genesis,
        store: ChainStore,
        public_keys: Sequence[bytes],
        own_key: bytes,
        clock: Clock,
        random: Random,
        on_events: OnEvents = lambda events: None,
        options: FollowerOptions | None = None,
        switches: Switches | None = None,
        on_master: OnMaster = lambda kept, applied: None,
        seals: SealBook | None = None,
    ) -> None:
        self.genesis = genesis
        self.store = store
        self.overlay_id = genesis.hash
        self.ledger = restored(genesis, store, switches, on_master)
        self.board = Switchboard(public_keys, own_key)
        self.counters = FollowerCounters()
        self.fault: StagepostError | None = None
        """Why nothing is taken in any more: a certified block that cannot be."""
        self.chains: dict[bytes, FinalChain] = {}
        self._ended: dict[bytes, FinalChain] = {}
        self._keys_of: dict[bytes, tuple[bytes, ...]] = {}
        self._rivals: dict[bytes, FinalChain] = {}
        self._accused: dict[bytes, None] = {}
        self._doubted: set[bytes] = set()
        self._public_keys = tuple(public_keys)
        self._own = self._public_keys.index(own_key)
        self._clock = clock
        self._random = random
        self._on_events = on_events
        self._options = options or FollowerOptions()
        self._snapshots = SnapshotKeeper(store, seals)
        store.on_error = self._disk_failed
        self._committed: dict[BlockId, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: set[int] = set()
        self._reading: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        for session in (self.ledger.master_session(), *self.ledger.sessions()):
            self._open(session)

    def start(self, overlay: Overlay) -> None:
        """Start to follow over `overlay`. No event may come in before."""
        self.store.begin()
        self.board.start(overlay)
        self._channel = self.board.open(self.overlay_id, self._public_keys, self)
        self._ask_after(self._options.hurry_s)

    def add_member(self, public_key: bytes) -> None:
        """Follow the chain with a further member, which the overlay has behind the others."""
        self._public_keys += (public_key,)
        place = self.board.add_member(public_key)
        self._channel.set_peer(place, place)

    def _disk_failed(self, error: StorageError) -> None:
        log.warning("the chain is not written", extra={"code": error.code, "reason": error.text})

    def stop(self) -> None:
        """Ask nothing, report nothing and accept nothing any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self.board.stop()

    async def close(self) -> None:
        self.stop()
        await self.store.close()

    # From our own agreement

    def agreed(self, number: int, block: FinalBlock) -> None:
        """Take the next final block of a session that we are a member of."""
        session_id = block.certificate.session_id
        # One that comes behind the end of its session may prove the session's last block.
        chain = self.chains.get(session_id) or self._ended.get(session_id)
        if chain is not None and number <= chain.count:
            self._compare(None, Final(session_id, number, block.encode()))
        elif chain is not None:
            self._feed(chain.agreed(number, block))

    def push(self, number: int, block: FinalBlock, but: frozenset[bytes]) -> None:
        """Push the block to every linked peer except `but`, which have it in other ways."""
        frame = Final(block.certificate.session_id, number, block.encode()).encode()
        for place, key in enumerate(self._public_keys):
            if place != self._own and key not in but:
                self.counters.pushed += self._channel.push(place, frame)

    # From others

    def pushed(self, peer: int, frame: bytes) -> None:
        final = decode_final(frame)
        if not self._is_stopped and not self._take(peer, final):
            self._ask_after(0.0, peer)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if self._is_stopped:
            return
        self.counters.answered += 1
        wanted = decode_get_finals(query)
        if len(self._reading) < ARCHIVE_READS_MAX and self._needs_archive(wanted):
            task = asyncio.get_running_loop().create_task(self._answer_from_archive(wanted, reply))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        else:
            reply(self._answer(wanted).encode())

    def linked(self, peer: int) -> None:
        if not self._is_stopped:
            self._ask(peer)

    # Asking

    @property
    def is_waiting(self) -> bool:
        """Return whether a final block is here that other blocks must come before."""
        kept = self.store.of_session
        return any(chain.count > len(kept(session_id)) for session_id, chain in self.chains.items())

    def _ask_after(self, seconds: float, peer: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._wake, peer)

    def _wake(self, peer: int | None) -> None:
        self._timer = None
        others = [place for place in range(len(self._public_keys)) if place != self._own]
        if others:
            self._ask(self._random.choice(others) if peer is None else peer)
            self._ask_after(self._options.hurry_s if self.is_waiting else self._options.ask_every_s)

    def _ask(self, peer: int) -> None:
        if peer in self._asking or self.fault is not None:
            return
        self._asking.add(peer)
        self.counters.asked += 1
        places = tuple((session_id, self._first_wanted(session_id)) for session_id in self.chains)
        self._doubted.clear()
        if len(places) > SESSIONS_ASKED_MAX:
            places = tuple(self._random.sample(places, SESSIONS_ASKED_MAX))
        query = GetFinals(places).encode()
        self._channel.ask(
            peer, query, lambda answer: self._answered(peer, answer), self._options.query_timeout_s
        )

    def look_back(self) -> None:
        """Ask for blocks that should be here and are not: others may have other ones than we have."""
        following = self.ledger.following
        self._doubted |= {one for one, chain in following.chains.items() if chain.final} - set(
            following.evidence
        )
        if self._doubted:
            self._ask_after(self._options.hurry_s)

    def _first_wanted(self, session_id: bytes) -> int:
        """Return the number of the first block to ask for; in a session in doubt, of the first that is not committed."""
        chain = self.ledger.chain(session_id)
        if session_id not in self._doubted or chain is None:
            return self.chains[session_id].next_number
        kept = self.store.of_session(session_id)
        return len(kept) - len(after(kept, chain.base_hash)) + 1

    def _answered(self, peer: int, answer: bytes | None) -> None:
        self._asking.discard(peer)
        if self._is_stopped or answer is None:
            return
        try:
            blocks = decode_finals(answer).blocks
        except RemoteProtocolError as error:
            self._refuse(peer, error)
            return
        taken = self.counters.taken
        for final in blocks:
            self._take(peer, final)
        if self.counters.taken > taken:
            self._ask(peer)  # the peer knows more, so another question is worth its while
        elif not blocks:
            for chain in self.chains.values():
                chain.forget_pending()

    def _answer(self, query: GetFinals) -> Finals:
        found: list[Final] = []
        for session_id, number in query.places:
            if _fill(found, session_id, number, self.store.of_session(session_id)[number - 1 :]):
                break
        return Finals(tuple(found))

    def _needs_archive(self, query: GetFinals) -> bool:
        """Return whether a node that joins asks for sessions that ended so long ago that the store does not hold them."""
        return self.store.has_archive and any(
            session_id not in self.chains and not self.store.of_session(session_id)
            for session_id, _ in query.places
        )

    async def _answer_from_archive(self, query: GetFinals, reply: Callable[[bytes], None]) -> None:
        found: list[Final] = []
        for session_id, number in query.places:
            blocks = self.store.of_session(session_id)[number - 1 :] or await self.store.read_archive(
                session_id, number - 1, BLOCKS_MAX, BLOCKS_BYTES_MAX
            )
            if _fill(found, session_id, number, blocks):
                break
        if not self._is_stopped:
            reply(Finals(tuple(found)).encode())

    # Taking in

    def _take(self, peer: int, final: Final) -> bool:
        """Take a final block of a peer. Return False if blocks before it are missing."""
        chain = self.chains.get(final.session_id)
        if chain is None:
            return True  # of a session that has ended, or that we shall hear of
        if final.number <= chain.count:
            self._compare(peer, final)
            return True
        before = chain.next_number
        try:
            believed = chain.offered(final.number, final.record, self._committed)
        except RemoteProtocolError as error:
            if error.reason == OTHER_BRANCH:
                self._doubt(peer, final.session_id)
            else:
                self._refuse(peer, error)
            return True
        if believed is None:
            return False
        self.counters.taken += chain.next_number > before
        self._feed(believed)
        return True

    def _doubt(self, peer: int, session_id: bytes) -> None:
        """Ask a peer for its blocks of a session from the last committed one on: it has other ones than we have."""
        if self.ledger.chain(session_id) is not None and session_id not in self.ledger.following.evidence:
            self._doubted.add(session_id)
            self._ask_after(0.0, peer)

    def _compare(self, peer: int | None, final: Final) -> None:
        """Compare a block, of a peer or of our own agreement, with the one that is here at its place. A second one that
        is final is evidence against its session; whoever passes it on may be as honest as we are.
        """
        session_id, place = final.session_id, final.number - 1
        kept = self.store.of_session(session_id)
        following = self.ledger.following
        if place >= len(kept) or session_id not in following.chains or session_id in following.evidence:
            return
        block = decode_final_block(final.record)
        rival = self._rivals.get(session_id)
        if block.certificate.block == kept[place].candidate and rival is None:
            return
        if rival is None or not rival.count < final.number <= rival.next_number:
            rival = self._rivals[session_id] = self._chain_after(session_id, kept[:place])
        here = kept[rival.count :]
        try:
            believed = rival.offered(final.number, final.record) or []
        except RemoteProtocolError as error:
            if error.reason != OTHER_BRANCH and peer is not None:
                self._refuse(peer, error)
            return
        pairs = zip(believed, here, strict=False)
        other = next((one for one, ours in pairs if one.certificate.block != ours.candidate), None)
        if other is not None:
            following.accuse(CertifiedFault(kept_block(other), "another block is final at its place"))
            self._reopen()

    def _refuse(self, peer: int, error: RemoteProtocolError) -> None:
        self.counters.refused += 1
        self._channel.refuse(peer, error.reason or "Malformed", error.text)

    def _feed(self, blocks: Sequence[FinalBlock]) -> None:
        for block in blocks:
            if self.fault is not None:
                return
            kept = kept_block(block)
            try:
                self.ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)
            except StagepostError as error:
                self.fault = error
                log.error("the chain cannot be followed any more", extra={"reason": error.text})
                return
            self._reopen()
            self._note_commits(kept.session_id, kept.payload)
            self.tell()
        if blocks:
            self._settle()

    def _reopen(self) -> None:
        """Begin anew with the stored blocks of sessions that liars hold, and show everybody the evidence: who knows it
        proposes nothing of such a session, so nobody waits for blocks that others do not have.
        """
        following = self.ledger.following
        while following.to_reopen:
            session_id = following.to_reopen.pop()
            chain, fault = self.chains.get(session_id), following.evidence.get(session_id)
            if chain is None or fault is None:
                continue
            self._rivals.pop(session_id, None)
            kept = self.store.of_session(session_id)
            self.chains[session_id] = self._chain_after(session_id, kept, is_held=True)
            if session_id in self._accused:
                continue
            self._accused[session_id] = None
            while len(self._accused) > EVIDENCE_MAX:
                del self._accused[next(iter(self._accused))]
            self.counters.passed_over += 1
            log.error(
                "a session made a block final that cannot be; its work is passed over",
                extra={"session": session_id.hex(), "reason": fault.reason},
            )
            block = final_block(fault.kept)
            number = 1 + next(
                (place for place, one in enumerate(kept, start=1) if one.candidate == block.candidate.parent),
                0,
            )
            self.push(number, block, frozenset())

    def _note_commits(self, session_id: bytes, payload: bytes) -> None:
        """Note the shard blocks that a master block holds: while they wait, it proves them."""
        if payload and session_id == self.ledger.master.session.session_id:
            for commit in decode_master_block(payload).commits:
                self._committed |= dict.fromkeys(commit)
            while len(self._committed) > COMMITTED_MAX:
                del self._committed[next(iter(self._committed))]

    def _settle(self) -> None:
        if self.is_waiting:
            for chain in list(self.chains.values()):
                self._feed(chain.settle(self._committed))
            self._ask_after(self._options.hurry_s)

    def tell(self) -> None:
        """Report the ledger's events to the part above, and open or close sessions accordingly."""
        events = self.ledger.events()
        while events:
            for event in events:
                if isinstance(event, MasterApplied):
                    self._applied(event)
            self._on_events(events)
            events = self.ledger.events()

    def _applied(self, event: MasterApplied) -> None:
        for session_id in event.ended:
            chain = self.chains.pop(session_id, None)
            self._keys_of.pop(session_id, None)
            self._rivals.pop(session_id, None)
            if chain is not None:
                self._ended[session_id] = chain
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        for session in event.started:
            self._open(session)
        if event.started:
            self._snapshots.session_rotated(self.ledger)

    def _open(self, session: LedgerSession) -> None:
        self._keys_of[session.session_id] = session.public_keys
        kept = self.store.of_session(session.session_id)
        self.chains[session.session_id] = self._chain_after(session.session_id, kept)

    def _chain_after(
        self, session_id: bytes, kept: Sequence[KeptBlock], *, is_held: bool = False
    ) -> FinalChain:
        """Return the final blocks of a session, of which `kept` are here."""
        last = final_block(kept[-1]) if kept else None
        return FinalChain(
            session_id,
            self._keys_of[session_id],
            count=len(kept),
            top=None if last is None else last.certificate.block,
            slot=0 if last is None else last.candidate.slot,
            is_held=is_held,
        )


def _fill(found: list[Final], session_id: bytes, number: int, blocks: Sequence[KeptBlock]) -> bool:
    """Add blocks of a session, the first of them with `number`, to an answer; return whether the answer is full."""
    size = sum(len(one.record) for one in found)
    for place, kept in enumerate(blocks, start=number):
        record = final_block(kept).encode()
        size += len(record)
        if found and (len(found) >= BLOCKS_MAX or size > BLOCKS_BYTES_MAX):
            return True
        found.append(Final(session_id, place, record))
    return False
