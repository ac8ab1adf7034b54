"""The metrics of a publisher: counted from its events, read from its counters, all of them declared."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from stagepost.delivery import MemoryNetwork, Receiver, ReliablePublisher, ReliablePublisherConfig
from stagepost.delivery.effects import DeliveryEvent
from stagepost.delivery.shell.metrics import DELIVERY_METRICS, DeliveryMetrics
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.telemetry.metrics import Kind

START_S = 1_800_000_000.0


def samples(metrics: DeliveryMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (
            sample.name,
            tuple(sample.labels[name] for name in sorted(sample.labels, reverse=True)),
        ): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_publisher_is_seen_through_its_metrics() -> None:
    async def scenario() -> None:
        clock = LoopClock(START_S)
        metrics = DeliveryMetrics(clock=clock)
        network = MemoryNetwork(seed=0)
        alice, bob = network.join("alice"), network.join("bob")
        config = ReliablePublisherConfig(
            queue_size=2, enable_ack=True, critical_peers=("bob",), ack_timeout=1.0, max_retries=1
        )

        async def handler(message: object) -> None:
            await asyncio.sleep(0.2)

        async with (
            Receiver(bob, {"demo": handler}, clock=clock),
            ReliablePublisher(alice, config, clock=clock, events=metrics) as publisher,
        ):
            metrics.watch(publisher.stats, config.queue_size)
            await publisher.publish_with_ack("demo", b"confirmed")
            network.cut("alice")
            for number in range(3):
                await publisher.publish_queued("demo", bytes([number]))
            await asyncio.sleep(7.0)
            shown = samples(metrics)

        assert shown["stagepost_delivery_messages_total", ("acked", "Acked")] == 1
        assert shown["stagepost_delivery_messages_total", ("queued", "Queued")] == 3
        assert shown["stagepost_delivery_messages_total", ("queued", "Failed")] == 1
        assert shown["stagepost_delivery_messages_total", ("best-effort", "Sent")] == 0
        assert shown["stagepost_delivery_queue_messages", ()] == 2
        assert shown["stagepost_delivery_queue_capacity_messages", ()] == 2
        assert round(shown["stagepost_delivery_queue_oldest_age_seconds", ()]) == 7
        assert shown["stagepost_delivery_evictions_total", ()] == 1
        assert shown["stagepost_delivery_dead_letters", ()] == 1
        assert shown["stagepost_delivery_ack_seconds_count", ()] == 1
        assert 0.2 <= shown["stagepost_delivery_ack_seconds_sum", ()] < 0.5

    run_in_virtual_time(scenario())


def test_only_declared_metrics_are_shown() -> None:
    shown = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(DeliveryMetrics().render().decode())
    }

    assert shown == {metric.name for metric in DELIVERY_METRICS}
    assert [metric.name for metric in DELIVERY_METRICS if metric.kind is Kind.HISTOGRAM] == [
        "stagepost_delivery_ack_seconds"
    ]


def event(number: int, status: DeliveryStatus, at_ms: int, tier: Tier = Tier.ACKED) -> DeliveryEvent:
    return DeliveryEvent(f"{number:064x}", status, tier, "demo", at_ms, 0, None, None, ())


def test_time_to_acknowledgement_is_that_of_acked_messages_only() -> None:
    metrics = DeliveryMetrics()
    metrics.put(event(1, DeliveryStatus.PENDING, 1_000))
    metrics.put(event(1, DeliveryStatus.ACKED, 1_300))
    metrics.put(event(2, DeliveryStatus.PENDING, 1_000))
    metrics.put(event(2, DeliveryStatus.FAILED, 9_000))
    metrics.put(event(3, DeliveryStatus.ACKED, 9_000))  # begun before this process
    metrics.put(event(4, DeliveryStatus.PENDING, 1_000, Tier.QUEUED))

    shown = samples(metrics)
    assert shown["stagepost_delivery_ack_seconds_count", ()] == 1
    assert shown["stagepost_delivery_ack_seconds_sum", ()] == 0.3


def test_counters_never_go_back() -> None:
    metrics = DeliveryMetrics()
    stats = {"queue_len": 0, "in_flight": 0, "dead_letters": 0, "oldest_ms": None, "retries": 5, "evicted": 2}
    metrics.watch(lambda: stats, 10)
    metrics.render()
    stats["retries"], stats["evicted"] = 1, 3  # another publisher
    shown = samples(metrics)

    assert shown["stagepost_delivery_retries_total", ()] == 5
    assert shown["stagepost_delivery_evictions_total", ()] == 3
