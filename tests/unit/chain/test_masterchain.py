"""The masterchain: it commits shard blocks, changes shards and sessions by rules that all can check, and declines the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from rigs.chain_messages import a_transfer, address, some_primes
from stagepost.chain.configuration import SHARD_BITS_MAX, Configuration
from stagepost.chain.contracts import ContractKind
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.master_block import (
    COMMIT_BLOCKS_MAX,
    COMMITTED_MAX,
    PLANS_MAX,
    MasterBlock,
    decode_master_block,
)
from stagepost.chain.master_blocks import AppliedMaster, check_master_block
from stagepost.chain.master_state import MasterState, PlanKind, ShardEntry, decode_master_state, subset
from stagepost.chain.rotation import Plan, contains, rotated
from stagepost.chain.shard_blocks import CLOCK_AHEAD_MS_MAX
from stagepost.chain.shard_state import PREVIOUS_MAX, Source
from stagepost.errors import DecodeError, LocalProtocolError
from stagepost.remp.ledger import MasterApplied
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import session_id
from stagepost.remp.shard import WHOLE_SHARD, BlockId
from tests.worlds.chain.chain_world import LIFETIME_MS, DecidedChain, a_configuration, a_genesis, a_set

WHOLE = Shard(0, WHOLE_SHARD)
RICH = address(ContractKind.BALANCE, 1, first_bits=0x10)
POOR = address(ContractKind.BALANCE, 2, first_bits=0xF0)


def check(
    chain: DecidedChain, payload: bytes, now_ms: int | None = None, wanted: Sequence[bytes] = ()
) -> AppliedMaster | DeclinedCandidate:
    following = chain.ledger.following
    session = chain.ledger.master.session.session_id
    return check_master_block(
        chain.ledger.master, session, following.known, payload, now_ms or chain.now_ms, wanted=wanted
    )


def shards(chain: DecidedChain) -> list[Shard]:
    return [entry.shard for entry in chain.ledger.master.shards]


def split(chain: DecidedChain, shard: Shard) -> None:
    chain.master_block([Plan(PlanKind.SPLIT, shard, chain.now_ms)])


def merge(chain: DecidedChain, shard: Shard) -> None:
    chain.master_block([Plan(PlanKind.MERGE, shard, chain.now_ms)])


# What it does


def test_a_master_block_commits_the_final_blocks_of_shards_in_order() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    blocks = [chain.shard_block(session, [some_primes(number)]).block_id for number in range(3)]
    (applied,) = [event for event in chain.master_block() if isinstance(event, MasterApplied)]

    assert [final.block_id for final in applied.blocks] == blocks
    assert chain.ledger.master.shards[0].tops == (blocks[-1],)
    assert not applied.started
    assert not applied.ended


def test_a_transfer_comes_out_where_the_masterchain_brings_it() -> None:
    chain = DecidedChain(a_genesis(balances=[(RICH, 100)]))
    split(chain, WHOLE)
    left, right = chain.ledger.sessions()
    chain.shard_block(left.session_id, [a_transfer(RICH, POOR, 30)])
    assert not chain.ledger.is_block_wanted(right.session_id)
    chain.master_block()
    assert chain.ledger.is_block_wanted(right.session_id)
    assert chain.ledger.account(0, POOR) is None
    chain.shard_block(right.session_id, [])

    poor, rich = chain.ledger.account(0, POOR), chain.ledger.account(0, RICH)
    assert poor is not None
    assert rich is not None
    assert (rich.balance, poor.balance) == (70, 30)
    assert chain.ledger.master.dues
    chain.master_block()
    assert not chain.ledger.master.dues


def test_shards_split_three_times_and_more_and_merge_again() -> None:
    chain = DecidedChain(a_genesis(balances=[(RICH, 100)]))
    shard = WHOLE
    for bits in range(1, 5):
        split(chain, shard)
        shard = next(one for one in shards(chain) if one.holds(0, RICH))
        assert shard.bits == bits
        session = chain.session(shard)
        chain.shard_block(session.session_id, [a_transfer(RICH, POOR, bits)])
    while shard.bits:
        merge(chain, shard.parent)
        shard = shard.parent
        assert shard in shards(chain)
    chain.shard_block(chain.whole.session_id, [])

    rich, poor = chain.ledger.account(0, RICH), chain.ledger.account(0, POOR)
    assert rich is not None
    assert poor is not None
    assert (rich.balance, poor.balance) == (90, 10)
    assert shards(chain) == [WHOLE]


def test_a_session_that_starts_has_a_greater_catchain_number_and_another_id() -> None:
    chain = DecidedChain()
    before = chain.whole
    split(chain, WHOLE)
    left, right = chain.ledger.sessions()
    chain.master_block(after_ms=LIFETIME_MS)
    later = chain.ledger.sessions()
    merge(chain, WHOLE)

    assert left.catchain_seqno == right.catchain_seqno == before.catchain_seqno + 1
    assert [one.catchain_seqno for one in later] == [before.catchain_seqno + 2] * 2
    assert chain.whole.catchain_seqno == before.catchain_seqno + 3
    ids = {one.session_id for one in (before, left, right, *later, chain.whole)}
    assert len(ids) == 6
    assert [facts.shard for facts in chain.whole.previous] == [left.shard.prefix, right.shard.prefix]
    assert [session_id(facts) for facts in left.previous] == [before.session_id]


def test_sessions_end_at_the_next_multiple_of_their_lifetime() -> None:
    chain = DecidedChain()
    session, master = chain.whole, chain.ledger.master_session()
    assert session.ends_ms % LIFETIME_MS == master.ends_ms % LIFETIME_MS == 0
    chain.now_ms = session.ends_ms - 1 - 100
    chain.master_block()
    assert chain.whole.session_id == session.session_id
    chain.master_block(after_ms=1)

    assert chain.whole.session_id != session.session_id
    assert chain.ledger.master.catchain_seqno == master.catchain_seqno + 1


def test_the_next_set_takes_over_when_its_time_has_come() -> None:
    chain = DecidedChain()
    following = a_set(5, "later", chain.now_ms + 10_000)
    changed = msgspec.structs.replace(chain.ledger.master.configuration, next=following)
    chain.master_block(configuration=changed)
    assert chain.ledger.master.last_key_block_seqno == 1
    assert chain.ledger.master.configuration.current == a_set()
    chain.master_block(after_ms=10_000)

    assert chain.ledger.master.configuration.current == following
    assert chain.ledger.master.configuration.next is None
    assert chain.ledger.master.last_key_block_seqno == 2
    assert len(chain.ledger.master_session().public_keys) == 5
    assert set(chain.whole.public_keys) <= {one.public_key for one in following.validators}


def test_subsets_follow_from_set_shard_and_number_alone() -> None:
    configuration = a_configuration(shard_validators=4)
    left, right = WHOLE.children
    chosen = {
        (shard, seqno): tuple(one.public_key for one in subset(configuration, shard, seqno))
        for shard in (WHOLE, left, right)
        for seqno in range(8)
    }
    turned = msgspec.structs.replace(
        configuration,
        current=msgspec.structs.replace(
            configuration.current, validators=configuration.current.validators[::-1]
        ),
    )

    assert all(len(set(keys)) == 4 for keys in chosen.values())
    assert len(set(chosen.values())) > 12
    assert all(
        tuple(one.public_key for one in subset(turned, shard, seqno)) == keys
        for (shard, seqno), keys in chosen.items()
    )
    assert {key for keys in chosen.values() for key in keys} == {
        one.public_key for one in configuration.current.validators
    }


def test_a_state_is_read_as_it_was_written() -> None:
    chain = DecidedChain(a_genesis(balances=[(RICH, 100)]))
    split(chain, WHOLE)
    chain.shard_block(chain.ledger.sessions()[0].session_id, [a_transfer(RICH, POOR, 30)])
    chain.master_block([Plan(PlanKind.MERGE, WHOLE, chain.now_ms + 9_000)])
    state = chain.ledger.master

    assert decode_master_state(state.encode(), state.block_id) == state
    with pytest.raises(DecodeError):
        decode_master_state(state.encode()[:-1], state.block_id)


# What it declines: one rule each


def honest(chain: DecidedChain) -> MasterBlock:
    return decode_master_block(chain.master_payload())


def wrong_parent(chain: DecidedChain) -> MasterBlock:
    block = honest(chain)
    return msgspec.structs.replace(block, previous=msgspec.structs.replace(block.previous, seqno=4))


def wrong_number(chain: DecidedChain) -> MasterBlock:
    return msgspec.structs.replace(honest(chain), seqno=9)


def wrong_session(chain: DecidedChain) -> MasterBlock:
    return msgspec.structs.replace(honest(chain), session_id=bytes(32))


def not_after_its_parent(chain: DecidedChain) -> MasterBlock:
    return msgspec.structs.replace(honest(chain), time_ms=chain.ledger.master.time_ms)


def ahead_of_the_clock(chain: DecidedChain) -> MasterBlock:
    return msgspec.structs.replace(honest(chain), time_ms=chain.now_ms + CLOCK_AHEAD_MS_MAX + 1)


def before_what_it_commits(chain: DecidedChain) -> MasterBlock:
    chain.shard_block(chain.whole.session_id, [])
    block = honest(chain)
    return msgspec.structs.replace(block, time_ms=chain.ledger.master.time_ms + 1)


def wrong_state(chain: DecidedChain) -> MasterBlock:
    return msgspec.structs.replace(honest(chain), state_hash=bytes(32))


def unknown_block(chain: DecidedChain) -> MasterBlock:
    chain.shard_block(chain.whole.session_id, [])
    block = honest(chain)
    forged = msgspec.structs.replace(block.commits[0][0], root_hash=bytes(32))
    return msgspec.structs.replace(block, commits=((forged,),))


def a_block_left_out(chain: DecidedChain) -> MasterBlock:
    for _ in range(2):
        chain.shard_block(chain.whole.session_id, [])
    block = honest(chain)
    return msgspec.structs.replace(block, commits=(block.commits[0][1:],))


def one_shard_twice(chain: DecidedChain) -> MasterBlock:
    for _ in range(2):
        chain.shard_block(chain.whole.session_id, [])
    block = honest(chain)
    ((first, second),) = block.commits
    return msgspec.structs.replace(block, commits=((first,), (second,)))


def split_of_nothing(chain: DecidedChain) -> MasterBlock:
    plan = Plan(PlanKind.SPLIT, WHOLE.children[0], chain.now_ms)
    return msgspec.structs.replace(honest(chain), plans=(plan,))


def unasked_configuration(chain: DecidedChain) -> MasterBlock:
    changed = msgspec.structs.replace(chain.ledger.master.configuration, shard_bits_max=2)
    return decode_master_block(chain.master_payload(configuration=changed))


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (wrong_parent, Rule.WRONG_PARENT),
        (wrong_number, Rule.WRONG_PARENT),
        (wrong_session, Rule.WRONG_SESSION),
        (not_after_its_parent, Rule.WRONG_TIME),
        (ahead_of_the_clock, Rule.WRONG_TIME),
        (before_what_it_commits, Rule.WRONG_TIME),
        (wrong_state, Rule.WRONG_STATE),
        (unknown_block, Rule.UNKNOWN_BLOCK),
        (a_block_left_out, Rule.BAD_COMMIT),
        (one_shard_twice, Rule.BAD_COMMIT),
        (split_of_nothing, Rule.BAD_PLAN),
        (unasked_configuration, Rule.BAD_CONFIGURATION),
    ],
)
def test_a_bad_master_block_is_declined_by_its_rule(
    bad: Callable[[DecidedChain], MasterBlock], rule: Rule
) -> None:
    chain = DecidedChain()
    result = check(chain, bad(chain).encode())

    assert isinstance(result, DeclinedCandidate)
    assert result.rule is rule
    assert result.text


def test_an_honest_master_block_is_declined_by_nobody() -> None:
    chain = DecidedChain()
    chain.shard_block(chain.whole.session_id, [some_primes(1)])
    payload = chain.master_payload()

    assert isinstance(check(chain, payload), AppliedMaster)
    assert isinstance(check(chain, payload[:-4]), DeclinedCandidate)


def test_a_configuration_is_taken_by_those_who_want_it() -> None:
    chain = DecidedChain()
    changed = msgspec.structs.replace(chain.ledger.master.configuration, shard_bits_max=2)
    payload = chain.master_payload(configuration=changed)

    assert isinstance(check(chain, payload, wanted=[changed.hash]), AppliedMaster)


def test_no_block_can_be_made_with_a_configuration_that_cannot_be() -> None:
    chain = DecidedChain()
    changed = msgspec.structs.replace(chain.ledger.master.configuration, shard_bits_max=SHARD_BITS_MAX + 1)

    with pytest.raises(LocalProtocolError, match="split at most"):
        chain.master_payload(configuration=changed)


def test_a_block_of_a_session_that_has_ended_is_not_committed() -> None:
    """The later blocks of an old session are gone, whatever its validators have agreed on."""
    chain = DecidedChain()
    old = chain.whole.session_id
    chain.shard_block(old, [some_primes(1)])
    known = dict(chain.ledger.following.known)
    payload = decode_master_block(chain.master_payload())
    chain.ledger.switches.leaves_out = lambda _: True
    split(chain, WHOLE)
    master = chain.ledger.master
    late = msgspec.structs.replace(
        payload, seqno=master.seqno + 1, previous=master.block_id, time_ms=master.time_ms + 1
    )
    result = check_master_block(master, master.session.session_id, known, late.encode(), None)

    assert isinstance(result, DeclinedCandidate)
    assert result.rule is Rule.BAD_COMMIT


# Plans


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        ([Plan(PlanKind.SPLIT, WHOLE, 0)] * 2, "another plan stands"),
        ([Plan(PlanKind.MERGE, WHOLE, 0)], "not every shard"),
        ([Plan(PlanKind.MERGE, Shard(0, 1), 0)], "of two halves"),
        ([Plan(PlanKind.SPLIT, Shard(0, 0), 0)], "no such shard"),
        ([Plan(PlanKind.SPLIT, WHOLE, 1 << 50)], "further ahead"),
        ([Plan(PlanKind.SPLIT, Shard(0, 0x0800_0000_0000_0000), 0)], "which is the most"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_left_out(plans: list[Plan], text: str) -> None:
    chain = DecidedChain()
    block = msgspec.structs.replace(honest(chain), plans=tuple(plans))
    result = check(chain, block.encode())

    assert isinstance(result, DeclinedCandidate)
    assert result.rule is Rule.BAD_PLAN
    assert text in result.text
    made = decode_master_block(chain.master_payload(plans))
    assert len(made.plans) < len(plans)


def test_a_plan_waits_for_its_time_and_outlives_a_session() -> None:
    chain = DecidedChain()
    chain.now_ms = chain.whole.ends_ms - 5_000
    chain.master_block([Plan(PlanKind.SPLIT, WHOLE, chain.now_ms + 20_000)])
    chain.master_block(after_ms=10_000)
    assert shards(chain) == [WHOLE]
    assert chain.whole.catchain_seqno == 2
    assert chain.ledger.master.shards[0].plan is PlanKind.SPLIT
    chain.master_block(after_ms=10_000)

    assert shards(chain) == list(WHOLE.children)


def test_shards_without_blocks_remember_where_they_come_from() -> None:
    """Split, merged and split again, with a block here and none there: every part has its own last block."""
    chain = DecidedChain(a_genesis(balances=[(RICH, 100), (POOR, 50)]))
    split(chain, WHOLE)
    left, _ = chain.ledger.sessions()
    chain.shard_block(left.session_id, [a_transfer(RICH, POOR, 1)])
    merge(chain, WHOLE)
    assert len(chain.ledger.master.shards[0].sources) == 2
    split(chain, WHOLE)
    assert [len(entry.sources) for entry in chain.ledger.master.shards] == [1, 1]
    merge(chain, WHOLE)
    chain.shard_block(chain.whole.session_id, [])

    balances = [account.balance for one in (RICH, POOR) if (account := chain.ledger.account(0, one))]
    assert balances == [99, 51]


def test_halves_with_one_last_block_are_one_part_again() -> None:
    chain = DecidedChain()
    top = chain.ledger.master.shards[0].sources
    split(chain, WHOLE)
    merge(chain, WHOLE)

    assert chain.ledger.master.shards[0].sources == top


@pytest.mark.parametrize(("parts", "is_merged"), [(PREVIOUS_MAX // 2, True), (PREVIOUS_MAX // 2 + 1, False)])
def test_a_merge_that_would_stand_upon_too_many_blocks_is_put_off(parts: int, is_merged: bool) -> None:
    chain = DecidedChain()
    split(chain, WHOLE)
    many = tuple(_with_parts(entry, parts) for entry in chain.ledger.master.shards)
    after = rotated(_planned_to_merge(chain.ledger.master, many), is_key_block=False)

    assert [entry.shard for entry in after.shards] == ([WHOLE] if is_merged else list(WHOLE.children))
    assert all(entry.plan is PlanKind.NONE for entry in after.shards)
    assert sum(len(entry.sources) for entry in after.shards) == 2 * parts


def _with_parts(entry: ShardEntry, count: int) -> ShardEntry:
    """As if so many parts of the shard had each a last block of its own; the state is of no matter here."""
    parts = [entry.shard]
    while len(parts) < count:
        parts = [*parts[:-1], *parts[-1].children]
    block_id = entry.sources[0].block_id
    sources = tuple(
        Source(part, msgspec.structs.replace(block_id, seqno=number), 0) for number, part in enumerate(parts)
    )
    return msgspec.structs.replace(entry, sources=sources)


def _planned_to_merge(state: MasterState, entries: Sequence[ShardEntry]) -> MasterState:
    planned = (msgspec.structs.replace(entry, plan=PlanKind.MERGE, plan_at_ms=1) for entry in entries)
    return msgspec.structs.replace(state, shards=tuple(planned))


# Limits at their edges


def test_a_master_block_commits_at_most_64_blocks_of_a_shard() -> None:
    chain = DecidedChain()
    for _ in range(COMMIT_BLOCKS_MAX + 1):
        chain.shard_block(chain.whole.session_id, [])
    block = decode_master_block(chain.master_payload())
    assert [len(commit) for commit in block.commits] == [COMMIT_BLOCKS_MAX]

    longer = msgspec.structs.replace(block, commits=((*block.commits[0], block.commits[0][0]),))
    with pytest.raises(DecodeError, match=f"at most {COMMIT_BLOCKS_MAX}"):
        decode_master_block(longer.encode())


def test_a_master_block_has_at_most_1024_blocks_and_64_plans() -> None:
    block = honest(DecidedChain())
    some = BlockId(0, WHOLE_SHARD, 1)
    most = ((some,) * COMMIT_BLOCKS_MAX,) * (COMMITTED_MAX // COMMIT_BLOCKS_MAX)
    plans = (Plan(PlanKind.SPLIT, WHOLE, 0),) * PLANS_MAX
    fits = msgspec.structs.replace(block, commits=most, plans=plans)
    assert decode_master_block(fits.encode()) == fits

    with pytest.raises(DecodeError, match=f"commits {COMMITTED_MAX + 1} blocks"):
        decode_master_block(msgspec.structs.replace(fits, commits=(*most, (some,))).encode())
    with pytest.raises(DecodeError, match="65 items"):
        decode_master_block(msgspec.structs.replace(fits, plans=(*plans, plans[0])).encode())
    with pytest.raises(DecodeError, match="holds no block"):
        decode_master_block(msgspec.structs.replace(fits, commits=(*most[1:], ())).encode())


def test_one_shard_contains_another_if_all_its_accounts_are_in_it() -> None:
    left, right = WHOLE.children

    assert contains(WHOLE, left)
    assert contains(left, left)
    assert contains(left, left.children[1])
    assert not contains(left, WHOLE)
    assert not contains(left, right)
    assert not contains(right, left.children[0])


@pytest.mark.parametrize(
    "change",
    [
        {"master_lifetime_ms": 999},
        {"shard_lifetime_ms": 0},
        {"expiry_ahead_max_ms": -1},
        {"expiry_ahead_max_ms": 299_999},
        {"shard_bits_max": SHARD_BITS_MAX + 1},
        {"next": a_set(3)},
        {"current": a_set(0)},
        {"current": msgspec.structs.replace(a_set(), until_ms=0)},
    ],
)
def test_a_configuration_by_which_no_chain_can_run_is_declined(change: dict[str, object]) -> None:
    chain = DecidedChain()
    bad: Configuration = msgspec.structs.replace(chain.ledger.master.configuration, **change)
    block = msgspec.structs.replace(honest(chain), configuration=bad.encode())
    result = check(chain, block.encode(), wanted=[bad.hash])

    assert isinstance(result, DeclinedCandidate)
    assert result.rule is Rule.BAD_CONFIGURATION


def test_a_configuration_that_a_quorum_has_voted_for_is_followed_without_being_wanted() -> None:
    """Validators that did not want it would else vote for nothing upon it, and liars who wanted it could stop the chain."""
    chain = DecidedChain()
    present = chain.ledger.master.configuration
    longer = msgspec.structs.replace(present, proof_window_ms=present.proof_window_ms + 1_000)
    payload, parent = chain.master_payload(configuration=longer), chain.ledger.following.master_hash
    session = chain.ledger.master.session.session_id

    declined = chain.ledger.check(session, b"c" * 32, parent, payload, chain.now_ms)
    followed = chain.ledger.check(session, b"c" * 32, parent, payload, None)

    assert isinstance(declined, DeclinedCandidate)
    assert declined.rule is Rule.BAD_CONFIGURATION
    assert isinstance(followed, BlockId)
