"""Replay of the statuses topic for a full node that starts again: which messages wait for their end, and which have it.

The chain on the node's disk cannot tell which ends were published: the chain may lag behind the topic, for each is
written by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from stagepost.errors import DecodeError
from stagepost.full_node.message_record import MessageRecord, RecordEvent, RecordState
from stagepost.full_node.status_topic import FINALIZED, REJECTED, SENT, EarlierIds
from stagepost.remp.receipts.message_status import SentToValidators
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.validator_sets import is_more_than_a_third
from stagepost.topics.batch import Read
from stagepost.topics.topic import TopicReader

FINALS_KEPT_MAX = 100_000
"""Messages that are known to be final, so that a second submission is answered at once; the oldest is forgotten. No fewer
than may be in processing at a time: receipts of those still come when they are final."""

RECORDS_READ_MAX = 1_000_000
"""Records at the end of a partition in which ends are looked for, however old they are."""

_OUR_OWN = tuple(f'"{kind}"'.encode() for kind in (FINALIZED, REJECTED, SENT))


def earlier_life(
    reader: TopicReader, now_ms: int, life_ms: int, full_nodes: Collection[bytes]
) -> dict[bytes, MessageRecord]:
    """Return the records that an earlier life left: SETTLED, INTERRUPTED, and last the ENDED ones, the oldest end first.

    `life_ms` after the last status of a message nothing more is expected of it. Only `full_nodes` may publish an end:
    statuses of other sources end nothing, even if an operator wants refused receipts kept."""
    records: dict[bytes, MessageRecord] = {}
    ends: list[tuple[int, bytes, MessageRecord]] = []
    for partition in range(reader.partitions):
        replay = _PartitionReplay(full_nodes)
        near = reader.end_offset(partition) - RECORDS_READ_MAX
        for batch in reader.batches(partition, reader.start_offset(partition)):
            is_alive = batch.timestamps[-1] >= now_ms - life_ms
            if not is_alive and batch.next_offset <= near:
                continue
            for read in batch:
                replay.apply(read, is_alive=is_alive)
        records |= {message_id: one.restarted() for message_id, one in replay.open.items() if one.is_alive}
        ends += [(ended_ms, message_id, record) for message_id, (ended_ms, record) in replay.ends.items()]
    ends.sort(key=lambda end: end[0])
    return records | {message_id: record for _, message_id, record in ends[-FINALS_KEPT_MAX:]}


class _OpenMessage:
    """Message without an end, with the sources that answered and the number of validators that SentToValidators names."""

    def __init__(self, ids: EarlierIds) -> None:
        self.record = MessageRecord(ids)
        self.record.step(RecordEvent.SENDING_BEGINS)
        self.is_alive = False
        self.answered: set[bytes] = set()
        self.validators = 0

    def restarted(self) -> MessageRecord:
        """Return the record as the next life has it."""
        if self.record.state is RecordState.SENT and is_more_than_a_third(
            len(self.answered), self.validators
        ):
            self.record.step(RecordEvent.ENOUGH_ANSWERED)
        self.record.step(RecordEvent.RESTARTED)
        return self.record


class _PartitionReplay:
    """Replay of one partition, which holds every status of a message. `ends` have the time at which each was written."""

    def __init__(self, full_nodes: Collection[bytes]) -> None:
        self.open: dict[bytes, _OpenMessage] = {}
        self.ends: dict[bytes, tuple[int, MessageRecord]] = {}
        self._full_nodes = full_nodes

    def apply(self, read: Read, *, is_alive: bool) -> None:
        value = read.value or b""
        if not is_alive and not any(kind in value for kind in _OUR_OWN):
            return  # without a decoder: of an old message only the statuses of full nodes matter
        try:
            receipt = Receipt.from_json(value)
        except DecodeError:
            return  # another program has written it
        message_id = receipt.message_id
        if message_id in self.ends:
            return  # validators still report a message that is final
        is_ours = receipt.source_id in self._full_nodes
        if is_ours and receipt.kind.name == FINALIZED:
            self._end(message_id, read.timestamp_ms)
        elif is_ours and receipt.kind.name == REJECTED:
            self.open.pop(message_id, None)  # the life of the message is over until the message is sent again
        else:
            self._continue(read, receipt, is_ours=is_ours, is_alive=is_alive)

    def _end(self, message_id: bytes, ended_ms: int) -> None:
        found = self.open.pop(message_id, None)
        record = MessageRecord() if found is None else found.record
        record.step(RecordEvent.FINALIZED)
        record.step(RecordEvent.END_REPORTED)
        self.ends[message_id] = ended_ms, record
        while len(self.ends) > FINALS_KEPT_MAX:
            del self.ends[next(iter(self.ends))]

    def _continue(self, read: Read, receipt: Receipt, *, is_ours: bool, is_alive: bool) -> None:
        found = self.open.get(receipt.message_id)
        if found is None:
            ids = EarlierIds(read.headers.get("dmq_id"), read.headers.get("delivery_id"))
            found = self.open[receipt.message_id] = _OpenMessage(ids)
        found.is_alive |= is_alive
        if not is_ours:
            found.answered.add(receipt.source_id)
        elif isinstance(receipt.status, SentToValidators):
            found.validators = receipt.status.total_validators
            found.record.step(RecordEvent.SENT_REPORTED)
