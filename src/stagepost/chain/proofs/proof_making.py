"""Making of proofs from a chain that a node follows: seals of master blocks, evidence of shards, ends of messages.

final master block ─ SealBook ──────────────┐
applied master block, states of its shards ─┴─ ShardEvidence ─ end of each message that is awaited
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from stagepost.chain.accounts import Account, uid_place
from stagepost.chain.agreement.candidate import Candidate, block_hash
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.votes import VoteKind, quorum
from stagepost.chain.configuration import Configuration
from stagepost.chain.genesis import FIRST_CATCHAIN, Genesis
from stagepost.chain.hash_tree import HashTree, TreePath
from stagepost.chain.history import Snapshot
from stagepost.chain.master_block import MasterBlock, decode_master_block, last_blocks, master_root
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.master_state import decode_master_state
from stagepost.chain.message_values import NEVER, ReadMessage
from stagepost.chain.proofs.proof_files import Checkpoint, read_checkpoint
from stagepost.chain.proofs.proof_form import (
    KEY_BLOCKS_MAX,
    AbsenceProof,
    AccountProof,
    End,
    ExecutedAsEnd,
    ExecutedEnd,
    KeyBlockPart,
    KeyBlockProof,
    MasterPart,
    MasterProof,
    MessageProof,
    NeverEnd,
    OwnPart,
    ProofPath,
    Seal,
    ShardProof,
    decode_part,
)
from stagepost.chain.proofs.proof_rules import checkpoint_of, configuration_after, is_key_block
from stagepost.chain.shard_block import shard_root
from stagepost.chain.shard_blocks import AppliedBlock
from stagepost.chain.shard_state import ShardState
from stagepost.errors import LocalProtocolError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage
from stagepost.remp.shard import BlockId, Shard

UNJOINED_MAX = 1_024
"""Master blocks, at most, whose seal is known before their states, or the other way round."""

EVIDENCES_MAX = 4_096
"""Shard blocks, at most, whose states are kept to prove ends with."""

AWAITED_MAX = 200_000
"""Messages, at most, whose end is awaited; the oldest is forgotten for a further one, and asks for its proof again."""

SESSIONS_OPEN_MAX = 4
"""Sessions of the masterchain, at most, whose last blocks may still wait for their certificate."""

_HASHES_AT = 4 + 32 + 4 + 80 + 8
"""Offset, in bytes, of the five hashes at the end of a master block's root."""


class SealedMaster(msgspec.Struct, frozen=True):
    """A master block and the seal by which it is final, of a session of `validators`. `part` is what proofs share;
    `configuration` is the one by which proofs with this block are judged.
    """

    block_id: BlockId
    block: MasterBlock
    part: KeyBlockPart | MasterPart
    configuration: Configuration
    validators: int


class _Unsealed(NamedTuple):
    candidate: Candidate
    block: MasterBlock | None
    key: bytes
    catchain_seqno: int
    validators: int
    is_key_block: bool
    configuration: Configuration


