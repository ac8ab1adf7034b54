"""A two-party protocol as data: states, who speaks in each, and which message leads where.

The referee enforces it, the driver runs it, the documentation prints it and the tests walk it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property


class Role(Enum):
    """The two sides of a mini-protocol: the client opened the instance, the server answers it."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Role:
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


@dataclass(frozen=True, slots=True)
class State:
    """A place in the conversation. Only `speaker` may say something there, within `timeout_s`."""

    name: str
    speaker: Role | None  # None: the conversation is over
    timeout_s: float | None = None  # None: we wait as long as it takes
    message_bytes_max: int = 65_535
    items_max: int = 4_096
    id: int | None = None  # the number that the published documents give this state, where they do

    def __hash__(self) -> int:
        # States stand in tables that are asked with every message; hashing all of their fields costs more than the rest.
        return hash(self.name)


@dataclass(frozen=True)
class Edge:
    """Saying `message` in `source` leads to `target`; `where` names field values that pick this edge."""

    source: State
    message: type[object]
    target: State
    where: Mapping[str, object] = field(default_factory=dict)

    def accepts(self, message: object) -> bool:
        if type(message) is not self.message:
            return False
        # Most edges have no such condition, and making a generator for none costs as much as all the rest.
        return not self.where or all(getattr(message, name) == value for name, value in self.where.items())


@dataclass(frozen=True)
class ProtocolSpec:
    """`pipelined` maps a state that awaits an answer to the state the asker may act from before it comes."""

    name: str
    initial: State
    edges: tuple[Edge, ...]
    pipelined: Mapping[State, State] = field(default_factory=dict)

    def edges_from(self, state: State) -> Iterator[Edge]:
        return (edge for edge in self.edges if edge.source == state)

    def next_state(self, state: State, message: object) -> State | None:
        """Where `message` leads from `state`; None if it may not be said there."""
        for edge in self._edges_by_source.get(state, ()):
            if edge.accepts(message):
                return edge.target
        return None

    @cached_property
    def _edges_by_source(self) -> dict[State, tuple[Edge, ...]]:
        return {state: tuple(self.edges_from(state)) for state in self.states}

    @property
    def states(self) -> tuple[State, ...]:
        """Every state once, in the order in which the edges first name them."""
        ordered = dict.fromkeys([self.initial])
        for edge in self.edges:
            ordered.setdefault(edge.source)
            ordered.setdefault(edge.target)
        return tuple(ordered)

    @property
    def messages(self) -> tuple[type[object], ...]:
        return tuple(dict.fromkeys(edge.message for edge in self.edges))

    def state(self, name: str) -> State:
        return next(state for state in self.states if state.name == name)

    def with_time_limits(self, limits_s: Mapping[str, float | None]) -> ProtocolSpec:
        """The same graph, with other time limits for the states named."""
        unknown = limits_s.keys() - {state.name for state in self.states}
        assert not unknown, f"{self.name} has no state {', '.join(sorted(unknown))}"
        limited = {
            state: replace(state, timeout_s=limits_s.get(state.name, state.timeout_s))
            for state in self.states
        }
        return self.with_states(self.name, limited)

    def with_states(self, name: str, states: Mapping[State, State], *further: Edge) -> ProtocolSpec:
        """A published variant: the same graph on other states, and the edges that only the variant has."""
        edges = (replace(edge, source=states[edge.source], target=states[edge.target]) for edge in self.edges)
        return ProtocolSpec(
            name=name,
            initial=states[self.initial],
            edges=(*edges, *further),
            pipelined={states[state]: states[resumed] for state, resumed in self.pipelined.items()},
        )
