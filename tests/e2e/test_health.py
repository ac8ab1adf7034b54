"""Two of four validators are killed: every face says so and names the machines; mended, every face says good."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagepost.cli import main as command
from stagepost.devnet.devnet import DevnetPlan, devnet
from stagepost.web.access.settings import WebSettings
from tests.browser.served import served
from tests.worlds.devnet.health_faces import HealthFaces

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytestmark = [pytest.mark.xdist_group("devnet"), pytest.mark.slow]

WITHIN_S = 90.0
KILLED = ("validator-3", "validator-4")


def test_two_of_four_killed_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(_story(tmp_path / "net", capsys))


async def _story(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with devnet(DevnetPlan(validators=4), data, one_process=False, full_node_here=False) as network:
        await network.ready()
        with served(WebSettings(data)) as server, httpx.Client(base_url=server.base, timeout=30) as client:

            def checked(*line: str) -> tuple[int, str]:
                capsys.readouterr()
                return command.run([*line]), capsys.readouterr().out

            faces = HealthFaces(data, client, checked)
            await _all_say(faces, "good", ())
            # A link that comes and goes between two looks of the node is in no line of its log.
            await _log_comes_to_say(data / "full-node" / "log", _has_linked_the_killed)
            for name in KILLED:
                await network.members[name].kill()
            took_s = await _all_say(faces, "bad", KILLED)
            print(f"all faces named {KILLED} after {took_s:.1f} s")
            await _log_comes_to_say(data / "full-node" / "log", _names_the_killed)
            for name in KILLED:
                await network.members[name].start()
            await _all_say(faces, "good", ())
            await _log_comes_to_say(data / "full-node" / "log", _has_its_quorum_back)


def _has_linked_the_killed(lines: list[dict[str, Any]]) -> bool:
    return {one["validator"] for one in lines if one["event"] == "link gained"} >= {*KILLED}


def _names_the_killed(lines: list[dict[str, Any]]) -> bool:
    """Return whether the last lines about quorum and health name both machines. Other links may come and go on a busy machine."""
    unlinked = {one["validator"] for one in lines if one["event"] == "link lost"}
    lost = [one for one in lines if one["event"] == "quorum lost" and one["shard"] == "masterchain"]
    turned = [one for one in lines if one["event"] == "health"]
    return (
        any(one["event"] == "node started" for one in lines)
        and unlinked >= {*KILLED}
        and bool(lost)
        and all(any(name in text for text in lost[-1]["not_linked"]) for name in KILLED)
        and (turned[-1]["health"], turned[-1]["was"]) == ("bad", "good")
        and all(name in turned[-1]["reason"] for name in KILLED)
    )


def _has_its_quorum_back(lines: list[dict[str, Any]]) -> bool:
    told = [one["event"] for one in lines if one["event"] in ("quorum lost", "quorum back")]
    return bool(told) and bool(told[-1] == "quorum back")


async def _log_comes_to_say(path: Path, says: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Wait until `says` holds for the lines of the log: a node looks for changes once a second, its faces look at once."""
    began = time.monotonic()
    while not says(lines := [json.loads(line) for line in path.read_text().splitlines()]):
        assert time.monotonic() - began < WITHIN_S, lines[-12:]
        await asyncio.sleep(0.2)


async def _all_say(faces: HealthFaces, health: str, names: tuple[str, ...]) -> float:
    """Wait until every face says `health` and names `names`; return how long that took, in seconds."""
    began = time.monotonic()
    left = faces.all
    said: dict[str, tuple[str, str]] = {}
    while left:
        assert time.monotonic() - began < WITHIN_S, {face.__name__: said.get(face.__name__) for face in left}
        for face in [*left]:
            try:
                said[face.__name__] = answer, text = await asyncio.to_thread(face)
            except (AssertionError, httpx.HTTPError) as error:
                said[face.__name__] = "", str(error)  # the node has not left its note yet
                continue
            if answer == health and all(name in text for name in names):
                left.remove(face)
        await asyncio.sleep(0.2)
    return time.monotonic() - began