class SealBook:
    """The final blocks of the masterchain in order, from the genesis or a snapshot on. `key_blocks`: parts by root hash."""

    def __init__(self, genesis: Genesis, snapshot: Snapshot | None = None) -> None:
        self.key_blocks: dict[bytes, KeyBlockPart] = {}
        self._trusted = checkpoint_of(genesis)
        self._configuration = genesis.configuration
        self._session = b""
        self._catchain_seqno = FIRST_CATCHAIN - 1
        self._open: dict[bytes, list[_Unsealed]] = {}
        self._seqno = 0
        """Number of the master block up to which all blocks were sealed in an earlier life."""
        if snapshot is not None and snapshot.checkpoint:
            self._begin_at(snapshot)

    def _begin_at(self, snapshot: Snapshot) -> None:
        """Begin behind a snapshot: the blocks up to it were sealed before it was kept."""
        master = decode_master_state(snapshot.master, snapshot.block_id)
        self._trusted = read_checkpoint(snapshot.checkpoint)
        self._configuration = master.configuration
        self._catchain_seqno = master.catchain_seqno - 1
        self._seqno = master.seqno
        for data in snapshot.key_blocks:
            part = decode_part(data)
            if isinstance(part, KeyBlockPart):
                payload = part.block.block
                self.key_blocks[decode_master_block(payload).block_id(payload).root_hash] = part

    @property
    def newest(self) -> Checkpoint:
        """The newest key block, as verifiers keep it."""
        return self._trusted

    def take(self, final: FinalBlock) -> list[SealedMaster]:
        """Take the next final block of the masterchain; return the blocks that are sealed by it, the oldest first."""
        session, payload = final.certificate.session_id, final.candidate.payload
        block = decode_master_block(payload) if payload else None
        if session not in self._open and (block is None or block.seqno <= self._seqno):
            return []
        if session not in self._open and session != self._session:
            self._session = session
            self._catchain_seqno += 1
            self._open[session] = []
            while len(self._open) > SESSIONS_OPEN_MAX:
                del self._open[next(iter(self._open))]
        waiting = self._open.get(session)
        if waiting is None:
            return []
        waiting.append(self._unsealed(final.candidate, block))
        if final.certificate.kind is not VoteKind.FINALISE:
            return []
        self._open[session] = []
        return list(self._sealed(waiting, final))

    def _unsealed(self, candidate: Candidate, block: MasterBlock | None) -> _Unsealed:
        before, key = self._configuration, self._trusted.root_hash
        is_key = block is not None and is_key_block(before, block)
        if block is not None and is_key:
            self._configuration = configuration_after(before, block)
            root_hash = block.block_id(candidate.payload).root_hash
            self._trusted = Checkpoint(
                self._trusted.network, block.seqno, root_hash, block.time_ms, self._configuration.encode()
            )
        validators = len(before.current.validators)
        return _Unsealed(candidate, block, key, self._catchain_seqno, validators, is_key, self._configuration)

    def _sealed(self, waiting: list[_Unsealed], final: FinalBlock) -> Iterator[SealedMaster]:
        steps = [(one.candidate.slot, block_hash(one.candidate.payload)) for one in waiting]
        for place, one in enumerate(waiting):
            if one.block is None:
                continue
            candidate = one.candidate
            seal = Seal(
                one.catchain_seqno,
                candidate.slot,
                candidate.parent,
                tuple(steps[place + 1 :]),
                final.certificate.signatures[: quorum(one.validators)],
            )
            block_id = one.block.block_id(candidate.payload)
            part: KeyBlockPart | MasterPart
            if one.is_key_block:
                part = KeyBlockPart(one.key, KeyBlockProof(candidate.payload, seal))
                self.key_blocks[block_id.root_hash] = part
            else:
                part = MasterPart(one.key, _master_proof(one.block, block_id, candidate.payload, seal))
            yield SealedMaster(block_id, one.block, part, one.configuration, one.validators)


def _master_proof(block: MasterBlock, block_id: BlockId, payload: bytes, seal: Seal) -> MasterProof:
    root = master_root(payload)
    last, commits, plans, configuration, state = (
        root[at : at + 32] for at in range(_HASHES_AT, len(root), 32)
    )
    return MasterProof(
        block.seqno,
        block.previous,
        block.time_ms,
        last,
        commits,
        plans,
        configuration,
        state,
        block_id.file_hash,
        seal,
    )


class ShardEvidence(msgspec.Struct, frozen=True):
    """The state of a shard in a master block that is final: every end that the state shows can be proved with it."""

    sealed: SealedMaster
    shard: ShardProof
    state: ShardState


def evidence_of(sealed: SealedMaster, last: AppliedBlock) -> ShardEvidence:
    block, block_id = last.block, last.block_id
    tree = last_blocks(commit[-1] for commit in sealed.block.commits)
    shard = ShardProof(
        ProofPath(tree.path(block_id.root_hash).siblings),
        block_id.file_hash,
        block.session_id,
        block.shard,
        block.seqno,
        block.previous,
        block.master,
        block.time_ms,
        int(block.ordering),
        shard_root(last.payload)[-64:-32],
        last.state.remembers_from_ms,
    )
    return ShardEvidence(sealed, shard, last.state)


