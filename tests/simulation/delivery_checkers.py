"""What must hold in every run of reliable delivery. Nothing of the implementation is used here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.simulation.delivery_history import DeliveryHistory, Event

NEXT = {
    "": {"Pending", "Queued"},  # Queued: found again after a restart
    "Pending": {"Queued", "Sent", "Failed"},
    "Queued": {"Sent", "Failed"},
    "Sent": {"Acked", "Failed"},
    "Acked": set(),
    "Failed": {"Pending"},  # the same key, published again
}


def _by_message_and_life(events: list[Event]) -> dict[tuple[str, int], list[str]]:
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    for event in events:
        paths[event.message_id, event.life].append(event.status)
    return paths


def statuses_follow_the_graph(history: DeliveryHistory) -> Iterator[str]:
    for events in (history.events, history.callbacks):
        for (message_id, life), path in _by_message_and_life(events).items():
            for before, after in zip(["", *path], path, strict=False):
                if after not in NEXT[before]:
                    yield f"{message_id[:8]} in life {life}: {' → '.join(path)}"
            if path[0] == "Queued" and life == 1:
                yield f"{message_id[:8]} was queued without having been published"


def whatever_was_returned_comes_to_a_reported_end(history: DeliveryHistory) -> Iterator[str]:
    """D5: no silent loss, no message without a final state, and nothing after it."""
    last = {event.message_id: event for event in history.events}
    wants_ack = {call.message_id for call in history.calls if call.tier in ("acked", "tracked")}
    for call in history.calls:
        if call.message_id is None:
            continue
        event = last.get(call.message_id)
        if event is None:
            yield f"{call.message_id[:8]} was returned and never reported"
        elif event.status in ("Pending", "Queued") or (
            event.status == "Sent" and call.message_id in wants_ack
        ):
            yield f"{call.message_id[:8]} ({call.tier}) is still {event.status} at the end"


def every_waiting_call_ends_once(history: DeliveryHistory) -> Iterator[str]:
    """D5: an acked call gets one answer, unless its program was killed; and it says the same as the events."""
    ended = Counter(call.number for call in history.calls)
    for number, count in ended.items():
        if count != 1 or number in history.killed:
            yield f"call {number} ended {count} times"
    reported = {(e.message_id, e.status) for e in history.events}
    for call in history.calls:
        if call.status and call.message_id and (call.message_id, call.status) not in reported:
            yield f"call {call.number} ended as {call.status}, which was never reported"
        if call.tier == "acked" and not call.error and call.status != "Acked":
            yield f"call {call.number} returned with {call.status}"


def acked_means_processed_by_enough_critical_peers(history: DeliveryHistory) -> Iterator[str]:
    began: dict[tuple[str, str], float] = {}
    for run in history.runs:
        began.setdefault((run.receiver, run.message_id), run.at_s)
    for call in history.calls:
        if call.status != "Acked":
            continue
        assert call.message_id is not None
        if len(set(call.acked_by)) < history.required or not set(call.acked_by) <= set(history.critical):
            yield f"{call.message_id[:8]} is acked by {call.acked_by}"
        for peer in call.acked_by:
            if began.get((peer, call.message_id), float("inf")) > call.ended_s:
                yield f"{call.message_id[:8]} is acked by {peer}, who had not processed it"


def nothing_is_dropped_silently(history: DeliveryHistory) -> Iterator[str]:
    """D6: offered = good ends + refused + reported failures, and counters say so at every instant."""
    for at_s, life, stats in history.stats:
        failed = stats["failed"]
        assert isinstance(failed, dict)
        ended = int(str(stats["acked"])) + int(str(stats["sent_final"])) + sum(failed.values())
        if stats["published"] != ended + int(str(stats["live"])):
            yield f"at {at_s:.2f} s in life {life} the counters do not balance: {stats}"
    evicted = [event for event in history.events if event.error == "ErrQueueEvicted"]
    if any(event.status != "Failed" for event in evicted):
        yield "an eviction was reported as something else than a failure"
    sent = {(event.message_id, event.life) for event in history.events if event.status == "Sent"}
    for event in evicted:
        if (event.message_id, event.life) in sent:
            yield f"{event.message_id[:8]} was evicted while in flight"
    # Each life reports what it has evicted; counters begin anew with each.
    lives = {life for _, life, _ in history.stats}
    for life in lives:
        counted = [stats for _, seen, stats in history.stats if seen == life][-1]["evicted"]
        reported = sum(event.life == life for event in evicted)
        if counted != reported:
            yield f"life {life} counted {counted} evictions and reported {reported}"


def effects_happen_once(history: DeliveryHistory) -> Iterator[str]:
    """D7: across crashes with a claim; without one, for as long as the receiver lives."""
    effects = Counter((run.receiver, run.message_id) for run in history.runs if run.effect)
    for (receiver, message_id), count in effects.items():
        if count > 1:
            yield f"{receiver} did the effect of {message_id[:8]} {count} times"
    runs = Counter((run.receiver, run.life, run.message_id) for run in history.runs if run.effect)
    for (receiver, life, message_id), count in runs.items():
        if count > 1:
            yield f"{receiver} ran {message_id[:8]} {count} times in life {life}"


def only_what_was_published_arrives_and_unchanged(history: DeliveryHistory) -> Iterator[str]:
    published = {call.message_id: call.payload for call in history.calls if call.message_id is not None}
    payloads = {run.message_id: run.payload for run in history.runs}
    for message_id, payload in payloads.items():
        if message_id in published and published[message_id] != payload:
            yield f"{message_id[:8]} arrived with other content"


def order_is_kept(history: DeliveryHistory) -> Iterator[str]:
    """D8: of one publisher, on one path, among messages that succeeded at their first attempt."""
    number_of = {
        call.message_id: call.number
        for call in history.calls
        if call.message_id is not None and call.tier == "queued"
    }
    arrived: dict[str, list[int]] = defaultdict(list)
    for run in history.runs:
        if run.attempt == 0 and run.message_id in number_of:
            arrived[run.receiver].append(number_of[run.message_id])
    for receiver, numbers in arrived.items():
        for before, after in pairwise(numbers):
            if after < before:
                yield f"{receiver} got {after} after {before}"


def nothing_broke(history: DeliveryHistory) -> Iterator[str]:
    yield from history.bugs


Checker = Callable[[DeliveryHistory], Iterator[str]]

ALWAYS: tuple[Checker, ...] = (
    statuses_follow_the_graph,
    whatever_was_returned_comes_to_a_reported_end,
    every_waiting_call_ends_once,
    acked_means_processed_by_enough_critical_peers,
    nothing_is_dropped_silently,
    effects_happen_once,
    only_what_was_published_arrives_and_unchanged,
    nothing_broke,
)


def everything_arrives_where_nothing_is_lost(history: DeliveryHistory) -> Iterator[str]:
    """D5 and D7 without gaps: on a network that only delays, every message with a good end was processed by all."""
    last = {event.message_id: event.status for event in history.events}
    for receiver in history.critical:
        got = {run.message_id for run in history.runs if run.receiver == receiver}
        for message_id, status in last.items():
            if status in ("Sent", "Acked") and message_id not in got:
                yield f"{receiver} never got {message_id[:8]}, which ended as {status}"
