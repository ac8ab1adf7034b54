"""Operators who found and change a network with public commands and real processes, each with files of its own.

python -m tests.worlds.network.operators 7
python -m tests.worlds.network.operators 7 FOLDER    the nodes begin with the sources of an earlier revision in FOLDER
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import Any

from rigs.ports import free_ports
from stagepost.chain.node.reading import read_ledger
from stagepost.errors import StagepostError
from stagepost.full_node.network import load_network
from stagepost.full_node.running import CHAIN_FOLDER
from stagepost.ground.files.running_nodes import find_remp_node
from stagepost.ground.wire.tl import key_id
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT
from tests.worlds.network.traffic import MessageStream

WITHIN_S = 120.0
SOURCES = ROOT / "src"
LOOK_EVERY_S = 0.3
FULL_NODE = "full-node"
LOG = "log"
MESSAGES_PER_S = 20.0
STRANGE = ("BlamedValidator", '"Halt"', "Traceback", "Equivocation")
KILL_EVERY_S = (3.0, 12.0)
AWAY_S = (0.2, 2.0)


class OperatorFault(Exception):
    """A command did not end as it has to, or a state did not come."""


class OperatedNetwork:
    """Members in folders of one folder. Every member has its own copy of the network file, as on a machine of its own, unless
    the network `has_one_file`.

    `sources`: folder of the sources that commands and nodes run. `one_away` is held while a node is away on purpose, so
    that never two are.
    """

    def __init__(self, folder: Path, sources: Path = SOURCES, *, has_one_file: bool = False) -> None:
        self.use(sources)
        self.one_away = Lock()
        self.at_work: set[str] = set()
        """Members whose nodes have to be ready: those of the present set, and the full node."""
        self.folder = folder
        self._ports = iter(free_ports(16))
        self._has_one_file = has_one_file
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self.members: list[str] = []
        self.genesis = ""

    @property
    def _environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "PYTHONPATH": str(self.sources)}

    # Commands

    def command(self, *arguments: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command; `OperatorFault` if it ends with another code than this, None for any."""
        done = subprocess.run(
            [*COMMAND, *(str(one) for one in arguments)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=2 * WITHIN_S,
            check=False,
        )
        if code is not None and done.returncode != code:
            words = " ".join(str(one) for one in arguments)
            raise OperatorFault(f"{words} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def use(self, sources: Path) -> None:
        """Let commands and the nodes that are started from now on run these sources."""
        self.sources = sources
        self._knows_genesis = sources == SOURCES

    def free_address(self) -> str:
        return f"127.0.0.1:{next(self._ports)}"

    def join(self, name: str) -> Path:
        """Let an operator make a member; return its card."""
        kind = ("--full-node",) if name == FULL_NODE else ()
        self.command("network", "join", name, "--name", name, "--address", self.free_address(), *kind)
        self.members.append(name)
        return self.folder / name / "member.json"

    def found(self, *names: str) -> None:
        cards = [self.join(name) for name in (*names, FULL_NODE)]
        self.command(
            *("network", "init"),
            *cards,
            *("--name", "operators", "--out", "network.json", "--session-lifetime", "10s"),
        )
        self.genesis = self.shown_genesis()
        for name in self.members:
            self.give_network_file(name, "network.json")

    def give_network_file(self, name: str, source: str) -> None:
        shutil.copy(self.folder / source, self.network_file(name))
        self.command("network", "join", name, "--network", self.network_file(name), "--genesis", self.genesis)

    def network_file(self, name: str) -> Path:
        return self.folder / "network.json" if self._has_one_file else self.folder / name / "network.json"

    def data(self, name: str) -> Path:
        return self.folder / name / "data"

    # Processes

    def start(self, name: str, *options: str) -> None:
        role = "full" if name.startswith(FULL_NODE) else "validator"
        own = ("--key", self.folder / name / "member.skey", "--genesis", self.genesis)
        self._options[name] = options
        self.spawn(
            *(name, "node", role, "--network", self.network_file(name), "--data", self.data(name)),
            *own[: None if self._knows_genesis else 2],
            *options,
        )

    def spawn(self, name: str, *arguments: str | Path) -> None:
        """Start the node of a member with these words of a command line."""
        with (self.folder / name / LOG).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*COMMAND, *(str(one) for one in arguments)],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def restart(self, name: str, *options: str) -> None:
        """Stop a node, start it with these options, and wait until it is ready: nobody else is away meanwhile."""
        with self.one_away:
            self.stop(name)
            self.start(name, *options)
            self.until(f"{name} is ready", lambda: self.is_ready(name))

    def kill_for_a_moment(self, name: str, away_s: float) -> None:
        """Kill a node and start it again as it was; the caller holds `one_away`."""
        options = self._options[name]
        self.kill(name)
        time.sleep(away_s)
        self.start(name, *options)
        self.until(f"{name} is back", lambda: name not in self.at_work or self.is_ready(name))

    def is_ready(self, name: str) -> bool:
        """Return whether the node's /readyz says 200."""
        try:
            note = find_remp_node(self.data(name))
            if note is None or note.pid != self._running[name].pid:
                return False
            with urllib.request.urlopen(f"http://127.0.0.1:{note.metrics_port}/readyz", timeout=5.0):
                return True
        except (StagepostError, urllib.error.URLError, OSError):
            return False

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
        for name, process in list(self._running.items()):
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

    def shown_genesis(self) -> str:
        """Return the hash of the genesis in the network file that was founded."""
        made = self.command("network", "show", "--network", "network.json", "--json")
        return str(json.loads(made.stdout)["genesis"])

    def shards(self) -> int:
        """Return the number of shards by the chain of the full node."""
        return len(read_ledger(self.data(FULL_NODE) / CHAIN_FOLDER).master.shards)

    def in_set(self, name: str) -> set[str]:
        return {one["name"] for one in self.shown(name).get("members", []) if one["in_set"]}

    def execute(self, number: int) -> str:
        """Submit a message, wait for the proof of its execution and check it from the genesis; return the message's id. Nobody
        is away meanwhile.
        """
        with self.one_away:
            return self._execute(number)

    def _execute(self, number: int) -> str:
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

    def strange_lines(self) -> list[str]:
        """Return the lines of the logs that no honest network writes: contradictions, halts, tracebacks."""
        found = []
        for log in sorted(self.folder.glob(f"*/{LOG}")):
            for line in log.read_text(errors="replace").splitlines():
                if any(one in line for one in STRANGE):
                    found.append(f"{log.parent.name}: {line[:500]}")
        complaints = self.data(FULL_NODE) / "complaints.jsonl"
        if complaints.exists():
            members = load_network(self.network_file(FULL_NODE)).members
            names = {key_id(one.key).hex(): one.name for one in members}
            said = Counter(
                f"complaint: {one['kind']} of {names.get(one['source_id'], one['source_id'])}"
                for one in map(json.loads, complaints.read_text().splitlines())
            )
            found += [f"{text}, {count} times" for text, count in said.items()]
        return found

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
def operated(
    folder: Path, sources: Path = SOURCES, *, has_one_file: bool = False
) -> Iterator[OperatedNetwork]:
    network = OperatedNetwork(folder, sources, has_one_file=has_one_file)
    try:
        yield network
    finally:
        network.close()


class RandomKills:
    """Killer of one node at a time, validators and the full node, at random moments, in a thread of its own."""

    def __init__(self, network: OperatedNetwork, random: Random) -> None:
        self.killed: Counter[str] = Counter()
        self.faults: list[str] = []
        self._network = network
        self._random = random
        self._over = Event()
        self._thread = Thread(target=self._kill, name="kills")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _kill(self) -> None:
        while not self._over.wait(self._random.uniform(*KILL_EVERY_S)):
            with self._network.one_away:
                name = self._random.choice(sorted(self._network.at_work))
                self.killed["full node" if name == FULL_NODE else "validator"] += 1
                try:
                    self._network.kill_for_a_moment(name, self._random.uniform(*AWAY_S))
                except OperatorFault as fault:
                    self.faults.append(str(fault))
                    return


class ChangeStory:
    """Life of a network of four while messages flow: changes of its set, of its shards and of its release."""

    def __init__(self, network: OperatedNetwork, random: Random) -> None:
        self.network = network
        self.random = random
        self.present: set[str] = set()

    def found(self) -> None:
        network = self.network
        network.found(*(f"validator-{number}" for number in range(1, 5)))
        for name in network.members:
            network.start(name)
        self.present = {*network.members} - {FULL_NODE}
        network.at_work = {*network.members}
        for name in network.members:
            network.until(f"{name} is ready", lambda name=name: network.is_ready(name))  # type: ignore[misc]
        network.execute(100)

    def add(self, *names: str) -> None:
        """Add validators: nobody votes for members that it cannot reach, two approvals of four are not enough, three are."""
        network = self.network
        cards = [one for name in names for one in ("--add", network.join(name))]
        proposal = network.propose("validator-1", *cards)
        refused = network.approve(proposal, "validator-1", code=2)
        if f"{names[0]} is not in the network file" not in refused.stderr:
            raise OperatorFault(f"a validator may vote for a member that it cannot reach: {refused.stderr}")
        network.take_members(proposal)
        approving = self.random.sample(sorted(self.present), 3)
        for name in approving[:2]:
            network.approve(proposal, name)
        network.execute(200)
        if network.in_set(FULL_NODE) != self.present:
            raise OperatorFault("two approvals of four changed the set")
        network.approve(proposal, approving[2])
        self._comes(self.present | set(names))

    def replace(self, old: str, new: str) -> None:
        """Let another key and address take the place of a validator."""
        network = self.network
        proposal = network.propose("validator-3", "--replace", f"{old}={network.join(new)}")
        network.take_members(proposal)
        self._approve(proposal)
        self._comes(self.present - {old} | {new})
        self._leaves(old)

    def remove(self, *names: str) -> None:
        proposal = self.network.propose("validator-4", *(one for name in names for one in ("--remove", name)))
        self._approve(proposal)
        self._comes(self.present - set(names))
        for name in names:
            self._leaves(name)

    def reshard(self, shards: int) -> None:
        """Restart one validator after the other with another wish; then there are as many shards."""
        for name in sorted(self.present):
            self.network.restart(name, "--shards", str(shards))
        self.network.until(f"{shards} shards", lambda: self.network.shards() == shards)

    def upgrade(self) -> None:
        """Restart one node after the other with the present sources, the full node last. Upgraded nodes speak plainly with
        the others, as docs/operations.md says, for earlier releases do not encrypt.
        """
        network = self.network
        network.use(SOURCES)
        for name in (*sorted(self.present), FULL_NODE):
            network.restart(name, "--link-encryption", "preferred")

    def _approve(self, proposal: Path) -> None:
        needed = len(self.present) * 2 // 3 + 1
        for name in self.random.sample(sorted(self.present), needed):
            self.network.approve(proposal, name)

    def _comes(self, wanted: set[str]) -> None:
        network = self.network
        network.until(f"the set is {sorted(wanted)}", lambda: network.in_set(FULL_NODE) == wanted)
        self.present = wanted
        network.at_work = {*wanted, FULL_NODE}

    def _leaves(self, name: str) -> None:
        with self.network.one_away:
            self.network.kill(name)
            self.network.members.remove(name)


def play_changes(seed: int, folder: Path, earlier: Path | None = None) -> tuple[list[str], str]:
    """Play the whole story; return what went wrong, nothing if all went well, and what was done. `earlier`: sources of an
    earlier revision, with which the network is founded.
    """
    random = Random(seed)
    with operated(folder, earlier or SOURCES) as network:
        stream = MessageStream(
            network.data(FULL_NODE), folder / "network.json", b"changes %d" % seed, MESSAGES_PER_S
        )
        kills = RandomKills(network, Random(f"kills {seed}"))
        story = ChangeStory(network, random)
        try:
            story.found()
            stream.start()
            if earlier is not None:
                story.upgrade()
            kills.start()
            story.add("validator-5", "validator-6", "validator-7")
            story.replace("validator-2", "validator-2b")
            story.reshard(2)
            story.remove("validator-1", "validator-3")
            story.reshard(1)
            kills.stop()
            network.execute(300)
            faults = [*kills.faults, *stream.ends(), *network.strange_lines()]
        except OperatorFault as fault:
            faults = [str(fault), *kills.faults]
        finally:
            kills.stop()
            stream.stop()
        pace = stream.switch_pace(folder / FULL_NODE / LOG)
        said = f"{len(stream.sent)} messages, {stream.again} submitted again, {kills.killed.total()} kills {dict(kills.killed)}, {pace}"
        return [f"seed {seed}: {fault}" for fault in faults], said


def main(seed: str, earlier: str | None = None) -> None:
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="stagepost-"))
    faults, said = play_changes(int(seed), folder, None if earlier is None else Path(earlier))
    print(f"seed {seed}: {said}, {time.monotonic() - began:.0f} s, {len(faults)} faults")
    for fault in faults:
        print(fault)
    if faults:
        print(f"the files are in {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
