"""Content of a data folder: the topic of statuses, the tables, running nodes, an outbox. Each may be absent or broken,
alone: whoever asks gets what is there, or which of the two it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.delivery.stores.reading import read_outbox
from stagepost.delivery.stores.sqlite_outbox import OUTBOX_FILE
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.files.running_nodes import find_node
from stagepost.ground.telemetry.status import DmqNodePage, node_status
from stagepost.web.access.settings import WebSettings
from stagepost.web.live import Pulse, Ring, Tail
from stagepost.web.message_book import MessageBook
from stagepost.web.outcomes import Nothing, Unreadable, attempt
from stagepost.web.tables import Tables

NODES_MAX = 32
FRESH_S = 1.0
"""However many visitors ask: a node and an outbox are looked at once in so long."""
OUTBOX_FOLDERS = ("outbox", "stagepost-outbox")
"""Where an outbox may lie below the data folder, if none was named."""

T = TypeVar("T")


class NodeSeen(NamedTuple):
    """A node that runs, or ran, on this machine: its folder, and what it tells."""

    folder: Path
    status: DmqNodePage | Unreadable


class Remembered(Generic[T]):
    """The answer to a question that is not asked more often than once in `fresh_s`.

    While somebody asks, all others get the answer before: a node that hangs must not hold up every page.
    """

    def __init__(self, ask: Callable[[], T], fresh_s: float = FRESH_S) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._lock = threading.Lock()
        self._answered: tuple[float, T] | None = None

    def __call__(self) -> T:
        before = self._answered
        if before is not None and time.monotonic() - before[0] < self._fresh_s:
            return before[1]
        if not self._lock.acquire(blocking=before is None):
            assert before is not None, "who has no answer waits for the lock"
            return before[1]
        try:
            # Whoever waited may find that it has just been asked.
            if self._answered is before:
                answer = self._ask()
                self._answered = time.monotonic(), answer
            assert self._answered is not None, "it was asked just now, here or by another"
            return self._answered[1]
        finally:
            self._lock.release()

    def forget(self) -> None:
        """The next one is asked anew."""
        with self._lock:
            self._answered = None


class Sources:
    def __init__(self, settings: WebSettings, now_ms: Callable[[], int] | None = None) -> None:
        self.settings = settings
        self.now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self.book = MessageBook(settings.messages_kept)
        self.ring = Ring()
        self.tail = Tail(settings.data, self.book, self.ring, self.now_ms)
        self.pulse = Pulse(self.ring)
        self.tables = Tables(settings.tables_folder, settings.query_timeout_s)
        self.nodes = Remembered(self._nodes)
        self.outbox = Remembered(self._outbox)

    def _nodes(self) -> list[NodeSeen] | Nothing | Unreadable:
        data = self.settings.data
        found = attempt(
            lambda: [
                path.parent
                for path in (data / NODE_FILE, *sorted(data.glob(f"*/{NODE_FILE}")))
                if path.exists()
            ]
        )
        if isinstance(found, Unreadable):
            return found
        if not found:
            return Nothing("no node runs here", f"start one: stagepost node dmq --data {data}")
        return [NodeSeen(folder, attempt(lambda at=folder: _ask_node(at))) for folder in found[:NODES_MAX]]  # type: ignore[misc]

    @property
    def outbox_folder(self) -> Path | None:
        """The folder that was named, else the first below the data folder that is there; `StorageError` if nobody may look."""
        if self.settings.outbox is not None:
            return self.settings.outbox
        for name in OUTBOX_FOLDERS:
            folder = self.settings.data / name
            # A file that is gone while its log is left is a damaged outbox, and not the absence of one.
            if any(_is_there(folder / file) for file in (OUTBOX_FILE, f"{OUTBOX_FILE}-wal")):
                return folder
        return None

    def _outbox(self) -> OutboxContent | Nothing | Unreadable:
        return attempt(self._read_outbox)

    def _read_outbox(self) -> OutboxContent | Nothing:
        """An outbox that was named must be there: without it, nobody knows what waits."""
        folder = self.outbox_folder
        return Nothing("no outbox here", "name it with --outbox") if folder is None else read_outbox(folder)

    def readiness(self) -> dict[str, dict[str, Any]]:
        """Each part: ready, or the reason why not. What is not there at all is no fault."""
        topic = self.tail.state
        nodes = self.nodes()
        outbox = self.outbox()
        if isinstance(outbox, OutboxContent) and outbox.damage:
            outbox = Unreadable(outbox.damage[0], "see `stagepost queue check`")
        parts: dict[str, Nothing | Unreadable | object] = {
            "topic": topic,
            "tables": self.tables.state(),
            "outbox": outbox,
            "node": nodes,
        }
        if isinstance(nodes, list):
            silent = [seen for seen in nodes if isinstance(seen.status, Unreadable)]
            if silent:
                parts["node"] = silent[0].status
        return {name: _readiness(state) for name, state in parts.items()}


def _is_there(path: Path) -> bool:
    """Return whether something has this name; `StorageError` if that cannot be told."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(
            f"cannot look for {path}: {(error.strerror or str(error)).lower()}",
            advice="check who may read the folder",
        ) from error
    return True


def _ask_node(folder: Path) -> DmqNodePage:
    return node_status(find_node(folder))


def _readiness(state: object) -> dict[str, Any]:
    if isinstance(state, Unreadable):
        return {"ready": False, "reason": state.text, "code": state.code}
    if isinstance(state, Nothing):
        return {"ready": True, "note": state.text}
    return {"ready": True}


def require_state(state: Nothing | Unreadable | None) -> None:
    """For whoever answers with data: what could not be read is an error there."""
    if isinstance(state, Unreadable):
        raise UnreadableSource(state)


class UnreadableSource(StagepostError):
    def __init__(self, state: Unreadable) -> None:
        from stagepost.errors import ErrorCode

        super().__init__(f"could not read: {state.text}", code=ErrorCode(state.code), advice=state.advice)
