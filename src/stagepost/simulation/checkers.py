"""Judges of a run. They read what was seen from outside, and share no code with the nodes.

Safety holds at every moment, whatever was broken. Liveness is checked only after all faults were repaired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from stagepost.simulation.history import History, ListenerConnection, Listing, SubmissionAnswer

EXPIRY_MARGIN_S = 2.0
"""Seconds after its expiry in which a message may still be on its way to a program."""

CATCH_UP_S = 5.0
"""Seconds after the acceptance of a message in which a listening program of the same node must receive it."""

VALIDATION_SKEW_S = 5.0
"""Seconds by which clocks may differ on the simulated networks."""

Checker = Callable[[History], Iterator[str]]


# Safety


def no_bug_was_reported(history: History) -> Iterator[str]:
    yield from history.bugs


def no_honest_peer_is_accused(history: History) -> Iterator[str]:
    """Yield accusations among honest nodes: whatever the network does to them, none looks like a rule-breaker
    to another."""
    if history.is_all_honest:
        yield from history.accusations


def only_genuine_messages(history: History) -> Iterator[str]:
    """Yield messages that were never made, or made with a flaw, and that a node accepted, listed or sent to a
    program."""
    for answer in history.answers:
        flaw = _flaw(history, answer.raw)
        if answer.accepted and flaw:
            yield f"{_at(answer.at_s)} {answer.node} accepted {_short(answer.raw)}: {flaw}"
    for cursor in history.cursors:
        for heard in cursor.heard:
            if flaw := _flaw(history, heard.raw):
                yield f"{_at(heard.at_s)} {_cursor(cursor)} was told {_short(heard.raw)}: {flaw}"
    for listing in history.listings:
        for raw in listing.raws:
            if flaw := _flaw(history, raw):
                yield f"{_at(listing.at_s)} {listing.node} lists {_short(raw)}: {flaw}"


def no_cursor_repeats(history: History) -> Iterator[str]:
    for cursor in history.cursors:
        yield from _repeats([heard.raw for heard in cursor.heard], _cursor(cursor))
    for listing in history.listings:
        yield from _repeats(listing.raws, f"{_at(listing.at_s)} the listing of {listing.node}")


def cursors_of_a_node_agree_on_the_order(history: History) -> Iterator[str]:
    """Yield programs at one node that received common messages in different orders; the order is that of
    arrival."""
    orders: dict[tuple[str, int], list[tuple[str, list[bytes]]]] = defaultdict(list)
    for cursor in history.cursors:
        orders[cursor.node, cursor.life].append((_cursor(cursor), [heard.raw for heard in cursor.heard]))
    for listing in history.listings:
        orders[listing.node, listing.life].append((f"listing of {listing.node}", list(listing.raws)))
    for told in orders.values():
        for (one, first), (other, second) in pairwise(told):
            place = {raw: index for index, raw in enumerate(second)}
            common = [raw for raw in first if raw in place]
            if any(place[later] < place[earlier] for earlier, later in pairwise(common)):
                yield f"{one} and {other} heard the same messages in different orders"


def no_cursor_skips(history: History) -> Iterator[str]:
    """Yield messages that a node accepted and a program listening at that time never received."""
    accepted: dict[tuple[str, int], list[SubmissionAnswer]] = defaultdict(list)
    for answer in history.answers:
        if answer.accepted:
            accepted[answer.node, answer.life].append(answer)
    for cursor in history.cursors:
        until_s = history.ended_at_s if cursor.closed_at_s is None else cursor.closed_at_s
        told = {heard.raw for heard in cursor.heard}
        for answer in accepted[cursor.node, cursor.life]:
            made = history.made[answer.raw]
            lived_s = made.expires_at - answer.node_unix_s
            due_s = max(answer.at_s, cursor.opened_at_s) + CATCH_UP_S
            is_visible = cursor.sees_old_layout or not made.is_old_layout
            # The message must still have been unexpired when the program had to receive it.
            was_alive = answer.at_s + lived_s > due_s + EXPIRY_MARGIN_S
            if is_visible and was_alive and due_s < until_s and answer.raw not in told:
                yield (
                    f"{_cursor(cursor)} was never told {_short(answer.raw)}, "
                    f"accepted there {_at(answer.at_s)}"
                )


def open_cursors_have_heard_what_is_listed(history: History) -> Iterator[str]:
    """Yield messages that a node lists to a new program and that a listening program has not received."""
    final = {listing.node: listing for listing in history.listings if listing.why == "final"}
    for cursor in history.cursors:
        listing = final.get(cursor.node)
        if listing is None or cursor.closed_at_s is not None or listing.life != cursor.life:
            continue
        if listing.at_s < cursor.opened_at_s + CATCH_UP_S or history.ended_at_s < listing.at_s + CATCH_UP_S:
            continue
        told = {heard.raw for heard in cursor.heard}
        for raw in listing.raws:
            made = history.made.get(raw)
            if made is None or (made.is_old_layout and not cursor.sees_old_layout):
                continue
            if raw not in told and made.expires_at > listing.node_unix_s + CATCH_UP_S + EXPIRY_MARGIN_S:
                yield f"{_cursor(cursor)} was never told {_short(raw)}, which {cursor.node} lists"


def what_was_accepted_survives_a_restart(history: History) -> Iterator[str]:
    """Yield accepted messages that a restarted node, cut off from its peers, no longer has."""
    for listing in history.listings:
        if listing.why != "restart":
            continue
        there = set(listing.raws)
        for answer in history.answers:
            if answer.node != listing.node or not answer.accepted or answer.at_s > listing.at_s:
                continue
            if _is_alive(history, answer.raw, listing) and answer.raw not in there:
                yield (
                    f"{_at(listing.at_s)} {listing.node} restarted without {_short(answer.raw)}, "
                    f"which it had accepted {_at(answer.at_s)}"
                )


def what_was_told_survives_a_restart(history: History) -> Iterator[str]:
    """Yield messages that a program received and its restarted node no longer has: a crash must not let a
    replay pass."""
    for listing in history.listings:
        if listing.why != "restart":
            continue
        there = set(listing.raws)
        for cursor in history.cursors:
            if cursor.node != listing.node or cursor.life >= listing.life:
                continue
            for heard in cursor.heard:
                if _is_alive(history, heard.raw, listing) and heard.raw not in there:
                    yield (
                        f"{_at(listing.at_s)} {listing.node} restarted without {_short(heard.raw)}, "
                        f"which it had told {_at(heard.at_s)}"
                    )


def no_replay_is_accepted(history: History) -> Iterator[str]:
    """Yield messages that a node accepted twice; a restart or an expiry in between does not matter."""
    first: dict[tuple[str, bytes], SubmissionAnswer] = {}
    for answer in history.answers:
        if not answer.accepted:
            continue
        earlier = first.setdefault((answer.node, answer.raw), answer)
        if earlier is not answer:
            yield (
                f"{_at(answer.at_s)} {answer.node} accepted {_short(answer.raw)} again, "
                f"first {_at(earlier.at_s)}"
            )


def nothing_expired_is_shown(history: History) -> Iterator[str]:
    for answer in history.answers:
        made = history.made[answer.raw]
        if answer.accepted and answer.node_unix_s > made.expires_at + VALIDATION_SKEW_S + EXPIRY_MARGIN_S:
            yield f"{_at(answer.at_s)} {answer.node} accepted {_short(answer.raw)}, which had expired"
    for cursor in history.cursors:
        for heard in cursor.heard:
            if _is_stale(history, heard.raw, heard.node_unix_s):
                yield f"{_at(heard.at_s)} {_cursor(cursor)} was told {_short(heard.raw)}, which had expired"
    for listing in history.listings:
        for raw in listing.raws:
            if _is_stale(history, raw, listing.node_unix_s):
                yield f"{_at(listing.at_s)} {listing.node} lists {_short(raw)}, which had expired"


# Liveness


def every_accepted_message_is_everywhere(history: History) -> Iterator[str]:
    """Yield unexpired messages that some node accepted and another lacks once faults have stopped."""
    for listing in _final(history):
        there = set(listing.raws)
        for answer in history.answers:
            if answer.accepted and _is_alive(history, answer.raw, listing) and answer.raw not in there:
                yield (
                    f"{listing.node} never got {_short(answer.raw)}, "
                    f"accepted by {answer.node} {_at(answer.at_s)}"
                )


def mempools_agree(history: History) -> Iterator[str]:
    """Yield differences between the nodes' messages, apart from those that are just expiring."""
    final = _final(history)
    for one, other in pairwise(final):
        for raw in sorted(set(one.raws) ^ set(other.raws)):
            if _is_alive(history, raw, one) and _is_alive(history, raw, other):
                has, lacks = (one.node, other.node) if raw in one.raws else (other.node, one.node)
                yield f"{has} holds {_short(raw)}, {lacks} does not"


