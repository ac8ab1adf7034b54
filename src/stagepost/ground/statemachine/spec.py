"""A two-party protocol as data: states, who speaks in each, and to which state each message leads.

The referee enforces it, the driver runs it, the documentation prints it and the tests walk it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from stagepost.errors import LocalProtocolError


class Role(Enum):
    """Side of a mini-protocol: the client opened the instance, the server answers it."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Role:
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


@dataclass(frozen=True, slots=True)
class State:
    """State of a conversation. Only `speaker` may send a message there, within `timeout_s` seconds."""

    name: str
    speaker: Role | None  # None: the conversation is over
    timeout_s: float | None = None  # None: we wait as long as it takes
    message_bytes_max: int = 65_535
    items_max: int = 4_096
    depth_max: int = 8
    any_type: bool = (
        False  # True: a message may hold every CBOR type, in a state where foreign data are awaited
    )
    id: int | None = None  # the number that the published documents give this state, where they do

    def __hash__(self) -> int:
        # Every message looks a state up in tables; hashing all of its fields would cost more than the rest.
        return hash(self.name)


@dataclass(frozen=True)
class Edge:
    """Transition: `message` sent in `source` leads to `target`. `where` names field values that pick this
    edge."""

    source: State
    message: type[object]
    target: State
    where: Mapping[str, object] = field(default_factory=dict)

    def accepts(self, message: object) -> bool:
        if type(message) is not self.message:
            return False
        return all(getattr(message, name) == value for name, value in self.where.items())


LIMITED_SPECS_KEPT_MAX = 16
"""Specs with other time limits that are kept for reuse: configurations are few, and further variants are made anew each time."""

_Conditional: TypeAlias = tuple[State, tuple[tuple[str, object], ...]]


@dataclass(frozen=True)
class ProtocolSpec:
    """Protocol as a graph.

    `pipelined` maps a state that awaits an answer to the state from which the asking side may already send
    its next request.
    """

    name: str
    initial: State
    edges: tuple[Edge, ...]
    pipelined: Mapping[State, State] = field(default_factory=dict)

    def edges_from(self, state: State) -> Iterator[Edge]:
        return (edge for edge in self.edges if edge.source == state)

    def next_state(self, state: State, message: object) -> State | None:
        """Return the state to which `message` leads from `state`; None if it is not allowed there."""
        return self.targets.get((state.name, type(message))) or self._target_by_fields(state, message)

    def _target_by_fields(self, state: State, message: object) -> State | None:
        for target, conditions in self._conditions.get((state.name, type(message)), ()):
            for name, value in conditions:
                if getattr(message, name) != value:
                    break
            else:
                return target
        return None

    # Every message looks into both tables; the keys hold a state's name, because hashing a state costs more.

    @cached_property
    def targets(self) -> dict[tuple[str, type[object]], State]:
        """Target states by source state and message type, for messages whose fields do not matter."""
        conditions = self._conditions
        return {
            (edge.source.name, edge.message): edge.target
            for edge in reversed(self.edges)  # of two that compete the first counts
            if (edge.source.name, edge.message) not in conditions
        }

    @cached_property
    def _conditions(self) -> dict[tuple[str, type[object]], list[_Conditional]]:
        """Target states of all other messages, each with the field values that it requires."""
        conditional = {(edge.source.name, edge.message) for edge in self.edges if edge.where}
        targets: dict[tuple[str, type[object]], list[_Conditional]] = {}
        for edge in self.edges:
            key = edge.source.name, edge.message
            if key in conditional:
                targets.setdefault(key, []).append((edge.target, tuple(edge.where.items())))
        return targets

    @cached_property
    def resumed_from(self) -> dict[str, State]:
        """The mapping `pipelined`, by the name of the state that awaits an answer."""
        return {state.name: resumed for state, resumed in self.pipelined.items()}

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
        """Return the same graph with other time limits, in seconds, for the named states."""
        key = tuple(limits_s.items())
        known = self._limited.get(key)
        if known is not None:
            return known
        unknown = limits_s.keys() - {state.name for state in self.states}
        if unknown:
            raise LocalProtocolError(f"{self.name} has no state {', '.join(sorted(unknown))}")
        limited = {
            state: replace(state, timeout_s=limits_s.get(state.name, state.timeout_s))
            for state in self.states
        }
        made = self.with_states(self.name, limited)
        if len(self._limited) < LIMITED_SPECS_KEPT_MAX:
            self._limited[key] = made
        return made

    @cached_property
    def _limited(self) -> dict[tuple[tuple[str, float | None], ...], ProtocolSpec]:
        """Variants by their time limits, so that ten thousand connections of one configuration share one
        spec."""
        return {}

    def with_states(self, name: str, states: Mapping[State, State], *further: Edge) -> ProtocolSpec:
        """Return a published variant: the same graph on other states, and the edges that only the variant
        has."""
        edges = (replace(edge, source=states[edge.source], target=states[edge.target]) for edge in self.edges)
        return ProtocolSpec(
            name=name,
            initial=states[self.initial],
            edges=(*edges, *further),
            pipelined={states[state]: states[resumed] for state, resumed in self.pipelined.items()},
        )


def messages_by_state(spec: ProtocolSpec) -> dict[str, set[type[object]]]:
    """Return the types of messages that may be sent in each state, by the state's name."""
    found: dict[str, set[type[object]]] = {}
    for edge in spec.edges:
        found.setdefault(edge.source.name, set()).add(edge.message)
    return found
