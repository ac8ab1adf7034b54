"""What the doors of all kinds of links have in common: who is kept out, and how a link is run and its end told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from stagepost.errors import (
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from stagepost.ground.net.back_off import Penalties, violation_of
from stagepost.ground.net.sockets import CLOSE_GRACE_S
from stagepost.remp.links.link import Link

log = logging.getLogger(__name__)


def kept_out(penalties: Penalties[bytes], public_key: bytes, now: float) -> None:
    """Raises as long as a peer is left alone for a rule that it broke."""
    until = penalties.refused_until(public_key, now)
    if until is not None:
        raise HandshakeRefused(
            f"key {public_key.hex()} broke a rule and is kept out for {until - now:.0f} s more",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="mend the peer, and wait",
            reason="KeptOut",
        )


async def run_link(link: Link, tell_linked: Callable[[], None]) -> None:
    """Until it ends. Whoever is above hears of the link before anything that comes over it."""
    try:
        tell_linked()
    except Exception as bug:
        log.exception("a new link was not handled", extra={"peer": link.bearer.peer})
        link.end(LocalProtocolError(f"a bug on this side ended the link: {type(bug).__name__}"))
    await link.run()
    reason = link.bearer.reason
    if reason is None:
        return
    said = {
        "peer": link.bearer.peer,
        "key_id": link.peer_id.hex(),
        "code": reason.code,
        "rule": reason.reason,
        "reason": reason.text,
    }
    if isinstance(reason, RemoteProtocolError) and violation_of(reason) is not None:
        log.warning("peer broke a rule", extra=said)
    elif isinstance(reason, LocalProtocolError):
        log.error("rule broken on this side", extra=said)
    else:
        log.info("link ended", extra=said)


async def end_links(links: Iterable[Link]) -> None:
    """In order: what was accepted for sending goes out. A peer that does not take it in time is cut off."""
    ending = list(links)
    for link in ending:
        link.bearer.close()
    try:
        async with asyncio.timeout(CLOSE_GRACE_S):
            await asyncio.gather(*(link.bearer.wait_closed() for link in ending))
    except TimeoutError:
        for link in ending:
            link.bearer.abort(TransportError("this side ended its links", peer=link.bearer.peer))
            await link.bearer.wait_closed()
