"""A validator's links to full nodes: messages in, receipts out; implements `ValidatorLinks`.

links = ListeningValidatorLinks(end, listener, admits=lambda public_key: public_key in full_nodes)
links.start(events)
links.tell(full_node, combined_receipt)
"""

from __future__ import annotations

from collections.abc import Callable

from stagepost.errors import ErrorCode, HandshakeRefused, RemoteProtocolError, TransportError
from stagepost.ground.net.back_off import Penalties
from stagepost.ground.net.bearer import Bearer
from stagepost.remp.links.authentication import LinkTerms, network_session_id
from stagepost.remp.links.link import Link, LinkCounts, end_links, kept_out, run_link
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import OurEnd
from stagepost.remp.links.overlay import ValidatorLinkEvents
from stagepost.remp.links.overlay_links import check_object
from stagepost.remp.links.protocols import MessageFrame, Receipts
from stagepost.remp.links.versions import LinkKind, LinkVersion

FULL_NODES_MAX = 256
"""Full nodes, at most, that have a link at the same time."""


class ReceiptLink(Link):
    """The validator's end of a link to a full node."""

    def __init__(
        self,
        bearer: Bearer,
        terms: LinkTerms,
        end: OurEnd,
        counts: LinkCounts,
        events: ValidatorLinkEvents,
    ) -> None:
        super().__init__(bearer, terms, end.clock, counts, dialled=False)
        self._events = events
        self._takes_statements = LinkVersion(terms.version).is_encrypted

    def tell(self, combined_receipt: bytes, statement: bytes) -> bool:
        """Send receipts behind their statement. Full nodes of earlier releases, whose links are plain, know no
        statements.
        """
        is_bound = bool(statement) and self._takes_statements
        return (not is_bound or self.say(Receipts(statement))) and self.say(Receipts(combined_receipt))

    def heard(self, message: object) -> None:
        if isinstance(message, MessageFrame):
            self._events.message_came(self.peer_id, message.message)


class ListeningValidatorLinks:
    """`admits` returns whether the full node with this public key is served."""

    def __init__(self, end: OurEnd, listener: LinkListener, admits: Callable[[bytes], bool]) -> None:
        self.session_id = network_session_id(end.network_magic)
        self.counts = LinkCounts()
        self._end = end
        self._listener = listener
        self._admits = admits
        self._links: dict[bytes, ReceiptLink] = {}
        self._penalties: Penalties[bytes] = Penalties()
        self._events: ValidatorLinkEvents | None = None

    def start(self, events: ValidatorLinkEvents) -> None:
        self._listener.register(LinkKind.REMP, self.session_id, self)
        self._events = events

    async def close(self) -> None:
        self._listener.unregister(LinkKind.REMP, self.session_id)
        self._events = None
        await end_links(self._links.values())

    @property
    def linked(self) -> list[bytes]:
        """Return the key ids of the full nodes that have a link now."""
        return sorted(self._links)

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        check_object(combined_receipt)
        link = self._links.get(full_node)
        if link is None:
            self.counts.unlinked += 1
            return False
        return link.tell(combined_receipt, statement)

    def refuse(self, full_node: bytes, rule: str, text: str) -> None:
        """Close the link of a full node that sent what no honest one sends, and keep the full node out for a
        while.
        """
        link = self._links.get(full_node)
        if link is not None:
            link.end(RemoteProtocolError(text, code=ErrorCode.PROTOCOL_REQUEST, reason=rule))

    # The door

    def check(self, public_key: bytes) -> None:
        if not self._admits(public_key):
            raise HandshakeRefused(
                f"key {public_key.hex()} is not the key of a full node that is served here",
                code=ErrorCode.PROTOCOL_REQUEST,
                advice="ask the validator's operator to add the key",
                reason="NotAMember",
            )
        kept_out(self._penalties, public_key, self._end.clock.mono_s())
        if len(self._links) >= FULL_NODES_MAX:
            raise HandshakeRefused(
                f"{FULL_NODES_MAX} full nodes have links here already",
                code=ErrorCode.QUEUE_FULL,
                advice="try again later, or use another validator",
                limit=FULL_NODES_MAX,
                reason="TooManyFullNodes",
            )

    def proved(self, public_key: bytes) -> None:
        pass

    def open(self, bearer: Bearer, terms: LinkTerms, *, dialled: bool) -> ReceiptLink:
        if self._events is None:
            raise TransportError("this validator no longer serves full nodes")
        return ReceiptLink(bearer, terms, self._end, self.counts, self._events)

    async def run(self, link: ReceiptLink) -> None:
        older = self._links.get(link.peer_id)
        self._links[link.peer_id] = link
        if older is not None:
            older.end(TransportError("the full node opened a newer link"))
        try:
            await run_link(link, lambda: self._tell_linked(link.peer_id))
        finally:
            if self._links.get(link.peer_id) is link:
                del self._links[link.peer_id]
            if link.violation is not None:
                self._penalties.penalise(link.public_key, self._end.clock.mono_s())

    def _tell_linked(self, full_node: bytes) -> None:
        if self._events is not None:
            self._events.full_node_linked(full_node)
