"""Misbehaviours in message submission: every state, both sides, both versions, every way of writing them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from tests.hostile.attacker import KEEP_ALIVE, OTHER_SIDE, PEER_SHARING
from tests.hostile.cbor_bytes import array, endless, uint
from tests.hostile.forged_messages import Message
from tests.hostile.playbook import (
    PULL_SEED,
    PULL_V1,
    PULL_V2,
    PULLERS,
    SEED,
    SUPPLIERS,
    V1,
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
    hears,
    says,
    serve,
    supplies,
)
from tests.hostile.rows_cbor import SUBMISSION_PLACE

_STATE = Close("PROTOCOL_STATE", SUBMISSION_PLACE)
_REQUEST = Close("PROTOCOL_REQUEST", SUBMISSION_PLACE)
_WINDOW = Close("PROTOCOL_WINDOW", SUBMISSION_PLACE)
_SIZE = Close("PROTOCOL_SIZE", SUBMISSION_PLACE)
_TIMEOUT = Close("PROTOCOL_TIMEOUT", SUBMISSION_PLACE)
_INVALID = Close("CBOR_INVALID", SUBMISSION_PLACE)

SIZE_ALLOWANCE = 32
MESSAGES_LIMIT_S, IDS_BLOCKING_V2_LIMIT_S, IDS_LIMIT_S, SEED_LIMIT_S = 10.0, 20.0, 10.0, 30.0


def _some_id() -> bytes:
    return secrets.token_bytes(32)


# As the side that pulls


def _pulled(
    name: str, must: Must, say: Callable[[Tongue], bytes], but: tuple[Tongue, ...] = ()
) -> Iterator[Misbehaviour]:
    for tongue in PULLERS:
        if tongue not in but:
            yield Misbehaviour(
                f"puller {tongue.name}: {name}", tongue.start, tongue.says(say(tongue)), must
            )


def _after_ids(tongue: Tongue, say: Callable[[list[bytes]], bytes]) -> Act:
    """Ask for up to three ids, hear them, then say something that depends on them."""

    async def act(scene: Scene) -> None:
        await tongue.says(tongue.ask_ids(True, 0, 3))(scene)
        heard = await scene.attacker.hear(tongue.hears_on)
        assert heard[0] == tongue.tags["ids"], f"the node said {heard!r}"
        await scene.attacker.say(tongue.says_on, say([identifier for identifier, _ in heard[1]]))

    return act


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
    yield from _pulled("asks for a message that was not announced", _WINDOW, lambda t: t.ask(_some_id()))
    # Both flavours are read, so that what one of them means by a tag may be a malformed request of the other.
    yield from _pulled("says ids itself", _STATE, lambda t: t.ids((_some_id(), 900)), but=(PULL_SEED,))
    yield from _pulled("says ids itself", _INVALID, lambda t: t.ids((_some_id(), 900)), but=PULLERS[:3])
    yield from _pulled("says messages itself", _STATE, lambda t: t.messages(uint(0)), but=PULLERS[1:3])
    yield from _pulled("says messages itself", _INVALID, lambda t: t.messages(uint(0)), but=PULLERS[::3])
    for tongue in PULLERS:
        t, start = tongue, tongue.start
        blocks = _after_ids(t, lambda ids, t=t: t.ask_ids(True, 0, 3))  # type: ignore[misc]
        if t is not PULL_SEED:
            yield Misbehaviour(f"puller {t.name}: blocking while ids are outstanding", start, blocks, _REQUEST)
        over = _after_ids(t, lambda ids, t=t: t.ask_ids(False, len(ids) + 1, 3))  # type: ignore[misc]
        yield Misbehaviour(f"puller {t.name}: acknowledges one too many", start, over, _WINDOW)
        full = _after_ids(t, lambda ids, t=t: t.ask_ids(False, 0, 132 - len(ids) + 1))  # type: ignore[misc]
        yield Misbehaviour(f"puller {t.name}: window of 133", start, full, _WINDOW)
        late = _asks_for_acknowledged(t)
        yield Misbehaviour(f"puller {t.name}: asks for what it acknowledged", start, late, _WINDOW)
        mixed = _after_ids(t, lambda ids, t=t: t.ask(*ids, _some_id()))  # type: ignore[misc]
        yield Misbehaviour(f"puller {t.name}: one of its ids was not announced", start, mixed, _WINDOW)
    for t in (PULL_V1,):
        done = t.says(t.bare("done"))
        yield Misbehaviour(f"puller {t.name}: ends where only the supplier may", t.start, done, _STATE)
    init = array(uint(0))
    yield Misbehaviour("puller v2: says a word of version 1", PULL_V2.start, PULL_V2.says(init), _INVALID)
    yield Misbehaviour(
        "puller v2: speaks on the supplier's lane",
        PULL_V2.start,
        says(11 | OTHER_SIDE, PULL_V2.ask_ids(True, 0, 1)),
        Close("MUX_UNKNOWN_PROTOCOL", "connection"),
    )
    yield Misbehaviour("puller v2: done, and again done", PULL_V2.start, _done_twice, Ignore())
    yield Misbehaviour("puller v2: leaves while it waits", PULL_V2.start, do(PULL_V2.says(PULL_V2.ask_ids(True, 0, 132)), ends), Leave())  # fmt: skip
    yield Misbehaviour("puller v2: half a request, then silence", PULL_V2.start, do(says(KEEP_ALIVE, array(uint(0), uint(1))), PULL_V2.says(b"\x84\x01")), Ignore())  # fmt: skip


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


# As the side that supplies


def _supplied(
    name: str, must: Must, act: Callable[[Tongue], Act], but: tuple[Tongue, ...] = (), within_s: float = 2.0
) -> Iterator[Misbehaviour]:
    for tongue in SUPPLIERS:
        if tongue not in but:
            yield Misbehaviour(
                f"supplier {tongue.name}: {name}", tongue.start, act(tongue), must, within_s
            )


def _answers_ids(tongue: Tongue, item: bytes) -> Act:
    return do(tongue.open, tongue.hears("ask_ids"), says(tongue.says_on, item))


def _too_many_ids(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await do(tongue.open, tongue.hears("ask_ids"))(scene)
        requested = scene.kept["ask_ids"][3]
        ids = ((_some_id(), 900) for _ in range(requested + 1))
        await scene.attacker.say(tongue.says_on, tongue.ids(*ids))

    return act


def _announces(tongue: Tongue, then: Act) -> Act:
    """Announce one invented id, wait until it is asked for, then do something else."""

    async def act(scene: Scene) -> None:
        await _answers_ids(tongue, tongue.ids((_some_id(), 900)))(scene)
        while True:
            heard = await scene.attacker.hear(tongue.hears_on)
            if heard[0] == tongue.tags["ask"]:
                break
            scene.kept["ids_due"] = True
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
        await serve(scene, tongue, [(_some_id(), 900)], [])

    return act


def _in_messages(tongue: Tongue, item: bytes) -> Act:
    return _announces(tongue, says(tongue.says_on, item))


def _four_elements(scene: Scene) -> Message:
    return scene.message(layout=4)


def _ids_in_non_blocking(tongue: Tongue, item: bytes) -> Act:
    """Announce one id; the node then asks for more without blocking, beside asking for the message."""

    async def act(scene: Scene) -> None:
        await _answers_ids(tongue, tongue.ids((_some_id(), 900)))(scene)
        heard = await scene.attacker.hear(tongue.hears_on)
        if heard[0] == tongue.tags["ask"]:
            heard = await scene.attacker.hear(tongue.hears_on)
        assert heard[0] == tongue.tags["ask_ids"], f"the node said {heard!r}"
        assert heard[1] is False, "the node blocks while an id is outstanding"
        # Answers come in the order of the requests: the message first.
        await scene.attacker.say(tongue.says_on, item)

    return act


async def _wrong_cookie(scene: Scene) -> None:
    await scene.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    _, cookie = await scene.attacker.hear(KEEP_ALIVE)
    await scene.attacker.say(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint((cookie + 1) % 65_536)))


def _address(number: int) -> bytes:
    return array(uint(0), uint(0x0100007F + (number << 8)), uint(9))


async def _shares(scene: Scene, items: bytes) -> None:
    await scene.attacker.say(KEEP_ALIVE, array(uint(0), uint(7)))
    await scene.attacker.hear(PEER_SHARING)
    await scene.attacker.say(PEER_SHARING | OTHER_SIDE, array(uint(1), items))


async def _shares_too_many(scene: Scene) -> None:
    await _shares(scene, endless(*map(_address, range(11))))


async def _shares_a_third_kind(scene: Scene) -> None:
    await _shares(scene, endless(array(uint(2), uint(1), uint(9))))


async def _shares_beyond_the_limit(scene: Scene) -> None:
    await _shares(scene, endless(*map(_address, range(256))))


def _supplier_rows() -> Iterator[Misbehaviour]:
    yield from _supplied("more ids than requested", _WINDOW, _too_many_ids)
    yield from _supplied("empty reply to a blocking request", _WINDOW, lambda t: _answers_ids(t, t.ids()), but=(SEED,))
    yield from _supplied("messages where ids are due", _STATE, lambda t: _answers_ids(t, t.messages()))
    yield from _supplied("a message that was not requested", _WINDOW, _serves_other)
    yield from _supplied("one message more than requested", _WINDOW, _serves_one_more)
    yield from _supplied("ids where messages are due", _STATE, lambda t: _in_messages(t, t.ids()))
    yield from _supplied("done where messages are due", _STATE, lambda t: _in_messages(t, t.bare("done")), but=(V2,))
    yield from _supplied("announces and never has", Ignore(), _never_has)
    yield from _supplied("announces and never serves", _TIMEOUT, lambda t: _announces(t, _silence), but=(SEED,), within_s=MESSAGES_LIMIT_S)
    yield Misbehaviour("supplier seed: announces and never serves", SEED.start, _announces(SEED, _silence), _TIMEOUT, SEED_LIMIT_S)
    yield Misbehaviour("supplier seed: silent when blocked", SEED.start, do(SEED.open, SEED.hears("ask_ids")), _TIMEOUT, SEED_LIMIT_S)
    yield Misbehaviour("supplier v2: silent when blocked", V2.start, do(V2.open, V2.hears("ask_ids")), _TIMEOUT, IDS_BLOCKING_V2_LIMIT_S)
    for off in (SIZE_ALLOWANCE + 1, -SIZE_ALLOWANCE - 1):
        word = "larger" if off > 0 else "smaller"
        yield from _supplied(f"size announced {word} than it is", _SIZE, lambda t, off=off: _false_size(t, off))  # type: ignore[misc]
    yield from _supplied("size of 4 GB announced", Ignore(), _enormous)
    yield from _supplied("ids where only messages can come next", _STATE, lambda t: _ids_in_non_blocking(t, t.ids((_some_id(), 900))))
    for t in (V1, SUPPLIERS[1]):
        yield Misbehaviour(f"supplier {t.name}: message of the older layout", t.start, supplies(t, _four_elements), _INVALID)
        yield Misbehaviour(f"supplier {t.name}: opens twice", t.start, do(t.open, t.hears("ask_ids"), says(t.says_on, t.bare("init"))), Close("PROTOCOL_STATE", SUBMISSION_PLACE))
    yield Misbehaviour("supplier v1: begins without opening", V1.start, says(11, V1.ids((_some_id(), 900))), _STATE)
    yield Misbehaviour("supplier seed: begins without opening", SEED.start, says(17, SEED.ids((_some_id(), 900))), _STATE)
    yield Misbehaviour("supplier v1: done before anything was asked", V1.start, says(11, V1.bare("done")), _STATE)
    yield Misbehaviour("supplier v1: asks, as if it pulled", V1.start, do(V1.open, V1.hears("ask_ids"), says(11, V1.ask(_some_id()))), _INVALID)
    yield Misbehaviour("supplier v1: half an opening, then silence", Start.NODE_V1, says(11, b"\x81"), Ignore())
    yield Misbehaviour("supplier seed: half an opening, then silence", Start.NODE_V1, says(17, b"\x81"), _TIMEOUT, SEED_LIMIT_S)
    for t in (V1, SUPPLIERS[1]):
        yield Misbehaviour(f"supplier {t.name}: ends and opens anew in one breath", t.start, _opens_anew(t), Ignore())
    yield Misbehaviour("supplier v1: leaves while it is asked", V1.start, do(V1.open, V1.hears("ask_ids"), ends), Leave())
    yield Misbehaviour("supplier v1: tells of ids in the other flavour", V1.start, do(V1.open, V1.hears("ask_ids"), says(11, SEED.messages())), _STATE)


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


def _enormous(tongue: Tongue) -> Act:
    async def act(scene: Scene) -> None:
        await tongue.open(scene)
        await serve(scene, tongue, [(_some_id(), (1 << 32) - 1)], [])

    return act


_KEEP_ALIVE = Close("PROTOCOL_STATE", "keep-alive")
_SHARING = "peer-sharing"
# fmt: off
SMALL_PROTOCOLS = (
    Misbehaviour("keep-alive: an answer that nobody asked for", Start.NODE_V2, says(KEEP_ALIVE, array(uint(1), uint(7))), _KEEP_ALIVE),
    Misbehaviour("keep-alive: wrong cookie", Start.NODE_V2_BOTH_WAYS, _wrong_cookie, _KEEP_ALIVE),
    Misbehaviour("keep-alive: a question for an answer", Start.NODE_V2_BOTH_WAYS, do(says(KEEP_ALIVE, array(uint(0), uint(7))), hears(KEEP_ALIVE), says(KEEP_ALIVE | OTHER_SIDE, array(uint(0), uint(7)))), _KEEP_ALIVE),
    Misbehaviour("keep-alive: done, and asked again", Start.NODE_V2, says(KEEP_ALIVE, array(uint(2)), array(uint(0), uint(7))), Ignore()),
    Misbehaviour("peer sharing: more peers than asked for", Start.NODE_V2_SHARING, _shares_too_many, Close("PROTOCOL_WINDOW", _SHARING)),
    Misbehaviour("peer sharing: an address of a third kind", Start.NODE_V2_SHARING, _shares_a_third_kind, Close("CBOR_INVALID", _SHARING)),
    Misbehaviour("peer sharing: 256 peers", Start.NODE_V2_SHARING, _shares_beyond_the_limit, Close("CBOR_LIMIT", _SHARING)),
    Misbehaviour("peer sharing: asks for 256", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(0), uint(256))), Close("CBOR_INVALID", _SHARING)),
    Misbehaviour("peer sharing: an answer that nobody asked for", Start.NODE_V2_SHARING, says(PEER_SHARING, array(uint(1), array())), Close("PROTOCOL_STATE", _SHARING)),
)
# fmt: on

SUBMISSION_ROWS = (*_puller_rows(), *_supplier_rows())
