"""Strangers who hold connections: on a scale that fits here, honest ones are served beside them; `make soak` has the full one."""

from __future__ import annotations

import pytest

from tests.hostile.strangers import (
    STREAM,
    half_requests_to_dashboard,
    half_requests_to_metrics,
    idle_peers,
    silent_peers,
    silent_readers,
)

pytestmark = pytest.mark.xdist_group("storms")
MORE_THAN_REQUESTS = 300
STRANGERS = 150
"""More than all places before the proof of any listener."""


def test_silent_connections_keep_no_peer_and_no_program_out() -> None:
    figure, faults = silent_peers(STRANGERS)

    assert not faults, f"{faults}\n{figure}"


@pytest.mark.parametrize("initiator_only", [True, False])
def test_peers_that_exchange_nothing_make_room(initiator_only: bool) -> None:
    figure, faults = idle_peers(24, initiator_only=initiator_only)

    assert not faults, f"{faults}\n{figure}"


def test_silent_connections_keep_no_reader_of_topics_out() -> None:
    figure, faults = silent_readers(STRANGERS)

    assert not faults, f"{faults}\n{figure}"


def test_unfinished_heads_keep_nobody_from_the_dashboard() -> None:
    pytest.importorskip("fastapi", reason="the extra web is not installed")
    figure, faults = half_requests_to_dashboard(STRANGERS)

    assert not faults, f"{faults}\n{figure}"


def test_streams_of_strangers_keep_nobody_from_the_dashboard() -> None:
    pytest.importorskip("fastapi", reason="the extra web is not installed")
    figure, faults = half_requests_to_dashboard(MORE_THAN_REQUESTS, STREAM)

    assert not faults, f"{faults}\n{figure}"


def test_unfinished_heads_keep_nobody_from_health_and_metrics() -> None:
    figure, faults = half_requests_to_metrics(STRANGERS)

    assert not faults, f"{faults}\n{figure}"
