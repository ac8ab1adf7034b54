"""Find out before the first case what a node speaks and does: numbers, ways of message submission, whether it judges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    LOCAL_VERSION,
    NOTIFICATION,
    OTHER_SIDE,
    PEER_SHARING,
    SEED_KEEP_ALIVE,
    SEED_LOCAL_SUBMISSION,
    SEED_NOTIFICATION,
    SEED_SUBMISSION,
    SUBMISSION,
    Attacker,
    NodeClosed,
    NodeTarget,
    NothingSeen,
    NothingToTry,
    UnexpectedAnswer,
    local_data,
    node_data,
    proposal,
    shortened,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, array, uint
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.conform.honest_program import HonestProgram, submit
from stagepost.dmq.conform.playbook import PULLERS, SUPPLIERS, CaseStage, Tongue
from stagepost.dmq.conform.runner import Abilities, Cast, shake_hands

ANSWERED_WITHIN_S = 3.0
"""Seconds that a node has at least for its answer to a question of the probe."""
QUESTION_SHARE = 0.25
"""Part of a case's patience that a question of the probe gets, if that is longer."""
SEED_LANES = {
    SUBMISSION: SEED_SUBMISSION,
    KEEP_ALIVE: SEED_KEEP_ALIVE,
    PEER_SHARING: 10,
    LOCAL_SUBMISSION: SEED_LOCAL_SUBMISSION,
    NOTIFICATION: SEED_NOTIFICATION,
}
TONGUES_OF = {
    "dmq-node": frozenset({"supplier v1", "supplier v2", "puller v1", "puller v2"}),
    "gouroboros": frozenset({"supplier v1-cip", "puller v2-cip"}),
    "seed": frozenset({"supplier seed", "puller seed"}),
}
"""Ways of message submission that belong to a profile."""
LANES_OF = {"dmq-node": {}, "gouroboros": {KEEP_ALIVE: SEED_KEEP_ALIVE, PEER_SHARING: 10}, "seed": SEED_LANES}

OTHER_PROTOCOLS = {b"HTTP/": "an HTTP server", b"\x15\x03": "a TLS server", b"SSH-": "an SSH server"}
"""First bytes by which servers of other protocols are known."""
BYTES_SHOWN = 24
_OBSTACLES = (NodeClosed, NothingSeen, UnexpectedAnswer, OSError, ValueError, LookupError, TypeError)
_ASK = array(uint(0), FALSE)


@dataclass
class Probe:
    """Everything that was found out. `notes` are sentences for people."""

    target: NodeTarget
    abilities: Abilities
    notes: list[str] = field(default_factory=list)


async def probe(target: NodeTarget, cast: Cast, profile: str, sources: Callable[[], str | None]) -> Probe:
    """Raise `OSError` where nobody listens, `NothingToTry` where an honest handshake is refused or not answered."""
    quick = replace(target, patience_s=quick_patience_s(target))
    notes: list[str] = []
    lanes: dict[int, int] = dict(LANES_OF.get(profile, {}))
    tongues: frozenset[str] = TONGUES_OF.get(profile, frozenset())
    has_local_seed = profile == "seed"
    if target.port is not None:
        notes.append(await _versions(target, False, sources))
        if profile == "auto":
            lanes |= await _keep_alive_lane(quick, sources)
            found = [
                tongue.key
                for tongue in (*SUPPLIERS, *PULLERS)
                if await _speaks(replace(quick, lanes=lanes), tongue, cast, sources)
            ]
            tongues = frozenset(found)
            notes.append(f"message submission: {', '.join(found) or 'no way of it was understood'}")
    takes = tells = judges = None
    layout = 5
    if target.socket is not None:
        notes.append(await _versions(target, True, sources))
        if profile == "auto":
            local_lanes, has_local_seed = await _local_lanes(quick)
            lanes |= local_lanes
        quick = replace(quick, lanes=lanes)
        answers = {number: await _submitted(quick, cast.pool, number) for number in (5, 4)}
        layout = 4 if answers[5] != [1] and answers[4] == [1] else 5
        takes = answers[layout] == [1]
        notes.append(
            shortened(
                f"a valid message of {layout} elements: {'accepted' if takes else f'answered {answers[layout]!r}'}"
            )
        )
        forged = {"kes_signature": bytes(448), "certificate_signature": bytes(64)}
        judges = await _submitted(quick, Forger(), layout, **forged) != [1] if takes else None
        tells = await _is_told(quick, cast.pool, layout) if takes else None
        if takes:
            notes.append(f"a forged message: {'refused' if judges else 'accepted, so the node checks none'}")
            notes.append(f"an accepted message: {'told' if tells else 'not told'} to programs")
    numbers = (
        ", ".join(f"{ours} as {theirs}" for ours, theirs in sorted(lanes.items())) or "those of dmq-node"
    )
    notes.append(f"protocol numbers: {numbers}")
    abilities = Abilities(tongues, has_local_seed, takes, tells, judges, layout)
    return Probe(replace(target, lanes=lanes), abilities, notes)


def quick_patience_s(target: NodeTarget) -> float:
    """Return the seconds for a question that many nodes leave open: more for a node to which people give more time."""
    return max(ANSWERED_WITHIN_S, target.patience_s * QUESTION_SHARE)


