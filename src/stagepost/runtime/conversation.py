"""Runs a protocol over a channel: referee, codec and framing together, the same for every protocol and either side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stagepost.errors import (
    ErrorCode,
    LocalProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    TransportError,
)
from stagepost.runtime.channel import Channel
from stagepost.statemachine.referee import Referee
from stagepost.statemachine.spec import ProtocolSpec, Role, State
from stagepost.wire.codec import Codec
from stagepost.wire.framing import Framer, ItemLimits

M = TypeVar("M")

Trace = Callable[[bool, object, State, State], None]
"""Called with (ours, message, state before, state after) for each message that was said."""


class Conversation:
    """One instance of a mini-protocol. A method that raises leaves the conversation unusable: close the connection."""

    def __init__(
        self,
        spec: ProtocolSpec,
        role: Role,
        codec: Codec,
        channel: Channel,
        *,
        trace: Trace | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self._on_start = on_start
        self._channel = channel
        self._codec = codec
        self._framer = Framer()
        self._limits: dict[State, ItemLimits] = {}
        self._referee = Referee(spec, role, self._now(), trace=trace)

    @property
    def state(self) -> State:
        return self._referee.state

    @property
    def is_over(self) -> bool:
        return self._referee.is_over

    @property
    def outstanding(self) -> int:
        return self._referee.outstanding

    @property
    def bytes_unread(self) -> int:
        """What came behind the last message and belongs to the next."""
        return self._framer.buffered

    @property
    def dialect(self) -> str:
        """How this side writes; follows the peer once it has shown its own way."""
        return self._codec.speaks.name

    def set_time_limits(self, limits_s: Mapping[str, float | None]) -> None:
        """Other time limits than the profile's, by state name; None waits as long as it takes."""
        self._referee.set_time_limits(limits_s, self._now())

    async def wait_for_start(self) -> None:
        """Wait until the peer has begun this instance, for as long as that takes.

        A responder offers more instances than a peer uses. Their time limits count from the peer's first byte; how long
        it may take to begin anything at all is a rule of the connection.
        """
        piece = await self._channel.read()
        if not piece:
            raise self._ended(self.state)
        self._framer.feed(piece)
        self._referee.begin(self._now())

    async def send(self, message: object) -> None:
        data = self._codec.encode(message)
        self._referee.sent(message, self._now())
        await self._channel.write(data)

    async def receive(self, expected: type[M]) -> M:
        message = await self.receive_any()
        if not isinstance(message, expected):
            text = f"{self._referee.spec.name}: wanted {expected.__name__}, got {type(message).__name__}"
            raise RemoteProtocolError(text, code=ErrorCode.PROTOCOL_STATE, state=self.state.name)
        return message

    async def receive_any(self) -> Any:
        """The peer's next message, whatever its type; decoded, and allowed where it was said."""
        state = self._referee.state
        if state.speaker is not self._referee.role.other:
            text = f"{self._referee.spec.name}: nothing can be received in {state.name}"
            raise LocalProtocolError(text, code=ErrorCode.PROTOCOL_STATE, state=state.name)
        data = await self._next_item(state)
        message = self._codec.decode(data, state.name)
        self._referee.received(message, self._now())
        if self._on_start is not None:
            # Told once, and only now: before its first message a peer has not shown how it speaks.
            self._on_start()
            self._on_start = None
        return message

    async def release(self) -> None:
        """Wait out the final state's time, as some documents ask, and give the channel back."""
        deadline = self._referee.deadline
        if self.is_over and deadline is not None:
            await asyncio.sleep(max(0.0, deadline - self._now()))
        self._channel.close(self._framer.take_rest())

    async def _next_item(self, state: State) -> bytes:
        limits = self._limits.get(state)
        if limits is None:
            limits = self._limits[state] = self._limits_of(state)
        headless_third = self._codec.table.headless_third.get(state.name)
        # What is here already needs no clock.
        item = self._framer.next_item(limits, headless_third=headless_third)
        if item is not None:
            return item
        if self._referee.deadline is None:
            return await self._read_item(state, limits, headless_third)
        try:
            async with asyncio.timeout_at(self._referee.deadline):
                return await self._read_item(state, limits, headless_third)
        except TimeoutError:
            text = f"{self._referee.spec.name}: silence in {state.name} for {state.timeout_s:g} s"
            raise ProtocolTimeout(text, state=state.name) from None

    async def _read_item(self, state: State, limits: ItemLimits, headless_third: bytes | None) -> bytes:
        while True:
            piece = await self._channel.read()
            if not piece:
                raise self._ended(state)
            self._framer.feed(piece)
            item = self._framer.next_item(limits, headless_third=headless_third)
            if item is not None:
                return item

    def _limits_of(self, state: State) -> ItemLimits:
        table = self._codec.table
        return ItemLimits(
            state.message_bytes_max, state.items_max, any_type=table.any_type, known_shape=table.known_shape
        )

    def _ended(self, state: State) -> TransportError:
        self._framer.finish()
        return TransportError(f"{self._referee.spec.name}: the peer closed the connection in {state.name}")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
