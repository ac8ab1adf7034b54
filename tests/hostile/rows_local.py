"""Misbehaviours of programs at the local socket: words out of turn, and answers that nobody reads."""

from __future__ import annotations

from tests.hostile.attacker import (
    LOCAL_SUBMISSION,
    NOTIFICATION,
    SEED_LOCAL_SUBMISSION,
    SEED_NOTIFICATION,
    segments,
)
from tests.hostile.cbor_bytes import FALSE, TRUE, array, endless, octets, text, uint
from tests.hostile.playbook import Close, Ignore, Leave, Misbehaviour, Scene, Start, do, ends, says

_SUBMISSION, _NOTIFICATION = "local-message-submission", "local-message-notification"
_SUBMISSION_STATE, _NOTIFICATION_STATE = (
    Close("PROTOCOL_STATE", _SUBMISSION),
    Close("PROTOCOL_STATE", _NOTIFICATION),
)
_SUBMISSION_INVALID, _NOTIFICATION_INVALID = (
    Close("CBOR_INVALID", _SUBMISSION),
    Close("CBOR_INVALID", _NOTIFICATION),
)
_ASK, _ASK_BLOCKING, _DONE = array(uint(0), FALSE), array(uint(0), TRUE), array(uint(3))


async def _submits_without_waiting(scene: Scene) -> None:
    """Three at once: each has to be answered, in order."""
    said = b"".join(array(uint(0), scene.message().raw) for _ in range(3))
    await scene.attacker.say(LOCAL_SUBMISSION, said)
    for _ in range(3):
        assert await scene.attacker.hear(LOCAL_SUBMISSION | 0x8000) == [1]


async def _fills_its_queue(scene: Scene) -> None:
    """Blocks until there is news, of which it takes none, and talks on: more than may wait."""
    attacker = scene.attacker
    heard: list[object] = [None]
    await attacker.say(NOTIFICATION, _ASK)
    while heard and heard[-1] is not False:
        heard = await attacker.hear(NOTIFICATION | 0x8000)
        await attacker.say(NOTIFICATION, _ASK if heard[-1] else _ASK_BLOCKING)
    await attacker.raw(segments(NOTIFICATION, _ASK_BLOCKING * 360_000, 60_000))


# fmt: off
LOCAL = (
    Misbehaviour("program: says accept", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(1))), _SUBMISSION_STATE),
    Misbehaviour("program: says reject", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(2), array(uint(0), text("no")))), _SUBMISSION_STATE),
    Misbehaviour("program seed: says accept", Start.LOCAL, says(SEED_LOCAL_SUBMISSION, array(uint(1))), _SUBMISSION_STATE),
    Misbehaviour("program: unknown word of submission", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(7))), _SUBMISSION_INVALID),
    Misbehaviour("program: submits two messages in one", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), octets(b"a"), octets(b"b"))), _SUBMISSION_INVALID),
    Misbehaviour("program: garbage behind an end", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE + b"\xff"), _SUBMISSION_INVALID),
    Misbehaviour("program: half a submission, then silence", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), octets(bytes(900)))[:400]), Ignore()),
    Misbehaviour("program: half a submission, then the end", Start.LOCAL, do(says(LOCAL_SUBMISSION, array(uint(0), octets(bytes(900)))[:400]), ends), Close("CBOR_TRUNCATED", _SUBMISSION)),
    Misbehaviour("program: submits without waiting for answers", Start.LOCAL, _submits_without_waiting, Ignore()),
    Misbehaviour("program: ends 20,000 times in one breath", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE * 20_000), Close("MUX_INGRESS_OVERFLOW", "connection")),
    Misbehaviour("program: done, and done again", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE, _DONE), Ignore()),
    Misbehaviour("program: replies to itself", Start.LOCAL, says(NOTIFICATION, array(uint(1), endless(), FALSE)), _NOTIFICATION_STATE),
    Misbehaviour("program: replies to itself, blocking", Start.LOCAL, says(NOTIFICATION, array(uint(2), endless(octets(bytes(10))))), _NOTIFICATION_STATE),
    Misbehaviour("program seed: replies to itself", Start.LOCAL, says(SEED_NOTIFICATION, array(uint(1), endless(), FALSE)), _NOTIFICATION_STATE),
    Misbehaviour("program: unknown word of notification", Start.LOCAL, says(NOTIFICATION, array(uint(8), TRUE)), _NOTIFICATION_INVALID),
    Misbehaviour("program: asks without saying how", Start.LOCAL, says(NOTIFICATION, array(uint(0))), _NOTIFICATION_INVALID),
    Misbehaviour("program: blocks, and leaves", Start.LOCAL, do(says(NOTIFICATION, _ASK_BLOCKING), ends), Leave()),
    Misbehaviour("program: more than may wait", Start.LOCAL, _fills_its_queue, Close("MUX_INGRESS_OVERFLOW", "connection")),
)
# fmt: on
