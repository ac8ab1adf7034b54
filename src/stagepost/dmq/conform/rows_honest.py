"""Cases of peers and programs that keep the rules: what a node must accept, answer, tell and forward."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    LOCAL_VERSION,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NothingSeen,
    RawSegment,
    local_data,
    node_data,
    proposal,
    require,
)
from stagepost.dmq.conform.cbor_bytes import BREAK, FALSE, TRUE, array, octets, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage
from stagepost.dmq.conform.honest_program import is_too_soon, submitted, told_id
from stagepost.dmq.conform.playbook import (
    PULLERS,
    SUPPLIERS,
    V1,
    V1_CIP,
    Act,
    Case,
    CaseStage,
    MustEnd,
    MustGoOn,
    MustServe,
    Needs,
    Start,
    Tongue,
    serve,
)

BODY_BYTES_MIN, BODY_BYTES_MAX = 90, 2_000
SEGMENT_BYTES_MAX = 65_535
QUIET_S = 35.0
"""Seconds without news after which a node that pulls must still be there: more than the 30 s of some implementations."""
HELD_WITHIN_S = 1.5
"""Seconds for which a node is given to tell the messages that it holds."""
LIVES_S = 900
_ASK, _WAIT = array(uint(0), FALSE), array(uint(0), TRUE)


def _expiry() -> int:
    return int(time.time()) + LIVES_S


# Handshake and keep-alive


async def _proposes_unknown(stage: CaseStage) -> None:
    """Versions 1 and 2 among numbers that nobody knows, whose data have shapes of their own."""
    data = node_data(stage.attacker.target.magic, initiator_only=True)
    said = proposal((1, data), (2, data), (700, octets(b"x")), (701, array(uint(1), TRUE)))
    await stage.attacker.say(HANDSHAKE, said)
    answer = await stage.attacker.hear(HANDSHAKE | OTHER_SIDE)
    require(answer[0] == 1 and answer[1] in (1, 2), f"the node answered {answer!r}")
    require(answer[2][0] == stage.attacker.target.magic, f"the node answered another network: {answer!r}")


async def _proposes_unknown_locally(stage: CaseStage) -> None:
    data = local_data(stage.attacker.target.magic)
    await stage.attacker.say(HANDSHAKE, proposal((LOCAL_VERSION, data), (5_000, octets(b"x"))))
    answer = await stage.attacker.hear(HANDSHAKE | OTHER_SIDE)
    require(answer[:2] == [1, LOCAL_VERSION], f"the node answered {answer!r}")


def _queries(version: int, data: Callable[[int], bytes]) -> Act:
    async def act(stage: CaseStage) -> None:
        await stage.attacker.say(HANDSHAKE, proposal((version, data(stage.attacker.target.magic))))
        answer = await stage.attacker.hear(HANDSHAKE | OTHER_SIDE)
        told = answer[0] == 3 and isinstance(answer[1], dict) and version in answer[1]
        require(told, f"the node answered {answer!r}, expected [3, versions]")
        stage.attacker.end_of_stream()

    return act


async def _cookies(stage: CaseStage) -> None:
    for cookie in (0, 1, 23, 24, 255, 256, 65_535):
        await stage.attacker.say(KEEP_ALIVE, array(uint(0), uint(cookie)))
        answer = await stage.attacker.hear(KEEP_ALIVE | OTHER_SIDE)
        require(answer == [1, cookie], f"cookie {cookie} was answered with {answer!r}")


# Programs


async def _submit(attacker: Attacker, sent: ForgedMessage) -> None:
    answer = await submitted(attacker, sent)
    require(answer == [1], f"a valid message of {len(sent.raw)} bytes was answered with {answer!r}")


def _submits(make: Callable[[CaseStage], ForgedMessage]) -> Act:
    async def act(stage: CaseStage) -> None:
        await _submit(stage.attacker, make(stage))

    return act


def _later_evolution(stage: CaseStage) -> ForgedMessage:
    """Sign at evolution 3 of a certificate that begins at period 4."""
    return stage.message(by=stage.evolved_pool, start_period=4)


async def _goes_on_after_refusals(stage: CaseStage) -> None:
    for lives_s in (-30, -60, -90):
        refused = stage.message(lives_s=lives_s)
        await stage.attacker.say(LOCAL_SUBMISSION, array(uint(0), refused.raw))
        answer = await stage.attacker.hear(LOCAL_SUBMISSION | OTHER_SIDE)
        require(answer[0] == 2, f"an expired message was answered with {answer!r}")
    await _submit(stage.attacker, stage.message())


async def _reasons_without_text(stage: CaseStage) -> None:
    """Submit a message twice and an expired one; whatever is refused as received or expired is looked at."""
    twice = stage.message()
    for sent in (twice, twice, stage.message(lives_s=-30)):
        await stage.attacker.say(LOCAL_SUBMISSION, array(uint(0), sent.raw))
        answer = await stage.attacker.hear(LOCAL_SUBMISSION | OTHER_SIDE)
        if answer[0] == 2 and answer[1][0] in (1, 2):
            require(len(answer[1]) == 1, f"the node answered {answer!r}, expected [2, [{answer[1][0]}]]")


async def _long_segment(stage: CaseStage) -> None:
    """Three submissions and an unfinished fourth in one segment of the greatest length; its rest comes in the next."""
    whole = b"".join(array(uint(0), stage.message(body=secrets.token_bytes(1_900)).raw) for _ in range(26))
    await stage.attacker.raw(
        b"".join(
            RawSegment(LOCAL_SUBMISSION, part).bytes_for(stage.attacker.target)
            for part in (whole[:SEGMENT_BYTES_MAX], whole[SEGMENT_BYTES_MAX:])
            if part
        )
    )
    for number in range(26):
        answer = await stage.attacker.hear(LOCAL_SUBMISSION | OTHER_SIDE)
        require(answer == [1] or is_too_soon(answer), f"message {number} of 26 was answered with {answer!r}")


async def _drain(attacker: Attacker) -> list[bytes]:
    """Ask until there is nothing more; return the bytes of the replies."""
    replies: list[bytes] = []
    while True:
        await attacker.say(NOTIFICATION, _ASK)
        answer = await attacker.hear(NOTIFICATION | OTHER_SIDE)
        require(answer[0] == 1 and len(answer) == 3, f"a question for messages was answered with {answer!r}")
        replies.append(attacker.last_item)
        if not answer[2]:
            return replies


async def _tells_in_order(stage: CaseStage) -> None:
    await _drain(stage.attacker)
    sent = [stage.message() for _ in range(5)]
    for one in sent:
        await _submit(stage.attacker, one)
    told: list[bytes] = []
    raw = b""
    while not {one.identifier for one in sent} <= set(told):
        await stage.attacker.say(NOTIFICATION, _WAIT)
        answer = await stage.attacker.hear(NOTIFICATION | OTHER_SIDE)
        require(bool(answer[1]), "a blocking reply is empty")
        told += [told_id(one) for one in answer[1]]
        raw += stage.attacker.last_item
    require(len(told) == len(set(told)), "a message was told twice on one connection")
    ours = [identifier for identifier in told if identifier in {one.identifier for one in sent}]
    require(ours == [one.identifier for one in sent], "messages were told in another order than they came")
    for one in sent:
        require(one.raw in raw, f"message {one.identifier.hex()} was told with other bytes than it came")


async def _tells_as_it_came(stage: CaseStage) -> None:
    """A valid message with a number in a longer form than needed: its id and signature cover these bytes."""
    await _drain(stage.attacker)
    sent = stage.message(expires_cbor=uint(_expiry(), 27))
    await _submit(stage.attacker, sent)
    raw = b""
    while sent.identifier not in raw:
        await stage.attacker.say(NOTIFICATION, _WAIT)
        await stage.attacker.hear(NOTIFICATION | OTHER_SIDE)
        raw += stage.attacker.last_item
    require(sent.raw in raw, "the message was told with other bytes than it came")


async def _reply_shapes(stage: CaseStage) -> None:
    await stage.attacker.say(NOTIFICATION, _ASK)
    await stage.attacker.hear(NOTIFICATION | OTHER_SIDE)
    said = stage.attacker.last_item
    require(said[:2] == b"\x83\x01", f"a reply begins with {said[:2].hex()}, expected 8301")
    require(
        said[2:3] in (b"\x9f", b"\x80"), f"the list of a reply begins with {said[2:3].hex()}, expected 9f"
    )


async def _blocking_reply_shape(stage: CaseStage) -> None:
    await _drain(stage.attacker)
    await stage.attacker.say(NOTIFICATION, _WAIT)
    await _submit(stage.attacker, stage.message())
    lane = NOTIFICATION | OTHER_SIDE
    async with asyncio.timeout(stage.attacker.target.patience_s):
        while len(stage.attacker.heard_bytes(lane)) < 4:
            await asyncio.sleep(0.02)
    begins = stage.attacker.heard_bytes(lane)[:4]
    require(begins[:3] == b"\x82\x02\x9f", f"a blocking reply begins with {begins.hex()}, expected 82029f")
    require(begins[3:] != BREAK, "a blocking reply is empty")


async def _blocking_reply_of_held(stage: CaseStage) -> None:
    """Ask on a new connection, and wait for nothing new: a node that holds messages tells them."""
    await stage.attacker.say(NOTIFICATION, _WAIT)
    try:
        await stage.attacker.hear(NOTIFICATION | OTHER_SIDE, HELD_WITHIN_S)
        begins = stage.attacker.last_item[:3]
    except TimeoutError:
        begins = stage.attacker.heard_bytes(NOTIFICATION | OTHER_SIDE)[:3]
    if not begins:
        raise NothingSeen("the node holds no message that it could tell")
    require(begins == b"\x82\x02\x9f", f"a blocking reply begins with {begins.hex()}, expected 82029f")


# Peers


def _is_supplied(tongue: Tongue, body_bytes: int = BODY_BYTES_MAX) -> Act:
    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        offered = [stage.message(body=secrets.token_bytes(body_bytes)) for _ in range(3)]
        await serve(
            stage, tongue, [(one.identifier, len(one.raw)) for one in offered], [one.raw for one in offered]
        )

    return act


def _keeps_asking(tongue: Tongue) -> Act:
    """Announce twice with a pause: the node must still pull then."""

    async def act(stage: CaseStage) -> None:
        await tongue.open(stage)
        first = stage.message()
        await serve(stage, tongue, [(first.identifier, len(first.raw))], [first.raw])
        await asyncio.sleep(QUIET_S)
        require(
            not stage.attacker.ended.is_set(),
            f"the node closed within {QUIET_S:g} s, because there was nothing new",
        )

    return act


def _is_announced(tongue: Tongue) -> Act:
    """Submit as a program, pull as a peer: sizes and bytes must be the message's own."""

    async def act(stage: CaseStage) -> None:
        program = await Attacker.local(stage.attacker.target)
        try:
            await program.shake_hands_locally()
            sent = stage.message(expires_cbor=uint(_expiry(), 27))
            await _submit(program, sent)
        finally:
            await program.leave()
        attacker = stage.attacker
        await tongue.says(tongue.ask_ids(True, 0, 33))(stage)
        seen: dict[bytes, int] = {}
        unacknowledged = 0
        while sent.identifier not in seen:
            heard = await attacker.hear(tongue.hears_on)
            require(heard[0] == tongue.tags["ids"], f"the node said {heard!r}, expected ids")
            said = attacker.last_item[2:3]
            require(
                tongue.is_definite or said == b"\x9f",
                f"the list of ids begins with {said.hex()}, expected 9f",
            )
            for identifier, size in heard[1]:
                require(identifier not in seen, f"id {identifier.hex()} was announced twice")
                seen[identifier] = size
            unacknowledged += len(heard[1])
            if sent.identifier not in seen:
                await attacker.say(tongue.says_on, tongue.ask_ids(True, unacknowledged, 33))
                unacknowledged = 0
        require(
            abs(seen[sent.identifier] - len(sent.raw)) <= 32,
            f"a message of {len(sent.raw)} bytes was announced with {seen[sent.identifier]}",
        )
        await attacker.say(tongue.says_on, tongue.ask(sent.identifier))
        heard = await attacker.hear(tongue.hears_on)
        require(heard[0] == tongue.tags["messages"], f"the node said {heard!r}, expected messages")
        require(sent.raw in attacker.last_item, "the message was served with other bytes than it came")

    return act


