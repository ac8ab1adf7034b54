"""A client of a cardano-node's local socket: it acquires a ledger state and asks about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stagepost.dmq.cardano.answers import decode_answer
from stagepost.dmq.cardano.queries import LedgerQuery, encode_query
from stagepost.dmq.cardano.state_query import (
    ACQUIRED,
    LOCAL_STATE_QUERY,
    STATE_QUERY_NUMBER,
    AcquireVolatileTip,
    QueriesDone,
    ReacquireVolatileTip,
    ReleaseState,
    StateAcquired,
    StateQuery,
    StateResult,
    state_query_codec,
)
from stagepost.errors import HandshakeRefused, StagepostError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, check_nothing_behind, open_handshake
from stagepost.ground.net.handshake import Terms, conclude
from stagepost.ground.net.network import Network, UnixAddress
from stagepost.ground.net.version_data import CARDANO_QUERY_VERSIONS, ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction
from stagepost.ground.wire.mux_queues import LOCAL_INGRESS_BYTES_MAX

CONNECT_TIMEOUT_S = 10.0


class StateQueryClient:
    """Connection to a cardano-node. A method that raises leaves it unusable: close it."""

    def __init__(self, bearer: Bearer, version: int) -> None:
        """Take over a connection whose handshake settled on `version`, a number with bit 15."""
        self.version = version
        self._bearer = bearer
        self._talk = Conversation(
            LOCAL_STATE_QUERY,
            Role.CLIENT,
            state_query_codec(),
            bearer.channel(STATE_QUERY_NUMBER, Direction.INITIATOR, LOCAL_INGRESS_BYTES_MAX),
        )

    async def acquire(self) -> None:
        """Take the ledger's newest state, in place of the one held so far. The node keeps it in memory until
        `release`."""
        is_held = self._talk.state.name == ACQUIRED.name
        await self._talk.send(ReacquireVolatileTip() if is_held else AcquireVolatileTip())
        await self._talk.receive(StateAcquired)

    async def ask(self, query: LedgerQuery) -> Any:
        """Return the decoded answer; all answers after one `acquire` speak of the same ledger state."""
        await self._talk.send(StateQuery(encode_query(query)))
        return decode_answer(query, (await self._talk.receive(StateResult)).answer)

    async def release(self) -> None:
        await self._talk.send(ReleaseState())

    async def has_ended_within(self, seconds: float) -> bool:
        """Wait for `seconds`, or until the connection ends; return whether it has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._bearer.wait_closed()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End the conversation in order if no answer is due, and the connection in any case."""
        try:
            if not self._bearer.is_over and self._talk.state.speaker is Role.CLIENT:
                if self._talk.state.name == ACQUIRED.name:
                    await self.release()
                await self._talk.send(QueriesDone())
        finally:
            self._bearer.close()


async def connect_state_query(network: Network, socket: Path, network_magic: int) -> StateQueryClient:
    """Return a client whose handshake is done; the caller must acquire at once, or the node closes.

    Raise `TransportError` if nobody answers at `socket`, `HandshakeRefused` if its node is on another network
    or has no common version.
    """
    bearer = await network.connect(UnixAddress(socket), timeout_s=CONNECT_TIMEOUT_S)
    terms = Terms(ConnectionKind.CLIENT, VersionData(network_magic), CARDANO_QUERY_VERSIONS)
    talk = open_handshake(bearer, Direction.INITIATOR)
    try:
        await talk.send(terms.proposal())
        version = conclude(await talk.receive_any(), terms).version
        check_nothing_behind(talk)
    except HandshakeRefused as error:
        bearer.abort(error)
        text = f"the cardano-node refused this node, which asks for network {network_magic}: {error.text}"
        advice = "check CardanoNetworkMagic and CardanoNodeSocket"
        raise HandshakeRefused(text, code=error.code, advice=advice, found=error.found) from error
    except StagepostError as error:
        bearer.abort(error)
        raise
    await talk.release()
    return StateQueryClient(bearer, version)
