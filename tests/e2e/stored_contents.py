"""Contents of stores on disk as plain JSON values, read by the code of the current revision.

`tests/vectors/stores/make_stores.py` writes these values beside the folders that it makes; tests of later revisions read the
same folders and compare. Opening a store may change its files, so every function here is given a private copy.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from stagepost.chain.node.reading import read_chain, show_chain
from stagepost.chain.node.store import open_chain_store
from stagepost.delivery.stores.inbox_stores import SqliteInbox
from stagepost.delivery.stores.outbox import DeadLetter, OutboxRecord
from stagepost.delivery.stores.outbox_stores import SqliteOutbox
from stagepost.delivery.stores.reading import check_outbox, read_outbox
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.node.message_store import StoredPool
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.full_node.known_sets import sets_document
from stagepost.pipeline.sources.checkpoint_fit import require_fitting_checkpoint
from stagepost.pipeline.tables.delta import held_files, open_table
from stagepost.pipeline.tables.manifest import STATE
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER
from stagepost.pipeline.tables.reader import TABLES, Reader
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.receipt import Receipt
from stagepost.topics.log.file_topic import FileTopic, open_topic, topic_names
from stagepost.topics.log.positions import group_names, read_positions
from stagepost.trace.session_records import load_sets
from stagepost.validator.receipts import Statements
from stagepost.validator.session_store import open_session_store

VECTORS = Path(__file__).parents[1] / "vectors" / "stores"
DATA, EXPECTED = "data", "expected.json"

Values = dict[str, Any]


def private_copy(source: Path, target: Path) -> Path:
    """Copy a folder with the modes that nodes demand; version control keeps no such modes."""
    shutil.copytree(source, target)
    for path in (target, *target.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return target


def expected(part: Path) -> Values:
    values: Values = json.loads((part / EXPECTED).read_text(encoding="utf-8"))
    return values


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


# DMQ node


def dmq_contents(folder: Path) -> Values:
    async def read() -> Values:
        store = SqliteStore(folder / "messages.sqlite")
        try:
            state = store.load()
        finally:
            await store.close()
        return {
            "messages": [_dmq_message(entry) for entry in state.messages],
            "pools": [_pool(pool) for pool in sorted(state.pools, key=lambda one: one.pool_id)],
            "highest_ms": state.highest_ms,
            "index_max": state.index_max,
            "damage": list(state.damage),
        }

    return asyncio.run(read())


def _dmq_message(entry: MempoolEntry) -> Values:
    message = entry.message
    return {
        "index": entry.index,
        "message_id": message.message_id.hex(),
        "pool_id": message.pool_id.hex(),
        "issue_number": message.issue_number,
        "expires_at": message.expires_at,
        "received_ms": entry.received_ms,
        "source": entry.source,
        "digest": digest(message.raw),
    }


def _pool(pool: StoredPool) -> Values:
    return {
        "pool_id": pool.pool_id.hex(),
        "issue_number": pool.issue_number,
        "last_valid_ms": pool.last_valid_ms,
    }


# Reliable delivery


def outbox_contents(folder: Path) -> Values:
    content = read_outbox(folder)
    check = check_outbox(folder)
    return {
        "records": [_outbox_record(record) for record in content.records],
        "dead_letters": [_dead_letter(letter) for letter in content.dead_letters],
        "settled": [
            {
                "key_hash": done.key_hash.hex(),
                "delivery_id": done.delivery_id.hex(),
                "status": done.status.value,
                "done_ms": done.done_ms,
                "acked_by": list(done.acked_by),
                "error": done.error,
                "text": done.text,
            }
            for done in content.done_keys
        ],
        "totals": {
            "published": content.totals.published,
            "acked": content.totals.acked,
            "sent_final": content.totals.sent_final,
            "failed": dict(sorted(content.totals.failed.items())),
        },
        "next_counter": content.next_counter,
        "nonce_prefix": asyncio.run(_nonce_prefix(folder)),
        "imbalance": check.imbalance,
        "damage": list(content.damage),
    }


async def _nonce_prefix(folder: Path) -> str:
    outbox = SqliteOutbox(folder)
    try:
        return outbox.nonce_prefix.hex()
    finally:
        await outbox.close()


def _outbox_record(record: OutboxRecord) -> Values:
    return {
        "sequence": record.sequence,
        "delivery_id": record.delivery_id.hex(),
        "tier": record.tier.value,
        "topic": record.topic,
        "payload": record.payload.hex(),
        "nonce": record.nonce.hex(),
        "created_ms": record.created_ms,
        "key_hash": None if record.key_hash is None else record.key_hash.hex(),
        "critical_peers": list(record.ackers),
        "required": record.required,
        "status": record.status.value,
        "attempts": record.attempts,
        "last_used": record.last_used,
        "maybe_duplicate": record.maybe_duplicate,
    }


def _dead_letter(letter: DeadLetter) -> Values:
    return {
        "record": _outbox_record(letter.record),
        "error": letter.error,
        "text": letter.text,
        "failed_ms": letter.failed_ms,
    }


def inbox_contents(folder: Path) -> Values:
    async def read() -> Values:
        inbox = SqliteInbox(folder)
        try:
            content = inbox.load()
        finally:
            await inbox.close()
        records = sorted(content.records, key=lambda record: record.delivery_id)
        return {
            "records": [
                {
                    "delivery_id": record.delivery_id.hex(),
                    "state": record.state.value,
                    "keep_until_ms": record.keep_until_ms,
                    "verdict": record.verdict,
                    "is_claimed": record.is_claimed,
                }
                for record in records
            ],
            "damage": list(content.damage),
        }

    return asyncio.run(read())


def delivery_contents(folder: Path) -> Values:
    return {"outbox": outbox_contents(folder / "outbox"), "inbox": inbox_contents(folder / "inbox")}


# Validators and full nodes


def chain_contents(folder: Path) -> Values:
    """Return blocks, proofs and what was signed in agreement. `show_chain` verifies every proof and replays every block."""
    shown: Values = msgspec.json.decode(msgspec.json.encode(show_chain(folder)))
    del shown["folder"]
    content = read_chain(folder)

    async def signed() -> Values:
        store = open_chain_store(folder, content.genesis, keeps_all=True)
        try:
            return {
                session.hex(): [digest(frame) for frame in store.load_records(session)]
                for session in sorted(store.sessions)
            }
        finally:
            await store.close()

    blocks = [
        digest(kept.session_id + kept.candidate + kept.payload + kept.certificate) for kept in content.kept
    ]
    taken = content.taken
    snapshot = None
    if taken is not None:
        states = [[state_id.seqno, digest(state)] for state_id, state in taken.states]
        snapshot = {
            "seqno": taken.block_id.seqno,
            "master": digest(taken.master),
            "sessions": digest(taken.sessions),
            "states": states,
        }
    return {"shown": shown, "block_digests": blocks, "snapshot": snapshot, "signed": asyncio.run(signed())}


def session_contents(folder: Path) -> Values:
    """Return sessions with their blocks and bodies, statements in their order, and the receipts of each message."""

    async def read() -> Values:
        store = open_session_store(folder)
        try:
            lanes = Statements(store, lambda: 0).earlier
            statements = [
                {
                    "catchain_seqno": row.catchain_seqno,
                    "receipts": [_receipt(one) for one in CombinedReceipt.decode(row.receipts).receipts],
                }
                for row in store.statements
            ]
            sessions = {}
            for session_id, seqno in sorted(store.sessions.items()):
                content = store.load(session_id)
                bodies = sorted(content.bodies, key=lambda row: row.message_id)
                sessions[session_id.hex()] = {
                    "masterchain_seqno": seqno,
                    "blocks": [digest(frame) for frame in content.frames],
                    "bodies": [
                        [row.message_id.hex(), digest(row.body), row.full_node.hex()] for row in bodies
                    ],
                    "is_suspect": content.is_suspect,
                }
            return {
                "sessions": sessions,
                "statements": statements,
                "lanes": {key.hex(): [_receipt(one) for one in lanes[key]] for key in sorted(lanes)},
                "damage": list(store.damage),
            }
        finally:
            await store.close()

    return asyncio.run(read())


def _receipt(receipt: Receipt) -> Values:
    return {
        "message_id": receipt.message_id.hex(),
        "kind": receipt.kind.name,
        "timestamp_ms": receipt.timestamp_ms,
        "source_id": receipt.source_id.hex(),
        "digest": digest(receipt.signed_bytes + receipt.signature_text.encode()),
    }


def validator_contents(folder: Path) -> Values:
    return {"chain": chain_contents(folder / "chain"), "sessions": session_contents(folder / "sessions")}


def full_node_contents(folder: Path) -> Values:
    return {
        "chain": chain_contents(folder / "chain"),
        "topics": topics_contents(folder),
        "validator_sets": sets_document(load_sets(folder)),
        "inbox": inbox_contents(folder / "inbox"),
    }


def devnet_contents(folder: Path) -> Values:
    """Return what the full node keeps, and what each validator beside it keeps."""
    validators = {
        path.name: validator_contents(path) for path in sorted(folder.glob("validator-*")) if path.is_dir()
    }
    return {"full_node": full_node_contents(folder), "validators": validators}


# Topics


def topics_contents(data: Path) -> Values:
    return {name: topic_contents(open_topic(data, name)) for name in topic_names(data)}


def topic_contents(topic: FileTopic) -> Values:
    reader = topic.reader()
    partitions = []
    for partition in range(topic.partitions):
        start = reader.start_offset(partition)
        records = [
            {
                "offset": read.offset,
                "key": None if read.key is None else bytes(read.key).hex(),
                "value": None if read.value is None else digest(bytes(read.value)),
                "headers": dict(read.headers),
                "timestamp_ms": read.timestamp_ms,
            }
            for batch in reader.batches(partition, start)
            for read in batch
        ]
        end = reader.end_offset(partition)
        partitions.append({"start_offset": start, "end_offset": end, "records": records})
    groups = {
        group: {str(partition): offset for partition, offset in read_positions(topic.folder, group).items()}
        for group in group_names(topic.folder)
    }
    return {"partitions": partitions, "groups": groups}


# Tables


def tables_contents(folder: Path) -> Values:
    """Return every table row by row as a digest, the verdict of each message, and where the stream goes on."""
    reader = Reader(folder)
    try:
        held = {row["view_name"] for row in reader.sql("SELECT view_name FROM duckdb_views()")}
        tables = {}
        for name in TABLES:
            if name in held:
                tables[name] = _counted(reader.table(name))
        verdicts = {row["message_id"]: row["verdict"] for row in reader.table("messages")}
        manifest = reader.manifest
        state = open_table(reader.store, STATE, manifest.versions[STATE])
        states = [_counted(reader.sql(_all_of(folder / STATE / one.path))) for one in held_files(state)]
    finally:
        reader.close()
    for stream in manifest.stream_batches:
        require_fitting_checkpoint(folder / CHECKPOINT_FOLDER, manifest, stream)
    return {
        "tables": tables,
        "states": states,
        "verdicts": dict(sorted(verdicts.items())),
        "stream_batches": manifest.stream_batches,
        "rows": manifest.total.rows,
        "counted": manifest.total.counted,
        "checkpoint": _checkpoint(folder / CHECKPOINT_FOLDER),
    }


def _counted(rows: list[Values]) -> Values:
    lines = sorted(json.dumps(row, sort_keys=True, default=_plain) for row in rows)
    return {"rows": len(lines), "digest": digest("\n".join(lines).encode())}


def _all_of(path: Path) -> str:
    return f"SELECT * FROM read_parquet('{path}')"


def _plain(value: object) -> str:
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


def _checkpoint(folder: Path) -> Values:
    """Return the offsets of every batch that was planned, and the numbers of those that were finished."""
    planned = {}
    for number in _batches(folder / "offsets"):
        lines = (folder / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
        planned[str(number)] = json.loads(lines[-1])
    return {"planned": planned, "finished": _batches(folder / "commits")}


def _batches(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
