"""A publisher with a store: what a restart finds, and what a failing disk may and may not change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.delivery import (
    ErrAckTimeout,
    ErrClosed,
    ErrQueueLocked,
    ErrStorage,
    MemoryNetwork,
    Receiver,
    ReceiverConfig,
    ReliablePublisher,
    ReliablePublisherConfig,
)
from stagepost.delivery.stores.outbox_stores import MemoryOutbox, MemoryOutboxDisk
from stagepost.delivery.transports.memory import MemoryTransport
from stagepost.errors import StagepostError
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
    id_of,
    now,
    settle,
    virtually,
)
from tests.worlds.delivery.outbox_records import a_dead, a_record, filled
from tests.worlds.ground.damaged_files import change_row


def on_disk(
    transport: MemoryTransport, disk: MemoryOutboxDisk, config: ReliablePublisherConfig | None = None
) -> ReliablePublisher:
    return a_publisher(transport, config, outbox=MemoryOutbox(disk, nonce_prefix=b"prefix.."))


def crash(publisher: ReliablePublisher, transport: MemoryTransport, disk: MemoryOutboxDisk) -> None:
    """The process is gone: nothing of it reaches anybody, and what was not synced is lost."""
    disk.crash()
    transport.leave()
    publisher.kill()


def test_queued_entries_are_queued_again_in_order_under_their_ids() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        publisher = on_disk(transport, disk)
        await publisher.start()
        ids = [await publisher.publish_queued(TOPIC, b"%d" % number) for number in range(20)]
        crash(publisher, transport, disk)

        transport = network.join("alice")
        publisher = on_disk(transport, disk)
        watch = Watch(publisher)
        await publisher.start()
        await settle()
        assert list(watch.paths) == ids
        assert publisher.stats()["queue_len"] == 20
        async with Listener(network, "bob") as bob:
            await asyncio.sleep(0.1)

            assert [message.message_id for message in bob.got] == ids
            assert all(path == [QUEUED, SENT] for path in watch.paths.values())
            assert_balanced(publisher)
            assert publisher.stats()["published"] == 20
            await publisher.stop()

    virtually(main)


def test_a_killed_publisher_sends_stores_reports_and_answers_nothing() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk(lambda: 0.5)
        transport = network.join("alice")
        bob = Peer(network, "bob")
        publisher = on_disk(transport, disk, an_acked_config("bob"))
        watch = Watch(publisher)
        await publisher.start()
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"sent"))
        await asyncio.sleep(1)
        assert len(bob.heard) == 1
        storing = asyncio.ensure_future(publisher.publish_queued(TOPIC, b"being stored"))
        flushing = asyncio.ensure_future(publisher.flush_queue())
        await settle()
        heard = list(watch.events)

        publisher.kill()
        await publisher.stop()
        bob.say(ack(bob.heard[0]))
        await asyncio.sleep(60)

        assert (len(bob.heard), watch.events) == (1, heard)
        assert not call.done()
        assert not storing.done()
        with pytest.raises(ErrClosed):
            await publisher.publish_queued(TOPIC, b"after")
        for task in (call, storing, flushing):
            task.cancel()
        await settle()
        assert watch.events == heard
        # The disk is free, and what it had synced is there: the message that was sent, as it was before its end.
        async with on_disk(network.join("alice"), disk, an_acked_config("bob")) as second:
            await asyncio.sleep(0.1)
            assert [id_of(message) for message in bob.heard] == [id_of(bob.heard[0])] * 2
            assert await second.status(id_of(bob.heard[0]).hex()) is SENT

    virtually(main)


def test_a_killed_publisher_leaves_its_folder_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        config = a_config(persistence="disk", queue_path=str(tmp_path / "q"))
        first = ReliablePublisher(network.join("alice"), config)
        await first.start()
        kept = await first.publish_queued(TOPIC, b"kept")
        lost = asyncio.ensure_future(first.publish_queued(TOPIC, b"not answered"))
        await asyncio.sleep(0)

        first.kill()

        async with ReliablePublisher(network.join("alice"), config) as second:
            assert await second.status(kept) is QUEUED
            assert not lost.done()
        lost.cancel()

    asyncio.run(main())


def test_new_messages_after_a_restart_get_new_ids_even_with_equal_content() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        ids: list[str] = []
        for _ in range(3):
            transport = network.join("alice")
            publisher = on_disk(transport, disk)
            await publisher.start()
            ids.append(await publisher.publish_queued(TOPIC, b"same"))
            crash(publisher, transport, disk)

        assert len(set(ids)) == 3

    virtually(main)


def test_a_call_returns_only_when_it_is_stored_and_is_sent_only_then() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk(lambda: 0.5)
        transport = network.join("alice")
        bob = Peer(network, "bob")
        bob.answer = ack
        async with on_disk(transport, disk, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            await publisher.publish_queued(TOPIC, b"x")
            assert now() == pytest.approx(0.5)
            assert watch.events == []
            await publisher.publish_with_ack(TOPIC, b"y")
            assert now() == pytest.approx(1.0)

            assert [at for at, _ in transport.sends] == pytest.approx([0.5, 1.0])

    virtually(main)


def test_a_storage_error_refuses_the_call_and_the_queue_keeps_serving_what_it_holds() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        async with on_disk(transport, disk, an_acked_config("bob", queue_size=2)) as publisher:
            watch = Watch(publisher)
            kept = [await publisher.publish_queued(TOPIC, data) for data in (b"1", b"2")]
            disk.is_full = True
            for _ in range(3):
                with pytest.raises(ErrStorage, match="no space left"):
                    await publisher.publish_queued(TOPIC, b"3")
                with pytest.raises(ErrStorage):
                    await publisher.publish_with_ack(TOPIC, b"4", key="k")
            assert publisher.stats()["published"] == 2
            assert [await publisher.status(message_id) for message_id in kept] == [QUEUED, QUEUED]
            async with Listener(network, "bob") as bob:
                await settle()
                assert bob.data == [b"1", b"2"]
                disk.is_full = False
                assert (await publisher.publish_with_ack(TOPIC, b"4", key="k")).status is ACKED
            assert_balanced(publisher)
            assert all(path[0] is PENDING for path in watch.paths.values())

    virtually(main)


def test_an_eviction_happens_together_with_the_insert_or_not_at_all() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        publisher = on_disk(transport, disk, a_config(queue_size=2))
        await publisher.start()
        a, b = [await publisher.publish_queued(TOPIC, data) for data in (b"a", b"b")]
        disk.sync_s = lambda: 1.0
        storing = asyncio.ensure_future(publisher.publish_queued(TOPIC, b"c"))
        await asyncio.sleep(0.5)
        assert publisher.stats()["evicted"] == 0
        assert not await publisher.cancel(a)
        c = await storing
        assert await publisher.status(a) is FAILED
        crash(publisher, transport, disk)

        disk.sync_s = lambda: 0.0
        transport = network.join("alice")
        publisher = on_disk(transport, disk, a_config(queue_size=2))
        watch = Watch(publisher)
        await publisher.start()
        await settle()
        assert list(watch.paths) == [b, c]
        assert [letter.message_id for letter in publisher.dead_letters()] == [a]
        assert publisher.stats()["failed"] == {"ErrQueueEvicted": 1}
        assert_balanced(publisher)
        await publisher.stop()

    virtually(main)


def test_a_message_that_waits_for_its_victim_to_leave_is_not_joined_by_the_victims_send() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        async with on_disk(transport, disk, a_config(queue_size=1)) as publisher:
            await publisher.publish_queued(TOPIC, b"victim")
            disk.sync_s = lambda: 1.0
            storing = asyncio.ensure_future(publisher.publish_queued(TOPIC, b"new"))
            await asyncio.sleep(0.1)
            async with Listener(network, "bob") as bob:
                await asyncio.sleep(0.5)
                assert bob.data == []
                await storing
                await settle()

                assert bob.data == [b"new"]

    virtually(main)


def test_acked_entries_whose_caller_died_are_carried_to_their_end() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        outbox = MemoryOutbox(disk)
        publisher = a_publisher(transport, an_acked_config("bob"), outbox=outbox)
        await publisher.start()
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x"))
        await asyncio.sleep(5.5)
        assert len(bob.heard) == 2
        await outbox.flush()  # a crash may lose marks that are not flushed
        crash(publisher, transport, disk)
        call.cancel()
        await settle()

        transport = network.join("alice")
        publisher = on_disk(transport, disk, an_acked_config("bob"))
        watch = Watch(publisher)
        await publisher.start()
        await settle()
        bob.say(ack(bob.heard[-1]))
        await settle()

        ((message_id, path),) = watch.paths.items()
        assert path == [QUEUED, SENT, ACKED]
        assert bob.heard[-1].attempt >= 1
        assert (await publisher.result(message_id)).acked_by == ("bob",)  # type: ignore[union-attr]
        assert_balanced(publisher)
        await publisher.stop()

    virtually(main)


def test_an_ack_of_the_former_life_completes_a_recovered_message_before_it_is_sent_again() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        config = a_config(critical_peers=("bob",))
        publisher = on_disk(transport, disk, config)
        await publisher.start()
        await publisher.publish_queued(TOPIC, b"x", require_ack=True)
        await settle()
        crash(publisher, transport, disk)

        transport = network.join("alice")
        network.cut("alice")
        publisher = on_disk(transport, disk, config)
        watch = Watch(publisher)
        await publisher.start()
        bob.say(ack(bob.heard[0]))
        network.heal("alice")
        await settle()

        assert list(watch.paths.values()) == [[QUEUED, SENT, ACKED]]
        assert transport.sends == []
        assert_balanced(publisher)
        await publisher.stop()

    virtually(main)


def test_a_call_that_finds_its_message_on_the_way_waits_no_longer_than_it_was_told_to() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk()
        transport = MemoryNetwork().join("alice")
        config = an_acked_config("bob")
        publisher = on_disk(transport, disk, config)
        await publisher.start()
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", key="k"))
        await settle()
        await publisher.stop()
        with pytest.raises(ErrClosed):
            await call

        async with on_disk(transport, disk, config) as publisher:
            began_s = now()
            with pytest.raises(ErrAckTimeout, match="published before"):
                await publisher.publish_with_ack(TOPIC, b"x", key="k", timeout=3.0)
            assert now() - began_s == pytest.approx(3.0)
            # It is still on its way: only the wait is over.
            assert publisher.stats()["queue_len"] == 1

    virtually(main)


def test_a_recovered_message_has_at_least_one_more_attempt() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        Peer(network, "bob")
        config = a_config(critical_peers=("bob",), max_retries=1)
        outbox = MemoryOutbox(disk)
        publisher = a_publisher(transport, config, outbox=outbox)
        await publisher.start()
        await publisher.publish_queued(TOPIC, b"x", require_ack=True)
        await asyncio.sleep(6)
        assert len(transport.sends) == 2
        await outbox.flush()
        crash(publisher, transport, disk)

        transport = network.join("alice")
        publisher = on_disk(transport, disk, config)
        watch = Watch(publisher)
        await publisher.start()
        await asyncio.sleep(6)

        assert [message.attempt for _, message in transport.sends] == [1]
        assert list(watch.paths.values()) == [[QUEUED, SENT, FAILED]]
        await publisher.stop()

    virtually(main)


def test_stop_leaves_disk_entries_on_disk_and_reports_no_failure() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        publisher = on_disk(transport, disk, an_acked_config("bob"))
        await publisher.start()
        watch = Watch(publisher)
        queued = await publisher.publish_queued(TOPIC, b"1")
        call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"2"))
        await settle()
        await publisher.stop()
        with pytest.raises(ErrClosed):
            await call
        assert all(path == [PENDING, QUEUED] for path in watch.paths.values())
        assert publisher.stats()["live"] == 2
        assert_balanced(publisher)

        async with (
            Listener(network, "bob") as bob,
            on_disk(transport, disk, an_acked_config("bob")) as publisher,
        ):
            await asyncio.sleep(0.1)
            assert bob.data == [b"1", b"2"]
            assert await publisher.status(queued) is SENT
            assert publisher.stats()["acked"] == 1

    virtually(main)


def test_keys_and_dead_letters_are_remembered_across_restarts() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob:
            async with on_disk(transport, disk, an_acked_config("bob")) as publisher:
                done = await publisher.publish_with_ack(TOPIC, b"done", key="k")
                network.cut("alice")
                dead = await publisher.publish_queued(TOPIC, b"dead")
                live = await publisher.publish_queued(TOPIC, b"live", key="l")
                await publisher.cancel(dead)
            async with on_disk(transport, disk, an_acked_config("bob")) as publisher:
                again = await publisher.publish_with_ack(TOPIC, b"done", key="k")
                assert (again.message_id, again.acked_by) == (done.message_id, ("bob",))
                assert await publisher.publish_queued(TOPIC, b"live", key="l") == live
                assert [letter.message_id for letter in publisher.dead_letters()] == [dead]
                await publisher.replay(dead)
                assert publisher.dead_letters() == ()
                network.heal("alice")
                await settle()

                assert bob.data == [b"done", b"live", b"dead"]
                assert_balanced(publisher)
            async with on_disk(transport, disk, an_acked_config("bob")) as publisher:
                assert publisher.dead_letters() == ()
                assert publisher.stats()["published"] == 4

    virtually(main)


def test_every_copy_of_a_dead_letter_is_remembered_across_restarts() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        async with on_disk(transport, disk) as publisher:
            for _ in range(3):
                dead = await publisher.publish_queued(TOPIC, b"dead", key="k")
                await publisher.cancel(dead)
            before = publisher.dead_letters()
            assert [letter.message_id for letter in before] == [dead] * 3
        async with on_disk(transport, disk) as publisher:
            assert publisher.dead_letters() == before
            await publisher.replay(dead, sequence=before[1].sequence)
            await publisher.replay(dead, sequence=before[0].sequence)
            assert publisher.dead_letters() == (before[2],)
        async with on_disk(transport, disk) as publisher, Listener(network, "bob") as bob:
            assert publisher.dead_letters() == (before[2],), "what was merged stays merged"
            await settle()
            assert bob.data == [b"dead"]
            assert_balanced(publisher)

    virtually(main)


def test_an_entry_older_than_the_window_is_still_sent_but_flagged() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk()
        transport = network.join("alice")
        config = a_config(dedup_window=100.0)
        async with on_disk(transport, disk, config) as publisher:
            await publisher.publish_queued(TOPIC, b"old")
        await asyncio.sleep(101)
        window = ReceiverConfig(dedup_window=100.0)
        async with (
            Listener(network, "bob", config=window) as bob,
            on_disk(transport, disk, config) as publisher,
        ):
            await asyncio.sleep(0.1)

            assert bob.data == [b"old"]
            assert bob.got[0].maybe_duplicate
            assert publisher.stats()["live"] == 0

    virtually(main)


def test_the_age_limit_counts_from_the_first_publishing() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk()
        transport = MemoryNetwork().join("alice")
        config = a_config(message_max_age=100.0)
        async with on_disk(transport, disk, config) as publisher:
            await publisher.publish_queued(TOPIC, b"old")
        await asyncio.sleep(60)
        publisher = on_disk(transport, disk, config)
        watch = Watch(publisher)
        await publisher.start()
        await asyncio.sleep(39)
        assert publisher.stats()["queue_len"] == 1
        await asyncio.sleep(1)

        assert list(watch.paths.values()) == [[QUEUED, FAILED]]
        await publisher.stop()

    virtually(main)


def test_cancelling_a_queued_call_while_it_is_being_stored_does_not_unpublish() -> None:
    async def main() -> None:
        network, disk = MemoryNetwork(), MemoryOutboxDisk(lambda: 1.0)
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, on_disk(transport, disk) as publisher:
            call = asyncio.ensure_future(publisher.publish_queued(TOPIC, b"x"))
            await asyncio.sleep(0.5)
            call.cancel()
            await asyncio.sleep(1)

            assert call.cancelled()
            assert bob.data == [b"x"]
            assert_balanced(publisher)

    virtually(main)


def test_calls_with_one_key_at_the_same_time_share_one_insert() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk(lambda: 1.0)
        transport = MemoryNetwork().join("alice")
        async with on_disk(transport, disk) as publisher:
            calls = [publisher.publish_queued(TOPIC, b"x", key="k") for _ in range(3)]
            ids = await asyncio.gather(*calls)
            assert now() == pytest.approx(1.0)
            assert len(set(ids)) == 1
            assert publisher.stats()["published"] == 1
            disk.is_full = True
            calls = [publisher.publish_queued(TOPIC, b"y", key="l") for _ in range(3)]
            results = await asyncio.gather(*calls, return_exceptions=True)

            assert [type(result) for result in results] == [ErrStorage] * 3
            disk.is_full = False

    virtually(main)


def test_stopping_while_a_message_is_being_stored_keeps_it() -> None:
    async def main() -> None:
        disk = MemoryOutboxDisk(lambda: 1.0)
        transport = MemoryNetwork().join("alice")
        publisher = on_disk(transport, disk)
        await publisher.start()
        call = asyncio.ensure_future(publisher.publish_queued(TOPIC, b"x"))
        await asyncio.sleep(0.5)
        await publisher.stop()
        message_id = await call
        publisher = on_disk(transport, disk)
        watch = Watch(publisher)
        await publisher.start()
        await settle()

        assert list(watch.paths) == [message_id]
        await publisher.stop()

    virtually(main)


def test_publisher_on_a_real_disk_survives_a_restart_and_has_one_owner(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = ReliablePublisherConfig(persistence="disk", queue_path=str(tmp_path / "outbox"))
        async with ReliablePublisher(transport, config) as publisher:
            message_id = await publisher.publish_queued(TOPIC, b"x")
            with pytest.raises(ErrQueueLocked):
                await ReliablePublisher(transport, config).start()
        got = asyncio.get_running_loop().create_future()

        async def handler(message: object) -> None:
            got.set_result(message)

        inbox = ReceiverConfig(inbox_path=str(tmp_path / "inbox"))
        receiver = Receiver(network.join("bob"), {TOPIC: handler}, config=inbox)
        async with receiver, ReliablePublisher(transport, config):
            assert (await asyncio.wait_for(got, 10)).message_id == message_id

    asyncio.run(main())


def test_a_publisher_tells_that_its_outbox_was_damaged(tmp_path: Path) -> None:
    """No dead letters, and dead letters that could not be read, are told apart."""
    filled(tmp_path / "outbox", [a_record(1)], [a_dead(a_record(1))])
    config = ReliablePublisherConfig(persistence="disk", queue_path=str(tmp_path / "outbox"))

    async def damage_told() -> tuple[int, tuple[str, ...]]:
        told: list[StagepostError] = []
        transport = MemoryNetwork().join("alice")
        async with ReliablePublisher(transport, config, on_storage_error=told.append) as publisher:
            assert tuple(error.text for error in told) == publisher.outbox_damage
            return len(publisher.dead_letters()), publisher.outbox_damage

    assert asyncio.run(damage_told()) == (1, ())
    change_row(tmp_path / "outbox" / "outbox.sqlite", "UPDATE dead_letters SET checksum = x'00'")
    letters, (sentence,) = asyncio.run(damage_told())
    assert letters == 0
    assert "a row of dead_letters was set aside" in sentence
