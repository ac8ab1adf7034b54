"""Many sessions over one overlay, and objects that are too large for a link: in parts, in order, within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX
from stagepost.errors import DecodeError, LocalProtocolError
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.links.large_objects import (
    GIVE_UP_S,
    LARGE_BYTES_MAX,
    PART_BYTES_MAX,
    PARTS_MAX,
    WAITING_BYTES_MAX,
    Part,
)
from stagepost.remp.links.overlay import Answered
from stagepost.remp.links.switchboard import (
    EARLY_BYTES_MAX,
    EARLY_CHANNELS_MAX,
    EARLY_OBJECTS_MAX,
    Channel,
    Switchboard,
)
from tests.worlds.remp.remp_links import Heard

KEYS = tuple(bytes([number]) * 32 for number in range(3))
CHANNEL, OTHER = b"c" * 32, b"d" * 32


class Wire:
    """Both ends' overlay; what is pushed arrives at once while `room` lasts."""

    def __init__(self) -> None:
        self.boards = [Switchboard(KEYS, key) for key in KEYS[:2]]
        self.ends = [End(self, 0), End(self, 1)]
        for board, end in zip(self.boards, self.ends, strict=True):
            board.start(end)
        self.heard = [Heard(), Heard()]

    def open(self, end: int, channel_id: bytes = CHANNEL) -> Channel:
        """The session's order is not the overlay's."""
        return self.boards[end].open(channel_id, [KEYS[1], KEYS[0]], self.heard[end])


class End:
    def __init__(self, wire: Wire, place: int) -> None:
        self.wire = wire
        self.place = place
        self.room = 1_000
        self.pushed: list[bytes] = []
        self.loses: Callable[[bytes], bool] = lambda frame: False
        self.refused: list[tuple[int, str, str]] = []

    def push(self, peer: int, frame: bytes) -> bool:
        assert len(frame) <= OBJECT_BYTES_MAX
        assert peer == 1 - self.place
        if self.room <= 0:
            return False
        self.room -= 1
        self.pushed.append(frame)
        if not self.loses(frame):
            self.wire.boards[peer].pushed(self.place, frame)
        return True

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()

        def reply(answer: bytes) -> None:
            assert len(answer) <= OBJECT_BYTES_MAX
            answered(answer)  # behind what was pushed before it, as on a link

        loop.call_soon(self.wire.boards[peer].asked, self.place, query, reply)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self.refused.append((peer, rule, text))


