"""Links on real sockets against a member with a real key: every misdeed is refused by name, and harms nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

import pytest
from nacl.bindings import crypto_kx_keypair
from nacl.signing import SigningKey, VerifyKey

from stagepost.catchain.block import BLOCK_BYTES_MAX, Block, incarnation_of, root_reference
from stagepost.catchain.effects import Effect, Persist, RefusalReport, Reply
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import Member
from stagepost.catchain.query_window import QUERIES_HELD_MAX
from stagepost.dmq.conform.attacker import HANDSHAKE, OTHER_SIDE, NodeClosed, segment, segments
from stagepost.dmq.conform.cbor_bytes import array, octets, read, text, uint
from stagepost.ground.net.network import SocketNetwork, TcpAddress
from stagepost.ground.wire.mux_queues import EGRESS_BYTES_MAX
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.listener import LinkListener
from stagepost.remp.links.overlay_links import LinkMember, OverlayLinks
from stagepost.remp.links.specs import OBJECTS_INGRESS_BYTES_MAX
from stagepost.remp.message import RempMessage
from stagepost.validator.links import ListeningValidatorLinks
from tests.hostile.link_attacker import (
    AUTHENTICATION,
    CATCHAIN_VERSION,
    KEEP_ALIVE,
    MESSAGES,
    OVERLAY,
    RECEIPTS,
    REMP_VERSION,
    LinkAttacker,
    Opening,
    Sealing,
    answer,
    ask,
    link_data,
    push,
    signed_bytes,
    stream_keys,
    transcript,
)
from tests.hostile.strangers import Siege
from tests.worlds.remp.remp_links import MAGIC, SESSION, Heard, an_end, key_of, seed_of, until

ATTACKER, HONEST, VICTIM = 0, 1, 2
OBJECT_BYTES_MAX = 66_535
WITHIN_S = 120.0
INCARNATION = incarnation_of(SESSION, [key_id(key_of(index)) for index in range(3)])


class MemberAbove:
    """A real member of a graph above the links, with a disk that is always done."""

    def __init__(self, overlay: OverlayLinks) -> None:
        graph = Graph(INCARNATION, [key_of(index) for index in range(3)], GraphRules())
        self.overlay = overlay
        self.member = Member(graph, VICTIM, seed_of(VICTIM), lambda is_due, account: None, Random(1), 0.0)
        self.withholds_answers = False
        self._replies: dict[int, Callable[[bytes], None]] = {}

    def pushed(self, peer: int, frame: bytes) -> None:
        self.perform(self.member.frame_received(peer, frame, 1.0))

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        if not self.withholds_answers:
            self._replies[0] = reply
            self.perform(self.member.query_received(peer, 0, query, 1.0))

    def linked(self, peer: int) -> None:
        pass

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case RefusalReport(peer, rule, reason):
                    self.overlay.refuse(peer, rule, reason)
                case Reply(_, number, content):
                    self._replies[number](content)
                case Persist(block_hash):
                    self.perform(self.member.stored(block_hash, 1.0))
                case _:
                    pass


@dataclass
class Scene:
    """The attacker is linked as member 0, an honest member as 1; the victim is 2."""

    attacker: LinkAttacker
    above: MemberAbove
    honest: OverlayLinks
    honest_heard: Heard
    port: int


def on_a_scene(scenario: Callable[[Scene], Awaitable[None]], *, linked: bool = True) -> None:
    async def main() -> None:
        network = SocketNetwork()
        ends = {number: an_end(number, network) for number in (HONEST, VICTIM)}
        listeners = {number: LinkListener(end) for number, end in ends.items()}
        for listener in listeners.values():
            await listener.start(TcpAddress("127.0.0.1", 0))
        port = listeners[VICTIM].port
        assert port is not None
        members = [LinkMember(key_of(0), None), LinkMember(key_of(1), None)]
        members.append(LinkMember(key_of(2), TcpAddress("127.0.0.1", port)))
        overlays = {
            number: OverlayLinks(ends[number], listeners[number], SESSION, number, members) for number in ends
        }
        above, heard = MemberAbove(overlays[VICTIM]), Heard()
        overlays[VICTIM].start(above)
        overlays[HONEST].start(heard)
        attacker = await LinkAttacker.connect(port, MAGIC, seed_of(ATTACKER))
        try:
            await until(lambda: overlays[HONEST].linked == [VICTIM], WITHIN_S)
            if linked:
                await attacker.link(CATCHAIN_VERSION, SESSION)
                await until(lambda: overlays[VICTIM].linked == [ATTACKER, HONEST], WITHIN_S)
            await scenario(Scene(attacker, above, overlays[HONEST], heard, port))
            # Whatever it was, the honest member's link still stands and serves.
            answers: list[bytes | None] = []
            overlays[HONEST].ask(VICTIM, GET_DIFFERENCE, answers.append, 10.0)
            await until(lambda: bool(answers), WITHIN_S)
            assert answers[0] is not None
        finally:
            await attacker.talk.leave()
            for overlay in overlays.values():
                await overlay.close()
            for listener in listeners.values():
                await listener.close()

    asyncio.run(main())


GET_DIFFERENCE = bytes.fromhex("d8ce6cd0") + (3).to_bytes(4, "little") + bytes(12)


def a_block(**changes: Any) -> Block:
    """Member 0's first block, with a signature that nobody made."""
    fields: dict[str, Any] = {
        "incarnation": INCARNATION,
        "source": ATTACKER,
        "height": 1,
        "previous": root_reference(INCARNATION, 3),
        "dependencies": (),
        "signature": bytes(64),
        "payload": b"payload",
    }
    return Block(**fields | changes)


