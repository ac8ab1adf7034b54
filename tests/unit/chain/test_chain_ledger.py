"""The embedded chain as a ledger: events in their order, failures by switch, sessions that are foreseen, finals that come early."""

from __future__ import annotations

import sys
from hashlib import sha256

import msgspec
import pytest

from rigs.chain_messages import a_transfer, address, external, some_primes
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.declined import DeclinedCandidate, Rule
from stagepost.chain.following import ENDED_MAX, WAITING_MAX
from stagepost.chain.history import KeptBlock
from stagepost.chain.ledger import EmbeddedLedger, NoAnswer
from stagepost.chain.master_state import MASTER_SHARD, PlanKind
from stagepost.chain.rotation import Plan
from stagepost.chain.session_chain import CANDIDATES_MAX
from stagepost.chain.snapshots import restored
from stagepost.errors import ConfigError, DecodeError, LocalProtocolError
from stagepost.remp.ledger import (
    CandidateBuilt,
    CandidateLost,
    CandidateRefused,
    Ledger,
    MasterApplied,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD, BlockId
from tests.worlds.chain.chain_replay import replay
from tests.worlds.chain.chain_world import (
    LIFETIME_MS,
    DecidedChain,
    a_configuration,
    a_genesis,
)

WHOLE = Shard(0, WHOLE_SHARD)
RICH = address(ContractKind.BALANCE, 1, first_bits=0x10)


def test_the_embedded_chain_is_what_the_queue_needs() -> None:
    ledger: Ledger = EmbeddedLedger(a_genesis())

    assert ledger.shard_of(0, RICH) == WHOLE
    assert ledger.shard_of(-1, RICH) is None
    assert ledger.session(WHOLE) == ledger.sessions()[0]
    assert ledger.session(WHOLE.children[0]) is None
    assert ledger.master_session().shard == MASTER_SHARD


def test_bytes_are_parsed_and_tried_before_anybody_else_sees_them() -> None:
    chain = DecidedChain(a_genesis(balances=[(RICH, 5)]))
    ledger, now_ms = chain.ledger, chain.now_ms
    fine = external(RICH, a_transfer(RICH, RICH, 5).body[-56:], expires_at_s=now_ms // 1_000 + 60)

    assert ledger.parse(fine.body).message == fine
    assert ledger.parse(fine.body).expires_at_s == now_ms // 1_000 + 60
    with pytest.raises(DecodeError):
        ledger.parse(b"nonsense")
    assert ledger.dry_run(a_transfer(RICH, RICH, 5), now_ms).refused is None
    assert (
        ledger.dry_run(a_transfer(RICH, RICH, 6), now_ms).refused
        == "Contract rejected message with error code 37"
    )
    assert "no account" in str(ledger.dry_run(external(RICH, b"", workchain=7), now_ms).refused)
    assert "expired" in str(ledger.dry_run(external(RICH, b"", expires_at_s=1), now_ms).refused)
    forged = ExternalMessage(bytes(32), bytes(32), 0, RICH, b"nonsense")
    assert "TL" in str(ledger.dry_run(forged, now_ms).refused)


def test_a_message_is_told_of_from_candidate_to_masterchain() -> None:
    chain = DecidedChain()
    session, message = chain.whole.session_id, some_primes(1)
    collated = chain.shard_block(session, [message])
    ids = (message.message_id,)
    assert chain.heard() == [
        CandidateBuilt(session, collated.block_id, ids, is_own=True),
        ShardCommitted(session, collated.block_id, ids),
    ]
    (applied,) = chain.master_block()

    assert isinstance(applied, MasterApplied)
    assert applied.blocks[0].block_id == collated.block_id
    assert applied.blocks[0].messages == (message,)
    assert applied.master_id == chain.ledger.master.block_id
    assert list(chain.ledger.history(1)) == list(applied.blocks)
    assert not list(chain.ledger.history(2))
    assert chain.ledger.messages_of(collated.payload) == (message,)


def test_a_candidate_of_another_validator_is_told_of_too() -> None:
    author, checker = DecidedChain(), DecidedChain()
    session = author.whole.session_id
    collated = author.propose(session, [some_primes(1)])
    assert collated is not None
    answer = checker.ledger.check(session, b"c" * 32, session, collated.payload, author.now_ms)

    assert answer == collated.block_id
    assert checker.heard() == [
        CandidateBuilt(session, collated.block_id, (some_primes(1).message_id,), is_own=False)
    ]


def test_our_own_candidate_is_not_told_of_again_when_it_comes_back() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    collated = chain.propose(session, [])
    assert collated is not None
    chain.heard()

    assert (
        chain.ledger.check(session, b"c" * 32, session, collated.payload, chain.now_ms) == collated.block_id
    )
    assert chain.heard() == []


def test_a_chain_with_cells_needs_the_package_that_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    genesis = a_genesis(a_configuration(takes_cells=True))
    assert EmbeddedLedger(genesis).master.configuration.takes_cells
    monkeypatch.delitem(sys.modules, "stagepost.chain.cell_messages")
    monkeypatch.setitem(sys.modules, "pytoniq_core.boc", None)

    with pytest.raises(ConfigError, match="not installed") as caught:
        EmbeddedLedger(genesis)
    assert caught.value.advice == "install stagepost[ton]"
    assert EmbeddedLedger(a_genesis()).sessions()


# Failures as the documents name them


def test_a_candidate_may_be_lost() -> None:
    chain = DecidedChain()
    chain.ledger.switches.loses = lambda _: True
    session = chain.whole.session_id

    assert chain.propose(session, [some_primes(1)]) is None
    built, lost = chain.heard()
    assert isinstance(built, CandidateBuilt)
    assert lost == CandidateLost(session, built.block_id)


def test_a_candidate_may_be_refused_by_validators() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    collated = chain.propose(session, [some_primes(1)])
    assert collated is not None
    chain.heard()
    chain.ledger.switches.refuses = lambda block_id: block_id == collated.block_id
    answer = chain.ledger.check(session, b"c" * 32, session, collated.payload, chain.now_ms)

    assert isinstance(answer, DeclinedCandidate)
    assert answer.rule is Rule.BY_SWITCH
    assert chain.heard() == [CandidateRefused(session, collated.block_id)]


def test_a_candidate_with_a_replay_is_refused_and_the_message_named() -> None:
    honest, chain = DecidedChain(), DecidedChain()
    session, message = chain.whole.session_id, some_primes(1)
    bad = honest.propose(session, [message])
    assert bad is not None
    chain.shard_block(session, [message])
    chain.heard()
    top = chain.ledger.chain(session)
    assert top is not None
    block = honest.ledger.following.chains[session].open_candidates()[0].block
    replayed = msgspec.structs.replace(
        block, previous=top.top.previous, seqno=top.top.seqno + 1, time_ms=top.top.time_ms + 1
    )
    payload = replayed.encode()
    answer = chain.ledger.check(session, b"c" * 32, top.top_hash, payload, chain.now_ms)

    assert isinstance(answer, DeclinedCandidate)
    assert answer.rule is Rule.REPLAY
    assert chain.heard() == [CandidateRefused(session, replayed.block_id(payload), (message.message_id,))]


def test_a_candidate_may_be_ignored_and_is_lost_when_another_takes_its_place() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    collated = chain.propose(session, [some_primes(1)])
    assert collated is not None
    chain.ledger.switches.ignores = lambda _: True
    answer = chain.ledger.check(session, b"c" * 32, session, collated.payload, chain.now_ms)
    assert isinstance(answer, NoAnswer)
    chain.ledger.switches.ignores = lambda _: False
    chain.heard()
    other = chain.shard_block(session, [])
    events = chain.heard()

    assert CandidateLost(session, collated.block_id) in events
    assert events[-1] == ShardCommitted(session, other.block_id, ())


def test_a_block_may_be_left_out_by_the_masterchain_and_is_dropped_with_its_session() -> None:
    """The new session starts from what the rotating master block holds; what is beyond it returns."""
    chain = DecidedChain()
    session = chain.whole.session_id
    first = chain.shard_block(session, [some_primes(1)])
    second = chain.shard_block(session, [some_primes(2)])
    third = chain.propose(session, [some_primes(3)])
    assert third is not None
    chain.heard()
    chain.ledger.switches.leaves_out = lambda block_id: block_id == second.block_id
    events = chain.master_block(after_ms=LIFETIME_MS)
    applied = events[-1]

    assert events[:-1] == [
        CandidateLost(session, third.block_id),
        ShardDropped(session, second.block_id, (some_primes(2).message_id,)),
    ]
    assert isinstance(applied, MasterApplied)
    assert [one.block_id for one in applied.blocks] == [first.block_id]
    assert session in applied.ended
    assert chain.whole in applied.started
    assert chain.whole.start == (first.block_id,)
    again = chain.shard_block(chain.whole.session_id, [some_primes(2), some_primes(1)])
    assert chain.ledger.messages_of(again.payload) == (some_primes(2),)


def test_a_block_that_becomes_final_after_its_session_is_dropped() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    late = chain.propose(session, [some_primes(1)])
    assert late is not None
    chain.master_block(after_ms=LIFETIME_MS)
    chain.finalise(session, late.payload)

    assert chain.heard() == [ShardDropped(session, late.block_id, (some_primes(1).message_id,))]
    assert chain.propose(chain.whole.session_id, []) is not None
    assert chain.ledger.collate(session, session, [], chain.now_ms) is None
    answer = chain.ledger.check(session, b"c" * 32, session, late.payload, chain.now_ms)
    assert isinstance(answer, DeclinedCandidate)
    assert answer.rule is Rule.WRONG_SESSION


# Finals that come early


def test_a_master_block_waits_for_the_shard_blocks_it_commits() -> None:
    chain = DecidedChain()
    other = EmbeddedLedger(chain.genesis)
    chain.shard_block(chain.whole.session_id, [some_primes(1)])
    chain.master_block()
    shard, master = chain.kept.blocks()
    other.finalised(master.session_id, master.candidate, master.payload, b"")
    assert other.master.seqno == 0
    assert other.events() == []
    other.finalised(shard.session_id, shard.candidate, shard.payload, b"")

    assert other.master == chain.ledger.master


def test_a_shard_block_waits_for_the_master_block_it_refers_to() -> None:
    chain = DecidedChain()
    other = EmbeddedLedger(chain.genesis)
    chain.master_block(after_ms=LIFETIME_MS)
    chain.shard_block(chain.whole.session_id, [])
    master, shard = chain.kept.blocks()
    answer = other.check(shard.session_id, shard.candidate, shard.session_id, shard.payload, chain.now_ms)
    assert isinstance(answer, DeclinedCandidate)
    other.finalised(shard.session_id, shard.candidate, shard.payload, b"")
    assert other.events() == []
    other.finalised(master.session_id, master.candidate, master.payload, b"")

    assert [type(event) for event in other.events()] == [MasterApplied, ShardCommitted]


def spoilt(payload: bytes) -> bytes:
    """The block with another state than its content leads to."""
    return payload[:-1] + bytes([payload[-1] ^ 1])


def test_a_certified_shard_block_that_cannot_be_is_evidence_and_ends_only_its_session() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    before = chain.shard_block(session, [some_primes(1)])
    collated = chain.propose(session, [some_primes(2)])
    assert collated is not None
    chain.finalise(session, spoilt(collated.payload))
    chain.finalise(session, collated.payload)  # what rests on a bad block, or comes too late

    fault = chain.ledger.following.evidence[session]
    assert "wrong state" in fault.reason
    assert fault.kept.payload == spoilt(collated.payload)
    assert chain.payloads() == [before.payload]
    chain.master_block(after_ms=LIFETIME_MS)
    following = chain.whole.session_id
    assert following != session
    chain.shard_block(following, [some_primes(2)])
    chain.master_block()
    account = chain.ledger.account(0, some_primes(2).account)
    assert account is not None
    assert account.recent.get(some_primes(2).message_id) is not None
    replayed = replay(chain.genesis, chain.payloads())
    # Others may know another block in place of the first one, too: we propose nothing of such a session.
    assert [one.messages[0].message_id for one in replayed.order] == [some_primes(2).message_id]


def test_of_so_many_sessions_with_a_bad_block_the_evidence_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.chain.following.EVIDENCE_MAX", 2)
    chain = DecidedChain()
    sessions: list[bytes] = []
    for _ in range(3):
        sessions.append(chain.whole.session_id)
        collated = chain.propose(sessions[-1], [])
        assert collated is not None
        chain.finalise(sessions[-1], spoilt(collated.payload))
        chain.master_block(after_ms=LIFETIME_MS)

    assert list(chain.ledger.following.evidence) == sessions[1:]


def test_a_certified_master_block_that_cannot_be_stops_us() -> None:
    chain = DecidedChain()
    session = chain.ledger.master.session.session_id

    with pytest.raises(LocalProtocolError, match="wrong state"):
        chain.finalise(session, spoilt(chain.master_payload()))


def test_only_so_many_blocks_wait_for_others() -> None:
    ledger = EmbeddedLedger(a_genesis())
    for _ in range(WAITING_MAX):
        ledger.finalised(b"s" * 32, b"c" * 32, b"", b"")

    with pytest.raises(LocalProtocolError, match="wait for others"):
        ledger.finalised(b"s" * 32, b"c" * 32, b"", b"")


# Bounds


def test_only_so_many_candidates_are_remembered() -> None:
    chain = DecidedChain()
    session = chain.whole.session_id
    payloads = []
    for number in range(CANDIDATES_MAX + 1):
        collated = chain.propose(session, [some_primes(number, up_to=2)])
        assert collated is not None
        payloads.append(collated.payload)
        candidate = sha256(collated.payload).digest()
        chain.ledger.check(session, candidate, session, collated.payload, chain.now_ms)
    here = chain.ledger.chain(session)

    assert here is not None
    assert len(here.open_candidates()) == CANDIDATES_MAX
    first = sha256(payloads[0]).digest()
    assert chain.ledger.collate(session, first, [], chain.now_ms) is None
    second = sha256(payloads[1]).digest()
    assert chain.ledger.collate(session, second, [], chain.now_ms) is not None


def test_ended_sessions_are_forgotten_in_the_end() -> None:
    chain = DecidedChain()
    following = chain.ledger.following
    first = chain.whole.session_id
    chain.master_block(after_ms=LIFETIME_MS)
    for number in range(ENDED_MAX - 2):
        following._end(sha256(b"%d" % number).digest())
    block = chain.kept.blocks()
    late = KeptBlock(first, b"c" * 32, next(iter(block)).payload, b"")
    assert first in following._ended
    following._end(bytes(32))

    assert first not in following._ended
    assert late.session_id == first


def test_a_master_block_is_wanted_when_there_is_something_to_do() -> None:
    chain = DecidedChain()
    assert not chain.ledger.is_master_block_wanted(chain.now_ms)
    assert chain.ledger.is_master_block_wanted(chain.whole.ends_ms)
    chain.shard_block(chain.whole.session_id, [])
    assert chain.ledger.is_master_block_wanted(chain.now_ms)
    chain.master_block([Plan(PlanKind.SPLIT, WHOLE, chain.now_ms + 5_000)])
    assert not chain.ledger.is_master_block_wanted(chain.now_ms)
    assert chain.ledger.is_master_block_wanted(chain.now_ms + 5_000)


def test_an_unknown_parent_is_nothing_to_build_upon() -> None:
    chain = DecidedChain()
    session, master = chain.whole.session_id, chain.ledger.master.session.session_id

    assert chain.ledger.collate(session, b"p" * 32, [], chain.now_ms) is None
    assert chain.ledger.collate_master(master, b"p" * 32, chain.now_ms) is None
    assert chain.ledger.collate_master(b"s" * 32, master, chain.now_ms) is None
    payload = chain.master_payload()
    for one, data in ((session, payload), (master, payload)):
        answer = chain.ledger.check(one, b"c" * 32, b"p" * 32, data, chain.now_ms)
        assert isinstance(answer, DeclinedCandidate)
        assert answer.rule is Rule.WRONG_PARENT


def test_blocks_stand_upon_candidates_that_are_not_final_yet() -> None:
    """Agreement goes on from a notarised block; finality follows."""
    chain = DecidedChain()
    session = chain.whole.session_id
    first = chain.propose(session, [some_primes(1)])
    assert first is not None
    hash_of_first = sha256(first.payload).digest()
    chain.ledger.check(session, hash_of_first, session, first.payload, chain.now_ms)
    second = chain.ledger.collate(
        session, hash_of_first, [some_primes(1), external(RICH, primes_body(1))], chain.now_ms
    )
    assert second is not None
    assert second.block_id.seqno == 2
    hash_of_second = sha256(second.payload).digest()
    answer = chain.ledger.check(session, hash_of_second, hash_of_first, second.payload, chain.now_ms)
    assert isinstance(answer, BlockId)
    for payload in (first.payload, second.payload):
        chain.finalise(session, payload)

    assert chain.ledger.messages_of(second.payload) == ()
    assert chain.ledger.chain(session).top.seqno == 2  # type: ignore[union-attr]


def test_master_blocks_stand_upon_candidates_that_are_not_final_yet() -> None:
    chain = DecidedChain()
    session = chain.ledger.master.session.session_id
    chain.shard_block(chain.whole.session_id, [some_primes(1)])
    first = chain.master_payload()
    hash_of_first = sha256(first).digest()
    parent = chain.ledger.following.master_hash
    assert isinstance(chain.ledger.check(session, hash_of_first, parent, first, chain.now_ms), BlockId)
    second = chain.ledger.collate_master(session, hash_of_first, chain.now_ms + 1)
    assert second is not None
    chain.finalise(session, first)
    chain.finalise(session, second)

    assert chain.ledger.master.seqno == 2
    assert chain.ledger.master.shards[0].seqno == 1


def test_a_session_of_the_masterchain_is_closed_by_blocks_that_say_nothing() -> None:
    """A block that rotates sessions may be notarised and not final: then something must be agreed on after it."""
    chain = DecidedChain()
    ledger, session = chain.ledger, chain.ledger.master.session.session_id
    rotating = chain.master_payload(after_ms=LIFETIME_MS)
    first, second = sha256(rotating).digest(), b"2" * 32
    answer = ledger.check(session, first, session, rotating, chain.now_ms)
    assert isinstance(answer, BlockId)
    assert ledger.collate_master(session, first, chain.now_ms) == b""
    assert ledger.check(session, second, first, b"", chain.now_ms) == answer
    assert ledger.collate_master(session, second, chain.now_ms) == b""
    too_early = ledger.check(session, b"3" * 32, session, b"", chain.now_ms)
    assert isinstance(too_early, DeclinedCandidate)
    assert too_early.rule is Rule.MALFORMED
    ledger.finalised(session, first, rotating, b"notarised")
    ledger.finalised(session, second, b"", b"final")

    assert ledger.master.seqno == 1
    assert [kept.certificate for kept in chain.kept.blocks()] == [b"notarised", b"final"]
    after = ledger.master.session.session_id
    assert after != session
    assert ledger.collate_master(session, first, chain.now_ms) is None
    assert ledger.collate_master(after, after, chain.now_ms) is not None
    again = restored(chain.genesis, chain.kept)
    assert again.master == ledger.master
    assert again.collate_master(after, after, chain.now_ms) is not None
    assert replay(chain.genesis, chain.payloads()).master == ledger.master