def honest_messages_were_accepted(history: History) -> Iterator[str]:
    """Yield good messages that a node refused for good although clocks differ within the limit and faults are
    elsewhere."""
    refused = {
        "MSG_BAD_ID", "KES_PERIOD", "KES_SIGNATURE", "OPCERT_SIGNATURE", "OPCERT_COUNTER", "POOL_UNKNOWN",
        "POOL_NOT_ELIGIBLE", "MSG_EXPIRY_TOO_FAR", "MSG_BODY_SIZE",
    }  # fmt: skip
    for answer in history.answers:
        if answer.accepted is False and not history.made[answer.raw].flaw:
            code = answer.reason.partition(":")[0]
            if code in refused:
                yield f"{_at(answer.at_s)} {answer.node} refused an honest message: {answer.reason}"


SAFETY: tuple[Checker, ...] = (
    no_bug_was_reported,
    no_honest_peer_is_accused,
    only_genuine_messages,
    no_cursor_repeats,
    cursors_of_a_node_agree_on_the_order,
    no_cursor_skips,
    open_cursors_have_heard_what_is_listed,
    what_was_accepted_survives_a_restart,
    what_was_told_survives_a_restart,
    no_replay_is_accepted,
    nothing_expired_is_shown,
    honest_messages_were_accepted,
)
LIVENESS: tuple[Checker, ...] = (every_accepted_message_is_everywhere, mempools_agree)


