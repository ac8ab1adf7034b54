"""Signature checks on the event loop and in processes beside it.

Handing work to a process and taking its answer costs about as much as a check, so the loop keeps a handful of
messages for itself and cuts more messages into pieces. There is one process for each further processor; each
gets as many pieces as it can do until the loop comes by again, and the loop does the others: nobody waits
while there is work. With one processor there is no such process, for it could only take turns with the loop.
If a process dies, the loop does its work.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from stagepost.errors import LocalProtocolError
from stagepost.ground.crypto.bounded_cache import BoundedCache
from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.signatures.process import VerifyingHelper
from stagepost.ground.signatures.worker import NOT_LOOKED_AT, VALID

SLICE_MESSAGES = 20
"""Messages that the loop checks before it attends to everything else again: about a millisecond."""

PIECE_MESSAGES = 10
"""Messages in a piece. With processes beside it, the loop pauses after one piece, so that they do not run out of work."""
KEPT_MESSAGES_MAX = 5
"""Messages, at most, that are not worth handing to another process."""

STARTED_AGAIN_AFTER_S = 10.0
"""Seconds between starts, so that a process that dies at once is not started over and over."""

VALID_MESSAGES_MEMOISED_MAX = 65_536

M = TypeVar("M")
"""A signed thing: a DMQ message, a receipt."""
V = TypeVar("V")
"""The verdict on a thing that is not valid."""
M_contra = TypeVar("M_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)

Check: TypeAlias = Callable[[M], V | None]


class Claimant(Protocol[M_contra, V_co]):
    """Part of a check that another process can do: the signatures of a message.

    Without a claimant, the loop checks everything itself.
    """

    def claims(self, message: M_contra, /) -> Sequence[Claim] | None:
        """Return at least one signature; None if the check itself has to say what is wrong."""
        ...

    def conclude(self, message: M_contra, /, claims: Sequence[Claim], holds: Sequence[bool]) -> V_co | None:
        """Return the verdict that the check would have returned."""
        ...


class Request(Generic[M, V]):
    """Messages of one caller. An answered request has a verdict for each message, or the bug that prevented one.

    `given_up`: the verdict on messages that were not checked because an earlier message of the request is forged. The
    source of a forgery is cut off, so one forgery ends the checking; otherwise one connection could make us check as
    many forgeries as a reply may hold. None: every message is checked.
    """

    __slots__ = ("bug", "given_up", "is_given_up", "messages", "unchecked", "verdicts")

    def __init__(self, messages: Sequence[M], *, given_up: V | None = None) -> None:
        self.messages = messages
        self.given_up = given_up
        self.is_given_up = False
        self.unchecked = len(messages)
        self.verdicts: list[V | None] = [None] * len(messages)
        self.bug: Exception | None = None

    @property
    def gives_up(self) -> bool:
        return self.given_up is not None


Answered: TypeAlias = Callable[[list[Request[M, V]]], None]


class Errand(NamedTuple, Generic[M, V]):
    """Work on requests: `check` for each message.

    The verifier calls `answered` on the loop, perhaps at once, with those requests that are ready together.
    """

    check: Check[M, V]
    answered: Answered[M, V]
    claimant: Claimant[M, V] | None = None


class SignatureVerifier(Protocol):
    def verify(self, requests: Sequence[Request[M, V]], errand: Errand[M, V]) -> None: ...

    async def close(self) -> None: ...


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Piece(Generic[M, V]):
    """Part of one request, checked in one go."""

    __slots__ = ("claims", "end", "errand", "request", "start")

    def __init__(self, request: Request[M, V], start: int, end: int, errand: Errand[M, V]) -> None:
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
                verdict = request.given_up if request.is_given_up else check(messages[position])
                if verdict is not None:
                    verdicts[position] = verdict
                    request.is_given_up = request.gives_up
        except Exception as bug:
            request.bug = bug

    def claim(self) -> list[Claim] | None:
        """Return the signatures that another process may check; None if the loop has to check them."""
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
        """Enter the verdicts that follow from `answers`, one answer for each claim."""
        if answers.count(VALID) == len(answers) == self.end - self.start:
            return  # one claim each: there is nothing to remember of these signers that was not known
        request, claimant = self.request, self.errand.claimant
        if claimant is None:
            raise LocalProtocolError("a checking process answered a piece that nobody had sent")
        at = 0
        for position, claims in enumerate(self.claims, self.start):
            found = answers[at : at + len(claims)]
            at += len(claims)
            verdict = request.given_up
            if found[0] != NOT_LOOKED_AT:
                holds = [answer == VALID for answer in found]
                verdict = claimant.conclude(request.messages[position], claims, holds)
            if verdict is not None:
                request.verdicts[position] = verdict
                request.is_given_up = request.gives_up


_AnyPiece: TypeAlias = _Piece[Any, Any]


class Verifier:
    """Verifier on the loop with `processes` beside it; by default one for each further processor."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processors() - 1 if processes is None else processes
        self.helpers: list[VerifyingHelper[_AnyPiece]] = []
        self._started_at = float("-inf")
        # Pieces for the loop alone, and pieces for whichever comes first, the loop or a process.
        self._kept: deque[_AnyPiece] = deque()
        self._shared: deque[_AnyPiece] = deque()
        self._is_turn_due = False

    @property
    def process_ids(self) -> list[int]:
        return [helper.process_id for helper in self.helpers if helper.process_id is not None]

    def verify(self, requests: Sequence[Request[M, V]], errand: Errand[M, V]) -> None:
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
        self, messages: Sequence[M], check: Check[M, V], claimant: Claimant[M, V] | None = None
    ) -> list[V | None]:
        """Return the verdicts, in the order of the messages."""
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
            helper: VerifyingHelper[_AnyPiece] = VerifyingHelper(self._take_answers, self._take_back)
            helper.start()
            if helper.process_id is not None:
                self.helpers.append(helper)

    def _hand_out(self) -> None:
        """Give each process as many pieces as it has room for."""
        for helper in self.helpers:
            while self._shared and helper.has_room:
                piece = self._shared.popleft()
                claims = piece.claim()
                if claims is None or not helper.ask(piece, claims, gives_up=piece.request.gives_up):
                    self._kept.append(piece)

    def _take_turn(self) -> None:
        """Check a slice, then report its verdicts."""
        self._is_turn_due = True
        done: list[_AnyPiece] = []
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

    def _take_answers(self, answered: list[tuple[_AnyPiece, bytes]]) -> None:
        if self._shared:
            self._hand_out()
        for piece, answers in answered:
            try:
                piece.conclude(answers)
            except Exception as bug:
                piece.request.bug = bug
        self._answer([piece for piece, _ in answered])

    def _take_back(self, pieces: list[_AnyPiece]) -> None:
        """Let the loop do the pieces that a lost process will not do any more."""
        self.helpers = [helper for helper in self.helpers if helper.process_id is not None]
        self._kept.extendleft(reversed(pieces))
        if self._kept and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _answer(self, done: list[_AnyPiece]) -> None:
        answers: dict[Answered[Any, Any], list[Request[Any, Any]]] = {}
        for piece in done:
            request = piece.request
            request.unchecked -= piece.end - piece.start
            if not request.unchecked:
                answers.setdefault(piece.errand.answered, []).append(request)
        for answered, requests in answers.items():
            answered(requests)

    async def close(self) -> None:
        """End the processes. The caller has stopped everybody who asks."""
        helpers, self.helpers = self.helpers, []
        for helper in helpers:
            await helper.close()


