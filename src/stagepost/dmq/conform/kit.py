"""Try a node with every case that applies to it; the kit's pools, kept in a folder so that a node can know them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from nacl.signing import SigningKey

from stagepost.dmq.conform.attacker import NodeTarget
from stagepost.dmq.conform.cases import CASES
from stagepost.dmq.conform.forged_messages import Forger
from stagepost.dmq.conform.playbook import Case, Start
from stagepost.dmq.conform.probing import Probe, probe
from stagepost.dmq.conform.report import ConformReport, MemoryWatch
from stagepost.dmq.conform.runner import EVOLUTION, CaseResult, CaseRunner, Cast
from stagepost.errors import ConfigError, StorageError

SEED_FILE, POOLS_FILE = "kit.json", "pools.json"
SEED_BYTES = 32
MAX_KES_EVOLUTIONS, SLOTS_PER_KES_PERIOD = 62, 129_600
AT_ONCE = 8
"""Cases that are played at once, beside those that wait for a time limit."""
GRACE_S = 3.0
"""Seconds on top of every time limit, for a busy machine or a long way."""
LOOPBACK_SOURCES = 254
"""Addresses of each last byte of 127.64.x.y to 127.191.x.y that connections come from in turns."""
LOOPBACK_NETS = 128 * 256
"""Networks of that many addresses each."""


def new_pools(folder: Path) -> Path:
    """Make `folder` with the kit's seed and a pools file for the node under test; return the pools file."""
    if (folder / SEED_FILE).exists():
        raise ConfigError(f"{folder} has pools already", advice="give this folder to --pools")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seed = secrets.token_bytes(SEED_BYTES)
        path = folder / SEED_FILE
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump({"seed": seed.hex()}, file)
        pools = [{"pool_id": pool.pool_id.hex(), "stake": stake} for pool, stake in _cast_of(seed).stakes]
        content = {
            "max_kes_evolutions": MAX_KES_EVOLUTIONS,
            "slots_per_kes_period": SLOTS_PER_KES_PERIOD,
            "pools": pools,
        }
        (folder / POOLS_FILE).write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise StorageError(f"could not write {folder}: {error.strerror}") from error
    return folder / POOLS_FILE


def load_cast(folder: Path) -> Cast:
    path = folder / SEED_FILE
    try:
        return _cast_of(bytes.fromhex(json.loads(path.read_text())["seed"]))
    except OSError as error:
        advice = "make a folder with --new-pools DIR"
        raise StorageError(f"could not read {path}: {error.strerror}", advice=advice) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a file of --new-pools: {error!r}") from error


def _cast_of(seed: bytes) -> Cast:
    def derived(name: str) -> bytes:
        return hashlib.blake2b(name.encode(), digest_size=32, key=seed).digest()

    def forger(name: str, evolution: int = 0) -> Forger:
        cold = SigningKey(derived(f"{name} cold"))
        return Forger(cold=cold, evolution=evolution, kes_seed=derived(f"{name} kes"))

    return Cast(forger("pool"), forger("renewed"), forger("poor"), forger("evolved", EVOLUTION))


@dataclass(frozen=True)
class KitOptions:
    """Wishes of whoever runs the kit. `only` are patterns for names of cases and rules."""

    profile: str = "auto"
    only: tuple[str, ...] = ()
    floods: bool = False
    at_once: int = AT_ONCE
    grace_s: float = GRACE_S


async def try_node(
    target: NodeTarget,
    cast: Cast,
    options: KitOptions,
    report: Callable[[CaseResult], None] = lambda _: None,
) -> ConformReport:
    """Probe the node, then play every case that applies to it. Raise `OSError` if nobody listens there, `NothingToTry` if no
    honest handshake is answered."""
    began = time.monotonic()
    sources = await _sources_for(target)
    memory = MemoryWatch()
    watching = asyncio.create_task(memory.watch(target))
    try:
        found = await probe(target, cast, options.profile, sources)
        cases, left_out = chosen_cases(CASES, found, options)
        runner = CaseRunner(
            found.target,
            cast,
            found.abilities,
            grace_s=options.grace_s,
            at_once=options.at_once,
            sources=sources,
            from_one_address=sources() is None,
        )
        results = await runner.run(cases, report)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    places = [str(target.socket)] if target.socket is not None else []
    if target.port is not None:
        places.insert(0, target.address)
    return ConformReport(
        place=" and ".join(places),
        magic=target.magic,
        profile=options.profile,
        notes=found.notes,
        results=list(results.values()),
        left_out=left_out,
        memory=memory,
        seconds=time.monotonic() - began,
    )


def chosen_cases(cases: Iterable[Case], found: Probe, options: KitOptions) -> tuple[list[Case], Counter[str]]:
    """Return the cases that apply, and by reason how many do not."""
    chosen: list[Case] = []
    left_out: Counter[str] = Counter()
    for case in cases:
        reason = _reason_to_leave_out(case, found, options)
        if reason:
            left_out[reason] += 1
        else:
            chosen.append(case)
    return chosen, left_out


def _reason_to_leave_out(case: Case, found: Probe, options: KitOptions) -> str:
    if options.only and not any(
        fnmatch(name, one) for one in options.only for name in (case.name, case.rule)
    ):
        return "not among --only"
    if case.is_flood and not options.floods:
        return "a flood: give --floods"
    if case.begins.is_local and found.target.socket is None:
        return "no local socket was given"
    if not case.begins.is_local and found.target.port is None:
        return "no address was given"
    if case.tongue is not None and case.tongue.key not in found.abilities.tongues:
        return "a way of message submission that the node does not speak"
    if case.begins is Start.LOCAL_SEED and not found.abilities.has_local_seed:
        return "numbers of the documents, which the node does not serve"
    return ""


async def _sources_for(target: NodeTarget) -> Callable[[], str | None]:
    """Let connections to a node on loopback come from many addresses: it may keep out one that broke a rule."""
    with suppress(ValueError):
        if (
            target.port is not None
            and ip_address(target.host).is_loopback
            and ip_address(target.host).version == 4
        ):
            try:
                _, writer = await asyncio.open_connection(
                    target.host, target.port, local_addr=("127.64.0.1", 0)
                )
                writer.close()
            except OSError:
                return lambda: None
            # Another beginning for each run: the node may keep out the addresses of the last one.
            numbers = count(secrets.randbelow(LOOPBACK_NETS * LOOPBACK_SOURCES))

            def next_source() -> str:
                net, number = divmod(next(numbers), LOOPBACK_SOURCES)
                return f"127.{64 + net // 256 % 128}.{net % 256}.{1 + number}"

            return next_source
    return lambda: None
