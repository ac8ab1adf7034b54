"""One mini-protocol of a multiplexed connection, as its conversation sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from stagepost.errors import LocalProtocolError, StagepostError, TransportError
from stagepost.ground.wire.mux import lane_name
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX, EgressLane, Ingress


class Carrier(Protocol):
    """The connection, as its channels see it."""

    peer: str
    is_over: bool
    reason: StagepostError | None

    def send(self, lane: EgressLane, data: bytes) -> None: ...

    def release(self, channel: BearerChannel, ingress: Ingress, lane: EgressLane, unread: bytes) -> None: ...


class BearerChannel:
    """A `Channel` of one bearer."""

    def __init__(self, bearer: Carrier, ingress: Ingress, lane: EgressLane) -> None:
        self._bearer = bearer
        self._ingress = ingress
        self._lane = lane
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[None] | None = None
        self._on_data: Callable[[], None] | None = None
        # A dictionary for its order: writers wake in the order in which they came, in every run alike.
        self._writing: dict[asyncio.Future[None], None] = {}

    async def read(self) -> bytes:
        if self._reading is not None:
            raise LocalProtocolError(f"{lane_name(self._ingress.lane)}: two tasks read one channel")
        while True:
            piece = self.read_now()
            if piece is not None:
                return piece
            self._reading = self._loop.create_future()
            try:
                await self._reading
            finally:
                self._reading = None

    def on_data(self, callback: Callable[[], None] | None) -> None:
        self._on_data = callback

    @property
    def has_data(self) -> bool:
        return self._ingress.queued_bytes > 0 or self._is_closed or self._bearer.is_over

    def read_now(self) -> bytes | None:
        if self._ingress.queued_bytes:
            return self._ingress.take()
        if self._is_closed:
            return b""
        return self._ended_while_reading() if self._bearer.is_over else None

    async def write(self, data: bytes) -> None:
        while True:
            self._check_writable()
            if self._lane.has_room:
                break
            room = self._loop.create_future()
            self._writing[room] = None
            self._lane.on_room = self._wake_writers
            try:
                await room
            finally:
                self._writing.pop(room, None)
        self._bearer.send(self._lane, data)

    @property
    def has_room(self) -> bool:
        """Those who wait already come first."""
        if self._is_closed or self._bearer.is_over:
            return True
        return not self._writing and self._lane.waiting_bytes <= EGRESS_BYTES_MAX

    def write_now(self, data: bytes) -> bool:
        bearer = self._bearer
        if self._is_closed or bearer.is_over:
            self._check_writable()
        if self._writing or self._lane.waiting_bytes > EGRESS_BYTES_MAX:
            return False
        bearer.send(self._lane, data)
        return True

    def close(self, unread: bytes = b"") -> None:
        if not self._is_closed:
            self._is_closed = True
            self._bearer.release(self, self._ingress, self._lane, unread)
            self.wake()

    def tell(self) -> None:
        """Bytes have come."""
        if self._reading is not None:
            if not self._reading.done():
                self._reading.set_result(None)
        elif self._on_data is not None:
            self._on_data()

    def wake(self) -> None:
        """Something ended: whoever waits looks again, but not inside of the call that ended it."""
        self._loop.call_soon(self.tell)
        self._wake_writers()

    def _check_writable(self) -> None:
        if self._is_closed:
            raise LocalProtocolError(f"{lane_name(self._lane.lane)}: written to after its channel was closed")
        if self._bearer.is_over:
            raise self._ended_while_writing()

    def _wake_writers(self) -> None:
        self._lane.on_room = None
        for room in self._writing:
            if not room.done():
                room.set_result(None)

    def _ended_while_reading(self) -> bytes:
        if self._bearer.reason is None:
            return b""
        # Several channels raise the same error: each starts its traceback afresh.
        raise self._bearer.reason.with_traceback(None)

    def _ended_while_writing(self) -> StagepostError:
        if self._bearer.reason is None:
            return TransportError(
                f"connection with {self._bearer.peer} is closed; {lane_name(self._lane.lane)} was not sent",
                advice="connect again",
                peer=self._bearer.peer,
            )
        return self._bearer.reason.with_traceback(None)
