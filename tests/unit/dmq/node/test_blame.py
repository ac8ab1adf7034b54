"""A broken rule is counted once, and where it was broken."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from stagepost.dmq.node.blame import Blame
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import DecodeError, ErrorCode, LimitExceeded, RemoteProtocolError, TransportError
from stagepost.ground.net.bearer import Bearer

Counted = list[tuple[MiniProtocol | None, ErrorCode]]


async def raising(error: Exception) -> None:
    raise error


def blamed(scenario: Coroutine[None, None, None]) -> None:
    asyncio.run(scenario)


def test_rule_broken_in_a_conversation_counts_for_its_mini_protocol() -> None:
    counted: Counted = []

    async def scenario() -> None:
        blame = Blame(Bearer(), lambda protocol, code: counted.append((protocol, code)))
        with pytest.raises(DecodeError):
            await blame.watch(MiniProtocol.KEEP_ALIVE, raising(DecodeError("bad", code=ErrorCode.CBOR_LIMIT)))

    blamed(scenario())

    assert counted == [(MiniProtocol.KEEP_ALIVE, ErrorCode.CBOR_LIMIT)]


def test_connection_that_one_conversation_ended_counts_once() -> None:
    counted: Counted = []

    async def scenario() -> None:
        bearer = Bearer()
        blame = Blame(bearer, lambda protocol, code: counted.append((protocol, code)))
        error = RemoteProtocolError("wrong turn")
        with pytest.raises(RemoteProtocolError):
            await blame.watch(MiniProtocol.MESSAGE_SUBMISSION, raising(error))
        bearer.abort(error)
        with pytest.raises(RemoteProtocolError):
            await blame.watch(MiniProtocol.KEEP_ALIVE, raising(error))
        blame.settle()

    blamed(scenario())

    assert counted == [(MiniProtocol.MESSAGE_SUBMISSION, ErrorCode.PROTOCOL_STATE)]


def test_rule_of_the_multiplexer_counts_for_no_mini_protocol() -> None:
    counted: Counted = []

    async def scenario() -> None:
        bearer = Bearer()
        blame = Blame(bearer, lambda protocol, code: counted.append((protocol, code)))
        bearer.abort(LimitExceeded("flood", code=ErrorCode.MUX_INGRESS_OVERFLOW))
        blame.settle()

    blamed(scenario())

    assert counted == [(None, ErrorCode.MUX_INGRESS_OVERFLOW)]


def test_peer_that_went_away_broke_no_rule() -> None:
    counted: Counted = []

    async def scenario() -> None:
        bearer = Bearer()
        blame = Blame(bearer, lambda protocol, code: counted.append((protocol, code)))
        bearer.abort(TransportError("gone"))
        blame.settle()

    blamed(scenario())

    assert counted == []
