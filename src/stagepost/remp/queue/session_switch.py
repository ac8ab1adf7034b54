"""From one session to the next: what a queue that ends hands over, and to which of the queues that follow it.

What is open travels whole, with its first origin and age; what is processed travels as an id, so that nobody collates
it again; what has expired stays behind.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.message_states import FINAL, OPEN, REFUSED, place_of
from stagepost.remp.queue.records import DIGEST_IDS_MAX, Digest, Ids, OlderDigest, Record
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.receipts.status import Status
from stagepost.remp.shard import Shard as Shard

CATCHAINS_OF_LIFE = 2


class Forwarding(msgspec.Struct, frozen=True):
    records: tuple[Record, ...]
    bodies: tuple[ExternalMessage, ...]
    left_behind: int


def to_forward(
    queue: ReliableQueue,
    next_seqno: int,
    next_shard: Shard,
    is_known_there: Callable[[bytes], bool],
    *,
    older_records: bool = False,
) -> Forwarding:
    """What the queue has for one that follows it, under the next master catchain and for a shard of its own.

    It may be asked for again and again: members of a session that is over hear one another for a while, and what comes
    late is handed on then.
    """
    headers: list[Record] = []
    bodies: list[ExternalMessage] = []
    rejected: dict[int, list[Ids]] = {}
    accepted: dict[int, list[Ids]] = {}
    left_behind = 0
    for cached in queue.entries():
        seqno = cached.header.masterchain_seqno
        if seqno + CATCHAINS_OF_LIFE <= next_seqno or cached.status.status is Status.TIMEOUT:
            left_behind += 1
            continue
        place = place_of(cached.status)
        ids = Ids(cached.message_id, cached.header.uid)
        is_for_it = next_shard.holds(cached.header.workchain, cached.header.account)
        if is_known_there(cached.message_id):
            continue
        if not is_for_it and cached.header.account != ZERO_INT256:
            left_behind += 1
        elif place == FINAL:
            accepted.setdefault(seqno, []).append(ids)
        elif place in REFUSED:
            rejected.setdefault(seqno, []).append(ids)
        elif place in OPEN:
            if cached.body is None or not is_for_it:
                left_behind += 1
            else:
                headers.append(cached.header.in_older_form if older_records else cached.header)
                bodies.append(cached.body)
    digests = _digests(rejected, accepted, older_records)
    return Forwarding((*headers, *digests), tuple(bodies), left_behind)


def _digests(
    rejected: dict[int, list[Ids]], accepted: dict[int, list[Ids]], older_records: bool
) -> list[Record]:
    found: list[Record] = []
    for seqno in sorted({*rejected, *accepted}):
        of_rejected, of_accepted = rejected.get(seqno, []), accepted.get(seqno, [])
        if older_records:
            # They know rejected ones only, one to a record.
            found += [OlderDigest(seqno, (one,)) for one in of_rejected]
            continue
        half = DIGEST_IDS_MAX // 2
        for start in range(0, max(len(of_rejected), len(of_accepted)), half):
            end = start + half
            found.append(Digest(seqno, tuple(of_rejected[start:end]), tuple(of_accepted[start:end])))
    return found