def end_in(evidence: ShardEvidence, message: ReadMessage) -> End | None:
    """Return the end of a message that the evidence proves; None if it proves none."""
    external, state = message.external, evidence.state
    account = state.accounts.get(external.account)
    if account is not None:
        inclusion = account.recent.get(external.message_id)
        if inclusion is not None:
            return ExecutedEnd(
                external.message_id,
                external.account,
                _account_proof(state.accounts, external.account, account),
                ProofPath(account.recent.path(external.message_id).siblings),
                inclusion.catchain_seqno,
                inclusion.time_ms,
            )
    if message.expires_at_s == NEVER:
        return None
    expires_ms = message.expires_at_s * 1_000
    first_ms = expires_ms - evidence.sealed.configuration.expiry_ahead_max_ms
    uid_key = uid_place(external.uid)
    twin = None if account is None else account.recent.get(uid_key)
    if account is not None and twin is not None:
        if not first_ms <= twin.time_ms < expires_ms:
            return None
        return ExecutedAsEnd(
            external.body,
            _account_proof(state.accounts, external.account, account),
            ProofPath(account.recent.path(uid_key).siblings),
            twin.message_id,
            twin.catchain_seqno,
            twin.time_ms,
        )
    if state.time_ms < expires_ms or state.remembers_from_ms > first_ms:
        return None
    if account is None:
        return NeverEnd(external.body, _absence(state.accounts.path(external.account)))
    return NeverEnd(
        external.body,
        _account_proof(state.accounts, external.account, account),
        _absence(account.recent.path(external.message_id)),
        _absence(account.recent.path(uid_key)),
    )


def is_too_late(evidence: ShardEvidence, message: ReadMessage) -> bool:
    """Return whether neither this state nor a later one can prove an end that it does not show: the chain has forgotten
    inclusions of the time in which the message could be executed.
    """
    if message.expires_at_s == NEVER:
        return False
    expires_ms = message.expires_at_s * 1_000
    first_ms = expires_ms - evidence.sealed.configuration.expiry_ahead_max_ms
    return evidence.state.time_ms >= expires_ms and evidence.state.remembers_from_ms > first_ms


def _account_proof(accounts: HashTree[Account], address: bytes, account: Account) -> AccountProof:
    return AccountProof(ProofPath(accounts.path(address).siblings), account.balance, account.memory)


def _absence(path: TreePath) -> AbsenceProof:
    return AbsenceProof(ProofPath(path.siblings), path.leaf)


class MadeProof(msgspec.Struct, frozen=True):
    """The proof of one message's end, in parts: its own, and the one of its master block."""

    message_id: bytes
    own: OwnPart
    sealed: SealedMaster


def assembled(
    own: OwnPart, shared: KeyBlockPart | MasterPart, key_blocks: Callable[[bytes], KeyBlockPart | None]
) -> MessageProof:
    """Return the whole proof, from the genesis on. `key_blocks` finds the part of a key block by its root hash;
    `LocalProtocolError` if it does not find one.
    """
    way: deque[KeyBlockProof] = deque()
    key = shared.key
    if isinstance(shared, KeyBlockPart):
        way.append(shared.block)
    while key != ZERO_INT256:
        part = key_blocks(key)
        if part is None or len(way) >= KEY_BLOCKS_MAX:
            raise LocalProtocolError(
                f"key block {key.hex()} on the way of the proof is missing", advice="ask another full node"
            )
        way.appendleft(part.block)
        key = part.key
    master = shared.master if isinstance(shared, MasterPart) else None
    return MessageProof(0, tuple(way), master, own.shard, own.end)


def _content_key(message: ExternalMessage) -> tuple[bytes, bytes]:
    return message.account, message.uid


