"""The links of one member to the others of its session, over real connections; implements `Overlay`.

    overlay = OverlayLinks(end, listener, session_id, own_index, members)
    overlay.start(events)                   # links come up in the background; events.linked(peer) tells of each
    overlay.push(peer, frame)               # False: no link now, or its queue is full
    overlay.ask(peer, query, answered, 2.0)
    await overlay.close()                   # the session is over; the listener stays

There is one link for each pair, over which both push objects and ask queries: the member of the lower index
dials. A member that dials again while its old link still stands has lost that link, and the new one takes its
place. A member that comes back and is not dialled soon knocks at those that should dial it: they may have
given it up for a while, or not have noticed that it was gone.

Operators add members to their network files each on their own, so two members may have them in another order. Then both
dial, and each refuses the other, or both knock, and each lets the other in. By that they notice, and the one with the
lower key dials.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX, Answer, Ask, Push, check_frame
from stagepost.catchain.query_window import QUERY_LIFE_S, ReceivedQueries, SentQueries
from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.back_off import Penalties
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Address
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.dialler import WRONG_DIRECTION, LinkDialler
from stagepost.remp.links.link import Link, LinkCounts, end_links, kept_out, run_link
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import Answered, OverlayEvents
from stagepost.remp.links.versions import LinkKind

log = logging.getLogger(__name__)


class OverlayLink(Link):
    """`peer` is the member's index."""

    def __init__(
        self,
        bearer: Bearer,
        terms: LinkTerms,
        clock: Clock,
        counts: LinkCounts,
        peer: int,
        events: OverlayEvents,
        *,
        dialled: bool,
    ) -> None:
        super().__init__(bearer, terms, clock, counts, dialled=dialled)
        self.peer = peer
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._asked = SentQueries()
        self._held = ReceivedQueries()
        self._awaited: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    def push(self, frame: bytes) -> bool:
        check_object(frame)
        return self.say(Push(frame))

    def ask(self, query: bytes, answered: Answered, timeout_s: float) -> None:
        check_object(query)
        now = self._loop.time()
        number = None
        # Look for room first: a query number that was given out must be used.
        if not self.is_over and self._speaking.has_room:
            number = self._asked.number_for_next(now)
        if number is None or not self.say(Ask(number, query)):
            self.counts.queries_unasked += 1
            self._loop.call_soon(answered, None)
            return
        timer = self._loop.call_later(min(timeout_s, QUERY_LIFE_S), self._give_up, number)
        self._awaited[number] = answered, timer

    def heard(self, message: object) -> None:
        match message:
            case Push(frame):
                check_frame(frame)
                self._events.pushed(self.peer, frame)
            case Ask(number, query):
                self._held.take(number, self._loop.time())
                self._events.asked(self.peer, query, partial(self._reply, number))
            case Answer(number, answer):
                self._asked.answered(number)
                awaited = self._awaited.pop(number, None)
                if awaited is None:
                    self.counts.answers_late += 1
                else:
                    answered, timer = awaited
                    timer.cancel()
                    answered(answer)

    def lost(self) -> None:
        awaited, self._awaited = self._awaited, {}
        for answered, timer in awaited.values():
            timer.cancel()
            self.counts.queries_unanswered += 1
            answered(None)

    def _give_up(self, number: int) -> None:
        awaited = self._awaited.pop(number, None)
        if awaited is not None:
            self.counts.queries_unanswered += 1
            awaited[0](None)

    def _reply(self, number: int, answer: bytes) -> None:
        check_object(answer)
        if self.is_over or not self._held.may_answer(number, self._loop.time()):
            self.counts.answers_late += 1
            return
        self.say(Answer(number, answer))


def check_object(data: bytes) -> None:
    """Check an object of ours before it is sent, so that our own mistakes are found here and not by the peer."""
    if not CONSTRUCTOR_BYTES <= len(data) <= OBJECT_BYTES_MAX:
        raise LocalProtocolError(
            f"a TL object on a link has {CONSTRUCTOR_BYTES} to {OBJECT_BYTES_MAX} bytes, not {len(data)}",
            limit=OBJECT_BYTES_MAX,
            found=len(data),
        )


