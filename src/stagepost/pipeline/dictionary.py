"""The data dictionary: every table that people read, its columns, their types, units and meaning. Needs no Spark.

The dictionary is the single source of the tables' schemas (`schemas`) and of the comments in them, of `docs/tables.md`, and
of what `stagepost pipeline sql` shows of a table. Types are written as Spark and Delta write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

COMMENT = "comment"
"""Name under which Delta and Spark keep the documentation of a column."""


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
    "date",
    "Day of arrival in UTC; the table is divided by it, so a condition on it reads only those days.",
)

_TEXT = """
messages: One row for each external message with at least one receipt that passes all checks.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  verdict string: Present result: finalized, executed_as, accepted, included, queued, sent, rejected_by_fullnode, rejected, likely_rejected or expired.
  sent_ms long: Least time of SentToValidators, Unix ms; null if no receipt says so.
  queued_ms long: Least time of PutIntoQueue, Unix ms; null if no receipt says so.
  included_ms long: Least time of IncludedIntoBlock, Unix ms; null if no receipt says so.
  accepted_ms long: Least time of IncludedIntoAcceptedBlock, Unix ms; null if no receipt says so.
  finalized_ms long: Least time of Finalized, Unix ms; null if no receipt says so.
  rejected_ms long: Least time of any rejection, Unix ms; null if no receipt says so.
  timeout_ms long: Least time of Timeout, Unix ms; null if no receipt says so.
  session_id string: Deciding session, 64 hexadecimal digits; null while no validator has spoken.
  validators integer: Members of the deciding session; null without one.
  queued_at array<integer>: Members, by their place from 0, whose last word leaves the message in their queue.
  rejected_by array<integer>: Members, by their place from 0, whose last word is a rejection.
  silent array<integer>: Members, by their place from 0, of whom no receipt counts for the deciding session.
  delivery_id string: The same message in reliable delivery; null if unknown.
  dmq_id string: The same message in DMQ; null if unknown.
  receipts long: Distinct receipts that pass all checks.
  receipts_bad long: Distinct quarantined records that name the message.
  proof string: End that a checked proof shows: executed, never or executed_as; none without a proof, and then everything else is a claim.
  proof_block long: Number of the final master block of the proof; null without a proof.
  executed_as string: Message that was executed in its place; null if none was.

receipts: One row for each distinct receipt that passes all checks; of several session hints the least stands.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  kind string: Kind of the receipt, for example PutIntoQueue or Finalized.
  level integer: Level of the receipt's kind: 0 full node, 1 queue, 2 collator, 3 shard, 4 masterchain.
  status string: Status of the kind: Accepted, Ignored, Rejected, SentToValidators, New, Duplicate or Timeout.
  timestamp_ms long: Time that the signer states, Unix ms.
  source_id string: Key id of the signer, 64 hexadecimal digits.
  role string: Role of the signer by the validator sets: validator, or full node.
  session_hint string: Session that the record's header names; null if none.
  error string: Text that the signer gave for a refusal, as it came; null if none.
  block_id string: Root hash of the named block; null if the receipt names none.
  block_seqno long: Sequence number of the named block; null if the receipt names none.
  shard string: Shard of the named block, 16 hexadecimal digits; null if the receipt names none.
  wc integer: Workchain of the named block; null if the receipt names none.
  mc_block_id string: Root hash of the named masterchain block; null if the receipt names none.
  mc_block_seqno long: Sequence number of the named masterchain block; null if the receipt names none.
  signed_hash string: Hash of the signed bytes, hexadecimal: it tells receipts apart.

quarantine: One row for each record that fails a check, repeats included.
  reason string: Code of the first check that fails, for example RECEIPT_SIGNATURE.
  topic string: Topic of the record.
  partition integer: Partition of the record; null for a dump that does not say.
  offset long: Offset of the record, or its line in a dump, from 0.
  arrived_ms long: Arrival of the record, Unix ms; null if unknown.
  message_id string: Message that the record's key or value names; null if neither can be read.
  raw binary: Value of the record as it came.

proofs: One row for each distinct proof of a message's end that could be checked, also for one that does not hold.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  proof string: End that the proof shows or claims: executed, never or executed_as.
  proof_block long: Number of the final master block; null for a proof that does not hold.
  executed_as string: Message that was executed in its place; null if none was.
  refusal string: Rule that the proof breaks; null for a proof that holds.
  time_ms long: Time of the inclusion, or of the state in which the message is absent, Unix ms; null for a proof that does not hold.
  master_block string: Root hash of the master block that the proof names.
  signers integer: Validators whose signatures make the block final; null for a proof that does not hold.
  validators integer: Members of the set that signs; null for a proof that does not hold.
  signed_hash string: Hash of the proof's own part, as `records` has it.

