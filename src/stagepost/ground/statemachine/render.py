"""Protocols printed as Markdown tables and Mermaid diagrams, so that the pages cannot drift
from the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, State


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
