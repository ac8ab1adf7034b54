"""A server of local state queries: the side of a cardano-node, for demonstrations and as a double in tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from stagepost.dmq.cardano import state_query
from stagepost.dmq.cardano.state_query import (
    LOCAL_STATE_QUERY,
    QUERY_BYTES_MAX,
    STATE_QUERY_NUMBER,
    state_query_codec,
)
from stagepost.errors import StagepostError
from stagepost.ground.net import handshake
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, open_handshake
from stagepost.ground.net.handshake import AcceptVersion, ProposeVersions, Terms
from stagepost.ground.net.version_data import (
    CARDANO_QUERY_VERSIONS,
    ConnectionKind,
    VersionData,
    VersionShape,
)
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction

AnswerQuery = Callable[[bytes], Awaitable[bytes | None]]
"""Answers from one ledger state. None ends the connection, as a cardano-node does with a query that it cannot read."""
WriteRaw = Callable[[bytes], Awaitable[None]]


class LedgerStates(Protocol):
    """Ledger states of a cardano-node. Each acquire takes the newest one and answers from it until the release."""

    @property
    def magic(self) -> int: ...

    def acquire(self, write: WriteRaw) -> AnswerQuery:
        """Return the answers of the newest state. `write` sends bytes past the protocol: a double can lie with it."""
        ...

    def release(self) -> None: ...


async def serve_state_queries(
    bearer: Bearer,
    states: LedgerStates,
    versions: Mapping[int, VersionShape] = CARDANO_QUERY_VERSIONS,
) -> None:
    """Serve one connection until it ends."""
    with suppress(StagepostError):
        if await _has_shaken_hands(bearer, states.magic, versions):
            await _serve(bearer, states)
    bearer.close()
    await bearer.wait_closed()


async def _has_shaken_hands(bearer: Bearer, magic: int, versions: Mapping[int, VersionShape]) -> bool:
    terms = Terms(ConnectionKind.CLIENT, VersionData(magic), versions)
    opening = open_handshake(bearer, Direction.RESPONDER)
    reply, _ = handshake.answer(await opening.receive(ProposeVersions), terms)
    is_accepted = isinstance(reply, AcceptVersion)
    if is_accepted:
        bearer.expect(STATE_QUERY_NUMBER, Direction.RESPONDER, QUERY_BYTES_MAX, QUERY_BYTES_MAX)
    await opening.send(reply)
    await opening.release()
    return is_accepted


async def _serve(bearer: Bearer, states: LedgerStates) -> None:
    channel = bearer.channel(STATE_QUERY_NUMBER, Direction.RESPONDER, QUERY_BYTES_MAX)
    talk = Conversation(LOCAL_STATE_QUERY, Role.SERVER, state_query_codec(), channel)
    answer_query: AnswerQuery | None = None
    try:
        while not talk.is_over:
            match await talk.receive_any():
                case state_query.StateQuery(query):
                    assert answer_query is not None, "the protocol allows queries in an acquired state alone"
                    answer = await answer_query(query)
                    if answer is None:
                        return
                    await talk.send(state_query.StateResult(answer))
                case state_query.ReleaseState():
                    states.release()
                    answer_query = None
                case state_query.QueriesDone():
                    return
                case _:
                    # Every point is answered with the newest state: there is no chain behind it.
                    if answer_query is not None:
                        states.release()
                    answer_query = states.acquire(channel.write)
                    await talk.send(state_query.StateAcquired())
    finally:
        if answer_query is not None:
            states.release()