@pytest.mark.parametrize("size", [4, OBJECT_BYTES_MAX - 36, OBJECT_BYTES_MAX - 35, LARGE_BYTES_MAX - 36])
def test_objects_of_every_size_arrive_whole_under_the_sender_s_place_in_the_session(size: int) -> None:
    async def main() -> None:
        wire = Wire()
        here, _ = wire.open(0), wire.open(1)
        frame = bytes(range(256)) * (size // 256 + 1)
        assert here.push(0, frame[:size])
        assert wire.heard[1].pushes == [(1, frame[:size])]
        is_whole = size + 36 <= OBJECT_BYTES_MAX
        assert len(wire.ends[0].pushed) == (1 if is_whole else -(-(size + 36) // PART_BYTES_MAX))

    run_in_virtual_time(main())


def test_an_object_over_the_limit_is_our_own_mistake() -> None:
    async def main() -> None:
        wire = Wire()
        with pytest.raises(LocalProtocolError):
            wire.open(0).push(0, bytes(LARGE_BYTES_MAX - 35))

    run_in_virtual_time(main())


def test_large_answers_come_back_whole() -> None:
    async def main() -> None:
        wire = Wire()
        here, _ = wire.open(0), wire.open(1)
        large = b"answer" * 50_000
        wire.heard[1].answers = lambda query, reply: reply(large)
        answers: list[bytes | None] = []
        here.ask(0, b"query", answers.append, 1.0)
        here.ask(0, b"query", answers.append, 1.0)
        await asyncio.sleep(0.1)
        assert answers == [large, large]
        wire.ends[1].loses = lambda frame: True
        here.ask(0, b"query", answers.append, 1.0)
        await asyncio.sleep(0.1)
        assert answers[2] is None

    run_in_virtual_time(main())


def test_of_an_object_with_a_lost_part_nothing_arrives_and_the_next_one_does() -> None:
    async def main() -> None:
        wire = Wire()
        here, _ = wire.open(0), wire.open(1)
        lost = iter([False, True, False, False])
        wire.ends[0].loses = lambda frame: next(lost, False)
        here.push(0, b"a" * (3 * PART_BYTES_MAX))
        here.push(0, b"b" * (2 * PART_BYTES_MAX))
        assert [frame[:1] for _, frame in wire.heard[1].pushes] == [b"b"]

    run_in_virtual_time(main())


def test_a_slow_peer_gets_the_rest_later_small_objects_pass_and_a_dead_one_is_given_up() -> None:
    async def main() -> None:
        wire = Wire()
        here, _ = wire.open(0), wire.open(1)
        end, heard = wire.ends[0], wire.heard[1]
        end.room = 2
        assert here.push(0, b"l" * (5 * PART_BYTES_MAX))
        assert heard.pushes == []
        end.room = 1
        assert here.push(0, b"small")
        assert heard.pushes == [(1, b"small")]
        end.room = 1_000
        await asyncio.sleep(0.1)
        assert len(heard.pushes) == 2
        end.room = 0
        large = bytes(LARGE_BYTES_MAX - 36)
        taken = [here.push(0, large) for _ in range(WAITING_BYTES_MAX // LARGE_BYTES_MAX + 1)]
        assert taken == [True] * (WAITING_BYTES_MAX // LARGE_BYTES_MAX) + [False]
        await asyncio.sleep(GIVE_UP_S + 0.5)
        end.room = 1_000
        await asyncio.sleep(0.5)
        assert len(heard.pushes) == 2
        assert here.push(0, large)
        assert len(heard.pushes) == 3

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("index", "count"), [(0, 0), (0, 1), (2, 2), (0, PARTS_MAX + 1), (PARTS_MAX, PARTS_MAX)]
)
def test_parts_that_cannot_be_are_refused(index: int, count: int) -> None:
    with pytest.raises(DecodeError):
        Part.decode(Part(1, False, index, count, b"data").encode())
    assert Part.decode(Part(1, True, PARTS_MAX - 1, PARTS_MAX, b"data").encode()).count == PARTS_MAX


def test_what_comes_before_the_session_began_here_waits_for_it() -> None:
    async def main() -> None:
        wire = Wire()
        here = wire.open(0)
        answers: list[bytes | None] = []
        for number in range(EARLY_OBJECTS_MAX + 5):
            here.push(0, b"frame %d" % number)
        await asyncio.sleep(0)
        wire.open(1)
        assert wire.heard[1].pushes == []
        wire.boards[1].hand_over_early(CHANNEL)
        assert len(wire.heard[1].pushes) == EARLY_OBJECTS_MAX
        other = wire.open(0, OTHER)
        other.ask(0, b"query", answers.append, 1.0)
        await asyncio.sleep(0.01)
        assert answers == []
        wire.open(1, OTHER)
        wire.boards[1].hand_over_early(OTHER)
        await asyncio.sleep(0.01)
        assert answers == [b"query"]

    run_in_virtual_time(main())


def test_what_waits_for_all_sessions_has_a_limit_in_bytes() -> None:
    async def main() -> None:
        wire = Wire()
        fits = EARLY_BYTES_MAX // LARGE_BYTES_MAX
        for number in range(fits + 1):
            wire.open(0, bytes([number]) * 32).push(0, bytes(LARGE_BYTES_MAX - 36))
        for number in range(fits + 1):
            wire.open(1, bytes([number]) * 32)
            wire.boards[1].hand_over_early(bytes([number]) * 32)
        assert len(wire.heard[1].pushes) == fits
        wire.open(0, OTHER).push(0, bytes(LARGE_BYTES_MAX - 36))
        wire.open(1, OTHER)
        wire.boards[1].hand_over_early(OTHER)
        assert len(wire.heard[1].pushes) == fits + 1

    run_in_virtual_time(main())


def test_of_sessions_that_never_begin_the_oldest_is_forgotten() -> None:
    async def main() -> None:
        wire = Wire()
        for number in range(EARLY_CHANNELS_MAX + 1):
            wire.open(0, bytes([number]) * 32).push(0, b"frame")
        for number in range(EARLY_CHANNELS_MAX + 1):
            wire.open(1, bytes([number]) * 32)
            wire.boards[1].hand_over_early(bytes([number]) * 32)
        assert len(wire.heard[1].pushes) == EARLY_CHANNELS_MAX

    run_in_virtual_time(main())


def test_for_a_session_that_has_ended_nothing_waits_and_queries_are_turned_away() -> None:
    async def main() -> None:
        wire = Wire()
        here = wire.open(0)
        wire.open(1)
        wire.boards[1].close(CHANNEL)
        here.push(0, b"frame")
        answers: list[bytes | None] = []
        here.ask(0, b"query", answers.append, 1.0)
        await asyncio.sleep(0.01)
        assert answers == [None]
        wire.open(1)
        wire.boards[1].hand_over_early(CHANNEL)
        assert wire.heard[1].pushes == []

    run_in_virtual_time(main())


def test_who_is_no_member_of_a_session_has_nothing_to_say_in_it() -> None:
    async def main() -> None:
        wire = Wire()
        wire.boards[1].open(CHANNEL, [KEYS[1], KEYS[2]], wire.heard[1])
        with pytest.raises(DecodeError):
            wire.open(0).push(0, b"frame")
        with pytest.raises(DecodeError):
            wire.boards[1].pushed(0, b"no channel")
        assert wire.heard[1].pushes == []

    run_in_virtual_time(main())


def test_a_member_without_a_place_in_the_overlay_is_never_reached() -> None:
    async def main() -> None:
        wire = Wire()
        channel = wire.boards[0].open(CHANNEL, [KEYS[0], b"x" * 32], wire.heard[0])
        answers: list[bytes | None] = []
        assert not channel.push(1, b"frame")
        channel.ask(1, b"query", answers.append, 1.0)
        assert answers == []
        await asyncio.sleep(0.01)
        assert answers == [None]

    run_in_virtual_time(main())


def test_links_are_told_to_every_session_that_has_the_member() -> None:
    async def main() -> None:
        wire = Wire()
        wire.open(0)
        wire.boards[0].linked(1)
        wire.boards[0].linked(2)
        assert wire.heard[0].links == [0]

    run_in_virtual_time(main())
