"""Settings: the defaults of the requirement, every limit at its edge, and all faults at once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from stagepost.delivery import ErrConfig, ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.deadlines import delay_before, spread


@pytest.mark.parametrize(
    ("settings", "name"), [(ReliablePublisherConfig, "queue_path"), (ReceiverConfig, "inbox_path")]
)
def test_a_folder_is_named_by_text_or_a_path(settings: Any, name: str) -> None:
    assert getattr(settings(**{name: Path("a/b")}), name) == "a/b"
    for wrong in (5, b"a", "", "a\0b"):
        with pytest.raises(ErrConfig, match=f"{name} is .*, expected the path of a folder"):
            settings(**{name: wrong})


def test_defaults_are_those_of_the_requirement() -> None:
    config = ReliablePublisherConfig()

    assert (config.queue_size, config.flush_interval, config.flush_batch_size) == (1000, 1.0, 10)
    assert (config.enable_ack, config.ack_timeout, config.max_retries) == (False, 5.0, 3)
    assert (config.critical_peers, config.require_all_acks) == ((), False)
    assert (config.persistence, config.fsync, config.overflow) == ("memory", "commit", "evict_lru")
    assert (config.retry_delay, config.retry_delay_max, config.retry_jitter) == (0.1, 5.0, 0.2)
    assert (config.max_in_flight, config.queue_max_bytes, config.message_max_age) == (256, 64 * 2**20, 0)
    assert (config.dedup_window, config.dedup_capacity, config.ack_delay) == (3600, 100_000, 0.05)
    assert config.attempts_max == 4
    assert config.budget_s == pytest.approx(20.7)


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("queue_size", [0, -1, 1.5, True, "1"], [1]),
        ("flush_interval", [0, -1, NAN, INFINITE, "1"], [0.001, 1]),
        ("flush_batch_size", [0, 2.5], [1]),
        ("ack_timeout", [0, -0.1, NAN], [0.001]),
        ("max_retries", [-1, 1.0, 370, 1_001], [0, 355]),
        (
            "critical_peers",
            ["bob", [""], [1], 7, [f"peer{n}" for n in range(65)]],
            [["bob"], {"bob"}, ("a", "a")],
        ),
        ("required_acks", [0, 1, -1], [None]),
        ("persistence", ["tape", None, "disk"], ["memory"]),
        ("fsync", ["always"], ["interval", "off"]),
        ("retry_delay", [0, -1], [0.001]),
        ("retry_delay_max", [0, NAN], [0.001]),
        ("retry_jitter", [-0.1, 1.0, NAN, "0"], [0, 0.99]),
        ("max_in_flight", [0], [1]),
        ("queue_max_bytes", [-1, 0.5], [0]),
        ("message_max_age", [-1, NAN, None], [0, 0.5]),
        ("overflow", ["drop"], ["reject_new"]),
        ("delivery_timeout", [0, -1, 3_600.1, NAN], [0.1, 3_600]),
        ("dedup_window", [0, 20.6], [20.8]),
        ("dedup_capacity", [0], [1]),
        ("ack_delay", [-1], [0]),
        ("dead_letters_max", [-1], [0]),
    ],
)
def test_every_setting_at_its_edge(name: str, bad: list[Any], good: list[Any]) -> None:
    for value in bad:
        with pytest.raises(ErrConfig):
            ReliablePublisherConfig(**{name: value})
    for value in good:
        ReliablePublisherConfig(**{name: value})


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ErrConfig) as caught:
        ReliablePublisherConfig(queue_size=0, ack_timeout=-1, persistence="disk", overflow="x")

    for name in ("queue_size", "ack_timeout", "queue_path", "overflow"):
        assert name in str(caught.value)


def test_duplicate_critical_peers_are_collapsed() -> None:
    config = ReliablePublisherConfig(critical_peers=["a", "b", "a"], require_all_acks=True)  # type: ignore[arg-type]

    assert config.critical_peers == ("a", "b")
    assert config.required == 2


@pytest.mark.parametrize(("required", "is_allowed"), [(0, False), (1, True), (3, True), (4, False)])
def test_k_lies_between_one_and_the_number_of_peers(required: int, is_allowed: bool) -> None:
    settings: dict[str, Any] = {"critical_peers": ("a", "b", "c"), "required_acks": required}
    if is_allowed:
        assert ReliablePublisherConfig(**settings).required == required
        with pytest.raises(ErrConfig, match="both set"):
            ReliablePublisherConfig(**settings, require_all_acks=True)
    else:
        with pytest.raises(ErrConfig, match="required_acks"):
            ReliablePublisherConfig(**settings)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dedup_window", 0),
        ("dedup_capacity", 0),
        ("ack_delay", -0.1),
        ("handlers_per_sender", 0),
        ("waiting_max", 0),
    ],
)
def test_receiver_settings_at_their_edges(name: str, bad: Any) -> None:
    with pytest.raises(ErrConfig, match=name):
        ReceiverConfig(**{name: bad})


def test_back_off_doubles_up_to_its_limit() -> None:
    delays = [delay_before(attempt, 0.1, 5.0) for attempt in range(1, 9)]

    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    assert delay_before(10_000, 0.1, 5.0) == 5.0


def test_spread_stays_within_the_jitter_and_repeats_with_its_seed() -> None:
    spreads = [spread(1.0, 0.2, Random(seed)) for seed in range(500)]

    assert 0.8 <= min(spreads) < 0.82
    assert 1.18 < max(spreads) <= 1.2
    assert spreads == [spread(1.0, 0.2, Random(seed)) for seed in range(500)]
    assert spread(1.0, 0.0, Random(1)) == 1.0