validators: One row for each day and member of each session that was open on it or decided one of its messages, also for one that sent nothing.
  session_id string: Session, 64 hexadecimal digits.
  validator integer: Place of the member in the session, from 0; people call place 0 V1.
  source_id string: Key id of the signer, 64 hexadecimal digits.
  messages long: Messages that the session decided and the member spoke about.
  queued_first long: Messages that the member queued before all others.
  median_queue_ms long: Median time from SentToValidators to the member's queue, ms; a value that occurred.
  p95_queue_ms long: 95th percentile of the same time, ms; a value that occurred.
  silent long: Messages that the session decided and the member said nothing about.
  contradictions long: Steps of the member that no validator may take.
  bad_signatures long: Records in the member's name whose signature does not verify.
  open_new long: Messages that the member's last word leaves in its queue.

stage_latency: One row for each stage, shard and minute of sending: the time since SentToValidators.
  stage string: Stage: queued, included, accepted, finalized, rejected or timeout.
  wc integer: Workchain of the deciding session; null without one.
  shard string: Shard of the deciding session, 16 hexadecimal digits; null without one.
  bucket_ms long: Beginning of the minute in which the messages were sent, Unix ms.
  count long: Messages that reached the stage.
  p50_ms long: Median time since SentToValidators, ms; a value that occurred.
  p95_ms long: 95th percentile of the same time, ms; a value that occurred.
  p99_ms long: 99th percentile of the same time, ms; a value that occurred.

rejections: One row for each receipt that rejects a message.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  source_id string: Key id of the signer, 64 hexadecimal digits.
  level integer: Level of the receipt's kind: 0 full node, 1 queue, 2 collator, 3 shard, 4 masterchain.
  error string: Text that the signer gave for a refusal, as it came; null if none.
  timestamp_ms long: Time that the signer states, Unix ms.

replays: One row for each message and place in which something came more than once.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  where string: statuses: copies of receipts; blocks: finalized in more than one block.
  count long: Copies, or blocks, beyond the first.
  first_ms long: Least arrival of a copied receipt, or least time of Finalized, Unix ms.
  last_ms long: Greatest arrival of a copied receipt, or greatest time of Finalized, Unix ms.

complaints: One row for each fault of a signer that its own receipts prove.
  complaint_id string: Hash of kind, message, signer and session: the same fault has the same id.
  kind string: contradiction: a step that no validator may take; unanswered: the message expired in its queue.
  message_id string: Hash of the external message, 64 hexadecimal digits.
  source_id string: Key id of the signer, 64 hexadecimal digits.
  session_id string: Session of the signer, 64 hexadecimal digits.
  evidence string: JSON list of all receipts that the signer signed about the message, as they came.

alerts: One row for each condition that somebody should look at.
  alert_id string: Hash of kind and subject: the same condition has the same id.
  kind string: expired, no_quorum, silent_validator, contradicting_validator, bad_signatures, replay, unproved_finality or end_contradicted.
  subject string: Message id, or session id and validator as in …:V3.
  since_ms long: Time since which the condition holds, Unix ms; null if it has none.
  detail string: Figures of the condition, in words.

dmq_messages: One row for each DMQ message, by id and content.
  dmq_id string: Id of the DMQ message; for a value that is not a message, the record's key.
  pool_id string: Stake pool that signed, hexadecimal; null if the value is not a message.
  kes_period long: KES period of the signature; null if the value is not a message.
  expires_at long: Expiry that the message states, Unix seconds; null if the value is not a message.
  received_ms long: First arrival, Unix ms.
  body_bytes long: Length of the body, bytes.
  valid boolean: Whether id, certificate, KES period and signature hold.

delivery_events: One row for each distinct event of reliable delivery.
  delivery_id string: Message of reliable delivery, hexadecimal.
  status string: Status that the message reached.
  tier string: Tier of delivery that was asked for.
  topic string: Topic of reliable delivery.
  timestamp_ms long: Time of the event, Unix ms.
  attempt long: Number of the attempt.
  dmq_id string: DMQ message that carried the attempt; null if none.
  error string: Reason of a failure; null if none.
  acked_by string: JSON text of who acknowledged; null if nobody.

pool_stakes: One row for each pool in each distribution of set stake that the topic holds, as it was recorded.
  network_magic long: Magic number of the Cardano network.
  epoch long: Epoch in which the entity is signed, and whose set stake decides.
  era integer: Era of the ledger; 6 is Conway.
  from_ms long: Beginning of the epoch, Unix ms.
  to_ms long: End of the epoch, Unix ms.
  taken_ms long: Time at which the cardano-node was asked, Unix ms.
  kes_evolutions_max integer: KES periods for which a certificate serves.
  digest string: Digest of the distribution: the same in all its parts.
  part integer: Number of the part, from 0.
  parts integer: Parts of the distribution: without all of them its stake is unknown.
  pools long: Pools of the whole distribution.
  total_stake long: Stake of the whole distribution, lovelace.
  quorum long: Mithril's k: distinct indexes of a certificate; null if unknown.
  indexes_drawn long: Mithril's m: indexes of the lottery; null if unknown.
  phi_f double: Mithril's phi_f: chance of all stake to win an index; null if unknown.
  quorum_share double: Share of stake, from 0 to 1, that wins k indexes on average; null if unknown.
  pool_id string: Stake pool, 56 hexadecimal digits.
  stake long: Set stake of the pool, lovelace; 0 means known and not eligible.

