"""The same 6,000 messages through gouroboros's verification and through ours: one core each, turn by turn.

gouroboros 0.199 expects two signatures over other bytes than running nodes do (the certificate's over a CBOR array
instead of 48 raw bytes, the KES signature over the payload in a byte string), so each system gets its own file: the same
bodies, keys, periods and sizes, signed as that system wants it. Both decode the message, check its lifetime, hash its id,
check certificate and KES signature, and look up pool and counter.

gouroboros remembers nothing of what it has checked: two Ed25519 checks a message, by Go's own library. Ours is measured
twice: checking everything anew, as gouroboros does, and as a node does it, which remembers certificates and KES paths that
were valid and so makes one Ed25519 check for a message of a known pool, by libsodium.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.whole_path import Reading
from rigs.peer_builds import Unavailable, build_go_program
from stagepost.dmq.message import DmqMessage, sign_message, write_certificate
from stagepost.dmq.validation import (
    KES_EVOLUTIONS_MAX,
    MessageValidator,
    ValidationRules,
    check_expiry,
    check_proof,
)
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import PoolId
from stagepost.ground.wire.cbor import write_array, write_bytes, write_unsigned

MESSAGES = 6_000
ROUNDS = 12
WARM_UP = 200
POOLS = 100
MESSAGE_BYTES = 1_500
KES_PERIOD = 500
EXPIRES_IN_S = 1_500
TIMES_MIN = 1.0
AS_A_NODE = "as a node does it"
ANEW = "everything anew"
PROGRAM = "gouroboros_current"
LIBRARY = "gouroboros 0.199"

_OVERHEAD_BYTES = 637
_RULES = ValidationRules(message_gap_s=0)


@dataclass(frozen=True)
class Compared:
    """Microseconds of processor time for a message, and the median over the rounds of how many times our rate is theirs."""

    name: str
    ours_us: float
    theirs_us: float
    times: float

    @property
    def readings(self) -> list[Reading]:
        return [
            Reading(f"{LIBRARY}, one core", 1e6 / self.theirs_us, "messages/s"),
            Reading(f"ours, one core, {self.name}", 1e6 / self.ours_us, "messages/s"),
            Reading(f"ours to {LIBRARY}, {self.name}", self.times, "×"),
        ]

    @property
    def is_missed(self) -> bool:
        """Only the way of a node has a budget: nobody runs the other one."""
        return self.name == AS_A_NODE and self.times < TIMES_MIN


class _Pool:
    def __init__(self, number: int) -> None:
        self._cold_seed = number.to_bytes(32, "big")
        self._key = kes.SigningKey.generate((number + 1_000_000).to_bytes(32, "big"))
        self.cold_key = ed25519.public_key(self._cold_seed)
        self._certificate = issue(
            self._key.verification_key,
            issue_number=3,
            start_kes_period=KES_PERIOD,
            cold_seed=self._cold_seed,
        )
        self._certificate_for_gouroboros = msgspec.structs.replace(
            self._certificate,
            cold_signature=ed25519.sign(self._cold_seed, _certificate_array(self._certificate)),
        )

    def sign(self, number: int, expires_at: int) -> DmqMessage:
        return sign_message(
            number.to_bytes(8, "big") + bytes(MESSAGE_BYTES - _OVERHEAD_BYTES - 8),
            key=self._key,
            certificate=self._certificate,
            cold_verification_key=self.cold_key,
            kes_period=KES_PERIOD,
            expires_at=expires_at,
        )

    def sign_for_gouroboros(self, message: DmqMessage) -> bytes:
        """The same message in the form that its verification accepts."""
        return write_array(
            write_bytes(message.message_id),
            message.signed_bytes,
            write_bytes(self._key.sign(write_bytes(message.signed_bytes))),
            write_certificate(self._certificate_for_gouroboros),
            write_bytes(self.cold_key),
        )


def _certificate_array(certificate: OperationalCertificate) -> bytes:
    return write_array(
        write_bytes(certificate.kes_verification_key),
        write_unsigned(certificate.issue_number),
        write_unsigned(certificate.start_kes_period),
    )


class _EveryPool:
    """A stake distribution that knows these pools, whose certificates last as long as on the public networks."""

    is_ready = True
    kes_evolutions_max = KES_EVOLUTIONS_MAX

    def __init__(self, pools: list[_Pool]) -> None:
        self._stakes = {PoolId(pool_id(pool.cold_key)): 1 for pool in pools}

    def stake(self, pool_id: PoolId) -> int | None:
        return self._stakes.get(pool_id)


@dataclass(frozen=True)
class Recorded:
    """The two files, and the pools that signed them."""

    ours: bytes
    theirs: Path
    pools: list[_Pool]

    def raw(self, index: int) -> bytes:
        return self.ours[index * MESSAGE_BYTES : (index + 1) * MESSAGE_BYTES]


def record(folder: Path, messages: int) -> Recorded:
    pools = [_Pool(number) for number in range(POOLS)]
    expires_at = int(time.time()) + EXPIRES_IN_S
    theirs = folder / "gouroboros.messages"
    ours: list[bytes] = []
    with theirs.open("wb") as file:
        for number in range(messages):
            pool = pools[number % len(pools)]
            message = pool.sign(number, expires_at)
            again = pool.sign_for_gouroboros(message)
            assert len(message.raw) == len(again) == MESSAGE_BYTES
            ours.append(message.raw)
            file.write(again)
    return Recorded(b"".join(ours), theirs, pools)


# Ours


def as_a_node_does(recorded: Recorded) -> Callable[[int, int], None]:
    validator = MessageValidator(_RULES, _EveryPool(recorded.pools))

    def verify(start: int, count: int) -> None:
        for index in range(start, start + count):
            message = DmqMessage.decode(recorded.raw(index))
            now, mono = time.time(), time.monotonic()
            fault = (
                validator.check_cheaply(message, now, mono)
                or validator.check_signatures(message)
                or validator.commit(message, mono)
            )
            assert fault is None, f"message {index}: {fault}"

    return verify


def everything_anew(recorded: Recorded) -> Callable[[int, int], None]:
    pools = _EveryPool(recorded.pools)
    counters: dict[PoolId, int] = {}

    def verify(start: int, count: int) -> None:
        for index in range(start, start + count):
            message = DmqMessage.decode(recorded.raw(index))
            fault = check_expiry(message.expires_at, time.time(), _RULES) or check_proof(message)
            pool = message.pool_id
            assert fault is None, f"message {index}: {fault}"
            assert pools.stake(pool), f"message {index}: its pool is unknown"
            assert counters.get(pool, 0) <= message.issue_number, f"message {index}: an older certificate"
            counters[pool] = message.issue_number

    return verify


# Theirs


class _Theirs:
    """The Go program at the other end of two pipes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def hear(self, event: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"event": "ended"}
        if said["event"] != event:
            raise RuntimeError(f"{LIBRARY} was to say {event!r} and said {said}")
        return said

    def verify(self, start: int, count: int) -> float:
        """Microseconds for a message."""
        self.do("round", start, count)
        said = self.hear("round")
        assert said["accepted"] == count
        return float(said["microseconds"]) / count


