"""The calls themselves: life cycle, mistakes of callers, cancellation, callbacks, counters."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.delivery import (
    DeliveryStatus,
    ErrAckDisabled,
    ErrAckTimeout,
    ErrAlreadyStarted,
    ErrCancelled,
    ErrClosed,
    ErrConfig,
    ErrMessageTooLarge,
    ErrNoConnectedPeers,
    ErrNoCriticalPeers,
    ErrNotStarted,
    ErrReservedTopic,
    MemoryNetwork,
)
from stagepost.delivery.errors import ALL_ERRORS
from stagepost.delivery.transport import Outgoing, Published
from tests.worlds.delivery.delivery_world import (
    ACKED,
    FAILED,
    PENDING,
    QUEUED,
    SENT,
    TOPIC,
    Listener,
    Peer,
    Watch,
    a_config,
    a_publisher,
    ack,
    an_acked_config,
    assert_balanced,
    now,
    settle,
    virtually,
)


def test_errors_have_the_names_of_the_specification() -> None:
    assert {error.__name__ for error in ALL_ERRORS} == {
        "DeliveryError",
        *("ErrNoConnectedPeers", "ErrAckTimeout", "ErrNacked", "ErrMaxRetries", "ErrQueueFull"),
        *("ErrQueueEvicted", "ErrMessageExpired", "ErrAckDisabled", "ErrNoCriticalPeers", "ErrConfig"),
        *("ErrReservedTopic", "ErrMessageTooLarge", "ErrKeyConflict", "ErrSendFailed", "ErrRejected"),
        *("ErrStorage", "ErrQueueLocked", "ErrQueueCorrupt", "ErrCancelled", "ErrClosed"),
        *("ErrNotStarted", "ErrAlreadyStarted"),
    }
    import stagepost.delivery

    for error in ALL_ERRORS:
        assert getattr(stagepost.delivery, error.__name__) is error
        assert error.default_code.value


def test_everything_that_is_promised_can_be_imported_from_the_facade() -> None:
    import stagepost.delivery

    for name in stagepost.delivery.__all__:
        assert getattr(stagepost.delivery, name).__name__ == name
    assert set(stagepost.delivery.__all__) <= set(dir(stagepost.delivery))
    with pytest.raises(AttributeError):
        stagepost.delivery.Nothing  # noqa: B018
    assert DeliveryStatus.ACKED.value == "Acked"


def test_calls_before_start_and_after_stop_are_refused() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        publisher = a_publisher(network.join("alice"), an_acked_config("bob"))
        calls = (publisher.publish, publisher.publish_queued, publisher.publish_with_ack)
        for call in calls:
            with pytest.raises(ErrNotStarted):
                await call(TOPIC, b"x")
        with pytest.raises(ErrNotStarted):
            await publisher.flush_queue()
        await publisher.start()
        with pytest.raises(ErrAlreadyStarted):
            await publisher.start()
        await publisher.stop()
        await publisher.stop()
        for call in calls:
            with pytest.raises(ErrClosed):
                await call(TOPIC, b"x")
        with pytest.raises(ErrClosed):
            await publisher.flush_queue()
        with pytest.raises(ErrAlreadyStarted):
            await publisher.start()

    virtually(main)


def test_mistakes_of_the_caller_are_raised_before_anything_happens() -> None:
    async def main() -> None:
        network = MemoryNetwork(max_payload=100)
        transport = network.join("alice")
        network.join("bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            for call in (publisher.publish, publisher.publish_queued, publisher.publish_with_ack):
                for topic, data, error in [
                    ("", b"x", ErrConfig),
                    ("é" * 128, b"x", ErrConfig),
                    ("t" * 256, b"x", ErrConfig),
                    ("\ud800", b"x", ErrConfig),
                    ("/dep2p/sys/ack/1.0.0", b"x", ErrReservedTopic),
                    ("/dep2p/sys/", b"x", ErrReservedTopic),
                    (TOPIC, bytes(101), ErrMessageTooLarge),
                ]:
                    with pytest.raises(error):
                        await call(topic, data)
            for timeout in (0.0, -1.0, 3_601.0, float("nan")):
                with pytest.raises(ErrConfig):
                    await publisher.publish_with_ack(TOPIC, b"x", timeout=timeout)
            await settle()

            assert watch.events == []
            assert publisher.stats()["published"] == 0
            await publisher.publish("t" * 255, bytes(100))
            await publisher.publish("/dep2p/system", b"x")

    virtually(main)


def test_acks_that_are_off_and_an_empty_critical_set_are_refused_before_any_side_effect() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        for config, error in [
            (a_config(critical_peers=("bob",)), ErrAckDisabled),
            (a_config(enable_ack=True), ErrNoCriticalPeers),
        ]:
            transport = network.join("alice")
            async with a_publisher(transport, config) as publisher:
                watch = Watch(publisher)
                with pytest.raises(error):
                    await publisher.publish_with_ack(TOPIC, b"x")
                await settle()
                assert (watch.events, transport.sends) == ([], [])
        async with a_publisher(network.join("alice")) as publisher:
            with pytest.raises(ErrNoCriticalPeers):
                await publisher.publish_queued(TOPIC, b"x", require_ack=True)

    virtually(main)


def test_data_is_copied_on_entry() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with Listener(network, "bob") as bob, a_publisher(network.join("alice")) as publisher:
            network.cut("alice")
            buffer = bytearray(b"before")
            await publisher.publish_queued(TOPIC, buffer)
            buffer[:] = b"after!"
            network.heal("alice")
            await settle()

            assert bob.data == [b"before"]

    virtually(main)


def test_an_acked_call_while_offline_is_queued_and_its_clock_runs() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        network.cut("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            early = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"early", timeout=10.0))
            late = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"late"))
            await asyncio.sleep(8)
            network.heal("alice")
            await asyncio.sleep(1)
            assert [message.payload for message in bob.heard] == [b"early", b"late"]
            with pytest.raises(ErrAckTimeout):
                await early
            assert now() == pytest.approx(10.0)
            bob.answer = ack

            # Its ACK time began when it was sent, at 8 s.
            assert (await late).attempts == 2
            assert now() == pytest.approx(13.1)

    virtually(main)


def test_an_acked_call_offline_to_the_end_of_its_budget_is_removed_from_the_queue() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            with pytest.raises(ErrNoConnectedPeers):
                await publisher.publish_with_ack(TOPIC, b"x")
            assert now() == pytest.approx(20.7)
            assert publisher.stats()["queue_len"] == 0
            network.join("bob")
            await asyncio.sleep(5)

            assert transport.sends == []

    virtually(main)


def test_cancelling_an_acked_call_before_any_send_removes_it() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await publisher.publish_with_ack(TOPIC, b"x")
            network.join("bob")
            await asyncio.sleep(1)

            ((message_id, path),) = watch.paths.items()
            assert path == [PENDING, QUEUED, FAILED]
            error = watch.error(message_id)
            assert isinstance(error, ErrCancelled)
            assert not error.may_have_been_delivered
            assert transport.sends == []

    virtually(main)


def test_cancelling_an_acked_call_while_it_is_being_sent_leaves_its_fate_unknown() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")

        async def hangs(message: Outgoing) -> Published:
            await asyncio.Event().wait()
            raise AssertionError

        publish = transport.publish
        transport.publish = hangs  # type: ignore[method-assign]
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await asyncio.sleep(1)
            call.cancel()
            await settle()
            assert call.cancelled()
            ((message_id, path),) = watch.paths.items()
            assert path == [PENDING, FAILED]
            error = watch.error(message_id)
            assert isinstance(error, ErrCancelled)
            assert error.may_have_been_delivered
            assert publisher.stats()["in_flight"] == 0
            # And nothing is stuck.
            transport.publish = publish  # type: ignore[method-assign]
            await publisher.publish_queued(TOPIC, b"y")
            await settle()
            assert publisher.stats()["live"] == 0

    virtually(main)


@pytest.mark.parametrize("sender", ["caller", "flusher"])
def test_the_budget_ends_a_call_whose_send_hangs(sender: str) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        publish, is_hanging = transport.publish, True

        async def hangs(message: Outgoing) -> Published:
            if is_hanging:
                await asyncio.Event().wait()
            return await publish(message)

        transport.publish = hangs  # type: ignore[method-assign]
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            if sender == "flusher":
                network.cut("alice")
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", timeout=3.0))
            await settle()
            network.heal()
            with pytest.raises(ErrAckTimeout) as caught:
                await call
            assert now() == pytest.approx(3.0)
            assert caught.value.may_have_been_delivered
            is_hanging = False
            bob.answer = ack
            await publisher.publish_queued(TOPIC, b"y")
            assert (await publisher.publish_with_ack(TOPIC, b"z")).status is ACKED
            await settle()
            assert publisher.stats()["live"] == 0

    virtually(main)


def test_cancel_works_on_what_is_queued_and_on_nothing_else() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            sent = await publisher.publish_queued(TOPIC, b"sent")
            await settle()
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"in flight"))
            await settle()
            network.cut("alice")
            queued = await publisher.publish_queued(TOPIC, b"queued")

            assert not await publisher.cancel(sent)
            assert not any([await publisher.cancel(i) for i in ("00" * 32, "no id")])
            assert await publisher.cancel(queued)
            assert not await publisher.cancel(queued)
            assert publisher.stats()["in_flight"] == 1
            call.cancel()

    virtually(main)


def test_cancelling_an_acked_call_in_the_queue_wakes_its_caller() -> None:
    async def main() -> None:
        transport = MemoryNetwork().join("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
            await settle()
            assert await publisher.cancel(watch.events[0][0])
            with pytest.raises(ErrCancelled):
                await call

    virtually(main)


def test_stop_gives_what_is_in_flight_the_time_to_drain() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        publisher = a_publisher(transport, an_acked_config("bob"))
        await publisher.start()
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
        await settle()
        stopping = asyncio.ensure_future(publisher.stop(drain=4.0))
        await asyncio.sleep(2)
        with pytest.raises(ErrClosed):
            await publisher.publish(TOPIC, b"too late")
        bob.say(ack(bob.heard[0]))

        assert (await call).status is ACKED
        await stopping
        assert now() == pytest.approx(2.0)

    virtually(main)


def test_stop_ends_waiting_calls_when_the_time_to_drain_is_over() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        Peer(network, "bob")
        publisher = a_publisher(network.join("alice"), an_acked_config("bob"))
        await publisher.start()
        watch = Watch(publisher)
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
        await settle()
        await publisher.stop(drain=4.0)

        assert now() == pytest.approx(4.0)
        with pytest.raises(ErrClosed) as caught:
            await call
        assert caught.value.may_have_been_delivered
        assert list(watch.paths.values()) == [[PENDING, SENT, FAILED]]
        assert publisher.stats()["failed"] == {"ErrClosed": 1}
        assert_balanced(publisher)

    virtually(main)


def test_require_ack_is_stored_tracked_and_not_awaited() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, a_config(critical_peers=("bob",))) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x", require_ack=True)
            await settle()
            assert watch.path(message_id) == [PENDING, SENT]
            assert publisher.stats()["in_flight"] == 1
            bob.say(ack(bob.heard[0]))
            lost = await publisher.publish_queued(TOPIC, b"y", require_ack=True)
            await asyncio.sleep(30)

            assert watch.path(message_id) == [PENDING, SENT, ACKED]
            assert watch.path(lost) == [PENDING, SENT, FAILED]
            assert isinstance(watch.error(lost), ErrAckTimeout)
            assert now() == 30.0
            result = await publisher.result(message_id)
            assert result is not None
            assert result.acked_by == ("bob",)

    virtually(main)


# Callbacks.


def test_callbacks_run_one_at_a_time_in_order_and_may_be_slow_without_delaying_anything() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        heard: list[tuple[str, DeliveryStatus]] = []
        running = 0

        async def slow(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(1)
            heard.append((message_id, status))
            running -= 1

        async with Listener(network, "bob") as bob:
            publisher = a_publisher(transport, an_acked_config("bob"))
            await publisher.start()
            publisher.on_delivery_status(slow)
            results = [await publisher.publish_with_ack(TOPIC, b"%d" % number) for number in range(3)]
            assert now() == 0.0
            assert len(bob.got) == 3
            assert heard == []
            await asyncio.sleep(9.5)

            assert heard == [
                (result.message_id, status) for result in results for status in (PENDING, SENT, ACKED)
            ]
            await publisher.stop()

    virtually(main)


def test_a_callback_that_raises_is_counted_and_changes_nothing_else() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        async with a_publisher(network.join("alice")) as publisher:

            def broken(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
                raise ZeroDivisionError

            publisher.on_delivery_status(broken)
            watch = Watch(publisher)
            await publisher.publish(TOPIC, b"x")
            await settle()

            assert publisher.stats()["callbacks_failed"] == 2
            assert list(watch.paths.values()) == [[PENDING, SENT]]

    virtually(main)


def test_a_callback_that_always_raises_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        async with a_publisher(network.join("alice")) as publisher:
            for name in ("one", "two"):
                publisher.on_delivery_status(lambda *_, name=name: {}[name])
            for number in range(100):
                await publisher.publish(TOPIC, b"%d" % number)
            await settle()
            assert publisher.stats()["callbacks_failed"] == 400

    virtually(main)

    told = [record for record in caplog.records if "a status callback failed" in record.message]
    assert len(told) == 2
    assert all(record.exc_info for record in told)


@pytest.mark.parametrize("tier", ["publish", "publish_queued", "publish_with_ack"])
def test_what_is_no_content_topic_or_key_is_refused_before_anything_is_sent(tier: str) -> None:
    """`bytes(5)` is five zero bytes: a number must not become a message."""

    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        async with a_publisher(network.join("alice"), an_acked_config("bob")) as publisher:
            call = getattr(publisher, tier)
            for content in (5, None, "text", [1, 2], object()):
                with pytest.raises(ErrConfig, match=r"content of a message is .*, expected bytes"):
                    await call(TOPIC, content)
            for topic in (5, None, b"t"):
                with pytest.raises(ErrConfig, match=r"topic of a message is .*, expected text"):
                    await call(topic, b"x")
            if tier != "publish":
                for key in (5, "", b"", "\ud800"):
                    with pytest.raises(ErrConfig, match="the key of a message is"):
                        await call(TOPIC, b"x", key=key)
            assert publisher.stats()["published"] == 0

    virtually(main)


def test_content_may_be_changed_by_the_caller_afterwards() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        bob = Peer(network, "bob")
        bob.answer = ack
        async with a_publisher(network.join("alice"), an_acked_config("bob")) as publisher:
            content = bytearray(b"before")
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, content))
            await asyncio.sleep(0)
            content[:] = b"after!"
            await call
            assert [message.payload for message in bob.heard] == [b"before"]

    virtually(main)


def test_a_callback_sees_only_what_happens_while_it_is_registered() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        async with a_publisher(network.join("alice")) as publisher:
            seen: dict[str, list[DeliveryStatus]] = {"first": [], "second": []}
            end = publisher.on_delivery_status(lambda _, status, __: seen["first"].append(status))
            await publisher.publish(TOPIC, b"1")
            # Not told yet, but it has happened.
            await publisher.on_delivery_status(lambda _, status, __: seen["second"].append(status))
            await settle()
            end()
            end()
            await publisher.publish(TOPIC, b"2")
            await settle()

            assert seen == {"first": [PENDING, SENT], "second": [PENDING, SENT]}

    virtually(main)


def test_publishing_and_stopping_from_a_callback_is_allowed() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with Listener(network, "bob") as bob:
            publisher = a_publisher(network.join("alice"), an_acked_config("bob"))
            await publisher.start()

            async def again(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
                if status is SENT and len(bob.got) < 3:
                    await publisher.publish_with_ack(TOPIC, b"from a callback")
                elif status is SENT:
                    await publisher.stop()

            publisher.on_delivery_status(again)
            await publisher.publish(TOPIC, b"x")
            await settle(200)

            assert bob.data[:2] == [b"x", b"from a callback"]
            with pytest.raises(ErrClosed):
                await publisher.publish(TOPIC, b"x")

    virtually(main)


def test_a_callback_that_never_ends_does_not_keep_stop_from_ending() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        network.join("bob")
        publisher = a_publisher(network.join("alice"))
        await publisher.start()

        async def hangs(message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
            await asyncio.Event().wait()

        publisher.on_delivery_status(hangs)
        await publisher.publish(TOPIC, b"x")
        await publisher.stop()

        assert now() == pytest.approx(5.0)
        assert publisher.stats()["callback_events_lost"] == 1

    virtually(main)


def test_the_event_is_queued_before_the_call_returns_or_raises() -> None:
    async def main() -> None:
        publisher = a_publisher(MemoryNetwork().join("alice"))
        await publisher.start()
        watch = Watch(publisher)
        with pytest.raises(ErrNoConnectedPeers):
            await publisher.publish(TOPIC, b"x")
        await publisher.stop()

        assert list(watch.paths.values()) == [[PENDING, FAILED]]

    virtually(main)


def test_terminal_events_of_different_messages_come_in_the_order_they_happened() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(3)]
            await settle()
            for number in (2, 0, 1):
                bob.say(ack(bob.heard[number]))
            results = [await call for call in calls]
            await settle()

            ended = [message_id for message_id, status, _ in watch.events if status is ACKED]
            assert ended == [results[number].message_id for number in (2, 0, 1)]

    virtually(main)


def test_stats_name_every_counter_and_may_be_awaited() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice")) as publisher:
            await publisher.publish_queued(TOPIC, b"x")
            stats = await publisher.stats()

            assert stats.keys() >= {
                *("published", "queued", "sent", "acked", "failed", "evicted", "retries", "ack_timeouts"),
                *("late_acks", "bad_acks", "duplicates_in", "queue_len", "queue_bytes", "in_flight"),
                "dead_letters",
            }
            assert stats.queue_len == stats["queue_len"] == 1
            assert stats.queue_bytes == len(b"x") + len(TOPIC)
            assert (await publisher.dead_letters()) == ()
            with pytest.raises(AttributeError):
                _ = stats.nothing

    virtually(main)
