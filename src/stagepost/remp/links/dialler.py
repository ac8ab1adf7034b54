"""Keeps up the links that this node dials: the wanted peers, by key and address, each with a back-off of its
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from stagepost.errors import HandshakeRefused, StagepostError
from stagepost.ground.net.back_off import BackOff
from stagepost.ground.net.network import Address
from stagepost.ground.net.redialler import Redialler
from stagepost.remp.links.link import Link
from stagepost.remp.links.opening import LinkKeeper, OurEnd, initiate_link
from stagepost.remp.links.versions import LinkKind

log = logging.getLogger(__name__)

L = TypeVar("L", bound=Link)


@dataclass
class DialledPeer(BackOff):
    public_key: bytes
    address: Address
    is_connected: bool = False
    is_wanted: bool = True


WRONG_DIRECTION = "WrongDirection"
"""Rule of a refusal: of these two members it is the other one that dials."""


class LinkDialler(Generic[L]):
    """`keeper` makes and runs the links, as it does for those that come in. `is_contrary` is called with the key of a peer
    that has another view of who dials: it refused to be dialled for that, or let in a knock.
    """

    def __init__(
        self,
        end: OurEnd,
        kind: LinkKind,
        session_id: bytes,
        keeper: LinkKeeper[L],
        is_contrary: Callable[[bytes], None] | None = None,
    ) -> None:
        self._is_contrary = is_contrary
        self._end = end
        self._kind = kind
        self._session_id = session_id
        self._keeper = keeper
        self._peers: dict[bytes, DialledPeer] = {}
        self._redialler: Redialler[bytes] = Redialler(end.clock.mono_s, self._ended)
        self._running: asyncio.Task[None] | None = None

    def want(self, public_key: bytes, address: Address) -> None:
        """Dial the peer from now on; a peer that was wanted already is not dialled sooner."""
        peer = self._peers.get(public_key)
        if peer is None:
            self._peers[public_key] = DialledPeer(public_key, address)
        else:
            peer.address, peer.is_wanted = address, True
        self._redialler.look()

    def drop(self, public_key: bytes) -> None:
        """End the link to the peer and dial it no more. Its broken rules are remembered until their penalty
        is over.
        """
        peer = self._peers.get(public_key)
        if peer is not None:
            peer.is_wanted = False
            self._redialler.hang_up(public_key)
            self._redialler.look()

    def is_there(self, public_key: bytes) -> None:
        """Shorten the wait for a peer that was heard of in another way: it need not be waited for as long as
        a silent one.
        """
        peer = self._peers.get(public_key)
        if peer is not None and not peer.is_connected:
            peer.is_there(self._end.clock.mono_s())
            self._redialler.look()

    def knock(self, public_key: bytes, address: Address) -> None:
        """Dial, once, a peer that dials us, so that it learns that this node is there."""
        name = f"{public_key.hex()[:8]} at {address}"
        self._redialler.dial(public_key, name, partial(self._knock, public_key, address))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._running = loop.create_task(self._redialler.run(self._step), name="links")

    def pause(self) -> None:
        """Dial nobody any more; links that stand go on."""
        if self._running is not None:
            self._running.cancel()

    async def stop(self) -> None:
        self.pause()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
        await self._redialler.stop()

    def _step(self, now: float) -> float | None:
        for peer in list(self._peers.values()):
            if peer.is_connected or peer.not_before > now:
                continue
            if not peer.is_wanted:
                del self._peers[peer.public_key]
                continue
            peer.is_connected = True
            peer.established_at = None
            name = f"{peer.public_key.hex()[:8]} at {peer.address}"
            self._redialler.dial(peer.public_key, name, partial(self._converse, peer))
        waiting = (peer.not_before for peer in self._peers.values() if not peer.is_connected)
        return min(waiting, default=None)

    def _ended(self, public_key: bytes, violation: str | None) -> None:
        peer = self._peers.get(public_key)
        if peer is not None:
            peer.is_connected = False
            peer.ended(self._end.clock.mono_s(), self._end.random, violation)

    async def _knock(self, public_key: bytes, address: Address) -> None:
        bearer = await self._end.network.connect(address)
        is_let_in = False
        try:
            with suppress(HandshakeRefused):  # told to wait, as it should be
                await initiate_link(bearer, self._end, self._kind, self._session_id, public_key)
                is_let_in = True
        finally:
            bearer.close()
            await bearer.wait_closed()
        if is_let_in:
            self._report_contrary(public_key)

    def _report_contrary(self, public_key: bytes) -> None:
        """Report once this connection is gone: the answer may be to dial this peer, or to do so no more."""
        if self._is_contrary is not None:
            asyncio.get_running_loop().call_soon(self._is_contrary, public_key)

    async def _converse(self, peer: DialledPeer) -> str | None:
        bearer = await self._end.network.connect(peer.address)
        refusal = ""
        try:
            try:
                terms = await initiate_link(bearer, self._end, self._kind, self._session_id, peer.public_key)
            except HandshakeRefused as refused:
                # No misdeed of the peer's: it may not have begun this session yet.
                said = {"peer": bearer.peer, "code": refused.code, "reason": refused.text}
                log.info("link refused by the peer", extra=said)
                refusal = refused.reason or ""
                return None
            except StagepostError as error:
                # Until the proof nothing shows that it was this peer that broke a rule, and not somebody on the way.
                said = {"peer": bearer.peer, "code": error.code, "reason": error.text}
                log.info("peer not connected", extra=said)
                return None
            link = self._keeper.open(bearer, terms, dialled=True)
            peer.established_at = self._end.clock.mono_s()
            await self._keeper.run(link)
            return link.violation
        finally:
            bearer.close()
            await bearer.wait_closed()
            if refusal == WRONG_DIRECTION:
                self._report_contrary(peer.public_key)
