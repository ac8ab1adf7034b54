"""Proofs of a message's end: made from a chain, small, and accepted by two verifiers that share no code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.chain.configuration import fault_in_change
from stagepost.chain.declined import DeclinedCandidate
from stagepost.chain.following import CLOSING
from stagepost.chain.genesis import Genesis
from stagepost.chain.hash_tree import EMPTY_HASH, leaf_hash, root_above, tree_of
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.master_blocks import make_master_block
from stagepost.chain.master_state import PlanKind
from stagepost.chain.message_values import NEVER, ReadMessage
from stagepost.chain.proofs.proof_files import (
    FILE_BYTES_MAX,
    TIME_MS_MAX,
    Checkpoint,
    read_checkpoint,
    read_file,
    write_checkpoint,
    write_file,
)
from stagepost.chain.proofs.proof_form import (
    KEY_BLOCKS_MAX,
    EndKind,
    KeyBlockPart,
    MasterPart,
    ProofPath,
    cut,
    decode_part,
    decode_proof,
)
from stagepost.chain.proofs.proof_making import ProofMaker, assembled
from stagepost.chain.proofs.proof_rules import CheckedEnd, ProofRefused, ProofVerifier, Refusal
from stagepost.chain.rotation import Plan
from stagepost.errors import DecodeError, LocalProtocolError
from stagepost.ground.wire.tl import Writer
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD
from tests.worlds.chain.chain_world import START_MS, a_genesis
from tests.worlds.chain.proved_chain import (
    WINDOW_MS,
    ProvedChain,
    a_message,
    a_proving_configuration,
    a_signing_set,
    an_account,
    opinions,
    second,
)

BESIDE_THE_MESSAGE_MAX = 8 * 1024
"""Bytes of a proof beside the message's own, at most, for 7 validators and no change of configuration."""


def shown(chain: ProvedChain, message: ReadMessage, checkpoint: Checkpoint | None = None) -> CheckedEnd:
    """Return what both verifiers read in the proof of a message."""
    first, other = opinions(chain.file(message), chain.genesis, checkpoint)
    assert isinstance(first, CheckedEnd), first
    assert isinstance(other, dict), other
    assert (other["kind"], other["id"], other["account"]) == (
        first.kind,
        first.message_id.hex(),
        first.account.hex(),
    )
    assert other["block"] == first.master.block_id.seqno
    assert other["time_ms"] == first.time_ms
    assert other["executed_as"] == (None if first.executed_as is None else first.executed_as.hex())
    assert (other["signers"], other["validators"]) == (first.master.signers, first.master.validators)
    return first


def three_ends() -> tuple[ProvedChain, dict[EndKind, ReadMessage]]:
    """Return a chain with an executed message, its twin, and one that expired."""
    chain = ProvedChain()
    taken, twin, left = a_message(1), a_message(1, salt=1), a_message(1, 20)
    for message in (taken, twin, left):
        chain.maker.expect(message)
    chain.carry_out(taken, *(a_message(number, 12) for number in range(2, 40)))
    chain.pass_time(START_MS + 30_000)
    return chain, {EndKind.EXECUTED: taken, EndKind.EXECUTED_AS: twin, EndKind.NEVER: left}


@pytest.mark.parametrize("kind", list(EndKind))
def test_each_end_is_proved_in_little_space(kind: EndKind) -> None:
    chain, messages = three_ends()
    message = messages[kind]

    found = shown(chain, message)

    assert found.kind is kind
    assert found.message_id == message.external.message_id
    assert (found.executed_as is not None) is (kind is EndKind.EXECUTED_AS)
    proof = chain.proof(message)
    beside = len(proof.encode()) - (0 if kind is EndKind.EXECUTED else len(message.external.body))
    assert beside <= BESIDE_THE_MESSAGE_MAX
    assert decode_proof(proof.encode()) == proof
    assert write_file(*read_file(chain.file(message))[::2]) == chain.file(message)


def test_a_message_to_an_account_that_is_not_there_is_proved_never_executed() -> None:
    chain = ProvedChain()
    message = a_message(5)
    chain.maker.expect(message)
    chain.carry_out(a_message(1))
    assert not chain.made

    chain.pass_time(START_MS + 30_000)

    assert shown(chain, message).kind is EndKind.NEVER


