"""What must hold over the sessions of a network: that each message has its end in time, and that members of a session's
queue know the same. Only what validators answer, and what full nodes heard, is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from stagepost.remp.receipts.status import Status
from stagepost.validator.session_runner import SessionRunner
from tests.worlds.remp.primes_world import FullHouse, PrimesWorld, Sum

LIFE_IN_CATCHAINS = 2
NEVER = -LIFE_IN_CATCHAINS
FAR = 1 << 32


def lost_messages(world: PrimesWorld, sums: Iterable[Sum], final: Collection[bytes]) -> list[str]:
    """Return the messages that were closed while they lived, although too few validators refuse them for that. A message that
    a further full node sends while it lives does not live longer, and a validator counts a life by its own chain.
    """
    bodies = {(one.account, one.up_to) for one in sums if one.message_id in final}
    sums = list(sums)
    found: dict[Sum, str] = {}
    for one in sums:
        if (one.account, one.up_to) in bodies or is_refused_by_all(world, one.message_id):
            continue
        if one.expires_soon:
            continue  # its end is proved, which is more
        began = {house.number: _began_at(house, one.message_id) for house in world.full_nodes}
        first = min(began.values())
        for house in world.full_nodes:
            taken, closed = house.taken_at.get(one.message_id), house.closed_at.get(one.message_id)
            since = began[house.number]
            if taken is not None:
                taken = first if since < first + LIFE_IN_CATCHAINS else since
            if taken is not None and closed is not None and closed < taken + LIFE_IN_CATCHAINS:
                found[one] = (
                    f"message {one.message_id.hex()[:8]}, taken under catchain {taken}, is not in the chain and was "
                    f"closed under {closed}: {house.kinds[one.message_id]}"
                )
    # A message that gave way to one with its body ends as that one does, although its block may be dropped.
    in_time = {(one.account, one.up_to) for one in sums if one not in found}
    return [text for one, text in found.items() if (one.account, one.up_to) not in in_time]


def _began_at(house: FullHouse, message_id: bytes) -> int:
    """Return under which catchain the life began that a message has through this full node."""
    return min(house.taken_at.get(message_id, FAR), house.received_under.get(message_id, FAR))


def revived_messages(world: PrimesWorld, made_under: Mapping[bytes, int]) -> list[str]:
    """Return the messages that entered the chain after their lives were over. A block that was made before may be
    committed after that.
    """
    return [
        f"message {message_id.hex()[:8]}, brought under catchain {_brought_at(world, message_id)}, was revived under {made}"
        for message_id, made in made_under.items()
        if message_id not in world.relabelled and _brought_at(world, message_id) >= 0
        if made >= _brought_at(world, message_id) + LIFE_IN_CATCHAINS
    ]


def difference(world: PrimesWorld, sums: Iterable[Sum], final: Collection[bytes]) -> str | None:
    """Return how honest members of one living session differ, or which living message one of them does not know; None once
    they are at rest.
    """
    bodies = {(one.account, one.up_to) for one in sums if one.message_id in final}
    seqno = world.ledger.master.catchain_seqno
    alive = [one for one in sums if seqno < _taken_at(world, one.message_id) + LIFE_IN_CATCHAINS]
    for session in world.ledger.sessions():
        members: dict[int, SessionRunner] = {}
        for house in world.validators:
            if house.fault is not None:
                continue
            if house.validator is None:
                return f"validator {house.number} is down"
            runner = next(
                (
                    runner
                    for queue_id, runner in house.running.queues.current.items()
                    if house.running.bridge.session_of(queue_id) == session.session_id
                ),
                None,
            )
            if runner is not None:
                members[house.number] = runner
        if not members:
            return "nobody is in the session yet"
        for one in alive:
            if one.message_id in final or (one.account, one.up_to) in bodies:
                continue
            if not session.shard.holds(0, one.account):
                continue
            for number, runner in members.items():
                if runner.plan.index in runner.plan.current:
                    reason = _open_there(world, one, number, runner)
                    if reason is not None:
                        return reason
        # What an attacker made younger lives on where that was heard, which may have been in another session.
        younger = world.relabelled - {one.message_id for one in alive}
        reason = _difference_in(members, {*final, *younger})
        if reason is not None:
            return reason
    return None


def _open_there(world: PrimesWorld, one: Sum, number: int, runner: SessionRunner) -> str | None:
    name = f"message {one.message_id.hex()[:8]}"
    status = runner.queue.status(one.message_id)
    if status is None or one.message_id not in runner.queue:
        return f"validator {number} does not know {name}"
    if status.status is Status.TIMEOUT:
        return None
    if not is_refused_by_all(world, one.message_id):
        return f"{name} is not in the chain; validator {number} says {status}"
    if status.status is not Status.REJECTED:
        return f"validator {number} has not rejected {name}: {status}"
    return None


def _difference_in(members: dict[int, SessionRunner], left_out: Collection[bytes]) -> str | None:
    (first, reference), *others = members.items()
    known = reference.queue.known_ids - frozenset(left_out)
    for number, runner in others:
        ours = runner.queue.known_ids - frozenset(left_out)
        if ours != known:
            return f"validator {number} lacks {len(known - ours)} ids of validator {first}, and has {len(ours - known)} more"
        if any(runner.queue.rejected_by(one) != reference.queue.rejected_by(one) for one in known):
            return f"validators {number} and {first} count other rejects"
    return None


def _taken_at(world: PrimesWorld, message_id: bytes) -> int:
    return max(house.taken_at.get(message_id, NEVER) for house in world.full_nodes)


def _brought_at(world: PrimesWorld, message_id: bytes) -> int:
    return max(house.brought_at.get(message_id, NEVER) for house in world.full_nodes)


def is_refused_by_all(world: PrimesWorld, message_id: bytes) -> bool:
    return len(world.refused_by.get(message_id, ())) == len(world.validators)
