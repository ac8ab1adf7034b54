"""A node that pulls from many peers gets every honest message, whatever the others do; and defects are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.dmq import downloads as downloads_module
from stagepost.dmq import pulling as pulling_module
from stagepost.dmq.downloads import STUCK_S, Downloads
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome, Rejected, rejected
from stagepost.dmq.peer_standing import Consequence, PeerScore, RelayRecord, Ruling
from stagepost.dmq.profiles import DMQ_NODE, SEED, Profile
from stagepost.dmq.pulling import PullCore
from stagepost.dmq.submission import MessageIdAndSize, RequestMessageIds
from stagepost.errors import ErrorCode, ProtocolTimeout, RemoteProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.dmq.pulling_world import (
    WAYS,
    HostileSupplier,
    Node,
    World,
    a_message,
    announced,
    announcing,
    delays,
    forged,
    legacy,
    messages,
    serving,
)

every_way = pytest.mark.parametrize(
    ("profile", "version"), WAYS, ids=[f"{profile.name}-{version}" for profile, version in WAYS]
)


def holding(held: Sequence[DmqMessage]) -> Node:
    node = Node()
    node.hold(held)
    return node


# One peer


@every_way
def test_everything_that_a_peer_holds_and_gets_is_pulled(profile: Profile, version: int) -> None:
    async def main() -> None:
        world, peer = World(), holding(messages(300))
        world.connect_honest("peer", peer, profile=profile, version=version, delay_s=lambda: 0.02)
        await world.wait_until_held(peer.ids(), within_s=10)

        for number in range(1_000, 1_003):
            peer.hold([a_message(number)])
            await world.wait_until_held(peer.ids(), within_s=1)
            await asyncio.sleep(100)  # longer than any wait without news

        assert world.ends == {}
        assert len(world.node.submissions) == 303
        await world.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize(("profile", "sees"), [(DMQ_NODE, {5}), (SEED, {5, 4})])
def test_a_peer_is_told_only_of_layouts_that_its_profile_knows(profile: Profile, sees: set[int]) -> None:
    async def main() -> None:
        world = World()
        peer = holding([legacy(b"l" * 32), a_message(1)])
        world.connect_honest("peer", peer, profile=profile, version=1)
        await asyncio.sleep(10)
        entries = world.node.mempool.after(0, 10, SEED.message_layouts)
        assert {entry.message.layout.value for entry in entries} == sees
        assert world.ends == {}
        await world.close()

    run_in_virtual_time(main())


def test_a_puller_says_goodbye_when_it_is_told_to() -> None:
    async def main() -> None:
        world, peer = World(), holding(messages(3))
        world.connect_honest("peer", peer)
        await world.wait_until_held(peer.ids(), within_s=1)

        world.pullers["peer"].finish()
        await asyncio.sleep(20)  # the wait for news has to end first

        assert world.ends == {"peer": None}
        await world.close()

    run_in_virtual_time(main())


def test_a_restart_of_the_store_loses_no_message() -> None:
    """Refusals that are our own trouble are made up for, and cost the peer nothing."""

    async def main() -> None:
        world, peer = World(), holding(messages(50))
        loop = asyncio.get_running_loop()

        def fails_for_a_minute(message: DmqMessage) -> Rejected | None:
            if loop.time() < 60:
                return rejected(ErrorCode.STORAGE_UNAVAILABLE, "the disk is full")
            return None

        world.node.judge = fails_for_a_minute
        world.connect_honest("peer", peer)

        await world.wait_until_held(peer.ids(), within_s=100)

        assert world.pullers["peer"].score.points(loop.time()) == 0
        assert world.ends == {}
        await world.close()

    run_in_virtual_time(main())


def test_an_honest_relay_is_not_cut_off_when_two_messages_of_a_pool_come_by_different_ways() -> None:
    """The first reaches us late by a slow relay, the second early by a fast one: 55 s apart instead of 60."""
    first, second = a_message(1, pool=7), a_message(2, pool=7)

    async def main() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        accepted_at: list[float] = []

        def one_a_minute(message: DmqMessage) -> Rejected | None:
            wait_s = accepted_at[-1] + 60 - loop.time() if accepted_at else 0
            if wait_s > 0:
                return rejected(ErrorCode.MSG_TOO_FREQUENT, "one a minute", wait_s)
            accepted_at.append(loop.time())
            return None

        world.node.judge = one_a_minute
        slow = Node()
        world.connect_honest("slow", slow, version=1, delay_s=lambda: 1.5)
        await asyncio.sleep(100)
        slow.hold([first])
        await asyncio.sleep(60)
        slow.hold([second])
        world.connect_honest("fast", holding([first, second]), delay_s=lambda: 0.01)

        await world.wait_until_held({first.message_id, second.message_id}, within_s=60)

        assert accepted_at[1] - accepted_at[0] == pytest.approx(60, abs=0.1)
        assert world.ends == {}
        await world.close()

    run_in_virtual_time(main())


# Hostile suppliers


def endless(make: Callable[[int], DmqMessage]) -> HostileSupplier:
    """Always something new, all of it made up as it goes."""
    made: dict[MessageId, DmqMessage] = {}

    def ids(request: RequestMessageIds) -> list[MessageIdAndSize]:
        fresh = [make(len(made) + number) for number in range(request.requested)]
        made.update({message.message_id: message for message in fresh})
        return [announced(message) for message in fresh]

    return HostileSupplier(ids, lambda ids: [made[each] for each in ids])


def misnamed(number: int) -> DmqMessage:
    good = a_message(number)
    return DmqMessage.decode(good.raw.replace(good.message_id, number.to_bytes(32, "big")))


def hostile_suppliers(true: Sequence[DmqMessage]) -> dict[str, HostileSupplier]:
    """Everybody knows the true messages and tries to keep us from having them, each in its own way."""
    return {
        "never serves": HostileSupplier(announcing(true), lambda ids: None),
        "omits": HostileSupplier(announcing(true), lambda ids: []),
        "forges signatures": HostileSupplier(announcing(true), serving(map(forged, true))),
        "announces false sizes": HostileSupplier(
            lambda request: [
                MessageIdAndSize(message.message_id, len(message.raw) + 100)
                for message in true[: request.requested]
            ],
            serving(true),
        ),
        "announces huge sizes": HostileSupplier(
            lambda request: [
                MessageIdAndSize(message.message_id, 2**32 - 1) for message in true[: request.requested]
            ],
            serving(true),
        ),
        "sends what nobody asked for": HostileSupplier(announcing(true), lambda ids: [a_message(10**9)]),
        "replies with too many": HostileSupplier(
            lambda request: [announced(message) for message in messages(request.requested + 1)], serving(true)
        ),
        "makes up ids": endless(misnamed),
        "floods with unknown pools": endless(lambda number: a_message(10**6 + number, pool=666)),
        "repeats itself": HostileSupplier(
            lambda request: [announced(true[0])] * request.requested, lambda ids: []
        ),
        "has nothing in no time": HostileSupplier(lambda request: [], serving(true)),
        "is silent": HostileSupplier(lambda request: None, lambda ids: None),
    }


HOSTILE = tuple(hostile_suppliers(messages(1)))


def pool_666_is_unknown(message: DmqMessage) -> Rejected | None:
    if message.cold_verification_key == (666).to_bytes(32, "big"):
        return rejected(ErrorCode.POOL_UNKNOWN, "no such pool")
    return None


def with_hostile_peers(names: Sequence[str], true: Sequence[DmqMessage], seed: int, within_s: float) -> World:
    """One honest peer that learns of the messages over ten seconds, among hostile ones that know them from the start."""

    async def main() -> World:
        random = Random(seed)
        world = World()
        world.node.judge = pool_666_is_unknown
        honest = Node()
        for number, name in enumerate(names):
            supplier = hostile_suppliers(true)[name]
            way = random.choice(WAYS)
            world.connect(
                f"{name} {number}",
                supplier.run,
                profile=way[0],
                version=way[1],
                delay_s=delays(random, 0.02),
            )
        way = random.choice(WAYS)
        world.connect_honest("honest", honest, profile=way[0], version=way[1], delay_s=delays(random, 0.2))
        for message in true:
            honest.hold([message])
            await asyncio.sleep(10 / len(true))
        await world.wait_until_held({message.message_id for message in true}, within_s)
        assert "honest" not in world.ends, "the honest peer was cut off"
        await asyncio.sleep(60)
        await world.close()
        return world

    return run_in_virtual_time(main())


@pytest.mark.parametrize("name", HOSTILE)
def test_one_hostile_peer_cannot_stop_an_honest_ones_messages(name: str) -> None:
    with_hostile_peers([name], messages(40), seed=1, within_s=15)


@pytest.mark.parametrize("name", HOSTILE)
def test_twenty_hostile_peers_of_a_kind_cannot_stop_one_honest_peers_messages(name: str) -> None:
    with_hostile_peers([name] * 20, messages(40), seed=2, within_s=30)


@pytest.mark.parametrize("seed", range(5))
def test_one_honest_peer_among_twenty_of_every_kind_is_enough(seed: int) -> None:
    random = Random(seed)

    with_hostile_peers(random.choices(HOSTILE, k=20), messages(60), seed, within_s=30)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("never serves", ErrorCode.PROTOCOL_TIMEOUT),
        ("forges signatures", ErrorCode.KES_SIGNATURE),
        ("announces false sizes", ErrorCode.PROTOCOL_SIZE),
        ("sends what nobody asked for", ErrorCode.PROTOCOL_WINDOW),
        ("replies with too many", ErrorCode.PROTOCOL_WINDOW),
        ("makes up ids", ErrorCode.MSG_BAD_ID),
        ("floods with unknown pools", ErrorCode.POOL_UNKNOWN),
        ("repeats itself", ErrorCode.MSG_DUPLICATE),
    ],
)
def test_who_breaks_a_rule_is_cut_off_with_its_code(name: str, code: ErrorCode) -> None:
    async def main() -> None:
        world = World()
        world.node.judge = pool_666_is_unknown
        world.connect("liar", hostile_suppliers(messages(10))[name].run, delay_s=lambda: 0.01)
        await asyncio.sleep(20)
        error = world.ends["liar"]
        assert isinstance(error, RemoteProtocolError)
        assert error.code is code
        assert isinstance(error, ProtocolTimeout) == (code is ErrorCode.PROTOCOL_TIMEOUT)
        await world.close()

    run_in_virtual_time(main())


def test_a_supplier_that_answers_nothing_in_no_time_is_asked_four_times_a_second_at_most() -> None:
    async def main() -> int:
        world = World()
        supplier = hostile_suppliers(messages(1))["has nothing in no time"]
        world.connect("liar", supplier.run, profile=SEED, version=1)
        await asyncio.sleep(10)
        await world.close()
        return len(supplier.requests)

    assert run_in_virtual_time(main()) <= 41


def test_a_shadow_in_the_older_layout_does_not_keep_the_newer_message_out() -> None:
    true = a_message(1)
    shadow = legacy(true.message_id, pool=9)

    async def main() -> None:
        world = World()
        world.connect_honest("bad pool's", holding([shadow]), profile=SEED, version=1)
        await world.wait_until_held({true.message_id}, within_s=1)
        for name, profile in (("other", DMQ_NODE), ("documents", SEED)):
            assert true.key not in world.node.mempool or name == "documents"
            world.connect_honest(name, holding([true]), profile=profile, version=1)
            await asyncio.sleep(1)
            assert true.key in world.node.mempool
        await world.close()

    run_in_virtual_time(main())


WITHHOLDERS = 320


@pytest.mark.parametrize("says", ["nothing", "an empty reply"])
def test_320_peers_that_announce_and_withhold_delay_a_message_by_3_s_at_most(says: str) -> None:
    """The honest peer announces last. The next message comes from it at once: it has credit, and the hosts of the others
    are remembered."""
    withhold(says, WITHHOLDERS, first_within_s=3, next_within_s=0.5)


def withhold(says: str, count: int, first_within_s: float, next_within_s: float) -> None:
    first, second = messages(2)
    offers = [first]

    async def main() -> None:
        world = World(message_gap_s=0)

        def liar() -> HostileSupplier:
            told = 0

            def ids(request: RequestMessageIds) -> list[MessageIdAndSize]:
                nonlocal told
                batch = [announced(message) for message in offers[told:]]
                told = len(offers)
                return batch

            return HostileSupplier(ids, lambda ids: None if says == "nothing" else [])

        held = Node()
        for number in range(count):
            world.connect(f"liar {number}", liar().run, delay_s=lambda: 0.02)
        await asyncio.sleep(0.05)
        world.connect_honest("honest", held, delay_s=lambda: 0.06)
        held.hold([first])
        await world.wait_until_held({first.message_id}, within_s=first_within_s)
        assert world.downloads.withholders.is_known("liar 0", asyncio.get_running_loop().time())
        offers.append(second)
        await asyncio.sleep(1)  # every liar that still answers has announced it
        held.hold([second])
        await world.wait_until_held({second.message_id}, within_s=next_within_s)
        await world.close()

    run_in_virtual_time(main())


def test_peers_that_bring_forged_copies_one_after_the_other_delay_a_message_by_3_s_at_most() -> None:
    """Each is asked, takes just less than the time for which a download runs alone, and brings a copy with a bad signature:
    the next ones run beside one another all the same."""
    (message,) = messages(1)

    async def main() -> None:
        world = World(message_gap_s=0)
        for number in range(WITHHOLDERS):
            liar = HostileSupplier(announcing([message]), serving([forged(message)]))
            world.connect(f"liar {number}", liar.run, delay_s=lambda: STUCK_S / 2 - 0.01)
        await asyncio.sleep(STUCK_S)
        held = Node()
        world.connect_honest("honest", held, delay_s=lambda: 0.06)
        held.hold([message])
        await world.wait_until_held({message.message_id}, within_s=3)
        await world.close()

    run_in_virtual_time(main())


# Many honest peers


def simulate(seed: int, *, within_s: float = 60) -> World:
    """Peers that hold different parts of the messages, with random delays, comings and goings, and all the profiles."""

    async def main() -> World:
        random = Random(seed)
        world = World()
        everything = messages(random.randint(1, 150))
        for number in range(random.randint(1, 6)):
            held = random.sample(everything, random.randint(0, len(everything)))
            profile, version = random.choice(WAYS)
            world.connect_honest(
                f"peer {number}",
                holding(held),
                profile=profile,
                version=version,
                delay_s=delays(random, random.choice((0.001, 0.3, 1.0))),
            )
            await asyncio.sleep(random.uniform(0, 0.5))
        slow = Node()
        world.connect_honest("slow", slow, delay_s=delays(random, 0.5))
        slow.hold(everything)
        await world.wait_until_held({message.message_id for message in everything}, within_s)
        await asyncio.sleep(5)
        assert world.ends == {}
        for name, puller in world.pullers.items():
            assert puller.unacknowledged == 0, f"{name} still waits for {puller.unacknowledged} messages"
        await world.close()
        return world

    return run_in_virtual_time(main())


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_all_peers_messages_arrive_and_everything_is_acknowledged(seed: int) -> None:
    simulate(seed)


def test_a_message_that_many_peers_announce_is_downloaded_once_when_all_is_well() -> None:
    async def main() -> None:
        world = World()
        for number in range(10):
            world.connect_honest(f"peer {number}", holding(messages(100)), delay_s=lambda: 0.02)
        await world.wait_until_held(holding(messages(100)).ids(), within_s=10)
        await asyncio.sleep(5)
        assert len(world.node.submissions) == 100
        await world.close()

    run_in_virtual_time(main())


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [simulate(11).node.submissions for _ in range(2)]

    assert runs[0] == runs[1]


def test_who_announces_first_is_credited() -> None:
    async def main() -> None:
        world = World()
        world.connect_honest("fast", holding(messages(20)), delay_s=lambda: 0.01)
        world.connect_honest("slow", holding(messages(20)), delay_s=lambda: 0.2)
        await asyncio.sleep(10)
        first_announcements = world.downloads.first_announcements
        assert first_announcements.credits("fast", now=10) == 20
        assert first_announcements.credits("slow", now=10) == 0
        await world.close()

    run_in_virtual_time(main())


# Planted defects: each of them is caught by one of the checks above


def forget_lease_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads_module, "LEASE_S", 10**9)


def never_start_a_second_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads_module, "STUCK_S", 10**9)


def try_one_more_for_each_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    one_more = lambda running: running * downloads_module.STUCK_S  # noqa: E731
    monkeypatch.setattr(downloads_module, "_more_than_after_s", one_more)


def forget_who_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads_module.Withholders, "is_known", lambda self, host, now: False)


def acknowledge_before_the_fate_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As running nodes do with ids that are being judged for another peer."""
    original = PullCore._fetch

    def fetch(self: PullCore, now: float) -> object:
        for entry in list(self._unsettled.values()):
            judged = self._downloads._table[entry.message_id].judged_for
            if entry.fate is pulling_module._Fate.WANTED and judged:
                self._settle(entry)
        return original(self, now)

    monkeypatch.setattr(PullCore, "_fetch", fetch)


