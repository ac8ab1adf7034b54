"""`stagepost listen --ack`: receives reliably, shows each message once, and acknowledges what asks for it.

A message that was heard, as one line for people or for programs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import click

from stagepost.cli.send.lines import peer_text, shortened
from stagepost.cli.send.reliably import quiet_logs
from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.envelope import DataEnvelope, read_data_envelope
from stagepost.delivery.shell.receiver import Message, Receiver
from stagepost.delivery.transport import Incoming, IncomingAcks, MessageCallback, Unsubscribe
from stagepost.delivery.transports.dmq import DmqTransport
from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError, TransportError
from stagepost.ground.crypto.hashing import format_pool_id
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


@dataclass(frozen=True)
class Listening:
    socket_path: str
    network_magic: int
    profile: str
    keys: Path
    node_data: Path | None
    topic: str
    inbox: Path | None
    count: int | None
    idle_timeout_s: float | None
    as_json: bool


class _OneTopic:
    """The transport as far as one topic goes: what another program of the same pool receives is not refused here."""

    def __init__(self, transport: DmqTransport, topic: str) -> None:
        self.self_id = transport.self_id
        self.max_payload = transport.max_payload
        self.payload_room = transport.payload_room
        self.publish = transport.publish
        self.publish_acks = transport.publish_acks
        self.on_connectivity = transport.on_connectivity
        self._transport = transport
        self._topic = topic

    @property
    def connected_peers(self) -> int:
        return self._transport.connected_peers

    def on_message(self, callback: MessageCallback) -> Unsubscribe:
        def filtered(message: Incoming | IncomingAcks) -> None:
            if isinstance(message, Incoming) and message.topic == self._topic:
                callback(message)

        return self._transport.on_message(filtered)


class _Shown:
    def __init__(self, listening: Listening) -> None:
        self.count = 0
        self.change = asyncio.Event()
        self.has_lost_its_reader = False
        self._listening = listening

    @property
    def is_enough(self) -> bool:
        return self._listening.count is not None and self.count >= self._listening.count

    def handle(self, message: Message) -> None:
        """Shown, and by that processed: what is acknowledged is that somebody could see it."""
        if self.is_enough:
            raise RuntimeError("ended")  # the sender is told to try again: somebody else may listen then
        try:
            click.echo(_json_line(message) if self._listening.as_json else _text_line(message))
            self.count += 1
        except BrokenPipeError:
            self.has_lost_its_reader = True
            raise
        finally:
            self.change.set()


async def listen_and_acknowledge(listening: Listening) -> int:
    """Listen, acknowledge, and return how many messages were shown."""
    quiet_logs()
    shown = _Shown(listening)
    inbox_path = None if listening.inbox is None else str(listening.inbox)
    async with (
        DmqTransport(
            listening.socket_path,
            listening.network_magic,
            listening.keys,
            profile=listening.profile,
            node_data=listening.node_data,
        ) as transport,
        Receiver(
            _OneTopic(transport, listening.topic),
            {listening.topic: shown.handle},
            config=ReceiverConfig(inbox_path=inbox_path),
        ),
    ):
        if transport.fault is not None:
            raise transport.fault
        if not transport.is_node_there:
            raise TransportError(
                f"no node answers at {listening.socket_path}",
                advice="check that it runs: `stagepost check`; give its folder with --data, or its socket with --socket",
            )
        if sys.stderr.isatty():
            name = peer_text(transport.self_id)
            click.echo(f"acknowledging as {name}, topic {printable(listening.topic)}; Ctrl-C ends", err=True)
        while not shown.is_enough:
            shown.change.clear()
            try:
                async with asyncio.timeout(listening.idle_timeout_s):
                    await shown.change.wait()
            except TimeoutError:
                break
            if shown.has_lost_its_reader:
                raise BrokenPipeError
    return shown.count


def _text_line(message: Message) -> str:
    try:
        text = printable(message.data.decode())
    except UnicodeDecodeError:
        text = f"{len(message.data)} bytes"
    parts = [clock_text(time.time()), shortened(message.message_id), peer_text(message.sender)]
    return "  ".join([*parts, f"{len(message.data):>5} B", printable(message.topic), text]).rstrip()


def _json_line(message: Message) -> str:
    return json.dumps(
        {
            "delivery_id": message.message_id,
            "sender": message.sender,
            "received_ms": int(time.time() * 1_000),
            "created_ms": message.created_ms,
            "topic": message.topic,
            "attempt": message.attempt,
            "maybe_duplicate": message.maybe_duplicate,
            "payload_base64": b64encode(message.data).decode(),
        }
    )
