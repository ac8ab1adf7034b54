"""What must hold over sessions: at any time, and once the world is at rest. Nothing here asks the code under test why."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from stagepost.remp.message import ExternalMessage
from stagepost.remp.receipts.message_status import kind_of
from stagepost.remp.receipts.status import Status, is_legal_step, kind_named
from tests.worlds.remp.session_seats import Room, Seat
from tests.worlds.remp.session_world import SessionWorld

CALM_S = 30.0
"""Once faults end, everything is settled within this time."""

LIFE_IN_CATCHAINS = 2
REFUSED_TEXT = "the contract says no"


@dataclass
class Truth:
    """What the test knows of the messages that honest nodes have taken."""

    messages: dict[bytes, ExternalMessage] = field(default_factory=dict)
    last_seqno: dict[bytes, int] = field(default_factory=dict)
    refused_by: dict[bytes, frozenset[int]] = field(default_factory=dict)
    all_nodes: frozenset[int] = frozenset()

    def verdict(self, one: ExternalMessage, number: int) -> str | None:
        return REFUSED_TEXT if number in self.refused_by.get(one.message_id, ()) else None

    def is_refused_by_all(self, message_id: bytes) -> bool:
        return self.refused_by.get(message_id) == self.all_nodes

    def is_alive(self, message_id: bytes, masterchain_seqno: int) -> bool:
        return masterchain_seqno < self.last_seqno[message_id] + LIFE_IN_CATCHAINS


@dataclass
class SessionRun:
    world: SessionWorld
    truth: Truth
    random: Random
    switches: int = 0
    settled_after_s: list[float] = field(default_factory=list)
    numbers: int = 0
    set_size: int = 4

    @property
    def most_that_refuse(self) -> int:
        """Not enough of any session to make two thirds, attackers included."""
        two_thirds = -(-2 * self.set_size // 3)
        return two_thirds - 1 - len(self.faulty)

    @property
    def faulty(self) -> set[int]:
        return set(self.world.seat_kinds)


def unsettled(run: SessionRun) -> str | None:
    """Why the world is not at rest yet."""
    world, truth = run.world, run.truth
    seqno = world.chain.masterchain_seqno
    final = {one for block in world.chain.final for one in block.message_ids}
    final_bodies = {one.uid for block in world.chain.final for one in block.messages}
    if any(node.applied < len(world.chain.log) for node in world.nodes):
        return "somebody has not followed the chain"
    for message_id, one in truth.messages.items():
        if message_id in final or one.uid in final_bodies or not truth.is_alive(message_id, seqno):
            continue
        room = world.rooms[world.chain.head_for(one).plan.number]
        for seat in _honest_seats(room):
            status = seat.queue.status(message_id)
            if status is None:
                return f"node {seat.number} does not know message {message_id.hex()[:8]}"
            if status.status is Status.TIMEOUT and world.queue_options.message_timeout_s < CALM_S:
                continue
            if not truth.is_refused_by_all(message_id):
                return f"message {message_id.hex()[:8]} is not in the chain; node {seat.number} says {status}"
            # A liar may call open again what was rejected before this session. Where nobody has its bytes any more it
            # cannot be collated, and ends with its life.
            if status.status is not Status.REJECTED and message_id in seat.bodies:
                return f"node {seat.number} has not rejected message {message_id.hex()[:8]}: {status}"
    # What is final is known to all from the chain. What was made younger by a liar lives on where that was heard, and a
    # node may have heard it in another session than this one.
    younger = {
        one for one in world.resubmitted if one not in truth.messages or not truth.is_alive(one, seqno)
    }
    for room in world.live_rooms():
        reason = _difference(room, final | younger)
        if reason is not None:
            return reason
    return None


def _honest_seats(room: Room, *, only_current: bool = True) -> list[Seat]:
    return [
        seat
        for seat in room.seats()
        if seat.is_honest and (seat.number in room.plan.current or not only_current)
    ]


def _difference(room: Room, left_out: set[bytes]) -> str | None:
    first, *others = _honest_seats(room, only_current=False)
    for seat in (first, *others):
        if not seat.is_up:
            return f"node {seat.number} is not in session {room.plan.number}"
    known = first.queue.known_ids - left_out
    where = f"session {room.plan.number}"
    for seat in others:
        ours = seat.queue.known_ids - left_out
        if ours != known:
            return (
                f"{where}: node {seat.number} lacks {len(known - ours)} ids of node {first.number}, and has "
                f"{len(ours - known)} more"
            )
        if any(seat.queue.rejected_by(one) != first.queue.rejected_by(one) for one in known):
            return f"{where}: nodes {seat.number} and {first.number} count other rejects"
    return None


def check_always(run: SessionRun) -> None:
    """Safety: it holds at any time."""
    _check_blocks(run)
    for room in run.world.rooms.values():
        for seat in room.seats():
            if seat.is_honest:
                honest_blamed = [one for one in seat.blamed if room.seats()[one].is_honest]
                assert not honest_blamed, f"node {seat.number} blames honest members {honest_blamed}"
                assert seat.halted is None, f"node {seat.number} stopped: {seat.halted}"
    for node in run.world.honest:
        handed_on = set(node.processed_handed_on) - run.world.resubmitted
        assert not handed_on, f"node {node.number} hands on bodies of what is final"
        for told in (*node.earlier_lives, node.told):
            for message_id, statuses in told.items():
                if message_id in run.world.resubmitted:
                    continue  # it may come to life a second time, when everybody has forgotten the first
                _check_steps(node.number, message_id, [kind_of(status).name for status in statuses])


def _check_blocks(run: SessionRun) -> None:
    """No message and no body for an account twice while the chain remembers, and none that was expired."""
    world, truth = run.world, run.truth
    seen: dict[object, int] = {}
    for block in world.chain.final:
        for one in block.messages:
            for key in (one.message_id, (one.workchain, one.account, one.uid)):
                before = seen.get(key)
                is_over = before is not None and block.masterchain_seqno >= before + LIFE_IN_CATCHAINS
                is_new = before is None or (is_over and one.message_id in world.resubmitted)
                assert is_new, (
                    f"message {one.message_id.hex()[:8]} stands in the chain twice, under {before} and "
                    f"{block.masterchain_seqno}"
                )
                seen[key] = block.masterchain_seqno
            if one.message_id in truth.messages and one.message_id not in world.resubmitted:
                assert truth.is_alive(one.message_id, block.masterchain_seqno), (
                    f"message {one.message_id.hex()[:8]} of catchain {truth.last_seqno[one.message_id]} was revived "
                    f"under {block.masterchain_seqno}"
                )


def _check_steps(number: int, message_id: bytes, kinds: list[str]) -> None:
    before = None
    for name in kinds:
        kind = kind_named(name)
        assert kind is not None
        assert name != "AcceptedByQueue", f"node {number} tells what it keeps to itself"
        assert is_legal_step(before, kind), (
            f"node {number} says {name} after {None if before is None else before.name} of {message_id.hex()[:8]}: {kinds}"
        )
        before = kind


def check_closed(run: SessionRun) -> None:
    """Two catchains later nothing is open, anywhere."""
    world = run.world
    for _ in range(LIFE_IN_CATCHAINS):
        world.switch([], advances=True)
        world.timeline.run(world.timeline.now + 2.0)
    final = {one for block in world.chain.final for one in block.message_ids}
    for node in world.honest:
        for message_id, statuses in node.told.items():
            is_closed = message_id in final or statuses[-1].status in (Status.REJECTED, Status.TIMEOUT)
            assert is_closed, (
                f"node {node.number} has told {[kind_of(one).name for one in statuses]} of "
                f"{message_id.hex()[:8]}, and nothing more"
            )
    check_always(run)
