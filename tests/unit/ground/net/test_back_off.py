"""When a peer is tried again; how long it is left alone is tested with the book of peers."""

from __future__ import annotations

from random import Random

from stagepost.ground.net.back_off import PENALTY_FIRST_S, RETRY_FIRST_S, RETRY_JITTER, BackOff


def after_failures(count: int) -> BackOff:
    peer = BackOff()
    for _ in range(count):
        peer.ended(100.0, Random(1))
    return peer


def test_a_peer_that_was_heard_of_is_tried_at_once_and_begins_anew() -> None:
    peer = after_failures(8)
    assert peer.not_before >= 160.0
    peer.is_there(120.0)
    assert peer.not_before == 120.0
    peer.ended(120.0, Random(1))
    assert peer.not_before <= 120.0 + RETRY_FIRST_S * (1 + RETRY_JITTER)


def test_one_that_is_heard_of_all_the_time_is_not_tried_more_than_once_a_second() -> None:
    peer = after_failures(8)
    peer.is_there(100.1)
    assert peer.not_before == 100.0 + RETRY_FIRST_S


def test_to_be_heard_of_never_makes_a_peer_wait_longer() -> None:
    peer = after_failures(1)
    due_at = peer.not_before
    peer.is_there(due_at + 10)
    assert peer.not_before == due_at
    fresh = BackOff()
    fresh.is_there(5.0)
    assert fresh.not_before == 0.0


def test_one_that_broke_a_rule_is_left_alone_whatever_is_heard_of_it_until_its_next_end() -> None:
    peer = BackOff()
    peer.ended(100.0, Random(1), "CBOR_LIMIT")
    due_at = peer.not_before
    peer.is_there(110.0)
    assert peer.not_before == due_at >= 100.0 + PENALTY_FIRST_S
    for _ in range(8):
        peer.ended(200.0, Random(1))
    peer.is_there(210.0)
    assert peer.not_before == 210.0
