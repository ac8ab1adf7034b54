"""Forged proofs: what attackers show is refused by both verifiers, and would be believed without the rule that refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.votes import VoteKind, signed_bytes
from stagepost.chain.configuration import Configuration
from stagepost.chain.hash_tree import leaf_hash, root_above
from stagepost.chain.master_state import PlanKind
from stagepost.chain.message_values import ReadMessage
from stagepost.chain.proofs import proof_rules
from stagepost.chain.proofs.proof_files import Checkpoint, write_file
from stagepost.chain.proofs.proof_form import (
    AbsenceProof,
    AccountProof,
    EndKind,
    ExecutedAsEnd,
    ExecutedEnd,
    KeyBlockProof,
    MasterProof,
    MessageProof,
    NeverEnd,
    ProofPath,
)
from stagepost.chain.proofs.proof_making import ShardEvidence, end_in, evidence_of
from stagepost.chain.proofs.proof_rules import CheckedEnd, ProofRefused, ProofVerifier, Refusal
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_state import ShardState
from stagepost.ground.wire.tl import Writer
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD
from tests.unit.chain.proofs.test_message_proofs import a_chain_with_a_key_block, three_ends
from tests.worlds.chain.chain_world import START_MS, a_genesis
from tests.worlds.chain.proved_chain import (
    WINDOW_MS,
    ProvedChain,
    a_message,
    a_proving_configuration,
    a_signing_set,
    an_account,
    certified,
    forged,
    opinions,
    second,
)

Plant = Callable[[pytest.MonkeyPatch], None]


def assert_refused(
    chain: ProvedChain,
    proof: MessageProof,
    message: ReadMessage,
    refusal: Refusal,
    checkpoint: Checkpoint | None = None,
) -> None:
    content = write_file(proof, message.external.message_id)
    first, other = opinions(content, chain.genesis, checkpoint)
    assert first is refusal, first
    assert isinstance(other, str), other


def assert_believed(chain: ProvedChain, proof: MessageProof, checkpoint: Checkpoint | None = None) -> None:
    """The forgery is good but for the rule that a planted defect has taken away."""
    ProofVerifier(chain.genesis, checkpoint).check(proof)


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def evidence_for(chain: ProvedChain, message: ReadMessage) -> ShardEvidence:
    held = chain.maker._evidences.values()
    holding = [one for one in held if one.state.shard.holds(0, message.external.account)]
    return max(holding, key=lambda one: one.state.time_ms)


# ── every byte ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", list(EndKind))
def test_a_proof_with_any_byte_changed_is_refused(kind: EndKind) -> None:
    chain, messages = three_ends()
    content = chain.file(messages[kind])
    genesis, _ = second.read_genesis(chain.genesis.encode())
    verifier = ProofVerifier(chain.genesis)
    verifier.check_file(content)
    begin, end = content.index(b'"proof":"') + 9, len(content) - 2
    # Each letter of the frame and of the id, and each byte of the proof: another first digit, and all bits turned round.
    spoiled = [
        content[:place] + (b"1" if content[place] == ord("0") else b"0") + content[place + 1 :]
        for place in (*range(begin), *range(begin, end, 2), end, end + 1)
    ]
    for place in range(begin, end, 2):
        turned = 0xFF ^ int(content[place : place + 2], 16)
        spoiled.append(content[:place] + b"%02x" % turned + content[place + 2 :])

    for one in spoiled:
        with pytest.raises(ProofRefused):
            verifier.check_file(one)
        with pytest.raises(second.Refused):
            second.verify(one, genesis)


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) - 1])
def test_the_greatest_numbers_of_sessions_and_key_blocks_are_refused_by_name(number: int) -> None:
    chain, message, newest = a_chain_with_a_key_block()
    proof = chain.proof(message)
    assert proof.master is not None
    seal = msgspec.structs.replace(proof.master.seal, catchain_seqno=number)
    other_session = msgspec.structs.replace(proof.master, seal=seal)
    behind = msgspec.structs.replace(newest, seqno=number)
    from_there = msgspec.structs.replace(proof, begins_at=number, way=())

    assert_refused(chain, msgspec.structs.replace(proof, master=other_session), message, Refusal.SIGNATURE)
    assert_refused(chain, from_there, message, Refusal.ORDER, behind)


def test_a_checkpoint_of_number_0_is_the_genesis() -> None:
    chain, message, newest = a_chain_with_a_key_block()

    substituted = msgspec.structs.replace(newest, seqno=0)
    assert_refused(chain, chain.proof(message), message, Refusal.SECOND_KEY_BLOCK, substituted)


def test_a_master_block_in_the_form_of_a_key_block_is_refused_behind_the_true_one() -> None:
    """Number 71,934 is a length of 280 bytes in TL, which is what follows it in the part of a master block."""
    chain, messages = three_ends()
    message = messages[EndKind.EXECUTED]
    true = old_history(chain, message, seqno=254 | 280 << 8)
    assert true.master is not None
    writer = Writer()
    true.master.write_root(writer)
    writer.write_int256(true.master.file_hash)
    same = KeyBlockProof(writer.written()[4:], true.master.seal)
    turned = msgspec.structs.replace(true, way=(same,), master=None)
    verifier = ProofVerifier(chain.genesis)

    verifier.check(true)
    with pytest.raises(ProofRefused):
        verifier.check(turned)


def test_a_proof_that_is_cut_short_or_has_more_is_refused() -> None:
    chain, messages = three_ends()
    data = chain.proof(messages[EndKind.NEVER]).encode()
    identifier = messages[EndKind.NEVER].external.message_id.hex()

    for spoiled in (data[:-1], data[:-4], data + b"\x00", data + bytes(4), b""):
        text = f'{{"stagepost_proof":1,"kind":"never","id":"{identifier}","proof":"{spoiled.hex()}"}}'
        first, other = opinions(text.encode(), chain.genesis)
        assert first is Refusal.FORM
        assert isinstance(other, str)


# ── proofs of something else ─────────────────────────────────────────────────────────────────────────────────


def test_a_proof_of_another_network_is_refused() -> None:
    chain, messages = three_ends()
    elsewhere = a_genesis(a_proving_configuration(), name="elsewhere")

    first, other = opinions(chain.file(messages[EndKind.EXECUTED]), elsewhere)

    assert first is Refusal.SIGNATURE
    assert isinstance(other, str)


def test_a_proof_of_another_id_is_refused() -> None:
    chain, messages = three_ends()
    other_id = messages[EndKind.NEVER]
    proof = chain.proof(messages[EndKind.EXECUTED])
    assert isinstance(proof.end, ExecutedEnd)

    assert_refused(chain, proof, other_id, Refusal.OTHER_FILE)
    end = msgspec.structs.replace(proof.end, message_id=other_id.external.message_id)
    assert_refused(chain, msgspec.structs.replace(proof, end=end), other_id, Refusal.NOT_COMMITTED)


def test_a_proof_of_another_account_block_and_session_is_refused() -> None:
    chain, messages = three_ends()
    message = messages[EndKind.EXECUTED]
    proof = chain.proof(message)
    later = chain.proof(messages[EndKind.NEVER])
    assert isinstance(proof.end, ExecutedEnd)
    assert proof.master is not None
    assert later.master is not None

    end = msgspec.structs.replace(proof.end, address=an_account(2))
    assert_refused(chain, msgspec.structs.replace(proof, end=end), message, Refusal.NOT_COMMITTED)
    moved = msgspec.structs.replace(proof, shard=later.shard)
    assert_refused(chain, moved, message, Refusal.NOT_COMMITTED)
    assert_refused(chain, msgspec.structs.replace(proof, master=later.master), message, Refusal.NOT_COMMITTED)
    seal = msgspec.structs.replace(proof.master.seal, catchain_seqno=proof.master.seal.catchain_seqno + 1)
    other_session = msgspec.structs.replace(proof.master, seal=seal)
    assert_refused(chain, msgspec.structs.replace(proof, master=other_session), message, Refusal.SIGNATURE)


# ── attackers, and the rule that stops each ──────────────────────────────────────────────────────────────────


def test_absence_in_the_other_half_of_a_split_shard_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ProvedChain()
    chain.carry_out(a_message(1))
    chain.master_block(plans=[Plan(PlanKind.SPLIT, Shard(0, WHOLE_SHARD), chain.now_ms)])
    victim = a_message(1, 30)
    chain.carry_out(victim)
    chain.pass_time(START_MS + 31_000)
    others = [
        one
        for one in chain.maker._evidences.values()
        if not one.state.shard.holds(0, victim.external.account)
    ]
    evidence = others[-1]
    path = evidence.state.accounts.path(victim.external.account)
    end = NeverEnd(victim.external.body, AbsenceProof(ProofPath(path.siblings), path.leaf))
    sealed = evidence.sealed.part
    proof = MessageProof(0, (), sealed.master if not hasattr(sealed, "block") else None, evidence.shard, end)

    assert_refused(chain, proof, victim, Refusal.WRONG_SHARD)
    monkeypatch.setattr(proof_rules, "require_shard", nothing)
    assert_believed(chain, proof)


def test_a_twin_that_was_executed_is_not_hidden_by_the_absence_of_the_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain, messages = three_ends()
    twin = messages[EndKind.EXECUTED_AS]
    evidence = evidence_for(chain, twin)
    account = evidence.state.accounts.get(twin.external.account)
    assert account is not None
    path = account.recent.path(twin.external.message_id)
    absence = AbsenceProof(ProofPath(path.siblings), path.leaf)
    held = AccountProof(
        ProofPath(evidence.state.accounts.path(twin.external.account).siblings),
        account.balance,
        account.memory,
    )
    end = NeverEnd(twin.external.body, held, absence, absence)
    proof = msgspec.structs.replace(chain.proof(messages[EndKind.NEVER]), end=end)

    content = write_file(proof, twin.external.message_id)
    first, other = opinions(content, chain.genesis)
    assert first in (Refusal.TWO_TREES, Refusal.BAD_NEIGHBOUR)
    assert isinstance(other, str)
    monkeypatch.setattr(
        proof_rules,
        "absent_recent",
        lambda end, place: proof_rules.absent_root(end.id_absence, place.message_id),
    )
    assert_believed(chain, proof)


def test_notarise_votes_are_not_taken_for_finalise_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ProvedChain()
    message = a_message(1)
    chain.maker.expect(message)
    chain.carry_out(message)
    proof, final = chain.proof(message), chain.finals[-1]
    assert proof.master is not None
    keys = chain.ledger.master_session().public_keys
    notarised = certified(final.certificate.session_id, final.candidate, keys, VoteKind.NOTARISE)
    seal = msgspec.structs.replace(proof.master.seal, signatures=notarised.signatures)
    lying = msgspec.structs.replace(proof, master=msgspec.structs.replace(proof.master, seal=seal))

    assert_refused(chain, lying, message, Refusal.SIGNATURE)
    monkeypatch.setattr(
        proof_rules,
        "certified_bytes",
        lambda session, slot, block: signed_bytes(session, slot, VoteKind.NOTARISE, block),
    )
    assert_believed(chain, lying)


def test_a_signer_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, messages = three_ends()
    message = messages[EndKind.EXECUTED]
    proof = chain.proof(message)
    assert proof.master is not None
    signatures = proof.master.seal.signatures
    repeated = (*signatures[:4], signatures[3])
    seal = msgspec.structs.replace(proof.master.seal, signatures=repeated)
    lying = msgspec.structs.replace(proof, master=msgspec.structs.replace(proof.master, seal=seal))

    with pytest.raises(ProofRefused) as refused:
        ProofVerifier(chain.genesis).check(lying)
    assert refused.value.refusal is Refusal.QUORUM
    assert_refused(chain, lying, message, Refusal.FORM)
    monkeypatch.setattr(proof_rules, "require_quorum", nothing)
    assert_believed(chain, lying)


@pytest.mark.parametrize("signers", [4, 6])
def test_exactly_a_quorum_signs(signers: int) -> None:
    chain = ProvedChain()
    message = a_message(1)
    chain.maker.expect(message)
    chain.carry_out(message)
    proof, final = chain.proof(message), chain.finals[-1]
    assert proof.master is not None
    keys = chain.ledger.master_session().public_keys
    more = certified(final.certificate.session_id, final.candidate, keys, signers=range(signers))
    seal = msgspec.structs.replace(proof.master.seal, signatures=more.signatures)
    other = msgspec.structs.replace(proof, master=msgspec.structs.replace(proof.master, seal=seal))

    assert_refused(chain, other, message, Refusal.QUORUM)


def test_a_minority_finds_no_catchain_number_under_which_it_is_a_quorum() -> None:
    chain, messages = three_ends()
    message = messages[EndKind.NEVER]
    evidence = evidence_for(chain, message)
    end = end_in(evidence, message)
    assert end is not None
    lying = forged(chain, evidence, end, signers=range(2))

    for number in range(200):
        assert lying.master is not None
        seal = msgspec.structs.replace(lying.master.seal, catchain_seqno=number)
        ground = msgspec.structs.replace(lying, master=msgspec.structs.replace(lying.master, seal=seal))
        with pytest.raises(ProofRefused) as refused:
            ProofVerifier(chain.genesis).check(ground)
        assert refused.value.refusal is Refusal.QUORUM


def old_history(chain: ProvedChain, message: ReadMessage, **given: Any) -> MessageProof:
    """Return what holders of a whole quorum of keys can write: here the keys of a set that has left."""
    evidence = evidence_for(chain, message)
    end = end_in(evidence, message)
    assert end is not None
    return forged(chain, evidence, end, **given)


def test_keys_of_a_set_that_has_left_do_not_go_past_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, message, newest = a_chain_with_a_key_block()
    lying = old_history(chain, message)

    assert_believed(chain, lying)
    assert_refused(chain, lying, message, Refusal.SKIPPED_CHECKPOINT, newest)
    monkeypatch.setattr(proof_rules, "require_through", nothing)
    assert_believed(chain, lying, newest)


def test_keys_of_a_set_that_has_left_end_no_message_that_was_sent_after_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number before the checkpoint's goes past no key block; then the time must be before the checkpoint's, too."""
    chain, message, newest = a_chain_with_a_key_block()
    later = msgspec.structs.replace(newest, seqno=5_000, time_ms=START_MS + 400_000)
    lying = old_history(chain, message, seqno=4_999, time_ms=later.time_ms)

    assert_believed(chain, old_history(chain, message, seqno=4_999, time_ms=later.time_ms - 1), later)
    assert_refused(chain, lying, message, Refusal.ORDER, later)
    monkeypatch.setattr(proof_rules, "require_earlier", nothing)
    assert_believed(chain, lying, later)


