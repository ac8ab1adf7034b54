"""A full node's links to validators: messages out, receipts in; implements `FullNodeLinks`.

links = DiallingFullNodeLinks(end)
links.start(events)
links.set_validators({public_key: address, …})   # again at every switch of sessions
links.send(key_id(public_key), message)
"""

from __future__ import annotations

from collections.abc import Mapping

from stagepost.errors import ErrorCode, RemoteProtocolError, TransportError
from stagepost.remp.link_authentication import LinkTerms, network_session_id
from stagepost.remp.link_protocols import Message, Receipts
from stagepost.runtime.bearer import Bearer
from stagepost.runtime.network import Address
from stagepost.runtime.remp.link import Link, LinkCounts
from stagepost.runtime.remp.link_dialling import LinkDialler
from stagepost.runtime.remp.link_doors import end_links, run_link
from stagepost.runtime.remp.link_opening import OurEnd
from stagepost.runtime.remp.link_overlay import check_object
from stagepost.runtime.remp.link_versions import LinkVersion
from stagepost.runtime.remp.overlay import FullNodeLinkEvents


class MessageLink(Link):
    """The full node's end."""

    def __init__(
        self, bearer: Bearer, terms: LinkTerms, end: OurEnd, counts: LinkCounts, events: FullNodeLinkEvents
    ) -> None:
        super().__init__(bearer, terms, end.clock, counts, dialled=True)
        self._events = events

    def send(self, message: bytes) -> bool:
        return self.say(Message(message))

    def heard(self, message: object) -> None:
        if isinstance(message, Receipts):
            self._events.receipts_came(self.peer_id, message.combined_receipt)


class DiallingFullNodeLinks:
    def __init__(self, end: OurEnd) -> None:
        self.counts = LinkCounts()
        self._end = end
        self._links: dict[bytes, MessageLink] = {}
        self._wanted: set[bytes] = set()
        self._events: FullNodeLinkEvents | None = None
        self._dialler = LinkDialler(end, LinkVersion.REMP, network_session_id(end.network_magic), self)

    def start(self, events: FullNodeLinkEvents) -> None:
        self._events = events
        self._dialler.start()

    async def close(self) -> None:
        self._events = None
        self._dialler.pause()
        await end_links(self._links.values())
        await self._dialler.stop()

    def set_validators(self, validators: Mapping[bytes, Address]) -> None:
        """Links to those who are not among them end; others are dialled."""
        for public_key in sorted(self._wanted - validators.keys()):
            self._dialler.drop(public_key)
        for public_key, address in validators.items():
            self._dialler.want(public_key, address)
        self._wanted = set(validators)

    @property
    def linked(self) -> list[bytes]:
        """Validators that there is a link to now."""
        return sorted(self._links)

    def send(self, validator: bytes, message: bytes) -> bool:
        check_object(message)
        link = self._links.get(validator)
        if link is None:
            self.counts.unlinked += 1
            return False
        return link.send(message)

    def refuse(self, validator: bytes, rule: str, text: str) -> None:
        """It sent what no honest validator sends: its link is closed, and stays so for a while."""
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
        try:
            await run_link(link, lambda: self._tell_linked(link.peer_id))
        finally:
            if self._links.get(link.peer_id) is link:
                del self._links[link.peer_id]

    def _tell_linked(self, validator: bytes) -> None:
        if self._events is not None:
            self._events.validator_linked(validator)
