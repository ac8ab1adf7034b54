"""What the options of all endpoints share: callbacks (plain or coroutine functions), checks and time limits."""

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
"""Says what is wrong with a message's proof; None if nothing is."""

TtlValidator = Callable[[int, float], Rejected | Awaitable[Rejected | None] | None]
"""Called with (expires_at, now), both in Unix seconds; says why the message may not live now, or None."""

log = logging.getLogger(__name__)


async def settled(value: T | Awaitable[T]) -> T:
    """What a callback returned, once it is there."""
    if inspect.isawaitable(value):
        return await cast("Awaitable[T]", value)
    return value


async def tell(callback: Callable[..., object] | None, *values: object) -> None:
    """Call somebody who only listens. What goes wrong there is logged and changes nothing here."""
    if callback is None:
        return
    try:
        await settled(callback(*values))
    except Exception:
        log.exception("callback failed", extra={"callback": getattr(callback, "__name__", repr(callback))})


async def first_fault(
    message: DmqMessage, now: float, ttl_validator: TtlValidator | None, authenticator: Authenticator | None
) -> Rejected | None:
    """The cheap question before the dear one. A check that is None is somebody else's."""
    if ttl_validator is not None:
        fault = await settled(ttl_validator(message.expires_at, now))
        if fault is not None:
            return fault
    return None if authenticator is None else await settled(authenticator(message))


def require_positive(**limits: float | None) -> None:
    """Refuse a limit of nothing: "0" may mean at once or for ever, so it is never written."""
    for name, value in limits.items():
        if value is not None and not value > 0:
            raise ConfigError(
                f"{name} is {value}; it must be greater than 0",
                advice=f"leave {name} out for the default, or give math.inf for no limit",
                found=value,
            )


def given_limits(limits_s: Mapping[str, float | None]) -> dict[str, float | None]:
    """The time limits, by state, that replace the profile's own. There, None is the profile's and inf is none."""
    return {
        state: None if math.isinf(limit_s) else limit_s
        for state, limit_s in limits_s.items()
        if limit_s is not None
    }
