"""O3: how long a real node takes from its start to ready, with as many messages on its disk as its limits allow."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path

from stagepost.dmq.conform.cbor_bytes import uint
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.stored_messages import SqliteStore
from tests.hostile.bad_disks import is_ready
from tests.hostile.storms import MEGABYTE, Figure
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

READY_WITHIN_S = 10.0
GIVEN_UP_AFTER_S = 120.0
GROUP = 512
"""As many as the node itself writes in one transaction."""
LIVES_S = range(1_000, 1_790)
POOLS = 2_000
RECORDS_PER_POOL = 8
"""At least, in a small store: keys take longer to make than messages."""
"""No pool has two messages that expire in the same second: honest ones do not."""
BODY_BYTES = 90
PEER = "192.0.2.1:3141"
"""Who brought them: on a network nearly everything comes from peers."""


class PatientVictim(Victim):
    """A node whose start is measured, and not cut short."""

    def _wait_until_started(self) -> None:
        until = time.monotonic() + GIVEN_UP_AFTER_S
        while not self._is_ready():
            assert self.is_running, f"the node ended:\n{self.log}"
            assert time.monotonic() < until, f"the node did not start in {GIVEN_UP_AFTER_S:g} s:\n{self.log}"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            return (self.folder / "node.json").exists() and is_ready(self)
        except (urllib.error.URLError, OSError):
            return False


def restarting(records: int, say: Callable[[str], None] = lambda text: None) -> tuple[Figure, list[str]]:
    """The store is filled the way the node does it, by its own code; every message is signed and unexpired."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pools = [Forger() for _ in range(min(POOLS, max(1, records // RECORDS_PER_POOL)))]
        (folder / "stagepost.toml").write_text(
            f"[node]\nmempool_messages = {max(records, 1)}\nmempool_bytes = {records * 4_000 + 1}\n"
        )
        stakes = write_stakes(folder / "pools.json", [(pool, 1) for pool in pools])
        node = PatientVictim(folder / "node", stakes, flags=("--config", str(folder / "stagepost.toml")))
        node.folder.mkdir(mode=0o700)
        path = node.folder / "messages.sqlite"
        asyncio.run(_fill(path, pools, records, say))
        file_bytes = sum(part.stat().st_size for part in node.folder.glob("messages.sqlite*"))
        with ending([node]):
            began = time.monotonic()
            node.start()
            ready_s = time.monotonic() - began
            processor_s = node.processor_s
            held = asyncio.run(node.status())["mempool"]["messages"]
            resident = node.resident_bytes
            node.terminate()
    if held != records:
        faults.append(f"{held} of {records} messages were restored")
    if ready_s > READY_WITHIN_S:
        faults.append(f"ready after {ready_s:.1f} s, at most {READY_WITHIN_S:g} s are allowed")
    figure: Figure = {
        "promise": "O3",
        "target": "restart to ready",
        "records": records,
        "ready_s": round(ready_s, 2),
        "processor_s": round(processor_s, 2),
        "file_mb": round(file_bytes / MEGABYTE),
        "resident_mb": round(resident / MEGABYTE),
        "failures": len(faults),
    }
    return figure, faults


async def _fill(path: Path, pools: list[Forger], records: int, say: Callable[[str], None]) -> None:
    store = SqliteStore(path)
    store.load()
    now_ms = int(time.time() * 1_000)
    said_at = time.monotonic()
    for first in range(1, records + 1, GROUP):
        group: list[MempoolEntry] = []
        for place in range(first, min(first + GROUP, records + 1)):
            lives_s = LIVES_S[place // len(pools) % len(LIVES_S)]
            made = message(
                pools[place % len(pools)],
                body=os.urandom(BODY_BYTES),
                expires_cbor=uint(now_ms // 1_000 + lives_s),
            )
            group.append(MempoolEntry(place, DmqMessage.decode(made.raw), now_ms, PEER))
        await store.put(group)
        if time.monotonic() - said_at > 10:
            said_at = time.monotonic()
            say(f"{first + len(group) - 1:,} of {records:,} records written")
    await store.close()
