"""The node dials hostile peers: each answers badly, is dropped with its reason, and is not dialled again at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from stagepost.dmq.conform.bad_answers import BAD_ANSWERS, BadPeer
from stagepost.dmq.conform.honest_program import HonestProgram
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, ending

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]

GRACE_S = 10.0


async def play(victim: Victim, cast: Cast) -> list[str]:
    listeners = [BadPeer(bad, NETWORK_MAGIC) for bad in BAD_ANSWERS]
    for listener in listeners:
        await listener.start()
    victim.peers = [(listener.port, "dmq-node") for listener in listeners]
    await asyncio.to_thread(victim.start)
    faults: list[str] = []
    for listener in listeners:
        try:
            await asyncio.wait_for(listener.was_closed.wait(), listener.bad.within_s + GRACE_S)
        except TimeoutError:
            faults.append(f"{listener.bad.name}: the node did not close")
    honest = HonestProgram(victim.target, cast.pool)
    await honest.check()  # also gives the last lines time to be written
    await honest.leave()
    said = {(line.get("peer"), line.get("code")) for line in victim.log_lines()}
    for listener in listeners:
        if (f"127.0.0.1:{listener.port}", listener.bad.code) not in said:
            of_it = [code for peer, code in said if peer == f"127.0.0.1:{listener.port}"]
            faults.append(f"{listener.bad.name}: the log says {of_it}, expected {listener.bad.code}")
        await listener.stop()
    counted = (await victim.counted()).violations
    expected = Counter((bad.place, bad.code) for bad in BAD_ANSWERS)
    if expected - counted:
        faults.append(f"not counted: {expected - counted}")
    return faults


def test_peer_that_answers_badly_is_dropped_with_its_reason(tmp_path: Path) -> None:
    cast = Cast()
    victim = Victim(tmp_path / "node", write_stakes(tmp_path / "pools.json", cast.everybody))
    with ending([victim]):
        faults = asyncio.run(play(victim, cast))

        assert not faults, "\n".join(faults)
        assert not victim.faults_of_its_own()
        assert victim.terminate() == 0
