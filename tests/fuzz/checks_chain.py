"""What must hold for the objects of the embedded chain: messages, blocks, states, and what a validator keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rigs.chain_messages import a_transfer, address, some_primes
from stagepost.chain import cell_messages
from stagepost.chain.configuration import Configuration
from stagepost.chain.contracts import ContractKind
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import KeptBlock, KeptSessions
from stagepost.chain.master_block import MasterBlock, decode_master_block
from stagepost.chain.master_state import MasterState, PlanKind, decode_master_state
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.messages import CanonicalMessage, MessageDraft, read_message
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.chain.shard_state import ShardState, decode_state
from stagepost.chain.snapshots import snapshot_of
from stagepost.errors import DecodeError
from stagepost.remp.shard import BlockId
from tests.fuzz.harness import Verdict, attempt, require
from tests.worlds.chain.chain_world import DecidedChain, a_genesis, a_set

# Loaded when a bag is first read; an input must not pay for that.
assert cell_messages.CELLS_MAX
_CELLS = Path(__file__).parents[1] / "vectors" / "remp" / "message_id_uid.json"


class _Form(NamedTuple):
    name: str
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]


def _read_message(data: bytes) -> ReadMessage:
    return read_message(data, takes_cells=True)


_FORMS = (
    _Form("message", _read_message, lambda read: bytes(read.external.body)),
    _Form("canonical message", CanonicalMessage.decode, CanonicalMessage.encode),
    _Form("draft", MessageDraft.decode, MessageDraft.encode),
    _Form("shard block", decode_shard_block, ShardBlock.encode),
    _Form("master block", decode_master_block, MasterBlock.encode),
    _Form("configuration", Configuration.decode, Configuration.encode),
    _Form("genesis", Genesis.decode, Genesis.encode),
    _Form("kept block", KeptBlock.decode, KeptBlock.encode),
    _Form("kept sessions", KeptSessions.decode, KeptSessions.encode),
    _Form("master state", lambda data: decode_master_state(data, BlockId()), MasterState.encode),
    _Form("shard state", lambda data: decode_state(data, BlockId()), ShardState.encode),
)


def check_chain(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for form in _FORMS:
        value = attempt(partial(form.read, data), len(data), DecodeError)
        if value is not None:
            verdict = Verdict.ACCEPTED
            require(form.write(value) == data, f"a {form.name} was read from bytes that we would not write")
    return verdict


@cache
def chain_samples() -> tuple[bytes, ...]:
    rich, poor = (address(ContractKind.BALANCE, number, first_bits=number << 7) for number in range(2))
    chain = DecidedChain(a_genesis(balances=[(rich, 100)]))
    whole = chain.whole
    chain.shard_block(whole.session_id, [a_transfer(rich, poor, 5), some_primes(1)])
    at_ms = chain.now_ms + 3_000
    before = chain.ledger.master.configuration
    changed = msgspec.structs.replace(before, next=a_set(3, "next", at_ms), shard_validators=2)
    chain.master_block([Plan(PlanKind.SPLIT, whole.shard, at_ms)], changed)
    snapshot = snapshot_of(chain.ledger)
    (cells,) = json.loads(_CELLS.read_text())["items"]
    return (
        *(kept.encode() for kept in chain.kept.blocks()),
        *chain.payloads(),
        some_primes(1).body,
        MessageDraft(rich, b"body", 60).encode(),
        bytes.fromhex(cells["boc"]),
        changed.encode(),
        chain.genesis.encode(),
        snapshot.master,
        snapshot.sessions,
        *(data for _, data in snapshot.states),
    )
