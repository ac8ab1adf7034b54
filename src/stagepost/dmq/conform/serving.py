"""Wait for a node or a program under test: it connects, proposes, asks, and gets answers that try it.

Nodes dial one address for each case, because a node stays away for a while from an address that broke a rule. Programs
connect to one socket again and again, and each connection is the next case that fits the words of the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    LOCAL_SUBMISSION,
    NOTIFICATION,
    OTHER_SIDE,
    PATIENCE_S,
    SEED_LOCAL_SUBMISSION,
    SEED_NOTIFICATION,
    Attacker,
    NodeClosed,
    NodeTarget,
    UnexpectedAnswer,
)
from stagepost.dmq.conform.bad_answers import BAD_ANSWERS, BadAnswer, BadPeer
from stagepost.dmq.conform.playbook import Case, CaseStage, MustEnd, MustGoOn, Start
from stagepost.dmq.conform.report import ConformReport
from stagepost.dmq.conform.runner import CaseResult
from stagepost.dmq.conform.served_answers import SERVED_ANSWERS, ServedAnswer, accepted
from stagepost.errors import ConfigError, StorageError

WAIT_S = 60.0
"""Seconds without a new case after which nobody is expected any more."""
PORT_MAX = 65_535
SPOKEN_WITHIN_S = 2 * PATIENCE_S + 1.0
"""Seconds for which a node that has connected is given for its proposal and its first word behind it."""
STAYS_S = 1.0
"""Seconds for which a program that may go on has to stay, unless it says its next word before."""
_LANES = {
    LOCAL_SUBMISSION: LOCAL_SUBMISSION,
    SEED_LOCAL_SUBMISSION: LOCAL_SUBMISSION,
    NOTIFICATION: NOTIFICATION,
    SEED_NOTIFICATION: NOTIFICATION,
}
"""Numbers of the first word of a program, with the mini-protocol that they stand for."""
_SUBMITS, _ASKS = "the client submitted no message", "the client asked for no messages"


@dataclass(frozen=True)
class ServeOptions:
    only: tuple[str, ...] = ()
    wait_s: float = WAIT_S
    grace_s: float = 3.0


async def _nothing(stage: CaseStage) -> None:
    """No case of a client is played by the runner."""


def case_of(answer: BadAnswer | ServedAnswer) -> Case:
    """Return the name, rule and time limit of `answer` as a case of the report."""
    if isinstance(answer, BadAnswer):
        return Case(f"peer {answer.name}", answer.rule, Start.NODE_BARE, _nothing, MustEnd(), answer.within_s)
    must = MustGoOn() if answer.goes_on else MustEnd()
    return Case(f"node {answer.name}", answer.rule, Start.LOCAL_BARE, _nothing, must, answer.within_s)


_ANSWERS: tuple[BadAnswer | ServedAnswer, ...] = (*BAD_ANSWERS, *SERVED_ANSWERS)
CLIENT_CASES = tuple(case_of(answer) for answer in _ANSWERS)


async def try_client(
    target: NodeTarget,
    options: ServeOptions,
    say: Callable[[str], None],
    report: Callable[[CaseResult], None] = lambda _: None,
    topology: Path | None = None,
) -> ConformReport:
    """Listen at `target`, and judge everybody who connects there until each case was played, or nobody comes."""
    began = time.monotonic()
    chosen, left_out = _chosen(options.only)
    places: list[str] = []
    tries: list[Coroutine[Any, Any, list[CaseResult]]] = []
    if target.port is not None:
        peers = [one for one in chosen if isinstance(one, BadAnswer)]
        tries.append(_try_peer(target, peers, options, say, report, topology, places))
    if target.socket is not None:
        programs = [one for one in chosen if isinstance(one, ServedAnswer)]
        tries.append(_try_program(target, programs, options, say, report))
    tasks = [asyncio.create_task(one) for one in tries]
    try:
        results = [one for found in await asyncio.gather(*tasks) for one in found]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if target.socket is not None:
        places.append(str(target.socket))
    for answer, reason in (
        (BadAnswer, "" if target.port is not None else "no address was given"),
        (ServedAnswer, "" if target.socket is not None else "no local socket was given"),
    ):
        if reason:
            left_out[reason] += sum(isinstance(one, answer) for one in chosen)
    seconds = time.monotonic() - began
    notes = ["the kit listened, and the client under test connected"]
    return ConformReport(
        " and ".join(places), target.magic, "auto", notes, results, left_out, seconds=seconds
    )


def _chosen(only: Sequence[str]) -> tuple[list[BadAnswer | ServedAnswer], Counter[str]]:
    chosen = [
        one
        for one in _ANSWERS
        if not only or any(fnmatch(name, each) for each in only for name in (case_of(one).name, one.rule))
    ]
    return chosen, Counter({"not among --only": len(_ANSWERS) - len(chosen)} if only else {})


# Nodes


async def _try_peer(
    target: NodeTarget,
    answers: Sequence[BadAnswer],
    options: ServeOptions,
    say: Callable[[str], None],
    report: Callable[[CaseResult], None],
    topology: Path | None,
    places: list[str],
) -> list[CaseResult]:
    last = target.port + len(answers) - 1 if target.port else 0
    if last > PORT_MAX:
        raise ConfigError(
            f"{target.address} and the next ports do not suffice: {len(answers)} cases want one each, up to {PORT_MAX}",
            advice=f"give a port up to {PORT_MAX + 1 - len(answers)}, or port 0 for free ones",
        )
    peers = [BadPeer(one, target.magic, target.host) for one in answers]
    try:
        for number, peer in enumerate(peers):
            await peer.start(target.port + number if target.port else 0)
        ports = [peer.port for peer in peers]
        if ports:
            first = replace(target, port=ports[0]).address
            places.append(
                first if len(ports) == 1 else f"{first} to {max(ports)}" if target.port else f"{first} …"
            )
        if topology is not None:
            _write_topology(topology, target.host, ports)
        listed = f", or the topology file {topology}" if topology is not None else ""
        say(
            f"listening on {target.host}, ports {', '.join(map(str, ports))}: give the node these peers{listed}"
        )
        return list(await asyncio.gather(*(_peer_result(peer, options, report) for peer in peers)))
    finally:
        for peer in peers:
            await peer.stop()


async def _peer_result(
    peer: BadPeer, options: ServeOptions, report: Callable[[CaseResult], None]
) -> CaseResult:
    result = CaseResult(case_of(peer.bad))
    with suppress(TimeoutError):
        await asyncio.wait_for(peer.was_dialled.wait(), options.wait_s)
    if peer.transcript is not None:
        with suppress(TimeoutError):
            await asyncio.wait_for(peer.was_dialled.wait(), SPOKEN_WITHIN_S)
    if peer.transcript is None:
        result.not_looked = f"nobody connected within {options.wait_s:g} s"
    else:
        within_s = peer.bad.within_s + options.grace_s
        with suppress(TimeoutError):
            await asyncio.wait_for(peer.was_closed.wait(), within_s)
        result.transcript = peer.transcript
        result.closed_after_s = peer.closed_after_s
        if peer.not_reached:
            result.not_looked = peer.not_reached
        elif not peer.was_dialled.is_set():
            result.not_looked = "the node connected, and said nothing that the case could answer"
        elif peer.closed_after_s is None:
            result.faults.append(f"the node did not close within {within_s:g} s")
    report(result)
    return result


def _write_topology(path: Path, host: str, ports: Sequence[int]) -> None:
    points = [{"address": host, "port": port} for port in ports]
    group = {"accessPoints": points, "advertise": False, "valency": len(points), "warmValency": len(points)}
    try:
        path.write_text(json.dumps({"localRoots": [group], "publicRoots": []}, indent=1))
    except OSError as error:
        raise StorageError(f"could not write {path}: {error.strerror}") from error


# Programs


async def _try_program(
    target: NodeTarget,
    answers: Sequence[ServedAnswer],
    options: ServeOptions,
    say: Callable[[str], None],
    report: Callable[[CaseResult], None],
) -> list[CaseResult]:
    program = _ProgramUnderTest(target, answers, options, report)
    socket = str(target.socket)
    if os.path.lexists(socket):
        raise StorageError(
            f"{socket} exists already", advice="give the path of a socket that the kit can make"
        )
    server = await asyncio.start_unix_server(program.serve, socket)
    say(
        f"listening on {socket}: let the program submit messages, ask for messages, and connect again and again"
    )
    try:
        await program.wait()
    finally:
        server.close()
        with suppress(OSError):
            os.unlink(socket)
    return program.finish()


class _ProgramUnderTest:
    """All connections of a program; `serve` plays the next case on each."""

    def __init__(
        self,
        target: NodeTarget,
        answers: Iterable[ServedAnswer],
        options: ServeOptions,
        report: Callable[[CaseResult], None],
    ) -> None:
        self._target = target
        self._left = list(answers)
        self._options = options
        self._report = report
        self._results: dict[str, CaseResult] = {}
        self._order = [case_of(one) for one in self._left]
        self._heard: set[int] = set()
        self._news = asyncio.Event()
        self._open: set[asyncio.Task[Any]] = set()
        self._under_way = 0

    async def wait(self) -> None:
        """Return when every case was played, or no case has begun for a while."""
        while len(self._results) < len(self._order):
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), self._options.wait_s)
            except TimeoutError:
                if not self._under_way:
                    break
        for one in self._open:
            one.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def finish(self) -> list[CaseResult]:
        for one in self._left:
            result = CaseResult(case_of(one))
            reason = _SUBMITS if one.lane == LOCAL_SUBMISSION else _ASKS
            is_known = one.lane == HANDSHAKE or one.lane in self._heard
            result.not_looked = (
                "the client did not connect as often as there are cases" if is_known else reason
            )
            self._results[result.case.name] = result
            self._report(result)
        return [self._results[case.name] for case in self._order if case.name in self._results]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        client = Attacker(self._target, reader, writer)
        try:
            await self._play(client)
        except (NodeClosed, UnexpectedAnswer, TimeoutError, OSError):
            pass  # the program left before its case began
        except (TypeError, ValueError, OverflowError, struct.error):
            pass  # it proposed versions that are no numbers, so that no case can begin
        except asyncio.CancelledError:
            pass  # the kit stops; the server would take it for a fault, and say so
        finally:
            await client.leave()
            self._open.discard(task)

    async def _play(self, client: Attacker) -> None:
        proposed = await client.hear(HANDSHAKE)
        answer = next((one for one in self._left if one.lane == HANDSHAKE), None)
        if answer is not None:
            await self._judge(client, answer, HANDSHAKE, proposed)
            return
        await client.say(HANDSHAKE | OTHER_SIDE, accepted(self._target.magic, proposed))
        number, heard = await client.hear_first(*_LANES)
        self._heard.add(_LANES[number])
        answer = next((one for one in self._left if one.lane == _LANES[number]), None)
        if answer is not None:
            await self._judge(client, answer, number, heard)

    async def _judge(self, client: Attacker, answer: ServedAnswer, number: int, heard: Any) -> None:
        said = answer.item(self._target.magic, heard)
        self._left.remove(answer)
        self._under_way += 1
        self._news.set()
        result = CaseResult(case_of(answer), transcript=client.transcript)
        began = time.monotonic()
        if answer.is_raw:
            await client.raw(said)
        elif said:
            await client.say(number | OTHER_SIDE, said)
        if answer.goes_on:
            await self._judge_life(client, result, number)
        else:
            within_s = answer.within_s + self._options.grace_s
            ended_after_s = await client.wait_ended(within_s)
            result.check(ended_after_s is not None, f"the client did not close within {within_s:g} s")
        result.seconds = time.monotonic() - began
        result.closed_after_s = client.ended_after_s
        self._results[result.case.name] = result
        self._under_way -= 1
        self._news.set()
        self._report(result)

    async def _judge_life(self, client: Attacker, result: CaseResult, number: int) -> None:
        """Check that the client says a next word, or stays."""
        try:
            await client.hear(number, STAYS_S)
        except TimeoutError:
            return
        except NodeClosed:
            result.faults.append("the client closed without saying Done")
        except UnexpectedAnswer as fault:
            result.faults.append(str(fault))