def take_any_layout_for_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_held(self: PullCore, message_id: MessageId) -> bool:
        return any((layout, message_id) in self._held for layout in SEED.message_layouts)

    monkeypatch.setattr(PullCore, "_is_held", is_held)


def leave_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PullCore, "leave", lambda self: None)


def forget_what_our_own_trouble_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayRecord, "rule", lambda *refusal: Ruling(Consequence.COUNT))


def cut_off_whatever_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(
        self: RelayRecord, message: DmqMessage, offer: object, refusal: Rejected, *rest: float
    ) -> Ruling:
        return Ruling(
            Consequence.DISCONNECT if refusal.code is ErrorCode.MSG_TOO_FREQUENT else Consequence.COUNT
        )

    monkeypatch.setattr(RelayRecord, "rule", rule)


def tell_nobody_of_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the judgement sleeps on."""
    monkeypatch.setattr(Downloads, "_tell", lambda self, download, but: None)


def never_reach_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerScore, "is_at_ceiling", lambda self, now: False)


def ask_at_once_after_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling_module, "ASK_AGAIN_S", 0.01)


class BusyNode(Node):
    """What one of the peers brings is not judged for a long time."""

    def offer(
        self,
        messages: Sequence[DmqMessage],
        source: str,
        settled: Callable[[list[Outcome]], None],
        *,
        gives_up: bool = False,
    ) -> None:
        delay_s = 100 if source == "busy" else 0
        asyncio.get_running_loop().call_later(delay_s, super().offer, messages, source, settled)


def busy_first_announcer() -> None:
    """It has the lease for messages that it cannot begin to download, because its first ones are still judged."""
    held = messages(66)

    async def main() -> None:
        world = World(BusyNode())
        world.connect_honest("busy", holding(held), delay_s=lambda: 0.01)
        await asyncio.sleep(1)
        world.connect_honest("other", holding(held[33:]), delay_s=lambda: 0.01)
        await world.wait_until_held({message.message_id for message in held[33:]}, within_s=5)
        await world.close()

    run_in_virtual_time(main())


def forger_is_faster() -> None:
    """The honest peer announces while the forger's copy is judged, and goes on as soon as it is refused."""
    true = messages(20)

    async def main() -> None:
        world = World(Node(judging_s=0.1))
        forger = HostileSupplier(announcing(true), serving(map(forged, true)))
        world.connect("forger", forger.run, delay_s=lambda: 0.01)
        world.connect_honest("honest", holding(true), delay_s=lambda: 0.04)
        await world.wait_until_held({message.message_id for message in true}, within_s=0.4)
        await world.close()

    run_in_virtual_time(main())


