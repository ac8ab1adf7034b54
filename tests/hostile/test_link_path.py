"""An attacker on the path of a link can delay it and cut it, and nothing else: in virtual time, without any key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stagepost.dmq.conform.attacker import OTHER_SIDE, segment
from stagepost.errors import HandshakeRefused, StagepostError
from stagepost.ground.crypto.secret_stream import StreamOpener
from stagepost.ground.identifiers import LinkEncryption
from stagepost.ground.net.back_off import violation_of
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Network, TcpAddress
from stagepost.remp.links import versions
from stagepost.remp.links.authentication import LinkTerms
from stagepost.remp.links.dialler import DialledPeer, LinkDialler
from stagepost.remp.links.link import Link
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.opening import initiate_link
from stagepost.remp.links.overlay_links import OverlayLinks
from stagepost.remp.links.versions import CAN_ENCRYPT
from stagepost.simulation.link import LinkSettings
from tests.hostile.link_attacker import KEEP_ALIVE, OVERLAY, push
from tests.worlds.remp.link_path import (
    TO_INITIATOR,
    TO_RESPONDER,
    Meddle,
    PathConnection,
    PathNetwork,
    flipped,
    untouched,
)
from tests.worlds.remp.remp_links import (
    PORT,
    SESSION,
    Heard,
    MemberNode,
    SimulatedMembers,
    an_end,
    host_of,
    in_virtual_time,
)

SETTLED_S = 2.0
NO_LINK = HandshakeRefused("there never was a link")
BACK_WITHIN_S = 200.0
"""Seconds in virtual time: the longest pauses of both sides, one after the other, and some more."""
WAYS = [pytest.param(TO_RESPONDER, id="to the responder"), pytest.param(TO_INITIATOR, id="to the initiator")]


Plant = Callable[[pytest.MonkeyPatch], None]


async def until(condition: Callable[[], bool], within_s: float) -> None:
    """Look again every tenth of a second of virtual time: pauses here last for a minute."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.1)


class Path:
    """Member 0 dials member 1 through the attacker's hands."""

    def __init__(self, encryption: LinkEncryption, former: int | None) -> None:
        self.world = SimulatedMembers(2)
        self.encryption = [encryption, encryption]
        if former is not None:
            self.encryption[former] = LinkEncryption.OFF
        self.network = PathNetwork(self.world.network.process(host_of(0)))
        self.nodes: list[MemberNode] = []
        self.pushed: list[list[bytes]] = [[], []]

    async def start(self) -> None:
        networks: tuple[Network, ...] = (self.network, self.world.network.process(host_of(1)))
        for number, network in enumerate(networks):
            end = an_end(number, network, encryption=self.encryption[number])
            listener = LinkListener(end)
            await listener.start(TcpAddress(host_of(number), PORT))
            overlay = OverlayLinks(end, listener, SESSION, number, self.world.members)
            self.nodes.append(MemberNode(end, listener, overlay, Heard()))
        for node in reversed(self.nodes):
            node.start()

    @property
    def is_linked(self) -> bool:
        return all(node.overlay.linked for node in self.nodes)

    def ends(self) -> list[Bearer]:
        return [link.bearer for node in self.nodes for link in node.overlay._links.values()]

    async def use(
        self, meddle: Meddle, act: Callable[[PathConnection], None] | None = None, *, closes: int = 0
    ) -> tuple[PathConnection, list[StagepostError | None]]:
        """Say something on the next connection, let the attacker act, say something more twice, and let member `closes` end the
        connection in order. Return it with the reasons for which its ends ended; of a connection that never was a link, that
        it was none.
        """
        count = len(self.network.connections)
        self.network.meddle = meddle
        async with asyncio.timeout(BACK_WITHIN_S):
            while len(self.network.connections) <= count:
                for bearer in self.ends():
                    bearer.close()  # a link that has come back meanwhile
                await asyncio.sleep(0.5)
        self.network.meddle = untouched
        path = self.network.connections[count]
        await until(lambda: self.is_linked or path.bearer.is_over, BACK_WITHIN_S)
        ends = self.ends()
        if self.is_linked:
            self._say(count)
            await asyncio.sleep(SETTLED_S)
            if act is not None:
                act(path)
                for _ in range(2):
                    self._say(count)
                    await asyncio.sleep(SETTLED_S)
            ends[closes].close()
        for end in (*ends, path.bearer):
            await asyncio.wait_for(end.wait_closed(), BACK_WITHIN_S)
        return path, [end.reason for end in ends] if len(ends) == 2 else [NO_LINK]

    def _say(self, count: int) -> None:
        for number, node in enumerate(self.nodes):
            frame = f"frame {len(self.pushed[number])} of {number} on {count}".encode()
            self.pushed[number].append(frame)
            node.overlay.push(1 - number, frame)

    def check(self) -> None:
        """Nothing was heard that was not said, or twice, or in another order; and no key pays for it."""
        for number, node in enumerate(self.nodes):
            said = iter(self.pushed[1 - number])
            assert all(frame in said for _, frame in node.heard.pushes)
            assert not node.overlay._penalties._penalties
            for peer in node.overlay._dialler._peers.values():
                assert (peer.penalties, peer.is_penalised) == (0, False)

    async def comes_back(self) -> None:
        self.network.meddle = untouched
        await until(lambda: self.is_linked, BACK_WITHIN_S)
        self.check()
        for node in self.nodes:
            await node.stop()


