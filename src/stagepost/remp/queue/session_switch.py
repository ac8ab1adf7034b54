"""From one session to the next: the messages that an ending queue hands over, and the queue that gets each of
them.

An open message travels whole, with its first origin and age; a processed message travels as an id, so that no
validator collates it again; an expired message stays behind.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.message_states import FINAL, OPEN, REFUSED, place_of
from stagepost.remp.queue.records import DIGEST_IDS_MAX, Digest, Ids, Record
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.receipts.status import Status
from stagepost.remp.shard import Shard as Shard

CATCHAINS_OF_LIFE = 2


class Handover(msgspec.Struct, frozen=True):
    records: tuple[Record, ...]
    bodies: tuple[ExternalMessage, ...]
    left_behind: int


def to_forward(
    queue: ReliableQueue,
    next_seqno: int,
    next_shard: Shard,
    is_known_there: Callable[[bytes], bool],
) -> Handover:
    """Return the records and bodies that `queue` hands to a queue that follows it, under catchain
    `next_seqno`, for `next_shard`.

    The caller may repeat this call: members of an ended session hear one another for a while, and messages
    that arrive late are handed on then.
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
                headers.append(cached.named_header)
                bodies.append(cached.body)
    digests = _digests(rejected, accepted)
    return Handover((*headers, *digests), tuple(bodies), left_behind)


def _digests(rejected: dict[int, list[Ids]], accepted: dict[int, list[Ids]]) -> list[Record]:
    found: list[Record] = []
    for seqno in sorted({*rejected, *accepted}):
        of_rejected, of_accepted = rejected.get(seqno, []), accepted.get(seqno, [])
        half = DIGEST_IDS_MAX // 2
        for start in range(0, max(len(of_rejected), len(of_accepted)), half):
            end = start + half
            found.append(Digest(seqno, tuple(of_rejected[start:end]), tuple(of_accepted[start:end])))
    return found
