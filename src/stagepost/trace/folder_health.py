"""Facts about the health of a data folder: its nodes, its outbox, its topic of statuses, its validator sets, its index of ids.

    judge(folder_facts(data), time.time())

A source that nobody set up is left out. One that was named, or that other files of the folder need, and that is missing or
damaged is unknown with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE
from stagepost.delivery.stores.reading import read_outbox
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.files.running_nodes import (
    FULL_NODE,
    FULL_NODE_FILE,
    STATUS_FILES,
    StatusFacts,
    find_node,
    find_remp_node,
)
from stagepost.ground.telemetry.health import (
    EVICTIONS_LOOKED_BACK_S,
    HealthFacts,
    NodePage,
    NodeReading,
    OutboxReading,
    Unread,
)
from stagepost.ground.telemetry.status import DmqNodePage, FullNodePage, ValidatorPage
from stagepost.ground.telemetry.status_reading import decoded, fetch, node_status
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, open_topic
from stagepost.trace.index import INDEX_FILE, MessageIndex, has_topics, topic_folders
from stagepost.trace.indexed_records import INDEXED_TOPICS
from stagepost.trace.session_records import SetsFolder, load_sets

NODES_MAX = 32
QUEUE_SIZE = 1_000
"""Messages that an outbox holds at most, unless its publisher or the settings say otherwise."""
OUTBOX_FOLDERS = ("outbox", "stagepost-outbox")
"""Folders below the data folder where an outbox may lie, if none was named."""
EVICTED = "ErrQueueEvicted"

T = TypeVar("T")


def attempted(look: Callable[[], T]) -> T | Unread:
    """Return what `look` returns, or why it could not look."""
    try:
        return look()
    except StagepostError as error:
        return Unread(error.text.replace("\n", ";"), error.advice)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = (error.strerror or str(error)).lower()
        return Unread(f"{where}{reason}", "check the disk and who may read the file")


def folder_facts(
    data: Path,
    now_s: float,
    *,
    outbox: Path | None = None,
    queue_size: int = QUEUE_SIZE,
    with_topic: bool = True,
    tables: Callable[[], str | Unread | None] = lambda: None,
) -> HealthFacts:
    """Look at everything that lies in `data`. `tables` looks at the tables, for callers that know how."""
    if not data.is_dir():
        missing = Unread(f"there is no folder {data}", "give the data folder of a node with --data")
        return HealthFacts(outbox=outbox_reading(outbox, queue_size, now_s), sources={"data": missing})
    nodes = tuple(node_readings(data))
    sources: dict[str, str | Unread] = missing_node(data, nodes)
    if with_topic:
        sources |= topic_readings(data) | index_reading(data, outbox)
    found = tables()
    if found is not None:
        sources["tables"] = found
    folder = attempted(lambda: outbox or find_outbox(data))
    reading = folder if isinstance(folder, Unread) else outbox_reading(folder, queue_size, now_s)
    return HealthFacts(nodes, reading, sources)


# Nodes


def node_readings(data: Path, *, with_dmq: bool = True) -> list[NodeReading]:
    """Return the full node or validator of the folder, then its DMQ nodes, each as it tells or why it does not."""
    readings: list[NodeReading] = []
    note = attempted(partial(find_remp_node, data))
    if isinstance(note, Unread):
        readings.append(NodeReading(data.name, note))
    elif note is not None:
        readings.append(NodeReading(note.kind.replace(" ", "-"), attempted(partial(remp_page, note))))
    elif (data / FULL_NODE_FILE).exists():
        silent = Unread(
            f"a full node runs in {data} and serves no status: it runs with --metrics-port off",
            "restart it with --metrics-port 0 or a port of your choice",
        )
        readings.append(NodeReading("full-node", silent))
    for folder in dmq_folders(data) if with_dmq else ():
        readings.append(NodeReading(folder.name, attempted(partial(dmq_page, folder))))
    return readings


def missing_node(data: Path, nodes: Collection[NodeReading]) -> dict[str, str | Unread]:
    """Return the source that is missing where no node runs: then nobody knows what the network can do."""
    if nodes:
        return {}
    advice = "start one with `stagepost node`, or give its folder with --data"
    return {"node": Unread(f"no node runs in {data}", advice)}


def dmq_folders(data: Path) -> list[Path]:
    """Return the folders at and below `data` in which a DMQ node has left its note."""
    paths = (data / NODE_FILE, *sorted(data.glob(f"*/{NODE_FILE}")))
    return [path.parent for path in paths if path.exists()][:NODES_MAX]


def remp_folders(data: Path) -> list[Path]:
    """Return the folders at and below `data` in which a full node or validator has left its note."""
    notes = [path for name in STATUS_FILES.values() for path in (*data.glob(name), *data.glob(f"*/{name}"))]
    return sorted({path.parent for path in notes}, key=lambda folder: (folder != data, folder.name))[
        :NODES_MAX
    ]


def remp_page(note: StatusFacts) -> FullNodePage | ValidatorPage:
    content = fetch(note, "/status")
    return decoded(content, FullNodePage) if note.kind == FULL_NODE else decoded(content, ValidatorPage)


def dmq_page(folder: Path) -> DmqNodePage:
    return node_status(find_node(folder))


def shown_name(data: Path, folder: Path, page: NodePage | Unread) -> str:
    """Return the name of a node in `folder`, which is `data` or lies below it, as all faces show it."""
    if folder == data and isinstance(page, FullNodePage | ValidatorPage):
        return page.kind.replace(" ", "-")
    return folder.name


def nodes_below(data: Path, *, with_dmq: bool = True) -> list[tuple[Path, NodePage | Unread]]:
    """Return every node at and below `data`: full nodes and validators first, then DMQ nodes."""
    found: list[tuple[Path, NodePage | Unread]] = []
    for folder in remp_folders(data):
        note = attempted(partial(find_remp_node, folder))
        if isinstance(note, StatusFacts):
            found.append((folder, attempted(partial(remp_page, note))))
        elif note is not None:
            found.append((folder, note))
    for folder in dmq_folders(data) if with_dmq else ():
        found.append((folder, attempted(partial(dmq_page, folder))))
    return found


# Topic and sets


def topic_readings(data: Path) -> dict[str, str | Unread]:
    """Look at the topic of statuses and at the validator sets that its receipts need. Both are missing, and unknown, where a
    full node has left a note and they are not there."""
    has_topic = (data / TOPICS_FOLDER / STATUSES_TOPIC / TOPIC_FILE).exists()
    has_node = (data / FULL_NODE_FILE).exists()
    has_sets = SetsFolder(data / SETS_FILE).is_there
    if not (has_topic or has_node or has_sets):
        return {}
    if has_topic:
        topic = attempted(lambda: _topic_words(data))
    else:
        topic = Unread(f"{data} holds no topic of statuses", "a full node writes it; check the folder")
    if has_sets:
        sets = attempted(lambda: _sets_words(data))
    else:
        advice = "copy it beside the topics; `stagepost sets export` writes it"
        sets = Unread(f"there is no {SETS_FILE} in {data}: receipts cannot be checked", advice)
    return {"topic": topic, "sets": sets}


def require_topics(data: Path, outbox: Path | None = None) -> None:
    """Raise `StorageError` where records of messages are missing: that none is found there means nothing."""
    if not data.is_dir():
        raise StorageError(
            f"there is no data folder {data}", advice="give the folder of a node or devnet with --data"
        )
    for reading in topic_readings(data).values():
        if isinstance(reading, Unread):
            raise StorageError(reading.text, advice=reading.advice)
    if not has_topics(data, outbox):
        raise StorageError(
            f"{data} holds no topic of messages",
            advice="give the data folder of a node or devnet with --data",
        )


def _topic_words(data: Path) -> str:
    reader = open_topic(data, STATUSES_TOPIC).reader()
    count = 0
    for partition in range(reader.partitions):
        start, end = reader.start_offset(partition), reader.end_offset(partition)
        count += end - start
        if end > start:
            next(iter(reader.batches(partition, end - 1, end)), None)
    return f"{count} statuses; the newest is readable" if count else "no status yet"


def _sets_words(path: Path) -> str:
    return sessions_words(load_sets(path))


def sessions_words(sets: ValidatorSets) -> str:
    return f"{len(sets.sessions)} session{'' if len(sets.sessions) == 1 else 's'} of validators known"


# Index


def index_reading(data: Path, outbox: Path | None = None) -> dict[str, str | Unread]:
    """Look at the index of ids as a look-up does: bring it up to date, and make a missing or damaged one anew from the topics.
    Nothing is said of a folder without topics."""
    return {"index": attempted(lambda: _index_words(data, outbox))} if has_index(data, outbox) else {}


def has_index(data: Path, outbox: Path | None = None) -> bool:
    """Return whether ids of messages can be looked up in the folder: it has an index, or topics to make one from."""
    places = [data / INDEX_FILE]
    folders = attempted(lambda: topic_folders(data, outbox))
    if not isinstance(folders, Unread):
        places += [
            folder / TOPICS_FOLDER / topic / TOPIC_FILE for folder in folders for topic in INDEXED_TOPICS
        ]
    return any(attempted(partial(_is_there, place)) is not False for place in places)


def _index_words(data: Path, outbox: Path | None) -> str:
    with MessageIndex(data, outbox) as index:
        index.catch_up()
        if index.made_anew is not None:
            return f"every id can be looked up; made anew from the topics, because {index.made_anew}"
        return "every id can be looked up"


# Outbox


def find_outbox(data: Path) -> Path | None:
    """Return the first outbox below `data`; `StorageError` if nobody may look."""
    for name in OUTBOX_FOLDERS:
        folder = data / name
        # A file that is gone while its log is left is a damaged outbox, and not the absence of one.
        if any(_is_there(folder / file) for file in (OUTBOX_FILE, f"{OUTBOX_FILE}-wal")):
            return folder
    return None


def outbox_reading(folder: Path | None, queue_size: int, now_s: float) -> OutboxReading | Unread | None:
    if folder is None:
        return None
    content = attempted(lambda: read_outbox(folder))
    return content if isinstance(content, Unread) else outbox_facts(content, queue_size, now_s)


def outbox_facts(content: OutboxContent, queue_size: int, now_s: float) -> OutboxReading:
    since_ms = (now_s - EVICTIONS_LOOKED_BACK_S) * 1_000
    waiting = len(content.records)
    return OutboxReading(
        waiting=waiting,
        capacity=content.queue_size or queue_size,
        oldest_ms=min((record.created_ms for record in content.records), default=None),
        evicted=sum(one.error == EVICTED and one.failed_ms >= since_ms for one in content.dead_letters),
        dead_letters=len(content.dead_letters),
        damage=content.damage[0] if content.damage else None,
        balances=content.has_totals and content.totals.live == waiting,
        set_aside=content.set_aside,
    )


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