KNOCK_AFTER_S = 2.0
"""Seconds after which a running member that has not missed us has dialled."""

KNOCK_EVERY_S = 60.0
"""Seconds from one knock at members that have not dialled to the next."""


class LinkMember(NamedTuple):
    """`address` may be None for members that dial us."""

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
        self._contrary: set[bytes] = set()
        """Keys of the members that have this member and themselves in another order."""
        self._links: dict[int, OverlayLink] = {}
        self._penalties: Penalties[bytes] = Penalties()
        self._events: OverlayEvents | None = None
        self._knocking: asyncio.TimerHandle | None = None
        self._dialler = LinkDialler(end, LinkKind.CATCHAIN, session_id, self, self._settle_order)

    def start(self, events: OverlayEvents) -> None:
        self._listener.register(LinkKind.CATCHAIN, self.session_id, self)
        self._events = events
        for member in self._members[self._own_index + 1 :]:
            assert member.address is not None, "checked when it was given"
            self._dialler.want(member.public_key, member.address)
        self._dialler.start()
        self._knocking = asyncio.get_running_loop().call_later(KNOCK_AFTER_S, self._knock)

    def add_member(self, member: LinkMember) -> None:
        """Add a member behind the others, and dial it; `ConfigError` for a key that is there, or without an address."""
        members = (*self._members, member)
        _check_members(self._end, self._own_index, members)
        self._members = members
        self._index_of[member.public_key] = len(members) - 1
        assert member.address is not None, "checked just now"
        self._dialler.want(member.public_key, member.address)

    async def close(self) -> None:
        """End all links, in order; what was accepted for sending goes out."""
        self._listener.unregister(LinkKind.CATCHAIN, self.session_id)
        self._events = None
        if self._knocking is not None:
            self._knocking.cancel()
        self._dialler.pause()
        await end_links(self._links.values())
        await self._dialler.stop()

    @property
    def linked(self) -> list[int]:
        """Return the members to which there is a link now."""
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
                f"key {public_key.hex()} is not a member of session {self.session_id.hex()}",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="check the list of members",
                reason="NotAMember",
            )
        kept_out(self._penalties, public_key, self._end.clock.mono_s())

    def proved(self, public_key: bytes) -> None:
        index = self._index_of[public_key]
        if not self._dials(index):
            return
        link = self._links.get(index)
        # It knocks because it has no link. One that has only just come up crossed the knock on its way.
        if link is not None and self._end.clock.mono_s() - link.opened_at >= KNOCK_AFTER_S:
            link.end(TransportError(f"member {index} has lost this link"))
        self._dialler.is_there(public_key)
        raise HandshakeRefused(
            f"member {index} dialled member {self._own_index}; of two members the one with the lower index dials",
            code=ErrorCode.NOT_READY,
            advice="wait to be dialled",
            reason=WRONG_DIRECTION,
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
            if not link.dialled and link.violation is not None:
                self._penalties.penalise(link.public_key, self._end.clock.mono_s())

    def _dials(self, index: int) -> bool:
        """Return whether this member is the one that dials the member with this index."""
        public_key = self._members[index].public_key
        if public_key in self._contrary:
            return self._end.public_key < public_key
        return index > self._own_index

    def _settle_order(self, public_key: bytes) -> None:
        """Let the lower key dial from now on: the member has this one and itself in another order."""
        index = self._index_of[public_key]
        address = self._members[index].address
        if self._events is None or address is None:
            return
        if public_key not in self._contrary:
            self._contrary.add(public_key)
            log.warning("member has another order of members", extra={"peer": str(address)})
        if self._dials(index):
            self._dialler.want(public_key, address)
        else:
            self._dialler.drop(public_key)

    def _knock(self) -> None:
        self._knocking = asyncio.get_running_loop().call_later(KNOCK_EVERY_S, self._knock)
        for index, member in enumerate(self._members):
            is_knocked_at = index not in self._links and index != self._own_index and not self._dials(index)
            if is_knocked_at and member.address is not None:
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
