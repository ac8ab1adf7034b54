"""Members of a session over authenticated links: one link a pair, objects and queries, and what becomes of breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from stagepost.catchain.block import BLOCK_BYTES_MAX, UPDATE_ID
from stagepost.catchain.overlay_protocol import OBJECT_BYTES_MAX
from stagepost.catchain.query_window import QUERIES_ASKED_MAX, QUERY_LIFE_S
from stagepost.errors import ConfigError, DecodeError, ErrorCode, HandshakeRefused, LocalProtocolError
from stagepost.ground.net.back_off import PENALTY_FIRST_S, RETRY_JITTER
from stagepost.ground.net.keep_alive_protocol import PING_INTERVAL_S
from stagepost.ground.net.network import SocketNetwork, TcpAddress, UnixAddress
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.links.listener import SESSIONS_MAX, LinkListener
from stagepost.remp.links.opening import initiate_link
from stagepost.remp.links.overlay_links import KNOCK_AFTER_S, KNOCK_EVERY_S, LinkMember, OverlayLinks
from stagepost.remp.links.versions import LinkKind
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.network import ProcessNetwork
from stagepost.simulation.processes import Process, follow_tasks
from tests.worlds.remp.remp_links import (
    OTHER_SESSION,
    PORT,
    SESSION,
    Heard,
    MemberNode,
    SimulatedMembers,
    an_end,
    host_of,
    in_virtual_time,
    key_of,
    later,
    on_sockets,
    until,
)


def with_members(count: int, scenario: Callable[[SimulatedMembers], Awaitable[None]]) -> None:
    async def main() -> None:
        world = SimulatedMembers(count)
        await world.start()
        await world.all_linked()
        try:
            await scenario(world)
        finally:
            await world.stop()

    in_virtual_time(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()


# One link for each pair


def test_every_pair_of_members_gets_one_link_and_each_side_is_told_once() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        for index, node in enumerate(world.nodes):
            others = [other for other in range(4) if other != index]
            assert node.overlay.linked == others
            assert sorted(node.heard.links) == others

    with_members(4, scenario)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_same_links_run_on_sockets_of_this_machine(kind: str, tmp_path: Path) -> None:
    async def scenario(nodes: list[MemberNode]) -> None:
        await until(lambda: all(len(node.overlay.linked) == 2 for node in nodes), within_s=30)
        answers: list[bytes | None] = []
        assert nodes[0].overlay.push(2, b"from zero")
        assert nodes[2].overlay.push(0, b"from two")
        nodes[1].overlay.ask(2, b"anybody?", later(answers), 5.0)
        await until(lambda: bool(nodes[2].heard.pushes and nodes[0].heard.pushes and answers), within_s=30)
        assert nodes[2].heard.pushes == [(0, b"from zero")]
        assert nodes[0].heard.pushes == [(2, b"from two")]
        assert answers == [b"anybody?"]

    folder = tmp_path / "sockets"
    addresses = [
        TcpAddress("127.0.0.1", 0) if kind == "tcp" else UnixAddress(folder / f"{number}.socket")
        for number in range(3)
    ]
    asyncio.run(on_sockets(SocketNetwork(), addresses, scenario))


@pytest.mark.parametrize("contrary", [2, 3])
def test_members_that_have_each_other_in_another_order_are_linked_once_and_again_after_breaks(
    contrary: int,
) -> None:
    """Two proposals were made at once, and operators added their members one after the other, each in an order of its own. Then
    both new members would dial, or neither."""

    async def main() -> None:
        world = SimulatedMembers(4)
        # Both have itself first, or both have the other one first.
        orders = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
        orders[contrary] = [0, 1, 3, 2]
        nodes = [await world.node(number, order=order) for number, order in enumerate(orders)]
        for node in nodes:
            node.start()

        def are_linked() -> bool:
            return all(len(node.overlay.linked) == 3 for node in nodes)

        await until(are_linked, within_s=KNOCK_AFTER_S + 3.0)
        await asyncio.sleep(3 * KNOCK_EVERY_S)
        told = [len(node.heard.links) for node in nodes]
        await asyncio.sleep(3 * KNOCK_EVERY_S)
        assert [len(node.heard.links) for node in nodes] == told, "links that stand are left alone"
        for side in (2, 3):
            world.network.partition(host_of(2), host_of(3))
            await until(lambda: not are_linked(), within_s=300.0)
            world.network.heal(host_of(2), host_of(3))
            await until(are_linked, within_s=2 * KNOCK_EVERY_S)
            await nodes[side].stop()
            await asyncio.sleep(1.0)
            nodes[side] = await world.node(side, order=orders[side])
            nodes[side].start()
            await until(are_linked, within_s=2 * KNOCK_EVERY_S)
        for node in nodes:
            await node.stop()

    in_virtual_time(main())


def test_a_member_that_comes_back_before_its_old_link_is_missed_replaces_it() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        older, their_end = world.nodes[0], world.nodes[1].overlay._links[0]
        # What it says is on its way for ever: nobody is told that it has gone, and the other end of its link stands.
        world.network.partition(host_of(0), host_of(1))
        world.nodes[0] = again = await world.node(0, host="10.0.0.99")
        again.start()
        await until(lambda: again.overlay.linked == [1])
        assert world.nodes[1].overlay.linked == [0]
        assert world.nodes[1].heard.links == [0, 0]
        assert their_end.bearer.is_over, "nothing is kept of the one that was replaced"
        assert world.nodes[1].overlay.push(0, b"to the new one")
        await until(lambda: again.heard.pushes == [(1, b"to the new one")])
        assert older.heard.pushes == []
        await older.stop()

    with_members(2, scenario)


def test_a_member_that_was_away_for_an_hour_is_linked_soon_after_it_knocks() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        await world.nodes[1].stop()
        await asyncio.sleep(3_600)
        world.nodes[1] = again = await world.node(1)
        again.start()
        back_at = now_s()
        await until(lambda: again.overlay.linked == [0, 2])
        assert now_s() - back_at <= KNOCK_AFTER_S + 1.0
        assert again.heard.links.count(0) == again.heard.links.count(2) == 1

    with_members(3, scenario)


def test_a_member_that_came_back_unnoticed_is_dialled_again_when_it_knocks() -> None:
    async def main() -> None:
        follow_tasks(asyncio.get_running_loop())
        world = SimulatedMembers(2)
        first = await world.node(0)
        process = Process("member 1", 1)
        gone = await process.run(world.node(1))
        first.start()
        process.call(gone.start)
        # Until right after a keep-alive: the next one would find out by itself.
        await until(lambda: first.overlay.linked == [1])
        await asyncio.sleep(PING_INTERVAL_S + 1)
        host = gone.end.network
        assert isinstance(host, ProcessNetwork)
        host.crash(reset=False)
        process.kill()
        again = await world.node(1)
        again.start()
        back_at = now_s()
        await asyncio.sleep(1)
        assert first.overlay.linked == [1], "it has noticed nothing"
        assert again.overlay.linked == []
        await until(lambda: again.overlay.linked == [0])
        assert now_s() - back_at <= KNOCK_AFTER_S + 1.5
        await until(lambda: first.heard.links == [1, 1], within_s=1.0)
        await again.stop()
        await first.stop()

    in_virtual_time(main())


def test_a_knock_that_crossed_a_new_link_leaves_it_alone() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        async def knock() -> None:
            end = an_end(1, world.network.process(host_of(1)))
            bearer = await end.network.connect(TcpAddress(host_of(0), PORT))
            with pytest.raises(HandshakeRefused, match="the lower index dials"):
                await initiate_link(bearer, end, LinkKind.CATCHAIN, SESSION, key_of(0))
            await bearer.wait_closed()

        await knock()
        await asyncio.sleep(KNOCK_AFTER_S)
        assert world.nodes[0].heard.links == [1]
        await knock()
        await until(lambda: world.nodes[0].heard.links == [1, 1], within_s=3.0)

    with_members(2, scenario)


def test_a_knock_does_not_shorten_the_time_for_which_a_member_is_left_alone() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        world.nodes[0].overlay.refuse(1, "BadSignature", "a block that nobody signed")
        await until(lambda: not world.nodes[0].overlay.linked and not world.nodes[1].overlay.linked)
        gone_at = now_s()
        await world.nodes[1].stop()
        world.nodes[1] = again = await world.node(1)
        again.start()
        await until(lambda: again.overlay.linked == [0])
        assert now_s() - gone_at >= PENALTY_FIRST_S

    with_members(2, scenario)


def test_links_that_were_reset_come_back_after_a_second() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        world.network.reset(host_of(0), host_of(1))
        await until(lambda: not world.nodes[0].overlay.linked)
        lost_at = now_s()
        await world.all_linked()
        assert 1.0 <= now_s() - lost_at <= 1.0 * (1 + RETRY_JITTER) + 0.2

    with_members(2, scenario)


def test_what_is_said_without_a_link_is_refused_at_once_and_counted() -> None:
    async def main() -> None:
        world = SimulatedMembers(2)
        world.nodes = [await world.node(0)]
        alone = world.nodes[0]
        alone.start()
        answers: list[bytes | None] = []
        assert not alone.overlay.push(1, b"anybody?")
        alone.overlay.ask(1, b"anybody?", later(answers), 1.0)
        assert answers == [], "never before the call returns"
        await asyncio.sleep(0)
        assert answers == [None]
        assert alone.overlay.counts.unlinked == 2
        await world.stop()

    in_virtual_time(main())


@pytest.mark.parametrize("seed", range(4))
def test_after_any_breaks_every_pair_is_linked_again_and_nothing_came_twice_or_out_of_order(
    seed: int,
) -> None:
    async def main() -> None:
        random = Random(seed)
        world = SimulatedMembers(4, LinkSettings(latency_s=0.02, jitter_s=0.05, cut_chance=0.2), seed)
        nodes = await world.start()
        said = 0
        for _ in range(100):
            one, other = random.sample(range(4), 2)
            match random.randrange(4):
                case 0:
                    world.network.reset(host_of(one), host_of(other))
                case 1:
                    world.network.partition(host_of(one), host_of(other))
                case 2:
                    world.network.heal_all()
            for _ in range(random.randrange(20)):
                one, other = random.sample(range(4), 2)
                said += 1
                nodes[one].overlay.push(
                    other, said.to_bytes(4, "big") + random.randbytes(random.randrange(2_000))
                )
            await asyncio.sleep(random.random() * 3)
        world.network.heal_all()
        await world.all_linked()
        came = 0
        for node in nodes:
            for peer in range(4):
                numbers = [frame[:4] for source, frame in node.heard.pushes if source == peer]
                assert numbers == sorted(set(numbers)), f"seed {seed}"
                came += len(numbers)
        assert came > said // 10, f"seed {seed}: {came} of {said} came"
        await world.stop()

    in_virtual_time(main())


# Objects


def test_objects_come_in_the_order_in_which_they_were_pushed() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        frames = [number.to_bytes(4, "big") * 75 for number in range(500)]
        for frame in frames:
            assert world.nodes[1].overlay.push(0, frame)
        await until(lambda: len(world.nodes[0].heard.pushes) == 500)
        assert world.nodes[0].heard.pushes == [(1, frame) for frame in frames]

    with_members(2, scenario)


def test_the_longest_object_passes_and_our_own_longer_one_never_leaves() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        overlay = world.nodes[0].overlay
        answers: list[bytes | None] = []
        assert overlay.push(1, bytes(OBJECT_BYTES_MAX))
        overlay.ask(1, bytes(OBJECT_BYTES_MAX), later(answers), 5.0)
        await until(lambda: bool(answers))
        assert world.nodes[1].heard.pushes == [(0, bytes(OBJECT_BYTES_MAX))]
        assert answers == [bytes(OBJECT_BYTES_MAX)]
        for wrong in (bytes(OBJECT_BYTES_MAX + 1), b"abc"):
            with pytest.raises(LocalProtocolError):
                overlay.push(1, wrong)
            with pytest.raises(LocalProtocolError):
                overlay.ask(1, wrong, later(answers), 5.0)
        assert overlay.linked == [1]

    with_members(2, scenario)


def test_a_block_of_16_KiB_passes_and_a_longer_one_ends_the_link() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        beginning = constructor_bytes(UPDATE_ID)
        longest = beginning + bytes(BLOCK_BYTES_MAX - len(beginning))
        assert world.nodes[0].overlay.push(1, longest)
        await until(lambda: world.nodes[1].heard.pushes == [(0, longest)])
        assert world.nodes[0].overlay.push(1, longest + b"\0")
        await until(lambda: world.nodes[1].overlay.linked == [])
        assert len(world.nodes[1].heard.pushes) == 1

    with_members(2, scenario)


def test_pushes_to_a_peer_that_takes_nothing_are_dropped_when_its_queue_is_full_and_nobody_waits() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        overlay = world.nodes[0].overlay
        frame = bytes(1_000)
        world.network.partition(host_of(0), host_of(1))
        accepted = 0
        for _ in range(2_000):
            accepted += overlay.push(1, frame)
            await asyncio.sleep(0)
        assert overlay.counts.dropped == 2_000 - accepted
        assert accepted * len(frame) > EGRESS_BYTES_MAX
        assert overlay.counts.dropped > 0
        assert not overlay.push(1, frame)
        world.network.heal_all()
        await until(lambda: len(world.nodes[1].heard.pushes) == accepted)
        assert overlay.push(1, frame), "there is room again"

    with_members(2, scenario)


# Queries


def test_answers_find_their_queries_in_whatever_order_they_come() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        replies: list[tuple[bytes, Callable[[bytes], None]]] = []
        world.nodes[1].heard.answers = lambda query, reply: replies.append((query, reply))
        answers: dict[int, bytes | None] = {}
        for number in range(5):
            query = f"query {number}".encode()
            world.nodes[0].overlay.ask(1, query, lambda answer, n=number: answers.update({n: answer}), 5.0)  # type: ignore[misc]
        await until(lambda: len(replies) == 5)
        for query, reply in reversed(replies):
            reply(query.upper())
            reply(b"once more")
        await until(lambda: len(answers) == 5)
        assert answers == {number: f"QUERY {number}".encode() for number in range(5)}
        assert world.nodes[1].overlay.counts.answers_late == 5, "the second words were not sent"
        assert world.nodes[0].overlay.linked == [1]

    with_members(2, scenario)


def test_an_asker_is_told_when_its_time_is_over_and_a_late_answer_harms_nobody() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        replies: list[Callable[[bytes], None]] = []
        world.nodes[1].heard.answers = lambda query, reply: replies.append(reply)
        answers: list[bytes | None] = []
        asked_at = now_s()
        world.nodes[0].overlay.ask(1, b"query", later(answers), 2.0)
        await until(lambda: bool(answers))
        assert answers == [None]
        assert now_s() - asked_at == pytest.approx(2.0, abs=0.01)
        replies[0](b"late")
        await asyncio.sleep(1)
        assert answers == [None]
        counts = world.nodes[0].overlay.counts
        assert (counts.queries_unanswered, counts.answers_late) == (1, 1)
        assert world.nodes[0].overlay.linked == [1]

    with_members(2, scenario)


def test_no_more_than_64_queries_are_under_way_until_the_life_of_the_first_is_over() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        world.nodes[1].heard.answers = lambda query, reply: None
        overlay = world.nodes[0].overlay
        answers: list[bytes | None] = []
        asked_at = now_s()
        for _ in range(QUERIES_ASKED_MAX):
            overlay.ask(1, b"query", later(answers), 2.0)
        await asyncio.sleep(1)
        assert answers == []
        overlay.ask(1, b"one more", later(answers), 2.0)
        await asyncio.sleep(0)
        assert answers == [None]
        assert overlay.counts.queries_unasked == 1
        await asyncio.sleep(asked_at + QUERY_LIFE_S - 0.1 - now_s())
        overlay.ask(1, b"too soon", later(answers), 2.0)
        assert overlay.counts.queries_unasked == 2
        await asyncio.sleep(0.2)
        overlay.ask(1, b"now!", later(answers), 2.0)
        await asyncio.sleep(1)
        assert overlay.counts.queries_unasked == 2
        assert world.nodes[1].heard.queries[-1] == (0, b"now!")

    with_members(2, scenario)


def test_queries_under_way_are_answered_with_nothing_when_the_link_breaks() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        world.nodes[1].heard.answers = lambda query, reply: None
        answers: list[bytes | None] = []
        for _ in range(3):
            world.nodes[0].overlay.ask(1, b"query", later(answers), 20.0)
        world.network.reset(host_of(0), host_of(1))
        await until(lambda: len(answers) == 3, within_s=1.0)
        assert answers == [None] * 3

    with_members(2, scenario)


# Peers that break rules


@pytest.mark.parametrize(("refused", "refuser"), [(0, 1), (1, 0)], ids=["who dials us", "whom we dial"])
def test_a_refused_member_is_left_alone_for_a_minute_and_more_after_its_link_is_gone(
    refused: int, refuser: int
) -> None:
    async def scenario(world: SimulatedMembers) -> None:
        overlay = world.nodes[refuser].overlay
        overlay.refuse(refused, "signature", "a block with a signature that nobody made")
        await until(lambda: not overlay.linked and not world.nodes[refused].overlay.linked)
        gone_at = now_s()
        await until(lambda: bool(overlay.linked))
        first_s = now_s() - gone_at
        assert PENALTY_FIRST_S - 1 <= first_s <= 2 * PENALTY_FIRST_S
        overlay.refuse(refused, "signature", "again")
        await until(lambda: not overlay.linked)
        gone_at = now_s()
        await until(lambda: bool(overlay.linked))
        assert now_s() - gone_at >= 2 * PENALTY_FIRST_S - 1

    with_members(2, scenario)


def test_what_those_above_cannot_read_ends_the_link_by_its_code(caplog: pytest.LogCaptureFixture) -> None:
    def unreadable(peer: int, frame: bytes) -> None:
        raise DecodeError("TL constructor id at offset 0 is none", code=ErrorCode.TL_INVALID)

    async def scenario(world: SimulatedMembers) -> None:
        world.nodes[1].heard.on_push = unreadable
        world.nodes[0].overlay.push(1, b"what is this")
        await until(lambda: not world.nodes[1].overlay.linked)

    with_members(2, scenario)
    (record,) = [record for record in caplog.records if record.message == "peer broke a rule"]
    assert record.__dict__["code"] == ErrorCode.TL_INVALID


def test_a_bug_above_ends_one_link_and_is_nobody_elses_fault(caplog: pytest.LogCaptureFixture) -> None:
    def broken(peer: int, frame: bytes) -> None:
        if peer == 0:
            raise ZeroDivisionError

    async def scenario(world: SimulatedMembers) -> None:
        world.nodes[2].heard.on_push = broken
        world.nodes[0].overlay.push(2, b"to be handled badly")
        await until(lambda: world.nodes[2].overlay.linked == [1])
        gone_at = now_s()
        await until(lambda: world.nodes[2].overlay.linked == [0, 1])
        assert now_s() - gone_at < PENALTY_FIRST_S / 2, "no penalty for our own mistake"

    with_members(3, scenario)
    assert "what a peer sent was not handled" in caplog.text


# Sessions


def test_one_listener_serves_sessions_that_come_and_go() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        later_ones = [
            OverlayLinks(node.end, node.listener, OTHER_SESSION, index, world.members)
            for index, node in enumerate(world.nodes)
        ]
        heard = [Heard(), Heard()]
        # Member 1 begins the session only after member 0 has asked for it, and been told to come again.
        later_ones[0].start(heard[0])
        await asyncio.sleep(0.5)
        assert later_ones[0].linked == []
        later_ones[1].start(heard[1])
        await until(lambda: bool(later_ones[0].linked and later_ones[1].linked), within_s=5.0)
        later_ones[0].push(1, b"in the other session")
        world.nodes[0].overlay.push(1, b"in this session")
        await until(lambda: bool(heard[1].pushes and world.nodes[1].heard.pushes))
        assert heard[1].pushes == [(0, b"in the other session")]
        assert world.nodes[1].heard.pushes == [(0, b"in this session")]

        await world.nodes[1].overlay.close()
        await until(lambda: not world.nodes[0].overlay.linked)
        await asyncio.sleep(10)
        assert world.nodes[0].overlay.linked == []
        assert later_ones[0].linked == [1], "the other session goes on"
        for overlay in later_ones:
            await overlay.close()

    with_members(2, scenario)


def test_a_session_is_registered_once_and_so_many_and_no_more() -> None:
    async def main() -> None:
        world = SimulatedMembers(1)
        node = await world.node(0)
        node.start()
        with pytest.raises(LocalProtocolError, match="registered already"):
            OverlayLinks(node.end, node.listener, SESSION, 0, world.members).start(Heard())
        for number in range(SESSIONS_MAX - 1):
            node.listener.register(LinkKind.CATCHAIN, number.to_bytes(32, "big"), node.overlay)
        with pytest.raises(ConfigError) as refused:
            node.listener.register(LinkKind.CATCHAIN, OTHER_SESSION, node.overlay)
        assert refused.value.limit == SESSIONS_MAX
        await node.stop()

    in_virtual_time(main())


def test_a_list_of_members_that_cannot_be_right_is_refused() -> None:
    async def main() -> None:
        world = SimulatedMembers(2)
        end = an_end(0, world.network.process(host_of(0)))
        listener = LinkListener(end)
        address = TcpAddress(host_of(1), 1)
        ours, other = LinkMember(key_of(0), None), LinkMember(key_of(1), address)
        for index, members, words in (
            (1, [ours, other], "does not have this node's key"),
            (2, [ours, other], "does not have this node's key"),
            (0, [ours, other, other], "the same key"),
            (0, [ours, LinkMember(key_of(1), None)], "has no address"),
        ):
            with pytest.raises(ConfigError, match=words):
                OverlayLinks(end, listener, SESSION, index, members)
        OverlayLinks(end, listener, SESSION, 1, [other, ours])

    in_virtual_time(main())


def test_a_link_on_which_nothing_is_said_stays_and_a_host_that_fell_silent_is_missed() -> None:
    async def scenario(world: SimulatedMembers) -> None:
        await asyncio.sleep(3_600)
        assert world.nodes[0].heard.links == [1]
        world.network.partition(host_of(0), host_of(1))
        await until(lambda: not world.nodes[0].overlay.linked, within_s=120)
        world.network.heal_all()

    with_members(2, scenario)
