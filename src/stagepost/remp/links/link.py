"""An authenticated link: objects out and in by calls, the keep-alive beside them, and what all kinds of links
share: keeping a peer out, running a link, and reporting its end.

A message that comes in is handled in the same turn of the loop that brought it. A message that does not fit
into the queue of a slow peer is dropped and counted, and nobody ever waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stagepost.errors import (
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.back_off import Penalties, violation_of
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import run_conversations
from stagepost.ground.net.keep_alive import KeepAliveClient, KeepAliveServer
from stagepost.ground.net.sockets import CLOSE_GRACE_S
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.specs import SPOKEN, LinkProtocol, open_link_protocol
from stagepost.remp.links.versions import LinkVersion

log = logging.getLogger(__name__)


@dataclass
class LinkCounts:
    """Counts of the messages that passed over links, and of those that did not."""

    sent: int = 0
    received: int = 0
    dropped: int = 0  # the peer's queue was full
    unlinked: int = 0  # there was no link to the peer
    queries_unasked: int = 0  # too many were under way
    queries_unanswered: int = 0  # no answer came in time
    answers_late: int = 0  # an answer came, or was made, after the time for it was over


class Link(ABC):
    """`public_key` is the peer's, and proved."""

    def __init__(
        self, bearer: Bearer, terms: LinkTerms, clock: Clock, counts: LinkCounts, *, dialled: bool
    ) -> None:
        self.bearer = bearer
        self.dialled = dialled
        self.public_key = terms.responder_key if dialled else terms.initiator_key
        self.peer_id = key_id(self.public_key)
        self.counts = counts
        self.clock = clock
        self.opened_at = clock.mono_s()
        self.is_over = False
        self.is_encrypted = terms.is_encrypted
        spoken = SPOKEN[LinkVersion(terms.version).kind]
        here, there = Direction.INITIATOR, Direction.RESPONDER
        if not dialled:
            here, there = there, here
        self._speaking = open_link_protocol(bearer, spoken[here], Role.CLIENT)
        self._hearing = open_link_protocol(bearer, spoken[there], Role.SERVER)
        pinging = Role.CLIENT if dialled else Role.SERVER
        self._pinging = open_link_protocol(bearer, LinkProtocol.KEEP_ALIVE, pinging)

    @property
    def violation(self) -> str | None:
        """Return the rule by whose breach the peer's key ended this link. None on a plain link: anybody on the way may have
        sent what broke the rule.
        """
        return violation_of(self.bearer.reason) if self.is_encrypted else None

    def say(self, message: object) -> bool:
        """Send a message. Return False, and count it, if the peer's queue is full or the link has ended."""
        if self.is_over or self.bearer.is_over or not self._speaking.has_room:
            self.counts.dropped += 1
            return False
        self._speaking.say(message)
        self.counts.sent += 1
        return True

    @abstractmethod
    def heard(self, message: object) -> None:
        """Handle a message of the peer. An error raised here ends the link."""

    def lost(self) -> None:
        """Give up everything that is still awaited from the peer: the link has ended."""
        return

    def end(self, error: StagepostError) -> None:
        """End the link at once, with `error` as its reason."""
        if not self.is_over:
            self.is_over = True
            self.bearer.abort(error)

    async def run(self) -> None:
        """Run the link until it ends; `bearer.reason` then says why."""
        try:
            self._hearing.on_message(self._hear)
            self._hear()
            keep_alive = (
                KeepAliveClient(self._pinging, self.clock).run()
                if self.dialled
                else KeepAliveServer(self._pinging).run()
            )
            await run_conversations(self.bearer, [keep_alive])
        finally:
            self._hearing.on_message(None)
            self.is_over = True
            self.lost()

    def _hear(self) -> None:
        hearing = self._hearing
        try:
            while not self.is_over:
                message = hearing.receive_now()
                if message is None:
                    return
                self.counts.received += 1
                self.heard(message)
                if hearing.is_over:
                    self.is_over = True
                    self.bearer.close()
        except TransportError:
            self.is_over = True  # the peer went away; the bearer knows
            self.bearer.close()
        except StagepostError as error:
            self.end(error)
        except Exception as bug:
            # The boundary of a connection: a bug above must not take the other links along.
            log.exception("what a peer sent was not handled", extra={"peer": self.bearer.peer})
            self.end(LocalProtocolError(f"a bug on this side ended the link: {type(bug).__name__}"))


def kept_out(penalties: Penalties[bytes], public_key: bytes, now: float) -> None:
    """Raise while the penalty of a peer that broke a rule lasts."""
    until = penalties.refused_until(public_key, now)
    if until is not None:
        raise HandshakeRefused(
            f"key {public_key.hex()} broke a rule and is kept out for {until - now:.0f} s more",
            code=ErrorCode.PROTOCOL_REQUEST,
            advice="repair the peer, and wait",
            reason="KeptOut",
        )


async def run_link(link: Link, tell_linked: Callable[[], None]) -> None:
    """Run the link until it ends. The owner hears of the link before anything that comes over it."""
    if not link.is_encrypted:
        plain = {"peer": link.bearer.peer, "key_id": link.peer_id.hex()}
        log.warning("link is not encrypted", extra=plain)
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
    if link.violation is not None:
        log.warning("peer broke a rule", extra=said)
    elif isinstance(reason, LocalProtocolError):
        log.error("rule broken on this side", extra=said)
    else:
        log.info("link ended", extra=said)


async def end_links(links: Iterable[Link]) -> None:
    """End the links in order, after everything accepted for sending went out. A peer that does not take it in
    time is cut off.
    """
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