def test_a_twin_ends_with_the_message_that_took_its_content_before_it_expires() -> None:
    chain = ProvedChain()
    taken, twin, elsewhere = a_message(1, salt=1), a_message(1, salt=2), a_message(2, salt=2)
    for message in (twin, elsewhere):
        chain.maker.expect(message)

    chain.carry_out(taken)

    assert set(chain.made) == {twin.external.message_id}
    end = shown(chain, twin)
    assert (end.kind, end.executed_as) == (EndKind.EXECUTED_AS, taken.external.message_id)
    assert len(chain.maker) == 1, "the same content for another account is another message"


def test_never_is_proved_by_the_first_block_at_the_expiry_and_not_by_one_before() -> None:
    chain = ProvedChain()
    message = a_message(1, expires_at_s=START_MS // 1_000 + 30)
    chain.maker.expect(message)

    chain.now_ms = START_MS + 29_800
    chain.carry_out()
    before = chain.ledger.chain(chain.ledger.sessions()[0].session_id)
    assert before is not None
    assert before.top.time_ms == START_MS + 29_900
    assert not chain.made
    chain.now_ms = START_MS + 29_900
    chain.carry_out()

    assert shown(chain, message).time_ms == START_MS + 30_000


def test_a_message_that_does_not_expire_can_only_be_proved_executed() -> None:
    configuration = msgspec.structs.replace(a_proving_configuration(), must_expire=False)
    chain = ProvedChain(a_genesis(configuration))
    taken, left = a_message(1, expires_at_s=NEVER), a_message(2, expires_at_s=NEVER)
    chain.maker.expect(taken)
    chain.maker.expect(left)
    chain.carry_out(taken)

    chain.pass_time(START_MS + 10 * WINDOW_MS)

    assert shown(chain, taken).kind is EndKind.EXECUTED
    assert left.external.message_id in chain.maker
    assert len(chain.maker) == 1


def test_the_second_message_of_a_block_costs_no_signature_check() -> None:
    chain = ProvedChain()
    messages = [a_message(number) for number in range(20)]
    for message in messages:
        chain.maker.expect(message)
    chain.carry_out(*messages)
    verifier = ProofVerifier(chain.genesis)

    for message in messages:
        verifier.check_file(chain.file(message))

    assert verifier.signature_checks == 5
    assert len({chain.made[one.external.message_id].sealed.part for one in messages}) == 1


def test_a_block_is_final_through_a_later_one() -> None:
    chain = ProvedChain()
    message = a_message(1)
    chain.maker.expect(message)
    chain.is_held_back = True
    chain.carry_out(message)
    chain.carry_out(a_message(2))
    assert not chain.made
    chain.is_held_back = False

    chain.carry_out(a_message(3))

    master = chain.proof(message).master
    assert master is not None
    assert len(master.seal.later) == 2
    assert shown(chain, message).kind is EndKind.EXECUTED


def test_the_block_that_ends_a_session_is_final_through_the_one_that_closed_it() -> None:
    configuration = msgspec.structs.replace(a_proving_configuration(), master_lifetime_ms=20_000)
    chain = ProvedChain(a_genesis(configuration))
    message = a_message(1)
    chain.maker.expect(message)
    chain.now_ms = START_MS + 20_100
    session = chain.ledger.master.session.session_id
    chain.is_held_back = True
    chain.carry_out(message)
    assert chain.ledger.master.session.session_id != session
    assert not chain.made
    chain.is_held_back = False

    chain.close(session, CLOSING)

    assert shown(chain, message).master.block_id.seqno == 1


def test_the_way_goes_through_new_configurations_and_hand_overs() -> None:
    later = a_signing_set(10, "later", START_MS + 20_000)
    chain = ProvedChain(a_genesis(a_proving_configuration(4)))
    chain.carry_out(a_message(1))
    wider = a_proving_configuration(7, next_set=later, name="validator")
    chain.ledger.wanted.add(wider.hash)
    chain.master_block(configuration=wider)
    chain.carry_out(a_message(2))
    in_hand_over, behind = a_message(3, expires_at_s=START_MS // 1_000 + 60), a_message(4)
    chain.maker.expect(in_hand_over)
    chain.maker.expect(behind)
    chain.now_ms = START_MS + 20_000
    chain.carry_out(in_hand_over)
    chain.pass_time(START_MS + 30_000)

    passed = shown(chain, in_hand_over)
    last = shown(chain, behind)

    assert chain.proof(in_hand_over).master is None
    assert passed.master.validators == 7
    assert last.master.key_blocks == 2
    assert last.master.validators == 10
    assert last.master.newest == chain.maker.seals.newest


def test_a_key_block_whose_next_set_is_the_one_in_force_is_one_for_chain_and_verifiers() -> None:
    """The chain is under the same configuration as before; a verifier that sees the block alone cannot know that."""
    chain = ProvedChain()
    present = chain.genesis.configuration
    before = msgspec.structs.replace(present.current, from_ms=START_MS - 1)
    same = msgspec.structs.replace(present, current=before, next=present.current)
    chain.ledger.wanted.add(same.hash)
    session = chain.ledger.master_session().session_id
    chain.master_block(configuration=same)
    message = a_message(1)
    chain.maker.expect(message)
    chain.carry_out(message)

    assert chain.ledger.master.configuration == present
    assert chain.ledger.master_session().session_id != session
    assert shown(chain, message).master.key_blocks == 1


@pytest.mark.parametrize("longer_ms", [10_000, 13_000])
def test_longer_windows_leave_messages_under_way_provable(
    longer_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain forgot what was executed before the former window. Were the new one longer by more than `proof_window`, a
    message could seem to have been executed then.
    """
    configuration = msgspec.structs.replace(
        a_proving_configuration(ahead_ms=10_000, window_ms=10_000),
        master_lifetime_ms=5_000,
        shard_lifetime_ms=5_000,
    )
    chain, first_s = ProvedChain(a_genesis(configuration)), START_MS // 1_000
    for number in range(1, 40):
        chain.now_ms = START_MS + 1_000 * number
        chain.carry_out(a_message(number, expires_at_s=first_s + number + 5))
    longer = msgspec.structs.replace(configuration, expiry_ahead_max_ms=10_000 + longer_ms)
    under_way = a_message(99, expires_at_s=first_s + 40)
    chain.maker.expect(under_way)
    is_refused = fault_in_change(configuration, longer) is not None
    monkeypatch.setattr("stagepost.chain.master_blocks.fault_in_change", lambda *_: None)
    chain.ledger.wanted.add(longer.hash)
    chain.master_block(configuration=longer)
    chain.pass_time(START_MS + 41_000)

    is_provable = under_way.external.message_id in chain.made
    assert is_provable is not is_refused


@pytest.mark.parametrize("longer_ms", [0, 5_000])
@pytest.mark.parametrize("outage_ms", [1_000, 4_000, 9_000, 11_000, 100_000])
def test_a_message_that_expired_in_an_outage_is_proved_never_executed_however_long_it_lasted(
    outage_ms: int, longer_ms: int
) -> None:
    """After the outage the shard makes two blocks before the masterchain makes one, which may make windows longer."""
    configuration = msgspec.structs.replace(
        a_proving_configuration(ahead_ms=10_000, window_ms=10_000), master_lifetime_ms=1_000
    )
    chain, first_s = ProvedChain(a_genesis(configuration)), START_MS // 1_000
    for number in range(1, 26):
        chain.now_ms = START_MS + 1_000 * number
        chain.carry_out(a_message(number, expires_at_s=first_s + number + 5))
    left = a_message(99, expires_at_s=first_s + 26)
    chain.maker.expect(left)
    chain.now_ms = START_MS + 25_900 + outage_ms
    longer = msgspec.structs.replace(configuration, expiry_ahead_max_ms=10_000 + longer_ms)
    wider = longer if longer_ms else None
    chain.ledger.wanted.add(longer.hash)
    session, following = chain.ledger.sessions()[0].session_id, chain.ledger.following
    for number in (200, 201):
        late = a_message(number, expires_at_s=chain.now_ms // 1_000 + 5)
        chain.shard_block(session, [late.external])
        chain.now_ms += 100

    parent, state = following.master_hash, following.master
    whole = make_master_block(state, [list(following.known.values())], chain.now_ms + 1, configuration=wider)
    judged = following.check_master(
        state.session.session_id, b"c" * 32, parent, whole.payload, chain.now_ms + 1, {longer.hash}
    )
    chain.master_block(configuration=wider)

    assert shown(chain, left).kind is EndKind.NEVER
    is_too_long = outage_ms + longer_ms > 10_000
    (committed,) = decode_master_block(chain.payloads()[-1]).commits
    assert len(committed) == 2 - is_too_long
    assert isinstance(judged, DeclinedCandidate) is is_too_long


def test_a_proof_from_a_checkpoint_leaves_the_key_blocks_before_it_out() -> None:
    chain, message, newest = a_chain_with_a_key_block()
    whole = chain.proof(message)
    short = cut(whole, [newest.seqno], newest.seqno)
    content = write_file(short, message.external.message_id)

    first, other = opinions(content, chain.genesis, newest)
    without, other_without = opinions(content, chain.genesis)

    assert isinstance(first, CheckedEnd)
    assert first.trusted_from == newest.seqno
    assert isinstance(other, dict)
    assert without is Refusal.UNKNOWN_BEGIN
    assert isinstance(other_without, str)
    assert len(content) < len(chain.file(message))


def a_chain_with_a_key_block() -> tuple[ProvedChain, ReadMessage, Checkpoint]:
    chain = ProvedChain()
    chain.carry_out(a_message(1))
    changed = a_proving_configuration(7, name="later")
    chain.ledger.wanted.add(changed.hash)
    chain.master_block(configuration=changed)
    message = a_message(2)
    chain.maker.expect(message)
    chain.carry_out(message)
    return chain, message, chain.maker.seals.newest


def test_a_verifier_keeps_the_newest_key_block_and_refuses_a_second_one_with_its_number() -> None:
    chain, message, newest = a_chain_with_a_key_block()
    verifier = ProofVerifier(chain.genesis)
    assert verifier.is_checkpoint_old(START_MS + chain.genesis.trust_period_ms + 1)
    verifier.check_file(chain.file(message))

    assert verifier.checkpoint == newest == read_checkpoint(write_checkpoint(newest))
    assert not verifier.is_checkpoint_old(newest.time_ms + chain.genesis.trust_period_ms)
    assert verifier.is_checkpoint_old(newest.time_ms + chain.genesis.trust_period_ms + 1)

    other, elsewhere, _ = a_chain_with_a_key_block()
    rival = msgspec.structs.replace(newest, root_hash=bytes(31) + b"\x01")
    first, second_says = opinions(other.file(elsewhere), other.genesis, rival)
    assert first is Refusal.SECOND_KEY_BLOCK
    assert "two histories" in str(second_says)


def test_accounts_of_a_split_shard_are_proved_in_their_own_half() -> None:
    chain = ProvedChain()
    chain.carry_out(a_message(1))
    chain.master_block(plans=[Plan(PlanKind.SPLIT, Shard(0, WHOLE_SHARD), chain.now_ms)])
    messages = [a_message(number, 30) for number in range(8)]
    for message in messages:
        chain.maker.expect(message)
    chain.carry_out(*messages[:4])
    chain.pass_time(START_MS + 30_000)

    kinds = [shown(chain, message).kind for message in messages]

    assert len(chain.ledger.sessions()) == 2
    assert kinds == [EndKind.EXECUTED] * 4 + [EndKind.NEVER] * 4


def test_a_message_that_has_ended_before_anybody_asked_is_proved_at_once_while_the_chain_remembers() -> None:
    chain = ProvedChain()
    taken, left = a_message(1), a_message(2)
    chain.carry_out(taken)
    chain.pass_time(START_MS + 31_000)
    chain.maker.expect(taken)
    chain.maker.expect(left)

    ready = {made.message_id for made in chain.maker.ready()}

    assert ready == {taken.external.message_id, left.external.message_id}


def test_a_maker_that_reads_the_stored_blocks_makes_the_same_seals() -> None:
    chain, message, newest = a_chain_with_a_key_block()
    again = ProofMaker(chain.genesis)

    sealed = [one for final in chain.finals for one in again.take(final, None)]

    assert sealed[-1].part == chain.made[message.external.message_id].sealed.part
    assert again.seals.newest == newest


def test_parts_of_the_topic_are_read_as_they_were_written_and_give_the_whole_proof() -> None:
    chain, message, _ = a_chain_with_a_key_block()
    made = chain.made[message.external.message_id]
    key_blocks = list(chain.maker.seals.key_blocks.values())
    for part in (made.own, made.sealed.part, *key_blocks):
        assert decode_part(part.encode()) == part
        with pytest.raises(DecodeError):
            decode_part(part.encode() + b"\x00")

    with pytest.raises(LocalProtocolError, match="is missing"):
        assembled(made.own, made.sealed.part, lambda root_hash: None)
    assert isinstance(made.sealed.part, MasterPart)
    assert isinstance(key_blocks[0], KeyBlockPart)


# ── the form ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text + b"\n",
        lambda text: text.replace(b":", b": ", 1),
        lambda text: text.replace(b'"stagepost_proof":1', b'"stagepost_proof":2'),
        lambda text: text.replace(b'"stagepost_proof":1', b'"stagepost_proof":true'),
        lambda text: text.replace(b'"kind":"executed"', b'"kind":"never"'),
        lambda text: text.replace(b'"kind":"executed"', b'"kind":"executed_as"'),
        lambda text: text[:60] + text[60:].upper(),
        lambda text: text.replace(b'"id":"', b'"id":"00'),
        lambda text: text[:-1] + b',"more":1}',
        lambda text: text[:-3] + b'"}',
        lambda text: text.replace(b'"kind":"executed"', b'"kind":"\\ud800"'),
        lambda text: text.replace(b'"id":"', b'"id":"\xed\xa0\x80'),
        lambda text: text.decode().encode("utf-16"),
        lambda text: b"\xef\xbb\xbf" + text,
        lambda text: text + b" " * FILE_BYTES_MAX,
        lambda text: b'{"a":' * 100_000,
        lambda text: b'{"kind":' + b"9" * 5_000 + b"}",
        lambda text: b"[" * 100_000,
        lambda text: b"",
        lambda text: b"{}",
    ],
)
def test_every_other_spelling_of_the_file_is_refused(spoil: object) -> None:
    chain, messages = three_ends()
    assert callable(spoil)

    first, other = opinions(spoil(chain.file(messages[EndKind.EXECUTED])), chain.genesis)

    assert first in (Refusal.FORM, Refusal.OTHER_FILE)
    assert isinstance(other, str)


@pytest.mark.parametrize("seqno", ["-1", "4294967296", "1e999", '"7"', "7.5", "null"])
def test_a_checkpoint_without_a_number_of_a_block_is_refused(seqno: str) -> None:
    _, _, newest = a_chain_with_a_key_block()
    content = write_checkpoint(newest)
    spoiled = content.replace(b'"seqno":%d' % newest.seqno, b'"seqno":' + seqno.encode())
    assert spoiled != content

    with pytest.raises(DecodeError, match="not a valid checkpoint"):
        read_checkpoint(spoiled)
    with pytest.raises(second.Refused, match="numbers"):
        second.read_checkpoint(spoiled)


@pytest.mark.parametrize("time_ms", ["-1", "9223372036854775808", "9" * 4_000, "1e3", "true"])
def test_a_checkpoint_without_a_time_of_a_block_is_refused(time_ms: str) -> None:
    _, _, newest = a_chain_with_a_key_block()
    spoiled = write_checkpoint(newest).replace(
        b'"time_ms":%d' % newest.time_ms, b'"time_ms":' + time_ms.encode()
    )

    with pytest.raises(DecodeError, match="not a valid checkpoint"):
        read_checkpoint(spoiled)
    with pytest.raises(second.Refused):
        second.read_checkpoint(spoiled)
    latest = msgspec.structs.replace(newest, time_ms=TIME_MS_MAX)
    assert read_checkpoint(write_checkpoint(latest)) == latest
    assert second.read_checkpoint(write_checkpoint(latest)).time_ms == TIME_MS_MAX


@pytest.mark.parametrize("option", ["proof", "genesis", "checkpoint"])
def test_a_file_that_fills_all_memory_is_not_read_whole(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain, message, newest = a_chain_with_a_key_block()
    files = {
        "proof": chain.file(message),
        "genesis": chain.genesis.encode(),
        "checkpoint": write_checkpoint(newest),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    os.truncate(tmp_path / option, 1 << 40)
    options = [f"--{name}={tmp_path / name}" for name in ("genesis", "checkpoint")]
    monkeypatch.setattr("sys.argv", ["verify_proof.py", str(tmp_path / "proof"), *options])

    assert second.main() == (1 if option == "proof" else 2)
    assert "the file has more than" in capsys.readouterr().err or option != "proof"


@pytest.mark.parametrize("option", ["genesis", "checkpoint"])
def test_a_trusted_file_that_is_nested_too_deeply_is_unusable_and_proves_nothing(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chain, message, newest = a_chain_with_a_key_block()
    files = {"proof": chain.file(message), "genesis": chain.genesis.encode()}
    files |= {"checkpoint": write_checkpoint(newest), option: b'{"a":' * 100_000}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    options = [f"--{name}={tmp_path / name}" for name in ("genesis", "checkpoint")]
    monkeypatch.setattr("sys.argv", ["verify_proof.py", str(tmp_path / "proof"), *options])

    assert second.main() == 2
    assert "a file cannot be used" in capsys.readouterr().err


def test_the_ways_of_a_proof_have_a_limit() -> None:
    chain, message, _ = a_chain_with_a_key_block()
    proof = chain.proof(message)
    most = msgspec.structs.replace(proof, way=proof.way[:1] * KEY_BLOCKS_MAX)
    small = msgspec.structs.replace(proof.way[0], block=b"")

    at_most = decode_proof(msgspec.structs.replace(most, way=(small,) * KEY_BLOCKS_MAX).encode())
    assert len(at_most.way) == KEY_BLOCKS_MAX
    with pytest.raises(DecodeError, match=str(KEY_BLOCKS_MAX)):
        decode_proof(msgspec.structs.replace(most, way=(small,) * (KEY_BLOCKS_MAX + 1)).encode())


KEYS = st.one_of(
    st.binary(min_size=32, max_size=32), st.integers(0, 15).map(lambda number: bytes(31) + bytes([number]))
)


@given(st.dictionaries(KEYS, st.binary(min_size=32, max_size=32), max_size=12), KEYS)
def test_a_path_leads_to_the_root_and_is_written_without_empty_siblings(
    content: dict[bytes, bytes], key: bytes
) -> None:
    tree = tree_of(lambda value: value, content.items())
    path = tree.path(key)

    end = EMPTY_HASH if path.leaf is None else leaf_hash(*path.leaf)
    assert root_above(end, key, path.siblings) == tree.hash
    assert (path.leaf == (key, content.get(key))) is (key in content)
    writer = Writer()
    ProofPath(path.siblings).write(writer)
    cursor = second.Cursor(writer.written())
    assert tuple(second.read_path(cursor)) == path.siblings
    cursor.end()
    there = sum(sibling != EMPTY_HASH for sibling in path.siblings)
    assert len(writer.written()) <= 4 + 36 + 4 + 32 * there


def test_an_account_next_to_the_victims_costs_a_bitmap_and_one_hash() -> None:
    chain = ProvedChain()
    victim = an_account(1)
    beside = bytes([*victim[:30], victim[30] ^ 1, victim[31]])
    message = a_message(victim)
    chain.maker.expect(message)
    chain.carry_out(a_message(beside), message)

    proof = chain.proof(message)

    assert shown(chain, message).kind is EndKind.EXECUTED
    account = proof.end.account
    assert len(account.path.siblings) == 248
    assert len(proof.encode()) < 1_500


def test_the_genesis_is_read_from_a_network_file_too(tmp_path: object) -> None:
    genesis: Genesis = ProvedChain().genesis
    content = b'{"network_magic":7,"genesis":"%s","members":[]}' % genesis.encode().hex().encode()

    assert second.read_genesis(content) == second.read_genesis(genesis.encode())


def test_the_second_verifier_is_one_short_file_of_its_own() -> None:
    source = Path(second.__file__ or "").read_text()

    assert len(source.splitlines()) < 500
    assert "import stagepost" not in source
    assert "from stagepost" not in source


def test_a_refusal_names_its_rule() -> None:
    chain, messages = three_ends()
    proof = chain.proof(messages[EndKind.NEVER])
    early = msgspec.structs.replace(proof, begins_at=7)

    with pytest.raises(ProofRefused, match="key block 7") as refused:
        ProofVerifier(chain.genesis).check(early)

    assert refused.value.refusal is Refusal.UNKNOWN_BEGIN
    assert refused.value.advice