mithril_signatures: One row for each day and valid DMQ message whose body is a signature of Mithril.
  dmq_id string: Id of the DMQ message.
  pool_id string: Stake pool, 56 hexadecimal digits.
  received_ms long: First arrival on that day, Unix ms.
  epoch long: Epoch in which the entity is signed, and whose set stake decides.
  variant integer: Number of the entity's kind, as it stands in the body.
  beacon string: Numbers of the entity with slashes: epoch, then immutable file or block, then offset.
  entity string: Name of the variant since Mithril 2630, else the former one.
  entity_before string: Name of the variant until Mithril 2617, where it is another and the beacon fits it.
  timeout_ms long: Time for which Mithril waits for signatures of the entity, ms.
  form string: Form of the signature: legacy or cbor.
  sigma string: BLS signature, 96 hexadecimal digits; not verified here.
  body_hash string: Hash of the body: it tells encodings of one signature apart.
  signer_index long: Place of the signer in Mithril's registration, as claimed.
  indexes array<integer>: Indexes of the lottery that the signer claims to have won.
  certificate_number long: Number of the operational certificate.
  start_kes_period long: First KES period of the operational certificate.
  kes_period long: KES period of the DMQ message.

mithril_beacons: One row for each beacon: who signed it on DMQ in its epoch, how fast, and with how much stake.
  epoch long: Epoch in which the entity is signed, and whose set stake decides.
  variant integer: Number of the entity's kind, as it stands in the body.
  beacon string: Numbers of the entity with slashes: epoch, then immutable file or block, then offset.
  entity string: Name of the variant since Mithril 2630, else the former one.
  entity_before string: Name of the variant until Mithril 2617, where it is another and the beacon fits it.
  first_ms long: Arrival of the first signature, Unix ms; null if none came in the epoch.
  last_ms long: Arrival of the last signature, Unix ms; null if none came in the epoch.
  pools long: Pools that signed.
  stake long: Stake of the pools that signed, lovelace; null if unknown.
  total_stake long: Set stake of all pools in the epoch, lovelace; null if unknown.
  adoption_percent double: Stake of the pools that signed, per cent of all; null if unknown.
  unstaked_pools long: Pools that signed and have stake 0; null if stake is unknown.
  unknown_pools long: Pools that signed and are not in the distribution; null if stake is unknown.
  indexes long: Distinct indexes that pools with stake claim; null without parameters.
  quorum long: Mithril's k: distinct indexes of a certificate; null if unknown.
  quorum_percent double: Claimed distinct indexes, per cent of k; null if unknown.
  expected_percent double: Distinct indexes to be expected of the stake that signed, per cent of k; null if unknown.
  half_ms long: Time until half of all stake had signed, ms; null if it has not.
  quorum_ms long: Time until the share of stake that wins k indexes had signed, ms; null if it has not.
  late long: Pools whose signature came after Mithril's time-out, counted from the first.
  repeats long: Messages with a body that the same pool had sent already.
  reencoded long: Pools that sent one signature in several encodings, which is no offence.
  equivocating long: Pools that sent different signatures for the beacon.
  other_epoch long: Signatures that arrived outside of the epoch, and count for nothing else; null if its time is unknown.

mithril_pools: One row for each epoch and pool that signed a beacon of it or has stake in it, also for a silent pool.
  epoch long: Epoch in which the entity is signed, and whose set stake decides.
  pool_id string: Stake pool, 56 hexadecimal digits.
  stake long: Set stake of the pool in the epoch, lovelace; null if unknown.
  share_percent double: Stake of the pool, per cent of all; null if unknown.
  signed long: Beacons of the epoch that the pool signed on DMQ.
  silent long: Beacons of the epoch that others signed on DMQ and the pool did not.
  median_late_ms long: Median time after a beacon's first signature, ms; a value that occurred.
  p95_late_ms long: 95th percentile of the same time, ms; a value that occurred.
  late long: Beacons that the pool signed after Mithril's time-out.
  repeats long: Messages with a body that the same pool had sent already.
  reencoded long: Beacons whose one signature the pool sent in several encodings.
  equivocations long: Beacons for which the pool sent different signatures.
  other_epoch long: Signatures that arrived outside of the epoch, and count for nothing else; null if its time is unknown.
  certificate_number long: Greatest number of an operational certificate; null if silent.
  certificates long: Different operational certificates that the pool used.
  kes_periods_left long: KES periods after that of the last message; null if silent or unknown.
  forms string: Forms of the pool's signatures, with commas; null if silent.
"""
"""Tables, each with its columns below it: name, type, and meaning."""


def _entries() -> Iterator[TableEntry]:
    for block in _TEXT.strip().split("\n\n"):
        table, *lines = (line.strip().partition(": ") for line in block.splitlines())
        columns = [(*head.split(" "), text) for head, _, text in lines]
        yield TableEntry(
            table[0], table[2], tuple(ColumnEntry(name, kind, text) for name, kind, text in columns)
        )


TABLES = tuple(_entries())
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
