"""Misbehaviours of a peer that supplies: announcing, serving, ending and keeping silent against the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.forged_messages import Message, some_id
from tests.hostile.playbook import (
    SEED,
    SUPPLIERS,
    V1,
    V1_CIP,
    V2,
    Act,
    Close,
    Ignore,
    Leave,
    Misbehaviour,
    Must,
    Scene,
    Start,
    Tongue,
    do,
    ends,
    says,
    serve,
    supplies,
)
from tests.hostile.rows_cbor import SUBMISSION_PLACE

_STATE = Close("PROTOCOL_STATE", SUBMISSION_PLACE)
_WINDOW = Close("PROTOCOL_WINDOW", SUBMISSION_PLACE)
_SIZE = Close("PROTOCOL_SIZE", SUBMISSION_PLACE)
_TIMEOUT = Close("PROTOCOL_TIMEOUT", SUBMISSION_PLACE)
_INVALID = Close("CBOR_INVALID", SUBMISSION_PLACE)

SIZE_ALLOWANCE = 32
MESSAGES_LIMIT_S, IDS_BLOCKING_V2_LIMIT_S, SEED_LIMIT_S = 10.0, 20.0, 30.0


def _supplied(
    name: str, must: Must, act: Callable[[Tongue], Act], but: tuple[Tongue, ...] = (), within_s: float = 2.0
) -> Iterator[Misbehaviour]:
    for tongue in SUPPLIERS:
        if tongue not in but:
            yield Misbehaviour(f"supplier {tongue.name}: {name}", tongue.start, act(tongue), must, within_s)


def _answers_ids(tongue: Tongue, item: bytes) -> Act:
    return do(tongue.open, tongue.hears("ask_ids"), says(tongue.says_on, item))


def _too_many_ids(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await do(tongue.open, tongue.hears("ask_ids"))(scene)
        requested = scene.kept["ask_ids"][3]
        ids = ((some_id(), 900) for _ in range(requested + 1))
        await scene.attacker.say(tongue.says_on, tongue.ids(*ids))

    return act


def _announces(tongue: Tongue, then: Act) -> Act:
    """Announce one invented id, wait until it is asked for, then do something else."""

    async def act(scene: Scene) -> None:
        await _answers_ids(tongue, tongue.ids((some_id(), 900)))(scene)
        while True:
            heard = await scene.attacker.hear(tongue.hears_on)
            if heard[0] == tongue.tags["ask"]:
                break
        await then(scene)

    return act


def _serves_other(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await scene.attacker.say(tongue.says_on, tongue.messages(scene.message().raw))

    return _announces(tongue, act)


def _serves_one_more(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await tongue.open(scene)
        asked, other = scene.message(), scene.message()
        await serve(scene, tongue, [(asked.identifier, len(asked.raw))], [asked.raw, other.raw])

    return act


def _never_has(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await tongue.open(scene)
        await serve(scene, tongue, [(some_id(), 900)], [])

    return act


def _in_messages(tongue: Tongue, item: bytes) -> Act:
    return _announces(tongue, says(tongue.says_on, item))


def _four_elements(scene: Scene) -> Message:
    return scene.message(layout=4)


def _when_both_are_due(tongue: Tongue, *items: bytes) -> Act:
    """Announce one id; the node then asks for the message, and for more ids without blocking."""

    async def act(scene: Scene) -> None:
        await _answers_ids(tongue, tongue.ids((some_id(), 900)))(scene)
        heard = await scene.attacker.hear(tongue.hears_on)
        if heard[0] == tongue.tags["ask"]:
            heard = await scene.attacker.hear(tongue.hears_on)
        assert heard[0] == tongue.tags["ask_ids"], f"the node said {heard!r}"
        assert heard[1] is False, "the node blocks while an id is outstanding"
        # Answers come in the order of the requests: the message first.
        for item in items:
            await scene.attacker.say(tongue.says_on, item)

    return act


def _opens_anew(tongue: Tongue) -> Act:
    """Ends where it may, and begins again at once: the node asks again."""

    async def act(scene: Scene) -> None:
        await do(tongue.open, tongue.hears("ask_ids"))(scene)
        await scene.attacker.say(tongue.says_on, tongue.bare("done") + tongue.bare("init"))
        await tongue.hears("ask_ids")(scene)

    return act


async def _silence(scene: Scene) -> None:
    return


def _false_size(tongue: Tongue, off: int) -> Act:
    async def act(scene: Scene) -> None:
        offered = scene.message()
        await supplies(tongue, lambda _: offered, announced_size=len(offered.raw) + off)(scene)

    return act


def _announced_too_large(tongue: Tongue) -> Act:
    return _false_size(tongue, SIZE_ALLOWANCE + 1)


def _announced_too_small(tongue: Tongue) -> Act:
    return _false_size(tongue, -SIZE_ALLOWANCE - 1)


def _enormous(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await tongue.open(scene)
        await serve(scene, tongue, [(some_id(), (1 << 32) - 1)], [])

    return act


def _supplier_rows() -> Iterator[Misbehaviour]:
    yield from _supplied("more ids than requested", _WINDOW, _too_many_ids)
    yield from _supplied(
        "empty reply to a blocking request", _WINDOW, lambda t: _answers_ids(t, t.ids()), but=(SEED,)
    )
    yield from _supplied("messages where ids are due", _STATE, lambda t: _answers_ids(t, t.messages()))
    yield from _supplied("a message that was not requested", _WINDOW, _serves_other)
    yield from _supplied("one message more than requested", _WINDOW, _serves_one_more)
    yield from _supplied("ids where messages are due", _STATE, lambda t: _in_messages(t, t.ids()))
    yield from _supplied(
        "done where messages are due", _STATE, lambda t: _in_messages(t, t.bare("done")), but=(V2,)
    )
    yield from _supplied("announces and never has", Ignore(), _never_has)
    yield from _supplied(
        "announces and never serves",
        _TIMEOUT,
        lambda t: _announces(t, _silence),
        but=(SEED,),
        within_s=MESSAGES_LIMIT_S,
    )
    yield Misbehaviour(
        "supplier seed: announces and never serves",
        SEED.start,
        _announces(SEED, _silence),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    yield Misbehaviour(
        "supplier seed: silent when blocked",
        SEED.start,
        do(SEED.open, SEED.hears("ask_ids")),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    yield Misbehaviour(
        "supplier v2: silent when blocked",
        V2.start,
        do(V2.open, V2.hears("ask_ids")),
        _TIMEOUT,
        IDS_BLOCKING_V2_LIMIT_S,
    )
    yield from _supplied("size announced larger than it is", _SIZE, _announced_too_large)
    yield from _supplied("size announced smaller than it is", _SIZE, _announced_too_small)
    yield from _supplied("size of 4 GB announced", Ignore(), _enormous)
    yield from _supplied(
        "ids where only messages can come next",
        _STATE,
        lambda t: _when_both_are_due(t, t.ids((some_id(), 900))),
    )
    for t in (V1, V1_CIP):
        yield Misbehaviour(
            f"supplier {t.name}: message of the older layout", t.start, supplies(t, _four_elements), _INVALID
        )
        yield Misbehaviour(
            f"supplier {t.name}: opens twice",
            t.start,
            do(t.open, t.hears("ask_ids"), says(t.says_on, t.bare("init"))),
            Close("PROTOCOL_STATE", SUBMISSION_PLACE),
        )
    yield Misbehaviour(
        "supplier v1: begins without opening", V1.start, says(11, V1.ids((some_id(), 900))), _STATE
    )
    yield Misbehaviour(
        "supplier seed: begins without opening", SEED.start, says(17, SEED.ids((some_id(), 900))), _STATE
    )
    yield Misbehaviour(
        "supplier v1: done before anything was asked", V1.start, says(11, V1.bare("done")), _STATE
    )
    yield Misbehaviour(
        "supplier v1: asks, as if it pulled",
        V1.start,
        do(V1.open, V1.hears("ask_ids"), says(11, V1.ask(some_id()))),
        _INVALID,
    )
    yield Misbehaviour(
        "supplier v1: half an opening, then silence", Start.NODE_V1, says(11, b"\x81"), Ignore()
    )
    yield Misbehaviour(
        "supplier seed: half an opening, then silence",
        Start.NODE_V1,
        says(17, b"\x81"),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    for t in (V1, V1_CIP):
        yield Misbehaviour(
            f"supplier {t.name}: ends and opens anew in one breath", t.start, _opens_anew(t), Ignore()
        )
    yield Misbehaviour(
        "supplier v1: leaves while it is asked", V1.start, do(V1.open, V1.hears("ask_ids"), ends), Leave()
    )
    yield Misbehaviour(
        "supplier v1: tells of ids in the other flavour",
        V1.start,
        do(V1.open, V1.hears("ask_ids"), says(11, SEED.messages())),
        _STATE,
    )
    for t in (V1, V1_CIP):
        ended = _when_both_are_due(t, t.messages(), t.bare("done"))
        yield Misbehaviour(f"supplier {t.name}: ends when it is not blocked", t.start, ended, _STATE)
    ended = _when_both_are_due(SEED, SEED.messages(), SEED.bare("done"))
    yield Misbehaviour(
        "supplier seed: ends when it is not blocked, as the documents allow", SEED.start, ended, Ignore()
    )
    nothing = _when_both_are_due(V2, V2.messages(), V2.bare("none"))
    yield Misbehaviour(
        "supplier v2: says that there is nothing when it is not blocked", V2.start, nothing, _STATE
    )
    nothing = _in_messages(V2, V2.bare("none"))
    yield Misbehaviour(
        "supplier v2: says that there is nothing where messages are due", V2.start, nothing, _STATE
    )


SUPPLYING = tuple(_supplier_rows())