def judge(history: History, checkers: tuple[Checker, ...]) -> list[str]:
    """Return every violation, with the name of the rule that it breaks."""
    return [f"{check.__name__}: {violation}" for check in checkers for violation in check(history)]


# Details


def _final(history: History) -> list[Listing]:
    return [listing for listing in history.listings if listing.why == "final"]


def _flaw(history: History, raw: bytes) -> str:
    made = history.made.get(raw)
    return "nobody ever made it" if made is None else made.flaw


def _is_alive(history: History, raw: bytes, listing: Listing) -> bool:
    """Return whether the message was unexpired by every clock that could matter when the listing was taken."""
    made = history.made.get(raw)
    if made is None:
        return False
    margin_s = history.clock_skew_max_s * 2 + EXPIRY_MARGIN_S + VALIDATION_SKEW_S
    return made.expires_at > listing.node_unix_s + margin_s


def _is_stale(history: History, raw: bytes, node_unix_s: float) -> bool:
    made = history.made.get(raw)
    # Nodes hold a message as long as a node with a slow clock might still accept it as new.
    return made is not None and node_unix_s > made.expires_at + VALIDATION_SKEW_S + EXPIRY_MARGIN_S


def _repeats(raws: list[bytes] | tuple[bytes, ...], who: str) -> Iterator[str]:
    seen: set[bytes] = set()
    for raw in raws:
        if raw in seen:
            yield f"{who}: {_short(raw)} twice"
        seen.add(raw)


def _cursor(cursor: ListenerConnection) -> str:
    return f"program {cursor.number} at {cursor.node} (life {cursor.life})"


def _at(at_s: float) -> str:
    return f"at {at_s:.3f} s"


def _short(raw: bytes) -> str:
    # The id stands right after the two heads of a message, in either layout within the first 40 bytes.
    return f"message {raw[3:9].hex()}"
