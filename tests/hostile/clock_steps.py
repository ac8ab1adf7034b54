"""S4 and S5 on real nodes, whose clocks are set while they run: no replay comes back, no honest message is refused."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stagepost.dmq.conform.attacker import LOCAL_SUBMISSION, OTHER_SIDE, Attacker
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message
from tests.hostile.bad_disks import listed
from tests.hostile.faketime import FakeClock
from tests.hostile.storms import Figure
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT
from tests.worlds.dmq.node_processes import ending

STEPS_BACK_S = (600, 86_400)
SKEWS_S = (0, 1, -1, 5, -5, 30, -30, 3_600, -3_600)
SKEW_ALLOWED_S = 5
STARTS_WITH_CLOCK_BEHIND_S = 3_600
SHORT_LIFE_S = 60
LONG_LIFE_S = 1_500
DAY_S = 86_400
FORWARD_S = 120
"""Far enough for the short-lived to expire, not for the others."""
EXPIRED = [2, [2]]
HELD = [2, [1]]
SWEPT_WITHIN_S = 60.0
ARRIVES_WITHIN_S = 60.0


# S4


def stepping(back_s: int, messages: int, *, waits_for_sweep: bool) -> tuple[Figure, list[str]]:
    """Messages expire, then the clock is set back to when they were good: by a running node, and across a restart."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        clock = FakeClock(Path(name) / "clock")
        pool = Forger()
        stakes = write_stakes(Path(name) / "pools.json", [(pool, 1)])
        victim = Victim(Path(name) / "node", stakes, environment=clock.environment)
        with ending([victim]):
            victim.start()
            short = [message(pool, lives_s=SHORT_LIFE_S) for _ in range(messages)]
            long = [message(pool, lives_s=LONG_LIFE_S) for _ in range(messages)]
            faults += _odd(victim, short + long, [1], "a good message")
            clock.step(FORWARD_S)
            if waits_for_sweep:
                asyncio.run(_wait_for_sweep(victim, messages))
            else:
                victim.terminate()
                victim.start()
            clock.step(-back_s)
            faults += _odd(victim, short, EXPIRED, f"a replay with the clock {back_s} s back")
            faults += _odd(victim, long, HELD, f"a replay with the clock {back_s} s back")
            faults += _odd(victim, [message(pool)], [1], "a good message while the clock stands still")
            victim.terminate()
            if back_s > STARTS_WITH_CLOCK_BEHIND_S:
                faults += _refuses_to_start(victim)
                clock.set(FORWARD_S - STARTS_WITH_CLOCK_BEHIND_S // 2)
            victim.start()
            faults += _odd(victim, short, EXPIRED, "a replay after a restart with the clock back")
            faults += _odd(victim, long, HELD, "a replay after a restart with the clock back")
            victim.terminate()
            faults += [f"the node logged {line}" for line in victim.faults_of_its_own()[:3]]
    figure: Figure = {
        "promise": "S4",
        "target": f"live clock step of -{back_s} s",
        "replays": 4 * messages,
        "replays_accepted": sum("replay" in fault for fault in faults),
        "failures": len(faults),
    }
    return figure, faults


def _odd(victim: Victim, sent: Sequence[ForgedMessage], expected: object, what: str) -> list[str]:
    """One text for all messages that were answered otherwise."""
    answers = asyncio.run(_submitted(victim, sent))
    others = [answer for answer in answers if answer != expected]
    return [f"{len(others)} times {what} was answered with {others[0]!r}"] if others else []


async def _submitted(victim: Victim, sent: Sequence[ForgedMessage]) -> list[Any]:
    program = await Attacker.local(victim.target)
    await program.shake_hands_locally()
    answers: list[Any] = []
    for one in sent:
        await program.say(LOCAL_SUBMISSION, array(uint(0), one.raw))
        answers.append(await program.hear(LOCAL_SUBMISSION | OTHER_SIDE))
    await program.leave()
    return answers


async def _wait_for_sweep(victim: Victim, left: int) -> None:
    async with asyncio.timeout(SWEPT_WITHIN_S):
        while (await victim.status())["mempool"]["messages"] != left:
            await asyncio.sleep(0.2)


def _refuses_to_start(victim: Victim) -> list[str]:
    """A clock more than an hour behind the stored time: an operator must decide."""
    try:
        victim.start()
    except AssertionError:
        named = "unsafe-accept-stored-time" in victim.log and "ahead of this machine's clock" in victim.log
        (victim.folder / "log").write_text("")
        victim._log_offset = 0
        return [] if named else ["the node did not say why it refused its clock"]
    return ["the node started with a clock more than an hour behind its stored time"]


def day_ahead(messages: int) -> tuple[Figure, list[str]]:
    """A clock goes a day ahead under a running node, which accepts messages by it, and comes back: nothing is lost by that.
    Then a node starts with such a clock: the way back is a command, and lets no replay in."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        clock = FakeClock(Path(name) / "clock")
        pool = Forger()
        stakes = write_stakes(Path(name) / "pools.json", [(pool, 1)])
        victim = Victim(Path(name) / "node", stakes, environment=clock.environment)
        with ending([victim]):
            victim.start()
            held = [message(pool, lives_s=LONG_LIFE_S) for _ in range(messages)]
            faults += _odd(victim, held, [1], "a good message")
            clock.step(DAY_S)
            early = [message(pool, lives_s=DAY_S + SHORT_LIFE_S) for _ in range(messages)]
            faults += _odd(victim, early, [1], "a message of the wrong day")
            if "went ahead" not in str(asyncio.run(victim.status())["parts"]["clock"]):
                faults.append("no alert while the clock is a day ahead")
            clock.step(-DAY_S)
            faults += _odd(victim, held + early, HELD, "a replay with the clock right again")
            honest = [message(pool, lives_s=LONG_LIFE_S) for _ in range(messages)]
            faults += _odd(victim, honest, [1], "a good message with the clock right again")
            victim.terminate()
            victim.start()
            faults += _odd(victim, held + early + honest, HELD, "a replay after a restart")
            victim.terminate()

            clock.step(DAY_S)
            victim.start()
            late = [message(pool, lives_s=DAY_S + SHORT_LIFE_S) for _ in range(messages)]
            faults += _odd(victim, late, [1], "a message to a node that starts with a wrong clock")
            victim.terminate()
            clock.step(-DAY_S)
            faults += _refuses_to_start(victim)
            command = [*COMMAND, "node", "clock", "--data", str(victim.folder), "--recover"]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
            if done.returncode or "ahead of this machine's clock" not in done.stdout:
                faults.append(f"the command ended with {done.returncode}: {done.stdout}{done.stderr}")
            victim.start()
            again = asyncio.run(_submitted(victim, held + early + honest + late))
            if accepted := again.count([1]):
                faults.append(f"{accepted} replays were accepted after the recovery")
            faults += _taken_soon(victim, pool)
            victim.terminate()
            faults += [f"the node logged {line}" for line in victim.faults_of_its_own()[:3]]
    figure: Figure = {
        "promise": "S4",
        "target": "live clock a day ahead, and back",
        "replays": 8 * messages,
        "replays_accepted": sum("replay" in fault for fault in faults),
        "failures": len(faults),
    }
    return figure, faults


def _taken_soon(victim: Victim, pool: Forger) -> list[str]:
    """After the recovery, messages with the longest life are taken within seconds."""
    until = time.monotonic() + ARRIVES_WITHIN_S
    while time.monotonic() < until:
        if asyncio.run(_submitted(victim, [message(pool, lives_s=1_799)])) == [[1]]:
            return []
        time.sleep(1.0)
    return ["no message is taken after the recovery"]


# S5


def skewed(skew_s: int) -> tuple[Figure, list[str]]:
    """Programs keep the true time, one node has it too, and another one, which is its peer, does not."""
    faults: list[str] = []
    with _two_nodes(skew_s) as (right, wrong, pool):
        lives = {"long": 1_799, "short": 20}
        sent = {life: message(pool, lives_s=seconds) for life, seconds in lives.items()}
        answers = dict(zip(sent, asyncio.run(_submitted(wrong, list(sent.values()))), strict=True))
        if abs(skew_s) <= SKEW_ALLOWED_S:
            faults += [f"{life}: answered with {got!r}" for life, got in answers.items() if got != [1]]
            told = [message(pool, lives_s=seconds) for seconds in lives.values()]
            faults += _odd(right, told, [1], "a good message")
            asyncio.run(_arrive(wrong, {one.identifier for one in told}, faults))
        else:
            faults += _unnamed(skew_s, answers)
        for node in (right, wrong):
            node.terminate()
            faults += [f"the node logged {line}" for line in node.faults_of_its_own()[:3]]
    wrongly = len(faults) if abs(skew_s) <= SKEW_ALLOWED_S else 0
    figure: Figure = {
        "promise": "S5",
        "target": f"live skew of {skew_s:+d} s",
        "messages": 4 if abs(skew_s) <= SKEW_ALLOWED_S else 2,
        "skew_s": skew_s,
        "wrong_rejections": wrongly,
        "failures": len(faults),
    }
    return figure, faults


def _unnamed(skew_s: int, answers: dict[str, Any]) -> list[str]:
    """A clock ahead sees short lives as over, one behind sees long ones as too far away; both are said."""
    if skew_s > 0:
        answer = answers["short"]
        return [] if answer == EXPIRED else [f"the short-lived was answered with {answer!r}"]
    match answers["long"]:
        case [2, [_, str(text)]] if (
            text.startswith("MSG_EXPIRY_TOO_FAR: ") and "clocks may differ by 5 s" in text
        ):
            return []
        case answer:
            return [f"the long-lived was answered with {answer!r}"]


@contextmanager
def _two_nodes(skew_s: int) -> Iterator[tuple[Victim, Victim, Forger]]:
    with tempfile.TemporaryDirectory() as name:
        folder, pool = Path(name), Forger()
        stakes = write_stakes(folder / "pools.json", [(pool, 1)])
        clock = FakeClock(folder / "clock", skew_s)
        right = Victim(folder / "right", stakes)
        wrong = Victim(folder / "wrong", stakes, environment=clock.environment)
        with ending([right, wrong]):
            right.start()
            wrong.peers = [(right.port, "dmq-node")]
            wrong.start()
            yield right, wrong, pool


async def _arrive(node: Victim, wanted: set[bytes], faults: list[str]) -> None:
    until = time.monotonic() + ARRIVES_WITHIN_S
    while not wanted <= set(await listed(node)):
        if time.monotonic() > until:
            faults.append("what one node accepted did not reach the node with the other clock")
            return
        await asyncio.sleep(0.1)
