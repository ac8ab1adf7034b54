"""The node's side of a worker process that checks signatures: start it, ask it, and return the work if it
dies."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from stagepost.ground.crypto.ed25519 import Claim
from stagepost.ground.signatures.worker import ANSWER, READY, question

UNANSWERED_CLAIMS_MAX = 100
"""Claims, about six milliseconds of work: longer than a turn of the loop, and no longer than the loop can wait."""

PIPE_BYTES = 1 << 20
PIPE_BYTES_EVERYWHERE = 1 << 14
"""Bytes of a pipe on every system; Linux makes a pipe larger on request."""
PAGE_BYTES = 4_096
ANSWERED_WITHIN_S = 5.0
"""Seconds, a thousand times the usual answer time; a process that needs longer has been stopped, or hangs."""

ENDED_WITHIN_S = 5.0

Work = TypeVar("Work")

_log = logging.getLogger(__name__)


class VerifyingHelper(Generic[Work]):
    """Handle of one worker process.

    It calls `on_answers` with each piece of work and its answers, and `on_gone` with all work that will not
    be answered.
    """

    def __init__(
        self,
        on_answers: Callable[[list[tuple[Work, bytes]]], None],
        on_gone: Callable[[list[Work]], None],
    ) -> None:
        self._on_answers = on_answers
        self._on_gone = on_gone
        self._process: subprocess.Popen[bytes] | None = None
        self._questions = self._answers = -1
        self._loop = asyncio.get_running_loop()
        self._pipe_bytes = PIPE_BYTES_EVERYWHERE
        self._asked: deque[tuple[Work, int, int]] = deque()
        self._next_question = 0
        self._next_answer = 0
        self._asked_bytes = 0
        self._answer = b""
        self._answers_heard = 0
        self._watchdog: asyncio.TimerHandle | None = None
        self.unanswered = 0
        self.is_ready = False

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_room(self) -> bool:
        return self.is_ready and self.unanswered < UNANSWERED_CLAIMS_MAX

    def start(self) -> None:
        """Start the process. It is ready about a tenth of a second later."""
        asked, self._questions = os.pipe()
        self._answers, answered = os.pipe()
        try:
            self._pipe_bytes = _enlarge(self._questions)
            # -P keeps the working folder off the module path: the process must not import modules from there.
            command = [sys.executable, "-P", "-m", "stagepost.ground.signatures.worker"]
            self._process = subprocess.Popen(command, stdin=asked, stdout=answered)
        except OSError as error:
            self._lost(str(error))
            return
        finally:
            os.close(asked)
            os.close(answered)
        os.set_blocking(self._questions, False)
        os.set_blocking(self._answers, False)
        self._loop.add_reader(self._answers, self._read)

    def ask(self, work: Work, claims: Sequence[Claim], *, gives_up: bool) -> bool:
        """Send `claims` to the process. Return False if there is no room: then the caller does the work
        itself."""
        if not self.has_room:
            return False
        data = question(self._next_question, claims, gives_up=gives_up)
        # A pipe counts in pages, and a write may waste most of a page at each of its ends.
        taken = len(data) + 2 * PAGE_BYTES
        if self._asked_bytes + taken > self._pipe_bytes:
            return False
        try:
            if os.write(self._questions, data) != len(data):
                self._lost("its pipe took only part of a question")
                return False
        except OSError as error:
            self._lost(str(error))
            return False
        self._next_question += 1
        self._asked.append((work, len(claims), taken))
        self._asked_bytes += taken
        self.unanswered += len(claims)
        if self._watchdog is None:
            self._watch()
        return True

    def _read(self) -> None:
        try:
            data = os.read(self._answers, PIPE_BYTES_EVERYWHERE)
        except BlockingIOError:
            return
        if not data:
            self._lost("it ended")
            return
        if not self.is_ready:
            self.is_ready, data = True, data.removeprefix(READY)
        answered: list[tuple[Work, bytes]] = []
        data = self._answer + data
        is_out_of_order = False
        while len(data) >= ANSWER.size:
            number, count = ANSWER.unpack_from(data)
            if not self._asked or (number, count) != (self._next_answer, self._asked[0][1]):
                is_out_of_order = True
                break
            if len(data) < ANSWER.size + count:
                break
            work, _, taken = self._asked.popleft()
            self._next_answer += 1
            self._asked_bytes -= taken
            self.unanswered -= count
            answered.append((work, data[ANSWER.size : ANSWER.size + count]))
            data = data[ANSWER.size + count :]
        self._answer = data
        if answered:
            self._answers_heard += len(answered)
            self._on_answers(answered)
        if is_out_of_order:
            # Verdicts must never count for other signatures than those they were given for.
            self._lost(f"it answered a question other than number {self._next_answer}")

    def _watch(self) -> None:
        heard = self._answers_heard
        self._watchdog = self._loop.call_later(ANSWERED_WITHIN_S, self._check_progress, heard)

    def _check_progress(self, heard_before: int) -> None:
        self._watchdog = None
        if not self._asked:
            return
        if self._answers_heard == heard_before:
            self._lost(f"it has not answered for {ANSWERED_WITHIN_S:g} s")
        else:
            self._watch()

    def _lost(self, why: str) -> None:
        _log.warning("the process that checks signatures is lost", extra={"detail": why})
        process = self._process
        self._let_go()
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        left = [work for work, _, _ in self._asked]
        self._asked.clear()
        self._asked_bytes = self.unanswered = 0
        self._on_gone(left)

    def _let_go(self) -> None:
        self.is_ready = False
        self._process = None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        if self._answers >= 0:
            self._loop.remove_reader(self._answers)
            os.close(self._answers)
            os.close(self._questions)
            self._answers = self._questions = -1

    async def close(self) -> None:
        """End the process. It finishes its present work, whose answers are dropped."""
        process = self._process
        self._let_go()
        if process is not None:
            await asyncio.to_thread(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(ENDED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _enlarge(pipe: int) -> int:
    """Enlarge the pipe if the system can; return the number of bytes that it holds."""
    try:
        from fcntl import F_SETPIPE_SZ, fcntl

        return fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, OSError):
        return PIPE_BYTES_EVERYWHERE
