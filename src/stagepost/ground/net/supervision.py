"""Supervision: run the conversations of one connection side by side, and end them together."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Iterable
from contextlib import suppress

from stagepost.errors import LocalProtocolError, StagepostError, TransportError
from stagepost.ground.net.bearer import Bearer


async def run_conversations(bearer: Bearer, conversations: Iterable[Coroutine[None, None, None]]) -> None:
    """Run until the connection ends. A broken rule in one conversation ends the connection, and so all
    others.

    Conversations that finish by themselves leave the rest alone. `bearer.reason` holds the reason of the end.
    """
    running = list(conversations)
    tasks = [asyncio.ensure_future(_guarded(bearer, conversation)) for conversation in running]
    try:
        await asyncio.sleep(0)  # so that each of them begins, also on a connection that has ended already
        await bearer.wait_closed()
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            _drop_unbegun(running)
    for task in tasks:
        # Any error that is not a protocol error is a bug of ours, and must not be swallowed here.
        if not task.cancelled() and (bug := task.exception()) is not None:
            raise bug


def _drop_unbegun(conversations: Iterable[Coroutine[None, None, None]]) -> None:
    """Close coroutines that never ran: a task that is cancelled before its first step never touches its
    coroutine."""
    for conversation in conversations:
        if inspect.getcoroutinestate(conversation) == inspect.CORO_CREATED:
            conversation.close()


async def _guarded(bearer: Bearer, conversation: Coroutine[None, None, None]) -> None:
    try:
        # A conversation usually ends because the peer goes away between two messages.
        with suppress(TransportError):
            await conversation
    except StagepostError as error:
        bearer.abort(error)
    except Exception as bug:
        bearer.abort(LocalProtocolError(f"a conversation ended by a bug on this side: {type(bug).__name__}"))
        raise