@contextmanager
def started(program: Path, recorded: Recorded) -> Iterator[_Theirs]:
    process = subprocess.Popen(
        [program, "verify-file", recorded.theirs, str(MESSAGE_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GOMAXPROCS": "1"},
    )
    with process:
        theirs = _Theirs(process)
        theirs.hear("ready")
        for pool in recorded.pools:
            theirs.do("pool", hashlib.blake2b(pool.cold_key, digest_size=32).hexdigest())
        try:
            yield theirs
        finally:
            assert process.stdin is not None
            process.stdin.close()


@contextmanager
def _one_core() -> Iterator[None]:
    """This process, and whatever it starts meanwhile, on one core: they work in turns."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(messages: int = MESSAGES, rounds: int = ROUNDS) -> list[Compared]:
    """`Unavailable` where the Go program cannot be built."""
    program = build_go_program(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="stagepost-bench-") as folder, _one_core():
        recorded = record(Path(folder), messages)
        warm_up = min(WARM_UP, messages)
        every = {ANEW: everything_anew, AS_A_NODE: as_a_node_does}
        for make in every.values():
            make(recorded)(0, warm_up)
        with started(program, recorded) as theirs:
            theirs.verify(0, warm_up)
            return [_compared(name, make(recorded), theirs, messages, rounds) for name, make in every.items()]


def _compared(
    name: str, verify: Callable[[int, int], None], theirs: _Theirs, messages: int, rounds: int
) -> Compared:
    """Each round is the next piece of the file, first through one and then through the other."""
    count = messages // rounds
    ours_us, theirs_us = [], []
    for start in range(0, count * rounds, count):
        began = time.process_time()
        verify(start, count)
        ours_us.append((time.process_time() - began) / count * 1e6)
        theirs_us.append(theirs.verify(start, count))
    times = median(their / our for our, their in zip(ours_us, theirs_us, strict=True))
    return Compared(name, median(ours_us), median(theirs_us), times)


def readings() -> tuple[list[Reading], list[str]]:
    """What is printed, and which budget was missed. Where the Go program cannot be had, that is said instead."""
    try:
        found = compare()
    except Unavailable as missing:
        print(f"beside {LIBRARY}: not run: {missing.reason}")
        return [], []
    shown = [reading for compared in found for reading in compared.readings]
    missed = [
        f"missed: ours is {one.times:.2f} times {LIBRARY}, at least {TIMES_MIN} is wanted"
        for one in found
        if one.is_missed
    ]
    return shown, missed
