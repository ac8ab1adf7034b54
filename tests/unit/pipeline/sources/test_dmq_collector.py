"""What a DMQ node tells is kept once, whoever listens when, and read again from there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.errors import HandshakeRefused, TransportError
from stagepost.pipeline.sources import dmq_collector
from stagepost.pipeline.sources.dmq_collector import DmqSocket, collect_once, keep_collecting, stop_collecting
from stagepost.pipeline.sources.topic_places import FolderPlace
from stagepost.pipeline.sources.topic_ranges import ranges
from stagepost.topics.topic import DMQ_MESSAGES
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.pool_signers import Signer
from tests.worlds.dmq.small_node import MAGIC
from tests.worlds.ground.waiting import wait_until

SIGNER = Signer()


def messages(first: int, count: int) -> list[DmqMessage]:
    return [SIGNER.sign(number) for number in range(first, first + count)]


def kept(folder: Path) -> list[tuple[bytes | None, bytes | None]]:
    place = FolderPlace(folder)
    start, end = place.bounds()
    return [(r.key, r.value) for one in ranges(start, end) for reads in place.reads(one) for r in reads]


def as_kept(told: list[DmqMessage]) -> list[tuple[bytes, bytes]]:
    return [(one.message_id.hex().encode(), one.encode()) for one in told]


def test_what_a_node_holds_is_kept_once_in_its_order(tmp_path: Path) -> None:
    socket = DmqSocket(str(tmp_path / "node.socket"), MAGIC, "dmq-node")
    folder, told = tmp_path / "retained", messages(1, 3)
    with node_in_background(tmp_path / "node.socket") as node:
        asyncio.run(_hold(node.messages, told))
        assert collect_once(folder, socket) == 3
        assert collect_once(folder, socket) == 0
        node.messages += messages(4, 2)
        assert collect_once(folder, socket) == 2
    told = [*told, *messages(4, 2)]
    assert kept(folder) == as_kept(told)
    reads = [
        r
        for one in ranges({}, FolderPlace(folder).bounds()[1])
        for b in FolderPlace(folder).reads(one)
        for r in b
    ]
    assert {read.headers["from"] for read in reads} == {"local"}
    assert all(int(read.headers["received_ms"]) == read.timestamp_ms for read in reads)


async def _hold(place: list[DmqMessage], told: list[DmqMessage]) -> None:
    place.extend(told)


def test_a_collector_goes_on_over_restarts_of_the_node_and_of_itself_and_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = DmqSocket(str(tmp_path / "node.socket"), MAGIC, "dmq-node")
    folder, told = tmp_path / "retained", messages(10, 2)
    try:
        keep_collecting(folder, socket)  # before there is a node
        with node_in_background(tmp_path / "node.socket", messages=told[:]):
            wait_until(lambda: len(kept(folder)) == 2)
            keep_collecting(folder, socket)
            assert collect_once(folder, socket) == 0, "another one writes this folder"
        told += messages(12, 2)
        with node_in_background(tmp_path / "node.socket", messages=told[:]):
            wait_until(lambda: len(kept(folder)) == 4)
            stop_collecting()
            keep_collecting(folder, socket)  # as in another process
            wait_until(lambda: bool(dmq_collector._running))
        assert kept(folder) == as_kept(told)
    finally:
        stop_collecting()
    assert kept(folder) == as_kept(told)


def test_a_node_of_another_network_is_told_once_and_one_that_is_not_there_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "retained"
    with node_in_background(tmp_path / "node.socket"):
        wrong = DmqSocket(str(tmp_path / "node.socket"), MAGIC + 1, "dmq-node")
        with pytest.raises(HandshakeRefused):
            collect_once(folder, wrong)
        keep_collecting(folder, wrong)
        (collector,) = dmq_collector._running.values()
        wait_until(lambda: not collector.is_alive)
        with pytest.raises(HandshakeRefused):
            keep_collecting(folder, wrong)
    stop_collecting()
    with pytest.raises(TransportError):
        collect_once(folder, DmqSocket(str(tmp_path / "nobody.socket"), MAGIC, "dmq-node"))
    assert kept(folder) == []
    assert FolderPlace(folder).bounds()[1] == {DMQ_MESSAGES: {"0": 0}}


def test_no_more_ids_are_remembered_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmq_collector, "RECENT_MAX", 2)
    retained = dmq_collector.open_retained(tmp_path / "retained")
    assert retained is not None
    first, second, third = messages(20, 3)
    assert len(retained.fresh([first, second, first, second])) == 2
    assert len(retained.fresh([third])) == 1
    assert len(retained.fresh([second])) == 0
    assert len(retained.fresh([first])) == 1
    retained.close()
