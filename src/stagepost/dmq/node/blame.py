"""Violations of peers, each attributed to a mini-protocol, counted and logged once for each connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from stagepost.dmq.endpoints.connection import Connection, OnFault
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import (
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    StagepostError,
)
from stagepost.ground.net.bearer import Bearer

OnViolation: TypeAlias = Callable[[MiniProtocol | None, ErrorCode], None]
"""Callback with the mini-protocol (None for the connection itself) and the code of the broken rule."""

log = logging.getLogger(__name__)


class Blame:
    """Violations on one connection. An error in one conversation ends all others with the same error, which
    is counted once."""

    def __init__(self, bearer: Bearer, on_violation: OnViolation) -> None:
        self._bearer = bearer
        self._on_violation = on_violation
        self._fault: RemoteProtocolError | None = None

    async def watch(self, protocol: MiniProtocol, conversation: Coroutine[None, None, None]) -> None:
        try:
            await conversation
        except RemoteProtocolError as error:
            if error is not self._bearer.reason:
                self._count(protocol, error)
            raise

    def settle(self) -> None:
        """Count a violation of the multiplexer's rules after the connection has ended, since no conversation
        has counted it; log the fault."""
        reason = self._bearer.reason
        if isinstance(reason, RemoteProtocolError):
            self._count(None, reason)
        if isinstance(reason, LocalProtocolError):
            # The fault is ours, and nobody else reports it: the peer only sees the end.
            log.error("rule broken on this side", extra={"peer": self._bearer.peer, "reason": reason.text})
        if self._fault is None:
            return
        said = {"peer": self._bearer.peer, "code": self._fault.code, "reason": self._fault.text}
        # A network that failed looks like silence, or like a message cut short by the end: do not blame the
        # peer for these.
        if reason is None or isinstance(self._fault, ProtocolTimeout):
            log.info("connection ended", extra=said)
        else:
            log.warning("peer broke a rule", extra=said)

    def _count(self, protocol: MiniProtocol | None, fault: RemoteProtocolError) -> None:
        if self._fault is None:
            self._fault = fault
            self._on_violation(protocol, fault.code)


async def shake_hands(
    handshake: Callable[[OnFault], Coroutine[Any, Any, Connection]], on_violation: OnViolation
) -> Connection:
    """Run `handshake` and count the peer's violations in it. The caller that catches the error logs it."""
    counted: list[StagepostError] = []

    def count(fault: StagepostError) -> None:
        if isinstance(fault, RemoteProtocolError):
            counted.append(fault)
            on_violation(MiniProtocol.HANDSHAKE, fault.code)

    try:
        return await handshake(count)
    except RemoteProtocolError as error:
        if not counted:
            on_violation(None, error.code)
        raise
