"""Doorway of a listener: each bearer that comes in takes a place, and has a short time to prove who it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from stagepost.errors import ProtocolTimeout, TransportError
from stagepost.ground.net.admission import Admission, ConnectionPlace, Refusal, host_of
from stagepost.ground.net.bearer import Bearer

T = TypeVar("T")

log = logging.getLogger(__name__)


def refused(refusal: Refusal) -> TransportError:
    return TransportError(refusal.why, limit=refusal.limit, found=refusal.found)


@asynccontextmanager
async def entering(admission: Admission, bearer: Bearer) -> AsyncIterator[ConnectionPlace]:
    """Hold a place for `bearer` as long as the context lasts; raise `TransportError` if there is none."""
    place = admission.enter(host_of(bearer.peer), lambda refusal: _make_room(bearer, refusal))
    if isinstance(place, Refusal):
        log.warning("connection refused", extra={"peer": bearer.peer, "reason": place.why})
        bearer.close()
        raise refused(place)
    try:
        if place.wait_s:
            await asyncio.sleep(place.wait_s)
        yield place
    finally:
        place.leave()


async def proving(
    place: ConnectionPlace, bearer: Bearer, proof: Awaitable[T], on_late: Callable[[], None] = lambda: None
) -> T:
    """Return the result of `proof`. A peer that takes longer than the limit is cut off with `ProtocolTimeout`, and `on_late` is
    called.
    """
    within_s = place.admission.limits.proof_within_s
    try:
        async with asyncio.timeout(within_s) as limit:
            return await proof
    except TimeoutError:
        if not limit.expired():
            raise
        late = ProtocolTimeout(f"the peer did not prove itself within {within_s:g} s")
        bearer.abort(late)
        on_late()
        raise late from None


def settle(
    place: ConnectionPlace,
    bearer: Bearer,
    *,
    is_known: bool = False,
    worth: Callable[[], float] = lambda: 0.0,
) -> None:
    """Take the place behind the proof; close the connection and raise `TransportError` if there is none."""
    refusal = place.prove(is_known=is_known, worth=worth)
    if refusal is not None:
        log.warning("connection refused", extra={"peer": bearer.peer, "reason": refusal.why})
        bearer.close()
        raise refused(refusal)


def _make_room(bearer: Bearer, refusal: Refusal) -> None:
    log.info("connection makes room", extra={"peer": bearer.peer, "reason": refusal.why})
    bearer.abort(refused(refusal))