def by_member(rule: str) -> tuple[str, str]:
    return "PROTOCOL_REQUEST", rule


ROWS: list[Any] = [
    # TL objects
    pytest.param(OVERLAY, push(b"\1\2\3\4"), by_member("Malformed"), id="an unknown constructor"),
    pytest.param(OVERLAY, push(a_block().encode()[:90]), by_member("Malformed"), id="a block cut short"),
    pytest.param(OVERLAY, push(a_block().encode()), by_member("BadSignature"), id="a block nobody signed"),
    pytest.param(
        OVERLAY,
        push(a_block(incarnation=bytes(32)).encode()),
        by_member("WrongIncarnation"),
        id="a block of another session",
    ),
    pytest.param(
        OVERLAY, push(a_block(source=3).encode()), by_member("UnknownSource"), id="a block of nobody"
    ),
    pytest.param(
        OVERLAY, push(a_block(height=0).encode()), by_member("HeightOutOfRange"), id="a block below the first"
    ),
    pytest.param(
        OVERLAY, push(a_block(payload=b"").encode()), by_member("EmptyPayload"), id="a block without payload"
    ),
    pytest.param(
        OVERLAY,
        push(a_block(payload=bytes(BLOCK_BYTES_MAX)).encode()),
        ("CBOR_LIMIT", "TooLarge"),
        id="a block above 16 KiB",
    ),
    pytest.param(OVERLAY, ask(0, b"\1\2\3\4"), by_member("Malformed"), id="an unknown query"),
    pytest.param(
        OVERLAY,
        ask(0, GET_DIFFERENCE[:4] + b"\xff\xff\xff\x7f"),
        by_member("Malformed"),
        id="a query that announces two thousand million heights",
    ),
    # What carries them
    pytest.param(
        OVERLAY, push(bytes(OBJECT_BYTES_MAX + 1)), ("CBOR_INVALID", None), id="an object one byte too long"
    ),
    pytest.param(OVERLAY, push(bytes(100_000)), ("CBOR_LIMIT", None), id="a message above its limit"),
    pytest.param(OVERLAY, push(b"abc"), ("CBOR_INVALID", None), id="too short an object"),
    pytest.param(
        OVERLAY,
        b"\x82\x00\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
        ("CBOR_LIMIT", None),
        id="an object that announces eight exabytes",
    ),
    pytest.param(OVERLAY, b"\xff", ("CBOR_INVALID", None), id="no CBOR"),
    pytest.param(OVERLAY, array(uint(9), octets(b"what?")), ("CBOR_INVALID", None), id="an unknown tag"),
    pytest.param(
        OVERLAY,
        array(uint(0), octets(b"frame"), uint(1)),
        ("CBOR_INVALID", None),
        id="one element too many",
    ),
    pytest.param(OVERLAY, array(uint(0), text("frame")), ("CBOR_INVALID", None), id="text for bytes"),
    # Out of the window
    pytest.param(
        OVERLAY,
        answer(0, b"an answer"),
        ("PROTOCOL_WINDOW", "AnswerWithoutQuery"),
        id="an answer to no query",
    ),
    pytest.param(
        OVERLAY, ask(1, GET_DIFFERENCE), ("PROTOCOL_WINDOW", "QueryOutOfOrder"), id="a number skipped"
    ),
    pytest.param(
        OVERLAY,
        ask(0, GET_DIFFERENCE) * 2,
        ("PROTOCOL_WINDOW", "QueryOutOfOrder"),
        id="a number used twice",
    ),
    # Where nobody listens
    pytest.param(
        OVERLAY | OTHER_SIDE, push(b"frame"), ("MUX_TOO_LARGE", None), id="an answer where only we speak"
    ),
    pytest.param(MESSAGES, push(b"message"), ("MUX_UNKNOWN_PROTOCOL", None), id="a full node's protocol"),
    pytest.param(RECEIPTS, push(b"receipts"), ("MUX_UNKNOWN_PROTOCOL", None), id="a validator's protocol"),
    pytest.param(
        AUTHENTICATION,
        array(uint(0), octets(SESSION), octets(bytes(64))),
        ("MUX_UNKNOWN_PROTOCOL", None),
        id="a second proof",
    ),
    pytest.param(HANDSHAKE, b"\x82\x00\xa0", ("MUX_UNKNOWN_PROTOCOL", None), id="a second handshake"),
    pytest.param(KEEP_ALIVE, bytes(1_409), ("MUX_TOO_LARGE", None), id="a long keep-alive"),
]


