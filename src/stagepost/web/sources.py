"""Content of a data folder: the topic of statuses, the tables, running nodes, an outbox. Each may be absent or broken,
alone: whoever asks gets what is there, or which of the two it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.delivery.stores.reading import read_outbox
from stagepost.errors import StagepostError
from stagepost.ground.telemetry.health import (
    Health,
    HealthFacts,
    HealthReport,
    NodeReading,
    OutboxReading,
    Unread,
    judge,
)
from stagepost.ground.telemetry.status import DmqNodePage, FullNodePage, ValidatorPage
from stagepost.trace.folder_health import (
    dmq_folders,
    dmq_page,
    find_outbox,
    has_index,
    missing_node,
    node_readings,
    nodes_below,
    outbox_facts,
    sessions_words,
    shown_name,
    topic_readings,
)
from stagepost.trace.index import MessageIndex
from stagepost.web.access.settings import WebSettings
from stagepost.web.live import Pulse, Ring, Tail
from stagepost.web.message_book import MessageBook
from stagepost.web.outcomes import Nothing, Unreadable, attempt
from stagepost.web.tables import TableQueries

FRESH_S = 1.0
"""However many visitors ask: a node and an outbox are looked at once in so long."""

T = TypeVar("T")


class NodeSeen(NamedTuple):
    """A node that runs, or ran, on this machine: its folder, and what it tells."""

    folder: Path
    status: DmqNodePage | Unreadable


class MembersSeen(NamedTuple):
    """A full node or validator that runs, or ran, on this machine: its folder, and what it tells."""

    folder: Path
    name: str
    status: FullNodePage | ValidatorPage | Unreadable


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
        self.tables = TableQueries(settings.tables_folder, settings.query_timeout_s)
        self.nodes = Remembered(self._nodes)
        self.outbox = Remembered(self._outbox)
        self.members = Remembered(self._members)
        self.health = Remembered(self._health)

    def _nodes(self) -> list[NodeSeen] | Nothing | Unreadable:
        data = self.settings.data
        found = attempt(lambda: dmq_folders(data))
        if isinstance(found, Unreadable):
            return found
        if not found:
            return Nothing("no node runs here", "`stagepost node dmq --help` says how to start one")
        return [NodeSeen(folder, attempt(partial(dmq_page, folder))) for folder in found]

    def _members(self) -> list[MembersSeen]:
        """Return the full nodes and validators at and below the data folder."""
        return [
            MembersSeen(
                folder,
                shown_name(self.settings.data, folder, page),
                Unreadable(page.text, page.advice) if isinstance(page, Unread) else page,
            )
            for folder, page in nodes_below(self.settings.data, with_dmq=False)
            if not isinstance(page, DmqNodePage)
        ]

    @property
    def outbox_folder(self) -> Path | None:
        """The folder that was named, else the first below the data folder that is there; `StorageError` if nobody may look."""
        return self.settings.outbox or find_outbox(self.settings.data)

    @property
    def validator_names(self) -> Mapping[bytes, str]:
        """Return the names of validators by their key ids, as far as the tail has read them."""
        sets = self.book.sets
        return {} if sets is None else sets.names

    def knows(self, text: str) -> bool:
        """Return whether the index of messages has an id or key that `text` names."""
        with MessageIndex(self.settings.data, self.outbox_folder) as index:
            index.catch_up()
            return bool(index.find(text))

    def _outbox(self) -> OutboxContent | Nothing | Unreadable:
        return attempt(self._read_outbox)

    def _read_outbox(self) -> OutboxContent | Nothing:
        """An outbox that was named must be there: without it, nobody knows what waits."""
        folder = self.outbox_folder
        return Nothing("no outbox here", "name it with --outbox") if folder is None else read_outbox(folder)

    def _health(self) -> HealthReport:
        """Answer the question of `stagepost check` for this folder, from what the pages show."""
        data, now_s = self.settings.data, self.now_ms() / 1_000
        if not data.is_dir():
            missing = Unread(f"there is no folder {data}", "give the data folder of a node with --data")
            return judge(HealthFacts(sources={"data": missing}), now_s)
        nodes = node_readings(data, with_dmq=False)
        seen = self.nodes()
        if isinstance(seen, Unreadable):
            nodes.append(NodeReading(data.name, _unread(seen)))
        elif isinstance(seen, list):
            nodes += [NodeReading(one.folder.name, _unread_or(one.status)) for one in seen]
        outbox = self.outbox()
        reading: OutboxReading | Unread | None = None
        if isinstance(outbox, Unreadable):
            reading = _unread(outbox)
        elif isinstance(outbox, OutboxContent):
            reading = outbox_facts(outbox, self.settings.queue_size, now_s)
        sources = {**missing_node(data, nodes), **self._files()}
        return judge(HealthFacts(tuple(nodes), reading, sources), now_s)

    def _files(self) -> dict[str, str | Unread]:
        found: dict[str, str | Unread] = {}
        topic, tables = self.tail.state, self.tables.state()
        if isinstance(topic, Unreadable):
            found["topic"] = _unread(topic)
        elif topic is None:
            found["topic"] = "readable"
            sets = self.book.sets
            if sets is not None:
                found["sets"] = sessions_words(sets)
        else:
            found |= topic_readings(self.settings.data)
        if self.tail.index_state is not None:
            found["index"] = _unread(self.tail.index_state)
        elif has_index(self.settings.data):
            found["index"] = "every id can be looked up"
        if isinstance(tables, Unreadable):
            found["tables"] = _unread(tables)
        elif not isinstance(tables, Nothing):
            found["tables"] = "readable"
        return found

    def readiness(self) -> dict[str, dict[str, Any]]:
        """Return each source with the reason if it could not be read, and each finding that is not well. A source that is not
        there at all is no fault."""
        topic = self.tail.state
        nodes = self.nodes()
        outbox = self.outbox()
        if isinstance(outbox, OutboxContent) and outbox.damage:
            outbox = Unreadable(outbox.damage[0], "see `stagepost queue check`")
        parts: dict[str, Nothing | Unreadable | object] = {
            "topic": topic,
            "index": self.tail.index_state,
            "tables": self.tables.state(),
            "outbox": outbox,
            "node": nodes,
        }
        if isinstance(nodes, list):
            silent = [seen for seen in nodes if isinstance(seen.status, Unreadable)]
            if silent:
                parts["node"] = silent[0].status
        told = {name: _readiness(state) for name, state in parts.items()}
        for finding in self.health().findings:
            if finding.health is not Health.GOOD and told.get(finding.part, {"ready": True})["ready"]:
                told[finding.part] = {"ready": False, "health": finding.health.value, "reason": finding.text}
        return told


def _unread(state: Unreadable) -> Unread:
    return Unread(state.text, state.advice)


def _unread_or(status: DmqNodePage | Unreadable) -> DmqNodePage | Unread:
    return _unread(status) if isinstance(status, Unreadable) else status


def _readiness(state: object) -> dict[str, Any]:
    if isinstance(state, Unreadable):
        return {"ready": False, "reason": state.text, "code": state.code}
    if isinstance(state, Nothing):
        return {"ready": True, "note": state.text}
    return {"ready": True}


class UnreadableSource(StagepostError):
    status = HTTPStatus.SERVICE_UNAVAILABLE
    """Whatever is wrong with the source: it is not the asker's fault."""

    def __init__(self, state: Unreadable) -> None:
        from stagepost.errors import ErrorCode

        super().__init__(f"could not read: {state.text}", code=ErrorCode(state.code), advice=state.advice)
