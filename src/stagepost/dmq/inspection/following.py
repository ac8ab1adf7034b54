"""Followers of one mini-protocol through a capture: both sides by the state graph, or one side message by
message.

A `CaptureLane` is one direction: its framing, and the place of each of its bytes in the file. A `MessageReader`
turns whole items of a lane into typed messages or faults.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stagepost.dmq.inspection.rules import (
    UnplacedFault,
    fault_of,
    may_say,
    rules_for,
    side,
)
from stagepost.dmq.local_submission import SubmitMessage
from stagepost.dmq.message import read_message
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.specs import codec_for, spec_for
from stagepost.errors import DecodeError, ErrorCode, ProtocolError, WireRule
from stagepost.ground.statemachine.referee import Referee
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.layout import read_head
from stagepost.ground.wire.mux import Direction

BEGINNING_BYTES = 8


class CaptureLane:
    """Direction of one mini-protocol in a capture.

    Messages may span segments, so the lane looks an offset up among the pieces that still matter.
    """

    def __init__(self, number: int, direction: Direction) -> None:
        self.number = number
        self.direction = direction
        self.beginning = b""  # of the whole lane, as far as it tells what kind of conversation this is
        self._framer = Framer()
        self._fed = 0
        self._starts: list[int] = []
        self._places: list[tuple[int, int]] = []  # offset in the capture, index of the segment

    @property
    def role(self) -> Role:
        return Role.CLIENT if self.direction is Direction.INITIATOR else Role.SERVER

    @property
    def offset(self) -> int:
        """Lane offset of the first byte that no whole message has taken yet."""
        return self._framer.offset

    @property
    def buffered(self) -> int:
        return self._framer.buffered

    def feed(self, payload: bytes, offset: int, segment: int) -> None:
        if payload:
            self._starts.append(self._fed)
            self._places.append((offset, segment))
            self._fed += len(payload)
            if len(self.beginning) < BEGINNING_BYTES:
                self.beginning = (self.beginning + payload)[:BEGINNING_BYTES]
            self._framer.feed(payload)

    def next_item(self, limits: ItemLimits, headless_third: bytes | None) -> bytes | None:
        done = bisect_right(self._starts, self._framer.offset) - 1
        if done > 0:
            del self._starts[:done], self._places[:done]
        return self._framer.next_item(limits, headless_third=headless_third)

    def place(self, at: int) -> tuple[int, int]:
        """Return the place of lane offset `at`: offset in the capture, and the segment. Only for bytes that
        were just read."""
        piece = max(bisect_right(self._starts, at) - 1, 0)
        offset, segment = self._places[piece]
        return offset + at - self._starts[piece], segment


_SUBMITTED_MESSAGE_AT = 2  # behind the head and tag of a submission, one byte each


@dataclass(frozen=True, slots=True)
class CapturedMessage:
    """Whole message of a lane. `flavour` is None if every dialect writes it this way."""

    base: int  # lane offset at which it begins
    item: bytes
    message: Any
    state: str
    flavour: str | None


class MessageReader:
    """Reader for one instance. Without `knows_state` it reads one direction, which does not show the state of
    each message."""

    def __init__(
        self, profile: Profile, protocol: MiniProtocol, submission_version: int, *, knows_state: bool
    ) -> None:
        self._knows_state = knows_state
        self._profile = profile
        self._codec = codec_for(profile, protocol, submission_version)

    def take(
        self, lane: CaptureLane, states: Sequence[State], allowed: str
    ) -> CapturedMessage | UnplacedFault | None:
        """Return the lane's next message or its fault; None while it is incomplete."""
        table = self._codec.table
        limits = ItemLimits(
            max(state.message_bytes_max for state in states),
            max(state.items_max for state in states),
            any_type=table.any_type,
        )
        headless = next(filter(None, (table.headless_third.get(state.name) for state in states)), None)
        only = states[0].name if len(states) == 1 else ""
        try:
            item = lane.next_item(limits, headless)
        except DecodeError as error:
            return fault_of(error, base=lane.offset, allowed=allowed, state=only)
        if item is None:
            return None
        try:
            return self._read(item, lane.offset - len(item), states, allowed)
        except ProtocolError as error:
            fault = fault_of(error, base=lane.offset - len(item), allowed=allowed, state=only)
        if not self._knows_state and fault.rule == WireRule.NOT_IN_THIS_STATE:
            text = f"{table.protocol}: the {side(lane.role)} never says such a message"
            return replace(fault, text=text, rule=WireRule.OUT_OF_TURN)
        return fault

    def _read(
        self, item: bytes, base: int, states: Sequence[State], allowed: str
    ) -> CapturedMessage | UnplacedFault:
        table = self._codec.table
        head = read_head(CborReader(item))
        knowing = [state for state in states if table.layout_for(state.name, *head) is not None]
        state = (knowing or states)[0]
        name = state.name if len(knowing) == 1 or len(states) == 1 else ""
        limit = max(each.message_bytes_max for each in knowing or states)
        if len(item) > limit:
            text = f"the message has {len(item)} bytes, the limit in {state.name} is {limit}"
            return UnplacedFault(
                base, ErrorCode.CBOR_LIMIT, WireRule.MESSAGE_TOO_LONG, text, allowed, name, base
            )
        message = self._codec.decode(item, state.name)
        if isinstance(message, SubmitMessage) and isinstance(message.message, MalformedMessage):
            return self._malformed(message.message, base, name)
        known = table.layout_for(state.name, *head)
        dialect = known[1] if known is not None and len(table.dialects) > 1 else None
        return CapturedMessage(base, item, message, name, None if dialect is None else dialect.name)

    def _malformed(self, submitted: MalformedMessage, base: int, state: str) -> UnplacedFault:
        """Return the fault of a submission that no node accepts; read it again to find the place."""
        allowed = "a message of the layouts and sizes that this profile admits"
        error = DecodeError(submitted.text, code=submitted.code)
        try:
            read_message(CborReader(submitted.raw), self._profile.message_layouts)
        except DecodeError as again:
            error = again
        fault = fault_of(error, base=base + _SUBMITTED_MESSAGE_AT, allowed=allowed, state=state)
        return replace(fault, message_at=base)


