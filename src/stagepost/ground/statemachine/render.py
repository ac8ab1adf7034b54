"""Protocols and lifecycles printed as Markdown tables and Mermaid diagrams, so that the pages cannot drift
from the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar

from stagepost.ground.statemachine.lifecycle import Lifecycle
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, State

Status = TypeVar("Status", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def states_table(spec: ProtocolSpec) -> str:
    numbered = any(state.id is not None for state in spec.states)
    header = ["state", *(["id"] if numbered else []), "speaker", "time limit", "message limit"]
    return table(header, (_state_row(state, numbered) for state in spec.states))


def transitions_table(spec: ProtocolSpec) -> str:
    rows = ((edge.source.name, _saying(edge), edge.target.name) for edge in spec.edges)
    return table(("in state", "message", "leads to"), rows)


def diagram(spec: ProtocolSpec) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {spec.initial.name}"]
    lines += [f"    {edge.source.name} --> {edge.target.name}: {_saying(edge)}" for edge in spec.edges]
    lines += [f"    {state.name} --> [*]" for state in spec.states if state.speaker is None]
    return "\n".join(lines)


def lifecycle_table(lifecycle: Lifecycle[Status, Event]) -> str:
    rows = ((source.name, event.name, target.name) for (source, event), target in lifecycle.table.items())
    return table(("in status", "event", "leads to"), rows)


def lifecycle_diagram(lifecycle: Lifecycle[Status, Event]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {lifecycle.initial.name}"]
    lines += [
        f"    {source.name} --> {target.name}: {event.name}"
        for (source, event), target in lifecycle.table.items()
    ]
    lines += [f"    {status.name} --> [*]" for status in lifecycle.statuses if lifecycle.is_final(status)]
    return "\n".join(lines)


def _state_row(state: State, numbered: bool) -> list[str]:
    identifier = [] if not numbered else ["–" if state.id is None else str(state.id)]
    if state.speaker is None:
        release = "–" if state.timeout_s is None else f"channel released after {state.timeout_s:g} s"
        return [state.name, *identifier, "nobody", release, "–"]
    limit = "none" if state.timeout_s is None else f"{state.timeout_s:g} s"
    return [state.name, *identifier, state.speaker.value, limit, f"{state.message_bytes_max} B"]


def _saying(edge: Edge) -> str:
    chosen = ", ".join(f"{name} = {str(value).lower()}" for name, value in edge.where.items())
    return edge.message.__name__ + (f" ({chosen})" if chosen else "")
