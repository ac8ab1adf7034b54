"""The DMQ transport against a small node on a real Unix socket: what it sends, what it hears, and what a refusal means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stagepost.delivery.envelope import (
    ACK_TOPICS,
    AckEnvelope,
    AckReceipt,
    DataEnvelope,
    read_ack_envelope,
    read_data_envelope,
)
from stagepost.delivery.identity import delivery_id
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.transport import Incoming, IncomingAcks, Outgoing, SendFailed, SendRefused
from stagepost.delivery.transports import dmq_connectivity as node_peers
from stagepost.delivery.transports.dmq import DmqTransport, DmqTransportLimits
from stagepost.delivery.transports.dmq_bodies import data_body, payload_room
from stagepost.delivery.transports.dmq_connectivity import NodePeers
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.keys.signer import DmqSigner
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome, Reason, Rejected, rejected
from stagepost.dmq.validation import TTL_MAX_S
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import SystemClock
from tests.worlds.dmq.background_node import a_peer, a_status, status_page
from tests.worlds.dmq.pool_signers import Signer, decoded
from tests.worlds.dmq.small_node import MAGIC, SmallNode

WITHIN_S = 120.0
QUICK = DmqTransportLimits(peers_poll_s=0.02, peers_poll_without_s=0.02, listen_again_s=0.05)
NONCE = bytes(16)


@dataclass
class ScriptedNode(SmallNode):
    """Gives these answers first, then its own."""

    answers: list[Outcome] = field(default_factory=list)

    async def submit(self, message: DmqMessage) -> Outcome:
        if self.answers:
            self.submissions += 1
            return self.answers.pop(0)
        return await super().submit(message)


def outgoing(payload: bytes = b"hello", attempt: int = 0, ackers: tuple[str, ...] = ()) -> Outgoing:
    return Outgoing("demo", NONCE, 1_800_000_000_000, attempt, ackers, payload)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
    return tmp_path / "keys"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "node.socket"


def transport_to(socket: Path, keys: Path, **options: Any) -> DmqTransport:
    return DmqTransport(socket, MAGIC, keys, limits=QUICK, **options)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WITHIN_S):
            await scenario

    asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_what_one_publishes_another_hears_with_its_authenticated_sender(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        make_keys(other_keys := keys.parent / "other", start_kes_period=0, issue_number=0)
        async with (
            SmallNode(socket) as node,
            transport_to(socket, keys) as alice,
            transport_to(socket, other_keys) as bob,
        ):
            heard: list[Incoming | IncomingAcks] = []
            bob.on_message(heard.append)
            published = await alice.publish(outgoing(ackers=(bob.self_id,)))
            await until(lambda: bool(heard))

            (message,) = node.messages
            assert published.network_id == message.message_id
            assert heard == [
                Incoming(
                    alice.self_id,
                    "demo",
                    NONCE,
                    1_800_000_000_000,
                    0,
                    (bob.self_id,),
                    b"hello",
                    message.expires_at * 1_000,
                    message.message_id,
                )
            ]
            assert alice.self_id == message.pool_id.hex() != bob.self_id

    run(scenario())


def test_retry_has_a_new_network_id_and_the_same_delivery_id(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            first = await transport.publish(outgoing(attempt=0))
            second = await transport.publish(outgoing(attempt=1))

            assert first.network_id != second.network_id
            sender = bytes.fromhex(transport.self_id)
            ids = {
                delivery_id(sender, envelope.topic, envelope.nonce, envelope.payload)
                for envelope in (read_data_envelope(message.body) for message in node.messages)
            }
            assert len(ids) == 1

    run(scenario())


def test_expired_is_signed_anew_once_without_costing_anything(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        expired = rejected(ErrorCode.MSG_EXPIRED, "over")
        node = ScriptedNode(socket, answers=[expired])
        async with node, transport_to(socket, keys) as transport:
            published = await transport.publish(outgoing())
            assert [message.message_id for message in node.messages] == [published.network_id]
            assert node.submissions == 2

            node.answers = [expired, expired]
            with pytest.raises(SendRefused):
                await transport.publish(outgoing(attempt=1))
            assert node.submissions == 4

    run(scenario())


def test_already_received_is_success(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = ScriptedNode(socket, answers=[rejected(ErrorCode.MSG_DUPLICATE, "held")])
        async with node, transport_to(socket, keys) as transport:
            assert (await transport.publish(outgoing())).network_id is not None

    run(scenario())


@pytest.mark.parametrize(
    "code", [ErrorCode.POOL_UNKNOWN, ErrorCode.KES_SIGNATURE, ErrorCode.MSG_EXPIRY_TOO_FAR]
)
def test_invalid_is_final(code: ErrorCode, keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = ScriptedNode(socket, answers=[rejected(code, "no")])
        async with node, transport_to(socket, keys) as transport:
            with pytest.raises(SendRefused) as refused:
                await transport.publish(outgoing())
            assert refused.value.code is code

    run(scenario())


@pytest.mark.parametrize("code", [ErrorCode.NOT_READY, ErrorCode.QUEUE_FULL, ErrorCode.STORAGE_UNAVAILABLE])
def test_other_refusals_may_go_better_and_cost_an_attempt(code: ErrorCode, keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = ScriptedNode(socket, answers=[rejected(code, "not now")])
        async with node, transport_to(socket, keys) as transport:
            with pytest.raises(SendFailed) as failed:
                await transport.publish(outgoing())
            assert (failed.value.code, failed.value.costs_attempt) == (code, True)

    run(scenario())


@pytest.mark.parametrize(
    ("refusal", "wait_s"),
    [
        (rejected(ErrorCode.MSG_TOO_FREQUENT, "one message per 60 s and pool; wait 12.5 s"), 12.5),
        (Rejected(Reason.OTHER, "SigTooFrequent"), 60.0),
        (Rejected(Reason.INVALID, "SigTooFrequent"), 60.0),
        (rejected(ErrorCode.MSG_TOO_FREQUENT, "wait 999999999 s"), 3_600.0),
    ],
)
def test_too_frequent_is_paced_to_the_seconds_named_and_costs_no_attempt(
    refusal: Rejected, wait_s: float, keys: Path, socket: Path
) -> None:
    async def scenario() -> None:
        node = ScriptedNode(socket, answers=[refusal])
        async with node, transport_to(socket, keys) as transport:
            with pytest.raises(SendFailed) as failed:
                await transport.publish(outgoing())
            assert (failed.value.retry_after_s, failed.value.costs_attempt) == (wait_s, False)

            with pytest.raises(SendFailed) as held:
                await transport.publish(outgoing())
            assert held.value.costs_attempt is False
            assert held.value.retry_after_s is not None
            assert 0 < held.value.retry_after_s <= wait_s
            assert node.submissions == 1, "while the node is known to refuse, nothing is submitted"

    run(scenario())


def test_receipts_wait_for_their_turn_unless_it_takes_too_long(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        soon = rejected(ErrorCode.MSG_TOO_FREQUENT, "one message per 60 s and pool; wait 0.05 s")
        node = ScriptedNode(socket, answers=[soon])
        async with node, transport_to(socket, keys) as transport:
            await transport.publish_acks([receipt(0)])
            assert [len(read_ack_envelope(message.body).receipts) for message in node.messages] == [1]

            node.answers = [soon, soon]
            with pytest.raises(SendFailed):
                await transport.publish_acks([receipt(1)])
            assert (node.submissions, transport.counters.acks_unsent) == (4, 1)

            node.answers = [rejected(ErrorCode.MSG_TOO_FREQUENT, "wait 60.1 s")]
            for _ in range(2):
                with pytest.raises(SendFailed):
                    await transport.publish_acks([receipt(2)])
            assert (node.submissions, transport.counters.acks_unsent) == (5, 3)

    run(scenario())


def test_transport_starts_without_a_node_and_follows_it_coming_and_going(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = SmallNode(socket)
        seen: list[int] = []
        async with transport_to(socket, keys) as transport:
            transport.on_connectivity(seen.append)
            assert transport.connected_peers == 0
            with pytest.raises(SendFailed) as failed:
                await transport.publish(outgoing())
            assert failed.value.costs_attempt is False

            await node.start()
            await until(lambda: transport.connected_peers == 1)
            await transport.publish(outgoing())
            await node.crash()
            await until(lambda: transport.connected_peers == 0)
            await node.start()
            await until(lambda: transport.connected_peers == 1)
            await transport.publish(outgoing(attempt=1))
            assert len(node.messages) == 2
            await node.stop()
        assert seen[:3] == [1, 0, 1]
        assert transport.connected_peers == 0

    run(scenario())


def test_node_lost_in_the_middle_of_a_submission_costs_no_attempt(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = SmallNode(socket, answer_after_s=WITHIN_S)
        async with transport_to(socket, keys) as transport:
            await node.start()
            await until(lambda: transport.connected_peers == 1)
            sending = asyncio.create_task(transport.publish(outgoing()))
            await until(lambda: node.submissions == 1)
            await node.crash()
            with pytest.raises(SendFailed) as failed:
                await sending
            assert failed.value.costs_attempt is False
            assert transport.connected_peers == 0

    run(scenario())


def test_node_that_takes_a_message_and_falls_silent_costs_an_attempt(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        limits = DmqTransportLimits(submit_timeout_s=0.05)
        async with (
            SmallNode(socket, answer_after_s=1.0),
            DmqTransport(socket, MAGIC, keys, limits=limits) as transport,
        ):
            with pytest.raises(SendFailed) as failed:
                await transport.publish(outgoing())
            assert failed.value.costs_attempt is True

    run(scenario())


def test_bodies_that_are_no_envelope_are_counted_and_skipped(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            heard: list[Incoming | IncomingAcks] = []
            transport.on_message(heard.append)
            signer = DmqSigner(keys)
            expires_at = int(SystemClock().unix_s()) + 600
            cut_off = data_body(outgoing())[:-1] + b"\x01"
            for body in (bytes(90), b"\x88\x01\x00" + bytes(90), b"\x84\x01\x01" + bytes(90), cut_off):
                await node.hold(await signer.sign(body, expires_at))
            await transport.publish(outgoing(b"the last"))
            await until(lambda: bool(heard))

            assert [message.payload for message in heard if isinstance(message, Incoming)] == [b"the last"]
            assert transport.counters.foreign_bodies == 4
            await signer.close()

    run(scenario())


def receipt(number: int) -> AckReceipt:
    return AckReceipt(number.to_bytes(32, "big"), 1_800_000_000_000, AckType.ACK)


def test_receipts_name_carrier_and_sender_so_that_a_forgery_shows(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            heard: list[Incoming | IncomingAcks] = []
            transport.on_message(heard.append)
            nack = AckReceipt(bytes(32), 1_800_000_000_000, AckType.NACK, NackReason.BUSY, 250)
            await transport.publish_acks([receipt(1), nack])
            honest = PoolId(bytes(28))
            forger = DmqSigner(keys)
            body = AckEnvelope(honest, (receipt(2),)).encode()
            await node.hold(await forger.sign(body, int(SystemClock().unix_s()) + 600))
            await until(lambda: len(heard) == 2)

            carrier = transport.self_id
            assert heard == [
                IncomingAcks(carrier, carrier, (receipt(1), nack)),
                IncomingAcks(carrier, honest.hex(), (receipt(2),)),
            ]
            await forger.close()

    run(scenario())


@pytest.mark.parametrize("topic", sorted(ACK_TOPICS))
def test_receipts_wrapped_as_data_on_the_ack_topic_are_understood(
    topic: str, keys: Path, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            heard: list[Incoming | IncomingAcks] = []
            transport.on_message(heard.append)
            me = bytes.fromhex(transport.self_id)
            wrapped = DataEnvelope(topic, NONCE, 0, AckEnvelope(me, (receipt(7),)).encode())
            monkeypatch.setattr("stagepost.delivery.envelope.RESERVED_TOPIC_PREFIX", "never")
            body = wrapped.encode()
            monkeypatch.undo()
            signer = DmqSigner(keys)
            await node.hold(await signer.sign(body, int(SystemClock().unix_s()) + 600))
            await until(lambda: bool(heard))

            assert heard == [IncomingAcks(transport.self_id, transport.self_id, (receipt(7),))]
            await signer.close()

    run(scenario())


def test_many_receipts_take_few_messages_that_live_a_minute_at_most(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            before = SystemClock().unix_s()
            await transport.publish_acks([receipt(number) for number in range(100)])

            assert len(node.messages) == 3
            read = [read_ack_envelope(message.body).receipts for message in node.messages]
            assert [one for batch in read for one in batch] == [receipt(number) for number in range(100)]
            assert all(len(message.body) <= 2_000 for message in node.messages)
            now = SystemClock().unix_s()
            assert all(before + 59 <= message.expires_at <= now + 60 for message in node.messages)

    run(scenario())


def test_life_of_a_message_stays_below_what_networks_allow(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys, ttl_s=86_400.0) as transport:
            await transport.publish(outgoing())
            left_s = node.messages[0].expires_at - SystemClock().unix_s()
            assert TTL_MAX_S - 12 < left_s <= TTL_MAX_S - 10

    run(scenario())


@pytest.mark.parametrize("topic", ["t", "t" * 23, "t" * 24, "t" * 255])
@pytest.mark.parametrize("ackers", [0, 1, 23, 24])
def test_payload_room_is_exact_at_the_longest_attempt(topic: str, ackers: int) -> None:
    names = tuple(bytes([number] * 28).hex() for number in range(ackers))
    room = payload_room(topic, names)

    def body(size: int) -> bytes:
        return data_body(Outgoing(topic, NONCE, 2**63 - 1, 2**32 - 1, names, bytes(size)))

    assert len(body(room)) == 2_000
    with pytest.raises(Exception, match="fit into a message"):
        body(room + 1)


def test_least_room_is_that_of_the_longest_topic(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        transport = transport_to(socket, keys)
        assert transport.max_payload == transport.payload_room("t" * 255, ()) == 1_705
        await transport.close()

    run(scenario())


def test_acker_that_is_no_pool_is_refused_with_its_name(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys) as transport:
            with pytest.raises(SendRefused, match="'relay-1' cannot acknowledge"):
                await transport.publish(outgoing(ackers=("relay-1",)))
            assert node.messages == []

    run(scenario())


def test_node_that_is_not_trusted_cannot_slip_in_what_proves_nothing(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node, transport_to(socket, keys, verify=True) as transport:
            heard: list[Incoming | IncomingAcks] = []
            transport.on_message(heard.append)
            genuine = Signer(1).sign(expires_at=int(SystemClock().unix_s()) + 600)
            await node.hold(decoded(genuine, flip_at=len(genuine.raw) - 1))
            await transport.publish(outgoing())
            await until(lambda: bool(heard))

            assert transport.counters.forged == 1
            assert len(heard) == 1

    run(scenario())


def test_callback_that_fails_harms_nobody_and_one_that_left_is_not_called(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket), transport_to(socket, keys) as transport:
            heard: list[Incoming | IncomingAcks] = []
            gone: list[Incoming | IncomingAcks] = []

            def fail(message: Incoming | IncomingAcks) -> None:
                raise RuntimeError("planted")

            transport.on_message(fail)
            leave = transport.on_message(gone.append)
            transport.on_message(heard.append)
            leave()
            leave()
            await transport.publish(outgoing())
            await until(lambda: bool(heard))
            assert (transport.counters.callbacks_failed, gone) == (1, [])

    run(scenario())


def test_whoever_listens_late_hears_what_the_node_held_before(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket) as node:
            async with transport_to(socket, keys) as transport:
                await transport.publish(outgoing(b"before anybody listened"))
            async with transport_to(socket, keys) as transport:
                seen: list[int] = []
                transport.on_connectivity(seen.append)
                early: list[Incoming | IncomingAcks] = []
                late: list[Incoming | IncomingAcks] = []
                transport.on_message(early.append)
                await transport.publish(outgoing(b"then", attempt=1))
                await until(lambda: len(early) == 2)
                transport.on_message(late.append)
                await until(lambda: len(late) == 2)
                assert late == early[:2]
                assert transport.connected_peers == 1
                assert seen == [], "listening anew is no loss of the node"
            assert len(node.messages) == 2

    run(scenario())


def test_connected_peers_are_those_that_the_node_exchanges_messages_with(keys: Path, socket: Path) -> None:
    status = a_status(peers=[a_peer(), a_peer(), a_peer(state="warm")])

    async def scenario() -> None:
        seen: list[int] = []
        async with SmallNode(socket), transport_to(socket, keys) as transport:
            transport.on_connectivity(seen.append)
            assert transport.connected_peers == 2
            status["peers"] = [a_peer(state="warm")]
            await until(lambda: transport.connected_peers == 0)
            status["peers"] = [a_peer()]
            await until(lambda: transport.connected_peers == 1)
        assert seen == [0, 1, 0]

    with status_page(socket.parent, lambda _: (200, _json(status)), str(socket)):
        run(scenario())


@pytest.mark.parametrize("answer", [(500, b"no"), (200, b"not json"), (200, b"[]")])
def test_node_that_cannot_tell_its_peers_counts_as_one_while_it_answers(
    answer: tuple[int, bytes], keys: Path, socket: Path
) -> None:
    async def scenario() -> None:
        async with SmallNode(socket), transport_to(socket, keys) as transport:
            assert transport.connected_peers == 1

    with status_page(socket.parent, lambda _: answer, str(socket)):
        run(scenario())


def test_status_longer_than_a_node_has_to_tell_is_not_read(
    socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket.touch()
    status = _json(a_status())
    head = b"HTTP/1.0 200 OK\r\n"

    def counted(most: int) -> int | None:
        monkeypatch.setattr(node_peers, "ANSWER_BYTES_MAX", most)
        return asyncio.run(NodePeers(socket).count())

    with status_page(socket.parent, lambda _: (200, status), str(socket)):
        assert counted(len(status)) is None, "the head counts too"
        fitting = next(most for most in range(len(status), len(status) + 400) if counted(most) == 1)
        assert fitting > len(status) + len(head)


def test_publish_may_be_cancelled_at_any_time(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        node = SmallNode(socket, answer_after_s=WITHIN_S)
        async with node, transport_to(socket, keys) as transport:
            for steps in range(30):
                sending = asyncio.create_task(transport.publish(outgoing(attempt=steps)))
                for _ in range(steps):
                    await asyncio.sleep(0.0005)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
            node.answer_after_s = 0.0
            assert (await transport.publish(outgoing(attempt=99))).network_id is not None
            assert transport.connected_peers == 1

    run(scenario())


def test_note_of_another_node_in_the_same_folder_is_not_taken_for_ours(keys: Path, socket: Path) -> None:
    async def scenario() -> None:
        async with SmallNode(socket), transport_to(socket, keys) as transport:
            assert transport.connected_peers == 1

    with status_page(socket.parent, lambda _: (200, _json(a_status(peers=[]))), "elsewhere.socket"):
        run(scenario())


def _json(status: dict[str, Any]) -> bytes:
    import json

    return json.dumps(status).encode()
