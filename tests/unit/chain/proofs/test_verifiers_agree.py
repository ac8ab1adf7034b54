"""Both verifiers say the same of whatever a forger brings who holds every key: any difference is a fault of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

import msgspec
import pytest

from stagepost.chain.agreement.votes import VoteKind, signed_bytes
from stagepost.chain.master_block import COMMIT_BLOCKS_MAX, COMMITTED_MAX, MasterBlock
from stagepost.chain.master_state import PlanKind
from stagepost.chain.proofs import proof_rules
from stagepost.chain.proofs.proof_files import write_checkpoint, write_file
from stagepost.chain.rotation import Plan
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD, BlockId
from tests.worlds.chain.proof_forger import Forger, Forgery, Ground, both_say, grounds
from tests.worlds.chain.proved_chain import second

FORGERIES = 1_000
TRIED = 4_000
"""Forgeries, at most, among which one shows that a verifier leaves a rule out."""


@cache
def known_grounds() -> list[Ground]:
    return grounds()


def forgeries(first: int, count: int) -> Iterator[tuple[int, Forgery]]:
    for seed in range(first, first + count):
        random = Random(f"forger {seed}")
        yield seed, Forger(random, random.choice(known_grounds())).forgery()


def test_both_verifiers_say_the_same_of_every_forgery(run_seed: int) -> None:
    first = run_seed % 1_000_000_000
    print(f"seed {first}")
    believed = 0
    for seed, files in forgeries(first, FORGERIES):
        said = both_say(files)
        assert said.first == said.second, f"seed {seed}: {said}"
        believed += said.first is not None
    assert FORGERIES / 20 < believed < FORGERIES / 2


# What the single-file verifier once believed alone


def behind_a_key_block(*, plan: int = PlanKind.SPLIT, commits: int = 1, flag: int = 1) -> Forgery:
    """Return a proof over a key block that a quorum has signed."""
    ground = known_grounds()[0]
    forger, proof = Forger(Random(1), ground), ground.proof
    before, master = forger.trusted, proof.master
    assert master is not None
    rules = bytearray(ground.genesis.configuration.encode())
    rules[-4] = flag
    filled = [BlockId(0, WHOLE_SHARD, 1, bytes([number + 1]) * 32) for number in range(COMMIT_BLOCKS_MAX)]
    block = MasterBlock(
        before.session(90)[0],
        before.seqno + 1,
        master.previous,
        before.time_ms + 1,
        tuple(
            tuple(filled[: min(commits - at, COMMIT_BLOCKS_MAX)])
            for at in range(0, commits, COMMIT_BLOCKS_MAX)
        ),
        (Plan(plan, Shard(0, WHOLE_SHARD), 0),),  # type: ignore[arg-type]  # a number that is no kind
        bytes(rules),
        bytes(32),
    )
    later = msgspec.structs.replace(master, seqno=before.seqno + 2)
    proof = forger.with_key_block(msgspec.structs.replace(proof, master=later), block.encode())
    content = write_file(forger.mended(proof), ground.message.external.message_id)
    return Forgery(content, ground.genesis.encode(), None)


@pytest.mark.parametrize(
    ("given", "is_believed"),
    [
        ({}, True),
        ({"plan": PlanKind.MERGE}, True),
        ({"plan": PlanKind.NONE}, False),
        ({"plan": 3}, False),
        ({"commits": COMMITTED_MAX}, True),
        ({"commits": COMMITTED_MAX + 1}, False),
        ({"flag": 0}, True),
        ({"flag": 2}, False),
    ],
)
def test_a_key_block_that_no_chain_can_have_is_refused_by_both(
    given: dict[str, int], is_believed: bool
) -> None:
    said = both_say(behind_a_key_block(**given))

    assert said.first == said.second
    assert (said.first is not None) is is_believed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"stagepost_checkpoint":1', b'"stagepost_checkpoint":true'),
        (b'"stagepost_checkpoint":1', b'"stagepost_checkpoint":1 '),
        (b"}", b',"more":1}'),
        (b"}", b"}\n"),
        (b'"root_hash":"', b'"root_hash":"00'),
        (b"a", b"A"),
    ],
)
def test_a_checkpoint_that_is_spelled_otherwise_is_refused_by_both(before: bytes, after: bytes) -> None:
    ground = next(one for one in known_grounds() if one.checkpoint is not None)
    assert ground.checkpoint is not None
    files = behind(ground, write_checkpoint(ground.checkpoint))
    assert files.checkpoint is not None
    place = files.checkpoint.index(b'":', files.checkpoint.index(before)) if before == b"a" else 0
    spoiled = files.checkpoint[:place] + files.checkpoint[place:].replace(before, after, 1)

    assert both_say(files).first == both_say(files).second is not None
    assert both_say(files._replace(checkpoint=spoiled))[:2] == (None, None)


def behind(ground: Ground, checkpoint: bytes) -> Forgery:
    content = write_file(ground.proof, ground.message.external.message_id)
    return Forgery(content, ground.genesis.encode(), checkpoint)


def test_a_genesis_whose_name_is_no_text_is_used_by_neither() -> None:
    ground = known_grounds()[0]
    files = Forgery(
        write_file(ground.proof, ground.message.external.message_id), ground.genesis.encode(), None
    )
    spoiled = files.genesis[:5] + b"\xff" + files.genesis[6:]

    assert both_say(files).first is not None
    with pytest.raises(UnicodeDecodeError):
        second.read_genesis(spoiled)
    assert both_say(files._replace(genesis=spoiled))[:2] == (None, None)


# The forger can tell


@cache
def planted(seed: int) -> tuple[Forgery, str]:
    """Return a forgery, and the reason for which the second verifier refuses it with all of its rules."""
    ((_, files),) = forgeries(seed, 1)
    return files, both_say(files).reasons[1]


@pytest.mark.parametrize(
    "rule",
    [
        "share its path",
        "slots of candidates",
        "signed; exactly",
        "signers do not rise",
        "numbers or times of key blocks",
        "is of another session",
        "changes no configuration",
        "behind its key block",
        "before the hand-over",
        "the last of its shard",
        "does not hold the account",
        "later than the block that holds it",
        "taken by the message itself",
        "outside the life",
        "before the message expired",
        "may have forgotten",
        "absent from different accounts",
        "the checkpoint is of another network",
        "begins at key block",
        "two histories",
        "past the checkpoint",
        "padding is not zero",
        "in a form that is too long",
        "other bits than levels",
        "bytes are left over",
        "spelled otherwise than a proof",
    ],
)
def test_a_rule_that_one_verifier_leaves_out_is_missed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = second.need

    def differs(files: Forgery) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(second, "need", lambda holds, text: honest(holds or rule in text, text))
            try:
                said = both_say(files)
            except (ValueError, IndexError, LookupError):
                return True
        return said.first != said.second

    # Without the rule, the verifier says the same as before of all that it refuses for another reason.
    assert any(rule in reason and differs(files) for files, reason in map(planted, range(TRIED)))


def test_notarise_votes_that_the_first_verifier_takes_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        proof_rules,
        "certified_bytes",
        lambda session, slot, block: signed_bytes(session, slot, VoteKind.NOTARISE, block),
    )

    assert any(said.first != said.second for said in (both_say(files) for _, files in forgeries(0, TRIED)))
