"""The receiver: once per message to the application, and an answer only when it is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stagepost.delivery import (
    Busy,
    ErrAlreadyStarted,
    ErrConfig,
    ErrNacked,
    MemoryNetwork,
    Message,
    NackReason,
    Receiver,
    ReceiverConfig,
    Reject,
)
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.status import AckType
from stagepost.delivery.stores.inbox_stores import MemoryInbox, MemoryInboxDisk
from stagepost.delivery.transport import Incoming, IncomingAcks
from tests.worlds.delivery.delivery_world import (
    START_UNIX_S,
    TOPIC,
    Listener,
    a_publisher,
    an_acked_config,
    clock,
    id_of,
    now,
    settle,
    virtually,
)


class Sender:
    """Says to bob whatever it is told, and hears bob's answers."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.transport = network.join("alice")
        self.answers: list[AckReceipt] = []
        self.batches: list[int] = []
        self.times: list[float] = []
        self.transport.on_message(self._hear)

    def _hear(self, message: Incoming | IncomingAcks) -> None:
        assert isinstance(message, IncomingAcks)
        assert message.sender == message.carrier == "bob"
        self.answers += message.receipts
        self.batches.append(len(message.receipts))
        self.times.append(now())

    def say(self, payload: bytes, *, ackers: tuple[str, ...] = ("bob",), **changes: Any) -> Incoming:
        values: dict[str, Any] = {
            "topic": TOPIC,
            "nonce": bytes(16),
            "created_ms": int((START_UNIX_S + now()) * 1_000),
            "attempt": 0,
        }
        message = Incoming(sender="alice", ackers=ackers, payload=payload, **(values | changes))
        self.network.hand("bob", message)
        return message


def test_a_handler_gets_the_message_and_a_plain_return_is_an_ack() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            said = alice.say(b"x", attempt=2)
            await settle()

            (message,) = bob.got
            assert (message.topic, message.data, message.sender, message.attempt) == (TOPIC, b"x", "alice", 2)
            assert message.message_id == id_of(said).hex()
            assert not message.maybe_duplicate
            (answer,) = alice.answers
            assert (answer.message_id, answer.ack_type) == (id_of(said), AckType.ACK)
            assert answer.timestamp_ms == int(START_UNIX_S * 1_000)

    virtually(main)


def test_who_is_not_asked_does_not_answer() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            alice.say(b"x", ackers=())
            alice.say(b"y", ackers=("carol", "dave"))
            alice.say(b"z", topic="nobody's", ackers=("carol",))
            await settle()

            assert bob.data == [b"x", b"y"]
            assert alice.answers == []

    virtually(main)


def test_duplicates_run_no_handler_and_are_answered_again() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            for attempt in range(4):
                alice.say(b"x", attempt=attempt, created_ms=attempt)
                await settle()

            assert bob.data == [b"x"]
            assert [answer.ack_type for answer in alice.answers] == [AckType.ACK] * 4
            alice.say(b"x", ackers=())
            await settle()
            assert len(alice.answers) == 4
            assert bob.receiver.stats()["duplicates_in"] == 4

    virtually(main)


def test_the_id_is_recomputed_from_what_came_and_from_who_sent_it() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            alice.say(b"x")
            alice.say(b"x", nonce=b"\1" * 16)
            alice.say(b"xx")
            network.hand("bob", Incoming("eve", TOPIC, bytes(16), 0, 0, (), b"x"))
            await settle()

            assert len(bob.got) == len({message.message_id for message in bob.got}) == 4

    virtually(main)


def test_the_ack_comes_after_the_handler_and_a_copy_in_between_is_dropped() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        runs = 0

        async def slow(message: Message) -> None:
            nonlocal runs
            runs += 1
            await asyncio.sleep(3)

        transport = network.join("bob")
        config = ReceiverConfig(ack_delay=0)
        async with Receiver(transport, {TOPIC: slow}, config=config, clock=clock()) as receiver:
            alice.say(b"x", ackers=())
            await asyncio.sleep(1)
            alice.say(b"x", attempt=1)
            await asyncio.sleep(1)
            assert alice.answers == []
            await asyncio.sleep(2)

            assert runs == 1
            # The copy asked for an answer, the first one did not.
            assert [answer.ack_type for answer in alice.answers] == [AckType.ACK]
            assert alice.times == pytest.approx([3.0])
            assert (await receiver.stats())["handled"] == 1

    virtually(main)