class ProofMaker:
    """Maker of the proofs of awaited messages. Blocks go in by `take`; `ready` returns the proofs that are due."""

    def __init__(self, genesis: Genesis, snapshot: Snapshot | None = None) -> None:
        self.seals = SealBook(genesis, snapshot)
        self._sealed: dict[bytes, SealedMaster] = {}
        self._applied: dict[bytes, AppliedMaster] = {}
        self._evidences: dict[Shard, ShardEvidence] = {}
        self._awaited: dict[bytes, ReadMessage] = {}
        self._by_content: dict[tuple[bytes, bytes], set[bytes]] = {}
        self._expiring: list[tuple[int, bytes]] = []
        self._overdue: dict[bytes, None] = {}
        self._due: list[MadeProof] = []

    def __len__(self) -> int:
        """Return how many messages are awaited."""
        return len(self._awaited)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._awaited

    def expect(self, message: ReadMessage) -> None:
        """Await the end of a message; one that has ended already is due at once."""
        message_id = message.external.message_id
        if message_id in self._awaited:
            return
        self._awaited[message_id] = message
        self._by_content.setdefault(_content_key(message.external), set()).add(message_id)
        if len(self._awaited) > AWAITED_MAX:
            self.forget(next(iter(self._awaited)))
        if message.expires_at_s != NEVER:
            heappush(self._expiring, (message.expires_at_s * 1_000, message_id))
        account = message.external.account
        workchain = message.external.workchain
        holding = (one for one in self._evidences.values() if one.state.shard.holds(workchain, account))
        newest = max(holding, key=lambda one: one.state.time_ms, default=None)
        if newest is not None:
            self._settle(message_id, newest)

    def forget(self, message_id: bytes) -> None:
        """Await a message no longer: nobody has sent it."""
        self._overdue.pop(message_id, None)
        message = self._awaited.pop(message_id, None)
        if message is not None:
            key = _content_key(message.external)
            self._by_content[key].discard(message_id)
            if not self._by_content[key]:
                del self._by_content[key]

    def take(self, final: FinalBlock, applied: AppliedMaster | None) -> list[SealedMaster]:
        """Take the next final block of the masterchain; return the master blocks that are sealed now. `applied` is None
        for a block that closed a session.
        """
        if applied is not None:
            self._applied[applied.block_id.root_hash] = applied
        sealed = self.seals.take(final)
        self._sealed |= {one.block_id.root_hash: one for one in sealed}
        for root_hash in [known for known in self._sealed if known in self._applied]:
            self._join(self._sealed.pop(root_hash), self._applied.pop(root_hash))
        for known in (self._sealed, self._applied):
            while len(known) > UNJOINED_MAX:
                del known[next(iter(known))]
        return sealed

    def ready(self) -> list[MadeProof]:
        """Return the proofs that were made since the last call."""
        due, self._due = self._due, []
        return due

    def _join(self, sealed: SealedMaster, applied: AppliedMaster) -> None:
        for blocks in applied.commits:
            evidence = evidence_of(sealed, blocks[-1])
            self._evidences.pop(evidence.state.shard, None)
            self._evidences[evidence.state.shard] = evidence
            for block in blocks:
                for message in block.messages:
                    # The message ends those with the same content as well.
                    for message_id in sorted(self._by_content.get(_content_key(message), ())):
                        self._settle(message_id, evidence)
            while self._expiring and self._expiring[0][0] <= evidence.state.time_ms:
                self._overdue[heappop(self._expiring)[1]] = None
            for message_id in list(self._overdue):
                self._settle(message_id, evidence)
        while len(self._evidences) > EVIDENCES_MAX:
            del self._evidences[next(iter(self._evidences))]

    def _settle(self, message_id: bytes, evidence: ShardEvidence) -> None:
        """Make the proof of an awaited message if the evidence shows its end."""
        message = self._awaited.get(message_id)
        if message is None:
            self._overdue.pop(message_id, None)
            return
        external = message.external
        if not evidence.state.shard.holds(external.workchain, external.account):
            return
        end = end_in(evidence, message)
        if end is None and is_too_late(evidence, message):
            self.forget(message_id)
        if end is not None:
            self.forget(message_id)
            own = OwnPart(evidence.sealed.block_id.root_hash, evidence.shard, end)
            self._due.append(MadeProof(message_id, own, evidence.sealed))
