"""Search for message bodies that were announced and have not arrived: the member to ask now, and the next
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from stagepost.ground.wire.tl import ZERO_INT256

ASK_AGAIN_S = 2.0
GIVEN_UP_AFTER_S = 5.0
"""Seconds after the first question at which a search is given up, if the author and two others were asked in vain."""

ASKED_IN_VAIN_MIN = 3
"""Members that have been asked before a search is given up: the author and two others, or all there are."""

GIVEN_UP_ASKED_MAX = 4
"""Questions every `ASK_AGAIN_S` for bodies given up, for each member that announced some."""


class _Search:
    __slots__ = ("again_at", "asked", "author", "began_at", "tried")

    def __init__(self, author: int, asked: Sequence[int], now: float, again_at: float) -> None:
        self.author = author
        self.asked = list(asked)
        self.tried = set(asked)
        self.began_at = now
        self.again_at = again_at

    def ask(self, member: int) -> None:
        self.asked.append(member)
        self.tried.add(member)


class BodySearch:
    """Members that announced a message must have its body; if they do not answer, any other member may have
    it. A search that was given up goes on slowly: the body may come, and nobody was to blame.
    """

    def __init__(self, index: int, member_count: int) -> None:
        self._index = index
        self._member_count = member_count
        self._searches: dict[bytes, _Search] = {}
        self._due: list[tuple[float, bytes]] = []
        self._given_up: dict[int, dict[bytes, int]] = {}  # by author: how often each was asked for since
        self._given_up_at = 0.0

    def __len__(self) -> int:
        return len(self._searches)

    @property
    def next_wake(self) -> float | None:
        while self._due and not self._is_timely(*self._due[0]):
            heappop(self._due)
        times = [self._due[0][0]] if self._due else []
        if self._given_up:
            times.append(self._given_up_at)
        return min(times, default=None)

    def begin(self, message_id: bytes, member: int, now: float) -> int | None:
        """Start a search for the body of `message_id`, which `member` announced. Return the member to ask
        now.

        Return None if a search for this body is running already, or if the first question waits for the next
        tick.
        """
        if message_id in self._searches or message_id == ZERO_INT256:
            return None
        if any(message_id in ids for ids in self._given_up.values()):
            return None
        if member == self._index:
            # Announced by us before a crash that took the body: others have it.
            self._put(message_id, _Search(member, (), now, now))
            return None
        self._put(message_id, _Search(member, (member,), now, now + ASK_AGAIN_S))
        return member

    def end(self, message_id: bytes) -> None:
        self._searches.pop(message_id, None)
        for author, ids in list(self._given_up.items()):
            if ids.pop(message_id, None) is not None and not ids:
                del self._given_up[author]

    def again(self, now: float, announced_by: Callable[[bytes], Sequence[int]]) -> list[tuple[int, bytes]]:
        """Return the pairs (member, message id) to ask now, for every search whose last question is
        `ASK_AGAIN_S` old.

        Each search asks members that it has not asked yet, announcers first; when it has asked all, it begins
        again.
        """
        found: list[tuple[int, bytes]] = []
        due: list[bytes] = []
        while self._due and self._due[0][0] <= now:
            at, message_id = heappop(self._due)
            if self._is_timely(at, message_id):
                due.append(message_id)
        for message_id in dict.fromkeys(due):
            search = self._searches[message_id]
            given_up_at = search.began_at + GIVEN_UP_AFTER_S
            again_at = now + ASK_AGAIN_S
            self._set_due(message_id, search, given_up_at if now < given_up_at < again_at else again_at)
            others = self._others(announced_by(message_id))
            if not others:
                continue
            fresh = next((member for member in others if member not in search.asked), None)
            if fresh is None:
                search.asked.clear()
                fresh = others[0]
            search.ask(fresh)
            found.append((fresh, message_id))
        return found + self._ask_for_given_up(now, announced_by)

    def give_up(self, now: float) -> list[bytes]:
        """Return the messages whose bodies were asked for in vain for `GIVEN_UP_AFTER_S`, each once."""
        needed = min(ASKED_IN_VAIN_MIN, self._member_count - 1)
        found: list[bytes] = []
        for message_id, search in self._searches.items():  # in the order of their beginning
            if now < search.began_at + GIVEN_UP_AFTER_S:
                break
            if len(search.tried) >= needed:
                found.append(message_id)
        for message_id in found:
            search = self._searches.pop(message_id)
            if not self._given_up:
                self._given_up_at = now + ASK_AGAIN_S
            self._given_up.setdefault(search.author, {})[message_id] = 0
        return found

    def _ask_for_given_up(
        self, now: float, announced_by: Callable[[bytes], Sequence[int]]
    ) -> list[tuple[int, bytes]]:
        if not self._given_up or now < self._given_up_at:
            return []
        self._given_up_at = now + ASK_AGAIN_S
        found: list[tuple[int, bytes]] = []
        for ids in self._given_up.values():
            for message_id in list(ids)[:GIVEN_UP_ASKED_MAX]:
                asked = ids.pop(message_id)
                ids[message_id] = asked + 1  # behind all others of this author
                others = self._others(announced_by(message_id))
                if others:
                    found.append((others[asked % len(others)], message_id))
        return found

    def not_had(self, message_id: bytes, now: float, announced_by: Sequence[int]) -> int | None:
        """Note that the asked member does not have the body. Return the next member to ask at once.

        Return None if this search has asked every member, or if there is no search for `message_id`.
        """
        search = self._searches.get(message_id)
        if search is None:
            return None
        fresh = next((member for member in self._others(announced_by) if member not in search.asked), None)
        if fresh is not None:
            search.ask(fresh)
            self._set_due(message_id, search, now + ASK_AGAIN_S)
        return fresh

    def ask_soon(self, now: float) -> None:
        """Make every search ask again at the next tick: a member can be reached that could not be reached
        before.
        """
        for message_id, search in self._searches.items():
            if search.again_at > now:
                self._set_due(message_id, search, now)

    def _put(self, message_id: bytes, search: _Search) -> None:
        self._searches[message_id] = search
        self._set_due(message_id, search, search.again_at)

    def _set_due(self, message_id: bytes, search: _Search, at: float) -> None:
        search.again_at = at
        heappush(self._due, (at, message_id))

    def _is_timely(self, at: float, message_id: bytes) -> bool:
        search = self._searches.get(message_id)
        return search is not None and search.again_at == at

    def _others(self, announced_by: Sequence[int]) -> list[int]:
        return [member for member in (*announced_by, *range(self._member_count)) if member != self._index]
