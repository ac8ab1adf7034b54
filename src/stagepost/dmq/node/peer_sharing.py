"""Peer sharing as a service: ask a peer for addresses, or answer a peer that asks."""

from __future__ import annotations

import asyncio

from stagepost.dmq.peer_sharing import Done, PeerAddress, SharedPeers, SharePeers, ShareRequest
from stagepost.errors import ErrorCode, RemoteProtocolError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.conversation import Conversation


class PeerSharingClient:
    """Client that asks for peers; concurrent calls wait for one another."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._turn = asyncio.Lock()

    async def request_peers(self, amount: int) -> tuple[PeerAddress, ...]:
        async with self._turn:
            await self._talk.send(ShareRequest(amount))
            peers = (await self._talk.receive(SharePeers)).peers
        if len(peers) > amount:
            text = f"PeerSharing: {len(peers)} peers came, {amount} were asked for"
            raise RemoteProtocolError(text, code=ErrorCode.PROTOCOL_WINDOW, limit=amount, found=len(peers))
        return peers

    async def done(self) -> None:
        async with self._turn:
            await self._talk.send(Done())
        await self._talk.release()


class PeerSharingServer:
    """Server for one asker. `asker` identifies it on every connection: its host, not its present port."""

    def __init__(self, talk: Conversation, shared: SharedPeers, asker: str, clock: Clock) -> None:
        self._talk = talk
        self._shared = shared
        self._asker = asker
        self._clock = clock

    async def run(self) -> None:
        await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case ShareRequest(amount):
                    peers = self._shared.answer(self._asker, amount, self._clock.mono_s())
                    await self._talk.send(SharePeers(peers))
                case _:
                    await self._talk.release()
