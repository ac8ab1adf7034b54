"""Stories of ends with real processes and public commands: validators are killed with SIGKILL and started again, messages
expire meanwhile or are wrapped anew. A story returns what went wrong, nothing if all went well.

    python -m tests.worlds.devnet.end_stories killed 7
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.master_blocks import AppliedMaster
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.store import open_chain_store
from stagepost.chain.snapshots import restored
from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.full_node.network import NETWORK_FILE, load_network
from stagepost.full_node.running import CHAIN_FOLDER
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT

VALIDATORS = 4
KILLED = 2
NOT_KNOWN_WITHIN = "4s"
WITHIN_S = 300.0
LONG_LIFE_S = 900
"""Seconds from the making of a message to its expiry, where it must not expire, however busy the machine is."""

LIFE_S, LIFE_COMMANDS = 30, 3
"""Seconds from the making of a message to its expiry, where it has to expire, beside those of so many commands: a busy
machine takes its time to submit it."""


class StoryFault(Exception):
    """A step of a story did not end as it has to."""


class StoryNetwork:
    """A devnet of processes, and the commands that a user types beside it."""

    def __init__(self, network: Devnet, data: Path, random: Random) -> None:
        self.network = network
        self.data = data
        self.random = random
        self._command_s = 0.0
        self._account = random.randbytes(31) + bytes([ContractKind.SUM_OF_PRIMES])

    def message(self, name: str, *, life_s: int = LONG_LIFE_S, salt: int = 0) -> Path:
        """Write a message to a file of its own, and return the file."""
        body = primes_body(self.random.randrange(50, 5_000))
        return self.wrapped(name, body, int(time.time()) + life_s, salt)

    def wrapped(self, name: str, body: bytes, expires_at_s: int, salt: int) -> Path:
        path = self.data.parent / f"{name}.bin"
        path.write_bytes(CanonicalMessage(self._account, body, expires_at_s, salt).encode())
        return path

    @property
    def short_life_s(self) -> int:
        return LIFE_S + int(LIFE_COMMANDS * self._command_s)

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        began = time.monotonic()
        done = await asyncio.to_thread(
            subprocess.run,
            [*COMMAND, *arguments],
            cwd=self.data.parent,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=2 * WITHIN_S,
            check=False,
        )
        self._command_s = time.monotonic() - began
        return done

    async def submit(self, path: Path, timeout: str = f"{WITHIN_S:g}s") -> subprocess.CompletedProcess[str]:
        options = ("--wait", "final", "--timeout", timeout, "--data", str(self.data))
        return await self.command("submit", str(path), *options)

    async def pause(self, up_to_s: float) -> None:
        await asyncio.sleep(self.random.uniform(0.0, up_to_s))

    async def kill_two(self) -> list[Any]:
        """Kill as many validators as make a quorum impossible, in the midst of the work on other messages."""
        await self.command("submit", str(self.message("before")), "--data", str(self.data))
        await self.pause(0.4)
        killed = self.random.sample(list(self.network.validators), KILLED)
        for one in killed:
            await one.kill()
        return killed

    async def start_again(self, killed: list[Any]) -> None:
        for one in killed:
            await self.pause(1.0)
            await one.start()

    async def proved(self, path: Path) -> dict[str, Any]:
        """Ask for the proof until there is one; return what both verifiers say of it, which must be the same."""
        identifier, out = id_of(path), path.with_suffix(".proof.json")
        ends = time.monotonic() + WITHIN_S
        while (
            asked := await self.command("prove", identifier, "--data", str(self.data), "--out", str(out))
        ).returncode:
            require(asked.returncode == 4, f"prove ends with {asked.returncode}: {asked.stderr}")
            require(time.monotonic() < ends, f"no proof of {path.stem} within {WITHIN_S:g} s")
            await asyncio.sleep(0.5)
        genesis = ("--genesis", str(self.data / NETWORK_FILE))
        checked = await self.command("verify", str(out), *genesis, "--json")
        require(checked.returncode == 0, f"verify refuses the proof: {checked.stdout}{checked.stderr}")
        second = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(ROOT / "examples" / "verify_proof.py"), str(out), *genesis],
            capture_output=True,
            text=True,
            check=False,
        )
        require(
            second.returncode == 0, f"the second verifier refuses the proof: {second.stdout}{second.stderr}"
        )
        found: dict[str, Any] = json.loads(checked.stdout)
        require(found["id"] == identifier, f"the proof is of {found['id']}")
        return found


def id_of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def require(holds: bool, text: str) -> None:
    if not holds:
        raise StoryFault(text)


def require_unknown(asked: subprocess.CompletedProcess[str]) -> None:
    require(asked.returncode == 4, f"submit ends with {asked.returncode}: {asked.stdout}{asked.stderr}")
    require("not known yet" in asked.stderr, f"submit says {asked.stderr}")
    require("do not send it again under another id" in asked.stderr, f"submit says {asked.stderr}")


Expected = dict[str, int]
"""How often each message, by its id, is executed in the whole chain."""


async def killed(story: StoryNetwork) -> Expected:
    """Two validators are killed: the end is not known. They come back: one end, executed, proved."""
    message = story.message("message")
    gone = await story.kill_two()
    require_unknown(await story.submit(message, NOT_KNOWN_WITHIN))
    await story.start_again(gone)
    again = await story.submit(message)
    require(again.returncode == 0, f"submit again ends with {again.returncode}: {again.stdout}{again.stderr}")
    found = await story.proved(message)
    require(found["kind"] == "executed", f"the proof shows {found['kind']}")
    return {id_of(message): 1}


async def expired(story: StoryNetwork) -> Expected:
    """Two validators are killed, and the message expires before they come back: it is proved that it never runs.

    They stay away for longer than `behind_max`. After a shorter outage a leader that lived on may bring a block that it had
    dated before the expiry, and the message ends as executed.
    """
    gone = await story.kill_two()
    message = story.message("message", life_s=story.short_life_s)
    expires_at = CanonicalMessage.decode(message.read_bytes()).expires_at_s
    require_unknown(await story.submit(message, NOT_KNOWN_WITHIN))
    behind_max_s = load_network(story.data / NETWORK_FILE).chain.configuration.behind_max_ms / 1_000
    await asyncio.sleep(max(0.0, expires_at + behind_max_s + story.random.uniform(0.0, 2.0) - time.time()))
    await story.start_again(gone)
    found = await story.proved(message)
    after_ms = found["time_ms"] - expires_at * 1_000
    require(found["kind"] == "never", f"the proof shows {found['kind']}, {after_ms} ms after the expiry")
    again = await story.submit(message)
    require(
        again.returncode == 1, f"the expired bytes end with {again.returncode}: {again.stdout}{again.stderr}"
    )
    after = await story.submit(story.message("after"))
    require(after.returncode == 0, f"a later message ends with {after.returncode}: {after.stderr}")
    require((await story.proved(message))["kind"] == "never", "the proof has changed")
    return {id_of(message): 0}


async def wrapped_anew(story: StoryNetwork) -> Expected:
    """One body under two ids, at nearly the same moment: one is executed, the other one ends as the first."""
    body, expires_at_s = primes_body(story.random.randrange(50, 5_000)), int(time.time()) + LONG_LIFE_S
    paths = [story.wrapped(f"wrapped-{salt}", body, expires_at_s, salt) for salt in (1, 2)]

    async def submitted(path: Path, pause_s: float) -> subprocess.CompletedProcess[str]:
        await asyncio.sleep(pause_s)
        return await story.submit(path)

    pauses = (0.0, story.random.choice((0.0, 0.05, 0.3, 1.5)))
    answers = await asyncio.gather(
        *(submitted(path, pause_s) for path, pause_s in zip(paths, pauses, strict=True))
    )
    codes = sorted(one.returncode for one in answers)
    require(codes == [0, 1], f"the commands end with {codes}: {[one.stderr for one in answers]}")
    ends = {id_of(path): await story.proved(path) for path in paths}
    kinds = {identifier: end["kind"] for identifier, end in ends.items()}
    require(sorted(kinds.values()) == ["executed", "executed_as"], f"the proofs show {kinds}")
    (taken,) = (identifier for identifier, kind in kinds.items() if kind == "executed")
    (other,) = (identifier for identifier, kind in kinds.items() if kind == "executed_as")
    require(
        ends[other]["executed_as"] == taken,
        f"{other} was executed as {ends[other]['executed_as']}, not {taken}",
    )
    return {taken: 1, other: 0}


STORIES: dict[str, Callable[[StoryNetwork], Awaitable[Expected]]] = {
    "killed": killed,
    "expired": expired,
    "wrapped-anew": wrapped_anew,
}


def play(name: str, seed: int, folder: Path) -> list[str]:
    """Play a story in `folder`; return its faults."""
    data = folder / "devnet"
    random = Random(f"{name} {seed}")

    async def run() -> Expected:
        plan = DevnetPlan(validators=VALIDATORS, seed=seed)
        async with devnet(plan, data, one_process=False, full_node_here=False) as network:
            await network.ready(WITHIN_S)
            return await STORIES[name](StoryNetwork(network, data, random))

    try:
        expected = asyncio.run(run())
    except StoryFault as fault:
        return [f"{name}, seed {seed}: {fault}"]
    executed = executions(data)
    return [
        f"{name}, seed {seed}: message {identifier} was executed {executed[identifier]} times, not {count}"
        for identifier, count in expected.items()
        if executed[identifier] != count
    ]


def executions(data: Path) -> Counter[str]:
    """Return how often each message stands in the blocks that the masterchain has committed."""
    genesis = load_network(data / NETWORK_FILE).chain
    store = open_chain_store(data / CHAIN_FOLDER, genesis, keeps_all=True)
    found: Counter[str] = Counter()

    def count(applied: AppliedMaster | None) -> None:
        for blocks in () if applied is None else applied.commits:
            for block in blocks:
                found.update(message_id.hex() for message_id in block.message_ids)

    restored(genesis, store, on_master=lambda kept, applied: count(applied))
    asyncio.run(store.close())
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        faults = play(sys.argv[1], int(sys.argv[2]), Path(place))
    print("\n".join(faults) or "no fault")
    sys.exit(bool(faults))
