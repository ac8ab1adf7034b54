"""Every row of the table of statuses, the time line of retries, and what observers may rely on."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.delivery import (
    DeliveryError,
    DeliveryStatus,
    ErrAckTimeout,
    ErrCancelled,
    ErrClosed,
    ErrMaxRetries,
    ErrMessageExpired,
    ErrNacked,
    ErrNoConnectedPeers,
    ErrQueueEvicted,
    ErrRejected,
    ErrSendFailed,
    MemoryNetwork,
    NackReason,
)
from stagepost.delivery.status import DELIVERY
from stagepost.delivery.transport import SendFailed, SendRefused
from tests.worlds.delivery.delivery_world import (
    ACKED,
    FAILED,
    PENDING,
    QUEUED,
    SENT,
    TOPIC,
    Peer,
    Watch,
    a_config,
    a_publisher,
    ack,
    an_acked_config,
    nack,
    now,
    settle,
    virtually,
)


def test_status_names_are_those_of_the_requirement() -> None:
    assert [status.value for status in DeliveryStatus] == ["Pending", "Queued", "Sent", "Acked", "Failed"]
    assert DELIVERY.initial is PENDING
    assert {(source, target) for (source, _), target in DELIVERY.table.items()} == {
        (PENDING, QUEUED),
        (PENDING, SENT),
        (PENDING, FAILED),
        (QUEUED, SENT),
        (QUEUED, FAILED),
        (SENT, ACKED),
        (SENT, FAILED),
    }
    assert [status for status in DeliveryStatus if DELIVERY.is_final(status)] == [ACKED, FAILED]


def test_rows_1_and_3_an_accepted_first_attempt_goes_from_pending_to_sent() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            await publisher.publish(TOPIC, b"once")
            message_id = await publisher.publish_queued(TOPIC, b"stored")
            await settle()

            assert list(watch.paths.values()) == [[PENDING, SENT], [PENDING, SENT]]
            assert all(error is None for _, _, error in watch.events)
            assert await publisher.status(message_id) is SENT

    virtually(main)


def test_row_2_without_a_connection_a_message_is_queued() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with a_publisher(network.join("alice"), an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            await publisher.publish_queued(TOPIC, b"x")
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"y"))
            await settle()

            assert list(watch.paths.values()) == [[PENDING, QUEUED]] * 2
            call.cancel()

    virtually(main)


def test_row_2_behind_older_entries_a_message_is_queued() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            first = await publisher.publish_queued(TOPIC, b"1")
            second = await publisher.publish_queued(TOPIC, b"2")
            await settle()

            assert watch.path(first) == [PENDING, SENT]
            assert watch.path(second) == [PENDING, QUEUED, SENT]
            assert [message.payload for _, message in transport.sends] == [b"1", b"2"]

    virtually(main)


def test_row_2_above_max_in_flight_a_message_is_queued_until_another_is_resolved() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", max_in_flight=1)) as publisher:
            watch = Watch(publisher)
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(3)]
            await settle()
            assert [message.payload for message in bob.heard] == [b"0"]
            assert sorted(map(len, watch.paths.values())) == [2, 2, 2]

            for number in range(3):
                bob.say(ack(bob.heard[number]))
                await settle()

            assert [(await call).status for call in calls] == [ACKED] * 3
            assert list(watch.paths.values()) == [
                [PENDING, SENT, ACKED],
                [PENDING, QUEUED, SENT, ACKED],
                [PENDING, QUEUED, SENT, ACKED],
            ]
            assert [message.payload for message in bob.heard] == [b"0", b"1", b"2"]

    virtually(main)


def test_row_2_after_a_failed_first_send_a_message_is_queued_with_the_cause() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        transport.fail_next(1)
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(1)

            assert watch.path(message_id) == [PENDING, QUEUED, SENT]
            assert isinstance(watch.events[1][2], ErrSendFailed)
            assert [at for at, _ in transport.sends] == pytest.approx([0.0, 0.1])

    virtually(main)


def test_row_4_best_effort_fails_without_a_peer_and_on_a_send_error() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            with pytest.raises(ErrNoConnectedPeers):
                await publisher.publish(TOPIC, b"1")
            network.join("bob")
            transport.fail_next(1)
            with pytest.raises(ErrSendFailed) as caught:
                await publisher.publish(TOPIC, b"2")
            await settle()

            assert isinstance(caught.value.__cause__, SendFailed)
            assert list(watch.paths.values()) == [[PENDING, FAILED]] * 2
            assert len(transport.sends) == 1

    virtually(main)


@pytest.mark.parametrize("tier", ["best effort", "queued", "acked"])
def test_row_4_a_permanent_refusal_fails_any_tier_at_once(tier: str) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        transport.fail_next(1, SendRefused("unknown pool"))
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            if tier == "queued":
                await publisher.publish_queued(TOPIC, b"x")
            else:
                call = publisher.publish if tier == "best effort" else publisher.publish_with_ack
                with pytest.raises(ErrRejected, match="unknown pool"):
                    await call(TOPIC, b"x")
            await settle()

            ((message_id, path),) = watch.paths.items()
            assert path == [PENDING, FAILED]
            assert isinstance(watch.error(message_id), ErrRejected)
            assert len(transport.sends) == 1

    virtually(main)


def test_row_4_cancelled_before_it_was_sent() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            assert await publisher.cancel(message_id)
            await settle()

            assert watch.path(message_id) == [PENDING, FAILED]
            assert isinstance(watch.error(message_id), ErrCancelled)
            assert transport.sends == []

    virtually(main)


def test_row_5_a_flush_sends_what_is_queued() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            network.join("bob")
            await settle()

            assert watch.path(message_id) == [PENDING, QUEUED, SENT]

    virtually(main)


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_row_6_send_errors_use_up_all_attempts(max_retries: int) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        transport.fail_next(100)
        async with a_publisher(transport, a_config(max_retries=max_retries)) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(60)

            assert len(transport.sends) == 1 + max_retries
            assert watch.path(message_id)[-1] is FAILED
            assert isinstance(watch.error(message_id), ErrMaxRetries)
            assert [letter.error for letter in publisher.dead_letters()] == ["ErrMaxRetries"]

    virtually(main)


def test_row_7_the_ways_to_fail_in_the_queue() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        publisher = a_publisher(transport, an_acked_config("bob", queue_size=3, message_max_age=30.0))
        await publisher.start()
        watch = Watch(publisher)
        evicted = await publisher.publish_queued(TOPIC, b"1")
        cancelled = await publisher.publish_queued(TOPIC, b"2")
        expired = await publisher.publish_queued(TOPIC, b"3")
        await publisher.publish_queued(TOPIC, b"4")
        assert await publisher.cancel(cancelled)
        with pytest.raises(ErrNoConnectedPeers) as caught:
            await publisher.publish_with_ack(TOPIC, b"5", timeout=2.5)
        assert now() == pytest.approx(2.5)
        await asyncio.sleep(30)
        stopped = await publisher.publish_queued(TOPIC, b"6")
        await publisher.stop()

        assert caught.value.message_id is not None
        for message_id, error in [
            (evicted, ErrQueueEvicted),
            (cancelled, ErrCancelled),
            (expired, ErrMessageExpired),
            (caught.value.message_id, ErrNoConnectedPeers),
            (stopped, ErrClosed),
        ]:
            assert watch.path(message_id) == [PENDING, QUEUED, FAILED]
            assert type(watch.error(message_id)) is error
        assert transport.sends == []

    virtually(main)


def test_row_7_an_acked_call_held_back_online_until_its_time_is_over_is_an_ack_timeout() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", max_in_flight=1)) as publisher:
            first = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"1"))
            await settle()
            with pytest.raises(ErrAckTimeout) as caught:
                await publisher.publish_with_ack(TOPIC, b"2", timeout=3.0)

            assert now() == pytest.approx(3.0)
            assert not caught.value.may_have_been_delivered
            assert {message.payload for _, message in transport.sends} == {b"1"}
            first.cancel()

    virtually(main)


def test_row_8_and_the_time_line_of_a_message_that_nobody_answers() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            with pytest.raises(ErrAckTimeout):
                await publisher.publish_with_ack(TOPIC, b"x")
            assert now() == pytest.approx(20.7)
            await settle()

            assert [at for at, _ in transport.sends] == pytest.approx([0.0, 5.1, 10.3, 15.7])
            assert [message.attempt for _, message in transport.sends] == [0, 1, 2, 3]
            assert list(watch.paths.values()) == [[PENDING, SENT, FAILED]]
            assert publisher.stats()["retries"] == 3
            assert publisher.stats()["ack_timeouts"] in (3, 4)  # the last one may be the end of the budget

    virtually(main)


def test_row_8_a_retry_without_a_connection_waits_for_it_inside_sent() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await asyncio.sleep(1)
            network.cut("alice")
            await asyncio.sleep(11)
            assert len(transport.sends) == 1
            bob.answer = ack
            network.heal("alice")
            result = await call

            assert now() == pytest.approx(12.0)
            assert result.attempts == 2
            await settle()
            assert watch.path(result.message_id) == [PENDING, SENT, ACKED]

    virtually(main)


def test_row_9_an_ack_completes() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = ack
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            result = await publisher.publish_with_ack(TOPIC, b"x")
            await settle()

            assert watch.path(result.message_id) == [PENDING, SENT, ACKED]
            assert result.timestamp.tzinfo is not None
            assert (result.attempts, result.missing, result.error) == (1, (), None)

    virtually(main)


@pytest.mark.parametrize("ending", ["attempts", "nack", "budget", "cancelled", "stopped"])
def test_row_10_the_ways_to_fail_after_being_sent(ending: str) -> None:
    expected = {
        "attempts": ErrAckTimeout,
        "nack": ErrNacked,
        "budget": ErrAckTimeout,
        "cancelled": ErrCancelled,
        "stopped": ErrClosed,
    }[ending]

    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        publisher = a_publisher(transport, an_acked_config("bob", max_retries=0))
        await publisher.start()
        watch = Watch(publisher)
        if ending == "nack":
            bob.answer = lambda message: nack(message, NackReason.UNAUTHORISED)
        timeout = 2.0 if ending == "budget" else None
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", timeout=timeout))
        await asyncio.sleep(1)
        if ending == "cancelled":
            call.cancel()
        if ending == "stopped":
            await publisher.stop()
        error = (await asyncio.gather(call, return_exceptions=True))[0]
        await settle()

        ((message_id, path),) = watch.paths.items()
        assert path == [PENDING, SENT, FAILED]
        reported = watch.error(message_id)
        assert type(reported) is expected
        assert isinstance(reported, DeliveryError)
        assert reported.may_have_been_delivered is (ending != "nack")
        assert type(error) is (asyncio.CancelledError if ending == "cancelled" else expected)
        assert now() == pytest.approx({"attempts": 5.0, "budget": 2.0}.get(ending, 1.0))
        if ending != "stopped":
            await publisher.stop()

    virtually(main)


def test_nothing_leaves_a_terminal_status_and_a_late_ack_is_only_counted() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", max_retries=0)) as publisher:
            watch = Watch(publisher)
            with pytest.raises(ErrAckTimeout):
                await publisher.publish_with_ack(TOPIC, b"x")
            bob.say(ack(bob.heard[0]))
            await settle()

            assert list(watch.paths.values()) == [[PENDING, SENT, FAILED]]
            assert publisher.stats()["late_acks"] == 1
            assert publisher.stats()["acked"] == 0

    virtually(main)


def test_an_ack_that_overtakes_the_networks_own_answer_still_gives_a_whole_path() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = ack
        publish = transport.publish

        async def slow(message: object) -> object:
            answer = await publish(message)  # type: ignore[arg-type]
            await asyncio.sleep(1)
            return answer

        transport.publish = slow  # type: ignore[method-assign,assignment]
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            result = await publisher.publish_with_ack(TOPIC, b"x")
            await settle()

            assert watch.path(result.message_id) == [PENDING, SENT, ACKED]
            assert publisher.stats()["live"] == 0

    virtually(main)
