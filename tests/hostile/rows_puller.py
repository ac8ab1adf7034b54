"""Misbehaviours of a peer that pulls: the window's rules, words of the other side, and leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.attacker import KEEP_ALIVE, OTHER_SIDE
from tests.hostile.cbor_bytes import array, uint
from tests.hostile.forged_messages import some_id
from tests.hostile.playbook import (
    PULL_SEED,
    PULL_V1,
    PULL_V2,
    PULLERS,
    Act,
    Close,
    Ignore,
    Leave,
    Misbehaviour,
    Must,
    Scene,
    Tongue,
    do,
    ends,
    says,
)
from tests.hostile.rows_cbor import SUBMISSION_PLACE

_STATE = Close("PROTOCOL_STATE", SUBMISSION_PLACE)
_REQUEST = Close("PROTOCOL_REQUEST", SUBMISSION_PLACE)
_WINDOW = Close("PROTOCOL_WINDOW", SUBMISSION_PLACE)
_INVALID = Close("CBOR_INVALID", SUBMISSION_PLACE)
_WINDOW_MAX = 132


def _pulled(
    name: str, must: Must, say: Callable[[Tongue], bytes], but: tuple[Tongue, ...] = ()
) -> Iterator[Misbehaviour]:
    for tongue in PULLERS:
        if tongue not in but:
            yield Misbehaviour(f"puller {tongue.name}: {name}", tongue.start, tongue.says(say(tongue)), must)


def _after_ids(tongue: Tongue, say: Callable[[list[bytes]], bytes]) -> Act:
    """Ask for up to three ids, hear them, then say something that depends on them."""

    async def act(scene: Scene) -> None:
        await tongue.says(tongue.ask_ids(True, 0, 3))(scene)
        heard = await scene.attacker.hear(tongue.hears_on)
        assert heard[0] == tongue.tags["ids"], f"the node said {heard!r}"
        await scene.attacker.say(tongue.says_on, say([identifier for identifier, _ in heard[1]]))

    return act


def _asks_for_acknowledged(t: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await t.says(t.ask_ids(True, 0, 2))(scene)
        ids = [identifier for identifier, _ in (await scene.attacker.hear(t.hears_on))[1]]
        while len(ids) < 2:  # only one was held so far
            await scene.attacker.say(t.says_on, t.ask_ids(False, 0, 2))
            ids += [identifier for identifier, _ in (await scene.attacker.hear(t.hears_on))[1]]
        await scene.attacker.say(t.says_on, t.ask_ids(False, 1, 1))
        await scene.attacker.hear(t.hears_on)
        await scene.attacker.say(t.says_on, t.ask(ids[0]))

    return act


async def _done_twice(scene: Scene) -> None:
    await PULL_V2.says(PULL_V2.bare("done"), PULL_V2.bare("done"))(scene)


def _with_ids_outstanding(t: Tongue) -> Iterator[Misbehaviour]:
    def row(name: str, act: Act, must: Must = _WINDOW) -> Misbehaviour:
        return Misbehaviour(f"puller {t.name}: {name}", t.start, act, must)

    if t is not PULL_SEED:
        blocks = _after_ids(t, lambda ids: t.ask_ids(True, 0, 3))
        yield row("blocking while ids are outstanding", blocks, _REQUEST)
    yield row("acknowledges one too many", _after_ids(t, lambda ids: t.ask_ids(False, len(ids) + 1, 3)))
    yield row("window of 133", _after_ids(t, lambda ids: t.ask_ids(False, 0, _WINDOW_MAX + 1 - len(ids))))
    yield row("asks for what it acknowledged", _asks_for_acknowledged(t))
    yield row("one of its ids was not announced", _after_ids(t, lambda ids: t.ask(*ids, some_id())))


def _puller_rows() -> Iterator[Misbehaviour]:
    yield from _pulled("acknowledges what was not announced", _WINDOW, lambda t: t.ask_ids(True, 1, 1))
    yield from _pulled("acknowledges 65,535", _WINDOW, lambda t: t.ask_ids(False, 65_535, 1))
    yield from _pulled("asks for more than 132 ids", _WINDOW, lambda t: t.ask_ids(True, 0, 133))
    yield from _pulled("asks for 65,535 ids", _WINDOW, lambda t: t.ask_ids(True, 0, 65_535))
    yield from _pulled("asks for no ids, blocking", _REQUEST, lambda t: t.ask_ids(True, 0, 0))
    yield from _pulled("asks for no ids, not blocking", _REQUEST, lambda t: t.ask_ids(False, 0, 0))
    yield from _pulled(
        "asks not blocking while nothing is outstanding",
        _REQUEST,
        lambda t: t.ask_ids(False, 0, 3),
        but=(PULL_SEED,),
    )
    yield from _pulled("asks for a message that was not announced", _WINDOW, lambda t: t.ask(some_id()))
    # Both flavours are read, so that what one of them means by a tag may be a malformed request of the other.
    yield from _pulled("says ids itself", _STATE, lambda t: t.ids((some_id(), 900)), but=(PULL_SEED,))
    yield from _pulled("says ids itself", _INVALID, lambda t: t.ids((some_id(), 900)), but=PULLERS[:3])
    yield from _pulled("says messages itself", _STATE, lambda t: t.messages(uint(0)), but=PULLERS[1:3])
    yield from _pulled("says messages itself", _INVALID, lambda t: t.messages(uint(0)), but=PULLERS[::3])
    for tongue in PULLERS:
        yield from _with_ids_outstanding(tongue)
    done = PULL_V1.says(PULL_V1.bare("done"))
    yield Misbehaviour("puller v1: ends where only the supplier may", PULL_V1.start, done, _STATE)
    init = array(uint(0))
    yield Misbehaviour("puller v2: says a word of version 1", PULL_V2.start, PULL_V2.says(init), _INVALID)
    yield Misbehaviour(
        "puller v2: speaks on the supplier's lane",
        PULL_V2.start,
        says(11 | OTHER_SIDE, PULL_V2.ask_ids(True, 0, 1)),
        Close("MUX_UNKNOWN_PROTOCOL", "connection"),
    )
    yield Misbehaviour("puller v2: done, and again done", PULL_V2.start, _done_twice, Ignore())
    waits = do(PULL_V2.says(PULL_V2.ask_ids(True, 0, 132)), ends)
    yield Misbehaviour("puller v2: leaves while it waits", PULL_V2.start, waits, Leave())
    half = do(says(KEEP_ALIVE, array(uint(0), uint(1))), PULL_V2.says(b"\x84\x01"))
    yield Misbehaviour("puller v2: half a request, then silence", PULL_V2.start, half, Ignore())


PULLING = tuple(_puller_rows())
