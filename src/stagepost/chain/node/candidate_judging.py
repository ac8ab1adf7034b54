"""Judgement of candidates by this validator: first the part that knows the messages is asked, then the
ledger.

A candidate may arrive before the blocks that it stands upon, or refers to, are known here: then it waits, and
is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.chain.agreement.effects import CheckCandidate
from stagepost.chain.declined import MAY_WAIT, DeclinedCandidate
from stagepost.chain.following import CLOSING
from stagepost.chain.ledger import EmbeddedLedger, NoAnswer
from stagepost.chain.master_state import MASTER_SHARD
from stagepost.chain.node.agreement_runner import AgreementRunner
from stagepost.errors import DecodeError
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.message import ExternalMessage

Answer = Callable[[str | None], None]
CheckMessages = Callable[[LedgerSession, Sequence[ExternalMessage], Answer], None]


class Seat:
    """The knowledge of a validator about one session that it is a member of.

    `is_over`: the session has ended, and we only stay for validators that are behind. `wanted_in`: the slot
    in which a block is wanted, and since when. `waiting`: candidates to look at again, and when each was
    first seen. `in_vain_at`: when we last tried to make one, and could not.
    `upon`: the block that the next one stands upon, and since when we know it.
    """

    def __init__(self, session: LedgerSession, runner: AgreementRunner) -> None:
        self.session = session
        self.runner = runner
        self.members = frozenset(session.public_keys)
        self.is_of_master = session.shard == MASTER_SHARD
        self.is_over = False
        self.waiting: list[tuple[CheckCandidate, int]] = []
        self.wanted_in: tuple[int, float] | None = None
        self.in_vain_at: float | None = None
        self.upon: tuple[bytes, float] | None = None

    def waits_since(self, unix_ms: int) -> bool:
        """Return whether a candidate that was seen before `unix_ms` still waits."""
        return any(seen_ms < unix_ms for _, seen_ms in self.waiting)


class CandidateJudge:
    """`tell` is called after every step, because the ledger may have events then."""

    def __init__(
        self,
        ledger: EmbeddedLedger,
        check_messages: CheckMessages | None,
        tell: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.declined = 0
        self.is_stopped = False
        self._ledger = ledger
        self._check_messages = check_messages
        self._tell = tell
        self._now_ms = now_ms

    def check(self, seat: Seat, asked: CheckCandidate) -> None:
        """Judge a candidate; call `seat.runner.checked` with the result, now, later or never."""
        seen_ms = self._now_ms()
        if seat.is_over and asked.payload == CLOSING:
            seat.runner.checked(
                asked.block_hash, None
            )  # it only makes a block final that we know to be final
        elif seat.is_of_master or seat.is_over or asked.is_notarised or self._check_messages is None:
            # A quorum knows these messages and accepted their order; our own view of both changes from minute to minute,
            # so it is no reason to refuse.
            self._judge(seat, asked, seen_ms)
        else:
            try:
                messages = self._ledger.messages_of(asked.payload)
            except DecodeError:
                self._judge(seat, asked, seen_ms)  # the ledger has a name for it
                return
            self._check_messages(
                seat.session, messages, lambda reason: self._messages_checked(seat, asked, seen_ms, reason)
            )

    def check_again(self, seat: Seat) -> None:
        """Judge again the candidates that waited, unless their slot is decided."""
        waiting, seat.waiting = seat.waiting, []
        for asked, seen_ms in waiting:
            if asked.slot > seat.runner.member.book.final_slot:
                self._judge(seat, asked, seen_ms)

    def _messages_checked(self, seat: Seat, asked: CheckCandidate, seen_ms: int, reason: str | None) -> None:
        if self.is_stopped:
            return
        if reason is None or seat.runner.member.book.is_block(asked.block_hash):
            self._judge(seat, asked, seen_ms)
        else:
            self.declined += 1
            seat.runner.checked(asked.block_hash, reason)

    def _judge(self, seat: Seat, asked: CheckCandidate, seen_ms: int) -> None:
        if not seat.is_over and not self._knows(seat, asked.parent_hash):
            # Agreement vouches for the parent: the ledger is a little behind it, or ahead by blocks that others sent.
            seat.waiting.append((asked, seen_ms))
            return
        is_notarised = asked.is_notarised or seat.runner.member.book.is_block(asked.block_hash)
        answer = self._ledger.check(
            seat.session.session_id,
            asked.block_hash,
            asked.parent_hash,
            asked.payload,
            None if is_notarised else seen_ms,
        )
        self._tell()
        if isinstance(answer, NoAnswer):
            return
        if isinstance(answer, DeclinedCandidate) and answer.rule in MAY_WAIT:
            seat.waiting.append((asked, seen_ms))
            return
        reason = answer.reason if isinstance(answer, DeclinedCandidate) else None
        self.declined += reason is not None
        seat.runner.checked(asked.block_hash, reason)

    def _knows(self, seat: Seat, candidate: bytes) -> bool:
        """Return whether the ledger has the state after the candidate."""
        if seat.is_of_master:
            return self._ledger.following.master_after(candidate) is not None
        chain = self._ledger.chain(seat.session.session_id)
        return chain is not None and chain.state_after(candidate) is not None
