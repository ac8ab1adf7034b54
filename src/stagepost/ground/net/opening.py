"""The handshake as a conversation: the same on connections of nodes, of local programs, and on links."""

from __future__ import annotations

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.handshake import DIALECT, HANDSHAKE, HANDSHAKE_NUMBER
from stagepost.ground.statemachine.spec import Role, messages_by_state
from stagepost.ground.wire.codec import Codec, CodecTable
from stagepost.ground.wire.mux import Direction
from stagepost.ground.wire.mux_queues import HANDSHAKE_INGRESS_BYTES_MAX

HANDSHAKE_CODEC = CodecTable(HANDSHAKE.name, messages_by_state(HANDSHAKE), [DIALECT], any_type=True)


def open_handshake(bearer: Bearer, direction: Direction) -> Conversation:
    """Open the handshake of a new connection, as initiator or as responder."""
    return Conversation(
        HANDSHAKE,
        Role.CLIENT if direction is Direction.INITIATOR else Role.SERVER,
        Codec(HANDSHAKE_CODEC, DIALECT.name),
        bearer.channel(HANDSHAKE_NUMBER, direction, HANDSHAKE_INGRESS_BYTES_MAX, HANDSHAKE_INGRESS_BYTES_MAX),
    )


def check_nothing_behind(talk: Conversation, protocol: str = "Handshake") -> None:
    """Raise `DecodeError` if the peer sent more bytes before its message was answered."""
    if talk.bytes_unread:
        text = f"{protocol}: {talk.bytes_unread} bytes follow the message, before it was answered"
        raise DecodeError(text, code=ErrorCode.CBOR_INVALID, found=talk.bytes_unread)
