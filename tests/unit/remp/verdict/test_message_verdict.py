"""How far a message has come against how far somebody waits for it, and the words for it."""

from __future__ import annotations

import msgspec
import pytest

from rigs.remp_world import session, session_name, sets_of, source_of
from stagepost.remp.verdict.message_verdict import Awaited, MessageVerdict, is_reached
from stagepost.remp.verdict.verdict import Conclusion, Verdict
from stagepost.remp.verdict.words import WORDS, end_words, silent_names, silent_words, verdict_words

STAGES = ("queued_ms", "included_ms", "accepted_ms")


def a_row(conclusion: Conclusion, *reached: str, silent: tuple[int, ...] = ()) -> Verdict:
    return Verdict(
        verdict=conclusion.value,
        sent_ms=1,
        finalized_ms=None,
        rejected_ms=None,
        timeout_ms=None,
        session_id="ab" * 32,
        validators=7,
        queued_at=(0, 2),
        rejected_by=(),
        silent=silent,
        receipts=3,
        queued_ms=5 if "queued_ms" in reached else None,
        included_ms=5 if "included_ms" in reached else None,
        accepted_ms=5 if "accepted_ms" in reached else None,
    )


def proved(conclusion: Conclusion, proof: str) -> Verdict:
    return msgspec.structs.replace(a_row(conclusion), proof=proof, proof_block=7)


@pytest.mark.parametrize(
    ("row", "reached"),
    [
        (None, []),
        (a_row(Conclusion.SENT), []),
        (a_row(Conclusion.QUEUED, "queued_ms"), ["queued"]),
        (a_row(Conclusion.INCLUDED, "queued_ms", "included_ms"), ["queued", "optimistic"]),
        (a_row(Conclusion.ACCEPTED, *STAGES), ["queued", "optimistic", "accepted"]),
        # Finalized by a full node alone, before any validator was heard.
        (a_row(Conclusion.FINALIZED), ["queued", "optimistic", "accepted"]),
        (proved(Conclusion.FINALIZED, "executed"), ["queued", "optimistic", "accepted", "final"]),
        # One validator's word is no acceptance.
        (a_row(Conclusion.INCLUDED, *STAGES), ["queued", "optimistic"]),
        (proved(Conclusion.EXPIRED, "never"), []),
        (proved(Conclusion.EXECUTED_AS, "executed_as"), []),
        # Taken back into the queue: it was in a block all the same, and the verdict says how it stands.
        (a_row(Conclusion.QUEUED, "queued_ms", "included_ms"), ["queued", "optimistic"]),
        (a_row(Conclusion.REJECTED, "queued_ms"), ["queued"]),
        (a_row(Conclusion.REJECTED_BY_FULLNODE), []),
    ],
)
def test_a_stage_is_reached_when_it_was_and_final_counts_for_all(
    row: Verdict | None, reached: list[str]
) -> None:
    assert [stage.value for stage in Awaited if is_reached(row, stage)] == reached


@pytest.mark.parametrize("conclusion", Conclusion)
@pytest.mark.parametrize("proof", ["none", "executed", "never", "executed_as"])
def test_a_message_has_ended_only_with_a_proof(conclusion: Conclusion, proof: str) -> None:
    row = msgspec.structs.replace(a_row(conclusion, silent=(1, 5)), proof=proof)
    found = MessageVerdict("ab" * 32, Awaited.FINAL, row, 9)
    assert found.has_ended is (proof != "none")
    assert (end_words(row) == "not known yet") is (proof == "none")
    assert found.verdict == conclusion.value
    assert found.missing == (() if found.has_ended else ("V2", "V6"))
    assert str(found) == verdict_words(found.row)


def test_without_a_receipt_there_is_nothing_to_say() -> None:
    found = MessageVerdict("ab" * 32, Awaited.QUEUED, None, 9)
    assert (found.verdict, found.has_ended, found.is_reached, found.missing) == (None, False, False, ())
    assert str(found) == "No receipt counts"


def test_every_verdict_has_words_and_the_silent_are_named() -> None:
    assert {*WORDS, Conclusion.QUEUED.value} == {conclusion.value for conclusion in Conclusion}
    row = a_row(Conclusion.QUEUED, silent=(1, 5))
    assert (verdict_words(row), silent_words(row)) == ("Queued at 2 of 7", "2 of 7 silent (V2, V6)")
    assert silent_words(a_row(Conclusion.QUEUED)) == silent_words(None) == ""


def test_silent_validators_have_the_names_of_their_network() -> None:
    """Places change with each session, and an operator restarts a machine by its name."""
    sets = sets_of(session(1, (4, 2, 0, 5, 1, 3, 6)))
    sets.names |= {source_of(number): f"validator-{number + 1}" for number in range(7)}
    row = msgspec.structs.replace(
        a_row(Conclusion.QUEUED, silent=(0, 3)), session_id=session_name(1).hex(), proof="none"
    )
    assert silent_names(row, sets) == ("validator-5", "validator-6")
    found = MessageVerdict("ab" * 32, Awaited.FINAL, row, 9, silent_names=silent_names(row, sets))
    assert found.missing == ("validator-5", "validator-6")
    assert silent_words(row, found.missing) == "2 of 7 silent (validator-5, validator-6)"
    assert silent_names(a_row(Conclusion.QUEUED, silent=(1, 5)), sets) == ("V2", "V6"), "of another session"
    assert silent_names(None, sets) == ()
