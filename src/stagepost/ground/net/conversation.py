"""Conversations: a protocol over a channel, with referee, codec and framing, the same for every protocol and
either side; the handshake as a conversation; and the conversations of one connection, run side by side and ended together."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from stagepost.errors import (
    DecodeError,
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    StagepostError,
    TransportError,
)
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.channel import ProtocolChannel
from stagepost.ground.net.handshake import DIALECT, HANDSHAKE, HANDSHAKE_NUMBER
from stagepost.ground.statemachine.referee import Referee
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State, messages_by_state
from stagepost.ground.wire.codec import Codec, CodecTable
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.mux import Direction
from stagepost.ground.wire.mux_queues import HANDSHAKE_INGRESS_BYTES_MAX

M = TypeVar("M")

Trace = Callable[[bool, object, State, State], None]
"""Callback for each message, with (whether we sent it, the message, the state before, the state after)."""


class Conversation:
    """Instance of a mini-protocol. A method that raises leaves the conversation unusable: close the
    connection."""

    def __init__(
        self,
        spec: ProtocolSpec,
        role: Role,
        codec: Codec,
        channel: ProtocolChannel,
        *,
        trace: Trace | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_start = on_start
        self._channel = channel
        self._codec = codec
        self._framer = Framer()
        self._peer_role = role.other
        self._limits: dict[str, tuple[ItemLimits, bytes | None]] = {}  # by the name of the state
        self._referee = Referee(spec, role, self._loop.time(), trace=trace)
        self._on_message: Callable[[], None] | None = None
        self._more: asyncio.Future[None] | None = None
        # One timer for all time limits, set anew only when it fires or is too late: nearly every message makes it moot.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._overdue: float | None = None  # the deadline that has passed

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
        """Number of received bytes after the last message; they belong to the next."""
        return self._framer.buffered

    @property
    def has_unread(self) -> bool:
        """Return whether bytes or the end of the channel came that `receive_now` has not looked at yet."""
        return self._framer.buffered > 0 or self._channel.has_data

    @property
    def dialect(self) -> str:
        """Name of the dialect in which this side writes; it follows the peer's once the peer has shown one."""
        return self._codec.speaks.name

    def set_time_limits(self, limits_s: Mapping[str, float | None]) -> None:
        """Replace the profile's time limits, by state name and in seconds; None means no limit."""
        self._referee.set_time_limits(limits_s, self._loop.time())
        self._limits.clear()

    def on_message(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` whenever `receive_now` may have a result: bytes, the end, silence for too long.

        The calls come until `on_message(None)`, also while it is our turn to speak; `callback` must not
        raise.
        """
        self._on_message = callback
        if self._more is None:
            self._channel.on_data(callback)
        if callback is not None:
            self._watch()

    async def wait_for_start(self) -> None:
        """Wait until the peer has begun this instance, for as long as that takes.

        A responder offers more instances than a peer uses. Their time limits count from the peer's first
        byte; how long a peer may take to begin anything at all is a rule of the connection.
        """
        while (piece := self._channel.read_now()) is None:
            await self._wait()
        if not piece:
            raise self._ended(self.state)
        self._framer.feed(piece)
        self._referee.begin(self._loop.time())

    async def send(self, message: object) -> None:
        data = self._codec.encode(message)
        self._referee.sent(message, self._loop.time())
        if not self._channel.write_now(data):
            await self._channel.write(data)
        if self._on_message is not None:
            self._watch()

    @property
    def has_room(self) -> bool:
        """Return whether `send_now` would send, or raise because nothing can be sent any more."""
        return self._channel.has_room

    def send_now(self, message: object) -> bool:
        """Do what `send` does, but return False and send nothing where that would wait for a slow peer."""
        if not self._channel.has_room:
            return False
        self.say(message)
        return True

    def say(self, message: object) -> None:
        """Send `message` at once. The caller has just seen that `has_room` is True."""
        data = self._codec.encode(message)
        self._referee.sent(message, self._loop.time())
        self._channel.write_now(data)
        if self._on_message is not None:
            self._watch()

    async def receive(self, expected: type[M]) -> M:
        message = await self.receive_any()
        if not isinstance(message, expected):
            text = f"{self._referee.spec.name}: wanted {expected.__name__}, got {type(message).__name__}"
            raise RemoteProtocolError(text, code=ErrorCode.PROTOCOL_STATE, state=self.state.name)
        return message

    async def receive_any(self) -> Any:
        """Wait for the peer's next message of any type; it is decoded, and the referee has allowed it."""
        while (message := self.receive_now()) is None:
            await self._wait()
        return message

    def receive_now(self) -> Any | None:
        """Do what `receive_any` does, but return None where that would wait."""
        referee = self._referee
        state = referee.state
        if state.speaker is not self._peer_role:
            text = f"{referee.spec.name}: nothing can be received in {state.name}"
            raise LocalProtocolError(text, code=ErrorCode.PROTOCOL_STATE, state=state.name)
        limits, headless_third = self._limits.get(state.name) or self._limits_of(state)
        framer = self._framer
        message = None
        while message is None:
            is_between_items = framer.is_between_items
            if not is_between_items:
                item = framer.next_item(limits, headless_third=headless_third)
                if item is not None:
                    message = self._codec.decode(item, state.name)
                    break
            try:
                piece = self._channel.read_now()
            except StagepostError:
                self._stop_timer()  # a timer would keep all of an ended connection in memory
                raise
            if piece is None:
                # Only a message that has not come needs the clock.
                self._check_time()
                return None
            if not piece:
                raise self._ended(state)
            if is_between_items and len(piece) <= limits.bytes_max:
                # Most pieces are one message of a well-known shape; the full decoder finds whatever is wrong
                # with others.
                message = self._codec.decode_usual(piece, state.name, limits.items_max)
            if message is None:
                framer.feed(piece)
            else:
                framer.offset += len(piece)
        referee.received(message, self._loop.time())
        if self._on_start is not None:
            # Called once, and only now: before its first message a peer has not shown its dialect.
            self._on_start()
            self._on_start = None
        return message

    async def release(self) -> None:
        """Wait out the final state's time, as some documents ask, and give the channel back."""
        deadline = self._referee.deadline
        if self.is_over and deadline is not None:
            await asyncio.sleep(max(0.0, deadline - self._loop.time()))
        self._stop_timer()
        self._channel.close(self._framer.take_rest())

    async def _wait(self) -> None:
        if self._more is not None:
            raise LocalProtocolError(f"{self._referee.spec.name}: two tasks read from one conversation")
        self._more = self._loop.create_future()
        self._channel.on_data(self._wake)
        try:
            await self._more
        except BaseException:
            self._stop_timer()  # the next `receive_now` sets it again
            raise
        finally:
            self._more = None
            self._channel.on_data(self._on_message)

    def _wake(self) -> None:
        if self._more is not None:
            if not self._more.done():
                self._more.set_result(None)
        elif self._on_message is not None:
            self._on_message()

    # Time limits

    def _check_time(self) -> None:
        if self._overdue is not None and self._overdue == self._referee.deadline:
            self._referee.check_deadline(self._overdue)
        self._watch()

    def _watch(self) -> None:
        """Set the timer for the deadline of the present state, if the peer has the turn and a time limit."""
        deadline = self._referee.deadline
        if deadline is None or self._timer_at <= deadline:
            return
        if self._referee.state.speaker is self._peer_role:
            self._stop_timer()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._on_deadline, deadline)

    def _on_deadline(self, time_s: float) -> None:
        self._timer, self._timer_at = None, math.inf
        deadline = self._referee.deadline
        if deadline is not None and deadline <= time_s and self._referee.state.speaker is self._peer_role:
            self._overdue = deadline
            self._wake()
        else:
            self._watch()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf

    def _limits_of(self, state: State) -> tuple[ItemLimits, bytes | None]:
        table = self._codec.table
        limits = ItemLimits(
            state.message_bytes_max,
            state.items_max,
            state.depth_max,
            any_type=table.any_type or state.any_type,
            known_shape=table.known_shape,
        )
        self._limits[state.name] = limits, table.headless_third.get(state.name)
        return self._limits[state.name]

    def _ended(self, state: State) -> TransportError:
        self._stop_timer()
        self._framer.finish()
        return TransportError(f"{self._referee.spec.name}: the peer closed the connection in {state.name}")


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


HANDSHAKE_CODEC = CodecTable(HANDSHAKE.name, messages_by_state(HANDSHAKE), [DIALECT], any_type=True)


def open_handshake(bearer: Bearer, direction: Direction) -> Conversation:
    """Open the handshake of a new connection, as initiator or as responder."""
    return Conversation(
        HANDSHAKE,
        Role.CLIENT if direction is Direction.INITIATOR else Role.SERVER,
        Codec(HANDSHAKE_CODEC, DIALECT.name),
        bearer.channel(HANDSHAKE_NUMBER, direction, HANDSHAKE_INGRESS_BYTES_MAX, HANDSHAKE_INGRESS_BYTES_MAX),
    )


def check_nothing_behind(talk: Conversation, protocol: str = "Handshake") -> None:
    """Raise `DecodeError` if the peer sent more bytes before its message was answered."""
    if talk.bytes_unread:
        text = f"{protocol}: {talk.bytes_unread} bytes follow the message, before it was answered"
        raise DecodeError(text, code=ErrorCode.CBOR_INVALID, found=talk.bytes_unread)