@pytest.mark.parametrize(
    ("failure", "reason", "runs_again"),
    [
        (ValueError("broken"), NackReason.HANDLER_FAILED, True),
        (asyncio.CancelledError(), NackReason.HANDLER_FAILED, True),
        (Busy(), NackReason.BUSY, True),
        (Reject(), NackReason.INVALID, False),
        (Reject(NackReason.UNAUTHORISED, "who are you"), NackReason.UNAUTHORISED, False),
        (Reject(NackReason.TOO_LARGE), NackReason.TOO_LARGE, False),
        (Reject(6), NackReason.EXPIRED, False),
    ],
)
def test_what_a_handler_raises_becomes_a_nack(
    failure: BaseException, reason: NackReason, runs_again: bool
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        runs = 0

        async def refuse(message: Message) -> None:
            nonlocal runs
            runs += 1
            raise failure

        transport = network.join("bob")
        config = ReceiverConfig(ack_delay=0)
        async with Receiver(transport, {TOPIC: refuse}, config=config, clock=clock()):
            for attempt in range(3):
                alice.say(b"x", attempt=attempt)
                await settle()

            assert runs == (3 if runs_again else 1)
            assert [(a.ack_type, a.reason) for a in alice.answers] == [(AckType.NACK, reason)] * 3

    virtually(main)


def test_busy_may_name_a_time() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)

        def busy(message: Message) -> None:
            raise Busy(retry_after=2.5 if message.data == b"x" else 1e6)

        transport = network.join("bob")
        config = ReceiverConfig(ack_delay=0)
        async with Receiver(transport, {TOPIC: busy}, config=config, clock=clock()):
            alice.say(b"x")
            alice.say(b"y")
            await settle()

            assert [answer.retry_after_ms for answer in alice.answers] == [2_500, 30_000]

    virtually(main)


@pytest.mark.parametrize("reason", [NackReason.NONE, NackReason.BUSY, NackReason.HANDLER_FAILED])
def test_reject_is_for_good_so_it_takes_no_passing_reason(reason: NackReason) -> None:
    with pytest.raises(ErrConfig):
        Reject(reason)


def test_no_handler_for_the_topic_is_a_permanent_nack() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob"), a_publisher(transport, an_acked_config("bob")) as publisher:
            with pytest.raises(ErrNacked, match=r"bob \(unknown_topic\)"):
                await publisher.publish_with_ack("nobody's", b"x")

            assert len(transport.sends) == 1

    virtually(main)


def test_a_lost_ack_leads_to_one_handler_run_and_acked() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with (
            Listener(network, "bob") as bob,
            a_publisher(transport, an_acked_config("bob")) as publisher,
        ):
            publish_acks = bob.transport.publish_acks

            async def lose_it(receipts: object) -> None:
                bob.transport.publish_acks = publish_acks  # type: ignore[method-assign]

            bob.transport.publish_acks = lose_it  # type: ignore[method-assign]
            result = await publisher.publish_with_ack(TOPIC, b"x")

            assert bob.data == [b"x"]
            assert result.acked_by == ("bob",)
            assert result.attempts == 2
            assert now() == pytest.approx(5.1)

    virtually(main)


def test_answers_are_batched_within_the_delay() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob", config=ReceiverConfig(ack_delay=0.05)):
            for number in range(10):
                alice.say(b"%d" % number)
            await asyncio.sleep(0.02)
            alice.say(b"0", attempt=1)
            alice.say(b"late")
            await asyncio.sleep(0.2)

            assert alice.batches == [11]
            assert alice.times == pytest.approx([0.05])

    virtually(main)


def test_messages_of_one_sender_are_handled_in_order_and_a_slow_one_delays_nobody_else() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        handled: list[tuple[float, bytes]] = []

        async def handle(message: Message) -> None:
            if message.data == b"slow":
                await asyncio.sleep(5)
            handled.append((now(), message.data))

        async with Receiver(network.join("bob"), {TOPIC: handle}, clock=clock()):
            for data in (b"slow", b"2", b"3"):
                alice.say(data)
            network.hand("bob", Incoming("carol", TOPIC, bytes(16), 0, 0, (), b"from carol"))
            await asyncio.sleep(6)

            assert handled == [(0.0, b"from carol"), (5.0, b"slow"), (5.0, b"2"), (5.0, b"3")]

    virtually(main)


def test_several_handlers_at_once_for_one_sender_if_its_order_does_not_matter() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        running = most = 0

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1

        config = ReceiverConfig(handlers_per_sender=3)
        async with Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock()) as receiver:
            for number in range(9):
                alice.say(b"%d" % number)
            await asyncio.sleep(3.5)

            assert most == 3
            assert receiver.stats()["handled"] == 9

    virtually(main)


def test_more_than_can_wait_is_refused_as_busy_and_taken_later() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        release = asyncio.Event()
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            await release.wait()
            handled.append(message.data)

        config = ReceiverConfig(waiting_max=2, ack_delay=0)
        async with Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock()):
            alice.say(b"1")
            await settle()
            for data in (b"2", b"3", b"4"):
                alice.say(data)
            await settle()
            assert [answer.reason for answer in alice.answers] == [NackReason.BUSY]
            release.set()
            await settle()
            alice.say(b"4", attempt=1)
            await settle()

            assert handled == [b"1", b"2", b"3", b"4"]

    virtually(main)


