"""The address at which links come in: one for every session of this node and for the full nodes.

listener = LinkListener(end)
await listener.start(TcpAddress("127.0.0.1", 0))
overlay = OverlayLinks(end, listener, session_id, own_index, members)   # registers itself when it starts
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from stagepost.errors import (
    ConfigError,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.net.admission import LOOPBACK_HOSTS, Admission, AdmissionLimits
from stagepost.ground.net.back_off import RETRY_FIRST_S, RETRY_MAX_S, Penalties, violation_of
from stagepost.ground.net.bearer import LOCAL_PEER, Bearer
from stagepost.ground.net.doorway import entering, proving, settle
from stagepost.ground.net.network import Address, Listener
from stagepost.remp.links.link import Link
from stagepost.remp.links.opening import Door, OurEnd, respond_to_link
from stagepost.remp.links.versions import LinkKind, spoken_versions

log = logging.getLogger(__name__)

SESSIONS_MAX = 1_024
OF_NODES = (LinkKind.REMP, LinkKind.CATCHAIN)
"""Kinds of the links of full nodes and validators."""
EXEMPT_SOURCES = LOOPBACK_HOSTS | {LOCAL_PEER}
"""Source names that many honest peers share; none of them is counted or kept out."""


class LinkListener:
    """Sessions come and go; a peer that asks for a session that is not here is told to come again later."""

    def __init__(
        self,
        end: OurEnd,
        limits: AdmissionLimits | None = None,
        kinds: Collection[LinkKind] = OF_NODES,
    ) -> None:
        """`kinds` are the kinds of links that this address offers."""
        self._end = end
        self._served = spoken_versions(kinds, end.encryption)
        self._admission = Admission(
            end.clock.mono_s, limits or AdmissionLimits(delay_s=0.0), exempt=EXEMPT_SOURCES
        )
        # By address and short: an honest peer may have this address, and somebody else may have changed what it sent.
        self._penalties: Penalties[str] = Penalties(first_s=RETRY_FIRST_S, most_s=RETRY_MAX_S)
        self._doors: dict[tuple[LinkKind, bytes], Door[Any]] = {}
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        return "" if self._listener is None else self._listener.address

    @property
    def port(self) -> int | None:
        return None if self._listener is None else self._listener.port

    async def start(self, address: Address) -> None:
        """Listen at `address`; `ConfigError` if that is not possible."""
        connections_max = self._admission.limits.sockets_max
        self._listener = await self._end.network.serve(address, self._serve, connections_max=connections_max)

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    def register(self, kind: LinkKind, session_id: bytes, door: Door[Any]) -> None:
        if (kind, session_id) in self._doors:
            raise LocalProtocolError(f"session {session_id.hex()} is registered already")
        if len(self._doors) >= SESSIONS_MAX:
            raise ConfigError(
                f"{SESSIONS_MAX} sessions are registered at one listener",
                advice="end sessions that are over",
                limit=SESSIONS_MAX,
            )
        self._doors[kind, session_id] = door

    def unregister(self, kind: LinkKind, session_id: bytes) -> None:
        """Accept no further links of the session; the session itself ends those that stand."""
        self._doors.pop((kind, session_id), None)

    def _find(self, kind: LinkKind, session_id: bytes) -> Door[Any]:
        door = self._doors.get((kind, session_id))
        if door is None:
            raise HandshakeRefused(
                f"session {session_id.hex()} is not registered here",
                code=ErrorCode.NOT_READY,
                advice="try again when it has begun",
                reason="UnknownSession",
            )
        return door

    async def _serve(self, bearer: Bearer) -> None:
        async with entering(self._admission, bearer) as place:
            if self._penalties.refused_until(place.source, self._end.clock.mono_s()) is not None:
                log.info("link refused", extra={"peer": bearer.peer, "reason": "misbehaved before"})
                bearer.close()
                return
            door, link = await proving(place, bearer, self._open(bearer, place.source))
            # A door lets known keys in alone, so that strangers have no place behind the proof. A link without a place is
            # closed now, and ends when it runs.
            with suppress(TransportError):
                settle(place, bearer, is_known=True)
            await door.run(link)
            if not link.is_encrypted:
                self._note(bearer.reason, place.source)

    async def _open(self, bearer: Bearer, source: str) -> tuple[Door[Any], Link]:
        try:
            return await respond_to_link(bearer, self._end, self._served, self._find)
        except HandshakeRefused:
            raise  # the peer was told why, and has broken no rule
        except RemoteProtocolError as error:
            self._note(error, source)
            raise

    def _note(self, error: StagepostError | None, source: str) -> None:
        """Keep an address out for a while that broke a rule where no key is proved to have done it."""
        if violation_of(error) is not None and source not in EXEMPT_SOURCES:
            self._penalties.penalise(source, self._end.clock.mono_s())
