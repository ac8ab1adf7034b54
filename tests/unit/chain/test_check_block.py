"""Candidates of shards: an honest one passes everywhere, and every kind of bad one is declined by the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.chain_messages import a_transfer, address, external, some_primes
from stagepost.chain.accounts import Inclusion, Transfer, uid_place
from stagepost.chain.configuration import (
    CALL_WEIGHT_MAX,
    MESSAGES_BYTES_MAX,
    Configuration,
    Limits,
    Ordering,
)
from stagepost.chain.contracts import CALL_WEIGHT, ContractKind, primes_body, transfer_body
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.execution import DUES_MAX, Execution, MasterView, are_crowded
from stagepost.chain.message_values import NEVER
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.shard_block import ShardBlock, decode_shard_block
from stagepost.chain.shard_blocks import (
    CLOCK_AHEAD_MS_MAX,
    AppliedBlock,
    check_block,
    make_block,
    order_hash,
)
from stagepost.chain.shard_state import Due, ShardState
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import ExecutedMessage, RefusedMessage, SkippedMessage
from stagepost.remp.shard import BlockId
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.chain.chain_world import START_MS, DecidedChain, a_configuration, a_genesis

RICH = address(ContractKind.BALANCE, 1, first_bits=0x10)
POOR = address(ContractKind.BALANCE, 2, first_bits=0xF0)


class Bench:
    """A state to build upon, and the way to build and to check."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        self.chain = DecidedChain(a_genesis(configuration, [(RICH, 1_000)]))
        self.session = self.chain.whole.session_id
        self.configuration = self.chain.ledger.master.configuration
        self.now_ms = self.chain.now_ms

    @property
    def state(self) -> ShardState:
        chain = self.chain.ledger.chain(self.session)
        assert chain is not None
        return chain.top

    @property
    def view(self) -> MasterView:
        return self.chain.ledger.following.view

    def make(self, *messages: ExternalMessage) -> AppliedBlock:
        applied, _ = self.collate(messages)
        return applied

    def collate(self, messages: Iterable[ExternalMessage]) -> tuple[AppliedBlock, list[object]]:
        applied, collated = make_block(
            self.state, self.session, self.configuration, self.view, messages, self.now_ms
        )
        return applied, [report for _, report in collated.reports]

    def check(self, payload: bytes, now_ms: int | None = None) -> AppliedBlock | DeclinedCandidate:
        views = self.chain.ledger.following.views
        return check_block(
            self.state, self.session, self.configuration, views, payload, now_ms or self.now_ms
        )

    def rule(self, block: ShardBlock) -> Rule:
        result = self.check(block.encode())
        assert isinstance(result, DeclinedCandidate)
        assert result.text
        return result.rule

    def with_messages(self, *messages: ExternalMessage) -> ShardBlock:
        """A block that claims to hold them, whatever the state would be."""
        return msgspec.structs.replace(self.make().block, messages=tuple(one.body for one in messages))


def test_an_honest_block_leads_everybody_to_the_same_state() -> None:
    bench = Bench()
    made = bench.make(a_transfer(RICH, POOR, 10), some_primes(1))
    checked = bench.check(made.payload)

    assert checked == made
    assert decode_shard_block(made.payload) == made.block
    assert made.transfers == (Transfer(POOR, 10),)
    assert made.state.previous == (made.block_id,)


def test_what_a_contract_rejects_is_not_in_the_block_and_is_reported() -> None:
    bench = Bench()
    wanted = some_primes(1)
    rejecting = external(address(ContractKind.ALWAYS_REJECTS), b"x")
    unfunded = external(address(ContractKind.UNTIL_FUNDED), b"x")
    applied, reports = bench.collate([rejecting, wanted, unfunded])
    block_id = applied.block_id

    assert applied.message_ids == (wanted.message_id,)
    assert reports == [
        RefusedMessage(block_id, "Contract rejected message with error code 52"),
        ExecutedMessage(block_id),
        RefusedMessage(block_id, "Contract rejected message with error code 40"),
    ]


