"""The mini-protocols of links: their numbers, the construction of an instance, and how much of each may wait
unread.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache

from stagepost.catchain import overlay_protocol
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, messages_by_state
from stagepost.ground.wire.codec import Codec, CodecTable, Dialect
from stagepost.ground.wire.mux import SEGMENT_PAYLOAD_BYTES_MAX, Direction
from stagepost.ground.wire.mux_queues import KEEP_ALIVE_INGRESS_BYTES_MAX
from stagepost.remp.links import authentication as link_authentication
from stagepost.remp.links import local_intake
from stagepost.remp.links import protocols as link_protocols
from stagepost.remp.links.versions import LinkKind

AUTHENTICATION_INGRESS_BYTES_MAX = link_authentication.MESSAGE_BYTES_MAX
OBJECTS_INGRESS_BYTES_MAX = 4 * (SEGMENT_PAYLOAD_BYTES_MAX + 1)
"""Bytes, at most, that wait unread: data is read in the same turn of the loop; only what follows the end of
the authentication waits for one.
"""


class LinkProtocol(IntEnum):
    """Numbers of the mini-protocols; a DMQ peer never sees them."""

    AUTHENTICATION = 0x400
    KEEP_ALIVE = 0x401
    CATCHAIN_OVERLAY = 0x402
    REMP_MESSAGES = 0x403
    REMP_RECEIPTS = 0x404
    LOCAL_INTAKE = 0x405
    DELIVERY_BODIES = 0x406


PROTOCOLS: dict[LinkProtocol, tuple[ProtocolSpec, Dialect, int]] = {
    LinkProtocol.AUTHENTICATION: (
        link_authentication.AUTHENTICATION,
        link_authentication.DIALECT,
        AUTHENTICATION_INGRESS_BYTES_MAX,
    ),
    LinkProtocol.KEEP_ALIVE: (keep_alive.KEEP_ALIVE, keep_alive.DIALECT, KEEP_ALIVE_INGRESS_BYTES_MAX),
    LinkProtocol.CATCHAIN_OVERLAY: (
        overlay_protocol.CATCHAIN_OVERLAY,
        overlay_protocol.DIALECT,
        OBJECTS_INGRESS_BYTES_MAX,
    ),
    LinkProtocol.REMP_MESSAGES: (
        link_protocols.REMP_MESSAGES,
        link_protocols.MESSAGES_DIALECT,
        OBJECTS_INGRESS_BYTES_MAX,
    ),
    LinkProtocol.REMP_RECEIPTS: (
        link_protocols.REMP_RECEIPTS,
        link_protocols.RECEIPTS_DIALECT,
        OBJECTS_INGRESS_BYTES_MAX,
    ),
    LinkProtocol.LOCAL_INTAKE: (local_intake.LOCAL_INTAKE, local_intake.DIALECT, OBJECTS_INGRESS_BYTES_MAX),
    LinkProtocol.DELIVERY_BODIES: (
        link_protocols.DELIVERY_BODIES,
        link_protocols.DELIVERY_DIALECT,
        OBJECTS_INGRESS_BYTES_MAX,
    ),
}

_CARRY_OBJECTS = {LinkProtocol.CATCHAIN_OVERLAY, LinkProtocol.REMP_MESSAGES, LinkProtocol.REMP_RECEIPTS}

SPOKEN: dict[LinkKind, dict[Direction, LinkProtocol]] = {
    LinkKind.CATCHAIN: {
        Direction.INITIATOR: LinkProtocol.CATCHAIN_OVERLAY,
        Direction.RESPONDER: LinkProtocol.CATCHAIN_OVERLAY,
    },
    LinkKind.REMP: {
        Direction.INITIATOR: LinkProtocol.REMP_MESSAGES,
        Direction.RESPONDER: LinkProtocol.REMP_RECEIPTS,
    },
    LinkKind.DELIVERY: {
        Direction.INITIATOR: LinkProtocol.DELIVERY_BODIES,
        Direction.RESPONDER: LinkProtocol.DELIVERY_BODIES,
    },
}
"""The protocol that each side of a connection opens, and in which it alone speaks; the initiator is the side
that dialled.
"""

LINK_SPECS: tuple[ProtocolSpec, ...] = tuple(
    spec for protocol, (spec, _, _) in PROTOCOLS.items() if protocol is not LinkProtocol.KEEP_ALIVE
)
"""The specs that only links, and the local socket of a full node, have."""


@cache
def codec_table(protocol: LinkProtocol) -> CodecTable:
    spec, dialect, _ = PROTOCOLS[protocol]
    known_shape = overlay_protocol.ObjectShape() if protocol in _CARRY_OBJECTS else None
    return CodecTable(spec.name, messages_by_state(spec), [dialect], known_shape=known_shape)


def open_link_protocol(bearer: Bearer, protocol: LinkProtocol, role: Role) -> Conversation:
    """Return an instance of `protocol`. As client we open it; as server we answer the instance that the peer
    opens.
    """
    spec, dialect, _ = PROTOCOLS[protocol]
    direction = Direction.INITIATOR if role is Role.CLIENT else Direction.RESPONDER
    return Conversation(
        spec,
        role,
        Codec(codec_table(protocol), dialect.name),
        bearer.channel(protocol, direction, *_limits(protocol, role)),
    )


def expect_link_protocol(bearer: Bearer, protocol: LinkProtocol) -> None:
    """Let the peer open `protocol` before we read it; its bytes wait."""
    bearer.expect(protocol, Direction.RESPONDER, *_limits(protocol, Role.SERVER))


def _limits(protocol: LinkProtocol, ours: Role) -> tuple[int, int]:
    """Return how many bytes may wait, and how many one segment may bring: 0 from a side that never speaks."""
    spec, _, waiting_max = PROTOCOLS[protocol]
    if not any(state.speaker is ours.other for state in spec.states):
        return 0, 0
    return waiting_max, min(waiting_max, SEGMENT_PAYLOAD_BYTES_MAX)