@pytest.mark.parametrize(("lane", "payload", "named"), ROWS)
def test_a_misdeed_on_a_link_ends_it_by_name_and_is_remembered(
    lane: int, payload: bytes, named: tuple[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario(scene: Scene) -> None:
        await scene.attacker.say(lane, payload)
        assert await scene.attacker.talk.wait_ended(WITHIN_S) is not None
        await until(lambda: scene.above.overlay.linked == [HONEST], WITHIN_S)
        # The key is known, so the next link is refused, by name.
        again = await LinkAttacker.connect(scene.port, MAGIC, seed_of(ATTACKER))
        await again.shake_hands(CATCHAIN_VERSION)
        reply = await again.prove(SESSION, again.proof(CATCHAIN_VERSION, SESSION))
        assert reply[:3] == [2, "PROTOCOL_REQUEST", "KeptOut"]
        await again.talk.leave()

    on_a_scene(scenario)
    (record,) = [record for record in caplog.records if record.message == "peer broke a rule"]
    assert (record.__dict__["code"], record.__dict__["rule"]) == named
    assert record.__dict__["key_id"] == key_id(key_of(ATTACKER)).hex()
    assert record.__dict__["reason"], "a sentence for people"


def test_what_stands_at_the_edge_of_every_limit_is_taken() -> None:
    async def scenario(scene: Scene) -> None:
        attacker = scene.attacker
        # Signed by a real key, and as long as a frame may be.
        payload = bytes(BLOCK_BYTES_MAX - len(a_block(payload=b"").encode()))
        signature = SigningKey(seed_of(ATTACKER)).sign(_block_id(a_block(payload=payload))).signature
        block = a_block(payload=payload, signature=signature)
        assert len(block.encode()) == BLOCK_BYTES_MAX
        await attacker.say(OVERLAY, push(block.encode()))
        await attacker.say(OVERLAY, ask(0, GET_DIFFERENCE) + ask(1, GET_DIFFERENCE))
        # The victim may have pushed blocks of its own in between.
        for number in range(2):
            said = await attacker.talk.hear(OVERLAY)
            while said[0] == 0:
                said = await attacker.talk.hear(OVERLAY)
            assert said[:2] == [2, number]
        assert scene.above.member.graph.top(ATTACKER).height == 1
        assert scene.above.overlay.linked == [ATTACKER, HONEST]

    on_a_scene(scenario)


def _block_id(block: Block) -> bytes:
    """What a member signs, in the version that covers references; written a second time."""
    previous = (
        block.previous.source.to_bytes(4, "little")
        + block.previous.height.to_bytes(4, "little")
        + block.previous.data_hash
        + b"\0\0\0\0"
    )
    data = bytes.fromhex("20a6acf8") + previous + (0).to_bytes(4, "little")
    of_data = sha256(sha256(block.payload).digest() + sha256(data).digest()).digest()
    source = key_id(key_of(block.source))
    return (
        bytes.fromhex("ba98fe24") + block.incarnation + source + block.height.to_bytes(4, "little") + of_data
    )


def test_queries_that_nobody_answers_are_held_up_to_128_and_the_next_ends_the_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.above.withholds_answers = True
        queries = [ask(number, GET_DIFFERENCE) for number in range(QUERIES_HELD_MAX + 1)]
        await scene.attacker.say(OVERLAY, b"".join(queries[:-1]))
        await scene.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
        assert await scene.attacker.talk.hear(KEEP_ALIVE | OTHER_SIDE) == [1, 7]
        assert scene.above.overlay.linked == [ATTACKER, HONEST]
        await scene.attacker.say(OVERLAY, queries[-1])
        assert await scene.attacker.talk.wait_ended(WITHIN_S) is not None
        scene.above.withholds_answers = False

    on_a_scene(scenario)
    assert [
        record.__dict__["rule"] for record in caplog.records if record.message == "peer broke a rule"
    ] == ["TooManyQueries"]


def test_a_member_that_reads_nothing_costs_a_bounded_queue() -> None:
    async def scenario(scene: Scene) -> None:
        scene.attacker.talk.pause()
        overlay, frame = scene.above.overlay, bytes(16_000)
        accepted = turns = 0
        while turns < 2_000:
            accepted += overlay.push(ATTACKER, frame)
            turns += 1
            await asyncio.sleep(0)
        assert overlay.counts.dropped > 1_000
        waiting = overlay._links[ATTACKER]._speaking._channel._lane.waiting_bytes  # type: ignore[attr-defined]
        assert waiting <= EGRESS_BYTES_MAX + len(frame) + 16
        scene.attacker.talk.resume()

    on_a_scene(scenario)


# Before the proof


@pytest.mark.parametrize(
    ("proof", "rule"),
    [
        pytest.param(
            lambda peer: peer.proof(CATCHAIN_VERSION, bytes(32)), "BadProof", id="of another session"
        ),
        pytest.param(
            lambda peer: peer.proof(CATCHAIN_VERSION, SESSION, b"responder"),
            "BadProof",
            id="of the other role",
        ),
        pytest.param(lambda peer: peer.proof(REMP_VERSION, SESSION), "BadProof", id="of another version"),
        pytest.param(lambda peer: bytes(64), "BadProof", id="of nobody"),
    ],
)
def test_a_wrong_proof_is_refused_by_name(proof: Callable[[LinkAttacker], bytes], rule: str) -> None:
    async def scenario(scene: Scene) -> None:
        attacker = scene.attacker
        await attacker.shake_hands(CATCHAIN_VERSION)
        reply = await attacker.prove(SESSION, proof(attacker))
        assert reply[:3] == [2, "PROTOCOL_REQUEST", rule]
        assert await attacker.talk.wait_ended(WITHIN_S) is not None
        assert scene.above.overlay.linked == [HONEST]

    on_a_scene(scenario, linked=False)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(segments(AUTHENTICATION, bytes(1_025)), id="too long"),
        pytest.param(segment(AUTHENTICATION, b"", announced=1_025), id="a header that announces too much"),
        pytest.param(segments(AUTHENTICATION, b"\x82\x00\x41\0"), id="cut short"),
        pytest.param(
            segments(AUTHENTICATION, array(uint(0), octets(bytes(31)), octets(bytes(64)))), id="short session"
        ),
        pytest.param(
            segments(AUTHENTICATION, array(uint(0), octets(SESSION), octets(bytes(65)))), id="long signature"
        ),
        pytest.param(segments(OVERLAY, push(b"frame")), id="an object"),
        pytest.param(
            segments(AUTHENTICATION, array(uint(0), octets(SESSION), octets(bytes(64))) + b"\0"),
            id="something behind the proof",
        ),
    ],
)
def test_whoever_says_anything_but_a_proof_is_cut_off(payload: bytes) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.attacker.shake_hands(CATCHAIN_VERSION)
        await scene.attacker.talk.raw(payload)
        assert await scene.attacker.talk.wait_ended(WITHIN_S) is not None
        assert scene.attacker.talk.heard_bytes(AUTHENTICATION | OTHER_SIDE) == b""
        assert scene.above.overlay.linked == [HONEST]

    on_a_scene(scenario, linked=False)


