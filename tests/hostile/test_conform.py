"""`stagepost conform` finds defects planted into a node, each by its rule, with nothing but its sockets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from stagepost.dmq.conform.kit import POOLS_FILE, new_pools
from tests.hostile.planted import planted
from tests.hostile.victim import Victim
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, ending

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]

WITHIN_S = 300.0


@dataclass(frozen=True)
class Defect:
    """`rules`: names of those that the kit must find broken, with spaces between them."""

    name: str
    rules: str
    code: str


DEFECTS = (
    Defect(
        "believes every signature",
        "message.kes message.opcert",
        """
        from stagepost.ground.crypto import ed25519, kes
        from stagepost.dmq import validation
        kes.leaf_key = lambda key, evolution, path: bytes(32)
        ed25519.verify_signed = lambda key, signed: True
        validation.MessageValidator._is_issued = lambda self, message: True
        """,
    ),
    Defect(
        "knows no farthest expiry",
        "message.far",
        """
        from stagepost.dmq import validation
        validation.check_expiry = lambda *given: None
        """,
    ),
    Defect(
        "asks for no stake",
        "message.pool",
        """
        from stagepost.dmq import validation
        validation.MessageValidator._check_pool = lambda self, pool_id: None
        """,
    ),
    Defect(
        "accepts a lower issue number",
        "message.counter",
        """
        from stagepost.dmq.pool_memory import PoolMemories
        PoolMemories.check_counter = lambda self, pool_id, issue_number: None
        """,
    ),
    Defect(
        "hashes no id",
        "message.id",
        """
        from stagepost.dmq import validation
        validation.check_id = lambda message: None
        """,
    ),
    Defect(
        "answers keep-alive with another cookie",
        "keepalive.echo",
        """
        from stagepost.ground.net import keep_alive
        from stagepost.ground.net.keep_alive_protocol import Done, KeepAlive, KeepAliveResponse
        async def run(self):
            await self._talk.wait_for_start()
            while not self._talk.is_over:
                match await self._talk.receive_any():
                    case KeepAlive(cookie):
                        await self._talk.send(KeepAliveResponse(cookie ^ 1))
                    case _:
                        break
            await self._talk.release()
        keep_alive.KeepAliveServer.run = run
        """,
    ),
    Defect(
        "counts no ids in the window",
        "submission.window submission.blocking",
        """
        from stagepost.dmq.announcements import Announcements
        Announcements._check_ids_request = lambda self, blocking, acknowledged, requested: None
        def request_ids(self, *, blocking, acknowledged, requested):
            self._ids_requests.append((blocking, requested))
            self._ids_due += requested
        Announcements.request_ids = request_ids
        """,
    ),
    Defect(
        "takes what it did not ask for",
        "submission.served",
        """
        from stagepost.dmq.announcements import Announcements
        def reply_whole_messages(self, messages):
            self._messages_requests.popleft()
        Announcements.reply_whole_messages = reply_whole_messages
        """,
    ),
    Defect(
        "tells a message twice",
        "notification.tell",
        """
        from stagepost.dmq.node.mempool_feed import MempoolFeed
        old = MempoolFeed.take
        def take(self, count_max):
            messages, has_more = old(self, count_max)
            return tuple(one for message in messages for one in (message, message)), has_more
        MempoolFeed.take = take
        """,
    ),
    Defect(
        "serves another network",
        "handshake.network",
        """
        from dataclasses import replace
        import msgspec
        from stagepost.ground.net import handshake
        old = handshake.read_version_data
        def read(parameters, version, shape):
            return msgspec.structs.replace(old(parameters, version, shape), network_magic=2147483690)
        handshake.read_version_data = read
        """,
    ),
)


ENDS = """
import os
from stagepost.dmq.node.intake import Intake
old = Intake.submit
async def submit(self, message, source):
    if len(message.body) == 90:
        os._exit(9)
    return await old(self, message, source)
Intake.submit = submit
"""


def apart(planted_defect: Defect) -> str:
    """Return the code of a defect with names of its own."""
    name = "plant_" + "_".join(planted_defect.name.split()).replace("-", "_")
    return f"def {name}():\n{indent(dedent(planted_defect.code), '    ')}\n{name}()"


def tried(tmp_path: Path, code: str, *patterns: str) -> tuple[int, dict[str, Any]]:
    """Return the command's exit code and report of a node that runs `code` first."""
    new_pools(tmp_path / "kit")
    victim = Victim(
        tmp_path / "node", tmp_path / "kit" / POOLS_FILE, environment=planted(tmp_path / "planted", code)
    )
    with ending([victim]):
        victim.start()
        command = [sys.executable, "-m", "stagepost.cli.main", "conform", f"127.0.0.1:{victim.port}"]
        command += [str(victim.socket), "--network-magic", str(NETWORK_MAGIC)]
        command += ["--pools", str(tmp_path / "kit"), "--json"]
        command += [word for pattern in patterns for word in ("--only", pattern)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        assert not ran.stderr
        report: dict[str, Any] = json.loads(ran.stdout)
        return ran.returncode, report


# A node that neither looks at stake nor at signatures takes everything: the kit says that, and no single rule.
TOGETHER = [[one for one in DEFECTS if one.name != "asks for no stake"], [DEFECTS[2]]]


@pytest.mark.parametrize("defects", TOGETHER, ids=lambda those: f"{len(those)} defects")
def test_every_planted_defect_is_named_by_its_rule(tmp_path: Path, defects: list[Defect]) -> None:
    rules = {rule for one in defects for rule in one.rules.split()}
    code, report = tried(tmp_path, "\n".join(map(apart, defects)), *rules)

    deviating = [case for case in report["cases"] if case["state"] == "deviates"]
    assert {case["rule"] for case in deviating} == rules
    assert all(case["faults"] and case["source"] and case["bytes"] for case in deviating)
    assert code == 1


def test_a_node_that_ends_is_named_with_the_case_that_ended_it(tmp_path: Path) -> None:
    code, report = tried(tmp_path, ENDS, "message.body")

    assert {case["rule"] for case in report["cases"] if case["state"] == "deviates"} >= {"load.served"}
    assert code == 1


def test_the_same_rules_hold_without_a_defect(tmp_path: Path) -> None:
    rules = {rule for one in DEFECTS for rule in one.rules.split()}
    code, report = tried(tmp_path, "", *rules)

    assert [case for case in report["cases"] if case["state"] != "holds"] == []
    assert {case["rule"] for case in report["cases"]} == rules
    assert code == 0
