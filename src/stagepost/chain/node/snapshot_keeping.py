"""When a snapshot is taken, and when it becomes what a restart begins from.

It is taken when sessions rotate, and given to the store when no message from before it can matter any more: whoever
restarts from it must still learn of every block that could hold a message which is alive.
"""

from __future__ import annotations

from collections import deque

from stagepost.chain.history import History, Snapshot
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.snapshots import snapshot_of
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE


class SnapshotKeeping:
    def __init__(self, history: History) -> None:
        self._history = history
        self._taken: deque[tuple[int, Snapshot]] = deque()

    def session_rotated(self, ledger: EmbeddedLedger) -> None:
        """One for each catchain of the masterchain; a younger one waits until it is old enough."""
        catchain = ledger.master.catchain_seqno
        if self._taken and self._taken[-1][0] == catchain:
            return
        self._taken.append((catchain, snapshot_of(ledger)))
        due: Snapshot | None = None
        while self._taken and self._taken[0][0] + CATCHAINS_OF_LIFE < catchain:
            due = self._taken.popleft()[1]
        if due is not None:
            self._history.keep_snapshot(due)