def test_the_first_message_that_does_not_fit_is_the_last_that_is_asked_for() -> None:
    bench = Bench(a_configuration(limits=Limits(messages_max=2)))
    asked: list[int] = []

    def messages() -> Iterable[ExternalMessage]:
        for number in range(9):
            asked.append(number)
            yield some_primes(number)

    applied, reports = bench.collate(messages())

    assert asked == [0, 1, 2]
    assert reports == [ExecutedMessage(applied.block_id)] * 2 + [SkippedMessage(applied.block_id)]
    assert isinstance(bench.check(applied.payload), AppliedBlock)


def test_a_heavy_message_fills_a_block_of_its_own() -> None:
    bench = Bench()
    heavy = external(address(ContractKind.HEAVY), b"x")
    first, reports = bench.collate([some_primes(1), heavy, some_primes(2)])
    assert reports == [ExecutedMessage(first.block_id), SkippedMessage(first.block_id)]

    second, reports = bench.collate([heavy, some_primes(2)])
    assert reports == [ExecutedMessage(second.block_id), SkippedMessage(second.block_id)]
    assert second.weight == bench.configuration.limits.weight_max


def test_a_message_of_another_shard_is_left_for_its_own() -> None:
    bench = Bench()
    applied, reports = bench.collate([external(RICH, b"x", workchain=3)])

    assert reports == [SkippedMessage(applied.block_id)]


ANY_MESSAGE = st.builds(
    lambda kind, number, body, salt: external(
        address(kind, number), [primes_body(body), transfer_body(POOR, body + 1)][body % 2], salt
    ),
    st.sampled_from(ContractKind),
    st.integers(0, 2),
    st.integers(0, 5),
    st.integers(0, 1),
)


@given(st.lists(ANY_MESSAGE, max_size=30), st.sampled_from(Ordering))
def test_whatever_is_collated_is_reported_once_and_checks_and_counts_as_the_plain_reckoning_has_it(
    messages: list[ExternalMessage], ordering: Ordering
) -> None:
    limits = Limits(messages_max=12, weight_max=CALL_WEIGHT_MAX)
    bench = Bench(a_configuration(ordering=ordering, limits=limits))
    session, chain = bench.session, bench.chain
    collated = chain.shard_block(session, messages)
    chain.master_block()
    taken = chain.ledger.messages_of(collated.payload)

    executed = [message_id for message_id, report in collated.reports if isinstance(report, ExecutedMessage)]
    assert executed == [one.message_id for one in taken]
    asked = [message_id for message_id, _ in collated.reports]
    given_ids = [one.message_id for one in messages]
    assert asked == given_ids[: len(asked)] or ordering is Ordering.HASH
    assert all(asked.count(one) <= given_ids.count(one) for one in asked)
    oracle = Oracle(chain.genesis)
    oracle.run(chain.payloads())
    assert oracle.taken == dict.fromkeys(executed, 1)


# One rule each


def other(block_id: BlockId) -> BlockId:
    return msgspec.structs.replace(block_id, root_hash=bytes(32))


def wrong_parent(bench: Bench) -> ShardBlock:
    block = bench.make().block
    return msgspec.structs.replace(block, previous=(other(block.previous[0]),))


def wrong_number(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, seqno=7)


def two_parents(bench: Bench) -> ShardBlock:
    block = bench.make().block
    return msgspec.structs.replace(block, previous=block.previous * 2)


def wrong_state(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make(some_primes(1)).block, state_hash=bytes(32))


def a_message_left_out(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make(some_primes(1)).block, messages=())


def other_shard(bench: Bench) -> ShardBlock:
    block = bench.make().block
    return msgspec.structs.replace(block, shard=block.shard.children[0])


def message_of_another_shard(bench: Bench) -> ShardBlock:
    return bench.with_messages(external(RICH, b"x", workchain=-1))


def included_before(bench: Bench) -> ShardBlock:
    bench.chain.shard_block(bench.session, [some_primes(1)])
    return bench.with_messages(some_primes(1))


