"""Options that all endpoints share: callbacks (plain or coroutine functions), checks and time limits."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, cast

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.errors import ConfigError

T = TypeVar("T")

Authenticator = Callable[[DmqMessage], Rejected | Awaitable[Rejected | None] | None]
"""Callback that returns the fault in a message's proof; None if there is none."""

TtlValidator = Callable[[int, float], Rejected | Awaitable[Rejected | None] | None]
"""Callback with (expires_at, now), both in Unix seconds; it returns why the message is not valid now, or None."""

log = logging.getLogger(__name__)


async def settled(value: T | Awaitable[T]) -> T:
    """Return the callback's result, after awaiting it if it is awaitable."""
    if inspect.isawaitable(value):
        return await cast("Awaitable[T]", value)
    return value


async def tell(callback: Callable[..., object] | None, *values: object) -> None:
    """Call a callback that only listens. Log its errors, which change nothing here."""
    if callback is None:
        return
    try:
        await settled(callback(*values))
    except Exception:
        log.exception("callback failed", extra={"callback": getattr(callback, "__name__", repr(callback))})


async def first_fault(
    message: DmqMessage, now: float, ttl_validator: TtlValidator | None, authenticator: Authenticator | None
) -> Rejected | None:
    """Return the first fault, checking the dates before the proof, which costs more. A check of None is the
    caller's own task."""
    if ttl_validator is not None:
        fault = await settled(ttl_validator(message.expires_at, now))
        if fault is not None:
            return fault
    return None if authenticator is None else await settled(authenticator(message))


def require_positive(**limits: float | None) -> None:
    """Raise `ConfigError` for a limit of 0 or less: "0" may mean at once or for ever, so nobody may write it."""
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise ConfigError(
                f"{name} is {value}; it must be greater than 0",
                advice=f"leave {name} out for the default, or give math.inf for no limit",
                found=value,
            )


def given_limits(limits_s: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the time limits, by state, that replace the profile's own: in `limits_s` None means the
    profile's own and inf no limit."""
    return {
        state: None if math.isinf(limit_s) else limit_s
        for state, limit_s in limits_s.items()
        if limit_s is not None
    }