def test_no_end_is_later_than_its_shard_block_nor_that_later_than_its_master_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who buys old keys would date the master block before the checkpoint or the hand-over, and the end behind it."""
    chain, messages = three_ends()
    never, twin = messages[EndKind.NEVER], messages[EndKind.EXECUTED_AS]
    shard, end = chain.proof(twin).shard, chain.proof(twin).end
    evidence = msgspec.structs.replace(evidence_for(chain, twin), shard=shard)
    assert isinstance(end, ExecutedAsEnd)
    at_ms = chain.proof(never).shard.time_ms
    ahead = msgspec.structs.replace(end, time_ms=shard.time_ms + 1)
    lies = (
        (never, old_history(chain, never, time_ms=at_ms - 1)),
        (twin, forged(chain, evidence, ahead)),
    )

    assert_believed(chain, old_history(chain, never, time_ms=at_ms))
    for message, lying in lies:
        assert_refused(chain, lying, message, Refusal.ORDER)
    monkeypatch.setattr(proof_rules, "require_no_later", nothing)
    for _, lying in lies:
        assert_believed(chain, lying)


def test_a_skipped_key_block_and_a_stale_configuration_are_refused() -> None:
    chain, message, _ = a_chain_with_a_key_block()
    proof = chain.proof(message)

    assert_refused(chain, msgspec.structs.replace(proof, way=()), message, Refusal.SIGNATURE)
    first = chain.genesis.configuration
    stale = old_history(
        chain, message, checkpoint=chain.maker.seals.newest, configuration=first, way=proof.way
    )
    assert_refused(chain, stale, message, Refusal.SIGNATURE)


def test_a_key_block_that_changes_no_validator_is_not_skipped_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the window of the former configuration, a forgotten execution would look like absence. The planted defect
    believes the session that the blocks name instead of computing it behind the last key block of the way.
    """
    chain = ProvedChain()
    message = a_message(1)
    wider = msgspec.structs.replace(chain.genesis.configuration, expiry_ahead_max_ms=2 * WINDOW_MS)
    chain.ledger.wanted.add(wider.hash)
    chain.master_block(configuration=wider)
    chain.maker.expect(message)
    chain.carry_out(message)
    proof = chain.proof(message)
    assert len(proof.way) == 1
    skipping = msgspec.structs.replace(proof, way=())

    assert_believed(chain, proof)
    assert_refused(chain, skipping, message, Refusal.SIGNATURE)
    session = chain.ledger.master_session().session_id
    monkeypatch.setattr(proof_rules, "session_of", lambda *_: session)
    assert_believed(chain, skipping)