def body_included_before(bench: Bench) -> ShardBlock:
    bench.chain.shard_block(bench.session, [some_primes(1)])
    return bench.with_messages(some_primes(1, salt=1))


def twice_in_one_block(bench: Bench) -> ShardBlock:
    return bench.with_messages(some_primes(1), some_primes(1))


def wrong_session(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, session_id=bytes(32))


def not_after_its_parent(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, time_ms=bench.state.time_ms)


def ahead_of_the_clock(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, time_ms=bench.now_ms + CLOCK_AHEAD_MS_MAX + 1)


def before_its_master_block(bench: Bench) -> ShardBlock:
    bench.chain.master_block(after_ms=50)
    bench.now_ms = bench.chain.now_ms
    block = bench.make().block
    return msgspec.structs.replace(block, time_ms=bench.view.time_ms - 1)


def unknown_master(bench: Bench) -> ShardBlock:
    block = bench.make().block
    return msgspec.structs.replace(block, master=msgspec.structs.replace(block.master, seqno=9))


def forged_master(bench: Bench) -> ShardBlock:
    block = bench.make().block
    return msgspec.structs.replace(block, master=other(block.master))


def older_master_than_its_parent(bench: Bench) -> ShardBlock:
    before = bench.view.block_id
    bench.chain.master_block()
    bench.chain.shard_block(bench.session, [])
    bench.now_ms = bench.chain.now_ms + 100
    return msgspec.structs.replace(bench.make().block, master=before)


def no_message(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, messages=(b"nonsense",))


def rejected_by_contract(bench: Bench) -> ShardBlock:
    return bench.with_messages(external(address(ContractKind.ALWAYS_REJECTS), b"x"))


def expired(bench: Bench) -> ShardBlock:
    return bench.with_messages(external(RICH, b"x", expires_at_s=bench.now_ms // 1_000))


def expires_too_late(bench: Bench) -> ShardBlock:
    late_s = (bench.now_ms + bench.configuration.expiry_ahead_max_ms) // 1_000 + 1
    return bench.with_messages(external(RICH, b"x", expires_at_s=late_s))


def other_ordering(bench: Bench) -> ShardBlock:
    return msgspec.structs.replace(bench.make().block, ordering=Ordering.HASH)


def too_many_messages(bench: Bench) -> ShardBlock:
    bench.configuration = a_configuration(limits=Limits(messages_max=1))
    return bench.with_messages(some_primes(1), some_primes(2))


def too_many_bytes(bench: Bench) -> ShardBlock:
    bench.configuration = a_configuration(limits=Limits(bytes_max=65_535))
    accounts = (address(ContractKind.HEAVY, number) for number in range(2))
    return bench.with_messages(*(external(one, bytes(33_000)) for one in accounts))


def too_heavy(bench: Bench) -> ShardBlock:
    bench.configuration = a_configuration(limits=Limits(weight_max=CALL_WEIGHT_MAX))
    count = CALL_WEIGHT_MAX // CALL_WEIGHT + 1
    return bench.with_messages(*(some_primes(number, up_to=2) for number in range(count)))


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (wrong_parent, Rule.WRONG_PARENT),
        (wrong_number, Rule.WRONG_PARENT),
        (two_parents, Rule.WRONG_PARENT),
        (older_master_than_its_parent, Rule.WRONG_PARENT),
        (wrong_state, Rule.WRONG_STATE),
        (a_message_left_out, Rule.WRONG_STATE),
        (other_shard, Rule.WRONG_SHARD),
        (message_of_another_shard, Rule.WRONG_SHARD),
        (included_before, Rule.REPLAY),
        (body_included_before, Rule.REPLAY),
        (twice_in_one_block, Rule.REPLAY),
        (wrong_session, Rule.WRONG_SESSION),
        (not_after_its_parent, Rule.WRONG_TIME),
        (ahead_of_the_clock, Rule.WRONG_TIME),
        (before_its_master_block, Rule.WRONG_TIME),
        (unknown_master, Rule.UNKNOWN_MASTER),
        (forged_master, Rule.UNKNOWN_MASTER),
        (no_message, Rule.BAD_MESSAGE),
        (rejected_by_contract, Rule.REJECTED_BY_CONTRACT),
        (expired, Rule.EXPIRED),
        (expires_too_late, Rule.EXPIRED),
        (other_ordering, Rule.BAD_ORDER),
        (too_many_messages, Rule.OVER_LIMIT),
        (too_many_bytes, Rule.OVER_LIMIT),
        (too_heavy, Rule.OVER_LIMIT),
    ],
)
def test_a_bad_candidate_is_declined_by_its_rule(bad: Callable[[Bench], ShardBlock], rule: Rule) -> None:
    bench = Bench()

    assert bench.rule(bad(bench)) is rule


