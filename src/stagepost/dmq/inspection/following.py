"""Follows one mini-protocol through a capture: both sides by the state graph, or one side message by message."""

from __future__ import annotations

from stagepost.dmq.inspection.faults import OUT_OF_TURN, Fault, fault_of, may_say, side
from stagepost.dmq.inspection.lane import Lane
from stagepost.dmq.inspection.reading import MessageReader, Said
from stagepost.dmq.inspection.rules import rules_for
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.specs import spec_for
from stagepost.errors import ErrorCode, ProtocolError
from stagepost.ground.statemachine.referee import Referee
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State

_PIPELINE_UNBOUNDED = 2**31
"""How far ahead a side may ask is the window's business; the size of the capture bounds what is kept here."""

# On a connection used both ways each side opens these, and the direction bit does not tell the two runs apart.
_OPENED_BY_BOTH = (MiniProtocol.MESSAGE_SUBMISSION, MiniProtocol.KEEP_ALIVE, MiniProtocol.PEER_SHARING)


class BothSides:
    """One mini-protocol with both directions in the capture; it may run again from its beginning after it ended."""

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

    def take(self, lane: Lane) -> Said | Fault | None:
        """The lane's next message; None while it is not complete."""
        state = self._state_for(lane.role)
        if state is None and self._may_begin_again(lane):
            self._begin()
            state = self._state_for(lane.role)
        if state is None:
            return self._out_of_turn(lane)
        allowed = may_say(self._spec, state)
        said = self._reader.take(lane, [state], allowed)
        return self._broken_by(said, lane, allowed) or said if isinstance(said, Said) else said

    def _state_for(self, role: Role) -> State | None:
        """Where the next message of `role` is said; None if it is not its turn."""
        if role is not self._asker:
            state = self._referee.state
            return state if state.speaker is role else None
        ahead = self._referee.speaking_from
        return ahead if ahead.speaker is role else self._spec.pipelined.get(ahead)

    def _may_begin_again(self, lane: Lane) -> bool:
        return (
            self._referee.is_over
            and self._protocol is not MiniProtocol.HANDSHAKE
            and lane.role is self._spec.initial.speaker
            and lane.buffered > 0
        )

    def _out_of_turn(self, lane: Lane) -> Fault | None:
        said = self._reader.take(lane, _states_of(self._spec, lane.role), "")
        if said is None and not lane.buffered:
            return None  # a straggler that belongs to the message before
        base = lane.offset
        if said is not None:
            base = (
                said.base
                if isinstance(said, Said)
                else said.message_at
                if said.message_at is not None
                else said.at
            )
        name = type(said.message).__name__ if isinstance(said, Said) else "something"
        here = self._referee.state
        turn = (
            "the conversation is over" if here.speaker is None else f"it is the {side(here.speaker)}'s turn"
        )
        text = f"the {side(lane.role)} says {name} in {here.name}, where {turn}{self._hint(lane.role, here)}"
        return Fault(
            base, ErrorCode.PROTOCOL_STATE, OUT_OF_TURN, text, may_say(self._spec, here), here.name, base
        )

    def _hint(self, role: Role, here: State) -> str:
        """What else it may be: three easy mistakes, of peers and of those who capture."""
        if here == self._spec.initial and role is not here.speaker:
            if self._protocol is MiniProtocol.MESSAGE_SUBMISSION and self._version == 2:
                return "; gouroboros pulls from the responder's side in version 2, other nodes do not"
            return "; if the capture begins in the middle of a conversation, read it as one direction"
        if self._protocol in _OPENED_BY_BOTH and here.speaker is not None:
            return "; if both sides opened this mini-protocol, inspect what each of them sent by itself"
        return ""

    def _broken_by(self, said: Said, lane: Lane, allowed: str) -> Fault | None:
        try:
            if lane.role is self._asker:
                self._referee.sent(said.message, 0.0)
            else:
                self._referee.received(said.message, 0.0)
        except ProtocolError as error:
            return fault_of(error, base=said.base, allowed=allowed, state=said.state)
        return None if self._rules is None else self._rules.heard(said.message, said.base, said.state)


class OneSide:
    """One direction of a mini-protocol, read without knowing what the other side said."""

    instance = 1

    def __init__(self, profile: Profile, protocol: MiniProtocol, submission_version: int, role: Role) -> None:
        spec = spec_for(profile, protocol, submission_version)
        self._reader = MessageReader(profile, protocol, submission_version, knows_state=False)
        self._states = _states_of(spec, role)
        messages = dict.fromkeys(edge.message.__name__ for edge in spec.edges if edge.source.speaker is role)
        self._allowed = f"{side(role)}: {' or '.join(messages)}"

    def take(self, lane: Lane) -> Said | Fault | None:
        return self._reader.take(lane, self._states, self._allowed)


def _asker(spec: ProtocolSpec) -> Role:
    """The side that may speak ahead, if one may: the referee counts what was said ahead from its point of view."""
    resumed = next(iter(spec.pipelined.values()), None)
    return Role.CLIENT if resumed is None or resumed.speaker is None else resumed.speaker


def _states_of(spec: ProtocolSpec, role: Role) -> list[State]:
    return [state for state in spec.states if state.speaker is role]
