"""Full nodes and validators over authenticated links: messages there, receipts back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stagepost.errors import ErrorCode, HandshakeRefused, LocalProtocolError
from stagepost.full_node.links import LEAVE_WITHIN_S, ChainLinkEvents, DiallingFullNodeLinks
from stagepost.ground.net.back_off import PENALTY_FIRST_S
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.authentication import network_session_id
from stagepost.remp.links.opening import initiate_link
from stagepost.remp.links.protocols import OBJECT_BYTES_MAX, Receipts
from stagepost.remp.links.specs import LinkProtocol, open_link_protocol
from stagepost.remp.links.versions import LinkKind
from stagepost.remp.message import MESSAGE_BYTES_MAX, MessageBody, RempMessage
from stagepost.validator.links import FULL_NODES_MAX
from tests.worlds.remp.remp_links import (
    MAGIC,
    PORT,
    FullNodeAndValidator,
    Heard,
    Receipted,
    an_end,
    host_of,
    in_virtual_time,
    key_of,
    seed_of,
    until,
)

FULL_NODE, VALIDATOR = key_id(key_of(0)), key_id(key_of(1))


def linked(scenario: Callable[[FullNodeAndValidator], Awaitable[None]]) -> None:
    async def main() -> None:
        world = FullNodeAndValidator()
        await world.start()
        try:
            await until(lambda: bool(world.at_full_node.links and world.at_validator.links))
            await scenario(world)
        finally:
            await world.stop()

    in_virtual_time(main())


def test_a_message_goes_out_and_receipts_come_back_each_side_knowing_the_other_by_its_key_id() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        assert world.at_full_node.links == world.full_node.linked == [VALIDATOR]
        assert world.at_validator.links == world.validator.linked == [FULL_NODE]
        assert world.full_node.send(VALIDATOR, b"a message")
        await until(lambda: bool(world.at_validator.came))
        assert world.at_validator.came == [(FULL_NODE, b"a message")]
        assert world.validator.tell(FULL_NODE, b"its receipts")
        await until(lambda: bool(world.at_full_node.came))
        assert world.at_full_node.came == [(VALIDATOR, b"its receipts")]

    linked(scenario)


def test_the_longest_message_fits_with_all_that_stands_around_it() -> None:
    longest = RempMessage(bytes(MESSAGE_BYTES_MAX), bytes(32), 1, bytes(64)).encode()
    assert len(longest) <= OBJECT_BYTES_MAX
    assert len(MessageBody(bytes(MESSAGE_BYTES_MAX)).encode()) <= OBJECT_BYTES_MAX

    async def scenario(world: FullNodeAndValidator) -> None:
        for message in (longest, bytes(OBJECT_BYTES_MAX)):
            assert world.full_node.send(VALIDATOR, message)
            assert world.validator.tell(FULL_NODE, message)
        await until(lambda: len(world.at_validator.came) == len(world.at_full_node.came) == 2)
        with pytest.raises(LocalProtocolError):
            world.full_node.send(VALIDATOR, bytes(OBJECT_BYTES_MAX + 1))
        with pytest.raises(LocalProtocolError):
            world.validator.tell(FULL_NODE, bytes(OBJECT_BYTES_MAX + 1))

    linked(scenario)


def test_a_full_node_that_holds_its_links_gets_what_is_on_the_way_and_validators_keep_the_rest() -> None:
    def told(world: FullNodeAndValidator) -> list[int]:
        return [int.from_bytes(one[:4], "big") for _, one in world.at_full_node.came]

    async def scenario(world: FullNodeAndValidator) -> None:
        count = 0
        while world.validator.tell(FULL_NODE, count.to_bytes(4, "big") + bytes(60_000)):
            count += 1
        assert count > 1, "several are on the way"
        world.full_node.hold(True)
        assert not world.full_node.send(VALIDATOR, b"a message")
        await until(lambda: not world.validator.linked and not world.full_node.linked)
        assert told(world) == list(range(count))
        await asyncio.sleep(10 * LEAVE_WITHIN_S)
        assert not world.validator.tell(FULL_NODE, b"kept there"), "nobody is dialled meanwhile"
        world.full_node.hold(False)
        await until(lambda: bool(world.validator.linked and world.full_node.linked), within_s=5.0)
        assert world.validator.tell(FULL_NODE, count.to_bytes(4, "big"))
        assert world.full_node.send(VALIDATOR, b"a message")
        await until(lambda: told(world) == list(range(count + 1)) and bool(world.at_validator.came))

    linked(scenario)


def test_a_validator_that_does_not_let_a_full_node_go_is_cut_off() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        for link in world.validator._links.values():
            link._hearing.on_message(None)  # it does not listen
        world.full_node.hold(True)
        await asyncio.sleep(LEAVE_WITHIN_S + 1.0)
        assert world.full_node.linked == []

    linked(scenario)


def test_those_without_a_link_are_told_nothing_and_it_is_counted() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        assert not world.validator.tell(bytes(32), b"receipts")
        assert not world.full_node.send(bytes(32), b"a message")
        assert world.validator.counts.unlinked == world.full_node.counts.unlinked == 1

    linked(scenario)


def test_a_full_node_that_is_not_served_is_refused_by_name() -> None:
    async def main() -> None:
        world = FullNodeAndValidator(admits=lambda public_key: public_key == key_of(5))
        await world.start()
        end = world.full_node_end
        bearer = await end.network.connect(world.address)
        with pytest.raises(HandshakeRefused) as refused:
            await initiate_link(bearer, end, LinkKind.REMP, network_session_id(MAGIC), key_of(1))
        assert (refused.value.code, refused.value.reason) == (ErrorCode.PROTOCOL_REQUEST, "NotAMember")
        await world.stop()
        assert world.at_validator.links == []

    in_virtual_time(main())


def test_a_validator_serves_so_many_full_nodes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.validator.links.FULL_NODES_MAX", 2)
    assert FULL_NODES_MAX == 256

    async def main() -> None:
        world = FullNodeAndValidator()
        await world.start()
        more = []
        for number in (2, 3):
            links = DiallingFullNodeLinks(an_end(number, world.network.process(host_of(number))))
            links.start(Receipted())
            links.set_validators({key_of(1): world.address})
            more.append(links)
            await asyncio.sleep(1)
        assert len(world.validator.linked) == 2
        assert more[0].linked == [VALIDATOR]
        assert more[1].linked == []
        await world.full_node.close()
        await until(lambda: more[1].linked == [VALIDATOR])
        for links in more:
            await links.close()
        await world.stop()

    in_virtual_time(main())


def test_validators_that_are_not_wanted_any_more_lose_their_link_and_can_be_wanted_again() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        world.full_node.set_validators({})
        await until(lambda: world.full_node.linked == world.validator.linked == [])
        await asyncio.sleep(120)
        assert world.validator.linked == []
        world.full_node.set_validators({key_of(1): world.address})
        await until(lambda: world.validator.linked == [FULL_NODE], within_s=5.0)

    linked(scenario)


def test_a_validator_at_a_new_address_is_found_there() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        await world.listener.close()
        await until(lambda: world.full_node.linked == [])
        moved = TcpAddress(host_of(1), PORT + 1)
        await world.listener.start(moved)
        world.full_node.set_validators({key_of(1): moved})
        await until(lambda: world.full_node.linked == [VALIDATOR], within_s=10.0)

    linked(scenario)


def test_a_refused_full_node_is_kept_out_for_a_minute_and_so_is_a_refused_validator() -> None:
    async def scenario(world: FullNodeAndValidator) -> None:
        loop = asyncio.get_running_loop()
        for refuse, peer in ((world.validator.refuse, FULL_NODE), (world.full_node.refuse, VALIDATOR)):
            refuse(peer, "BadSignature", "something that nobody signed")
            await until(lambda: world.full_node.linked == world.validator.linked == [])
            gone_at = loop.time()
            await until(lambda: bool(world.full_node.linked and world.validator.linked))
            assert loop.time() - gone_at >= PENALTY_FIRST_S - 1

    linked(scenario)


def test_only_a_validator_sends_receipts() -> None:
    async def main() -> None:
        world = FullNodeAndValidator()
        await world.start()
        end = an_end(4, world.network.process(host_of(4)), seed=seed_of(4))
        bearer = await end.network.connect(world.address)
        await initiate_link(bearer, end, LinkKind.REMP, network_session_id(MAGIC), key_of(1))
        await until(lambda: key_id(key_of(4)) in world.validator.linked)
        talk = open_link_protocol(bearer, LinkProtocol.REMP_RECEIPTS, Role.CLIENT)
        await talk.send(Receipts(b"from a full node"))
        await bearer.wait_closed()
        assert key_id(key_of(4)) not in world.validator.linked
        await world.stop()

    in_virtual_time(main())


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_a_validator_that_is_back_for_the_chain_is_dialled_for_messages_at_once(is_heard_of: bool) -> None:
    """A full node waits for up to a minute for a validator that was away; the chain's links come back within seconds."""

    async def scenario(world: FullNodeAndValidator) -> None:
        inner = Heard()
        events = ChainLinkEvents(inner, world.full_node, key_of)
        await world.validator.close()
        await world.listener.close()
        await until(lambda: not world.full_node.linked)
        await asyncio.sleep(600.0)
        await world.listener.start(world.address)
        world.validator.start(world.at_validator)
        if is_heard_of:
            events.linked(1)
            assert inner.links == [1]
            await until(lambda: world.full_node.linked == [VALIDATOR], within_s=2.0)
        else:
            await asyncio.sleep(2.0)
            assert not world.full_node.linked

    linked(scenario)
