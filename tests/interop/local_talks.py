"""What every peer must be able to do with our node as a program, and with our client as a node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from stagepost.client import AsyncClient
from stagepost.dmq.message import BODY_BYTES_MAX, DmqMessage
from stagepost.dmq.outcome import Accepted, Reason, Rejected
from tests.interop.peer_programs import PeerProgram
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, TTL_S, NodeProcess

REPLIED_WITHIN_S = 60.0
REFUSALS = {
    "invalid no good": Rejected(Reason.INVALID, "no good"),
    "received": Reason.ALREADY_RECEIVED,
    "expired": Reason.EXPIRED,
    "other busy today": Rejected(Reason.OTHER, "busy today"),
}
INVALID, ALREADY_RECEIVED, EXPIRED = range(3)

MESSAGES_MANY = 90  # of the largest size: several segments in one reply, and below gouroboros's queue of 100


class MakeMessage(Protocol):
    """A valid message in the layout that the peer knows."""

    def __call__(self, *, body_bytes: int = 120, ttl_s: int = TTL_S) -> DmqMessage: ...


def spoilt(message: DmqMessage) -> bytes:
    """The same message, its KES signature wrong in one bit."""
    at = message.raw.index(message.kes_signature)
    return message.raw[:at] + bytes([message.raw[at] ^ 1]) + message.raw[at + 1 :]


async def submits_and_is_answered(program: Path, node: NodeProcess, make: MakeMessage) -> None:
    good = make()
    async with PeerProgram.started(
        program, "local-client", node.socket, log=node.folder / "peer.log"
    ) as peer:
        await peer.hear("connected")
        await peer.do("submit", good.raw.hex())
        await peer.hear("accepted")
        await peer.do("submit", good.raw.hex())
        assert (await peer.hear("rejected"))["reason"] == ALREADY_RECEIVED
        await peer.do("submit", spoilt(make()).hex())
        rejected = await peer.hear("rejected")
        assert rejected["reason"] == INVALID
        assert rejected["text"].startswith("KES_SIGNATURE:")
        await peer.do("submit", make(ttl_s=-60).raw.hex())
        assert (await peer.hear("rejected"))["reason"] == EXPIRED
        # The conversation goes on after a refusal, and its end is no fault.
        await peer.do("submit", make().raw.hex())
        await peer.hear("accepted")
        await peer.do("done")


async def is_notified(program: Path, node: NodeProcess, make: MakeMessage, profile: str) -> None:
    held, late = [make() for _ in range(3)], make()
    async with (
        node.client(profile) as client,
        PeerProgram.started(program, "local-client", node.socket, log=node.folder / "peer.log") as peer,
    ):
        await peer.hear("connected")
        await peer.do("ask")
        empty = await peer.hear("messages")
        assert empty["messages"] == []
        assert empty["more"] is False
        for message in held:
            assert await client.submit(message) == Accepted()
        await peer.do("ask")
        reply = await peer.hear("messages")
        assert reply["messages"] == [message.raw.hex() for message in held]
        assert reply["more"] is False
        # Asked before there is anything to say: the answer comes with the message.
        await peer.do("ask-blocking")
        assert await client.submit(late) == Accepted()
        assert await peer.hear_messages(1) == [late.raw]
        await peer.do("ask")
        assert (await peer.hear("messages"))["messages"] == []
        many = [make(body_bytes=BODY_BYTES_MAX) for _ in range(MESSAGES_MANY)]
        for message in many:
            assert await client.submit(message) == Accepted()
        await peer.do("ask-blocking")
        assert await peer.hear_messages(len(many)) == [message.raw for message in many]
        await peer.do("done")


async def serves_submissions(program: Path, role: str, folder: Path, make: MakeMessage, profile: str) -> None:
    async with PeerProgram.started(program, role, folder / "peer.socket", log=folder / "peer.log") as peer:
        await peer.hear("listening")
        async with AsyncClient.connect(folder / "peer.socket", NETWORK_MAGIC, profile) as client:
            message = make()
            assert await client.submit(message) == Accepted()
            assert (await peer.hear("submitted"))["message"] == message.raw.hex()
            for answer, expected in REFUSALS.items():
                await peer.do("answer", answer)
                await peer.hear("will-answer")
                outcome = await client.submit(make())
                assert isinstance(outcome, Rejected)
                if isinstance(expected, Reason):
                    assert outcome.reason is expected
                else:
                    assert outcome == expected
            await peer.do("answer", "accept")
            await peer.hear("will-answer")
            assert await client.submit(make()) == Accepted()


async def serves_notifications(
    program: Path, role: str, folder: Path, make: MakeMessage, profile: str
) -> None:
    held, late = [make(body_bytes=BODY_BYTES_MAX) for _ in range(MESSAGES_MANY)], make()
    async with PeerProgram.started(program, role, folder / "peer.socket", log=folder / "peer.log") as peer:
        await peer.hear("listening")
        for message in held:
            await peer.do("add", message.raw.hex())
        async with (
            AsyncClient.connect(folder / "peer.socket", NETWORK_MAGIC, profile) as client,
            client.listen() as stream,
            asyncio.timeout(REPLIED_WITHIN_S),
        ):
            heard = [(await anext(stream)).raw for _ in held]
            assert heard == [message.raw for message in held]
            await peer.do("add", late.raw.hex())
            assert (await anext(stream)).raw == late.raw
