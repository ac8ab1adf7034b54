"""The submission of bodies to a node: signing, submitting, and the meaning of each answer for the message.

`Pace` keeps to the rule of the network, where a pool may send only once in a while, and follows the node, which names
the seconds to wait when a message came too soon after the last one.

`SubmissionConnections` are several connections to one node: each carries one message at a time, and a node that makes messages
durable in groups takes many in the time of one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable

from stagepost.delivery.transport import SendFailed, SendPaced, SendRefused
from stagepost.dmq.endpoints.local_client import LocalClient
from stagepost.dmq.keys.signer import Signer
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome, Reason, Rejected
from stagepost.dmq.validation import MESSAGE_GAP_S
from stagepost.errors import ErrorCode, ProtocolTimeout, StagepostError
from stagepost.ground.loop.clock import Clock

WAIT_MAX_S = 3_600.0
"""Seconds, at most, that a node can make a publisher wait."""

_NAMED = re.compile(r"wait (\d{1,9}(?:\.\d{1,9})?) s\b")
_TOO_FREQUENT_ELSEWHERE = "TooFrequent"


def seconds_named(outcome: Rejected) -> float | None:
    """Return the seconds to wait; None if the message did not come too soon.

    A node that names no time has the gap of the public networks.
    """
    if outcome.code is not ErrorCode.MSG_TOO_FREQUENT and _TOO_FREQUENT_ELSEWHERE not in outcome.text:
        return None
    named = _NAMED.search(outcome.text)
    return min(float(named[1]), WAIT_MAX_S) if named else float(MESSAGE_GAP_S)


class Pace:
    """The time until the node takes a message again; until then nothing is signed or submitted.

    `gap_s` is the network's rule: seconds between two messages of one pool; 0 where there is no such rule.
    """

    def __init__(self, clock: Clock, gap_s: float = 0.0) -> None:
        self.gap_s = gap_s
        self._clock = clock
        self._not_before_s = 0.0
        self._turn_ends_s = 0.0

    def hold(self, wait_s: float) -> None:
        """Wait at least `wait_s`, as the node asked."""
        self._not_before_s = max(self._not_before_s, self._clock.mono_s() + wait_s)

    def begin_turn(self) -> float:
        """Take the present turn, so that no second message is begun in it; return a value for `give_back`."""
        before, self._turn_ends_s = self._turn_ends_s, self._clock.mono_s() + self.gap_s
        return before

    def give_back(self, before: float) -> None:
        """Free a turn whose message the node did not take."""
        self._turn_ends_s = before

    @property
    def wait_s(self) -> float:
        """Return the seconds to wait; 0 if a message may be sent."""
        return max(0.0, max(self._not_before_s, self._turn_ends_s) - self._clock.mono_s())

    @property
    def words(self) -> str:
        """Return the rule and the time of the next message, for people."""
        at = time.strftime("%H:%M:%S", time.gmtime(self._clock.unix_s() + self.wait_s))
        rule = f"on this network a pool may send once in {self.gap_s:g} s"
        return f"{rule if self.gap_s else 'the node asked to wait'}; sends again at {at} UTC"


class SubmissionConnections:
    """Connections to a node. The last one used is used first, so that a quiet program keeps only one."""

    def __init__(self, make_client: Callable[[], LocalClient], count: int) -> None:
        self._clients = [make_client() for _ in range(count)]
        self._free = list(self._clients)
        self._permits = asyncio.Semaphore(count)

    async def submit(self, message: DmqMessage) -> Outcome:
        async with self._permits:
            client = self._free.pop()
            try:
                return await client.submit(message)
            finally:
                self._free.append(client)

    async def check(self) -> None:
        """Shake hands once; raise as a submission would if the node is absent."""
        await self._clients[0].check()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


SIGNING_RETRY_S = 30.0
"""Seconds between two attempts while the keys cannot sign: the operator must renew them; no attempt is lost."""
WAIT_FOR_PACE_MAX_S = 60.0
"""Seconds, at most, that receipts wait: public nodes let a pool send once in this time; later the sender has given up."""
REFUSED_ADVICE = "the node's operator can say more; `stagepost keys show` tells what these keys are good for"

log = logging.getLogger(__name__)


class DmqSubmitter:
    """The way into a node. It raises `SendFailed` and `SendRefused`; `on_unreachable` is called if no node answers."""

    def __init__(
        self,
        signer: Signer,
        connections: SubmissionConnections,
        clock: Clock,
        on_unreachable: Callable[[], None],
        gap_s: float = 0.0,
    ) -> None:
        """`gap_s` is the network's rule: seconds between two messages of one pool."""
        self._signer = signer
        self._connections = connections
        self._clock = clock
        self._on_unreachable = on_unreachable
        self._pace = Pace(clock, gap_s)
        self.last_failure: str | None = None
        """Error of the last attempt; None if that attempt went well."""

    async def check(self) -> None:
        """Shake hands with the node; raise as a submission would."""
        await self._connections.check()

    async def close(self) -> None:
        await self._connections.close()

    async def send(self, body: bytes, ttl_s: float) -> DmqMessage:
        """Send a body at once, or fail while the node is known to refuse it."""
        self._require_pace()
        return await self._send(body, ttl_s)

    async def send_in_pace(self, body: bytes, ttl_s: float) -> DmqMessage:
        """Send a body as soon as the node takes it, if that is soon enough to be of use."""
        if self._pace.wait_s > WAIT_FOR_PACE_MAX_S:
            self._require_pace()
        await asyncio.sleep(self._pace.wait_s)
        try:
            return await self._send(body, ttl_s)
        except SendFailed:
            if not 0 < self._pace.wait_s <= WAIT_FOR_PACE_MAX_S:
                raise
        # The node refused because of an earlier message of this pool: now the time to wait is known.
        await asyncio.sleep(self._pace.wait_s)
        return await self._send(body, ttl_s)

    async def _send(self, body: bytes, ttl_s: float) -> DmqMessage:
        turn = self._pace.begin_turn()
        try:
            signed = await self._taken(body, ttl_s)
        except BaseException as error:
            self._pace.give_back(turn)
            if isinstance(error, SendFailed | SendRefused):
                self.last_failure = error.text
            raise
        self.last_failure = None
        return signed

    async def _taken(self, body: bytes, ttl_s: float) -> DmqMessage:
        """Submit a body; sign and submit it once more if the node finds it expired."""
        signed, outcome = await self._submit(body, ttl_s)
        if isinstance(outcome, Rejected) and outcome.reason is Reason.EXPIRED:
            signed, outcome = await self._submit(body, ttl_s)
        if isinstance(outcome, Rejected) and outcome.reason is not Reason.ALREADY_RECEIVED:
            raise self._refusal(outcome)
        return signed

    async def _submit(self, body: bytes, ttl_s: float) -> tuple[DmqMessage, Outcome]:
        try:
            signed = await self._signer.sign(body, int(self._clock.unix_s() + ttl_s))
        except StagepostError as error:
            log.error("cannot sign", extra={"reason": error.text, "advice": error.advice})
            text = f"cannot sign: {error.text}"
            raise SendFailed(text, SIGNING_RETRY_S, costs_attempt=False, code=error.code) from error
        try:
            return signed, await self._connections.submit(signed)
        except StagepostError as error:
            # An absent node costs no attempt; a node that took the message and fell silent does.
            is_silent = isinstance(error, ProtocolTimeout)
            if not is_silent:
                self._on_unreachable()
            raise SendFailed(error.text, costs_attempt=is_silent, code=error.code) from error

    def _refusal(self, outcome: Rejected) -> SendFailed | SendRefused:
        text = outcome.text or f"the node says: {outcome.reason}"
        wait_s = seconds_named(outcome)
        if wait_s is not None:
            self._pace.hold(wait_s)
            log.info("node asks to wait", extra={"wait_s": wait_s, "reason": text})
            return SendPaced(f"{text}; {self._pace.words}", wait_s, code=outcome.code)
        if outcome.reason is Reason.OTHER:
            return SendFailed(text, code=outcome.code)
        return SendRefused(text, code=outcome.code, advice=REFUSED_ADVICE)

    def _require_pace(self) -> None:
        wait_s = self._pace.wait_s
        if wait_s > 0:
            self.last_failure = self._pace.words
            raise SendPaced(self.last_failure, wait_s)