def silent_first_announcers() -> None:
    with_hostile_peers(["never serves"] * 3, messages(10), seed=3, within_s=5)


def many_silent_announcers() -> None:
    withhold("nothing", 40, first_within_s=3, next_within_s=0.5)


def many_empty_replies() -> None:
    withhold("an empty reply", 40, first_within_s=3, next_within_s=0.5)


def flood() -> None:
    test_who_breaks_a_rule_is_cut_off_with_its_code("floods with unknown pools", ErrorCode.POOL_UNKNOWN)


DEFECTS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    forget_lease_expiry: busy_first_announcer,
    never_start_a_second_download: silent_first_announcers,
    try_one_more_for_each_that_is_stuck: many_silent_announcers,
    forget_who_withheld: many_empty_replies,
    acknowledge_before_the_fate_is_known: forger_is_faster,
    take_any_layout_for_known: test_a_shadow_in_the_older_layout_does_not_keep_the_newer_message_out,
    leave_without_a_word: silent_first_announcers,
    forget_what_our_own_trouble_refused: test_a_restart_of_the_store_loses_no_message,
    cut_off_whatever_the_table_says: (
        test_an_honest_relay_is_not_cut_off_when_two_messages_of_a_pool_come_by_different_ways
    ),
    tell_nobody_of_a_refusal: forger_is_faster,
    never_reach_the_ceiling: flood,
    ask_at_once_after_nothing: (
        test_a_supplier_that_answers_nothing_in_no_time_is_asked_four_times_a_second_at_most
    ),
}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_planted_defect_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = DEFECTS[defect]
    check()

    defect(monkeypatch)

    with pytest.raises((AssertionError, KeyError)):
        check()
