"""A single verdict from many validators' receipts: the session that decides, the last status of each member,
the conclusion.

Everything here is evaluated when read, from the joined state of the receipts, the validator sets and the
time; no order of arrival, repetition or splitting into batches can change it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from stagepost.remp.receipts.receipt import Counting, Receipt, check
from stagepost.remp.receipts.status import Kind, Level, Stage, Status, is_closed
from stagepost.remp.validator_sets import Session, ValidatorSets, is_more_than_a_third
from stagepost.remp.verdict.state import MessageState, ProvedEnd, RowKey, ValidatorRow

NO_PROOF = "none"


class Conclusion(Enum):
    """The verdicts, in the order in which they are tried."""

    FINALIZED = "finalized"
    EXECUTED_AS = "executed_as"
    ACCEPTED = "accepted"
    REJECTED_BY_FULLNODE = "rejected_by_fullnode"
    REJECTED = "rejected"
    EXPIRED = "expired"
    LIKELY_REJECTED = "likely_rejected"
    INCLUDED = "included"
    QUEUED = "queued"
    SENT = "sent"


class Verdict(msgspec.Struct, frozen=True):
    """The row of `messages`, without the ids of other layers and the count of bad rows, which receipts do not
    contain. `proof` is `none`, `executed`, `never` or `executed_as`: only a proof is an end, everything else may
    still change.
    """

    verdict: str
    sent_ms: int | None
    queued_ms: int | None
    included_ms: int | None
    accepted_ms: int | None
    finalized_ms: int | None
    rejected_ms: int | None
    timeout_ms: int | None
    session_id: str | None
    validators: int | None
    queued_at: tuple[int, ...]
    rejected_by: tuple[int, ...]
    silent: tuple[int, ...]
    receipts: int
    proof: str = NO_PROOF
    proof_block: int | None = None
    executed_as: str | None = None

    @property
    def is_proved(self) -> bool:
        return self.proof != NO_PROOF

    @property
    def is_open(self) -> bool:
        """Return whether further receipts are expected. A message that is not open has ended only if the end is proved."""
        return not self.is_proved and self.verdict not in _CLAIMED_ENDS


_CLAIMED_ENDS = frozenset(
    conclusion.value
    for conclusion in (
        Conclusion.FINALIZED,
        Conclusion.REJECTED_BY_FULLNODE,
        Conclusion.REJECTED,
        Conclusion.EXPIRED,
    )
)
"""Verdicts after which nodes say nothing more. Without a proof they are claims, and no end."""


def verdict(
    receipts: Iterable[Receipt | Counting],
    sets: ValidatorSets,
    as_of_ms: int | None = None,
    *,
    hints: Mapping[bytes, str] | None = None,
    message_timeout_ms: int | None = None,
) -> Verdict | None:
    """Return the verdict over all receipts of one message that pass the checks; None if none passes.

    `hints` are the session ids that records' headers named, by a receipt's signed bytes.
    """
    state = MessageState()
    for receipt in receipts:
        counting = check(receipt, sets) if isinstance(receipt, Receipt) else receipt
        if isinstance(counting, Counting):
            hint = None if hints is None else hints.get(counting.receipt.signed_bytes)
            state.add(counting, hint)
    return evaluate(state, sets, as_of_ms, message_timeout_ms=message_timeout_ms)


def evaluate(
    state: MessageState,
    sets: ValidatorSets,
    as_of_ms: int | None = None,
    *,
    message_timeout_ms: int | None = None,
) -> Verdict | None:
    """Return the verdict of a state at the time `as_of_ms`, in Unix milliseconds; None means that the message
    never expires.
    """
    if not state.signed and state.proved is None:
        return None
    candidates = {key: _candidates(key, row, sets) for key, row in state.rows.items()}
    session = _deciding(state, candidates, sets)
    members = _members(state, candidates, session)
    first_seen_ms = _first_seen(state, session, members)
    timeout_ms = sets.message_timeout_ms if message_timeout_ms is None else message_timeout_ms
    is_life_over = (
        as_of_ms is not None and first_seen_ms is not None and as_of_ms - first_seen_ms > timeout_ms
    )
    conclusion = _conclude(state, sets, session, members, is_life_over)
    lasts = {index: member.last_kind for index, member in members.items() if member.last_kind is not None}
    stages = state.stages
    return Verdict(
        conclusion.value,
        stages.get(Stage.SENT),
        stages.get(Stage.QUEUED),
        stages.get(Stage.INCLUDED),
        stages.get(Stage.ACCEPTED),
        stages.get(Stage.FINALIZED),
        stages.get(Stage.REJECTED),
        stages.get(Stage.TIMEOUT),
        None if session is None else session.session_id.hex(),
        None if session is None else session.size,
        tuple(sorted(index for index, kind in lasts.items() if _is_queued(kind))),
        tuple(sorted(index for index, kind in lasts.items() if kind.status is Status.REJECTED)),
        () if session is None else tuple(index for index in range(session.size) if index not in members),
        len(state.signed),
        *_proof_columns(state.proved),
    )


def _proof_columns(proved: ProvedEnd | None) -> tuple[str, int | None, str | None]:
    return (NO_PROOF, None, None) if proved is None else (proved.kind, proved.block, proved.executed_as)


# The deciding session


def _candidates(key: RowKey, row: ValidatorRow, sets: ValidatorSets) -> dict[bytes, Session]:
    """Return the sessions that a row may belong to, by their ids."""
    assert row.first_ms is not None, "a row is made together with its first receipt"
    holding = {
        session.session_id: session for session, _ in sets.held_by(key.source_id, row.first_ms, row.last_ms)
    }
    if key.hint is not None and key.hint in holding:
        return {key.hint: holding[key.hint]}
    if key.shard is not None:
        of_shard = {
            session_id: session
            for session_id, session in holding.items()
            if (session.workchain, session.shard) == key.shard
        }
        if of_shard:
            return of_shard
    return holding


def _deciding(
    state: MessageState, candidates: Mapping[RowKey, Mapping[bytes, Session]], sets: ValidatorSets
) -> Session | None:
    hinted: dict[bytes, set[bytes]] = defaultdict(set)
    speakers: dict[bytes, set[bytes]] = defaultdict(set)
    for key, sessions in candidates.items():
        for session_id in sessions:
            speakers[session_id].add(key.source_id)
        if key.hint is not None and key.hint in sessions:
            hinted[key.hint].add(key.source_id)
    known = sets.sessions
    heard = [
        known[session_id]
        for session_id, who in hinted.items()
        if is_more_than_a_third(len(who), known[session_id].size)
    ]
    if heard:
        return max(heard, key=lambda session: session.age_key)
    if not speakers:
        return None
    return max(
        (known[session_id] for session_id in speakers),
        key=lambda session: (
            len(speakers[session.session_id]),
            session.size == state.total_validators,
            session.age_key,
        ),
    )


def _members(
    state: MessageState, candidates: Mapping[RowKey, Mapping[bytes, Session]], session: Session | None
) -> dict[int, ValidatorRow]:
    """Return the joined rows of each member of the deciding session that has spoken, by its index."""
    if session is None:
        return {}
    indexes = {validator.key_id: validator.index for validator in session.validators}
    members: dict[int, ValidatorRow] = {}
    for key, row in state.rows.items():
        if session.session_id in candidates[key]:
            members.setdefault(indexes[key.source_id], ValidatorRow()).join(row)
    return members


def _first_seen(
    state: MessageState, session: Session | None, members: Mapping[int, ValidatorRow]
) -> int | None:
    sent_ms = state.first_of_full_nodes("SentToValidators")
    if sent_ms is not None:
        return sent_ms
    firsts = sorted(member.first_ms for member in members.values() if member.first_ms is not None)
    if session is None or not firsts:
        return None
    # More than a third, so that an honest validator is among them; if fewer have spoken, the latest of those.
    return firsts[min(session.size // 3, len(firsts) - 1)]


# The conclusion


def _is_queued(kind: Kind) -> bool:
    return kind.status in (Status.NEW, Status.IGNORED, Status.DUPLICATE) or (
        kind.status is Status.ACCEPTED and kind.level is Level.QUEUE
    )


def _is_in_block(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level >= Level.COLLATOR


def _is_in_accepted_block(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level in (Level.SHARDCHAIN, Level.MASTERCHAIN)


def _is_finalized(state: MessageState, sets: ValidatorSets) -> bool:
    if state.first_of_full_nodes("Finalized") is not None:
        return True
    signers: dict[bytes, set[bytes]] = defaultdict(set)
    for key, row in state.rows.items():
        if row.has_finalized:
            assert row.first_ms is not None, "a row is made together with its first receipt"
            for session, _ in sets.held_by(key.source_id, row.first_ms, row.last_ms):
                signers[session.session_id].add(key.source_id)
    return any(
        is_more_than_a_third(len(who), sets.sessions[session_id].size) for session_id, who in signers.items()
    )


_PROVED = {"executed": Conclusion.FINALIZED, "executed_as": Conclusion.EXECUTED_AS}
"""Verdicts of proofs; a proof of never leaves open whether validators refused the message or let it expire."""


def _conclude(
    state: MessageState,
    sets: ValidatorSets,
    session: Session | None,
    members: Mapping[int, ValidatorRow],
    is_life_over: bool,
) -> Conclusion:
    lasts = [member.last_kind for member in members.values() if member.last_kind is not None]
    size = 0 if session is None else session.size
    rejecting = sum(kind.status is Status.REJECTED for kind in lasts)
    do_most_reject = bool(size) and 3 * rejecting >= 2 * size
    if state.proved is not None:
        return _PROVED.get(state.proved.kind) or (
            Conclusion.REJECTED if do_most_reject else Conclusion.EXPIRED
        )
    if _is_finalized(state, sets):
        return Conclusion.FINALIZED
    accepting = sum(_is_in_accepted_block(kind) for kind in lasts)
    if accepting and is_more_than_a_third(accepting, size):
        return Conclusion.ACCEPTED
    if (
        state.first_of_full_nodes("RejectedByFullnode") is not None
        and state.first_of_full_nodes("SentToValidators") is None
        and not state.rows
    ):
        return Conclusion.REJECTED_BY_FULLNODE
    are_all_closed = bool(size) and sum(is_closed(kind.status) for kind in lasts) == size
    if do_most_reject and (are_all_closed or is_life_over):
        return Conclusion.REJECTED
    if are_all_closed or is_life_over:
        return Conclusion.EXPIRED
    if do_most_reject:
        return Conclusion.LIKELY_REJECTED
    if any(_is_in_block(kind) for kind in lasts):
        return Conclusion.INCLUDED
    return Conclusion.QUEUED if state.rows else Conclusion.SENT
