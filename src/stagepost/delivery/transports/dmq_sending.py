"""Bodies on their way into a node: signed, submitted, and what each of its answers means for the message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stagepost.delivery.transport import SendFailed, SendRefused
from stagepost.delivery.transports.pace import Pace, seconds_named
from stagepost.delivery.transports.submission_lanes import SubmissionLanes
from stagepost.dmq.keys.signer import Signer
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome, Reason, Rejected
from stagepost.errors import ErrorCode, ProtocolTimeout, StagepostError
from stagepost.ground.loop.clock import Clock

SIGNING_RETRY_S = 30.0
"""Keys that cannot sign are the operator's to renew. Messages wait for it, and lose no attempt by it."""
WAIT_FOR_PACE_MAX_S = 60.0
"""Nodes of public networks let a pool speak once in this time; whoever waits for an answer has given up after more."""
REFUSED_ADVICE = "the node's operator can say more; `stagepost keys show` tells what these keys are good for"

log = logging.getLogger(__name__)


class DmqSending:
    """Raises `SendFailed` and `SendRefused`, as a transport does. `on_unreachable` is told when nobody was there."""

    def __init__(
        self, signer: Signer, lanes: SubmissionLanes, clock: Clock, on_unreachable: Callable[[], None]
    ) -> None:
        self._signer = signer
        self._lanes = lanes
        self._clock = clock
        self._on_unreachable = on_unreachable
        self._pace = Pace(clock)
        self.last_failure: str | None = None
        """What the last attempt failed of; None after one that went well."""

    async def check(self) -> None:
        """Shake hands with the node; raises as a submission would."""
        await self._lanes.check()

    async def close(self) -> None:
        await self._lanes.close()

    async def send(self, body: bytes, ttl_s: float) -> DmqMessage:
        """At once, or not at all while the node is known to refuse it."""
        self._require_pace()
        return await self._send(body, ttl_s)

    async def send_in_pace(self, body: bytes, ttl_s: float) -> DmqMessage:
        """As soon as the node takes it, if that is soon enough to be of use."""
        if self._pace.wait_s > WAIT_FOR_PACE_MAX_S:
            self._require_pace()
        await asyncio.sleep(self._pace.wait_s)
        try:
            return await self._send(body, ttl_s)
        except SendFailed:
            if not 0 < self._pace.wait_s <= WAIT_FOR_PACE_MAX_S:
                raise
        # Refused because of something that this pool sent elsewhere, or before: now the time to wait is known.
        await asyncio.sleep(self._pace.wait_s)
        return await self._send(body, ttl_s)

    async def _send(self, body: bytes, ttl_s: float) -> DmqMessage:
        try:
            signed = await self._taken(body, ttl_s)
        except (SendFailed, SendRefused) as error:
            self.last_failure = error.text
            raise
        self.last_failure = None
        return signed

    async def _taken(self, body: bytes, ttl_s: float) -> DmqMessage:
        """A node that finds it expired gets it once more, signed anew."""
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
            return signed, await self._lanes.submit(signed)
        except StagepostError as error:
            # A node that answers nobody costs no attempt; one that took the message and fell silent does.
            is_silent = isinstance(error, ProtocolTimeout)
            if not is_silent:
                self._on_unreachable()
            raise SendFailed(error.text, costs_attempt=is_silent, code=error.code) from error

    def _refusal(self, outcome: Rejected) -> SendFailed | SendRefused:
        text = outcome.text or f"the node says: {outcome.reason}"
        wait_s = seconds_named(outcome)
        if wait_s is not None:
            self._pace.hold(wait_s)
            return SendFailed(text, wait_s, costs_attempt=False, code=outcome.code)
        if outcome.reason is Reason.OTHER:
            return SendFailed(text, code=outcome.code)
        return SendRefused(text, code=outcome.code, advice=REFUSED_ADVICE)

    def _require_pace(self) -> None:
        wait_s = self._pace.wait_s
        if wait_s > 0:
            text = f"the node asked to wait; {wait_s:.1f} s are left"
            raise SendFailed(text, wait_s, costs_attempt=False, code=ErrorCode.MSG_TOO_FREQUENT)
