"""Search for message bodies that were announced and have not arrived: the member to ask now, and the next
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stagepost.ground.wire.tl import ZERO_INT256

ASK_AGAIN_S = 2.0


class _Search:
    __slots__ = ("again_at", "asked")

    def __init__(self, asked: int, again_at: float) -> None:
        self.asked = [asked]
        self.again_at = again_at


class BodySearch:
    """Members that announced a message must have its body; if they do not answer, any other member may have
    it.
    """

    def __init__(self, index: int, member_count: int) -> None:
        self._index = index
        self._member_count = member_count
        self._searches: dict[bytes, _Search] = {}

    def __len__(self) -> int:
        return len(self._searches)

    @property
    def next_wake(self) -> float | None:
        return min((search.again_at for search in self._searches.values()), default=None)

    def begin(self, message_id: bytes, member: int, now: float) -> int | None:
        """Start a search for the body of `message_id`, which `member` announced. Return the member to ask
        now.

        Return None if a search for this body is running already, or if the first question waits for the next
        tick.
        """
        if message_id in self._searches or message_id == ZERO_INT256:
            return None
        if member == self._index:
            # Announced by us before a crash that took the body: others have it.
            self._searches[message_id] = _Search(member, now)
            return None
        self._searches[message_id] = _Search(member, now + ASK_AGAIN_S)
        return member

    def end(self, message_id: bytes) -> None:
        self._searches.pop(message_id, None)

    def again(self, now: float, announced_by: Callable[[bytes], Sequence[int]]) -> list[tuple[int, bytes]]:
        """Return the pairs (member, message id) to ask now, for every search whose last question is
        `ASK_AGAIN_S` old.

        Each search asks members that it has not asked yet, announcers first; when it has asked all, it begins
        again.
        """
        found: list[tuple[int, bytes]] = []
        for message_id, search in self._searches.items():
            if now < search.again_at:
                continue
            search.again_at = now + ASK_AGAIN_S
            others = self._others(announced_by(message_id))
            if not others:
                continue
            fresh = next((member for member in others if member not in search.asked), None)
            if fresh is None:
                search.asked.clear()
                fresh = others[0]
            search.asked.append(fresh)
            found.append((fresh, message_id))
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
            search.asked.append(fresh)
            search.again_at = now + ASK_AGAIN_S
        return fresh

    def ask_soon(self, now: float) -> None:
        """Make every search ask again at the next tick: a member can be reached that could not be reached
        before.
        """
        for search in self._searches.values():
            search.again_at = min(search.again_at, now)

    def _others(self, announced_by: Sequence[int]) -> list[int]:
        return [member for member in (*announced_by, *range(self._member_count)) if member != self._index]
