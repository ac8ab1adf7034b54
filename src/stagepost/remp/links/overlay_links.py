"""The links of one member to the others of its session, over real connections; implements `Overlay`.

    overlay = OverlayLinks(end, listener, session_id, own_index, members)
    overlay.start(events)                   # links come up in the background; events.linked(peer) tells of each
    overlay.push(peer, frame)               # False: no link now, or its queue is full
    overlay.ask(peer, query, answered, 2.0)
    await overlay.close()                   # the session is over; the listener stays

There is one link for each pair: the member of the lower index dials. One that dials again while its old link still
stands has lost that one, and the new one takes its place. A member that comes back and is not dialled soon knocks at
those who should: they may have given it up for a while, or not have noticed that it was gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    RemoteProtocolError,
    TransportError,
)
from stagepost.ground.net.back_off import Penalties, violation_of
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Address
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.dialler import LinkDialler
from stagepost.remp.links.link import LinkCounts
from stagepost.remp.links.link_doors import end_links, kept_out, run_link
from stagepost.remp.links.link_overlay import OverlayLink, check_object
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import Answered, OverlayEvents
from stagepost.remp.links.versions import LinkVersion

KNOCK_AFTER_S = 2.0
"""Whoever is there and has not missed us has dialled by then."""


class LinkMember(NamedTuple):
    """`address` may be None for those who dial us."""

    public_key: bytes
    address: Address | None


class OverlayLinks:
    def __init__(
        self,
        end: OurEnd,
        listener: LinkListener,
        session_id: bytes,
        own_index: int,
        members: Sequence[LinkMember],
    ) -> None:
        _check_members(end, own_index, members)
        self.session_id = session_id
        self.counts = LinkCounts()
        self._end = end
        self._listener = listener
        self._own_index = own_index
        self._members = tuple(members)
        self._index_of = {member.public_key: index for index, member in enumerate(members)}
        self._links: dict[int, OverlayLink] = {}
        self._penalties: Penalties[bytes] = Penalties()
        self._events: OverlayEvents | None = None
        self._knocking: asyncio.TimerHandle | None = None
        self._dialler = LinkDialler(end, LinkVersion.CATCHAIN, session_id, self)

    def start(self, events: OverlayEvents) -> None:
        self._listener.register(LinkVersion.CATCHAIN, self.session_id, self)
        self._events = events
        for member in self._members[self._own_index + 1 :]:
            assert member.address is not None, "checked when it was given"
            self._dialler.want(member.public_key, member.address)
        self._dialler.start()
        self._knocking = asyncio.get_running_loop().call_later(KNOCK_AFTER_S, self._knock)

    async def close(self) -> None:
        """End all links, in order; what was accepted for sending goes out."""
        self._listener.unregister(LinkVersion.CATCHAIN, self.session_id)
        self._events = None
        if self._knocking is not None:
            self._knocking.cancel()
        self._dialler.pause()
        await end_links(self._links.values())
        await self._dialler.stop()

    @property
    def linked(self) -> list[int]:
        """Members that there is a link to now."""
        return sorted(self._links)

    # The contract with those above

    def push(self, peer: int, frame: bytes) -> bool:
        link = self._links.get(peer)
        if link is None:
            check_object(frame)
            self.counts.unlinked += 1
            return False
        return link.push(frame)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        link = self._links.get(peer)
        if link is None:
            check_object(query)
            self.counts.unlinked += 1
            asyncio.get_running_loop().call_soon(answered, None)
        else:
            link.ask(query, answered, timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.end(RemoteProtocolError(text, code=ErrorCode.PROTOCOL_REQUEST, reason=rule))

    # The door of this session

    def check(self, public_key: bytes) -> None:
        index = self._index_of.get(public_key)
        if index is None:
            raise HandshakeRefused(
                f"key {public_key.hex()} is no member of session {self.session_id.hex()}",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="check the list of members",
                reason="NotAMember",
            )
        kept_out(self._penalties, public_key, self._end.clock.mono_s())

    def proved(self, public_key: bytes) -> None:
        index = self._index_of[public_key]
        if index < self._own_index:
            return
        link = self._links.get(index)
        # It knocks because it has no link. One that has only just come up crossed the knock on its way.
        if link is not None and self._end.clock.mono_s() - link.opened_at >= KNOCK_AFTER_S:
            link.end(TransportError(f"member {index} has lost this link"))
        self._dialler.is_there(public_key)
        raise HandshakeRefused(
            f"member {index} dialled member {self._own_index}; of two the lower index dials",
            code=ErrorCode.NOT_READY,
            advice="wait to be dialled",
            reason="WrongDirection",
        )

    def open(self, bearer: Bearer, terms: LinkTerms, *, dialled: bool) -> OverlayLink:
        public_key = terms.responder_key if dialled else terms.initiator_key
        index = self._index_of[public_key]
        events = self._events
        if events is None:
            raise TransportError(f"session {self.session_id.hex()} has ended")
        return OverlayLink(bearer, terms, self._end.clock, self.counts, index, events, dialled=dialled)

    async def run(self, link: OverlayLink) -> None:
        peer = link.peer
        older = self._links.get(peer)
        self._links[peer] = link
        if older is not None:
            older.end(TransportError(f"member {peer} opened a newer link"))
        try:
            await run_link(link, lambda: self._tell_linked(peer))
        finally:
            if self._links.get(peer) is link:
                del self._links[peer]
            if not link.dialled and violation_of(link.bearer.reason) is not None:
                self._penalties.penalise(link.public_key, self._end.clock.mono_s())

    def _knock(self) -> None:
        for index, member in enumerate(self._members[: self._own_index]):
            if index not in self._links and member.address is not None:
                self._dialler.knock(member.public_key, member.address)

    def _tell_linked(self, peer: int) -> None:
        if self._events is not None:
            self._events.linked(peer)


def _check_members(end: OurEnd, own_index: int, members: Sequence[LinkMember]) -> None:
    if not 0 <= own_index < len(members) or members[own_index].public_key != end.public_key:
        raise ConfigError(
            f"member {own_index} of {len(members)} does not have this node's key {end.public_key.hex()}",
            advice="check the list of members and the key file",
        )
    if len({member.public_key for member in members}) != len(members):
        raise ConfigError(
            "two members of a session have the same key", advice="give every member a key of its own"
        )
    for index in range(own_index + 1, len(members)):
        if members[index].address is None:
            raise ConfigError(
                f"member {own_index} dials member {index}, which has no address", advice="give its address"
            )
