"""What a peer gets wrong before anything was agreed counts as well, for the handshake or for the connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stagepost.dmq.endpoints.connection import Connection, OnFault
from stagepost.dmq.node.blame import Blame, shake_hands
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import (
    DecodeError,
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.net.bearer import Bearer

Counted = list[tuple[MiniProtocol | None, ErrorCode]]


def counted_after(error: StagepostError, *, is_told: bool) -> Counted:
    counted: Counted = []

    async def handshake(on_fault: OnFault) -> Connection:
        if is_told:
            on_fault(error)
        raise error

    async def scenario() -> None:
        with pytest.raises(type(error)):
            await shake_hands(handshake, lambda protocol, code: counted.append((protocol, code)))

    asyncio.run(scenario())
    return counted


def test_fault_in_the_handshake_counts_for_the_handshake() -> None:
    error = DecodeError("bad", code=ErrorCode.CBOR_LIMIT)

    assert counted_after(error, is_told=True) == [(MiniProtocol.HANDSHAKE, ErrorCode.CBOR_LIMIT)]


def test_fault_in_the_multiplexer_under_it_counts_for_the_connection() -> None:
    error = RemoteProtocolError("unknown", code=ErrorCode.MUX_UNKNOWN_PROTOCOL)

    assert counted_after(error, is_told=False) == [(None, ErrorCode.MUX_UNKNOWN_PROTOCOL)]


def test_peer_that_goes_away_in_the_handshake_broke_no_rule() -> None:
    assert counted_after(TransportError("gone"), is_told=True) == []


@pytest.mark.parametrize(
    ("error", "level", "event"),
    [
        (RemoteProtocolError("wrong turn"), logging.WARNING, "peer broke a rule"),
        (ProtocolTimeout("silence"), logging.INFO, "connection ended"),
        (LocalProtocolError("our mistake"), logging.ERROR, "rule broken on this side"),
    ],
)
def test_end_of_a_connection_is_logged_by_who_is_to_blame(
    error: StagepostError, level: int, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        bearer = Bearer(peer="someone")
        bearer.abort(error)
        Blame(bearer, lambda protocol, code: None).settle()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())

    assert [(record.levelno, record.message) for record in caplog.records] == [(level, event)]