def test_a_listener_that_floods_before_its_proof_is_cut_off_at_the_limit_and_nothing_of_it_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    flood = segments(OVERLAY, push(bytes(60_000)) * 6)
    assert len(flood) > OBJECTS_INGRESS_BYTES_MAX
    ephemeral, _ = crypto_kx_keypair()
    key = SigningKey(seed_of(1))
    cut_off = asyncio.Event()

    async def flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readexactly(8)
        proposed, _ = read(await reader.readexactly(int.from_bytes(header[6:], "big")))
        assert CATCHAIN_VERSION in proposed[1]
        data = link_data(MAGIC, bytes(key.verify_key), bytes(32), ephemeral, (CATCHAIN_VERSION,))
        writer.write(segment(HANDSHAKE | OTHER_SIDE, array(uint(1), uint(CATCHAIN_VERSION), data)))
        await reader.readexactly(8)  # the proof begins: now the lanes are open
        writer.write(flood)
        with suppress(ConnectionError):
            await reader.read()
        cut_off.set()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(flooding, "127.0.0.1", 0)
        address = TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        end = an_end(0, SocketNetwork())
        members = [LinkMember(key_of(0), None), LinkMember(key_of(1), address)]
        overlay, heard = OverlayLinks(end, LinkListener(end), SESSION, 0, members), Heard()
        overlay.start(heard)
        try:
            async with asyncio.timeout(WITHIN_S):
                await cut_off.wait()
        finally:
            await overlay.close()
            server.close()
        assert heard == Heard()
        assert overlay.linked == []

    asyncio.run(main())
    codes = [record.__dict__["code"] for record in caplog.records if record.message == "peer not connected"]
    assert codes == ["MUX_UNKNOWN_PROTOCOL"]