def _rows() -> Iterator[Case]:
    told = Needs.TOLD
    node, local, bare = Start.NODE_V2, Start.LOCAL, Start.NODE_BARE
    choice, query = "handshake.choice", "handshake.query"
    served = MustServe()
    yield Case(
        "honest: versions that nobody knows beside known ones", choice, bare, _proposes_unknown, served
    )
    yield Case(
        "honest: a program's version beside one that nobody knows",
        choice,
        Start.LOCAL_BARE,
        _proposes_unknown_locally,
        served,
    )
    asks = _queries(1, lambda magic: node_data(magic, initiator_only=True, query=True))
    yield Case("honest: a peer asks for the versions", query, bare, asks, MustEnd())
    asks = _queries(LOCAL_VERSION, lambda magic: local_data(magic, query=True))
    yield Case("honest: a program asks for the versions", query, Start.LOCAL_BARE, asks, MustEnd())
    yield Case("honest: cookies from 0 to 65,535", "keepalive.echo", node, _cookies, served)

    def submits(name: str, rule: str, make: Callable[[CaseStage], ForgedMessage]) -> Case:
        return Case(f"honest: {name}", rule, local, _submits(make), served, needs=Needs.TAKEN)

    yield submits("a message", "local.accept", lambda s: s.message())
    yield submits(
        "the smallest body", "message.body", lambda s: s.message(body=secrets.token_bytes(BODY_BYTES_MIN))
    )
    yield submits(
        "the largest body", "message.body", lambda s: s.message(body=secrets.token_bytes(BODY_BYTES_MAX))
    )
    yield submits("a certificate that begins later", "message.kes", _later_evolution)
    yield submits("the last second before too far", "message.far", lambda s: s.message(lives_s=1_790))
    reasons = _reasons_without_text
    yield Case("honest: reasons without text", "local.reason", local, reasons, served)
    yield Case(
        "honest: a message after three refusals",
        "local.on",
        local,
        _goes_on_after_refusals,
        served,
        needs=Needs.TAKEN,
    )
    yield Case(
        "honest: a segment of 65,535 bytes",
        "mux.long-segment",
        local,
        _long_segment,
        served,
        needs=Needs.TAKEN,
    )
    yield Case(
        "honest: told once and in order", "notification.tell", local, _tells_in_order, served, needs=told
    )
    yield Case("honest: told byte for byte", "submission.bytes", local, _tells_as_it_came, served, needs=told)
    yield Case("honest: shape of a reply", "notification.shape", local, _reply_shapes, served)
    held = _blocking_reply_of_held
    yield Case("honest: shape of a blocking reply at once", "notification.shape", local, held, served)
    yield Case(
        "honest: shape of a blocking reply",
        "notification.blocking",
        local,
        _blocking_reply_shape,
        served,
        needs=told,
    )
    for tongue in SUPPLIERS:
        yield Case(
            f"honest supplier {tongue.name}: three large messages",
            "submission.pull",
            tongue,
            _is_supplied(tongue),
            MustGoOn(),
            needs=Needs.NO_GAP,
        )
    for tongue in (V1, V1_CIP):
        yield Case(
            f"honest supplier {tongue.name}: 35 s without news",
            "submission.pull-again",
            tongue,
            _keeps_asking(tongue),
            MustServe(),
            QUIET_S,
            needs=Needs.NO_GAP,
        )
    for tongue in PULLERS:
        rule = "submission.announce"
        yield Case(
            f"honest puller {tongue.name}: one message",
            rule,
            tongue,
            _is_announced(tongue),
            MustGoOn(),
            needs=told,
        )


HONEST = tuple(_rows())