async def _versions(target: NodeTarget, is_local: bool, sources: Callable[[], str | None]) -> str:
    who, place = ("programs", str(target.socket)) if is_local else ("peers", target.address)
    attacker = await (Attacker.local(target) if is_local else Attacker.tcp(target, source=sources()))
    try:
        if is_local:
            said = proposal((LOCAL_VERSION, local_data(target.magic)))
        else:
            data = node_data(target.magic, initiator_only=True)
            said = proposal((1, data), (2, data))
        await attacker.say(HANDSHAKE, said)
        answer = await attacker.hear(HANDSHAKE | OTHER_SIDE)
    except _OBSTACLES as obstacle:
        raise NothingToTry(
            f"{place} does not answer an honest handshake of {who}: {_heard_instead(attacker, obstacle)}",
            f"check that a DMQ node listens there, that it takes {who} from here, and --network-magic;"
            " a node may keep an address out for a while after a run of the kit",
        ) from None
    finally:
        await attacker.leave()
    match answer:
        case [1, int(version), _]:
            return f"handshake with {who}: version {version}"
        case [2, _]:
            raise NothingToTry(
                f"{place} refuses an honest handshake of {who} on network {target.magic}: {answer!r}",
                "give the node's own --network-magic",
            )
    return shortened(f"handshake with {who}: answered with {answer!r}")


def _heard_instead(attacker: Attacker, obstacle: Exception) -> str:
    heard = b"".join(piece.data for piece in attacker.transcript.pieces if not piece.is_ours)[:BYTES_SHOWN]
    for beginning, name in OTHER_PROTOCOLS.items():
        if heard.startswith(beginning):
            return f"it answers as {name}"
    if heard:
        return f"it says {heard.hex()} ({str(obstacle) or type(obstacle).__name__})"
    if isinstance(obstacle, TimeoutError):
        return f"it says nothing within {attacker.target.patience_s:g} s"
    return "it closes without a word"


async def _keep_alive_lane(target: NodeTarget, sources: Callable[[], str | None]) -> dict[int, int]:
    for lane in (KEEP_ALIVE, SEED_KEEP_ALIVE):
        attacker = await Attacker.tcp(target, source=sources())
        try:
            await attacker.shake_hands(1, 2)
            await attacker.say(lane, array(uint(0), uint(1)))
            if await attacker.hear(lane | OTHER_SIDE) == [1, 1]:
                return {} if lane == KEEP_ALIVE else {KEEP_ALIVE: lane, PEER_SHARING: 10}
        except _OBSTACLES:
            continue
        finally:
            await attacker.leave()
    return {}


async def _local_lanes(target: NodeTarget) -> tuple[dict[int, int], bool]:
    """Return the numbers where they are not dmq-node's, and whether the documents' numbers are served beside."""
    current, seed = [await _is_served(target, lane) for lane in (NOTIFICATION, SEED_NOTIFICATION)]
    if seed and not current:
        return {LOCAL_SUBMISSION: SEED_LOCAL_SUBMISSION, NOTIFICATION: SEED_NOTIFICATION}, True
    return {}, seed


async def _is_served(target: NodeTarget, lane: int) -> bool:
    attacker = await Attacker.local(target)
    try:
        await attacker.shake_hands_locally()
        await attacker.say(lane, _ASK)
        answer = await attacker.hear(lane | OTHER_SIDE)
        return bool(answer[0] == 1)
    except _OBSTACLES:
        return False
    finally:
        await attacker.leave()


async def _speaks(target: NodeTarget, tongue: Tongue, cast: Cast, sources: Callable[[], str | None]) -> bool:
    """Return whether the node asks a supplier for ids, or lets a puller ask."""
    attacker = await Attacker.tcp(target, source=sources())
    pools = cast.pool, cast.renewed_pool, cast.poor_pool, cast.evolved_pool
    try:
        await shake_hands(attacker, tongue.start)
        await tongue.open(CaseStage(attacker, *pools, message(cast.pool)))
        if tongue.role == "puller":
            await attacker.say(tongue.says_on, tongue.ask_ids(True, 0, 1))
            return await _stays_or_answers(attacker, tongue)
        heard = await attacker.hear(tongue.hears_on)
        return bool(heard[0] == tongue.tags["ask_ids"])
    except _OBSTACLES:
        return False
    finally:
        await attacker.leave()


async def _stays_or_answers(attacker: Attacker, tongue: Tongue) -> bool:
    try:
        heard = await attacker.hear(tongue.hears_on)
    except TimeoutError:
        return True  # there is nothing to announce
    return bool(heard[0] == tongue.tags["ids"])


async def _submitted(target: NodeTarget, pool: Forger, layout: int, **given: Any) -> object:
    try:
        return await submit(target, message(pool, layout=layout, **given))
    except _OBSTACLES as obstacle:
        return type(obstacle).__name__


async def _is_told(target: NodeTarget, pool: Forger, layout: int) -> bool:
    honest = HonestProgram(target, pool, 4 * target.patience_s, layout)
    try:
        await honest.check()
    except _OBSTACLES:
        return False
    finally:
        await honest.leave()
    return True
