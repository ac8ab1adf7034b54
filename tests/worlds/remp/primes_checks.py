"""What must hold of all blocks of a network, seen from outside: from what members said to each other, and from the chain.

No block holds a message of an earlier one; the messages of a block stand in the order that was promised; and whoever
votes for a candidate with a replay is not honest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256

from stagepost.catchain.block import UPDATE_ID, decode_update
from stagepost.catchain.payloads import upper_part
from stagepost.chain.agreement.messages import PROPOSAL_ID, Proposal, decode_message
from stagepost.chain.agreement.votes import VOTE_ID, Vote, VoteKind, signed_bytes
from stagepost.chain.master_block import MASTER_BLOCK_ID, MasterBlock, decode_master_block
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.links.switchboard import read_said
from stagepost.remp.message import BODY_ID, MessageBody
from stagepost.remp.queue.records import Accept, Header, decode_payload
from stagepost.remp.shard import BlockId

_BLOCK, _PROPOSAL, _VOTE, _BODY = (
    constructor_bytes(one) for one in (UPDATE_ID, PROPOSAL_ID, VOTE_ID, BODY_ID)
)
_MASTER = constructor_bytes(MASTER_BLOCK_ID)
CATCHAINS_REMEMBERED = 2
FOR_IT = frozenset({VoteKind.NOTARISE, VoteKind.FINALISE})

Candidates = dict[BlockId, ShardBlock]


class Wiretap:
    """Hears everything that a member pushes to another one. `is_final_and_handed_on`: whether the sender hands messages on
    at this moment, and knows a message as final.
    """

    def __init__(
        self, is_final_and_handed_on: Callable[[int, bytes], bool] = lambda sender, message_id: False
    ) -> None:
        self.final_handed_on: list[tuple[int, bytes]] = []
        """Senders, and the messages that were final when they handed on the bodies."""
        self.candidates: Candidates = {}
        self.hashes: dict[bytes, BlockId] = {}
        """Blocks by the hash that votes name."""
        self.votes: dict[bytes, dict[int, tuple[bytes, Vote]]] = defaultdict(dict)
        """By that hash, and by who sent it: the session, and the vote."""
        self.times: dict[bytes, set[int]] = defaultdict(set)
        """When messages came in, as members have announced it."""
        self.times_before: dict[BlockId, dict[bytes, frozenset[int]]] = {}
        """Times by message of a candidate, as members had announced them when it was proposed: a dishonest author may
        collate a message before anybody announces it, and nobody was promised an order then."""
        self.accepted_before: dict[BlockId, frozenset[bytes]] = {}
        """Messages that somebody had collated when a candidate was proposed: they go first."""
        self._accepted: set[bytes] = set()
        self._heard: set[bytes] = set()
        self._is_final_and_handed_on = is_final_and_handed_on

    def __call__(self, sender: int, frame: bytes) -> None:
        if frame in self._heard:
            return
        self._heard.add(frame)
        said = read_said(frame)
        if said is None:
            return
        session_id, inner = said
        if inner.startswith(_BODY):
            message_id = sha256(MessageBody.decode(inner).message).digest()
            if self._is_final_and_handed_on(sender, message_id):
                self.final_handed_on.append((sender, message_id))
        elif inner.startswith(_BLOCK):
            try:
                self._hear_records(upper_part(decode_update(inner).payload) or b"")
            except DecodeError:
                return  # an attacker's
        elif inner.startswith(_PROPOSAL):
            proposal = decode_message(inner)
            assert isinstance(proposal, Proposal)
            self._hear_candidate(proposal.candidate.hash, proposal.candidate.payload)
        elif inner.startswith(_VOTE):
            vote = decode_message(inner)
            if isinstance(vote, Vote) and vote.kind in FOR_IT:
                self.votes[vote.block][sender] = session_id, vote

    def _hear_records(self, payload: bytes) -> None:
        try:
            records = decode_payload(payload)
        except DecodeError:
            return  # something else than the queue's, or a liar's
        for record in records:
            if isinstance(record, Header):
                self.times[record.message_id].add(record.timestamp_ms)
            elif isinstance(record, Accept):
                self._accepted.add(record.message_id)

    def _hear_candidate(self, block_hash: bytes, payload: bytes) -> None:
        try:
            block = decode_shard_block(payload)
        except DecodeError:
            return  # of the masterchain
        block_id = block.block_id(payload)
        self.candidates[block_id] = block
        self.hashes[block_hash] = block_id
        if block_id not in self.accepted_before:
            self.accepted_before[block_id] = frozenset(self._accepted)
            self.times_before[block_id] = {one: frozenset(self.times.get(one, ())) for one in ids_in(block)}


def committed_blocks(payloads: Iterable[bytes]) -> Candidates:
    """Shard blocks that master blocks hold, in the order of the masterchain. Final ones that were dropped at the end of a
    session are none of them."""
    of_shards: Candidates = {}
    masters: list[MasterBlock] = []
    for payload in filter(None, payloads):
        if payload.startswith(_MASTER):
            masters.append(decode_master_block(payload))
        else:
            block = decode_shard_block(payload)
            of_shards[block.block_id(payload)] = block
    masters.sort(key=lambda master: master.seqno)
    committed = [block_id for master in masters for commit in master.commits for block_id in commit]
    return {block_id: of_shards[block_id] for block_id in committed}


def ids_in(block: ShardBlock) -> list[bytes]:
    return [sha256(data).digest() for data in block.messages]


def twice_included(blocks: Mapping[BlockId, ShardBlock]) -> list[str]:
    where: dict[bytes, BlockId] = {}
    found: list[str] = []
    for block_id, block in blocks.items():
        for message_id in ids_in(block):
            if message_id in where:
                found.append(
                    f"message {message_id.hex()} stands in block {where[message_id].seqno} and in block {block_id.seqno}"
                )
            where[message_id] = block_id
    return found


def bodies_twice_included(blocks: Mapping[BlockId, ShardBlock], final_at: Mapping[bytes, int]) -> list[str]:
    """Return the messages whose body stood in a block for the same account, under another id, when they were included.
    `final_at`: catchains of the masterchain by message. A body is remembered for two of them.
    """
    where: dict[tuple[bytes, bytes], bytes] = {}
    found: list[str] = []
    for block in blocks.values():
        for data in block.messages:
            message, message_id = CanonicalMessage.decode(data), sha256(data).digest()
            other = where.get((message.account, message.body), message_id)
            if other != message_id and final_at[message_id] < final_at[other] + CATCHAINS_REMEMBERED:
                found.append(
                    f"messages {other.hex()} and {message_id.hex()} have the same body for one account"
                )
            where[message.account, message.body] = message_id
    return found


def out_of_order(blocks: Mapping[BlockId, ShardBlock], tap: Wiretap, skew_ms: int) -> list[str]:
    """Return pairs that stand the wrong way round, whichever announcement one goes by. An announcement that is older than
    `skew_ms` may count from any later time up to that: a floor lifts those that are handed on late.
    """
    found: list[str] = []
    for block_id, block in blocks.items():
        exempt = tap.accepted_before.get(block_id, frozenset())
        known = tap.times_before.get(block_id, tap.times)
        latest: tuple[int, bytes] | None = None
        for message_id in ids_in(block):
            times = known.get(message_id)
            if message_id in exempt or not times:
                continue
            if latest is not None and (max(*times, block.time_ms - skew_ms), message_id) < latest:
                found.append(f"block {block_id.seqno}: message {message_id.hex()} stands behind a later one")
            latest = max(latest or (0, b""), (min(times), message_id))
    return found


def voted_for_replays(
    blocks: Mapping[BlockId, ShardBlock], tap: Wiretap, honest: Mapping[int, bytes]
) -> tuple[int, list[str]]:
    """How many candidates held a message of a block that they stand upon, and who voted for one. `honest`: public keys by
    the numbers of those who must not."""
    known = {**tap.candidates, **blocks}
    memory: dict[BlockId, frozenset[bytes]] = {}
    replays = 0
    found: list[str] = []
    for block_hash, block_id in tap.hashes.items():
        ids = ids_in(tap.candidates[block_id])
        again = set(ids) & _messages_before(known, block_id, memory)
        if not again and len(set(ids)) == len(ids):
            continue
        replays += 1
        for sender, (session_id, vote) in tap.votes.get(block_hash, {}).items():
            key = honest.get(sender)
            signed = signed_bytes(session_id, vote.slot, vote.kind, vote.block)
            if key is not None and ed25519.verify(key, signed, vote.signature):
                found.append(f"validator {sender} voted for block {block_id.seqno}, which holds a replay")
    return replays, found


def _messages_before(
    known: Mapping[BlockId, ShardBlock], block_id: BlockId, memory: dict[BlockId, frozenset[bytes]]
) -> frozenset[bytes]:
    """Of all blocks that this one stands upon."""
    waiting: list[BlockId] = [block_id]
    while waiting:
        current = waiting[-1]
        block = known.get(current)
        before: Sequence[BlockId] = () if block is None else block.previous
        missing = [one for one in before if one not in memory]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        memory[current] = frozenset().union(
            *(memory[one] | frozenset(ids_in(known[one]) if one in known else ()) for one in before)
        )
    return memory[block_id]
