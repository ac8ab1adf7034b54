"""Sending of one DMQ message to a node: sign it, submit it once, and print the node's answer."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import click

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME
from stagepost.cli.send import lines as rejections
from stagepost.client import Accepted, AsyncClient, DmqMessage, Rejected
from stagepost.delivery.envelope import DataEnvelope
from stagepost.delivery.identity import NONCE_BYTES
from stagepost.dmq.keys.kes_agent import KesAgent
from stagepost.dmq.keys.kes_clock import KesClock
from stagepost.dmq.keys.signing_pair import load_signing_pair
from stagepost.ground.files.durations import format_duration
from stagepost.ground.identifiers import abbreviated


@dataclass(frozen=True)
class NodeAddress:
    """Local socket of a node, and what to say there."""

    socket_path: str
    network_magic: int
    profile: str


@dataclass(frozen=True)
class MessageSigner:
    """Keys and dates of a message that is signed here."""

    keys: Path | KesAgent
    evolved_key: Path | None
    kes_period: int | None
    ttl_s: float
    kes_clock: KesClock

    def sign(self, content: bytes, topic: str | None) -> tuple[DmqMessage, bytes | None]:
        """Return the message and its delivery id. Without a topic, `content` is the whole body and there is no id."""
        schedule = asyncio.run(self.kes_clock.schedule())
        now = time.time()
        pair = load_signing_pair(self.keys, self.evolved_key)
        try:
            body, delivery_id = content, None
            if topic is not None:
                envelope = DataEnvelope(topic, secrets.token_bytes(NONCE_BYTES), int(now * 1_000), content)
                body = envelope.encode()
                delivery_id = envelope.delivery_id(pair.pool_id)
            period = pair.period_at(schedule, now, asked_for=self.kes_period)
            message = pair.sign(body, kes_period=period, expires_at=int(now + self.ttl_s))
        finally:
            pair.erase()
        return message, delivery_id


def sign_and_submit(
    content: bytes,
    topic: str | None,
    signer: MessageSigner,
    node: NodeAddress,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Submit `content`, in the delivery envelope of `topic` or raw without one. Return the exit status."""
    message, delivery_id = signer.sign(content, topic)
    return submit_once(message, delivery_id, signer.ttl_s, node, timeout_s, as_json)


def submit_once(
    message: DmqMessage,
    delivery_id: bytes | None,
    ttl_s: float,
    node: NodeAddress,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Submit a signed message and print the node's answer. Return the exit status."""
    outcome = asyncio.run(_submit(message, node, timeout_s))
    _show(message, delivery_id, outcome, ttl_s, as_json)
    return NOT_THAT_OUTCOME if isinstance(outcome, Rejected) else DONE


async def _submit(message: DmqMessage, node: NodeAddress, timeout_s: float) -> Accepted | Rejected:
    async with AsyncClient.connect(node.socket_path, node.network_magic, node.profile) as client:
        return await client.submit(message, timeout_s=timeout_s)


def _show(
    message: DmqMessage, delivery_id: bytes | None, outcome: Accepted | Rejected, ttl_s: float, as_json: bool
) -> None:
    rejected = outcome if isinstance(outcome, Rejected) else None
    if as_json:
        facts = {
            "message_id": message.message_id.hex(),
            "delivery_id": None if delivery_id is None else delivery_id.hex(),
            "outcome": "accepted" if rejected is None else "rejected",
            "expires_at_ms": message.expires_at * 1_000,
            "reason": None if rejected is None else rejected.reason.value,
            "text": None if rejected is None else rejections.sentence(message, rejected, time.time()),
            "code": None if rejected is None or rejected.code is None else rejected.code.value,
        }
        click.echo(json.dumps(facts))
        return
    shown_id = abbreviated(message.message_id)
    if rejected is None:
        click.echo(f"sent     {shown_id}   the node holds it   expires in {format_duration(ttl_s)}")
        return
    click.echo(f"rejected {shown_id}: {rejections.sentence(message, rejected, time.time())}", err=True)
    click.echo(f"  {rejections.advice(rejected)}", err=True)
    click.echo(rejections.code_text(rejected), err=True)
