"""Operators who found and change a network with public commands and real processes, each with files of its own.

python -m tests.worlds.network.operators 7
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from rigs.validator_processes import free_ports
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT

WITHIN_S = 120.0
LOOK_EVERY_S = 0.3
FULL_NODE = "full-node"
LOG = "log"


class OperatorFault(Exception):
    """A command did not end as it has to, or a state did not come."""


class OperatedNetwork:
    """Members in folders of one folder. Every member has its own copy of the network file, as on a machine of its own."""

    def __init__(self, folder: Path, ports: Iterator[int]) -> None:
        self.folder = folder
        self._ports = ports
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.members: list[str] = []
        self.genesis = ""

    # Commands

    def command(self, *arguments: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command; `OperatorFault` if it ends with another code than this, None for any."""
        done = subprocess.run(
            [*COMMAND, *(str(one) for one in arguments)],
            cwd=self.folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=2 * WITHIN_S,
            check=False,
        )
        if code is not None and done.returncode != code:
            words = " ".join(str(one) for one in arguments)
            raise OperatorFault(f"{words} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def join(self, name: str) -> Path:
        """Let an operator make a member; return its card."""
        kind = ("--full-node",) if name == FULL_NODE else ()
        address = f"127.0.0.1:{next(self._ports)}"
        self.command("network", "join", name, "--name", name, "--address", address, *kind)
        self.members.append(name)
        return self.folder / name / "member.json"

    def found(self, *names: str) -> None:
        cards = [self.join(name) for name in (*names, FULL_NODE)]
        made = self.command(
            *("network", "init"),
            *cards,
            *("--name", "operators", "--out", "network.json", "--json", "--session-lifetime", "10s"),
        )
        self.genesis = json.loads(made.stdout)["genesis"]
        for name in self.members:
            self.give_network_file(name, "network.json")

    def give_network_file(self, name: str, source: str) -> None:
        shutil.copy(self.folder / source, self.network_file(name))
        self.command("network", "join", name, "--network", self.network_file(name), "--genesis", self.genesis)

    def network_file(self, name: str) -> Path:
        return self.folder / name / "network.json"

    def data(self, name: str) -> Path:
        return self.folder / name / "data"

    # Processes

    def start(self, name: str) -> None:
        role = "full" if name == FULL_NODE else "validator"
        command = ("node", role, "--network", str(self.network_file(name)), "--data", str(self.data(name)))
        with (self.folder / name / LOG).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [
                    *COMMAND,
                    *command,
                    "--key",
                    str(self.folder / name / "member.skey"),
                    "--metrics-port",
                    "off",
                ],
                cwd=self.folder,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.wait()

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def require_running(self) -> None:
        for name, process in self._running.items():
            if process.poll() is not None:
                said = (self.folder / name / LOG).read_text(errors="replace")[-2_000:]
                raise OperatorFault(f"{name} ended with {process.returncode}: {said}")

    # States

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + WITHIN_S
        while not holds():
            self.require_running()
            if time.monotonic() > ends:
                raise OperatorFault(f"{what}: not within {WITHIN_S:g} s")
            time.sleep(LOOK_EVERY_S)

    def shown(self, name: str) -> dict[str, Any]:
        """Return what a member's data folder says of the network; nothing before its node has begun."""
        asked = self.command(
            *("network", "show", "--network", self.network_file(name), "--data", self.data(name), "--json"),
            code=None,
        )
        found: dict[str, Any] = json.loads(asked.stdout) if asked.returncode == 0 else {}
        return found

    def in_set(self, name: str) -> set[str]:
        return {one["name"] for one in self.shown(name).get("members", []) if one["in_set"]}

    def execute(self, number: int) -> str:
        """Submit a message, wait for the proof of its execution and check it from the genesis; return the message's id."""
        self.until("the full node takes messages", (self.data(FULL_NODE) / "full-node.json").exists)
        done = self.command(
            *("submit", "--to", "alice", "--number", str(number), "--wait", "final", "--expires", "120s"),
            *("--timeout", f"{WITHIN_S:g}s", "--data", self.data(FULL_NODE), "--json"),
        )
        identifier = next(
            found
            for line in done.stdout.splitlines()
            for found in (str(json.loads(line).get("message_id", json.loads(line).get("id", ""))),)
            if len(found) == 64
        )
        proof = self.folder / f"proof-{number}.json"
        self.command("prove", identifier, "--data", self.data(FULL_NODE), "--out", proof)
        genesis = ("--genesis", self.folder / "network.json")
        self.command("verify", proof, *genesis)
        second = subprocess.run(
            [sys.executable, ROOT / "examples" / "verify_proof.py", proof, *genesis],
            capture_output=True,
            text=True,
            check=False,
        )
        if second.returncode:
            raise OperatorFault(f"the second verifier refuses the proof: {second.stdout}{second.stderr}")
        return identifier

    # Changes

    def propose(self, by: str, *change: str | Path) -> Path:
        out = self.folder / f"proposal-{len(list(self.folder.glob('proposal-*')))}.json"
        self.command(
            *("network", "set", "propose", "--network", self.network_file(by), "--data", self.data(by)),
            *("--key", self.folder / by / "member.skey", "--in", "1s", *change, "--out", out),
        )
        return out

    def take_members(self, proposal: Path) -> None:
        """Give every machine the new members, and start the nodes of the new ones; nobody restarts."""
        for name in self.members:
            if self.network_file(name).exists():
                self.command("network", "set", "members", proposal, "--network", self.network_file(name))
            else:
                self.give_network_file(name, f"{FULL_NODE}/network.json")
        for name in self.members:
            if name not in self._running:
                self.start(name)

    def approve(self, proposal: Path, name: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.command(
            *("network", "set", "approve", proposal, "--network", self.network_file(name)),
            *("--key", self.folder / name / "member.skey", "--data", self.data(name)),
            *("--out", self.folder / f"approval-{proposal.stem}-{name}.json"),
            code=code,
        )


@contextmanager
def operated(folder: Path) -> Iterator[OperatedNetwork]:
    network = OperatedNetwork(folder, iter(free_ports(16)))
    try:
        yield network
    finally:
        network.close()


def change_story(network: OperatedNetwork, random: Random, *, replaces_key: bool = True) -> None:
    """Found four, add a validator, replace a key, remove one; two approvals of four are not enough, three are."""
    first = [f"validator-{number}" for number in range(1, 5)]
    network.found(*first)
    for name in network.members:
        network.start(name)
    network.execute(100)

    proposal = network.propose("validator-1", "--add", network.join("validator-5"))
    refused = network.approve(proposal, "validator-1", code=2)
    if "validator-5 is not in the network file" not in refused.stderr:
        raise OperatorFault(f"a validator may vote for a member that it cannot reach: {refused.stderr}")
    network.take_members(proposal)
    approving = random.sample(first, 3)
    for name in approving[:2]:
        network.approve(proposal, name)
    network.execute(200)
    if network.in_set(FULL_NODE) != {*first}:
        raise OperatorFault("two approvals of four changed the set")
    network.approve(proposal, approving[2])
    network.until("five validators", lambda: network.in_set(FULL_NODE) == {*first, "validator-5"})
    network.execute(300)

    present = {*first, "validator-5"}
    if replaces_key:
        present = _replace_key(network, random, present)
    proposal = network.propose("validator-4", "--remove", "validator-1")
    for name in random.sample(sorted(present), 4):
        network.approve(proposal, name)
    network.until("one removed", lambda: network.in_set(FULL_NODE) == present - {"validator-1"})
    network.kill("validator-1")
    network.execute(500)


def _replace_key(network: OperatedNetwork, random: Random, present: set[str]) -> set[str]:
    card = network.join("validator-2b")
    proposal = network.propose("validator-3", "--replace", f"validator-2={card}")
    network.take_members(proposal)
    for name in random.sample(sorted(present), 4):
        network.approve(proposal, name)
    after = present - {"validator-2"} | {"validator-2b"}
    network.until("a key replaced", lambda: network.in_set(FULL_NODE) == after)
    network.stop("validator-2")
    network.members.remove("validator-2")
    network.execute(400)
    return after


def play_changes(seed: int) -> list[str]:
    """Play the whole story; return what went wrong, nothing if all went well."""
    with tempfile.TemporaryDirectory(prefix="stagepost-") as folder, operated(Path(folder)) as network:
        try:
            change_story(network, Random(seed))
        except OperatorFault as fault:
            return [f"seed {seed}: {fault}"]
    return []


def main(seed: str) -> None:
    for fault in play_changes(int(seed)):
        sys.exit(fault)


if __name__ == "__main__":
    main(*sys.argv[1:])
