"""Table of a message's states at a full node: every pair of state and event, and what must hold along every way."""

from __future__ import annotations

from itertools import product

import pytest

from stagepost.full_node import message_record
from stagepost.full_node.message_record import (
    FINALS,
    IN_PROCESS,
    MESSAGE_LIFE,
    SUBMIT_AGAIN,
    MessageRecord,
    RecordEvent,
    RecordState,
)
from stagepost.full_node.status_topic import EarlierIds
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.statemachine.lifecycle import Lifecycle
from tests.unit.full_node.test_remp_full_node import Desk, at_a_desk, primes
from tests.unit.remp.receipts import test_full_node_killed
from tests.unit.remp.receipts.test_full_node_killed import a_walk

S, E = RecordState, RecordEvent
Life = Lifecycle[RecordState, RecordEvent]

EXPECTED: dict[RecordState, dict[RecordEvent, RecordState]] = {
    S.UNSENT: {E.SENDING_BEGINS: S.SENDING, E.FOUND_IN_BLOCK: S.IN_BLOCK, E.FINALIZED: S.FINAL},
    S.INTERRUPTED: {
        E.SENDING_BEGINS: S.SENDING,
        E.FOUND_IN_BLOCK: S.IN_BLOCK,
        E.REFUSED_BY_ACCOUNT: S.ANSWERED,
        E.FINALIZED: S.FINAL,
        E.LIFE_OVER: S.UNSENT,
    },
    S.SENDING: {
        E.SENT_REPORTED: S.SENT,
        E.FINALIZED: S.FINAL,
        E.LIFE_OVER: S.UNSENT,
        E.RESTARTED: S.INTERRUPTED,
    },
    S.SENT: {
        E.ENOUGH_ANSWERED: S.SETTLED,
        E.FINALIZED: S.FINAL,
        E.LIFE_OVER: S.UNSENT,
        E.RESTARTED: S.INTERRUPTED,
    },
    S.ANSWERED: {E.FINALIZED: S.FINAL, E.LIFE_OVER: S.UNSENT},
    S.IN_BLOCK: {E.FINALIZED: S.FINAL, E.LIFE_OVER: S.UNSENT},
    S.SETTLED: {E.FINALIZED: S.FINAL, E.LIFE_OVER: S.UNSENT},
    S.FINAL: {E.END_REPORTED: S.ENDED, E.FORGOTTEN: S.UNSENT},
    S.ENDED: {E.FORGOTTEN: S.UNSENT},
}


@pytest.mark.parametrize(("state", "event"), list(product(S, E)), ids=lambda one: one.name)
def test_every_pair_of_state_and_event_leads_where_it_must(state: RecordState, event: RecordEvent) -> None:
    record = MessageRecord()
    record.state = state
    target = EXPECTED[state].get(event)
    assert record.step(event) == (target is not None)
    assert record.state is (target or state)


REPLAYED = (E.SENDING_BEGINS, E.SENT_REPORTED, E.ENOUGH_ANSWERED, E.FINALIZED, E.END_REPORTED, E.LIFE_OVER)
"""Events that the statuses topic can tell."""


def reached(life: Life, events: tuple[RecordEvent, ...]) -> set[RecordState]:
    found = {life.initial}
    while True:
        more = {life.table[one] for one in product(found, events) if one in life.table} - found
        if not more:
            return found
        found |= more


def faults_of(life: Life) -> list[str]:
    """Return what a full node with this table would do wrong."""
    found = []
    for (source, event), target in life.table.items():
        if target is S.ENDED and (source, event) != (S.FINAL, E.END_REPORTED):
            found.append(f"{source.name}: Finalized is taken for published, or published twice")
        if target is S.SETTLED and (source, event) != (S.SENT, E.ENOUGH_ANSWERED):
            found.append(f"{source.name}: {event.name} settles what a crash may lose")
        if source in FINALS and event not in (E.FORGOTTEN, E.END_REPORTED):
            found.append(f"{source.name}: {event.name} takes back an end")
        if source in IN_PROCESS and event is E.SENDING_BEGINS:
            found.append(f"{source.name}: is sent twice")
        if event is E.RESTARTED and target is not S.INTERRUPTED:
            found.append(f"{source.name}: a restart makes more of it than the topic says")
    for state in reached(life, REPLAYED):
        if (life.next_status(state, E.RESTARTED) or state) in SUBMIT_AGAIN:
            found.append(f"{state.name}: nobody of the next life submitted it, and it is under way")
    for state in reached(life, tuple(E)) - FINALS:
        if life.next_status(state, E.FINALIZED) is not S.FINAL:
            found.append(f"{state.name}: its end is not noticed")
    if reached(life, tuple(E)) != set(S):
        found.append("there is a state that no message reaches")
    return found


def test_the_table_keeps_what_the_topic_promises() -> None:
    assert faults_of(MESSAGE_LIFE) == []


PLANTED = {
    "refused by the account is taken for answered": {(S.INTERRUPTED, E.REFUSED_BY_ACCOUNT): S.SETTLED},
    "settled before SentToValidators": {(S.SENDING, E.ENOUGH_ANSWERED): S.SETTLED},
    "sent is taken for answered after a restart": {(S.SENT, E.RESTARTED): S.SETTLED},
    "a restart forgets what is settled": {(S.SETTLED, E.RESTARTED): S.UNSENT},
    "an end is published again": {(S.ENDED, E.FINALIZED): S.FINAL},
    "an end is forgotten with the life of the message": {(S.ENDED, E.LIFE_OVER): S.UNSENT},
    "sent twice": {(S.SETTLED, E.SENDING_BEGINS): S.SENDING},
    "an end goes unnoticed": {(S.SETTLED, E.FINALIZED): S.SETTLED},
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_rows_are_found(name: str) -> None:
    assert faults_of(Lifecycle(MESSAGE_LIFE.initial, {**MESSAGE_LIFE.table, **PLANTED[name]}))


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    life = Lifecycle(MESSAGE_LIFE.initial, {**MESSAGE_LIFE.table, **PLANTED[name]})
    monkeypatch.setattr(message_record, "MESSAGE_LIFE", life)


def test_a_walk_of_crashes_finds_a_restart_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "a restart forgets what is settled")
    assert any("0 Finalized" in run_in_virtual_time(a_walk(seed)) for seed in range(10))


def test_a_story_of_a_crash_finds_what_was_sent_and_is_taken_for_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, "sent is taken for answered after a restart")
    with pytest.raises(AssertionError):
        test_full_node_killed.test_one_that_only_a_dishonest_validator_had_is_sent_to_more_when_it_comes_again(
            is_sent_told=True
        )


# Records come and go


def test_a_record_is_dropped_when_neither_state_nor_disk_nor_receipts_need_it() -> None:
    async def main() -> None:
        desk = Desk()
        refused = bytes(32)
        desk.node.reject(refused, "no", EarlierIds())
        assert desk.node.is_under_way(refused), "the refusal is not on disk"
        await desk.node._statuses.close()
        assert not desk.node.is_under_way(refused)
        assert desk.node._records == {}
        desk.node.close()

    run_in_virtual_time(main())


def test_bytes_refused_under_the_id_of_a_message_in_processing_change_nothing_of_it() -> None:
    def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes())
        desk.node.reject(message_id, "no", EarlierIds())
        record = desk.node._records[message_id]
        assert (record.state, record.unstored) == (S.SENDING, 0)
        desk.in_a_final_block(primes())
        assert record.state is S.ENDED

    at_a_desk(scenario)
