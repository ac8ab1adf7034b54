"""One member that holds a real key and breaks rules, among validators of the real shell: invented origins, forks at a switch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import sha256

import pytest

from rigs.catchain_keys import seed_of
from rigs.remp_overlay_world import SEQNO, House, OverlayWorld, message_bytes, parse
from stagepost.catchain.block import Block, Dependency, block_id, data_hash
from stagepost.catchain.budgets import AuthorAccount
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.message import MessageBody, Origin, header_of
from stagepost.remp.queue.message_cache import ORIGINS_MAX
from stagepost.remp.queue.records import (
    HandOver,
    Header,
    Record,
    Totals,
    amounts_in,
    encode_payload,
    payload_bytes,
)
from stagepost.validator import sessions
from stagepost.validator.sessions import LINGER_S

HOSTILE = 3
HONEST = (0, 1, 2)
SETTLED_S = 3.0


class HostileMember:
    """The key of member `HOSTILE` in the session at work, whose own core is silent from now on."""

    def __init__(self, world: OverlayWorld) -> None:
        (self.runner,) = world.houses[HOSTILE].running.current.values()
        self.world = world
        self.number = 1_000
        member = self.runner.member
        member._is_halted = True
        self.previous: Dependency = self.runner.graph.top(HOSTILE).reference
        self.account: AuthorAccount = member.account

    def block(self, records: Sequence[Record]) -> Block:
        """Return a block in the place behind `previous`, with true date and totals."""
        graph = self.runner.graph
        self.number += 1
        size = payload_bytes([Totals(), *records])
        now_ms = int(self.world.clock.unix_s() * 1_000)
        totals = self.account.totals.plus(amounts_in(records, size), now_ms)
        payload = encode_payload([totals, *records], self.number)
        height = self.previous.height + 1
        of_data = data_hash(payload, self.previous, (), graph.rules.version)
        content = block_id(graph.incarnation, graph.key_ids[HOSTILE], height, of_data)
        signature = ed25519.sign(seed_of(HOSTILE), content)
        return Block(graph.incarnation, HOSTILE, height, self.previous, (), signature, payload)

    def show(self, frame: bytes, to: Sequence[int] = HONEST) -> None:
        for peer in to:
            assert self.runner._overlay.push(peer, frame)


def header(number: int, full_node: bytes, hand_over: HandOver) -> Header:
    return header_of(parse(message_bytes(number)), Origin(full_node, HOSTILE, 1, hand_over), SEQNO)


def blamed_by(house: House) -> set[int]:
    return {one for runner in house.running.sessions.values() for one in runner.graph.blamed}


async def close(world: OverlayWorld) -> None:
    for house in world.houses:
        await house.running.close()


# Invented origins

INVENTED = [sha256(b"full node %d" % number).digest() for number in range(2 * ORIGINS_MAX)]


def who_tells_the_true_one() -> set[int]:
    """Return which honest validators tell the full node of its message, which a member announces first with invented names."""
    told: set[int] = set()

    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        hostile = HostileMember(world)
        hand_over = HandOver(1, b"s" * ed25519.SIGNATURE_BYTES)
        hostile.show(hostile.block([header(1, one, hand_over) for one in INVENTED]).encode())
        hostile.show(MessageBody(message_bytes(1)).encode())
        await asyncio.sleep(1.0)
        world.wires.cut.add(HOSTILE)
        kinds = world.kinds_of(world.hand_over(message_bytes(1)))
        await asyncio.sleep(SETTLED_S)
        kinds = world.kinds_of(parse(message_bytes(1)).message_id)
        told.update(house.number for house in world.houses if "PutIntoQueue" in kinds.get(house.key_id, ()))
        assert not any(blamed_by(world.houses[one]) for one in HONEST)
        await close(world)

    run_in_virtual_time(main())
    return told


def test_invented_origins_keep_no_honest_validator_from_telling_the_true_one() -> None:
    assert who_tells_the_true_one() == set(HONEST)


def test_a_planted_defect_that_believes_every_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "names_its_sender", lambda named, keys: True)
    assert who_tells_the_true_one() < set(HONEST)


# Forks at a switch


async def at_a_switch(world: OverlayWorld) -> HostileMember:
    """Let a member announce a message in two ways at one place, one to each half, just after the others went on."""
    world.start()
    await asyncio.sleep(1.0)
    world.hand_over(message_bytes(1))
    await asyncio.sleep(SETTLED_S)
    hostile = HostileMember(world)
    for house in world.houses:
        (first,) = house.plans
        following = world.plan_for(house.number, b"second", seqno=SEQNO + 1)
        house.plans[:] = [following]
        house.running.switch(first.session_id, [following])
    one, other = (
        hostile.block([header(number, FULL_NODE_ID, HandOver(0, b""))]).encode() for number in (2, 3)
    )
    hostile.show(one, HONEST[:1])
    hostile.show(other, HONEST[1:])
    return hostile


FULL_NODE_ID = bytes(32)


def test_a_fork_in_a_session_that_has_ended_is_blamed_there_and_changes_nothing_later() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        hostile = await at_a_switch(world)
        await asyncio.sleep(LINGER_S / 2)
        old = hostile.runner.plan.session_id
        for number in HONEST:
            running = world.houses[number].running
            assert set(running.sessions[old].graph.blamed) == {HOSTILE}
            (now,) = running.current.values()
            assert not now.graph.blamed, "who lied in one session begins the next one like all others"
        await asyncio.sleep(LINGER_S)
        queues = [next(iter(world.houses[one].running.current.values())).queue for one in HONEST]
        assert parse(message_bytes(1)).message_id in queues[0].known_ids
        # What the two branches announced is known to all of them, or to none.
        assert queues[0].known_ids == queues[1].known_ids == queues[2].known_ids
        await close(world)

    run_in_virtual_time(main())


def test_a_block_of_the_session_before_is_no_fork_of_this_one() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        hostile = await at_a_switch(world)
        frame = hostile.block([]).encode()
        (now,) = world.houses[HOSTILE].running.current.values()
        for peer in HONEST:
            assert now._overlay.push(peer, frame)
        await asyncio.sleep(SETTLED_S)
        for number in HONEST:
            (runner,) = world.houses[number].running.current.values()
            assert not runner.graph.blamed
            assert runner.counters.refused["WrongIncarnation"] == 1
        await close(world)

    run_in_virtual_time(main())
