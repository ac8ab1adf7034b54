"""Cases of a peer that pulls: the window's rules, words of the other side, and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from stagepost.dmq.conform.attacker import KEEP_ALIVE, OTHER_SIDE, NothingSeen, require
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.forged_messages import some_id
from stagepost.dmq.conform.playbook import (
    PULL_SEED,
    PULL_V1,
    PULL_V2,
    PULLERS,
    Act,
    Case,
    CaseStage,
    Must,
    MustClose,
    MustEnd,
    MustGoOn,
    Tongue,
    do,
    ends,
    says,
)
from stagepost.dmq.conform.rows_cbor import SUBMISSION_PLACE

_STATE = MustClose("PROTOCOL_STATE", SUBMISSION_PLACE)
_REQUEST = MustClose("PROTOCOL_REQUEST", SUBMISSION_PLACE)
_WINDOW = MustClose("PROTOCOL_WINDOW", SUBMISSION_PLACE)
_INVALID = MustClose("CBOR_INVALID", SUBMISSION_PLACE)
_WINDOW_MAX = 132
HELD_WITHIN_S = 3.0
"""Seconds after which a node that was asked for ids seems to hold no message, at least."""
LOOKS_FOR_MORE, LOOK_EVERY_S = 10, 0.2
"""Questions for a second id, and seconds between two of them."""


def _pulled(
    name: str, rule: str, must: Must, say: Callable[[Tongue], bytes], but: tuple[Tongue, ...] = ()
) -> Iterator[Case]:
    for tongue in PULLERS:
        if tongue not in but:
            yield Case(f"puller {tongue.name}: {name}", rule, tongue, tongue.says(say(tongue)), must)


async def _announced(stage: CaseStage, tongue: Tongue) -> list[bytes]:
    """Hear the ids that a node announces. Raise `NothingSeen` if none come, for the node may hold no message."""
    within_s = max(HELD_WITHIN_S, stage.attacker.target.patience_s / 4)
    try:
        heard = await stage.attacker.hear(tongue.hears_on, within_s)
    except TimeoutError:
        raise NothingSeen("the node holds no message that it could announce") from None
    require(heard[0] == tongue.tags["ids"], f"the node said {heard!r}, expected ids")
    return [identifier for identifier, _ in heard[1]]


def _after_ids(tongue: Tongue, say: Callable[[list[bytes]], bytes]) -> Act:
    """Ask for up to three ids, hear them, then say something that depends on them."""

    async def act(stage: CaseStage) -> None:
        await tongue.says(tongue.ask_ids(True, 0, 3))(stage)
        await stage.attacker.say(tongue.says_on, say(await _announced(stage, tongue)))

    return act


def _asks_for_acknowledged(t: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await t.says(t.ask_ids(True, 0, 2))(stage)
        ids = await _announced(stage, t)
        for _ in range(LOOKS_FOR_MORE):
            if len(ids) >= 2:
                break
            await asyncio.sleep(LOOK_EVERY_S)  # only one was held so far
            await stage.attacker.say(t.says_on, t.ask_ids(False, 0, 2))
            ids += await _announced(stage, t)
        if len(ids) < 2:
            raise NothingSeen("the node holds no second message that it could announce")
        await stage.attacker.say(t.says_on, t.ask_ids(False, 1, 1))
        await stage.attacker.hear(t.hears_on)
        await stage.attacker.say(t.says_on, t.ask(ids[0]))

    return act


async def _done_twice(stage: CaseStage) -> None:
    await PULL_V2.says(PULL_V2.bare("done"), PULL_V2.bare("done"))(stage)


def _with_ids_outstanding(t: Tongue) -> Iterator[Case]:
    def row(name: str, rule: str, act: Act, must: Must = _WINDOW) -> Case:
        return Case(f"puller {t.name}: {name}", rule, t, act, must)

    if t is not PULL_SEED:
        blocks = _after_ids(t, lambda ids: t.ask_ids(True, 0, 3))
        yield row("blocking while ids are outstanding", "submission.blocking", blocks, _REQUEST)
    yield row(
        "acknowledges one too many",
        "submission.ack",
        _after_ids(t, lambda ids: t.ask_ids(False, len(ids) + 1, 3)),
    )
    yield row(
        "window of 133",
        "submission.window",
        _after_ids(t, lambda ids: t.ask_ids(False, 0, _WINDOW_MAX + 1 - len(ids))),
    )
    yield row("asks for what it acknowledged", "submission.requested", _asks_for_acknowledged(t))
    yield row(
        "one of its ids was not announced",
        "submission.requested",
        _after_ids(t, lambda ids: t.ask(*ids, some_id())),
    )


def _puller_rows() -> Iterator[Case]:
    yield from _pulled(
        "acknowledges what was not announced", "submission.ack", _WINDOW, lambda t: t.ask_ids(True, 1, 1)
    )
    yield from _pulled(
        "acknowledges 65,535", "submission.ack", _WINDOW, lambda t: t.ask_ids(False, 65_535, 1)
    )
    yield from _pulled(
        "asks for more than 132 ids", "submission.window", _WINDOW, lambda t: t.ask_ids(True, 0, 133)
    )
    yield from _pulled(
        "asks for 65,535 ids", "submission.window", _WINDOW, lambda t: t.ask_ids(True, 0, 65_535)
    )
    yield from _pulled(
        "asks for no ids, blocking", "submission.nothing", _REQUEST, lambda t: t.ask_ids(True, 0, 0)
    )
    yield from _pulled(
        "asks for no ids, not blocking", "submission.nothing", _REQUEST, lambda t: t.ask_ids(False, 0, 0)
    )
    yield from _pulled(
        "asks not blocking while nothing is outstanding",
        "submission.blocking",
        _REQUEST,
        lambda t: t.ask_ids(False, 0, 3),
        but=(PULL_SEED,),
    )
    yield from _pulled(
        "asks for a message that was not announced",
        "submission.requested",
        _WINDOW,
        lambda t: t.ask(some_id()),
    )
    # Both flavours are read, so that what one of them means by a tag may be a malformed request of the other.
    yield from _pulled(
        "says ids itself", "submission.state", _STATE, lambda t: t.ids((some_id(), 900)), but=(PULL_SEED,)
    )
    yield from _pulled(
        "says ids itself", "submission.state", _INVALID, lambda t: t.ids((some_id(), 900)), but=PULLERS[:3]
    )
    yield from _pulled(
        "says messages itself", "submission.state", _STATE, lambda t: t.messages(uint(0)), but=PULLERS[1:3]
    )
    yield from _pulled(
        "says messages itself", "submission.state", _INVALID, lambda t: t.messages(uint(0)), but=PULLERS[::3]
    )
    for tongue in PULLERS:
        yield from _with_ids_outstanding(tongue)
    done = PULL_V1.says(PULL_V1.bare("done"))
    yield Case("puller v1: ends where only the supplier may", "submission.state", PULL_V1, done, _STATE)
    init = array(uint(0))
    yield Case(
        "puller v2: says a word of version 1", "submission.state", PULL_V2, PULL_V2.says(init), _INVALID
    )
    yield Case(
        "puller v2: speaks on the supplier's lane",
        "mux.unknown",
        PULL_V2,
        says(11 | OTHER_SIDE, PULL_V2.ask_ids(True, 0, 1)),
        MustClose("MUX_UNKNOWN_PROTOCOL", "connection"),
    )
    yield Case("puller v2: done, and again done", "submission.done", PULL_V2, _done_twice, MustGoOn())
    waits = do(PULL_V2.says(PULL_V2.ask_ids(True, 0, 132)), ends)
    yield Case("puller v2: leaves while it waits", "mux.end", PULL_V2, waits, MustEnd())
    half = do(says(KEEP_ALIVE, array(uint(0), uint(1))), PULL_V2.says(b"\x84\x01"))
    yield Case("puller v2: half a request, then silence", "submission.idle", PULL_V2, half, MustGoOn())


PULLING = tuple(_puller_rows())