def test_a_record_is_kept_for_the_window_after_the_last_sighting() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        config = ReceiverConfig(dedup_window=100, ack_delay=0)
        async with Listener(network, "bob", config=config) as bob:
            for wait in (0, 60, 60, 99.9, 100.1):
                await asyncio.sleep(wait)
                alice.say(b"other", nonce=int(now() * 10).to_bytes(16, "big"))
                alice.say(b"x")
                await settle()

            assert bob.data.count(b"x") == 2
            assert bob.receiver.stats()["dedup_overflow"] == 0

    virtually(main)


def test_a_record_is_kept_as_long_as_the_network_may_carry_a_copy() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        config = ReceiverConfig(dedup_window=100, ack_delay=0)
        expires_at_ms = int((START_UNIX_S + 1_000) * 1_000)
        async with Listener(network, "bob", config=config) as bob:
            alice.say(b"x", expires_at_ms=expires_at_ms)
            for at in (1_059.9, 1_060.0):
                await asyncio.sleep(at - now())
                alice.say(b"other %f" % at)
                alice.say(b"x")
                await settle()

            assert bob.data.count(b"x") == 1
            await asyncio.sleep(101)
            alice.say(b"other")
            alice.say(b"x")
            await settle()
            assert bob.data.count(b"x") == 2

    virtually(main)


def test_above_the_capacity_the_record_that_would_go_soonest_goes_first() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob", config=ReceiverConfig(dedup_capacity=2, ack_delay=0)) as bob:
            for data in (b"a", b"b", b"a", b"c", b"a", b"b"):
                alice.say(data)
                await asyncio.sleep(1)

            # a was seen again after b, so c pushed b out, and b comes as new.
            assert bob.data == [b"a", b"b", b"c", b"b"]
            assert bob.receiver.stats()["dedup_overflow"] == 2

    virtually(main)


def test_what_is_being_handled_is_never_pushed_out() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        runs: list[bytes] = []

        async def handle(message: Message) -> None:
            runs.append(message.data)
            await asyncio.sleep(10)

        config = ReceiverConfig(dedup_capacity=1, handlers_per_sender=5, ack_delay=0)
        async with Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock()):
            for data in (b"a", b"b", b"a", b"b"):
                alice.say(data)
                await asyncio.sleep(1)

            assert runs == [b"a", b"b"]

    virtually(main)


def test_an_old_message_is_flagged_as_maybe_a_duplicate() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob", config=ReceiverConfig(dedup_window=100)) as bob:
            for age_ms in (100_000, 100_001):
                alice.say(b"%d" % age_ms, created_ms=int(START_UNIX_S * 1_000) - age_ms)
            await settle()

            assert [message.maybe_duplicate for message in bob.got] == [False, True]

    virtually(main)


def test_with_a_durable_inbox_the_verdict_is_stored_before_it_is_said() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        disk = MemoryInboxDisk(lambda: 0.25)
        inbox = MemoryInbox(disk, clock=clock())
        async with Listener(network, "bob", inbox=inbox):
            alice.say(b"x")
            await asyncio.sleep(1)

            assert alice.times == pytest.approx([0.25])

    virtually(main)


def test_a_durable_inbox_remembers_across_a_crash() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        disk = MemoryInboxDisk()
        first = Listener(network, "bob", inbox=MemoryInbox(disk, clock=clock()))
        await first.receiver.start()
        alice.say(b"done")
        await settle()
        assert len(alice.answers) == 1
        first.transport.leave()
        disk.crash()
        first.receiver.kill()

        async with Listener(network, "bob", inbox=MemoryInbox(disk, clock=clock())) as second:
            alice.say(b"done", attempt=1)
            alice.say(b"new")
            await settle()

            assert second.data == [b"new"]
            assert [answer.ack_type for answer in alice.answers] == [AckType.ACK] * 3

    virtually(main)


def test_a_killed_receiver_confirms_and_stores_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        disk = MemoryInboxDisk(lambda: 0.5)
        first = Listener(network, "bob", inbox=MemoryInbox(disk, clock=clock()))
        await first.receiver.start()
        alice.say(b"handled, not stored")
        await settle()
        assert first.data == [b"handled, not stored"]

        first.receiver.kill()
        await first.receiver.stop()
        alice.say(b"unheard")
        await asyncio.sleep(60)

        assert (first.data, alice.answers) == ([b"handled, not stored"], [])
        disk.crash()
        assert MemoryInbox(disk, clock=clock()).load().records == ()

    virtually(main)