def test_a_responder_written_from_the_description_is_believed_and_heard_behind_the_first_record() -> None:
    key, nonce = SigningKey(seed_of(1)), bytes(range(32))
    ephemeral, secret = crypto_kx_keypair()

    async def responding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        plain_bytes = {False: sha256(), True: sha256()}

        async def hear(lane: int) -> Any:
            header = await reader.readexactly(8)
            assert header[4:6] == lane.to_bytes(2, "big")
            payload = await reader.readexactly(int.from_bytes(header[6:], "big"))
            plain_bytes[False].update(header + payload)
            return read(payload)[0]

        def say(data: bytes) -> None:
            plain_bytes[True].update(data)
            writer.write(data)

        theirs = (await hear(HANDSHAKE))[1][CATCHAIN_VERSION]
        magic, their_key, their_nonce, their_ephemeral, offered = theirs
        public_key = bytes(key.verify_key)
        data = link_data(magic, public_key, nonce, ephemeral, (CATCHAIN_VERSION,))
        said = {CATCHAIN_VERSION: link_data(magic, their_key, their_nonce, their_ephemeral, tuple(offered))}
        handshake = transcript(said, CATCHAIN_VERSION, data)
        say(segment(HANDSHAKE | OTHER_SIDE, array(uint(1), uint(CATCHAIN_VERSION), data)))
        proof = await hear(AUTHENTICATION)
        session = proof[1]
        pairs = (their_nonce, nonce), (their_key, public_key), session, (their_ephemeral, ephemeral)
        checked = signed_bytes(b"initiator", CATCHAIN_VERSION, MAGIC, *pairs, handshake)
        VerifyKey(their_key).verify(checked, proof[2])
        ours = key.sign(signed_bytes(b"responder", CATCHAIN_VERSION, MAGIC, *pairs, handshake)).signature
        say(segment(AUTHENTICATION | OTHER_SIDE, array(uint(1), octets(ours))))
        hashes = b"".join(plain_bytes[is_ours].digest() for is_ours in (False, True))
        ends = secret, ephemeral, their_ephemeral, handshake, session
        receiving, sending = stream_keys(*ends, hashes, is_initiator=False)
        sealing, opening = Sealing(sending), Opening(reader, receiving)
        assert len(await opening.readexactly(8)) == 8
        writer.write(sealing.header + sealing(segment(OVERLAY, push(b"right behind it"))))
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(responding, "127.0.0.1", 0)
        address = TcpAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        end = an_end(0, SocketNetwork())
        members = [LinkMember(key_of(0), None), LinkMember(key_of(1), address)]
        overlay, heard = OverlayLinks(end, LinkListener(end), SESSION, 0, members), Heard()
        overlay.start(heard)
        try:
            await until(lambda: heard.pushes == [(1, b"right behind it")], WITHIN_S)
            assert heard.links == [1]
        finally:
            await overlay.close()
            server.close()

    asyncio.run(main())


