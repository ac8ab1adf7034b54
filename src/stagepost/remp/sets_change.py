"""The difference between two contents of the validator sets: the keys whose receipts are judged otherwise, and when.

The outcome of a receipt's checks depends on the sets only through its key and its time, and the session of a message
only through the keys and times of its receipts. So what a change of the sets does not name here stays as it was: a switch
of sessions, which closes one window and opens another, touches the receipts from that moment on and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stagepost.remp.session_windows import ALWAYS, Window, changed_moments, joined_windows
from stagepost.remp.validator_sets import Session, ValidatorSets


class SetsChange(NamedTuple):
    """Moments by key id, and the moments at which any session differs; `is_timeout_changed` is for messages of all times."""

    keys: Mapping[bytes, tuple[Window, ...]]
    sessions: tuple[Window, ...]
    is_timeout_changed: bool = False

    def touches(self, key_id: bytes, first_ms: int, last_ms: int) -> bool:
        """Return whether receipts of a key within [first_ms, last_ms] may be judged otherwise."""
        return any(window.meets(first_ms, last_ms) for window in self.keys.get(key_id, ()))

    def __bool__(self) -> bool:
        return bool(self.keys or self.sessions or self.is_timeout_changed)


def sets_change(before: ValidatorSets, after: ValidatorSets) -> SetsChange:
    """Return what `after` changes. Every moment that may matter is named; some that do not matter may be."""
    keys: dict[bytes, list[Window]] = {}
    sessions: list[Window] = []
    for key_id in before.full_nodes.keys() ^ after.full_nodes.keys():
        keys.setdefault(key_id, []).append(ALWAYS)
    for session_id in before.sessions.keys() | after.sessions.keys():
        for members, moments in _moments(before.sessions.get(session_id), after.sessions.get(session_id)):
            sessions += moments
            for key_id in members:
                keys.setdefault(key_id, []).extend(moments)
    return SetsChange(
        {key_id: joined_windows(moments) for key_id, moments in keys.items()},
        joined_windows(sessions),
        before.message_timeout_ms != after.message_timeout_ms,
    )


def _moments(
    before: Session | None, after: Session | None
) -> Iterable[tuple[list[bytes], tuple[Window, ...]]]:
    """Yield keys with the moments at which one session is another than before."""
    if before == after:
        return
    if before is not None and after is not None and _is_same_but_for_window(before, after):
        yield _key_ids(after), changed_moments(before.window, after.window)
        return
    for session in (before, after):
        if session is not None:
            yield _key_ids(session), (session.window,)


def _is_same_but_for_window(one: Session, other: Session) -> bool:
    return one.age_key == other.age_key and one.validators == other.validators


def _key_ids(session: Session) -> list[bytes]:
    return [validator.key_id for validator in session.validators]
