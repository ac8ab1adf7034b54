"""What can be said about a message before anything has happened: the caller's mistakes."""

from __future__ import annotations

from stagepost.delivery.envelope import RESERVED_TOPIC_PREFIX, TOPIC_BYTES_MAX
from stagepost.delivery.errors import ErrConfig, ErrMessageTooLarge, ErrReservedTopic
from stagepost.delivery.transport import Transport


def check_message(transport: Transport, topic: str, payload: bytes, ackers: tuple[str, ...]) -> None:
    if topic.startswith(RESERVED_TOPIC_PREFIX):
        raise ErrReservedTopic(
            f"topics that begin with {RESERVED_TOPIC_PREFIX} are reserved, this one is {topic}",
            advice="choose another topic",
            found=topic,
        )
    size = len(topic) if topic.isascii() else _utf8_size(topic)
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise ErrConfig(
            f"a topic has 1 to {TOPIC_BYTES_MAX} bytes of UTF-8, this one has {size}",
            limit=TOPIC_BYTES_MAX,
            found=size,
        )
    room = transport.payload_room(topic, ackers)
    if len(payload) > room:
        raise ErrMessageTooLarge(
            f"the message has {len(payload)} bytes; with this topic and {len(ackers)} ackers {room} fit",
            limit=room,
            found=len(payload),
            advice="send less, or in several messages",
        )


def _utf8_size(topic: str) -> int:
    try:
        return len(topic.encode())
    except UnicodeEncodeError:
        raise ErrConfig(f"the topic {topic!r} cannot be written as UTF-8", found=topic) from None
