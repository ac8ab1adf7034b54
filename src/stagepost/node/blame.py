"""Which mini-protocol a peer broke a rule of, counted once for each connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TypeAlias

from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ErrorCode, RemoteProtocolError
from stagepost.runtime.bearer import Bearer

OnViolation: TypeAlias = Callable[[MiniProtocol | None, ErrorCode], None]
"""Called with the mini-protocol, None for the connection itself, and the code of the broken rule."""


class Blame:
    """One connection. What one conversation raises ends all others with the same error, which counts no second time."""

    def __init__(self, bearer: Bearer, on_violation: OnViolation) -> None:
        self._bearer = bearer
        self._on_violation = on_violation
        self._is_counted = False

    async def watch(self, protocol: MiniProtocol, conversation: Coroutine[None, None, None]) -> None:
        try:
            await conversation
        except RemoteProtocolError as error:
            if error is not self._bearer.reason:
                self._count(protocol, error.code)
            raise

    def settle(self) -> None:
        """The connection has ended: if a rule of the multiplexer ended it, no conversation has counted that."""
        if isinstance(self._bearer.reason, RemoteProtocolError):
            self._count(None, self._bearer.reason.code)

    def _count(self, protocol: MiniProtocol | None, code: ErrorCode) -> None:
        if not self._is_counted:
            self._is_counted = True
            self._on_violation(protocol, code)