# Full nodes


class StrictValidator:
    """Reads every message, and refuses those that its full node has not signed."""

    def __init__(self) -> None:
        self.links: ListeningValidatorLinks
        self.came = 0

    def message_came(self, full_node: bytes, message: bytes) -> None:
        if RempMessage.decode(message).is_signed_by(key_of(0)):
            self.came += 1
        else:
            self.links.refuse(full_node, "BadSignature", "the full node has not signed this message")

    def full_node_linked(self, full_node: bytes) -> None:
        pass


SIGNED = RempMessage(b"message", bytes(32), 1).sign(seed_of(0)).encode()


@pytest.mark.parametrize(
    ("lane", "payload", "named"),
    [
        pytest.param(MESSAGES, push(SIGNED), None, id="a proper one"),
        pytest.param(
            MESSAGES,
            push(RempMessage(b"message", bytes(32), 1).sign(seed_of(5)).encode()),
            ("PROTOCOL_REQUEST", "BadSignature"),
            id="signed by another",
        ),
        pytest.param(MESSAGES, push(SIGNED[:-4]), ("TL_TRUNCATED", None), id="cut short"),
        pytest.param(MESSAGES, push(SIGNED + bytes(4)), ("TL_INVALID", None), id="with bytes left over"),
        pytest.param(MESSAGES, push(b"\1\2\3\4"), ("TL_INVALID", None), id="of an unknown constructor"),
        pytest.param(
            MESSAGES, push(bytes(OBJECT_BYTES_MAX + 1)), ("CBOR_INVALID", None), id="one byte too long"
        ),
        pytest.param(MESSAGES, push(bytes(100_000)), ("CBOR_LIMIT", None), id="far too long"),
        pytest.param(
            RECEIPTS, push(SIGNED), ("MUX_UNKNOWN_PROTOCOL", None), id="receipts, as if a validator"
        ),
        pytest.param(
            RECEIPTS | OTHER_SIDE,
            push(SIGNED),
            ("MUX_TOO_LARGE", None),
            id="said where only the validator speaks",
        ),
        pytest.param(OVERLAY, push(SIGNED), ("MUX_UNKNOWN_PROTOCOL", None), id="said as if a member"),
    ],
)
def test_what_a_full_node_sends_is_taken_or_ends_its_link_by_name(
    lane: int, payload: bytes, named: tuple[str, str | None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    session = sha256(b"stagepost REMP links of network\0" + MAGIC.to_bytes(4, "big")).digest()

    async def main() -> None:
        end = an_end(1, SocketNetwork())
        listener = LinkListener(end)
        await listener.start(TcpAddress("127.0.0.1", 0))
        assert listener.port is not None
        validator = StrictValidator()
        validator.links = ListeningValidatorLinks(end, listener, lambda public_key: public_key == key_of(0))
        validator.links.start(validator)
        attacker = await LinkAttacker.connect(listener.port, MAGIC, seed_of(0))
        try:
            await attacker.link(REMP_VERSION, session)
            await until(lambda: bool(validator.links.linked), WITHIN_S)
            await attacker.say(lane, payload)
            if named is None:
                await until(lambda: validator.came == 1, WITHIN_S)
                assert validator.links.linked
            else:
                assert await attacker.talk.wait_ended(WITHIN_S) is not None
                await until(lambda: not validator.links.linked, WITHIN_S)
                assert validator.came == 0
        finally:
            await attacker.talk.leave()
            await validator.links.close()
            await listener.close()

    asyncio.run(main())
    broken = [record.__dict__ for record in caplog.records if record.message == "peer broke a rule"]
    assert [(record["code"], record["rule"]) for record in broken] == ([] if named is None else [named])


def test_silent_connections_keep_no_member_out() -> None:
    """More connections that prove nothing than there are places for them; a member that comes behind them is linked."""

    async def scenario(scene: Scene) -> None:
        async with Siege(scene.port, 150).laid(), asyncio.timeout(WITHIN_S):
            # On a busy machine a place before the proof may be taken again; a member dials once more then.
            while True:
                member = await LinkAttacker.connect(scene.port, MAGIC, seed_of(ATTACKER))
                try:
                    await member.link(CATCHAIN_VERSION, SESSION)
                    return
                except (OSError, NodeClosed):
                    continue
                finally:
                    await member.talk.leave()

    on_a_scene(scenario, linked=False)
