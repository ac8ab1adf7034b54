"""The local socket of a node, and how to connect to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from stagepost.dmq.endpoints.connection import Connection, initiate
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.errors import DecodeError, ErrorCode, ProtocolTimeout, StagepostError, TransportError
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.network import Network, UnixAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role


@dataclass(frozen=True, slots=True)
class LocalNode:
    """Address and terms of a node's local socket; it opens a connection for each use.

    Nodes close a connection on which nothing begins within seconds, so none is opened ahead of its use.
    """

    socket_path: Path
    network_magic: int
    profile: Profile
    network: Network
    connect_timeout_s: float

    async def connect(self) -> Connection:
        bearer = await self.network.connect(UnixAddress(self.socket_path), timeout_s=self.connect_timeout_s)
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                return await initiate(
                    bearer, self.profile, ConnectionKind.CLIENT, VersionData(self.network_magic)
                )
        except TimeoutError:
            text = f"the node at {self.socket_path} did not finish the handshake within {self.connect_timeout_s:g} s"
            error = ProtocolTimeout(text, advice="check that a DMQ node owns this socket")
            bearer.abort(error)
            raise error from None
        except asyncio.CancelledError:
            bearer.abort(TransportError("the handshake was cancelled"))
            raise

    async def open(self, protocol: MiniProtocol) -> tuple[Connection, Conversation]:
        """Return a connection for this one mini-protocol; the caller must send on it at once."""
        connection = await self.connect()
        return connection, connection.open(self.profile, protocol, Role.CLIENT)


def is_away(error: StagepostError) -> bool:
    """Return whether the error means that the node stopped, restarts or is stuck, so that trying again may
    help."""
    was_cut_short = isinstance(error, DecodeError) and error.code is ErrorCode.CBOR_TRUNCATED
    return was_cut_short or isinstance(error, TransportError | ProtocolTimeout)