def on_a_path(
    scenario: Callable[[Path], Awaitable[None]],
    encryption: LinkEncryption = LinkEncryption.REQUIRED,
    former: int | None = None,
) -> None:
    """Run a scenario; at its end the attacker is gone, the link is back, and no key pays. `former` cannot encrypt."""

    async def main() -> None:
        path = Path(encryption, former)
        await path.start()
        await scenario(path)
        await path.comes_back()

    in_virtual_time(main())


def rules(reasons: list[StagepostError | None]) -> set[str | None]:
    return {reason.reason for reason in reasons if reason is not None}


def test_a_link_that_nobody_touches_serves_and_ends_in_order() -> None:
    async def scenario(path: Path) -> None:
        connection, reasons = await path.use(untouched)
        assert reasons == [None, None]
        assert [len(node.heard.pushes) for node in path.nodes] == [1, 1]
        assert b"frame" not in b"".join(connection.passed)

    on_a_path(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_byte_changed_at_any_place_ends_the_link_and_it_comes_back(way: int) -> None:
    async def scenario(path: Path) -> None:
        whole, _ = await path.use(untouched, closes=way)
        for position in range(len(whole.passed[way])):
            _, reasons = await path.use(flipped(way, position, 1 << position % 8), closes=way)
            assert any(reasons), f"byte {position} was changed, and nobody noticed"
            path.check()

    on_a_path(scenario)


def chunks(stream: bytes) -> list[bytes]:
    """The chunks of one direction of a link, behind what was plain and behind the header of the stream."""
    at = plain_bytes(stream) + 24
    found = []
    while at < len(stream):
        length = 2 + int.from_bytes(stream[at : at + 2], "big")
        found.append(stream[at : at + length])
        at += length
    return found


def plain_bytes(stream: bytes) -> int:
    """Bytes of the two segments with which each direction begins."""
    at = 0
    for _ in range(2):
        at += 8 + int.from_bytes(stream[at + 6 : at + 8], "big")
    return at


def from_now(way: int, change: Callable[[list[bytes]], list[bytes]], count: int) -> Callable[..., None]:
    """Change the next `count` chunks of one direction. They come one by one, so the last brings what became of all."""
    waiting: list[bytes] = []

    def meddle(direction: int, offset: int, data: bytes) -> bytes:
        if direction != way or len(waiting) == count:
            return data
        waiting.append(data)
        return b"".join(change(waiting)) if len(waiting) == count else b""

    def act(path: PathConnection) -> None:
        path.meddle = meddle

    return act


CHANGES = [
    pytest.param(lambda found: [], 1, id="dropped"),
    pytest.param(lambda found: [*found, *found], 1, id="replayed"),
    pytest.param(lambda found: [found[0][:-1]], 1, id="cut short"),
    pytest.param(lambda found: [found[0], b"\0"], 1, id="made longer"),
    pytest.param(lambda found: [b"\0\x10" + bytes(16), *found], 1, id="a chunk that is too short in front"),
    pytest.param(lambda found: [b"\xff\xff", *found], 1, id="a length that no chunk has in front"),
    pytest.param(
        lambda found: [segment(OVERLAY, push(b"injected")), *found], 1, id="a plain segment in front"
    ),
    pytest.param(
        lambda found: [segment(OVERLAY | OTHER_SIDE, push(b"injected")), *found],
        1,
        id="a plain segment that breaks a rule in front",
    ),
    pytest.param(
        lambda found: [segment(KEEP_ALIVE, b"\xff") * 3, *found], 1, id="plain keep-alives in front"
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("change", "count"), CHANGES)
def test_chunks_that_are_changed_on_the_way_end_the_link_and_no_key_pays(
    way: int, change: Callable[[list[bytes]], list[bytes]], count: int
) -> None:
    async def scenario(path: Path) -> None:
        # The side that would hear of it does not close: who closes reads no further.
        _, reasons = await path.use(untouched, from_now(way, change, count), closes=way)
        assert rules(reasons) & {"BadChunk", "CutOff"}
        reason = next(reason for reason in reasons if reason is not None and reason.reason)
        assert "changed, left out" in reason.text or "ended without its last chunk" in reason.text
        path.check()

    on_a_path(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_chunks_in_another_order_or_of_another_connection_do_not_open(way: int) -> None:
    async def scenario(path: Path) -> None:
        earlier, _ = await path.use(untouched)
        old = chunks(earlier.passed[way])

        def of_another_connection(found: list[bytes]) -> list[bytes]:
            return [old[0], *found]

        def of_the_other_direction(path: PathConnection) -> None:
            path.inject(way, chunks(path.passed[1 - way])[0])

        def again_from_its_beginning(path: PathConnection) -> None:
            path.inject(way, b"".join(chunks(path.passed[way])))

        for act in (
            from_now(way, of_another_connection, 1),
            of_the_other_direction,
            again_from_its_beginning,
        ):
            _, reasons = await path.use(untouched, act)
            assert "BadChunk" in rules(reasons)
            path.check()

    on_a_path(scenario)


def swapped_in_twos(way: int) -> Meddle:
    """Hold every second piece behind the header back, and send it before the one that came first."""
    held: list[bytes] = []

    def meddle(direction: int, offset: int, data: bytes) -> bytes:
        if direction != way:
            return data
        held.append(data)
        if len(held) < 2:
            return b""
        first, second = held
        held.clear()
        return second + first

    return meddle


@pytest.mark.parametrize("way", WAYS)
def test_two_chunks_that_change_places_do_not_open(way: int) -> None:
    async def scenario(path: Path) -> None:
        def act(connection: PathConnection) -> None:
            connection.meddle = swapped_in_twos(way)

        _, reasons = await path.use(untouched, act, closes=way)
        assert "BadChunk" in rules(reasons)
        path.check()

    on_a_path(scenario)


def test_a_link_that_is_cut_is_known_to_be_cut_at_both_ends() -> None:
    async def scenario(path: Path) -> None:
        _, reasons = await path.use(untouched, lambda connection: connection.cut())
        assert rules(reasons) == {"CutOff"}
        assert all(reasons)
        path.check()

    on_a_path(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_last_chunk_that_is_left_out_is_missed(way: int) -> None:
    async def scenario(path: Path) -> None:
        whole, reasons = await path.use(untouched)
        assert reasons == [None, None]
        last = len(whole.passed[way]) - 19

        def without_the_last(direction: int, offset: int, data: bytes) -> bytes:
            end = offset + len(data)
            return data if direction != way or end <= last else data[: max(0, last - offset)]

        _, reasons = await path.use(without_the_last)
        if way == TO_RESPONDER:
            assert "CutOff" in rules(reasons)
        path.check()

    on_a_path(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_conversation_that_is_played_again_opens_nothing(way: int) -> None:
    async def scenario(path: Path) -> None:
        earlier, _ = await path.use(untouched)
        played = earlier.passed[way]

        def again(direction: int, offset: int, data: bytes) -> bytes:
            if direction != way:
                return data
            return played[offset : offset + len(data)]

        _, reasons = await path.use(again)
        assert reasons == [NO_LINK]
        path.check()

    on_a_path(scenario)


def test_what_a_node_says_opens_nothing_at_itself() -> None:
    async def scenario(path: Path) -> None:
        said: list[bytes] = []

        def mirror(direction: int, offset: int, data: bytes) -> bytes:
            if direction == TO_RESPONDER:
                said.append(data)
                return data
            return said.pop(0) if said else b""

        _, reasons = await path.use(mirror)
        assert reasons == [NO_LINK]
        path.check()

    on_a_path(scenario)


def test_the_answers_of_another_connection_open_nothing() -> None:
    """Two connections at the same time, each with the responder's bytes of the other."""

    async def main() -> None:
        path = Path(LinkEncryption.REQUIRED, None)
        await path.start()
        await path.use(untouched)
        held: dict[int, list[bytes]] = {0: [], 1: []}

        def crossed(number: int) -> Meddle:
            def meddle(direction: int, offset: int, data: bytes) -> bytes:
                if direction == TO_RESPONDER:
                    return data
                held[1 - number].append(data)
                taken, held[number] = b"".join(held[number]), []
                return taken

            return meddle

        for number in (0, 1):
            path.network.meddle = crossed(number)
            count = len(path.network.connections)
            await until(lambda count=count: len(path.network.connections) > count, BACK_WITHIN_S)  # type: ignore[misc]
        await asyncio.sleep(5.0)
        assert not path.is_linked
        for connection in path.network.connections:
            connection.bearer.abort(NO_LINK)
        await path.comes_back()

    in_virtual_time(main())


# Talking two nodes into a plain link


def without_encryption(direction: int, offset: int, data: bytes) -> bytes:
    """Leave only the plain version in a proposal: what an attacker would do who wants to read along."""
    if direction != TO_RESPONDER or offset:
        return data
    payload = data[8:]
    at = payload.index(bytes.fromhex("195004"))
    kept = b"\x82\x00\xa1" + payload[3:at]
    assert payload[:3] == b"\x82\x00\xa2"
    assert kept[3:6] == bytes.fromhex("195002")
    return data[:6] + len(kept).to_bytes(2, "big") + kept


def without_the_mark_too(direction: int, offset: int, data: bytes) -> bytes:
    changed = without_encryption(direction, offset, data)
    return changed.replace(CAN_ENCRYPT, bytes(len(CAN_ENCRYPT))) if not offset else changed


@pytest.mark.parametrize("meddle", [without_encryption, without_the_mark_too])
def test_two_nodes_that_can_encrypt_are_not_talked_into_a_plain_link(meddle: Meddle) -> None:
    async def scenario(path: Path) -> None:
        connection, reasons = await path.use(meddle)
        assert reasons == [NO_LINK]
        assert b"frame" not in b"".join(connection.passed)
        path.check()
        _, reasons = await path.use(untouched)
        assert reasons == [None, None]
        assert all(link.is_encrypted for node in path.nodes for link in node.overlay._links.values())

    on_a_path(scenario, LinkEncryption.PREFERRED)


@pytest.mark.parametrize("former", [0, 1])
def test_a_node_of_the_former_release_is_spoken_with_plainly_where_that_is_allowed(
    former: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(path: Path) -> None:
        connection, reasons = await path.use(untouched)
        assert reasons == [None, None]
        assert [len(node.heard.pushes) for node in path.nodes] == [1, 1]
        assert b"frame 0 of 0" in connection.passed[TO_RESPONDER]

    on_a_path(scenario, LinkEncryption.PREFERRED, former)
    assert "link is not encrypted" in caplog.messages


@pytest.mark.parametrize("former", [0, 1])
def test_a_node_that_requires_encryption_refuses_a_plain_link(former: int) -> None:
    async def main() -> None:
        path = Path(LinkEncryption.REQUIRED, former)
        await path.start()
        _, reasons = await path.use(untouched)
        assert reasons == [NO_LINK]
        await asyncio.sleep(100.0)
        assert not path.is_linked
        path.check()
        for node in path.nodes:
            await node.stop()

    in_virtual_time(main())


@pytest.mark.parametrize("way", WAYS)
def test_on_a_plain_link_an_injected_segment_costs_no_key(way: int) -> None:
    """The fault of the former release: one segment kept an honest key out for a minute, doubling to an hour."""

    async def scenario(path: Path) -> None:
        for _ in range(3):
            _, reasons = await path.use(
                untouched, lambda connection: connection.inject(way, segment(0x7FF, b"injected"))
            )
            assert any(reasons)
            path.check()

    on_a_path(scenario, LinkEncryption.PREFERRED, former=0)


@pytest.mark.parametrize("way", WAYS)
def test_an_address_comes_back_within_a_minute(way: int) -> None:
    """Ten connections are spoiled before the proof, where only the address is known."""

    async def scenario(path: Path) -> None:
        for _ in range(10):
            _, reasons = await path.use(flipped(way, 4, 0x7F))
            assert reasons == [NO_LINK]
        path.check()
        began = asyncio.get_running_loop().time()
        await until(lambda: path.is_linked, BACK_WITHIN_S)
        # The longest pause of the dialler with its jitter, and once more if it came within that of the listener.
        assert asyncio.get_running_loop().time() - began < 2 * 60 * 1.2 + 5

    on_a_path(scenario)


def test_a_delayed_link_is_only_late() -> None:
    async def scenario(path: Path) -> None:
        path.world.network.set_link(host_of(0), host_of(1), LinkSettings(latency_s=0.2, jitter_s=0.1))
        _, reasons = await path.use(untouched)
        assert reasons == [None, None]
        path.check()

    on_a_path(scenario)


# Planted defects: each of them is noticed by a test above


def _forgets_the_mark_of_those_who_encrypt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(versions, "CAN_ENCRYPT", b"another!")


def _passes_over_chunks_that_do_not_open(patch: pytest.MonkeyPatch) -> None:
    open_one = StreamOpener.open
    patch.setattr(StreamOpener, "open", lambda opener, sealed: open_one(opener, sealed) or (OPENED, 0))


OPENED = segment(KEEP_ALIVE, b"\x82\x00\x00")
"""An honest message of the keep-alive stands for whatever the chunk held."""


def _needs_no_last_chunk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bearer, "eof_received", lambda bearer: bearer.close() or True)


def _blames_a_key_for_what_came_plainly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Link, "violation", property(lambda link: violation_of(link.bearer.reason)))


def _blames_a_key_before_its_proof(patch: pytest.MonkeyPatch) -> None:
    async def converse(dialler: LinkDialler[Any], peer: DialledPeer) -> str | None:
        bearer = await dialler._end.network.connect(peer.address)
        wanted = dialler._kind, dialler._session_id, peer.public_key
        terms = await initiate_link(bearer, dialler._end, *wanted)
        link = dialler._keeper.open(bearer, terms, dialled=True)
        await dialler._keeper.run(link)
        return None

    patch.setattr(LinkDialler, "_converse", converse)


def _takes_plain_bytes_on_trust(patch: pytest.MonkeyPatch) -> None:
    keys = LinkTerms.stream_keys
    patch.setattr(
        LinkTerms,
        "stream_keys",
        lambda terms, ours, session, side, plain: keys(terms, ours, session, side, bytes(64)),
    )


DEFECTS: list[tuple[Plant, Callable[[], None]]] = [
    (
        _forgets_the_mark_of_those_who_encrypt,
        lambda: test_two_nodes_that_can_encrypt_are_not_talked_into_a_plain_link(without_encryption),
    ),
    (
        _passes_over_chunks_that_do_not_open,
        lambda: test_chunks_that_are_changed_on_the_way_end_the_link_and_no_key_pays(
            TO_RESPONDER, lambda found: [*found, *found], 1
        ),
    ),
    (_needs_no_last_chunk, test_a_link_that_is_cut_is_known_to_be_cut_at_both_ends),
    (
        _blames_a_key_for_what_came_plainly,
        lambda: test_on_a_plain_link_an_injected_segment_costs_no_key(TO_RESPONDER),
    ),
    (
        _blames_a_key_before_its_proof,
        lambda: test_an_address_comes_back_within_a_minute(TO_INITIATOR),
    ),
    (
        _takes_plain_bytes_on_trust,
        lambda: test_a_byte_changed_at_any_place_ends_the_link_and_it_comes_back(TO_RESPONDER),
    ),
]


@pytest.mark.parametrize(("plant", "notice"), DEFECTS, ids=[plant.__name__ for plant, _ in DEFECTS])
def test_a_planted_defect_is_noticed(
    plant: Plant, notice: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError)):
        notice()
