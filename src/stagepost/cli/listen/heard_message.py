"""A message that was heard, as one line for people or for programs."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass

from stagepost.delivery.envelope import DataEnvelope, read_data_envelope
from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError
from stagepost.ground.crypto.pool_ids import format_pool_id
from stagepost.ground.files.durations import clock_text, format_duration
from stagepost.ground.identifiers import abbreviated

TEXT_SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class HeardMessage:
    """`envelope` is None for a body in some other form."""

    message: DmqMessage
    envelope: DataEnvelope | None
    received_unix_s: float

    @classmethod
    def of(cls, message: DmqMessage, received_unix_s: float) -> HeardMessage:
        try:
            envelope = read_data_envelope(message.body)
        except DecodeError:
            envelope = None
        return cls(message, envelope, received_unix_s)

    def is_wanted(self, topic: str | None, since_unix_s: float | None) -> bool:
        """A message that does not say when it was made is not left out for its age."""
        if topic is not None and (self.envelope is None or self.envelope.topic != topic):
            return False
        if since_unix_s is None or self.envelope is None:
            return True
        return self.envelope.created_ms >= since_unix_s * 1_000

    def text_line(self) -> str:
        pool = format_pool_id(self.message.pool_id)
        left_s = self.message.expires_at - self.received_unix_s
        return "  ".join(
            [
                clock_text(self.received_unix_s),
                abbreviated(self.message.message_id),
                f"{pool[:10]}…{pool[-4:]}",
                f"{len(self.message.body):>5} B",
                f"expires in {format_duration(left_s):<8}"
                if left_s > 0
                else f"expired {format_duration(-left_s)} ago",
                *self._content(),
            ]
        ).rstrip()

    def _content(self) -> list[str]:
        """Topic and text. What a stranger wrote must not steer the terminal, so only printable text is shown as it is."""
        if self.envelope is None:
            return ["no envelope"]
        try:
            text = self.envelope.payload.decode()
        except UnicodeDecodeError:
            return [printable(self.envelope.topic), f"{len(self.envelope.payload)} bytes"]
        return [printable(self.envelope.topic), printable(text)]

    def json_line(self) -> str:
        message, envelope = self.message, self.envelope
        return json.dumps(
            {
                "message_id": message.message_id.hex(),
                "pool_id": format_pool_id(message.pool_id),
                "received_ms": int(self.received_unix_s * 1_000),
                "expires_at_ms": message.expires_at * 1_000,
                "kes_period": message.kes_period,
                "layout": message.layout.value,
                "topic": None if envelope is None else envelope.topic,
                "delivery_id": None if envelope is None else envelope.delivery_id(message.pool_id).hex(),
                "created_ms": None if envelope is None else envelope.created_ms,
                "payload_base64": None if envelope is None else b64encode(envelope.payload).decode(),
                "body_base64": b64encode(message.body).decode(),
            }
        )


def printable(text: str) -> str:
    shown = "".join(character if character.isprintable() else "·" for character in text)
    return shown if len(shown) <= TEXT_SHOWN_MAX else f"{shown[: TEXT_SHOWN_MAX - 1]}…"
