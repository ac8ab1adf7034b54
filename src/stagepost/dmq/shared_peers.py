"""Which peers each asker is told: the same answer for a while, so that asking often reveals nothing more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from stagepost.dmq.peer_sharing import ANSWER_STABLE_FOR_S, PEERS_SENT_MAX, PeerAddress

ASKERS_REMEMBERED_MAX = 1_024


class SharedPeers:
    """One for all askers of a node. If there are too many, the oldest answer is forgotten."""

    def __init__(self, choose: Callable[[str, int], Sequence[PeerAddress]]) -> None:
        """`choose` is called with (asker, how many at most) for each new answer."""
        self._choose = choose
        self._answers: OrderedDict[str, tuple[float, tuple[PeerAddress, ...]]] = OrderedDict()

    def answer(self, asker: str, amount: int, now: float) -> tuple[PeerAddress, ...]:
        """At most `amount`, and never more than ten. Who asks for fewer sees the first of the same answer."""
        found = self._answers.get(asker)
        if found is None or now >= found[0]:
            peers = tuple(dict.fromkeys(self._choose(asker, PEERS_SENT_MAX)))[:PEERS_SENT_MAX]
            found = (now + ANSWER_STABLE_FOR_S, peers)
            self._answers[asker] = found
            self._answers.move_to_end(asker)
            if len(self._answers) > ASKERS_REMEMBERED_MAX:
                self._answers.popitem(last=False)
        return found[1][:amount]
