"""Cases of a peer that supplies: announcing, serving, ending and keeping silent against the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stagepost.dmq.conform.attacker import require
from stagepost.dmq.conform.forged_messages import ForgedMessage, some_id
from stagepost.dmq.conform.playbook import (
    SEED,
    SUPPLIERS,
    V1,
    V1_CIP,
    V2,
    Act,
    Case,
    CaseStage,
    Must,
    MustClose,
    MustEnd,
    MustGoOn,
    Start,
    Tongue,
    do,
    ends,
    says,
    serve,
    supplies,
)
from stagepost.dmq.conform.rows_cbor import SUBMISSION_PLACE

_STATE = MustClose("PROTOCOL_STATE", SUBMISSION_PLACE)
_WINDOW = MustClose("PROTOCOL_WINDOW", SUBMISSION_PLACE)
_SIZE = MustClose("PROTOCOL_SIZE", SUBMISSION_PLACE)
_TIMEOUT = MustClose("PROTOCOL_TIMEOUT", SUBMISSION_PLACE)
_INVALID = MustClose("CBOR_INVALID", SUBMISSION_PLACE)

SIZE_ALLOWANCE = 32
MESSAGES_LIMIT_S, IDS_BLOCKING_V2_LIMIT_S, SEED_LIMIT_S = 10.0, 20.0, 30.0


def _supplied(
    name: str,
    rule: str,
    must: Must,
    act: Callable[[Tongue], Act],
    but: tuple[Tongue, ...] = (),
    within_s: float = 2.0,
) -> Iterator[Case]:
    for tongue in SUPPLIERS:
        if tongue not in but:
            yield Case(f"supplier {tongue.name}: {name}", rule, tongue, act(tongue), must, within_s)


def _answers_ids(tongue: Tongue, item: bytes) -> Act:
    return do(tongue.open, tongue.hears("ask_ids"), says(tongue.says_on, item))


def _too_many_ids(tongue: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await do(tongue.open, tongue.hears("ask_ids"))(stage)
        requested = stage.kept["ask_ids"][3]
        ids = ((some_id(), 900) for _ in range(requested + 1))
        await stage.attacker.say(tongue.says_on, tongue.ids(*ids))

    return act


def _announces(tongue: Tongue, then: Act) -> Act:
    """Announce one invented id, wait until it is asked for, then do something else."""

    async def act(stage: CaseStage) -> None:
        await _answers_ids(tongue, tongue.ids((some_id(), 900)))(stage)
        while True:
            heard = await stage.attacker.hear(tongue.hears_on)
            if heard[0] == tongue.tags["ask"]:
                break
        await then(stage)

    return act


def _serves_other(tongue: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await stage.attacker.say(tongue.says_on, tongue.messages(stage.message().raw))

    return _announces(tongue, act)


def _serves_one_more(tongue: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        asked, other = stage.message(), stage.message()
        await serve(stage, tongue, [(asked.identifier, len(asked.raw))], [asked.raw, other.raw])

    return act


def _never_has(tongue: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        await serve(stage, tongue, [(some_id(), 900)], [])

    return act


def _in_messages(tongue: Tongue, item: bytes) -> Act:
    return _announces(tongue, says(tongue.says_on, item))


def _four_elements(stage: CaseStage) -> ForgedMessage:
    return stage.message(layout=4)


def _when_both_are_due(tongue: Tongue, *items: bytes) -> Act:
    """Announce one id; the node then asks for the message, and for more ids without blocking."""

    async def act(stage: CaseStage) -> None:
        await _answers_ids(tongue, tongue.ids((some_id(), 900)))(stage)
        heard = await stage.attacker.hear(tongue.hears_on)
        if heard[0] == tongue.tags["ask"]:
            heard = await stage.attacker.hear(tongue.hears_on)
        require(heard[0] == tongue.tags["ask_ids"], f"the node said {heard!r}, expected a request for ids")
        require(heard[1] is False, "the node blocks while an id is unacknowledged")
        # Answers come in the order of the requests: the message first.
        for item in items:
            await stage.attacker.say(tongue.says_on, item)

    return act


def _opens_anew(tongue: Tongue) -> Act:
    """Ends where it may, and begins again at once: the node asks again."""

    async def act(stage: CaseStage) -> None:
        await do(tongue.open, tongue.hears("ask_ids"))(stage)
        await stage.attacker.say(tongue.says_on, tongue.bare("done") + tongue.bare("init"))
        await tongue.hears("ask_ids")(stage)

    return act


async def _silence(stage: CaseStage) -> None:
    return


def _false_size(tongue: Tongue, off: int) -> Act:
    async def act(stage: CaseStage) -> None:
        offered = stage.message()
        await supplies(tongue, lambda _: offered, announced_size=len(offered.raw) + off)(stage)

    return act


def _announced_too_large(tongue: Tongue) -> Act:
    return _false_size(tongue, SIZE_ALLOWANCE + 1)


def _announced_too_small(tongue: Tongue) -> Act:
    return _false_size(tongue, -SIZE_ALLOWANCE - 1)


def _enormous(tongue: Tongue) -> Act:
    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        await serve(stage, tongue, [(some_id(), (1 << 32) - 1)], [])

    return act


def _supplier_rows() -> Iterator[Case]:
    yield from _supplied("more ids than requested", "submission.count", _WINDOW, _too_many_ids)
    yield from _supplied(
        "empty reply to a blocking request",
        "submission.empty",
        _WINDOW,
        lambda t: _answers_ids(t, t.ids()),
        but=(SEED,),
    )
    yield from _supplied(
        "messages where ids are due", "submission.state", _STATE, lambda t: _answers_ids(t, t.messages())
    )
    yield from _supplied("a message that was not requested", "submission.served", _WINDOW, _serves_other)
    yield from _supplied("one message more than requested", "submission.served", _WINDOW, _serves_one_more)
    yield from _supplied(
        "ids where messages are due", "submission.state", _STATE, lambda t: _in_messages(t, t.ids())
    )
    yield from _supplied(
        "done where messages are due",
        "submission.state",
        _STATE,
        lambda t: _in_messages(t, t.bare("done")),
        but=(V2,),
    )
    yield from _supplied("announces and never has", "submission.missing", MustGoOn(), _never_has)
    yield from _supplied(
        "announces and never serves",
        "submission.messages-time",
        _TIMEOUT,
        lambda t: _announces(t, _silence),
        but=(SEED,),
        within_s=MESSAGES_LIMIT_S,
    )
    yield Case(
        "supplier seed: announces and never serves",
        "submission.seed-time",
        SEED,
        _announces(SEED, _silence),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    yield Case(
        "supplier seed: silent when blocked",
        "submission.seed-time",
        SEED,
        do(SEED.open, SEED.hears("ask_ids")),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    yield Case(
        "supplier v2: silent when blocked",
        "submission.ids-time",
        V2,
        do(V2.open, V2.hears("ask_ids")),
        _TIMEOUT,
        IDS_BLOCKING_V2_LIMIT_S,
    )
    yield from _supplied("size announced larger than it is", "submission.size", _SIZE, _announced_too_large)
    yield from _supplied("size announced smaller than it is", "submission.size", _SIZE, _announced_too_small)
    yield from _supplied("size of 4 GB announced", "submission.huge", MustGoOn(), _enormous)
    yield from _supplied(
        "ids where only messages can come next",
        "submission.state",
        _STATE,
        lambda t: _when_both_are_due(t, t.ids((some_id(), 900))),
    )
    for t in (V1, V1_CIP):
        yield Case(
            f"supplier {t.name}: message of the older layout",
            "message.layout",
            t,
            supplies(t, _four_elements),
            _INVALID,
        )
        yield Case(
            f"supplier {t.name}: opens twice",
            "submission.state",
            t,
            do(t.open, t.hears("ask_ids"), says(t.says_on, t.bare("init"))),
            MustClose("PROTOCOL_STATE", SUBMISSION_PLACE),
        )
    yield Case(
        "supplier v1: begins without opening",
        "submission.state",
        V1,
        says(11, V1.ids((some_id(), 900))),
        _STATE,
    )
    yield Case(
        "supplier seed: begins without opening",
        "submission.state",
        SEED,
        says(17, SEED.ids((some_id(), 900))),
        _STATE,
    )
    yield Case(
        "supplier v1: done before anything was asked",
        "submission.state",
        V1,
        says(11, V1.bare("done")),
        _STATE,
    )
    yield Case(
        "supplier v1: asks, as if it pulled",
        "submission.state",
        V1,
        do(V1.open, V1.hears("ask_ids"), says(11, V1.ask(some_id()))),
        _INVALID,
    )
    yield Case(
        "supplier v1: half an opening, then silence",
        "submission.idle",
        Start.NODE_V1,
        says(11, b"\x81"),
        MustGoOn(),
    )
    yield Case(
        "supplier seed: half an opening, then silence",
        "submission.seed-time",
        Start.NODE_V1,
        says(17, b"\x81"),
        _TIMEOUT,
        SEED_LIMIT_S,
    )
    for t in (V1, V1_CIP):
        yield Case(
            f"supplier {t.name}: ends and opens anew in one breath",
            "submission.done-at-once",
            t,
            _opens_anew(t),
            MustGoOn(),
        )
    yield Case(
        "supplier v1: leaves while it is asked",
        "mux.end",
        V1,
        do(V1.open, V1.hears("ask_ids"), ends),
        MustEnd(),
    )
    yield Case(
        "supplier v1: tells of ids in the other flavour",
        "submission.state",
        V1,
        do(V1.open, V1.hears("ask_ids"), says(11, SEED.messages())),
        _STATE,
    )
    for t in (V1, V1_CIP):
        ended = _when_both_are_due(t, t.messages(), t.bare("done"))
        yield Case(f"supplier {t.name}: ends when it is not blocked", "submission.state", t, ended, _STATE)
    ended = _when_both_are_due(SEED, SEED.messages(), SEED.bare("done"))
    yield Case(
        "supplier seed: ends when it is not blocked, as the documents allow",
        "submission.done-idle",
        SEED,
        ended,
        MustGoOn(),
    )
    nothing = _when_both_are_due(V2, V2.messages(), V2.bare("none"))
    yield Case(
        "supplier v2: says that there is nothing when it is not blocked",
        "submission.state",
        V2,
        nothing,
        _STATE,
    )
    nothing = _in_messages(V2, V2.bare("none"))
    yield Case(
        "supplier v2: says that there is nothing where messages are due",
        "submission.state",
        V2,
        nothing,
        _STATE,
    )


SUPPLYING = tuple(_supplier_rows())
