"""The referee follows one run of a protocol from one side, and knows whom to blame. Nothing else moves a
protocol state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stagepost.errors import (
    ErrorCode,
    LocalProtocolError,
    ProtocolError,
    ProtocolTimeout,
    RemoteProtocolError,
    WireRule,
)
from stagepost.ground.statemachine.spec import ProtocolSpec, Role, State

PIPELINE_DEPTH_MAX = 64
"""Requests that may be unanswered at once; each one holds a slot here and memory at the peer."""

TraceHook = Callable[[bool, object, State, State], None]


class Referee:
    """Judge of one run of a protocol, for one side.

    `state` is the state in which the next message from the peer arrives. With pipelining we may be ahead:
    `speaking_from` is the state in which we would send our next message, `state` is the oldest state that
    still awaits the peer. Both are the same as long as nothing is outstanding.
    """

    def __init__(
        self,
        spec: ProtocolSpec,
        role: Role,
        now: float,
        *,
        pipeline_depth_max: int = PIPELINE_DEPTH_MAX,
        trace: TraceHook | None = None,
    ) -> None:
        self.spec = spec
        self.role = role
        self.deadline: float | None = None
        self._pipeline_depth_max = pipeline_depth_max
        self._trace = trace
        self._other = role.other
        self._awaited: list[State] = []  # an empty deque takes ten times the memory
        self._state = spec.initial
        self.state = spec.initial  # the first of those awaited, if there are any
        self._set_deadline(now)

    @property
    def speaking_from(self) -> State:
        return self._state

    @property
    def outstanding(self) -> int:
        """Number of our messages that the peer has not answered yet."""
        return len(self._awaited) + (self._state.speaker is self._other)

    @property
    def is_over(self) -> bool:
        return self.state.speaker is None

    def begin(self, now: float) -> None:
        """Count the present state's time limit from `now`: the peer has only just opened this instance."""
        self._set_deadline(now)

    def set_time_limits(self, limits_s: Mapping[str, float | None], now: float) -> None:
        """Replace the time limits of the named states; that of the present state counts from `now`."""
        self.spec = self.spec.with_time_limits(limits_s)
        self._state = self.spec.state(self._state.name)
        self._awaited = [self.spec.state(state.name) for state in self._awaited]
        self.state = self._awaited[0] if self._awaited else self._state
        self._set_deadline(now)

    def sent(self, message: object, now: float) -> None:
        source = self._state
        resumed = self.spec.resumed_from.get(source.name) if source.speaker is self._other else None
        if resumed is not None:
            if len(self._awaited) + 1 >= self._pipeline_depth_max:
                text = f"{self.spec.name}: more than {self._pipeline_depth_max} unanswered requests"
                raise LocalProtocolError(text, limit=self._pipeline_depth_max, state=source.name)
            target = self._target(resumed, message, ours=True)
            # A request that must not be overtaken may not be sent while answers are due before it.
            if target.name not in self.spec.resumed_from:
                raise self._blame(
                    LocalProtocolError, message, source, "cannot be pipelined", WireRule.NOT_PIPELINED
                )
            self._awaited.append(source)
            self._state = target  # and what is awaited first stays so, with its time limit
        else:
            target = self._target(source, message, ours=True)
            self._state = self.state = target
            self.deadline = None if target.timeout_s is None else now + target.timeout_s
        if self._trace is not None:
            self._trace(True, message, source, target)

    def received(self, message: object, now: float) -> None:
        source = self.state
        target = self._target(source, message, ours=False)
        if not self._awaited:
            self._state = self.state = target
        else:
            del self._awaited[0]
            resumed = self.spec.resumed_from[source.name]
            if target is not resumed and target != resumed:
                # The peer ended the conversation; it will never answer our pipelined messages.
                self._awaited.clear()
                self._state = target
            self.state = self._awaited[0] if self._awaited else self._state
        timeout_s = self.state.timeout_s
        self.deadline = None if timeout_s is None else now + timeout_s
        if self._trace is not None:
            self._trace(False, message, source, self.state)

    def check_deadline(self, now: float) -> None:
        """Raise if the side whose turn it is has been silent for too long."""
        if self.deadline is None or now < self.deadline or self.is_over:
            return
        state = self.state
        text = f"{self.spec.name}: silence in {state.name} for {state.timeout_s:g} s"
        if state.speaker is self.role:
            raise LocalProtocolError(text, code=ErrorCode.PROTOCOL_TIMEOUT, state=state.name)
        raise ProtocolTimeout(text, state=state.name)

    def _target(self, source: State, message: object, *, ours: bool) -> State:
        spec = self.spec
        target = spec.targets.get((source.name, type(message))) or spec.next_state(source, message)
        if target is None or ours is not (source.speaker is self.role):
            blame = LocalProtocolError if ours else RemoteProtocolError
            if target is None:
                raise self._blame(blame, message, source, "not allowed there", WireRule.NOT_IN_THIS_STATE)
            why = f"it is the {_speaker(source)}'s turn"
            raise self._blame(blame, message, source, why, WireRule.OUT_OF_TURN)
        return target

    def _blame(
        self, blame: type[ProtocolError], message: object, state: State, why: str, rule: WireRule
    ) -> ProtocolError:
        text = f"{self.spec.name}: {type(message).__name__} said in {state.name}: {why}"
        said = type(message).__name__
        return blame(text, code=ErrorCode.PROTOCOL_STATE, state=state.name, found=said, rule=rule)

    def _set_deadline(self, now: float) -> None:
        timeout_s = self.state.timeout_s
        self.deadline = None if timeout_s is None else now + timeout_s


def _speaker(state: State) -> str:
    return "nobody" if state.speaker is None else state.speaker.value