@pytest.mark.parametrize("payload", [b"", b"nonsense", bytes(300_000)])
def test_bytes_that_are_no_block_are_declined(payload: bytes) -> None:
    result = Bench().check(payload)

    assert isinstance(result, DeclinedCandidate)
    assert result.rule is Rule.MALFORMED


def test_a_block_cannot_be_cut_or_lengthened() -> None:
    bench = Bench()
    payload = bench.make(some_primes(1)).payload

    for data in (payload[:-1], payload[:-33], payload + b"\0\0\0\0"):
        result = bench.check(data)
        assert isinstance(result, DeclinedCandidate)
        assert result.rule is Rule.MALFORMED


def test_a_replay_names_the_messages_that_were_the_reason() -> None:
    bench = Bench()
    again = some_primes(1)
    result = bench.check(included_before(bench).encode())

    assert isinstance(result, DeclinedCandidate)
    assert result.replayed == (again.message_id,)


# Limits at their edges


def test_a_clock_may_differ_by_five_seconds() -> None:
    bench = Bench()
    payload = bench.make().payload
    time_ms = decode_shard_block(payload).time_ms

    assert isinstance(bench.check(payload, now_ms=time_ms - CLOCK_AHEAD_MS_MAX), AppliedBlock)
    assert isinstance(bench.check(payload, now_ms=time_ms - CLOCK_AHEAD_MS_MAX - 1), DeclinedCandidate)
    behind_max_ms = bench.configuration.behind_max_ms
    assert isinstance(bench.check(payload, now_ms=time_ms + behind_max_ms), AppliedBlock)
    assert isinstance(bench.check(payload, now_ms=time_ms + behind_max_ms + 1), DeclinedCandidate)


@pytest.mark.parametrize("allowed", [1, 5])
def test_a_block_holds_as_many_messages_as_it_may(allowed: int) -> None:
    bench = Bench(a_configuration(limits=Limits(messages_max=allowed)))
    applied, _ = bench.collate(some_primes(number) for number in range(10))

    assert len(applied.messages) == allowed
    assert isinstance(bench.check(applied.payload), AppliedBlock)


def test_a_block_of_the_greatest_allowed_messages_fits_its_frame() -> None:
    bench = Bench(a_configuration(limits=Limits(bytes_max=MESSAGES_BYTES_MAX, weight_max=10**9)))
    accounts = (address(ContractKind.SUM_OF_PRIMES, number) for number in range(4_096))
    applied, _ = bench.collate(external(one, primes_body(2)) for one in accounts)

    assert sum(len(one.body) for one in applied.messages) <= MESSAGES_BYTES_MAX
    assert isinstance(bench.check(applied.payload), AppliedBlock)


