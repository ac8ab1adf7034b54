"""The data dictionary: every table that people read, its columns, their types, units and meaning. Needs no Spark.

The dictionary is the single source of the comments in the tables' own schemas, of `docs/tables.md`, and of what
`stagepost pipeline sql` shows of a table. Types are written as Spark and Delta write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

COMMENT = "comment"
"""Name under which Delta and Spark keep the documentation of a column."""

TEXT, LONG, INT, BYTES, FLAG, INTS, DATE, DOUBLE = (
    "string",
    "long",
    "integer",
    "binary",
    "boolean",
    "array<integer>",
    "date",
    "double",
)


class ColumnEntry(NamedTuple):
    """A column: its name, its type, and its meaning with the unit."""

    name: str
    type: str
    about: str


class TableEntry(NamedTuple):
    """A table: its name, the meaning of one row, and its columns in their order, `day` left out."""

    name: str
    about: str
    columns: tuple[ColumnEntry, ...]


DAY_ENTRY = ColumnEntry(
    "day",
    DATE,
    "Day of arrival in UTC; the table is divided by it, so a condition on it reads only those days.",
)

_message = ColumnEntry("message_id", TEXT, "Hash of the external message, 64 hexadecimal digits.")
_source = ColumnEntry("source_id", TEXT, "Key id of the signer, 64 hexadecimal digits.")
_signed_at = ColumnEntry("timestamp_ms", LONG, "Time that the signer states, Unix ms.")
_level = ColumnEntry(
    "level", INT, "Level of the receipt's kind: 0 full node, 1 queue, 2 collator, 3 shard, 4 masterchain."
)
_error = ColumnEntry("error", TEXT, "Text that the signer gave for a refusal, as it came; null if none.")
_pool = ColumnEntry("pool_id", TEXT, "Stake pool, 56 hexadecimal digits.")
_epoch = ColumnEntry("epoch", LONG, "Epoch in which the entity is signed, and whose set stake decides.")
_variant = ColumnEntry("variant", INT, "Number of the entity's kind, as it stands in the body.")
_beacon = ColumnEntry(
    "beacon", TEXT, "Numbers of the entity with slashes: epoch, then immutable file or block, then offset."
)
_entity = ColumnEntry("entity", TEXT, "Name of the variant since Mithril 2630, else the former one.")
_entity_before = ColumnEntry(
    "entity_before",
    TEXT,
    "Name of the variant until Mithril 2617, where it is another and the beacon fits it.",
)
_repeats = ColumnEntry("repeats", LONG, "Messages with a body that the same pool had sent already.")
_other_epoch = ColumnEntry(
    "other_epoch",
    LONG,
    "Signatures that arrived outside of the epoch, and count for nothing else; null if its time is unknown.",
)

TABLES = (
    TableEntry(
        "messages",
        "One row for each external message with at least one receipt that passes all checks.",
        (
            _message,
            ColumnEntry(
                "verdict",
                TEXT,
                "Present result: finalized, executed_as, accepted, included, queued, sent, rejected_by_fullnode, rejected, likely_rejected or expired.",
            ),
            ColumnEntry(
                "sent_ms", LONG, "Least time of SentToValidators, Unix ms; null if no receipt says so."
            ),
            ColumnEntry(
                "queued_ms", LONG, "Least time of PutIntoQueue, Unix ms; null if no receipt says so."
            ),
            ColumnEntry(
                "included_ms", LONG, "Least time of IncludedIntoBlock, Unix ms; null if no receipt says so."
            ),
            ColumnEntry(
                "accepted_ms",
                LONG,
                "Least time of IncludedIntoAcceptedBlock, Unix ms; null if no receipt says so.",
            ),
            ColumnEntry(
                "finalized_ms", LONG, "Least time of Finalized, Unix ms; null if no receipt says so."
            ),
            ColumnEntry(
                "rejected_ms", LONG, "Least time of any rejection, Unix ms; null if no receipt says so."
            ),
            ColumnEntry("timeout_ms", LONG, "Least time of Timeout, Unix ms; null if no receipt says so."),
            ColumnEntry(
                "session_id",
                TEXT,
                "Deciding session, 64 hexadecimal digits; null while no validator has spoken.",
            ),
            ColumnEntry("validators", INT, "Members of the deciding session; null without one."),
            ColumnEntry(
                "queued_at",
                INTS,
                "Members, by their place from 0, whose last word leaves the message in their queue.",
            ),
            ColumnEntry(
                "rejected_by", INTS, "Members, by their place from 0, whose last word is a rejection."
            ),
            ColumnEntry(
                "silent",
                INTS,
                "Members, by their place from 0, of whom no receipt counts for the deciding session.",
            ),
            ColumnEntry("delivery_id", TEXT, "The same message in reliable delivery; null if unknown."),
            ColumnEntry("dmq_id", TEXT, "The same message in DMQ; null if unknown."),
            ColumnEntry("receipts", LONG, "Distinct receipts that pass all checks."),
            ColumnEntry("receipts_bad", LONG, "Distinct quarantined records that name the message."),
            ColumnEntry(
                "proof",
                TEXT,
                "End that a checked proof shows: executed, never or executed_as; none without a proof, and then everything else is a claim.",
            ),
            ColumnEntry(
                "proof_block", LONG, "Number of the final master block of the proof; null without a proof."
            ),
            ColumnEntry("executed_as", TEXT, "Message that was executed in its place; null if none was."),
        ),
    ),
    TableEntry(
        "receipts",
        "One row for each distinct receipt that passes all checks; of several session hints the least stands.",
        (
            _message,
            ColumnEntry("kind", TEXT, "Kind of the receipt, for example PutIntoQueue or Finalized."),
            _level,
            ColumnEntry(
                "status",
                TEXT,
                "Status of the kind: Accepted, Ignored, Rejected, SentToValidators, New, Duplicate or Timeout.",
            ),
            _signed_at,
            _source,
            ColumnEntry("role", TEXT, "Role of the signer by the validator sets: validator, or full node."),
            ColumnEntry("session_hint", TEXT, "Session that the record's header names; null if none."),
            _error,
            ColumnEntry("block_id", TEXT, "Root hash of the named block; null if the receipt names none."),
            ColumnEntry(
                "block_seqno", LONG, "Sequence number of the named block; null if the receipt names none."
            ),
            ColumnEntry(
                "shard",
                TEXT,
                "Shard of the named block, 16 hexadecimal digits; null if the receipt names none.",
            ),
            ColumnEntry("wc", INT, "Workchain of the named block; null if the receipt names none."),
            ColumnEntry(
                "mc_block_id",
                TEXT,
                "Root hash of the named masterchain block; null if the receipt names none.",
            ),
            ColumnEntry(
                "mc_block_seqno",
                LONG,
                "Sequence number of the named masterchain block; null if the receipt names none.",
            ),
            ColumnEntry(
                "signed_hash", TEXT, "Hash of the signed bytes, hexadecimal: it tells receipts apart."
            ),
        ),
    ),
    TableEntry(
        "quarantine",
        "One row for each record that fails a check, repeats included.",
        (
            ColumnEntry("reason", TEXT, "Code of the first check that fails, for example RECEIPT_SIGNATURE."),
            ColumnEntry("topic", TEXT, "Topic of the record."),
            ColumnEntry("partition", INT, "Partition of the record; null for a dump that does not say."),
            ColumnEntry("offset", LONG, "Offset of the record, or its line in a dump, from 0."),
            ColumnEntry("arrived_ms", LONG, "Arrival of the record, Unix ms; null if unknown."),
            ColumnEntry(
                "message_id",
                TEXT,
                "Message that the record's key or value names; null if neither can be read.",
            ),
            ColumnEntry("raw", BYTES, "Value of the record as it came."),
        ),
    ),
    TableEntry(
        "proofs",
        "One row for each distinct proof of a message's end that could be checked, also for one that does not hold.",
        (
            _message,
            ColumnEntry("proof", TEXT, "End that the proof shows or claims: executed, never or executed_as."),
            ColumnEntry(
                "proof_block", LONG, "Number of the final master block; null for a proof that does not hold."
            ),
            ColumnEntry("executed_as", TEXT, "Message that was executed in its place; null if none was."),
            ColumnEntry("refusal", TEXT, "Rule that the proof breaks; null for a proof that holds."),
            ColumnEntry(
                "time_ms",
                LONG,
                "Time of the inclusion, or of the state in which the message is absent, Unix ms; null for a proof that does not hold.",
            ),
            ColumnEntry("master_block", TEXT, "Root hash of the master block that the proof names."),
            ColumnEntry(
                "signers",
                INT,
                "Validators whose signatures make the block final; null for a proof that does not hold.",
            ),
            ColumnEntry(
                "validators", INT, "Members of the set that signs; null for a proof that does not hold."
            ),
            ColumnEntry("signed_hash", TEXT, "Hash of the proof's own part, as `records` has it."),
        ),
    ),
    TableEntry(
        "validators",
        "One row for each day and member of each session that was open on it or decided one of its messages, also for one that sent nothing.",
        (
            ColumnEntry("session_id", TEXT, "Session, 64 hexadecimal digits."),
            ColumnEntry(
                "validator", INT, "Place of the member in the session, from 0; people call place 0 V1."
            ),
            _source,
            ColumnEntry("messages", LONG, "Messages that the session decided and the member spoke about."),
            ColumnEntry("queued_first", LONG, "Messages that the member queued before all others."),
            ColumnEntry(
                "median_queue_ms",
                LONG,
                "Median time from SentToValidators to the member's queue, ms; a value that occurred.",
            ),
            ColumnEntry("p95_queue_ms", LONG, "95th percentile of the same time, ms; a value that occurred."),
            ColumnEntry(
                "silent", LONG, "Messages that the session decided and the member said nothing about."
            ),
            ColumnEntry("contradictions", LONG, "Steps of the member that no validator may take."),
            ColumnEntry(
                "bad_signatures", LONG, "Records in the member's name whose signature does not verify."
            ),
            ColumnEntry("open_new", LONG, "Messages that the member's last word leaves in its queue."),
        ),
    ),
    TableEntry(
        "stage_latency",
        "One row for each stage, shard and minute of sending: the time since SentToValidators.",
        (
            ColumnEntry("stage", TEXT, "Stage: queued, included, accepted, finalized, rejected or timeout."),
            ColumnEntry("wc", INT, "Workchain of the deciding session; null without one."),
            ColumnEntry(
                "shard", TEXT, "Shard of the deciding session, 16 hexadecimal digits; null without one."
            ),
            ColumnEntry(
                "bucket_ms", LONG, "Beginning of the minute in which the messages were sent, Unix ms."
            ),
            ColumnEntry("count", LONG, "Messages that reached the stage."),
            ColumnEntry("p50_ms", LONG, "Median time since SentToValidators, ms; a value that occurred."),
            ColumnEntry("p95_ms", LONG, "95th percentile of the same time, ms; a value that occurred."),
            ColumnEntry("p99_ms", LONG, "99th percentile of the same time, ms; a value that occurred."),
        ),
    ),
    TableEntry(
        "rejections",
        "One row for each receipt that rejects a message.",
        (_message, _source, _level, _error, _signed_at),
    ),
    TableEntry(
        "replays",
        "One row for each message and place in which something came more than once.",
        (
            _message,
            ColumnEntry(
                "where", TEXT, "statuses: copies of receipts; blocks: finalized in more than one block."
            ),
            ColumnEntry("count", LONG, "Copies, or blocks, beyond the first."),
            ColumnEntry(
                "first_ms", LONG, "Least arrival of a copied receipt, or least time of Finalized, Unix ms."
            ),
            ColumnEntry(
                "last_ms",
                LONG,
                "Greatest arrival of a copied receipt, or greatest time of Finalized, Unix ms.",
            ),
        ),
    ),
    TableEntry(
        "complaints",
        "One row for each fault of a signer that its own receipts prove.",
        (
            ColumnEntry(
                "complaint_id",
                TEXT,
                "Hash of kind, message, signer and session: the same fault has the same id.",
            ),
            ColumnEntry(
                "kind",
                TEXT,
                "contradiction: a step that no validator may take; unanswered: the message expired in its queue.",
            ),
            _message,
            _source,
            ColumnEntry("session_id", TEXT, "Session of the signer, 64 hexadecimal digits."),
            ColumnEntry(
                "evidence",
                TEXT,
                "JSON list of all receipts that the signer signed about the message, as they came.",
            ),
        ),
    ),
    TableEntry(
        "alerts",
        "One row for each condition that somebody should look at.",
        (
            ColumnEntry("alert_id", TEXT, "Hash of kind and subject: the same condition has the same id."),
            ColumnEntry(
                "kind",
                TEXT,
                "expired, no_quorum, silent_validator, contradicting_validator, bad_signatures, replay, unproved_finality or end_contradicted.",
            ),
            ColumnEntry("subject", TEXT, "Message id, or session id and validator as in …:V3."),
            ColumnEntry(
                "since_ms", LONG, "Time since which the condition holds, Unix ms; null if it has none."
            ),
            ColumnEntry("detail", TEXT, "Figures of the condition, in words."),
        ),
    ),
    TableEntry(
        "dmq_messages",
        "One row for each DMQ message, by id and content.",
        (
            ColumnEntry(
                "dmq_id", TEXT, "Id of the DMQ message; for a value that is not a message, the record's key."
            ),
            ColumnEntry(
                "pool_id", TEXT, "Stake pool that signed, hexadecimal; null if the value is not a message."
            ),
            ColumnEntry(
                "kes_period", LONG, "KES period of the signature; null if the value is not a message."
            ),
            ColumnEntry(
                "expires_at",
                LONG,
                "Expiry that the message states, Unix seconds; null if the value is not a message.",
            ),
            ColumnEntry("received_ms", LONG, "First arrival, Unix ms."),
            ColumnEntry("body_bytes", LONG, "Length of the body, bytes."),
            ColumnEntry("valid", FLAG, "Whether id, certificate, KES period and signature hold."),
        ),
    ),
    TableEntry(
        "delivery_events",
        "One row for each distinct event of reliable delivery.",
        (
            ColumnEntry("delivery_id", TEXT, "Message of reliable delivery, hexadecimal."),
            ColumnEntry("status", TEXT, "Status that the message reached."),
            ColumnEntry("tier", TEXT, "Tier of delivery that was asked for."),
            ColumnEntry("topic", TEXT, "Topic of reliable delivery."),
            ColumnEntry("timestamp_ms", LONG, "Time of the event, Unix ms."),
            ColumnEntry("attempt", LONG, "Number of the attempt."),
            ColumnEntry("dmq_id", TEXT, "DMQ message that carried the attempt; null if none."),
            ColumnEntry("error", TEXT, "Reason of a failure; null if none."),
            ColumnEntry("acked_by", TEXT, "JSON text of who acknowledged; null if nobody."),
        ),
    ),
    TableEntry(
        "pool_stakes",
        "One row for each pool in each distribution of set stake that the topic holds, as it was recorded.",
        (
            ColumnEntry("network_magic", LONG, "Magic number of the Cardano network."),
            _epoch,
            ColumnEntry("era", INT, "Era of the ledger; 6 is Conway."),
            ColumnEntry("from_ms", LONG, "Beginning of the epoch, Unix ms."),
            ColumnEntry("to_ms", LONG, "End of the epoch, Unix ms."),
            ColumnEntry("taken_ms", LONG, "Time at which the cardano-node was asked, Unix ms."),
            ColumnEntry("kes_evolutions_max", INT, "KES periods for which a certificate serves."),
            ColumnEntry("digest", TEXT, "Digest of the distribution: the same in all its parts."),
            ColumnEntry("part", INT, "Number of the part, from 0."),
            ColumnEntry("parts", INT, "Parts of the distribution: without all of them its stake is unknown."),
            ColumnEntry("pools", LONG, "Pools of the whole distribution."),
            ColumnEntry("total_stake", LONG, "Stake of the whole distribution, lovelace."),
            ColumnEntry("quorum", LONG, "Mithril's k: distinct indexes of a certificate; null if unknown."),
            ColumnEntry("indexes_drawn", LONG, "Mithril's m: indexes of the lottery; null if unknown."),
            ColumnEntry(
                "phi_f", DOUBLE, "Mithril's phi_f: chance of all stake to win an index; null if unknown."
            ),
            ColumnEntry(
                "quorum_share",
                DOUBLE,
                "Share of stake, from 0 to 1, that wins k indexes on average; null if unknown.",
            ),
            _pool,
            ColumnEntry("stake", LONG, "Set stake of the pool, lovelace; 0 means known and not eligible."),
        ),
    ),
    TableEntry(
        "mithril_signatures",
        "One row for each day and valid DMQ message whose body is a signature of Mithril.",
        (
            ColumnEntry("dmq_id", TEXT, "Id of the DMQ message."),
            _pool,
            ColumnEntry("received_ms", LONG, "First arrival on that day, Unix ms."),
            _epoch,
            _variant,
            _beacon,
            _entity,
            _entity_before,
            ColumnEntry("timeout_ms", LONG, "Time for which Mithril waits for signatures of the entity, ms."),
            ColumnEntry("form", TEXT, "Form of the signature: legacy or cbor."),
            ColumnEntry("sigma", TEXT, "BLS signature, 96 hexadecimal digits; not verified here."),
            ColumnEntry("body_hash", TEXT, "Hash of the body: it tells encodings of one signature apart."),
            ColumnEntry("signer_index", LONG, "Place of the signer in Mithril's registration, as claimed."),
            ColumnEntry("indexes", INTS, "Indexes of the lottery that the signer claims to have won."),
            ColumnEntry("certificate_number", LONG, "Number of the operational certificate."),
            ColumnEntry("start_kes_period", LONG, "First KES period of the operational certificate."),
            ColumnEntry("kes_period", LONG, "KES period of the DMQ message."),
        ),
    ),
    TableEntry(
        "mithril_beacons",
        "One row for each beacon: who signed it on DMQ in its epoch, how fast, and with how much stake.",
        (
            _epoch,
            _variant,
            _beacon,
            _entity,
            _entity_before,
            ColumnEntry(
                "first_ms", LONG, "Arrival of the first signature, Unix ms; null if none came in the epoch."
            ),
            ColumnEntry(
                "last_ms", LONG, "Arrival of the last signature, Unix ms; null if none came in the epoch."
            ),
            ColumnEntry("pools", LONG, "Pools that signed."),
            ColumnEntry("stake", LONG, "Stake of the pools that signed, lovelace; null if unknown."),
            ColumnEntry(
                "total_stake", LONG, "Set stake of all pools in the epoch, lovelace; null if unknown."
            ),
            ColumnEntry(
                "adoption_percent",
                DOUBLE,
                "Stake of the pools that signed, per cent of all; null if unknown.",
            ),
            ColumnEntry(
                "unstaked_pools", LONG, "Pools that signed and have stake 0; null if stake is unknown."
            ),
            ColumnEntry(
                "unknown_pools",
                LONG,
                "Pools that signed and are not in the distribution; null if stake is unknown.",
            ),
            ColumnEntry(
                "indexes", LONG, "Distinct indexes that pools with stake claim; null without parameters."
            ),
            ColumnEntry("quorum", LONG, "Mithril's k: distinct indexes of a certificate; null if unknown."),
            ColumnEntry(
                "quorum_percent", DOUBLE, "Claimed distinct indexes, per cent of k; null if unknown."
            ),
            ColumnEntry(
                "expected_percent",
                DOUBLE,
                "Distinct indexes to be expected of the stake that signed, per cent of k; null if unknown.",
            ),
            ColumnEntry("half_ms", LONG, "Time until half of all stake had signed, ms; null if it has not."),
            ColumnEntry(
                "quorum_ms",
                LONG,
                "Time until the share of stake that wins k indexes had signed, ms; null if it has not.",
            ),
            ColumnEntry(
                "late", LONG, "Pools whose signature came after Mithril's time-out, counted from the first."
            ),
            _repeats,
            ColumnEntry(
                "reencoded", LONG, "Pools that sent one signature in several encodings, which is no offence."
            ),
            ColumnEntry("equivocating", LONG, "Pools that sent different signatures for the beacon."),
            _other_epoch,
        ),
    ),
    TableEntry(
        "mithril_pools",
        "One row for each epoch and pool that signed a beacon of it or has stake in it, also for a silent pool.",
        (
            _epoch,
            _pool,
            ColumnEntry("stake", LONG, "Set stake of the pool in the epoch, lovelace; null if unknown."),
            ColumnEntry("share_percent", DOUBLE, "Stake of the pool, per cent of all; null if unknown."),
            ColumnEntry("signed", LONG, "Beacons of the epoch that the pool signed on DMQ."),
            ColumnEntry(
                "silent", LONG, "Beacons of the epoch that others signed on DMQ and the pool did not."
            ),
            ColumnEntry(
                "median_late_ms",
                LONG,
                "Median time after a beacon's first signature, ms; a value that occurred.",
            ),
            ColumnEntry("p95_late_ms", LONG, "95th percentile of the same time, ms; a value that occurred."),
            ColumnEntry("late", LONG, "Beacons that the pool signed after Mithril's time-out."),
            _repeats,
            ColumnEntry("reencoded", LONG, "Beacons whose one signature the pool sent in several encodings."),
            ColumnEntry("equivocations", LONG, "Beacons for which the pool sent different signatures."),
            _other_epoch,
            ColumnEntry(
                "certificate_number", LONG, "Greatest number of an operational certificate; null if silent."
            ),
            ColumnEntry("certificates", LONG, "Different operational certificates that the pool used."),
            ColumnEntry(
                "kes_periods_left",
                LONG,
                "KES periods after that of the last message; null if silent or unknown.",
            ),
            ColumnEntry("forms", TEXT, "Forms of the pool's signatures, with commas; null if silent."),
        ),
    ),
)

BY_NAME = {table.name: table for table in TABLES}


def about(table: str) -> str | None:
    """Return the meaning of one row of a table; None for a table that only the pipeline itself reads."""
    found = BY_NAME.get(table)
    return None if found is None else found.about


def commented(table: str, schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the comment of each column that the dictionary knows, for the schema of a Delta table."""
    import pyarrow as pa

    entry = BY_NAME.get(table)
    if entry is None:
        return schema
    texts = {column.name: column.about for column in (*entry.columns, DAY_ENTRY)}
    return pa.schema(
        [
            field.with_metadata({COMMENT: texts[field.name]}) if field.name in texts else field
            for field in schema
        ]
    )
