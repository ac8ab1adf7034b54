"""A machine of its own for the guide's files as they are: namespaces with its absolute paths and public addresses.

Run as a program inside new mount and network namespaces, it builds a root folder in which only `/cardano`, `/dmq`,
`/opt/dmq` and `/service` differ from the machine's own, gives the loopback device the guide's addresses, and runs the scene
beside our double of a cardano-node. `tests/interop/pallas_node.py` does the same beside a cardano-node made with pallas.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stagepost.client import AsyncClient
from stagepost.dmq.outcome import Accepted
from stagepost.ground.net.network import SocketNetwork
from tests.worlds.dmq.cardano_answers import LedgerState
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.node_processes import Pool
from tests.worlds.dmq.operator_machine import (
    DMQ_MAGIC,
    FILES,
    GUIDE,
    PROMETHEUS_PORT,
    WITHIN_S,
    mainnet_ledger,
    operator_machine,
)

UNSHARE = ("unshare", "--map-root-user", "--mount", "--net")
OWN = ("cardano", "dmq", "service")
ADDRESSES = {"relay": "34.14.65.160", "bp": "192.168.1.60"}


def missing() -> str | None:
    """Why this machine cannot have such a machine inside; None if it can."""
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = subprocess.run([*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return None if probe.returncode == 0 else f"namespaces cannot be made: {probe.stderr.strip()}"


def enter(root: Path) -> None:
    """Make `root` the root folder of this process."""
    _mount("-t", "tmpfs", "tmpfs", str(root))
    for path in Path("/").iterdir():
        _bind(path, root / path.name)
    for name in OWN:
        (root / name).mkdir()
    if not (root / "opt").is_dir():
        (root / "opt").mkdir()
    _mount("-t", "tmpfs", "tmpfs", str(root / "opt"))
    for path in Path("/opt").iterdir() if Path("/opt").is_dir() else ():
        _bind(path, root / "opt" / path.name)
    here = Path.cwd()
    os.chroot(root)
    os.chdir(here)


def _bind(path: Path, target: Path) -> None:
    if path.is_symlink():
        target.symlink_to(path.readlink())
    elif path.is_dir():
        target.mkdir()
        _mount("--rbind", str(path), str(target))
    else:
        target.touch()
        _mount("--bind", str(path), str(target))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def give_addresses(*addresses: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in addresses:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)


class CardanoNode(Protocol):
    """A cardano-node that a test can start and stop at any socket."""

    async def start(self, socket: Path) -> None: ...

    async def stop(self) -> None: ...


@dataclass
class OwnDouble:
    node: PretendCardanoNode

    async def start(self, socket: Path) -> None:
        await self.node.start(SocketNetwork(), socket)

    async def stop(self) -> None:
        await self.node.stop()


async def scene(role: str, count: int, beside: Callable[[LedgerState], CardanoNode]) -> dict[str, Any]:
    """Run the node of `role` beside a cardano-node with `count` pools; the first three of them send, one after the other."""
    root = FILES[f"topology-{role}.json"]["localRoots"][0]["accessPoints"][0]
    dialled = asyncio.Event()
    senders = [Pool() for _ in range(3)]
    known = senders[:count]
    ledger = mainnet_ledger(*known, others=count - len(known))
    node = beside(ledger)

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        writer.close()

    async def submitted(sender: Pool) -> str:
        async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
            outcome = await client.submit(sender.message())
        return "accepted" if outcome == Accepted() else str(getattr(outcome, "code", outcome))

    peer = await asyncio.start_server(accept, root["address"], root["port"])
    async with operator_machine(Path("/"), role, is_untouched=True) as here:
        await node.start(here.cardano_socket)
        await here.until(lambda: here.said("stake taken") == 1)
        outcomes = [await submitted(senders[0])]
        async with asyncio.timeout(WITHIN_S):
            await dialled.wait()
        # The cardano-node restarts: dmq-node would exit here.
        away = here.said("cardano-node cannot be asked")
        await node.stop()
        await here.until(lambda: here.said("cardano-node cannot be asked") == away + 1)
        outcomes.append(await submitted(senders[1]))
        here.cardano_socket.unlink(missing_ok=True)
        await node.start(here.cardano_socket)
        await here.until(lambda: here.said("cardano-node answers") >= 1)
        outcomes.append(await submitted(senders[2]))
        status, metrics = await asyncio.to_thread(here.fetch, PROMETHEUS_PORT, "/metrics")
        found = {
            "outcomes": outcomes,
            "metrics": status,
            "counted": next(
                line for line in metrics.splitlines() if line.startswith("dmq_node_submissions_accepted ")
            ),
            "tcp": here.facts["tcp"],
            "works_with": next(line["detail"] for line in here.lines if line["event"] == "stake taken"),
            "ended": await asyncio.to_thread(here.end),
            "files": {name: path.read_bytes().hex() for name, path in here.files.items()},
        }
    await node.stop()
    peer.close()
    return found


def run_inside(role: str, count: int, root: Path, beside: Callable[[LedgerState], CardanoNode]) -> None:
    """Play the scene in the namespaces of this process, and print what was found as JSON."""
    dials = FILES[f"topology-{role}.json"]["localRoots"][0]["accessPoints"][0]["address"]
    enter(root)
    give_addresses(ADDRESSES[role], dials)
    print(json.dumps(asyncio.run(scene(role, count, beside))))


def run_scene(folder: Path, role: str, count: int, *program: str) -> dict[str, Any]:
    """Run `program` (a module and its words, this one by default) in new namespaces; return what it found."""
    root = folder / "root"
    root.mkdir()
    ran = subprocess.run(
        [*UNSHARE, sys.executable, "-m", *(program or (__name__,)), role, str(count), str(root)],
        capture_output=True,
        text=True,
        timeout=2 * WITHIN_S,
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["files"] == {name: (GUIDE / name).read_bytes().hex() for name in found["files"]}
    assert found["tcp"] == [f"{ADDRESSES[role]}:6161"]
    assert (found["metrics"], found["ended"]) == (200, 0)
    assert f"{count} pools" in found["works_with"]
    return found


if __name__ == "__main__":
    role_given, count_given, root_given = sys.argv[1:]
    run_inside(
        role_given,
        int(count_given),
        Path(root_given),
        lambda ledger: OwnDouble(PretendCardanoNode(ledger)),
    )
