"""Cases of programs at the local socket: words out of turn, and answers that nobody reads."""

from __future__ import annotations

from stagepost.dmq.conform.attacker import (
    LOCAL_SUBMISSION,
    NOTIFICATION,
    SEED_LOCAL_SUBMISSION,
    SEED_NOTIFICATION,
    cut,
    require,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, TRUE, array, endless, octets, text, uint
from stagepost.dmq.conform.honest_program import is_too_soon
from stagepost.dmq.conform.playbook import (
    Case,
    CaseStage,
    MustClose,
    MustEnd,
    MustGoOn,
    Needs,
    Start,
    do,
    ends,
    says,
    sends,
)

_SUBMISSION, _NOTIFICATION = "local-message-submission", "local-message-notification"
_SUBMISSION_STATE, _NOTIFICATION_STATE = (
    MustClose("PROTOCOL_STATE", _SUBMISSION),
    MustClose("PROTOCOL_STATE", _NOTIFICATION),
)
_SUBMISSION_INVALID, _NOTIFICATION_INVALID = (
    MustClose("CBOR_INVALID", _SUBMISSION),
    MustClose("CBOR_INVALID", _NOTIFICATION),
)
_ASK, _ASK_BLOCKING, _DONE = array(uint(0), FALSE), array(uint(0), TRUE), array(uint(3))


async def _submits_without_waiting(stage: CaseStage) -> None:
    """Three at once: each has to be answered, in order."""
    said = b"".join(array(uint(0), stage.message().raw) for _ in range(3))
    await stage.attacker.say(LOCAL_SUBMISSION, said)
    for _ in range(3):
        answer = await stage.attacker.hear(LOCAL_SUBMISSION | 0x8000)
        require(answer == [1] or is_too_soon(answer), f"a message was answered with {answer!r}")


async def _fills_its_queue(stage: CaseStage) -> None:
    """Blocks until there is news, of which it takes none, and talks on: more than may wait."""
    attacker = stage.attacker
    heard: list[object] = [None]
    await attacker.say(NOTIFICATION, _ASK)
    while heard and heard[-1] is not False:
        heard = await attacker.hear(NOTIFICATION | 0x8000)
        await attacker.say(NOTIFICATION, _ASK if heard[-1] else _ASK_BLOCKING)
    await sends(*cut(NOTIFICATION, _ASK_BLOCKING * 360_000, 60_000))(stage)


# fmt: off
LOCAL = (
    Case("program: says accept", "local.state", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(1))), _SUBMISSION_STATE),
    Case("program: says reject", "local.state", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(2), array(uint(0), text("no")))), _SUBMISSION_STATE),
    Case("program seed: says accept", "local.state", Start.LOCAL_SEED, says(SEED_LOCAL_SUBMISSION, array(uint(1))), _SUBMISSION_STATE),
    Case("program: unknown word of submission", "local.state", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(7))), _SUBMISSION_INVALID),
    Case("program: submits two messages in one", "local.state", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), octets(b"a"), octets(b"b"))), _SUBMISSION_INVALID),
    Case("program: garbage behind an end", "local.after-done", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE + b"\xff"), _SUBMISSION_INVALID),
    Case("program: half a submission, then silence", "local.idle", Start.LOCAL, says(LOCAL_SUBMISSION, array(uint(0), octets(bytes(900)))[:400]), MustGoOn()),
    Case("program: half a submission, then the end", "cbor.truncated", Start.LOCAL, do(says(LOCAL_SUBMISSION, array(uint(0), octets(bytes(900)))[:400]), ends), MustClose("CBOR_TRUNCATED", _SUBMISSION)),
    Case("program: submits without waiting for answers", "local.pipelined", Start.LOCAL, _submits_without_waiting, MustGoOn(), needs=Needs.JUDGED),
    Case("program: ends 20,000 times in one breath", "local.after-done", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE * 20_000), MustClose("MUX_INGRESS_OVERFLOW", "connection")),
    Case("program: done, and done again", "local.after-done", Start.LOCAL, says(LOCAL_SUBMISSION, _DONE, _DONE), MustGoOn()),
    Case("program: replies to itself", "notification.state", Start.LOCAL, says(NOTIFICATION, array(uint(1), endless(), FALSE)), _NOTIFICATION_STATE),
    Case("program: replies to itself, blocking", "notification.state", Start.LOCAL, says(NOTIFICATION, array(uint(2), endless(octets(bytes(10))))), _NOTIFICATION_STATE),
    Case("program seed: replies to itself", "notification.state", Start.LOCAL_SEED, says(SEED_NOTIFICATION, array(uint(1), endless(), FALSE)), _NOTIFICATION_STATE),
    Case("program: unknown word of notification", "notification.state", Start.LOCAL, says(NOTIFICATION, array(uint(8), TRUE)), _NOTIFICATION_INVALID),
    Case("program: asks without saying how", "notification.state", Start.LOCAL, says(NOTIFICATION, array(uint(0))), _NOTIFICATION_INVALID),
    Case("program: blocks, and leaves", "mux.end", Start.LOCAL, do(says(NOTIFICATION, _ASK_BLOCKING), ends), MustEnd()),
    Case("program: more than may wait", "mux.ingress-local", Start.LOCAL, _fills_its_queue, MustClose("MUX_INGRESS_OVERFLOW", "connection"), is_flood=True),
)
# fmt: on