def test_a_way_over_a_block_that_is_no_key_block_is_refused() -> None:
    chain, messages = three_ends()
    message = messages[EndKind.NEVER]
    first = next(iter(chain.finals))
    proof = chain.proof(message)
    assert proof.master is not None
    earlier = chain.proof(messages[EndKind.EXECUTED]).master
    assert earlier is not None
    step = KeyBlockProof(first.candidate.payload, earlier.seal)

    assert_refused(chain, msgspec.structs.replace(proof, way=(step,)), message, Refusal.NO_KEY_BLOCK)


def test_the_set_before_a_hand_over_proves_nothing_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_over_ms = START_MS + 20_000
    later = a_signing_set(7, "later", hand_over_ms)
    chain = ProvedChain(a_genesis(a_proving_configuration(next_set=later)))
    message = a_message(1)
    chain.carry_out(message)
    before = old_history(chain, message, time_ms=hand_over_ms - 1)
    behind = old_history(chain, message, time_ms=hand_over_ms)

    assert_believed(chain, before)
    assert_refused(chain, behind, message, Refusal.AFTER_HAND_OVER)
    monkeypatch.setattr(proof_rules, "require_before_hand_over", nothing)
    assert_believed(chain, behind)


def test_a_shard_block_that_was_final_and_dropped_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = msgspec.structs.replace(a_proving_configuration(), shard_lifetime_ms=20_000)
    chain = ProvedChain(a_genesis(configuration))
    chain.carry_out(a_message(2))
    message = a_message(1)
    session = chain.ledger.sessions()[0]
    held = chain.ledger.chain(session.session_id)
    assert held is not None
    chain.now_ms -= 1_000  # not later than the master block, or the rule of times refuses it first
    chain.shard_block(session.session_id, [message.external])
    dropped = held.final[-1][1]
    good = evidence_for(chain, message)
    evidence = msgspec.structs.replace(evidence_of_dropped(good, dropped), state=dropped.state)
    end = end_in(evidence, message)
    assert isinstance(end, ExecutedEnd)
    part: Any = good.sealed.part
    proof = MessageProof(0, (), part.master, evidence.shard, end)

    assert_refused(chain, proof, message, Refusal.NOT_COMMITTED)
    monkeypatch.setattr(proof_rules, "require_committed", nothing)
    assert_believed(chain, proof)