def test_a_message_may_expire_as_late_as_the_window_remembers_it() -> None:
    bench = Bench()
    bench.now_ms -= bench.now_ms % 1_000
    at_s = (bench.now_ms + bench.configuration.expiry_ahead_max_ms) // 1_000
    account = address(ContractKind.SUM_OF_PRIMES)
    last = external(account, primes_body(3), expires_at_s=at_s)
    first = external(account, primes_body(2), expires_at_s=bench.now_ms // 1_000 + 1)
    applied, reports = bench.collate([first, last])

    assert reports == [ExecutedMessage(applied.block_id)] * 2
    assert NEVER not in (at_s, bench.now_ms)


def test_no_contract_sends_more_when_the_way_is_crowded() -> None:
    bench = Bench()
    dues = (Due(0, (Transfer(POOR, 1),) * DUES_MAX),)
    assert not are_crowded((Due(0, (Transfer(POOR, 1),) * (DUES_MAX - 1)),))
    assert are_crowded(dues)

    crowded = msgspec.structs.replace(bench.view, is_crowded=True)
    applied, collated = make_block(
        bench.state, bench.session, bench.configuration, crowded, [a_transfer(RICH, POOR, 1)], bench.now_ms
    )
    assert collated.reports[0][1] == RefusedMessage(
        applied.block_id, "Contract rejected message with error code 38"
    )


# Order


def test_messages_stand_in_the_order_of_their_hashes_where_the_chain_says_so() -> None:
    bench = Bench(a_configuration(ordering=Ordering.HASH))
    account = address(ContractKind.SUM_OF_PRIMES)
    messages = [external(account, primes_body(number)) for number in range(8)]
    applied, _ = bench.collate(messages)
    places = [order_hash(bench.state.previous, one) for one in applied.message_ids]

    assert places == sorted(places)
    assert len(places) == 8
    assert isinstance(bench.check(applied.payload), AppliedBlock)
    turned = msgspec.structs.replace(applied.block, messages=applied.block.messages[::-1])
    assert bench.rule(turned) is Rule.BAD_ORDER


def test_messages_stand_as_the_queue_gave_them_otherwise() -> None:
    bench = Bench()
    messages = [some_primes(number) for number in (3, 1, 2)]

    assert bench.make(*messages).message_ids == tuple(one.message_id for one in messages)


# Memory


def test_a_message_is_remembered_for_two_catchains_and_as_long_as_it_could_live() -> None:
    bench = Bench(a_configuration(expiry_ahead_max_ms=200_000, must_expire=False))
    chain, again = bench.chain, some_primes(1, expires_at_s=NEVER)
    chain.shard_block(chain.whole.session_id, [again])
    included_at_ms = chain.now_ms
    refused = taken = 0
    for _ in range(10):
        chain.master_block(after_ms=30_000)
        session = chain.whole.session_id
        collated = chain.propose(session, [again])
        assert collated is not None
        under = chain.ledger.master.catchain_seqno
        if isinstance(collated.reports[0][1], ExecutedMessage):
            # The block that forgets is the one before: a message is taken again only after that.
            assert under >= 3
            assert chain.now_ms - 30_000 > included_at_ms + 200_000
            taken += 1
            break
        chain.finalise(session, collated.payload)
        refused += 1

    assert refused >= 4
    assert taken == 1


def states_after_an_outage(outage_ms: int) -> tuple[Inclusion, list[ShardState]]:
    """Return the inclusion of a message, and the states after each of the first two blocks that follow a pause of
    the whole chain: the shard's session ends in it, so the first block stands upon a state that is as late as the
    master block.
    """
    bench = Bench(a_configuration(expiry_ahead_max_ms=200_000, proof_window_ms=100_000))
    chain, message = bench.chain, some_primes(1, expires_at_s=START_MS // 1_000 + 180)
    chain.shard_block(chain.whole.session_id, [message])
    chain.master_block()
    for _ in range(2):  # two catchains begin
        chain.master_block(after_ms=60_000)
    found: list[ShardState] = []
    for after_ms in (outage_ms, 100):
        chain.master_block(after_ms=after_ms)
        session = chain.whole.session_id
        chain.shard_block(session, [some_primes(2, salt=after_ms)])
        of_session = chain.ledger.chain(session)
        assert of_session is not None
        found.append(of_session.top)
    included = Inclusion(message.message_id, 1, START_MS + 1_100)
    return included, found


def inclusion_in(state: ShardState, included: Inclusion) -> Inclusion | None:
    account = state.accounts.get(address(ContractKind.SUM_OF_PRIMES, 1))
    return None if account is None else account.recent.get(included.message_id)


def check_that_the_first_block_after_an_outage_remembers() -> None:
    included, (first, second) = states_after_an_outage(outage_ms=400_000)

    assert first.time_ms > included.time_ms + 300_000
    assert inclusion_in(first, included) == included
    assert first.remembers_from_ms == 0
    assert inclusion_in(second, included) is None
    assert second.remembers_from_ms == included.time_ms + 1


def test_the_first_block_after_an_outage_remembers_and_the_next_one_says_what_it_forgot() -> None:
    check_that_the_first_block_after_an_outage_remembers()


def test_forgetting_by_the_time_of_the_block_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_own_time(
        self: Execution, start: ShardState, configuration: Configuration, view: MasterView, time_ms: int
    ) -> None:
        begin(self, msgspec.structs.replace(start, parent_ms=time_ms), configuration, view, time_ms)

    begin = Execution.__init__
    monkeypatch.setattr(Execution, "__init__", by_own_time)

    with pytest.raises(AssertionError):
        check_that_the_first_block_after_an_outage_remembers()


def test_forgetting_by_the_time_of_the_master_block_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_start_time(
        self: Execution, start: ShardState, configuration: Configuration, view: MasterView, time_ms: int
    ) -> None:
        begin(self, msgspec.structs.replace(start, parent_ms=start.time_ms), configuration, view, time_ms)

    begin = Execution.__init__
    monkeypatch.setattr(Execution, "__init__", by_start_time)

    with pytest.raises(AssertionError):
        check_that_the_first_block_after_an_outage_remembers()


def test_the_leaf_of_a_uid_names_the_message_that_took_it() -> None:
    bench = Bench()
    first, twin = some_primes(1), some_primes(1, salt=1)
    state = bench.make(first).state
    account = state.accounts.get(first.account)

    assert account is not None
    by_uid = account.recent.get(uid_place(twin.uid))
    assert by_uid == account.recent.get(first.message_id)
    assert by_uid is not None
    assert by_uid.message_id == first.message_id


def test_twins_expire_together() -> None:
    body, account = b"body", address(ContractKind.SUM_OF_PRIMES, 1)
    one = CanonicalMessage(account, body, 1_000)

    assert msgspec.structs.replace(one, salt=1).uid == one.uid
    assert msgspec.structs.replace(one, expires_at_s=1_001).uid != one.uid


def test_a_message_without_expiry_is_declined_where_all_must_expire() -> None:
    bench = Bench(a_configuration())
    forever = some_primes(1, expires_at_s=NEVER)
    brief = some_primes(1, expires_at_s=bench.now_ms // 1_000 + 60)
    applied, reports = bench.collate([forever, brief])

    assert applied.message_ids == (brief.message_id,)
    assert isinstance(reports[0], RefusedMessage)
    assert "never expires" in reports[0].error
    assert bench.rule(bench.with_messages(forever)) is Rule.EXPIRED


def test_uids_stand_in_the_way_only_where_the_chain_says_so() -> None:
    guarded = a_configuration()
    free = Bench(msgspec.structs.replace(guarded, guards_uids=False))
    pair = [some_primes(1), some_primes(1, salt=1)]
    free_block, free_reports = free.collate(pair)
    guarded_block, reports = Bench(guarded).collate(pair)

    assert free_reports == [ExecutedMessage(free_block.block_id)] * 2
    assert reports[0] == ExecutedMessage(guarded_block.block_id)
    assert isinstance(reports[1], RefusedMessage)


def test_the_same_body_for_another_account_is_another_message() -> None:
    bench = Bench()
    applied, reports = bench.collate([some_primes(1), some_primes(2)])

    assert reports == [ExecutedMessage(applied.block_id)] * 2