def test_a_verdict_that_cannot_be_stored_is_not_said_until_it_can() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        disk = MemoryInboxDisk()
        troubles: list[Exception] = []
        inbox = MemoryInbox(disk, clock=clock())
        async with Listener(network, "bob", inbox=inbox, on_storage_error=troubles.append) as bob:
            disk.is_full = True
            alice.say(b"x")
            await settle()
            assert alice.answers == []
            assert troubles
            disk.is_full = False
            alice.say(b"x", attempt=1)
            await settle()

            assert bob.data == [b"x"]
            assert [answer.ack_type for answer in alice.answers] == [AckType.ACK]

    virtually(main)


def test_claim_is_true_once() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with Listener(network, "bob") as bob:
            inbox = bob.receiver.inbox

            assert [await inbox.claim("ab" * 32) for _ in range(3)] == [True, False, False]
            assert bob.receiver.inbox is inbox

    virtually(main)


def test_stop_cancels_handlers_after_the_drain_and_they_are_not_answered() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        ends: list[str] = []

        async def handle(message: Message) -> None:
            try:
                await asyncio.sleep(2 if message.data == b"short" else 100)
                ends.append("done")
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        config = ReceiverConfig(handlers_per_sender=2)
        receiver = Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock())
        await receiver.start()
        with pytest.raises(ErrAlreadyStarted):
            await receiver.start()
        said = alice.say(b"short")
        alice.say(b"long")
        await settle()
        await receiver.stop(drain=3)
        await receiver.stop()

        assert ends == ["done", "cancelled"]
        await settle()
        assert [answer.message_id for answer in alice.answers] == [id_of(said)]

    virtually(main)


def test_every_handler_that_ends_within_the_drain_is_stored_and_answered() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)

        async def handle(message: Message) -> None:
            await asyncio.sleep(int(message.data))

        config = ReceiverConfig(handlers_per_sender=2, ack_delay=0.0)
        disk = MemoryInboxDisk()
        inbox = MemoryInbox(disk, clock=clock())
        receiver = Receiver(network.join("bob"), {TOPIC: handle}, config=config, clock=clock(), inbox=inbox)
        await receiver.start()
        said = [alice.say(b"1"), alice.say(b"2")]
        await settle()
        await receiver.stop(drain=3)
        await settle()

        ids = {id_of(message) for message in said}
        assert {answer.message_id for answer in alice.answers} == ids
        assert {record.delivery_id for record in MemoryInbox(disk, clock=clock()).load().records} == ids

    virtually(main)


def test_receipts_that_cannot_be_sent_are_counted_and_not_repeated() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            publish_acks = bob.transport.publish_acks

            async def broken(receipts: object) -> None:
                raise OSError("no")

            bob.transport.publish_acks = broken  # type: ignore[method-assign]
            alice.say(b"x")
            await settle()
            bob.transport.publish_acks = publish_acks  # type: ignore[method-assign]
            await asyncio.sleep(1)
            assert alice.answers == []
            assert bob.receiver.stats()["acks_lost"] == 1
            alice.say(b"x", attempt=1)
            await settle()

            assert len(alice.answers) == 1

    virtually(main)


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0, 365 * 86_400.0])
def test_a_clock_that_is_wrong_for_minutes_lets_no_message_run_twice(step_s: float, is_durable: bool) -> None:
    """The step goes there and back; copies come all the time, and from elsewhere with the right date."""

    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        inbox = MemoryInbox(MemoryInboxDisk(), clock=clock()) if is_durable else None
        async with Listener(network, "bob", inbox=inbox) as bob:
            said = alice.say(b"first")
            await settle()
            if inbox is not None:
                assert await inbox.claim(id_of(said), int((START_UNIX_S + 3_600) * 1_000))
            bob.clock.step(step_s)
            for number in range(5):
                await asyncio.sleep(120.0)
                alice.say(b"other %d" % number)
                await settle()
                alice.say(b"first", attempt=1, created_ms=said.created_ms)
                await settle()
            bob.clock.step(-step_s)
            for number in range(5):
                await asyncio.sleep(120.0)
                alice.say(b"more %d" % number)
                alice.say(b"first", attempt=2, created_ms=said.created_ms)
                await settle()

            assert bob.data.count(b"first") == 1
            assert len(bob.data) == 11
            if inbox is not None:
                assert not await inbox.claim(id_of(said))

    virtually(main)


def test_a_clock_that_stays_ahead_is_believed_and_old_messages_are_forgotten() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        alice = Sender(network)
        async with Listener(network, "bob") as bob:
            alice.say(b"first")
            await settle()
            bob.clock.step(86_400.0)
            for number in range(9):
                await asyncio.sleep(120.0)
                alice.say(b"other %d" % number)
                await settle()
            alice.say(b"first", attempt=1)
            await settle()
            assert bob.data.count(b"first") == 2

    virtually(main)
