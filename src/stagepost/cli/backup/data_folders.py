"""Data folders by kind: the files that a backup takes from each, in the order in which it takes them.

Stores come before topics. A chain, an inbox or an outbox that is older than the topics beside it is what a crash leaves, and every
node goes on from that; one that is newer would name records that the topic does not hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stagepost import __version__
from stagepost.chain.node import block_archive
from stagepost.chain.node import store as chain_store
from stagepost.chain.node.own_memory import MEMORY_FILE
from stagepost.delivery.stores import inbox_rules, outbox_rules
from stagepost.delivery.stores.inbox_stores import INBOX_FILE
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE
from stagepost.dmq.keys import key_files
from stagepost.dmq.node import stored_messages
from stagepost.dmq.node.cardano_source import STAKE_FILE
from stagepost.errors import ConfigError
from stagepost.full_node.kafka import NOTE_FILE as KAFKA_FILE
from stagepost.full_node.local_server import SOCKET_FILE
from stagepost.full_node.running import CHAIN_FOLDER, CHALLENGES_FILE, COMPLAINTS_FILE, INBOX_FOLDER
from stagepost.ground.files.audit import AUDIT_FILE, EARLIER_FILE, record_action, user_name
from stagepost.ground.files.data_folder import (
    LOCK_FILE,
    MESSAGES_FILE,
    NODE_FILE,
    OWNER_FILE,
    RESTORED_FILE,
    RestoredNote,
)
from stagepost.ground.files.running_nodes import FULL_NODE_FILE, STATUS_FILES
from stagepost.ground.storage.backup import (
    BackupManifest,
    BackupWriter,
    DeclaredStore,
    check_backup,
    read_manifest,
    refused,
    restore_files,
)
from stagepost.ground.storage.layout import Beginning, StoreRefused, check_layout
from stagepost.ground.storage.table_file import COUNTS, Notes, layout_of
from stagepost.ground.storage.tables import AnyTable
from stagepost.network.approvals import APPROVED_FOLDER
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.copying import TOPIC_PATHS, copy_topics
from stagepost.trace.folder_health import OUTBOX_FOLDERS
from stagepost.trace.index import INDEX_FILE
from stagepost.trace.kept_proofs import GENESIS_FILE
from stagepost.validator import session_store
from stagepost.validator.running import SESSIONS_FOLDER

KEYS_FOLDER = "keys"
"""Folder of a backup, and of the restored data folder, with the keys that the operator asked to take along."""


def _store(
    path: str,
    tables: Sequence[AnyTable],
    what: str,
    notes: Notes = COUNTS,
    begins: Beginning | None = None,
) -> DeclaredStore:
    return DeclaredStore(path, (*tables, notes.table), layout_of(tables, notes, begins), what)


@dataclass(frozen=True)
class DataFolderKind:
    """Kind of data folder. It is recognised by `known_by`, one of its stores; `files` are patterns of further paths."""

    name: str
    known_by: str
    stores: tuple[DeclaredStore, ...]
    files: tuple[str, ...] = ()

    def store(self, path: str) -> DeclaredStore | None:
        return next((one for one in self.stores if one.path == path), None)

    def declares(self, path: str) -> bool:
        if path.startswith(f"{KEYS_FOLDER}/"):
            return path.count("/") == 1
        patterns = (*self.files, TOPIC_PATHS)
        return self.store(path) is not None or any(re.fullmatch(one, path) for one in patterns)


_AUDIT = (re.escape(AUDIT_FILE), re.escape(EARLIER_FILE))
_OUTBOXES = tuple(
    _store(f"{folder}/{OUTBOX_FILE}", outbox_rules.TABLES, "outbox") for folder in OUTBOX_FOLDERS
)
_INBOX = _store(f"{INBOX_FOLDER}/{INBOX_FILE}", inbox_rules.TABLES, "inbox")
_BEGINS = chain_store.NETWORK_BEGINS
_CHAIN = _store(
    f"{CHAIN_FOLDER}/{chain_store.STORE_FILE}", chain_store.TABLES, "store of the chain", begins=_BEGINS
)
_ARCHIVE = DeclaredStore(
    f"{CHAIN_FOLDER}/{block_archive.ARCHIVE_FILE}",
    (block_archive.ROWS,),
    block_archive.LAYOUT,
    block_archive.WHAT,
)
"""Copied after the store of the chain: blocks are in the archive before that store lets go of them."""
_SESSIONS = _store(
    f"{SESSIONS_FOLDER}/{session_store.STORE_FILE}", session_store.TABLES, "store of sessions", begins=_BEGINS
)
_MESSAGES = _store(MESSAGES_FILE, stored_messages.TABLES, "message store", stored_messages.NOTES)

DMQ_NODE = DataFolderKind(
    "DMQ node", MESSAGES_FILE, (_MESSAGES, *_OUTBOXES, _INBOX), (re.escape(STAKE_FILE), *_AUDIT)
)
OUTBOX = DataFolderKind("outbox", OUTBOX_FILE, (_store(OUTBOX_FILE, outbox_rules.TABLES, "outbox"),), _AUDIT)
INBOX = DataFolderKind("inbox", INBOX_FILE, (_store(INBOX_FILE, inbox_rules.TABLES, "inbox"),), _AUDIT)
VALIDATOR = DataFolderKind(
    "validator",
    _SESSIONS.path,
    (_CHAIN, _ARCHIVE, _SESSIONS),
    (rf"{APPROVED_FOLDER}/[0-9a-f]+\.json", re.escape(OWNER_FILE), *_AUDIT),
)
FULL_NODE = DataFolderKind(
    "full node",
    _CHAIN.path,
    (_CHAIN, _ARCHIVE, _INBOX, *_OUTBOXES),
    (
        *(re.escape(one) for one in (SETS_FILE, GENESIS_FILE, COMPLAINTS_FILE, CHALLENGES_FILE, KAFKA_FILE)),
        *_AUDIT,
    ),
)
KINDS = (DMQ_NODE, OUTBOX, INBOX, VALIDATOR, FULL_NODE)
"""A validator has a chain, too: the first kind whose store is there counts."""

_MADE_ANEW = re.compile(
    "|".join(
        [
            *(
                rf"(.*/)?{re.escape(name)}"
                for name in (
                    *(LOCK_FILE, NODE_FILE, FULL_NODE_FILE, *STATUS_FILES.values(), SOCKET_FILE),
                    *(INDEX_FILE, RESTORED_FILE, MEMORY_FILE),
                )
            ),
            r".*(\.lock|\.socket|\.index|-wal|-shm|-journal)",
            r"(.*/)?\.[^/]*\.new",
        ]
    )
)
"""Paths of locks, sockets, notes of a running process and files that are made from others."""


def kind_of(data: Path) -> DataFolderKind:
    """Return the kind of a data folder; `ConfigError` if it is none that a backup can be made of."""
    if not data.is_dir():
        raise ConfigError(f"there is no folder {data}", advice="give the data folder of a node with --data")
    for kind in KINDS:
        if (data / kind.known_by).is_file():
            return kind
    wanted = ", ".join(f"{kind.known_by} ({kind.name})" for kind in KINDS)
    raise ConfigError(
        f"{data} is not the data folder of a node or an outbox",
        advice=f"give a folder with one of these files: {wanted}",
    )


def back_up(data: Path, out: Path, now_ms: int, keys: tuple[Path, ...] = ()) -> BackupManifest:
    """Make a backup of the data folder in `out`, also while its process runs; `keys` are key files to take along."""
    kind = kind_of(data)
    if out.resolve().is_relative_to(data.resolve()):
        raise ConfigError(
            f"{out} lies inside of {data}", advice="choose a folder elsewhere, best on another disk"
        )
    names = [path.name for path in keys]
    if len(set(names)) != len(names):
        raise ConfigError("two key files have one name", advice="take them along in two backups")
    for key in keys:
        key_files.load(key)  # a file that is no key, or that others can read, is refused
    backup = BackupWriter(out)
    try:
        record_action(data, f"backup to {out}", through="cli", who=user_name())
        for store in kind.stores:
            if (data / store.path).is_file():
                backup.add_store(data / store.path, store)
        found = _files_of(data)
        for path in found:
            if any(re.fullmatch(pattern, path) for pattern in kind.files):
                backup.add_file(data / path, path)
        topics = copy_topics(data, backup)
        for key in keys:
            backup.add_file(key, f"{KEYS_FOLDER}/{key.name}")
        left_out = [path for path in found if not kind.declares(path) and not _MADE_ANEW.fullmatch(path)]
        return backup.finish(
            release=__version__,
            kind=kind.name,
            made_at_ms=now_ms,
            topics=topics,
            keys=[f"{KEYS_FOLDER}/{name}" for name in names],
            left_out=left_out,
        )
    finally:
        backup.close()


def _files_of(data: Path) -> list[str]:
    found = []
    for folder, _, names in os.walk(data):
        inner = Path(folder).relative_to(data)
        found += [(inner / name).as_posix() for name in names]
    return sorted(found)


def checked_backup(backup: Path) -> BackupManifest:
    """Return the manifest of a backup after every file of it was read; `BackupRefused` names what is wrong."""
    manifest = read_manifest(backup)
    kind = next((one for one in KINDS if one.name == manifest.kind), None)
    if kind is None:
        raise refused(backup, f"it is of a {manifest.kind!r}, which this release does not know")
    check_backup(backup, manifest, kind.declares)
    if kind.known_by not in {file.path for file in manifest.files}:
        raise refused(backup, f"it lacks {kind.known_by}, which every {kind.name} has")
    for file in manifest.files:
        store = kind.store(file.path)
        if store is None:
            continue
        try:
            _, fault = check_layout(backup / file.path, store.layout, store.what)
        except StoreRefused as error:
            raise refused(backup, f"{file.path}: {error.found}", error.advice or "") from error
        if fault is not None:
            raise refused(backup, f"{file.path} is damaged: {fault}")
    return manifest


def restore(
    backup: Path, data: Path, now_ms: int, *, accepts_replays: bool = False
) -> tuple[BackupManifest, RestoredNote]:
    """Check the whole backup, then put it into a data folder that is missing or empty."""
    manifest = checked_backup(backup)
    if data.resolve().is_relative_to(backup.resolve()):
        raise ConfigError(f"{data} lies inside of the backup", advice="choose another folder with --data")
    note = restore_files(backup, manifest, data, now_ms, accepts_replays=accepts_replays)
    record_action(data, f"restored from {backup}", through="cli", who=user_name())
    return manifest, note
