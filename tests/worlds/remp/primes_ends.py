"""The ends that committed states can prove, worked out from the words of their definition: no message may ever have two.

executed       its id is in its account's recent tree
never          a state of its shard, at or after its expiry, remembers far enough back and has neither id nor uid
executed as X  its uid is there, taken by X, less than the greatest allowed time before its expiry
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from stagepost.chain.master_block import MASTER_BLOCK_ID, MasterBlock, decode_master_block
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.chain.shard_state import ShardState
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.shard import BlockId

EXECUTED, NEVER, EXECUTED_AS = "executed", "never", "executed as"
_MASTER = constructor_bytes(MASTER_BLOCK_ID)

End = tuple[str, bytes]
"""Kind of an end, and the message that was executed; empty for none."""


def provable_end(
    state: ShardState, message: CanonicalMessage, message_id: bytes, ahead_max_ms: int
) -> End | None:
    """Return the end of the message that the state of a committed block can prove; None if it has none yet."""
    if not state.shard.holds(message.workchain, message.account):
        return None
    account, expires_ms = state.accounts.get(message.account), message.expires_at_s * 1_000
    place = sha256(b"uid" + message.uid).digest()
    own = None if account is None else account.recent.get(message_id)
    twin = None if account is None else account.recent.get(place)
    if own is not None:
        return EXECUTED, message_id
    if twin is not None:
        is_in_time = expires_ms - ahead_max_ms <= twin.time_ms < expires_ms
        return (EXECUTED_AS, twin.message_id) if is_in_time and expires_ms else None
    is_over = bool(expires_ms) and state.parent_ms >= expires_ms
    return (NEVER, b"") if is_over and state.remembers_from_ms <= expires_ms - ahead_max_ms else None


class EndsWatch:
    """Every end that any committed state could prove to a verifier, by message, in the order in which they showed."""

    def __init__(self) -> None:
        self.ends: dict[bytes, dict[End, None]] = {}
        self._watched: dict[bytes, CanonicalMessage] = {}
        self._seen: frozenset[BlockId] = frozenset()

    def watch(self, messages: Iterable[bytes]) -> None:
        self._watched |= {sha256(data).digest(): CanonicalMessage.decode(data) for data in messages}

    def look(self, states: Mapping[BlockId, ShardState], ahead_max_ms: int) -> None:
        """Look at the states of newly committed blocks."""
        new = states.keys() - self._seen
        self._seen = frozenset(states)
        for block_id in new:
            for message_id, message in self._watched.items():
                end = provable_end(states[block_id], message, message_id, ahead_max_ms)
                if end is not None:
                    self.ends.setdefault(message_id, {})[end] = None

    def executed(self, message_ids: Iterable[bytes]) -> None:
        """Note messages of committed blocks, which a chain may forget."""
        for message_id in message_ids:
            self.ends.setdefault(message_id, {})[EXECUTED, message_id] = None

    def end_of(self, message_id: bytes) -> str | None:
        kinds = [kind for kind, _ in self.ends.get(message_id, ())]
        return kinds[0] if kinds else None

    def contradictions(self) -> list[str]:
        """Return the messages with two ends: a "no" that turned into a "yes", or the other way round."""
        return [
            f"message {message_id.hex()[:8]} has the ends {[f'{kind} {other.hex()[:8]}'.strip() for kind, other in ends]}"
            for message_id, ends in self.ends.items()
            if len(ends) > 1
        ]


def times_that_fall(payloads: Iterable[bytes], genesis_ms: int) -> list[str]:
    """Return the committed blocks that are not later than what they stand upon, through sessions, splits and merges."""
    shards: dict[BlockId, ShardBlock] = {}
    masters: list[MasterBlock] = []
    for payload in filter(None, payloads):
        if payload.startswith(_MASTER):
            masters.append(decode_master_block(payload))
        else:
            block = decode_shard_block(payload)
            shards[block.block_id(payload)] = block
    found: list[str] = []
    last_ms = genesis_ms
    for master in sorted(masters, key=lambda one: one.seqno):
        if master.time_ms <= last_ms:
            found.append(f"master block {master.seqno} of {master.time_ms} ms follows one of {last_ms} ms")
        last_ms = master.time_ms
        for block in (shards[block_id] for commit in master.commits for block_id in commit):
            before = [shards[one].time_ms if one in shards else genesis_ms for one in block.previous]
            if block.time_ms <= max(before):
                found.append(
                    f"block {block.seqno} of shard {block.shard.prefix:016x}, of {block.time_ms} ms, follows {before} ms"
                )
            if block.time_ms > master.time_ms:
                found.append(
                    f"block {block.seqno} is later than master block {master.seqno}, which commits it"
                )
    return found
