"""Protocols in print: every state, limit and transition appears, and nothing else."""

from __future__ import annotations

import pytest

from stagepost.dmq.specs import ALL_SPECS
from stagepost.ground.statemachine.render import (
    diagram,
    states_table,
    transitions_table,
)
from stagepost.ground.statemachine.spec import Edge, ProtocolSpec, Role, State
from tests.worlds.pipeline.published_tables import PUBLISHED


class Knock:
    loud: bool


class Open:
    pass


OUTSIDE = State("Outside", Role.CLIENT, timeout_s=30, id=1)
WAITING = State("Waiting", Role.SERVER, message_bytes_max=500, id=2)
INSIDE = State("Inside", speaker=None, timeout_s=10)
DOOR = ProtocolSpec(
    "Door", OUTSIDE, (Edge(OUTSIDE, Knock, WAITING, {"loud": True}), Edge(WAITING, Open, INSIDE))
)


def test_states_are_listed_with_speaker_and_limits() -> None:
    assert states_table(DOOR).splitlines() == [
        "| state | id | speaker | time limit | message limit |",
        "|---|---|---|---|---|",
        "| Outside | 1 | client | 30 s | 65535 B |",
        "| Waiting | 2 | server | none | 500 B |",
        "| Inside | – | nobody | channel released after 10 s | – |",
    ]


def test_transitions_are_listed_with_the_values_that_pick_them() -> None:
    assert transitions_table(DOOR).splitlines()[2:] == [
        "| Outside | Knock (loud = true) | Waiting |",
        "| Waiting | Open | Inside |",
    ]


def test_a_diagram_has_a_beginning_every_edge_and_an_end() -> None:
    assert diagram(DOOR).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> Outside",
        "    Outside --> Waiting: Knock (loud = true)",
        "    Waiting --> Inside: Open",
        "    Inside --> [*]",
    ]


def test_the_column_of_numbers_is_left_out_where_no_state_has_one() -> None:
    plain = State("Alone", Role.CLIENT)
    spec = ProtocolSpec("Alone", plain, (Edge(plain, Open, State("Gone", None)),))

    assert states_table(spec).splitlines()[0] == "| state | speaker | time limit | message limit |"
    assert states_table(spec).splitlines()[-1] == "| Gone | nobody | – | – |"


@pytest.mark.parametrize("spec", ALL_SPECS, ids=lambda spec: spec.name)
def test_every_published_transition_and_state_is_printed_once(spec: ProtocolSpec) -> None:
    published = PUBLISHED[spec.name]
    rows = transitions_table(spec).splitlines()[2:]
    wanted = []
    for edge in published.edges:
        chosen = "".join(f" ({name} = {str(value).lower()})" for name, value in edge.where.items())
        wanted.append(f"| {edge.source} | {edge.message}{chosen} | {edge.target} |")

    assert sorted(rows) == sorted(wanted)
    printed_states = [row.split(" | ")[0].removeprefix("| ") for row in states_table(spec).splitlines()[2:]]
    assert sorted(printed_states) == sorted(state.name for state in published.states)
    assert diagram(spec).count("-->") == len(published.edges) + 2
