"""A full node's links to validators: messages out, receipts in; implements `FullNodeLinks`.

links = DiallingFullNodeLinks(end)
links.start(events)
links.set_validators({public_key: address, …})   # again at every switch of sessions
links.send(key_id(public_key), message)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from stagepost.errors import ErrorCode, RemoteProtocolError, TransportError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Address
from stagepost.remp.links.authentication import LinkTerms, network_session_id
from stagepost.remp.links.dialler import LinkDialler
from stagepost.remp.links.link import Link, LinkCounts, end_links, run_link
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import FullNodeLinkEvents, OverlayEvents
from stagepost.remp.links.overlay_links import check_object
from stagepost.remp.links.protocols import Done, MessageFrame, Receipts
from stagepost.remp.links.versions import LinkKind, LinkVersion
from stagepost.remp.receipts.statements import is_asked_challenge

LEAVE_WITHIN_S = 30.0
"""Seconds that a validator has to send what it has put on a link that the full node leaves."""
LEAVE_AGAIN_S = 0.1
"""Seconds between two tries to say the last word on a link."""


class MessageLink(Link):
    """Full node's end of a link to one validator."""

    def __init__(
        self, bearer: Bearer, terms: LinkTerms, end: OurEnd, counts: LinkCounts, events: FullNodeLinkEvents
    ) -> None:
        super().__init__(bearer, terms, end.clock, counts, dialled=True)
        self._events = events
        self._leave_until: float | None = None
        self._takes_questions = LinkVersion(terms.version).is_encrypted

    def send(self, message: bytes) -> bool:
        """Send a message or a question. Validators of earlier releases, whose links are plain, know no questions."""
        is_taken = self._takes_questions or not is_asked_challenge(message)
        return is_taken and self._leave_until is None and self.say(MessageFrame(message))

    def leave(self) -> None:
        """Say the last word, and let the validator close the link: it first sends the receipts that it has put on this link,
        and keeps further ones. A validator that goes on for longer than `LEAVE_WITHIN_S` is cut off."""
        now = self.clock.mono_s()
        if self.is_over or self.bearer.is_over:
            return
        if self._leave_until is None:
            self._leave_until = now + LEAVE_WITHIN_S
        if now >= self._leave_until:
            self.end(TransportError("the validator did not close a link that this full node has left"))
            return
        if not self._speaking.is_over:
            self._speaking.send_now(Done())
        asyncio.get_running_loop().call_later(LEAVE_AGAIN_S, self.leave)

    def heard(self, message: object) -> None:
        if isinstance(message, Receipts):
            self._events.receipts_came(self.peer_id, message.combined_receipt)


class DiallingFullNodeLinks:
    """Links of one full node, which the node itself dials."""

    def __init__(self, end: OurEnd) -> None:
        self.counts = LinkCounts()
        self._end = end
        self._links: dict[bytes, MessageLink] = {}
        self._wanted: set[bytes] = set()
        self._is_held = False
        self._events: FullNodeLinkEvents | None = None
        self._dialler = LinkDialler(end, LinkKind.REMP, network_session_id(end.network_magic), self)

    def start(self, events: FullNodeLinkEvents) -> None:
        self._events = events
        if not self._is_held:
            self._dialler.start()

    async def close(self) -> None:
        self._events = None
        self._dialler.pause()
        await end_links(self._links.values())
        await self._dialler.stop()

    def set_validators(self, validators: Mapping[bytes, Address]) -> None:
        """Dial `validators`; end the links to all others."""
        for public_key in sorted(self._wanted - validators.keys()):
            self._dialler.drop(public_key)
        for public_key, address in validators.items():
            self._dialler.want(public_key, address)
        self._wanted = set(validators)

    def is_there(self, public_key: bytes) -> None:
        """Dial a validator soon that was heard of in another way, if it is wanted and has no link."""
        if not self._is_held:
            self._dialler.is_there(public_key)

    @property
    def linked(self) -> list[bytes]:
        """Return the validators that this node has a link to now."""
        return sorted(self._links)

    def send(self, validator: bytes, message: bytes) -> bool:
        check_object(message)
        link = self._links.get(validator)
        if link is None:
            self.counts.unlinked += 1
            return False
        return link.send(message)

    def hold(self, is_held: bool) -> None:
        """Leave all validators, which then keep their receipts; or dial them again.

        Not reading would not do: a validator cuts off whoever does not read, and what is on its way is lost."""
        if is_held is self._is_held:
            return
        self._is_held = is_held
        if self._events is None:
            return  # nobody is dialled before the start, or after the end
        if is_held:
            self._dialler.pause()
            for link in list(self._links.values()):
                link.leave()
        else:
            self._dialler.start()
            for public_key in sorted(self._wanted):
                self._dialler.is_there(public_key)

    def refuse(self, validator: bytes, rule: str, text: str) -> None:
        """Close the link of a validator that sent what no honest one sends; the link stays closed for a while."""
        link = self._links.get(validator)
        if link is not None:
            link.end(RemoteProtocolError(text, code=ErrorCode.PROTOCOL_REQUEST, reason=rule))

    # How the dialler makes and runs links

    def open(self, bearer: Bearer, terms: LinkTerms, *, dialled: bool) -> MessageLink:
        if self._events is None:
            raise TransportError("this full node has ended its links")
        return MessageLink(bearer, terms, self._end, self.counts, self._events)

    async def run(self, link: MessageLink) -> None:
        self._links[link.peer_id] = link
        if self._is_held:
            link.leave()  # it was being dialled
        try:
            await run_link(link, lambda: self._tell_linked(link.peer_id))
        finally:
            if self._links.get(link.peer_id) is link:
                del self._links[link.peer_id]

    def _tell_linked(self, validator: bytes) -> None:
        if self._events is not None:
            self._events.validator_linked(validator)


class ChainLinkEvents:
    """Events of the links for the chain, passed on to `inner`. A new one shows that its member is back: the full node dials a
    validator for messages, too, and does not wait for as long as for a silent one. `key_of` returns the key of the member
    with an index.
    """

    def __init__(
        self, inner: OverlayEvents, links: DiallingFullNodeLinks, key_of: Callable[[int], bytes]
    ) -> None:
        self._inner = inner
        self._links = links
        self._key_of = key_of

    def pushed(self, peer: int, frame: bytes) -> None:
        self._inner.pushed(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self._inner.asked(peer, query, reply)

    def linked(self, peer: int) -> None:
        self._inner.linked(peer)
        self._links.is_there(self._key_of(peer))
