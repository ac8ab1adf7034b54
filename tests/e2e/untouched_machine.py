"""A machine of its own for the guide's files as they are: namespaces with its absolute paths and public addresses.

Run as a program inside new mount and network namespaces, it builds a root folder in which only `/cardano`, `/dmq`,
`/opt/dmq` and `/service` differ from the machine's own, gives the loopback device the guide's addresses, and runs the scene.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from stagepost.client import AsyncClient
from stagepost.dmq.outcome import Accepted
from stagepost.ground.net.network import SocketNetwork
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.node_processes import Pool
from tests.worlds.dmq.operator_machine import (
    DMQ_MAGIC,
    FILES,
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


async def scene(role: str) -> dict[str, Any]:
    root = FILES[f"topology-{role}.json"]["localRoots"][0]["accessPoints"][0]
    dialled = asyncio.Event()
    sender = Pool()
    node = PretendCardanoNode(mainnet_ledger(sender))

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        writer.close()

    peer = await asyncio.start_server(accept, root["address"], root["port"])
    async with operator_machine(Path("/"), role, is_untouched=True) as here:
        await node.start(SocketNetwork(), here.cardano_socket)
        await here.until(lambda: here.said("stake taken") == 1)
        async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
            is_accepted = await client.submit(sender.message()) == Accepted()
        async with asyncio.timeout(WITHIN_S):
            await dialled.wait()
        status, metrics = await asyncio.to_thread(here.fetch, PROMETHEUS_PORT, "/metrics")
        found = {
            "accepted": is_accepted,
            "metrics": status,
            "counted": "\ndmq_node_submissions_accepted 1\n" in metrics,
            "tcp": here.facts["tcp"],
            "works_with": next(line["detail"] for line in here.lines if line["event"] == "stake taken"),
            "ended": await asyncio.to_thread(here.end),
            "files": {name: json.loads(path.read_text()) for name, path in here.files.items()},
        }
    await node.stop()
    peer.close()
    return found


if __name__ == "__main__":
    role_given, root_given = sys.argv[1:]
    dials = FILES[f"topology-{role_given}.json"]["localRoots"][0]["accessPoints"][0]["address"]
    enter(Path(root_given))
    give_addresses(ADDRESSES[role_given], dials)
    print(json.dumps(asyncio.run(scene(role_given))))