_PIPELINE_UNBOUNDED = 2**31
"""Requests in the pipeline: the window's rules limit them, and the size of the capture bounds the memory here."""

# On a connection used both ways each side opens these, and the direction bit does not tell the two runs
# apart.
_OPENED_BY_BOTH = (MiniProtocol.MESSAGE_SUBMISSION, MiniProtocol.KEEP_ALIVE, MiniProtocol.PEER_SHARING)


class BothSides:
    """Follower of a mini-protocol with both directions in the capture; after its end it may run again from
    the beginning."""

    def __init__(self, profile: Profile, protocol: MiniProtocol, submission_version: int) -> None:
        self._profile = profile
        self._protocol = protocol
        self._version = submission_version
        self._spec = spec_for(profile, protocol, submission_version)
        self._asker = _asker(self._spec)
        self.instance = 0
        self._begin()

    def _begin(self) -> None:
        self.instance += 1
        self._reader = MessageReader(self._profile, self._protocol, self._version, knows_state=True)
        self._referee = Referee(self._spec, self._asker, 0.0, pipeline_depth_max=_PIPELINE_UNBOUNDED)
        self._rules = rules_for(self._profile, self._protocol)

    def take(self, lane: CaptureLane) -> CapturedMessage | UnplacedFault | None:
        """Return the lane's next message or its fault; None while it is incomplete."""
        state = self._state_for(lane.role)
        if state is None and self._may_begin_again(lane):
            self._begin()
            state = self._state_for(lane.role)
        if state is None:
            return self._out_of_turn(lane)
        allowed = may_say(self._spec, state)
        said = self._reader.take(lane, [state], allowed)
        return self._broken_by(said, lane, allowed) or said if isinstance(said, CapturedMessage) else said

    def _state_for(self, role: Role) -> State | None:
        """Return the state in which the next message of `role` is sent; None if it is not its turn."""
        if role is not self._asker:
            state = self._referee.state
            return state if state.speaker is role else None
        ahead = self._referee.speaking_from
        return ahead if ahead.speaker is role else self._spec.pipelined.get(ahead)

    def _may_begin_again(self, lane: CaptureLane) -> bool:
        return (
            self._referee.is_over
            and self._protocol is not MiniProtocol.HANDSHAKE
            and lane.role is self._spec.initial.speaker
            and lane.buffered > 0
        )

    def _out_of_turn(self, lane: CaptureLane) -> UnplacedFault | None:
        said = self._reader.take(lane, _states_of(self._spec, lane.role), "")
        if said is None and not lane.buffered:
            return None  # a straggler that belongs to the message before
        base = lane.offset
        if said is not None:
            base = (
                said.base
                if isinstance(said, CapturedMessage)
                else said.message_at
                if said.message_at is not None
                else said.at
            )
        name = type(said.message).__name__ if isinstance(said, CapturedMessage) else "something"
        here = self._referee.state
        turn = (
            "the conversation is over" if here.speaker is None else f"it is the {side(here.speaker)}'s turn"
        )
        text = f"the {side(lane.role)} says {name} in {here.name}, where {turn}{self._hint(lane.role, here)}"
        return UnplacedFault(
            base,
            ErrorCode.PROTOCOL_STATE,
            WireRule.OUT_OF_TURN,
            text,
            may_say(self._spec, here),
            here.name,
            base,
        )

    def _hint(self, role: Role, here: State) -> str:
        """Return another explanation of the fault: three easy mistakes, of peers and of people who capture."""
        if here == self._spec.initial and role is not here.speaker:
            if self._protocol is MiniProtocol.MESSAGE_SUBMISSION and self._version == 2:
                return "; gouroboros pulls from the responder's side in version 2, other nodes do not"
            return "; if the capture begins in the middle of a conversation, read it as one direction"
        if self._protocol in _OPENED_BY_BOTH and here.speaker is not None:
            return "; if both sides opened this mini-protocol, inspect what each of them sent by itself"
        return ""

    def _broken_by(self, said: CapturedMessage, lane: CaptureLane, allowed: str) -> UnplacedFault | None:
        try:
            if lane.role is self._asker:
                self._referee.sent(said.message, 0.0)
            else:
                self._referee.received(said.message, 0.0)
        except ProtocolError as error:
            return fault_of(error, base=said.base, allowed=allowed, state=said.state)
        return None if self._rules is None else self._rules.heard(said.message, said.base, said.state)


class OneSide:
    """Follower of one direction of a mini-protocol, without the messages of the other side."""

    instance = 1

    def __init__(self, profile: Profile, protocol: MiniProtocol, submission_version: int, role: Role) -> None:
        spec = spec_for(profile, protocol, submission_version)
        self._reader = MessageReader(profile, protocol, submission_version, knows_state=False)
        self._states = _states_of(spec, role)
        messages = dict.fromkeys(edge.message.__name__ for edge in spec.edges if edge.source.speaker is role)
        self._allowed = f"{side(role)}: {' or '.join(messages)}"

    def take(self, lane: CaptureLane) -> CapturedMessage | UnplacedFault | None:
        return self._reader.take(lane, self._states, self._allowed)


def _asker(spec: ProtocolSpec) -> Role:
    """Return the side that may pipeline, if one may: the referee counts pipelined messages from its point of
    view."""
    resumed = next(iter(spec.pipelined.values()), None)
    return Role.CLIENT if resumed is None or resumed.speaker is None else resumed.speaker


def _states_of(spec: ProtocolSpec, role: Role) -> list[State]:
    return [state for state in spec.states if state.speaker is role]