class InlineVerifier:
    """Verifier without processes, for virtual time.

    Nodes that share a `memory` check a message once between them all; `signed_bytes` returns the bytes that
    tell two messages apart there.
    """

    def __init__(
        self,
        memory: BoundedCache[bytes, bool] | None = None,
        signed_bytes: Callable[[Any], bytes] = attrgetter("raw"),
    ) -> None:
        self._memory = memory
        self._signed_bytes = signed_bytes

    def verify(self, requests: Sequence[Request[M, V]], errand: Errand[M, V]) -> None:
        remembering = errand._replace(check=partial(self._check_one, errand.check))
        for request in requests:
            _Piece(request, 0, len(request.messages), remembering).run()
        errand.answered(list(requests))

    async def check(
        self, messages: Sequence[M], check: Check[M, V], claimant: Claimant[M, V] | None = None
    ) -> list[V | None]:
        """Return the verdicts, in the order of the messages."""
        return await checked(self, messages, check, claimant)

    def _check_one(self, check: Check[M, V], message: M) -> V | None:
        if self._memory is None:
            return check(message)
        key = self._signed_bytes(message)
        if self._memory.get(key):
            return None
        verdict = check(message)
        # Only valid messages are kept: that verdict depends on nothing but the message's own bytes.
        if verdict is None:
            self._memory.put(key, True)
        return verdict

    async def close(self) -> None:
        return


async def checked(
    verifier: SignatureVerifier,
    messages: Sequence[M],
    check: Check[M, V],
    claimant: Claimant[M, V] | None = None,
) -> list[V | None]:
    """Do what `verify` does, for a caller that waits for the verdicts instead of being called."""
    if not messages:
        return []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(_: list[Request[M, V]]) -> None:
        if not done.done():
            done.set_result(None)

    request: Request[M, V] = Request(messages)
    verifier.verify([request], Errand(check, answered, claimant))
    await done
    if request.bug is not None:
        raise request.bug
    return request.verdicts


def valid_messages_memory() -> BoundedCache[bytes, bool]:
    """Return a memory of valid messages that the nodes of one simulation share."""
    return BoundedCache(VALID_MESSAGES_MEMOISED_MAX)
