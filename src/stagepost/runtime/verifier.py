"""Checks signatures, on the event loop and in processes beside it.

To hand work over and to take its answer costs about as much as a check, so the loop keeps a handful of messages for
itself. What is more is cut into pieces. A process for each further processor is given as many as it can do until the loop
comes by again, and the loop does the others: nobody waits while there is work. With one processor there is no such
process, for it could only take turns with the loop; and one that is lost is missed by nobody, for the loop does its work.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from stagepost.crypto.bounded_cache import BoundedCache
from stagepost.crypto.ed25519 import Claim
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Reason, Rejected
from stagepost.runtime.verifying_helper import VerifyingHelper
from stagepost.runtime.verifying_process import NOT_LOOKED_AT, VALID

SLICE_MESSAGES = 20
"""How many the loop checks before it looks at everything else again: about a millisecond."""

PIECE_MESSAGES = 10
"""With help, the loop looks up after one piece: others must not run out of work."""
KEPT_MESSAGES_MAX = 5
"""Up to so many are not worth asking another process."""

STARTED_AGAIN_AFTER_S = 10.0
"""A process that cannot live is not started over and over."""

VALID_MESSAGES_MEMOISED_MAX = 65_536

Check: TypeAlias = Callable[[DmqMessage], Rejected | None]


NOT_CHECKED = Rejected(Reason.OTHER, "not looked at, because another message of the same relay is forged")


class Claimant(Protocol):
    """Who can say beforehand which signatures a check comes to. Without one, the loop checks everything itself."""

    def claims(self, message: DmqMessage) -> Sequence[Claim] | None:
        """At least one; None if the check itself has to say what is wrong."""
        ...

    def conclude(
        self, message: DmqMessage, claims: Sequence[Claim], holds: Sequence[bool]
    ) -> Rejected | None:
        """What the check would have said."""
        ...


class Request:
    """Messages of one caller. Once it is answered there is a verdict for each, or the bug that kept us from it.

    `gives_up`: whoever brought them is cut off for a single forgery, so that the first one found ends the checking.
    Otherwise one connection could make us check as many forgeries as a reply may hold.
    """

    __slots__ = ("bug", "gives_up", "is_given_up", "messages", "unchecked", "verdicts")

    def __init__(self, messages: Sequence[DmqMessage], *, gives_up: bool = False) -> None:
        self.messages = messages
        self.gives_up = gives_up
        self.is_given_up = False
        self.unchecked = len(messages)
        self.verdicts: list[Rejected | None] = [None] * len(messages)
        self.bug: Exception | None = None


Answered: TypeAlias = Callable[[list[Request]], None]


class Errand(NamedTuple):
    """What is to be done with requests: `check` for each message. `answered` is called on the loop, perhaps at once, with
    those that are ready together."""

    check: Check
    answered: Answered
    claimant: Claimant | None = None


class MessageVerifier(Protocol):
    def verify(self, requests: Sequence[Request], errand: Errand) -> None: ...

    async def close(self) -> None: ...


def processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Piece:
    """A part of one request, checked in one go."""

    __slots__ = ("claims", "end", "errand", "request", "start")

    def __init__(self, request: Request, start: int, end: int, errand: Errand) -> None:
        self.request = request
        self.start = start
        self.end = end
        self.errand = errand
        self.claims: list[Sequence[Claim]] = []

    def run(self) -> None:
        request, check = self.request, self.errand.check
        messages, verdicts = request.messages, request.verdicts
        try:
            for position in range(self.start, self.end):
                verdict = NOT_CHECKED if request.is_given_up else check(messages[position])
                if verdict is not None:
                    verdicts[position] = verdict
                    request.is_given_up = request.gives_up
        except Exception as bug:
            request.bug = bug

    def claim(self) -> list[Claim] | None:
        """What somebody else may check; None if it has to be done here."""
        request, claimant = self.request, self.errand.claimant
        if claimant is None or request.is_given_up:
            return None
        every: list[Claim] = []
        self.claims = []
        for message in request.messages[self.start : self.end]:
            claims = claimant.claims(message)
            if claims is None:
                return None
            self.claims.append(claims)
            every += claims
        return every

    def conclude(self, answers: bytes) -> None:
        """`answers`: one for each claim."""
        if answers.count(VALID) == len(answers) == self.end - self.start:
            return  # one claim each: there is nothing to remember of these signers that was not known
        request, claimant = self.request, self.errand.claimant
        assert claimant is not None
        at = 0
        for position, claims in enumerate(self.claims, self.start):
            found = answers[at : at + len(claims)]
            at += len(claims)
            verdict: Rejected | None = NOT_CHECKED
            if found[0] != NOT_LOOKED_AT:
                holds = [answer == VALID for answer in found]
                verdict = claimant.conclude(request.messages[position], claims, holds)
            if verdict is not None:
                request.verdicts[position] = verdict
                request.is_given_up = request.gives_up


class Verifier:
    """`processes` beside the loop; one for each further processor unless told."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processors() - 1 if processes is None else processes
        self.helpers: list[VerifyingHelper[_Piece]] = []
        self._started_at = float("-inf")
        # For the loop alone, and for whoever comes first.
        self._kept: deque[_Piece] = deque()
        self._shared: deque[_Piece] = deque()
        self._is_turn_due = False

    @property
    def process_ids(self) -> list[int]:
        return [helper.process_id for helper in self.helpers if helper.process_id is not None]

    def verify(self, requests: Sequence[Request], errand: Errand) -> None:
        count = sum([len(request.messages) for request in requests])
        is_shared = errand.claimant is not None and self._has_help(count)
        size, pieces = (PIECE_MESSAGES, self._shared) if is_shared else (SLICE_MESSAGES, self._kept)
        for request in requests:
            for start in range(0, len(request.messages), size):
                end = min(start + size, len(request.messages))
                pieces.append(_Piece(request, start, end, errand))
        if self._shared:
            self._hand_out()
        if not self._is_turn_due:
            self._take_turn()

    async def check(
        self, messages: Sequence[DmqMessage], check: Check, claimant: Claimant | None = None
    ) -> list[Rejected | None]:
        """The verdicts, in the order of the messages."""
        return await checked(self, messages, check, claimant)

    def _has_help(self, count: int) -> bool:
        if not self.processes:
            return False
        is_busy = any([helper.unanswered for helper in self.helpers])
        if count <= KEPT_MESSAGES_MAX and not is_busy:
            return False
        if len(self.helpers) < self.processes:
            self._start_helpers()
        return True

    def _start_helpers(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._started_at + STARTED_AGAIN_AFTER_S:
            return
        self._started_at = now
        for _ in range(self.processes - len(self.helpers)):
            helper: VerifyingHelper[_Piece] = VerifyingHelper(self._came_back, self._take_back)
            helper.start()
            if helper.process_id is not None:
                self.helpers.append(helper)

    def _hand_out(self) -> None:
        """To each of the processes as much as it has room for."""
        for helper in self.helpers:
            while self._shared and helper.has_room:
                piece = self._shared.popleft()
                claims = piece.claim()
                if claims is None or not helper.ask(piece, claims, gives_up=piece.request.gives_up):
                    self._kept.append(piece)

    def _take_turn(self) -> None:
        """Check a slice, then hand out the answers to it."""
        self._is_turn_due = True
        done: list[_Piece] = []
        count, enough = 0, PIECE_MESSAGES if self.helpers else SLICE_MESSAGES
        while count < enough and (self._kept or self._shared):
            piece = self._kept.popleft() if self._kept else self._shared.popleft()
            piece.run()
            count += piece.end - piece.start
            done.append(piece)
        self._answer(done)
        self._is_turn_due = bool(self._kept or self._shared)
        if self._is_turn_due:
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _came_back(self, answered: list[tuple[_Piece, bytes]]) -> None:
        if self._shared:
            self._hand_out()
        for piece, answers in answered:
            try:
                piece.conclude(answers)
            except Exception as bug:
                piece.request.bug = bug
        self._answer([piece for piece, _ in answered])

    def _take_back(self, pieces: list[_Piece]) -> None:
        """What a process will not do any more, the loop does."""
        self.helpers = [helper for helper in self.helpers if helper.process_id is not None]
        self._kept.extendleft(reversed(pieces))
        if self._kept and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _answer(self, done: list[_Piece]) -> None:
        answers: dict[Answered, list[Request]] = {}
        for piece in done:
            request = piece.request
            request.unchecked -= piece.end - piece.start
            if not request.unchecked:
                answers.setdefault(piece.errand.answered, []).append(request)
        for answered, requests in answers.items():
            answered(requests)

    async def close(self) -> None:
        """The caller has stopped everybody who asks."""
        helpers, self.helpers = self.helpers, []
        for helper in helpers:
            await helper.close()


class InlineVerifier:
    """Without threads, for virtual time. Nodes that share a `memory` check a message once between them all."""

    def __init__(self, memory: BoundedCache[bytes, bool] | None = None) -> None:
        self._memory = memory

    def verify(self, requests: Sequence[Request], errand: Errand) -> None:
        remembering = errand._replace(check=partial(self._check_one, errand.check))
        for request in requests:
            _Piece(request, 0, len(request.messages), remembering).run()
        errand.answered(list(requests))

    async def check(
        self, messages: Sequence[DmqMessage], check: Check, claimant: Claimant | None = None
    ) -> list[Rejected | None]:
        """The verdicts, in the order of the messages."""
        return await checked(self, messages, check, claimant)

    def _check_one(self, check: Check, message: DmqMessage) -> Rejected | None:
        if self._memory is None:
            return check(message)
        if self._memory.get(message.raw):
            return None
        verdict = check(message)
        # Only what is valid is kept: it depends on nothing but the message's own bytes.
        if verdict is None:
            self._memory.put(message.raw, True)
        return verdict

    async def close(self) -> None:
        return


async def checked(
    verifier: MessageVerifier,
    messages: Sequence[DmqMessage],
    check: Check,
    claimant: Claimant | None = None,
) -> list[Rejected | None]:
    """`verify` for those who would rather wait than be called."""
    if not messages:
        return []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(_: list[Request]) -> None:
        if not done.done():
            done.set_result(None)

    request = Request(messages)
    verifier.verify([request], Errand(check, answered, claimant))
    await done
    if request.bug is not None:
        raise request.bug
    return request.verdicts


def valid_messages_memory() -> BoundedCache[bytes, bool]:
    """For the nodes of one simulation."""
    return BoundedCache(VALID_MESSAGES_MEMOISED_MAX)
