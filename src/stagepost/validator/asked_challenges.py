"""Challenges that full nodes ask a validator for: it makes them in the queue's catchain, within limits for each full node, and
tells the full node what became of them.

    full node → asked ─ may it? ─ SessionRunner.challenge → a block of ours
    blocks of others → heard ─ an answer of the accused, or its blame → full node

A challenge costs its maker a header of its budget and every other member a look, so who asks is charged: a full node may
ask about messages that it has sent itself, and now and then. What is refused here is not answered: the full node goes to
another validator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from stagepost.catchain.challenges import OPEN_MAX
from stagepost.catchain.effects import BlameReport, Deliver
from stagepost.catchain.graph import Graph
from stagepost.errors import StorageError
from stagepost.ground.loop.clock import Clock
from stagepost.remp.queue.records import answers_in, chain_of, subject_of
from stagepost.remp.receipts.statements import AskedChallenge, ChallengeOutcome, StatementLink
from stagepost.validator.session_plan import SessionEvent, SessionPlan

ASK_BURST = 8
"""Challenges that a full node may ask this validator for at once."""

ASK_EVERY_S = 10.0
"""Seconds after which a full node may ask for one more."""

ANSWERED_MAX = 1_024
"""Answers of one session, at most, that are remembered for full nodes that ask for the same later."""


class WhyNotAsked(StrEnum):
    """Reason why this validator does not make a challenge that a full node asks for."""

    NOT_A_MEMBER = "not_a_member"  # the accused is in no session at work of this validator
    OURSELVES = "ourselves"
    NOT_ITS_MESSAGE = "not_its_message"  # the full node has not sent the message, or its life is over
    TOO_OFTEN = "too_often"
    BUSY = "busy"  # as many of our challenges of the accused as count have no answer yet
    NOT_RECORDED = "not_recorded"  # the audit file cannot be written


class ChallengedSession:
    """Questions of full nodes in one session. `make` puts a challenge into a block of ours."""

    def __init__(self, plan: SessionPlan, graph: Graph, make: Callable[[int, StatementLink], None]) -> None:
        self.plan = plan
        self.graph = graph
        self.make = make
        self.waiting: dict[int, dict[bytes, set[bytes]]] = {}
        """Full nodes that wait, by the place of the accused and by subject."""
        self.answered: dict[tuple[int, bytes], bytes] = {}
        """Hash of the block with the answer, by the place of the accused and by subject."""

    def frame_at_hand(self, place: int, subject: bytes) -> bytes | None:
        """Return the block with the answer of the accused, if it has come; empty if the accused is blamed."""
        if place in self.graph.blamed:
            return b""
        vertex = self.graph.get(self.answered.get((place, subject), b""))
        return None if vertex is None or vertex.block is None else vertex.block.encode()

    def answer_came(self, place: int, subject: bytes, block_hash: bytes) -> bytes | None:
        """Note the block with an answer, and return it."""
        self.answered[place, subject] = block_hash
        while len(self.answered) > ANSWERED_MAX:
            del self.answered[next(iter(self.answered))]
        return self.frame_at_hand(place, subject)


class Purse(msgspec.Struct):
    """Challenges that one full node may still ask for, as of `at` of the monotonic clock."""

    left: float
    at: float


class AskedChallenges:
    """`knows` returns whether a full node has sent a message that still lives; `tell` sends an outcome. `record` writes an
    action to the audit file, and raises `StorageError` if that is impossible.
    """

    def __init__(
        self,
        own_key_id: bytes,
        clock: Clock,
        knows: Callable[[bytes, bytes], bool],
        tell: Callable[[bytes, bytes], bool],
        record: Callable[[bytes, AskedChallenge], None] = lambda full_node, asked: None,
    ) -> None:
        self.made = 0
        self.told: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._own_key_id = own_key_id
        self._clock = clock
        self._knows = knows
        self._tell = tell
        self._record = record
        self._sessions: dict[bytes, ChallengedSession] = {}
        self._purses: dict[bytes, Purse] = {}

    def began(self, plan: SessionPlan, graph: Graph, make: Callable[[int, StatementLink], None]) -> None:
        self._sessions[plan.session_id] = ChallengedSession(plan, graph, make)

    def ended(self, session_id: bytes) -> None:
        """Ask for nothing more in a session; full nodes ask again in one that follows."""
        self._sessions.pop(session_id, None)

    def came(self, full_node: bytes, asked: AskedChallenge) -> None:
        """Make the challenge that a full node asks for, or count why not."""
        why_not = self._take(full_node, asked)
        if why_not is not None:
            self.refused[why_not] += 1

    def _take(self, full_node: bytes, asked: AskedChallenge) -> WhyNotAsked | None:
        if asked.accused == self._own_key_id:
            return WhyNotAsked.OURSELVES
        if not self._knows(full_node, asked.last.message_id):
            return WhyNotAsked.NOT_ITS_MESSAGE
        session = self._session_with(asked)
        if session is None:
            return WhyNotAsked.NOT_A_MEMBER
        place, subject = session.graph.key_ids.index(asked.accused), subject_of(asked.last)
        if not self._is_paid_for(full_node):
            return WhyNotAsked.TOO_OFTEN
        known = session.frame_at_hand(place, subject)
        if known is not None:
            self._say(full_node, asked.accused, subject, known)
            return None
        waiting = session.waiting.get(place, {})
        if subject not in waiting and len(waiting) >= OPEN_MAX:
            return WhyNotAsked.BUSY
        try:
            self._record(full_node, asked)
        except StorageError:
            return WhyNotAsked.NOT_RECORDED
        session.waiting.setdefault(place, {}).setdefault(subject, set()).add(full_node)
        self.made += 1
        session.make(place, asked.last)
        return None

    def _session_with(self, asked: AskedChallenge) -> ChallengedSession | None:
        """Return the session in which the accused can be challenged: that of its receipts, or else the newest one."""
        its_own = self._sessions.get(asked.last.session_id)
        newest_first = (*(() if its_own is None else (its_own,)), *reversed(self._sessions.values()))
        return next((one for one in newest_first if asked.accused in one.graph.key_ids), None)

    def _is_paid_for(self, full_node: bytes) -> bool:
        now = self._clock.mono_s()
        purse = self._purses.setdefault(full_node, Purse(ASK_BURST, now))
        purse.left = min(ASK_BURST, purse.left + (now - purse.at) / ASK_EVERY_S)
        purse.at = now
        if purse.left < 1:
            return False
        purse.left -= 1
        return True

    def heard(self, plan: SessionPlan, event: SessionEvent) -> None:
        """Look for what full nodes wait for in an event of a session."""
        session = self._sessions.get(plan.session_id)
        if session is None or not session.waiting:
            return
        if isinstance(event, Deliver) and event.source in session.waiting:
            self._delivered(session, event)
        elif isinstance(event, BlameReport):
            for subject, full_nodes in session.waiting.pop(event.source, {}).items():
                self._say_all(session, event.source, subject, full_nodes, b"")

    def _delivered(self, session: ChallengedSession, block: Deliver) -> None:
        waiting = session.waiting[block.source]
        for newest in answers_in(block.payload):
            subject = subject_of(newest)
            full_nodes = waiting.pop(subject, None)
            if full_nodes is not None:
                frame = session.answer_came(block.source, subject, block.block_hash)
                self._say_all(session, block.source, subject, full_nodes, frame or b"")
        if not waiting:
            del session.waiting[block.source]

    def _say_all(
        self,
        session: ChallengedSession,
        place: int,
        subject: bytes,
        full_nodes: Iterable[bytes],
        frame: bytes,
    ) -> None:
        for full_node in sorted(full_nodes):
            self._say(full_node, session.graph.key_ids[place], subject, frame)

    def _say(self, full_node: bytes, accused: bytes, subject: bytes, frame: bytes) -> None:
        self.told["answered" if frame else "blamed"] += 1
        self._tell(full_node, ChallengeOutcome(accused, *chain_of(subject), frame).encode())
