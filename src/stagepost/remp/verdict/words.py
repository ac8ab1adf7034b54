"""Words for verdicts on our screens, pages and in programs: one table."""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.verdict import Conclusion, Verdict

WORDS = {
    Conclusion.FINALIZED.value: "Finalized",
    Conclusion.EXECUTED_AS.value: "Executed as another message",
    Conclusion.ACCEPTED.value: "Accepted",
    Conclusion.INCLUDED.value: "Included (optimistic)",
    Conclusion.SENT.value: "Sent",
    Conclusion.REJECTED_BY_FULLNODE.value: "Rejected by the full node",
    Conclusion.REJECTED.value: "Rejected",
    Conclusion.LIKELY_REJECTED.value: "Likely rejected",
    Conclusion.EXPIRED.value: "Expired",
}
"""Words of all verdicts but `Queued`, which names a number of validators."""


def verdict_words(verdict: Verdict | None) -> str:
    """Return the words that all our screens use for a verdict."""
    if verdict is None:
        return "No receipt counts"
    if verdict.verdict == Conclusion.QUEUED.value:
        return f"Queued at {len(verdict.queued_at)} of {verdict.validators}"
    return WORDS[verdict.verdict]


NOT_KNOWN_YET = "not known yet"


def end_words(verdict: Verdict | None) -> str:
    """Return the proved end of a message, or that its end is not known yet: claims of nodes are no end."""
    if verdict is None or not verdict.is_proved:
        return NOT_KNOWN_YET
    told = {
        "executed": "proved executed",
        "never": "proved never executed",
        "executed_as": f"proved executed as {verdict.executed_as}",
    }
    return f"{told[verdict.proof]}, in master block {verdict.proof_block}"


def silent_names(verdict: Verdict | None, sets: ValidatorSets | None) -> tuple[str, ...]:
    """Return the names of the validators that have sent no receipt of a message, in the order of the names; places such
    as `V2` without the session that decided.
    """
    if verdict is None:
        return ()
    known = {} if sets is None or verdict.session_id is None else sets.sessions
    session = known.get(bytes.fromhex(verdict.session_id or ""))
    if sets is None or session is None or any(index >= session.size for index in verdict.silent):
        return tuple(f"V{index + 1}" for index in verdict.silent)
    order, name_of = sets.name_order, sets.name_of
    members = [session.validators[index] for index in verdict.silent]
    members.sort(key=lambda one: order(one.key_id, one.index))
    return tuple(name_of(one.key_id, one.index) for one in members)


def silent_words(verdict: Verdict | None, names: Sequence[str] = ()) -> str:
    """Return the validators that have sent no receipt of a message, as `2 of 7 silent (V2, V6)`; empty if
    there are none. `names` are shown instead of places.
    """
    if verdict is None or not verdict.silent or verdict.validators is None:
        return ""
    shown = ", ".join(names or silent_names(verdict, None))
    return f"{len(verdict.silent)} of {verdict.validators} silent ({shown})"
