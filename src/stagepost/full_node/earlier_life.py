"""What the topic of statuses tells a full node that starts again: which messages wait for their end, and which have it.

The chain on its disk cannot tell the second: it may lag behind the topic, for each is written for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from stagepost.errors import DecodeError
from stagepost.full_node.status_topic import FINALIZED, REJECTED, SENT, EarlierIds
from stagepost.remp.receipts.message_status import SentToValidators
from stagepost.remp.receipts.receipt import Receipt
from stagepost.topics.batch import Read
from stagepost.topics.topic import TopicReader

FINALS_KEPT_MAX = 100_000
"""Messages that are known to be final, so that sending one again is answered at once; the oldest is forgotten. No fewer
than may be in processing at a time: of those, receipts still come when they are final."""

RECORDS_READ_MAX = 1_000_000
"""The newest of a partition, in which ends are looked for, however old they are."""

_OUR_OWN = tuple(f'"{kind}"'.encode() for kind in (FINALIZED, REJECTED, SENT))


class EarlierLife(msgspec.Struct, frozen=True):
    """`sent`: messages that more than a third of the validators have answered for, and whose end is still to come. `begun`:
    those that fewer have, whatever they were sent; whoever brought one brings it again. `finals`: those that were told to
    be final, the oldest first."""

    sent: Mapping[bytes, EarlierIds] = {}
    begun: Mapping[bytes, EarlierIds] = {}
    finals: tuple[bytes, ...] = ()


def earlier_life(
    reader: TopicReader, now_ms: int, life_ms: int, full_nodes: Collection[bytes]
) -> EarlierLife:
    """`life_ms`: so long after the last record of a message nothing more is expected of it. `full_nodes`: the sources that
    may tell an end; of others nothing ends, even if somebody wants what they say kept."""
    found: dict[bytes, _Open] = {}
    finals: list[tuple[int, bytes]] = []
    for partition in range(reader.partitions):
        reading = _Reading(full_nodes)
        near = reader.end_offset(partition) - RECORDS_READ_MAX
        for batch in reader.batches(partition, reader.start_offset(partition)):
            is_alive = batch.timestamps[-1] >= now_ms - life_ms
            if not is_alive and batch.next_offset <= near:
                continue
            for one in batch:
                reading.take(one, is_alive=is_alive)
        found |= {message_id: one for message_id, one in reading.open.items() if one.is_alive}
        finals += [(told_ms, message_id) for message_id, told_ms in reading.finals.items()]
    finals.sort(key=lambda final: final[0])
    return EarlierLife(
        sent={message_id: one.ids for message_id, one in found.items() if one.is_sent},
        begun={message_id: one.ids for message_id, one in found.items() if not one.is_sent},
        finals=tuple(message_id for _, message_id in finals[-FINALS_KEPT_MAX:]),
    )


class _Open:
    def __init__(self, ids: EarlierIds) -> None:
        self.ids = ids
        self.is_alive = False
        self.answered: set[bytes] = set()
        self.validators: int | None = None

    @property
    def is_sent(self) -> bool:
        """As `Targets.have_it`; that it was sent is not enough, for what stands in a socket dies with the process."""
        return self.validators is not None and 3 * len(self.answered) > self.validators


class _Reading:
    """One partition, which holds all that is said of a message. `finals` have the time at which they were written."""

    def __init__(self, full_nodes: Collection[bytes]) -> None:
        self.open: dict[bytes, _Open] = {}
        self.finals: dict[bytes, int] = {}
        self._full_nodes = full_nodes

    def take(self, one: Read, *, is_alive: bool) -> None:
        value = one.value or b""
        if not is_alive and not any(kind in value for kind in _OUR_OWN):
            return  # cheap: only what we said of it ourselves still matters
        try:
            receipt = Receipt.from_json(value)
        except DecodeError:
            return  # somebody else has written it
        message_id = receipt.message_id
        is_ours = receipt.source_id in self._full_nodes
        if is_ours and receipt.kind.name == FINALIZED:
            self.open.pop(message_id, None)
            self.finals.setdefault(message_id, one.timestamp_ms)
            while len(self.finals) > FINALS_KEPT_MAX:
                del self.finals[next(iter(self.finals))]
        elif message_id in self.finals:
            return  # validators have more to say of it, and it is final
        elif is_ours and receipt.kind.name == REJECTED:
            self.open.pop(message_id, None)  # until it is sent again
        else:
            self._go_on(one, receipt, is_ours=is_ours, is_alive=is_alive)

    def _go_on(self, one: Read, receipt: Receipt, *, is_ours: bool, is_alive: bool) -> None:
        found = self.open.get(receipt.message_id)
        if found is None:
            found = _Open(EarlierIds(one.headers.get("dmq_id"), one.headers.get("delivery_id")))
            self.open[receipt.message_id] = found
        found.is_alive |= is_alive
        if not is_ours:
            found.answered.add(receipt.source_id)
        elif isinstance(receipt.status, SentToValidators):
            found.validators = receipt.status.total_validators
