"""A lifecycle follows one thing through its statuses by one table."""

from __future__ import annotations

from enum import Enum

import pytest

from stagepost.errors import LocalProtocolError
from stagepost.ground.statemachine.lifecycle import Lifecycle


class Parcel(Enum):
    PACKED = 1
    SENT = 2
    LOST = 3
    HANDED_OVER = 4


class Event(Enum):
    COLLECTED = 1
    VANISHED = 2
    SIGNED_FOR = 3


PARCEL = Lifecycle(
    initial=Parcel.PACKED,
    table={
        (Parcel.PACKED, Event.COLLECTED): Parcel.SENT,
        (Parcel.SENT, Event.VANISHED): Parcel.LOST,
        (Parcel.SENT, Event.SIGNED_FOR): Parcel.HANDED_OVER,
    },
)


def test_every_pair_leads_where_the_table_says_or_nowhere() -> None:
    for status in Parcel:
        for event in Event:
            assert PARCEL.next_status(status, event) is PARCEL.table.get((status, event))


def test_an_impossible_event_is_our_own_fault_and_names_both() -> None:
    with pytest.raises(LocalProtocolError, match="SIGNED_FOR cannot happen in PACKED") as caught:
        PARCEL.after(Parcel.PACKED, Event.SIGNED_FOR)

    assert caught.value.state == "PACKED"


def test_a_possible_event_gives_the_next_status() -> None:
    assert PARCEL.after(Parcel.PACKED, Event.COLLECTED) is Parcel.SENT


def test_a_status_without_a_row_is_final() -> None:
    assert [status for status in Parcel if PARCEL.is_final(status)] == [Parcel.LOST, Parcel.HANDED_OVER]


def test_statuses_are_listed_once_beginning_with_the_first() -> None:
    assert PARCEL.statuses == (Parcel.PACKED, Parcel.SENT, Parcel.LOST, Parcel.HANDED_OVER)