def evidence_of_dropped(good: ShardEvidence, dropped: Any) -> ShardEvidence:
    block = msgspec.structs.replace(good.sealed.block, commits=((dropped.block_id,),))
    return evidence_of(msgspec.structs.replace(good.sealed, block=block), dropped)


def test_a_forgotten_execution_is_not_taken_for_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ProvedChain(
        a_genesis(msgspec.structs.replace(a_proving_configuration(), master_lifetime_ms=20_000))
    )
    message = a_message(1)
    chain.carry_out(message)
    for number in range(1, 12):
        chain.pass_time(START_MS + number * WINDOW_MS // 3)
    evidence = evidence_for(chain, message)
    assert evidence.state.remembers_from_ms > message.expires_at_s * 1_000 - WINDOW_MS
    assert end_in(evidence, message) is None
    forgetful = msgspec.structs.replace(
        evidence, state=msgspec.structs.replace(evidence.state, remembers_from_ms=0)
    )
    end = end_in(forgetful, message)
    assert isinstance(end, NeverEnd)
    part: Any = evidence.sealed.part
    proof = MessageProof(0, (), part.master, evidence.shard, end)

    assert_refused(chain, proof, message, Refusal.FORGOTTEN)
    monkeypatch.setattr(proof_rules, "require_expired", nothing)
    assert_believed(chain, proof)


def test_a_state_from_before_the_expiry_proves_no_absence() -> None:
    chain = ProvedChain()
    message = a_message(1)
    chain.carry_out(a_message(2))
    evidence = evidence_for(chain, message)
    late: ShardState = msgspec.structs.replace(evidence.state, time_ms=START_MS + WINDOW_MS)
    end = end_in(msgspec.structs.replace(evidence, state=late), message)
    assert isinstance(end, NeverEnd)
    part: Any = evidence.sealed.part

    assert_refused(chain, MessageProof(0, (), part.master, evidence.shard, end), message, Refusal.TOO_EARLY)


def test_the_leaf_of_an_account_next_to_the_victims_does_not_hide_the_victim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = ProvedChain()
    victim = an_account(1)
    beside = bytes([*victim[:30], victim[30] ^ 1, victim[31]])
    message, twin = a_message(victim), a_message(victim, 30)
    chain.carry_out(a_message(beside), message)
    chain.pass_time(START_MS + 31_000)
    evidence = evidence_for(chain, twin)
    path = evidence.state.accounts.path(beside)
    end = NeverEnd(twin.external.body, AbsenceProof(ProofPath(path.siblings), path.leaf))
    part: Any = evidence.sealed.part
    proof = MessageProof(0, (), part.master, evidence.shard, end)

    assert_refused(chain, proof, twin, Refusal.BAD_NEIGHBOUR)
    itself = evidence.state.accounts.path(victim)
    end = NeverEnd(twin.external.body, AbsenceProof(ProofPath(itself.siblings), itself.leaf))
    hidden = msgspec.structs.replace(proof, end=end)
    assert_refused(chain, hidden, twin, Refusal.BAD_NEIGHBOUR)
    monkeypatch.setattr(
        proof_rules,
        "absent_root",
        lambda absence, key: root_above(leaf_hash(*absence.other), key, absence.path.siblings),
    )
    assert_believed(chain, hidden)


def test_a_uid_that_was_taken_outside_the_life_of_the_message_is_refused() -> None:
    chain, messages = three_ends()
    twin = messages[EndKind.EXECUTED_AS]
    proof = chain.proof(twin)
    shorter = Configuration.decode(chain.genesis.configuration.encode())
    assert proof.kind is EndKind.EXECUTED_AS
    place = proof_rules.place_of(proof.end, proof.shard)

    for time_ms in (START_MS + 30_000, START_MS + 30_000 - WINDOW_MS - 1):
        end: Any = msgspec.structs.replace(proof.end, time_ms=time_ms)
        with pytest.raises(ProofRefused) as refused:
            proof_rules.require_twin(end, place, START_MS + 30_000, shorter.expiry_ahead_max_ms)
        assert refused.value.refusal is Refusal.OTHER_TIME
    own: Any = msgspec.structs.replace(proof.end, by=twin.external.message_id)
    with pytest.raises(ProofRefused):
        proof_rules.require_twin(own, place, START_MS + 30_000, shorter.expiry_ahead_max_ms)


def test_candidates_of_a_seal_stand_in_rising_slots() -> None:
    chain = ProvedChain()
    message = a_message(1)
    chain.maker.expect(message)
    chain.is_held_back = True
    chain.carry_out(message)
    chain.is_held_back = False
    chain.carry_out(a_message(2))
    proof = chain.proof(message)
    assert proof.master is not None
    seal = proof.master.seal
    turned = msgspec.structs.replace(seal, later=tuple((seal.slot, block) for _, block in seal.later))

    assert_refused(
        chain,
        msgspec.structs.replace(proof, master=msgspec.structs.replace(proof.master, seal=turned)),
        message,
        Refusal.ORDER,
    )
    assert isinstance(proof.master, MasterProof)
    assert isinstance(chain.finals[0].candidate, Candidate)
    found = ProofVerifier(chain.genesis).check(proof)
    assert isinstance(found, CheckedEnd)
