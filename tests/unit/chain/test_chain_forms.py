"""The chain's objects on the wire: as the schema says, and in one form only."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.chain_messages import address
from stagepost.catchain.budgets import Rates
from stagepost.chain.agreement.votes import VALIDATORS_MAX
from stagepost.chain.configuration import (
    BEHIND_MS_MIN,
    BLOCK_MESSAGES_MAX,
    CALL_WEIGHT_MAX,
    MESSAGES_BYTES_MAX,
    NETWORK_VERSION,
    RATE_MAX,
    SHARD_BITS_MAX,
    SKEW_MS_MAX,
    WINDOW_MS_MAX,
    Configuration,
    Limits,
    ValidatorSet,
    fault_in,
    fault_in_change,
)
from stagepost.chain.contracts import ContractKind
from stagepost.chain.genesis import NAME_BYTES_MAX, Genesis, first_states
from stagepost.chain.history import KeptBlock, KeptSessions
from stagepost.chain.master_block import (
    MasterBlock,
    decode_master_block,
    last_blocks,
    master_root,
    root_hash,
)
from stagepost.chain.master_state import MasterState, decode_master_state
from stagepost.chain.message_values import CELLS_MAGIC
from stagepost.chain.messages import CanonicalMessage, MessageDraft
from stagepost.chain.shard_block import ShardBlock, decode_shard_block, shard_root
from stagepost.chain.shard_state import PREVIOUS_MAX, ShardState, decode_state
from stagepost.errors import ConfigError, DecodeError
from stagepost.remp.shard import BlockId
from tests.fuzz.checks_chain import chain_samples
from tests.worlds.chain.chain_world import START_MS, a_configuration, a_genesis, a_set, validators

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "stagepost" / "chain"
FORMER_GENESIS = "6cc275c6"
SAMPLES = tuple(one for one in chain_samples() if one[:4] != CELLS_MAGIC)


def test_every_object_with_an_id_stands_in_the_schema_as_in_the_code() -> None:
    text = (ROOT / "specs/chain.tl").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("//")]
    in_schema = {
        zlib.crc32(line.rstrip(";").replace("(", "").replace(")", "").encode()): line.split()[0]
        for line in lines
    }
    modules = (import_module(f"stagepost.chain.{path.stem}") for path in PACKAGE.glob("*.py"))
    in_code = {
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_ID") and isinstance(value, int)
    }

    assert in_code <= in_schema.keys()
    assert len(in_code) == 19
    bare = {name for one, name in in_schema.items() if one not in in_code}
    assert all(f":{name}" in text or f"vector {name}" in text for name in bare), "used nowhere"


@pytest.mark.parametrize("sample", SAMPLES)
@given(st.data())
def test_what_is_cut_lengthened_or_altered_is_refused_or_read_as_it_stands(
    sample: bytes, data: st.DataObject
) -> None:
    decode, encode = form_of(sample)
    assert encode(decode(sample)) == sample
    with pytest.raises(DecodeError):
        decode(sample[: data.draw(st.integers(0, len(sample) - 1))])
    with pytest.raises(DecodeError):
        decode(sample + bytes(4))


Form = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def form_of(sample: bytes) -> Form:
    forms: tuple[Form, ...] = (
        (decode_shard_block, ShardBlock.encode),
        (decode_master_block, MasterBlock.encode),
        (Configuration.decode, Configuration.encode),
        (Genesis.decode, Genesis.encode),
        (KeptSessions.decode, KeptSessions.encode),
        (KeptBlock.decode, KeptBlock.encode),
        (CanonicalMessage.decode, CanonicalMessage.encode),
        (MessageDraft.decode, MessageDraft.encode),
        (lambda data: decode_master_state(data, BlockId()), MasterState.encode),
        (lambda data: decode_state(data, BlockId()), ShardState.encode),
    )
    for decode, encode in forms:
        try:
            decode(sample)
        except DecodeError:
            continue
        return decode, encode
    raise AssertionError("of no form that we know")


# Limits at their edges


def test_a_block_stands_upon_at_most_sixteen_others() -> None:
    block = next(decode_shard_block(one) for one in SAMPLES if form_of(one)[0] is decode_shard_block)
    most = msgspec.structs.replace(block, previous=block.previous[:1] * PREVIOUS_MAX)
    assert decode_shard_block(most.encode()) == most

    more = msgspec.structs.replace(block, previous=block.previous[:1] * (PREVIOUS_MAX + 1))
    with pytest.raises(DecodeError, match="17 items"):
        decode_shard_block(more.encode())


def test_a_block_holds_at_most_4096_messages() -> None:
    block = next(decode_shard_block(one) for one in SAMPLES if form_of(one)[0] is decode_shard_block)
    most = msgspec.structs.replace(block, messages=(b"",) * BLOCK_MESSAGES_MAX)
    assert decode_shard_block(most.encode()) == most

    more = msgspec.structs.replace(block, messages=(b"",) * (BLOCK_MESSAGES_MAX + 1))
    with pytest.raises(DecodeError, match="4097 items"):
        decode_shard_block(more.encode())


def a_set_of(count: int) -> ValidatorSet:
    return msgspec.structs.replace(a_set(), validators=validators(count))


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        ({"current": a_set_of(VALIDATORS_MAX)}, {"current": a_set_of(VALIDATORS_MAX + 1)}),
        ({"current": a_set_of(1)}, {"current": a_set_of(0)}),
        ({"shard_bits_max": SHARD_BITS_MAX}, {"shard_bits_max": SHARD_BITS_MAX + 1}),
        (
            {"limits": Limits(messages_max=BLOCK_MESSAGES_MAX)},
            {"limits": Limits(messages_max=BLOCK_MESSAGES_MAX + 1)},
        ),
        ({"limits": Limits(messages_max=1)}, {"limits": Limits(messages_max=0)}),
        (
            {"limits": Limits(bytes_max=MESSAGES_BYTES_MAX)},
            {"limits": Limits(bytes_max=MESSAGES_BYTES_MAX + 1)},
        ),
        ({"limits": Limits(bytes_max=65_535)}, {"limits": Limits(bytes_max=65_534)}),
        (
            {"limits": Limits(weight_max=CALL_WEIGHT_MAX)},
            {"limits": Limits(weight_max=CALL_WEIGHT_MAX - 1)},
        ),
        ({"master_lifetime_ms": 1_000}, {"master_lifetime_ms": 999}),
        ({"next": a_set(3, from_ms=START_MS + 1)}, {"next": a_set(3, from_ms=START_MS)}),
        ({"network_version": NETWORK_VERSION}, {"network_version": NETWORK_VERSION + 1}),
        ({"network_version": 1}, {"network_version": 0}),
        ({"expiry_ahead_max_ms": WINDOW_MS_MAX}, {"expiry_ahead_max_ms": WINDOW_MS_MAX + 1}),
        ({"proof_window_ms": WINDOW_MS_MAX}, {"proof_window_ms": WINDOW_MS_MAX + 1}),
        ({"proof_window_ms": 0}, {"proof_window_ms": -1}),
        ({"behind_max_ms": BEHIND_MS_MIN}, {"behind_max_ms": BEHIND_MS_MIN - 1}),
        ({"skew_ms": SKEW_MS_MAX}, {"skew_ms": SKEW_MS_MAX + 1}),
        ({"skew_ms": 0}, {"skew_ms": -1}),
        ({"rates": Rates(bytes_burst=RATE_MAX)}, {"rates": Rates(bytes_burst=RATE_MAX + 1)}),
        ({"rates": Rates(headers_per_s=1)}, {"rates": Rates(headers_per_s=0)}),
        ({"takes_cells": True, "must_expire": False}, {"takes_cells": True}),
    ],
)
def test_a_configuration_is_taken_up_to_each_limit(fits: dict[str, Any], does_not: dict[str, Any]) -> None:
    good = msgspec.structs.replace(a_configuration(), **fits)
    bad = msgspec.structs.replace(a_configuration(), **does_not)

    assert fault_in(good) is None
    assert fault_in(bad)
    with pytest.raises(ConfigError, match="cannot be used"):
        first_states(a_genesis(bad))


@pytest.mark.parametrize(
    ("before", "after", "is_allowed"),
    [
        ({}, {}, False),
        ({"proof_window_ms": 5}, {"expiry_ahead_max_ms": 300_005}, True),
        ({"proof_window_ms": 5}, {"expiry_ahead_max_ms": 300_006, "proof_window_ms": 6}, False),
        ({}, {"expiry_ahead_max_ms": 299_999}, False),
        ({"proof_window_ms": 5}, {"proof_window_ms": 6}, True),
        ({"proof_window_ms": 5}, {"proof_window_ms": 4}, False),
        ({"must_expire": False}, {"must_expire": True}, True),
        ({"must_expire": True}, {"must_expire": False}, False),
        ({"guards_uids": False}, {"guards_uids": True}, True),
        ({"guards_uids": True}, {"guards_uids": False}, False),
        ({}, {"network_version": NETWORK_VERSION + 1}, False),
        ({}, {"skew_ms": 1}, True),
    ],
)
def test_windows_only_grow_and_guards_are_only_switched_on(
    before: dict[str, Any], after: dict[str, Any], is_allowed: bool
) -> None:
    present = msgspec.structs.replace(a_configuration(), **before)
    fault = fault_in_change(present, msgspec.structs.replace(present, **after))

    assert (fault is None) == is_allowed, fault


@pytest.mark.parametrize(
    ("asked", "fault"),
    [(1, "use an older release"), (2, None), (3, None), (4, "2 and 3 are: install a newer release first")],
)
def test_a_release_speaks_its_network_version_and_the_one_before(
    asked: int, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagepost.chain.configuration.NETWORK_VERSION", 3)
    found = fault_in(msgspec.structs.replace(a_configuration(), network_version=asked))
    assert found is fault or (fault is not None and found is not None and fault in found)


def test_a_genesis_of_the_time_before_network_versions_is_refused_by_name() -> None:
    former = bytes.fromhex(FORMER_GENESIS) + a_genesis().encode()[4:]

    with pytest.raises(DecodeError, match="before network version 1"):
        Genesis.decode(former)


def test_a_root_leaves_messages_commits_and_configuration_out() -> None:
    payloads = [one for one in SAMPLES if form_of(one)[0] in (decode_shard_block, decode_master_block)]
    for payload in payloads:
        is_of_shard = form_of(payload)[0] is decode_shard_block
        root = (shard_root if is_of_shard else master_root)(payload)
        assert root_hash(payload) == sha256(root).digest()
        assert root[-32:] == payload[-32:], "the hash of the state stands last"
    master = next(one for one in payloads if form_of(one)[0] is decode_master_block)
    block, root = decode_master_block(master), master_root(master)
    last = last_blocks(commit[-1] for commit in block.commits)
    assert root[-160:-128] == last.hash
    assert last.get(block.commits[0][-1].root_hash) == block.commits[0][-1].file_hash
    assert root[-64:-32] == sha256(block.configuration).digest()


@pytest.mark.parametrize("payload", [b"", b"no block", bytes(400)])
def test_what_is_not_a_block_has_no_root(payload: bytes) -> None:
    assert root_hash(payload) == bytes(32)


def test_one_key_cannot_be_two_validators() -> None:
    twice = msgspec.structs.replace(a_set(), validators=validators(2) + validators(1))

    assert fault_in(msgspec.structs.replace(a_configuration(), current=twice))


@pytest.mark.parametrize(
    "balances",
    [
        [(address(ContractKind.BALANCE), 1)] * 2,
        [(address(ContractKind.BALANCE), 0)],
        [(address(ContractKind.BALANCE, number), 1 << 62) for number in range(2)],
    ],
)
def test_a_genesis_with_impossible_balances_is_refused(balances: list[tuple[bytes, int]]) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        first_states(a_genesis(balances=balances))


def test_a_genesis_has_a_short_name() -> None:
    fits = a_genesis(name="n" * NAME_BYTES_MAX)
    assert Genesis.decode(fits.encode()) == fits

    with pytest.raises(DecodeError, match="65 bytes"):
        Genesis.decode(a_genesis(name="n" * (NAME_BYTES_MAX + 1)).encode())


def test_another_name_is_another_network() -> None:
    one, other = first_states(a_genesis()), first_states(a_genesis(name="other"))

    assert one.master.network != other.master.network
    assert one.master.session.session_id != other.master.session.session_id
    assert one.master.block_id != other.master.block_id
