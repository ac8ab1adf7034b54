"""Transfer in parts of objects that are too large for a link: a layer between an overlay and its users.

A block with its proofs may be six times as large as a link takes at once. Links keep their order, so parts
come one after the other; small objects pass between them. If one part is lost, so is the whole object: a node
that misses it asks for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX
from stagepost.errors import LocalProtocolError, TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, Reader, Writer, constructor_bytes, constructor_id
from stagepost.remp.links.overlay import Answered, Overlay, OverlayEvents

PART_BYTES_MAX = 64_000
LARGE_BYTES_MAX = 1_536_000
"""Bytes: an answer with as many blocks as one may hold, and its envelope."""

PARTS_MAX = LARGE_BYTES_MAX // PART_BYTES_MAX
WAITING_BYTES_MAX = 4 * LARGE_BYTES_MAX
"""Bytes, at most, that wait for one slow peer; an object beyond it is dropped."""

SEND_AGAIN_S = 0.01
GIVE_UP_S = 2.0
"""Seconds: a peer that takes nothing for so long gets nothing more of what waits."""

PART_ID = constructor_id(
    "stagepost.chain.part transfer:long is_answer:int index:int count:int data:bytes = stagepost.chain.Part"
)
IN_PARTS_ID = constructor_id("stagepost.chain.inParts transfer:long = stagepost.chain.Part")
_PART, _IN_PARTS = constructor_bytes(PART_ID), constructor_bytes(IN_PARTS_ID)


class Part(msgspec.Struct, frozen=True):
    transfer: int
    is_answer: bool
    index: int
    count: int
    data: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(PART_ID)
        writer.write_unsigned_long(self.transfer)
        for number in (self.is_answer, self.index, self.count):
            writer.write_unsigned_int(number)
        writer.write_bytes(self.data)
        return writer.written()

    @classmethod
    def decode(cls, frame: bytes) -> Part:
        reader = Reader(frame)
        reader.read_constructor(PART_ID)
        transfer, is_answer = reader.read_unsigned_long(), reader.read_unsigned_int()
        index, count = reader.read_unsigned_int(), reader.read_unsigned_int()
        data = reader.read_bytes(PART_BYTES_MAX, "part")
        reader.expect_end()
        if is_answer > 1 or not 2 <= count <= PARTS_MAX or index >= count:
            raise TlDecodeError(
                f"part {index} of {count} (answer: {is_answer}): there are 2 to {PARTS_MAX} parts, counted from 0",
                found=count,
                offset=CONSTRUCTOR_BYTES,
            )
        return cls(transfer, bool(is_answer), index, count, data)


class _Peer:
    """The objects on their way to one peer, and the parts that have come from it."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self.waiting_bytes = 0
        self.stuck_since: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.transfer = 0
        self.parts: list[bytes] = []
        self.answer: tuple[int, bytes] | None = None


class LargeObjects:
    """An `Overlay` for the part above, and the `OverlayEvents` of the overlay below."""

    def __init__(self, overlay: Overlay, events: OverlayEvents) -> None:
        self._overlay = overlay
        self._events = events
        self._peers: dict[int, _Peer] = {}
        self._transfer = 0
        self._is_stopped = False

    def stop(self) -> None:
        self._is_stopped = True
        for peer in self._peers.values():
            if peer.timer is not None:
                peer.timer.cancel()

    # To the overlay

    def push(self, peer: int, frame: bytes) -> bool:
        if len(frame) <= OBJECT_BYTES_MAX:
            return self._overlay.push(peer, frame)
        return self._send(peer, frame, is_answer=False, then=None)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        self._overlay.ask(peer, query, partial(self._answered, peer, answered), timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self._overlay.refuse(peer, rule, text)

    # From the overlay

    def pushed(self, peer: int, frame: bytes) -> None:
        if not frame.startswith(_PART):
            self._events.pushed(peer, frame)
            return
        part = Part.decode(frame)
        state = self._of(peer)
        if part.index == 0:
            state.transfer, state.parts = part.transfer, []
        elif part.transfer != state.transfer or part.index != len(state.parts):
            state.parts = []
            return
        state.parts.append(part.data)
        if len(state.parts) < part.count:
            return
        whole, state.parts = b"".join(state.parts), []
        if part.is_answer:
            state.answer = part.transfer, whole
        else:
            self._events.pushed(peer, whole)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        self._events.asked(peer, query, partial(self._reply, peer, reply))

    def linked(self, peer: int) -> None:
        self._events.linked(peer)

    # Details

    def _of(self, peer: int) -> _Peer:
        return self._peers.setdefault(peer, _Peer())

    def _reply(self, peer: int, reply: Callable[[bytes], None], answer: bytes) -> None:
        if len(answer) <= OBJECT_BYTES_MAX:
            reply(answer)
            return
        writer = Writer()
        writer.write_constructor(IN_PARTS_ID)
        writer.write_unsigned_long(self._transfer + 1)
        self._send(peer, answer, is_answer=True, then=partial(reply, writer.written()))

    def _answered(self, peer: int, answered: Answered, answer: bytes | None) -> None:
        if answer is not None and answer.startswith(_IN_PARTS):
            reader = Reader(answer)
            reader.read_constructor(IN_PARTS_ID)
            transfer = reader.read_unsigned_long()
            reader.expect_end()
            state = self._of(peer)
            whole, state.answer = state.answer, None
            answer = whole[1] if whole is not None and whole[0] == transfer else None
        answered(answer)

    def _send(self, peer: int, data: bytes, *, is_answer: bool, then: Callable[[], None] | None) -> bool:
        if len(data) > LARGE_BYTES_MAX:
            raise LocalProtocolError(
                f"an object of {len(data)} bytes was to be sent; at most {LARGE_BYTES_MAX} go over a link",
                limit=LARGE_BYTES_MAX,
                found=len(data),
            )
        state = self._of(peer)
        if state.waiting_bytes + len(data) > WAITING_BYTES_MAX:
            return False
        self._transfer += 1
        count = -(-len(data) // PART_BYTES_MAX)
        for index in range(count):
            chunk = data[index * PART_BYTES_MAX : (index + 1) * PART_BYTES_MAX]
            frame = Part(self._transfer, is_answer, index, count, chunk).encode()
            state.waiting.append((frame, then if index == count - 1 else None))
        state.waiting_bytes += len(data)
        if state.timer is None:
            self._go_on(peer, state)
        return True

    def _go_on(self, peer: int, state: _Peer) -> None:
        state.timer = None
        loop = asyncio.get_running_loop()
        while state.waiting and not self._is_stopped:
            frame, then = state.waiting[0]
            if not self._overlay.push(peer, frame):
                state.stuck_since = loop.time() if state.stuck_since is None else state.stuck_since
                if loop.time() - state.stuck_since >= GIVE_UP_S:
                    break
                state.timer = loop.call_later(SEND_AGAIN_S, self._go_on, peer, state)
                return
            state.stuck_since = None
            state.waiting.popleft()
            if then is not None:
                then()
        state.waiting.clear()
        state.waiting_bytes, state.stuck_since = 0, None
