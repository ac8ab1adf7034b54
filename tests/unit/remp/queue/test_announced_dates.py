"""The order of messages where members lie about the time: the median of all members' dates bounds every date."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec
import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import Block, Dependency, block_id, data_hash, decode_update, root_reference
from stagepost.catchain.budgets import AuthorAccount
from stagepost.catchain.dates import DateRules, block_dates, first_dates, median
from stagepost.catchain.effects import Deliver, Effect, Persist
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import AHEAD_MS_MAX, Member, MemberOptions
from stagepost.catchain.payloads import read_fork_proof, upper_part
from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.remp.queue.records import (
    Header,
    Totals,
    amounts_in,
    date_in,
    date_rules,
    decode_payload,
    encode_payload,
    payload_bytes,
)
from stagepost.remp.queue.state import SKEW_MS
from tests.worlds.catchain.catchain_attackers import Attacker, Backdater, Foredater, world_with
from tests.worlds.catchain.catchain_world import World
from tests.worlds.catchain.members_world import verify_once
from tests.worlds.remp.queue_world import FULL_NODE, Validator, message

LIAR = 3
START_MS = 1_000_000


def a_world(kind: type[Attacker], size: int = 4, *, has_floor: bool = True) -> World:
    world = world_with(size, 1, {LIAR: kind}, loss=0.0)
    if not has_floor:
        world.dates = date_rules(0, 1 << 40)  # no date is too early
    world.start_all()
    return world


def validator(world: World, index: int) -> Validator:
    found = world.peers[index]
    assert isinstance(found, Validator)
    return found


def order_at(world: World, index: int) -> list[bytes]:
    found, _ = validator(world, index).queue.take(world.now, 10)
    return [one.message_id for one in found]


def _order_of_honest_and_backdated(*, has_floor: bool) -> tuple[list[bytes], list[bytes]]:
    world = a_world(Backdater, has_floor=has_floor)
    first, second = message(1), message(2)
    world.run(60.0)
    validator(world, 0).hand_over(first)
    world.run(70.0)
    validator(world, LIAR).hand_over(second)
    world.run(72.0)
    return order_at(world, 1), [first.message_id, second.message_id]


def test_an_announcement_dated_to_1970_does_not_go_before_what_is_older_than_the_skew() -> None:
    found, wanted = _order_of_honest_and_backdated(has_floor=True)
    assert found == wanted


def test_without_a_floor_the_liar_would_go_first() -> None:
    found, wanted = _order_of_honest_and_backdated(has_floor=False)
    assert found == wanted[::-1]


def test_members_that_only_listen_date_their_blocks_too() -> None:
    world = a_world(Backdater)
    world.run(60.0)
    newest = validator(world, 0).member.graph.top(0).dates
    assert newest is not None
    # A block is made every 4 s at the latest, and each rests on the others' last ones.
    assert newest.floor_ms > (60 - 2 * 4 - 1) * 1_000 - SKEW_MS


def test_blocks_that_hold_a_date_alone_ask_for_no_answer() -> None:
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(60.0)
    heights = [validator(world, 0).member.graph.top(one).height for one in range(4)]
    assert max(heights) <= 60 / 4 + 1


def test_a_member_that_dates_ahead_delays_its_own_announcements_and_nobody_elses() -> None:
    world = a_world(Foredater)
    world.run(60.0)
    ours, its = message(1), message(2)
    validator(world, LIAR).hand_over(its)
    validator(world, 0).hand_over(ours)
    world.run(61.0)
    assert order_at(world, 1) == [ours.message_id]
    assert its.message_id not in validator(world, 1).queue.known_ids
    world.run(66.0)
    assert its.message_id in validator(world, 1).queue.known_ids
    floors = validator(world, 1).member.graph.top(1).dates
    assert floors is not None
    assert floors.floor_ms <= 66_000, "a date in the future moved the median"


def test_whoever_got_the_message_before_announces_it_beside_a_late_date() -> None:
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(20.0)
    peer, one = validator(world, 0), message(1)
    peer.queue.offer(one, FULL_NODE, world.now)
    pending, announced = peer.queue._state.pending, _waiting_headers(peer)
    assert [header.message_id for header in announced] == [one.message_id]
    at_ms = announced[0].timestamp_ms
    for late_ms, is_kept in ((at_ms + SKEW_MS, False), (at_ms + SKEW_MS + 1, True)):
        header = msgspec.structs.replace(announced[0], timestamp_ms=late_ms, source_index=2)
        pending.add(announced[0])
        peer.queue.block_delivered(2, encode_payload([Totals(late_ms), header], 1), world.now, 0)
        assert bool(_waiting_headers(peer)) is is_kept, late_ms - at_ms


def _waiting_headers(peer: Validator) -> list[Header]:
    return [one for one in peer.queue._state.pending._waiting.values() if isinstance(one, Header)]


# The median, recomputed from the blocks alone


@pytest.mark.parametrize("seed", range(3))
def test_floors_are_medians_of_what_all_members_said_before(seed: int) -> None:
    size = 4 if seed % 2 else 7
    world = world_with(size, seed, {LIAR: Backdater if seed % 3 else Foredater}, loss=0.05)
    world.start_all()
    random = Random(seed)
    for number in range(10):
        index = random.randrange(size)
        world.at(random.uniform(1.0, 20.0), partial(_hand, world, index, number))
    world.run(25.0)
    peer = validator(world, 0)
    blocks = {}
    for frame in peer.disk:
        block = decode_update(frame)
        blocks[peer.member.graph.hash_of(block.reference(world.rules.version))] = block
    effective: dict[bytes, int] = {}
    for block_hash in blocks:
        _effective(peer.member.graph, blocks, block_hash, size, effective)
    compared = 0
    for block_hash, at_ms in effective.items():
        vertex = peer.member.graph.get(block_hash)
        if vertex is not None and vertex.dates is not None:
            assert vertex.dates.newest[vertex.source] == at_ms, f"seed {seed}"
            compared += 1
    assert compared > 10


def _hand(world: World, index: int, number: int) -> None:
    validator(world, index).hand_over(message(number))


def _effective(
    graph: Graph, blocks: dict[bytes, Block], block_hash: bytes, size: int, known: dict[bytes, int]
) -> int | None:
    """The effective date of a block by its definition; None if one of its ancestors is not here."""
    if block_hash in known:
        return known[block_hash]
    pending = [graph.hash_of(one) for one in _parents(blocks[block_hash])]
    past: set[bytes] = set()
    while pending:
        one = pending.pop()
        if one == graph.incarnation or one in past:
            continue
        if one not in blocks:
            return None
        past.add(one)
        pending += [graph.hash_of(parent) for parent in _parents(blocks[one])]
    newest, own = [0] * size, 0
    for one in past:
        at_ms, block = _effective(graph, blocks, one, size, known), blocks[one]
        assert at_ms is not None
        newest[block.source] = max(newest[block.source], at_ms)
        if block.source == blocks[block_hash].source:
            own = max(own, _date(block) or 0)
    floor_ms = sorted(newest)[(size - 1) // 2] - SKEW_MS
    known[block_hash] = max(floor_ms, own, _date(blocks[block_hash]) or 0)
    return known[block_hash]


def _parents(block: Block) -> tuple[Dependency, ...]:
    return (block.previous, *block.dependencies)


def _date(block: Block) -> int | None:
    try:
        first = decode_payload(block.payload)[0]
    except DecodeError:
        return None
    return first.date_ms if isinstance(first, Totals) else None


def test_a_minority_cannot_move_the_median_out_of_what_the_others_said() -> None:
    for size in range(4, 22):
        liars = (size - 1) // 3
        honest = [100 + number for number in range(size - liars)]
        for lie in (0, 1 << 60):
            assert honest[0] <= median([*honest, *[lie] * liars]) <= honest[-1]


def test_dates_do_not_fall_along_a_chain() -> None:
    rules = DateRules(
        START_MS,
        10,
        lambda payload: int.from_bytes(payload, "big") or None,
        lambda payload: False,
        lambda payload: None,
    )
    first = first_dates(rules, 4)
    later = block_dates(rules, 0, (START_MS + 50).to_bytes(8, "big"), first, ())
    back = block_dates(rules, 0, (START_MS + 20).to_bytes(8, "big"), later, ())
    silent = block_dates(rules, 0, b"", back, ())
    assert [one.own_ms for one in (later, back, silent)] == [START_MS + 50] * 3
    assert later.floor_ms == START_MS - 10


# Held back: one block of each member


class Clocked:
    """A member of four with a clock of its own, and blocks of member 1."""

    def __init__(self) -> None:
        keys = [public_key_of(one) for one in range(4)]
        dates = date_rules(START_MS, SKEW_MS)
        self.unix_ms = START_MS
        self.delivered: list[Deliver] = []
        self.made: list[bytes] = []
        self.member = self._member(keys, 0, dates)
        self._author = self._member(keys, 1, dates)
        self._dates: list[int] = []
        self.frames: list[bytes] = []

    def _member(self, keys: list[bytes], index: int, dates: DateRules) -> Member:
        graph = Graph(bytes(32), keys, GraphRules(), verify=verify_once, dates=dates)
        options = MemberOptions(start_wait_s=0.0)
        member = Member(
            graph, index, seed_of(index), self._next, Random(1), 0.0, options, unix_ms=lambda: self.unix_ms
        )
        member.tick(0.0)
        return member

    def _next(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        return self._payload(account, self._dates.pop(0)) if self._dates else None

    def _payload(self, account: AuthorAccount, date_ms: int, number: int = 0) -> bytes:
        totals = account.totals.plus(amounts_in([], payload_bytes([Totals()])), date_ms)
        return encode_payload([totals], number)

    def block_of(self, date_ms: int, now: float) -> bytes:
        self._dates.append(date_ms)
        made = [one for one in self._author.tick(now) if isinstance(one, Persist)]
        made += [one for one in self._author.speak_soon(now) if isinstance(one, Persist)]
        self._author.stored(made[0].block_hash, now)
        self.frames.append(made[0].frame)
        return made[0].frame

    def fork(self, date_ms: int) -> bytes:
        """Return a second block of member 1 at height 1, with this date."""
        payload, graph = self._payload(AuthorAccount(), date_ms, 99), self.member.graph
        root = root_reference(graph.incarnation, graph.size)
        of_data = data_hash(payload, root, (), graph.rules.version)
        signature = ed25519.sign(seed_of(1), block_id(graph.incarnation, graph.key_ids[1], 1, of_data))
        return Block(graph.incarnation, 1, 1, root, (), signature, payload).encode()

    def show(self, frame: bytes, now: float) -> None:
        self.do(self.member.frame_received(1, frame, now), now)

    def tick(self, now: float) -> None:
        self.do(self.member.tick(now), now)

    def do(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.made += [effect.frame] if effect.is_own else []
                self.do(self.member.stored(effect.block_hash, now), now)
            elif isinstance(effect, Deliver):
                self.delivered.append(effect)


def test_a_block_is_taken_at_the_skew_and_held_beyond_it() -> None:
    clocked = Clocked()
    clocked.show(clocked.block_of(START_MS + SKEW_MS, 20.0), 20.0)
    assert len(clocked.delivered) == 1
    clocked.show(clocked.block_of(START_MS + SKEW_MS + 1, 40.0), 40.0)
    assert len(clocked.delivered) == 1
    assert clocked.member.next_wake <= 40.001
    clocked.unix_ms += 1
    clocked.tick(40.001)
    assert len(clocked.delivered) == 2


def test_a_block_with_a_fork_proof_has_date_and_totals_too() -> None:
    clocked = Clocked()
    clocked.show(clocked.block_of(START_MS, 20.0), 20.0)
    clocked.made.clear()
    clocked._dates.append(START_MS + 7)
    clocked.show(clocked.fork(START_MS + 1), 21.0)
    (frame,) = clocked.made
    payload = decode_update(frame).payload
    proof, upper = read_fork_proof(payload), upper_part(payload)
    assert proof is not None
    assert upper is not None
    assert (proof.source, date_in(upper)) == (1, START_MS + 7)
    own = clocked.member.graph.top(0)
    assert own.dates is not None
    assert own.dates.own_ms == START_MS + 7


def test_one_block_of_each_member_is_held() -> None:
    clocked = Clocked()
    frames = [clocked.block_of(START_MS + SKEW_MS + 1_000 * number, 20.0 * number) for number in (1, 2, 3)]
    for frame in reversed(frames):
        clocked.show(frame, 61.0)
    assert len(clocked.member._ahead) == 1
    clocked.unix_ms += 10_000
    clocked.tick(62.0)
    assert [one.height for one in clocked.delivered] == [1]


def test_a_date_beyond_all_bounds_is_looked_at_again_and_held_again() -> None:
    clocked = Clocked()
    clocked.show(clocked.block_of(1 << 60, 20.0), 20.0)
    clocked.tick(20.0 + AHEAD_MS_MAX / 1_000)
    assert not clocked.delivered
    assert len(clocked.member._ahead) == 1
