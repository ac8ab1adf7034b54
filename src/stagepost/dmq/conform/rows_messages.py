"""Cases of messages with one field wrong, each brought by a relay and each submitted by a program."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from stagepost.dmq.conform.attacker import LOCAL_SUBMISSION, SEED_LOCAL_SUBMISSION
from stagepost.dmq.conform.cbor_bytes import BREAK, array, head, octets, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger
from stagepost.dmq.conform.playbook import (
    SEED,
    SUPPLIERS,
    V1,
    Act,
    Case,
    CaseStage,
    Must,
    MustClose,
    MustGoOn,
    MustReject,
    Needs,
    Start,
    Tongue,
    says,
    supplies,
)
from stagepost.dmq.conform.rows_cbor import SUBMISSION_PLACE

INVALID, ALREADY_RECEIVED, EXPIRED, OTHER = range(4)
CLOCKS_DIFFER_S = 5.0
"""A relay whose clock is a little ahead is given this long before it is cut off."""

Make = Callable[[CaseStage], ForgedMessage]


def _flipped(data: bytes, at: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _with_flipped_tail(stage: CaseStage, cut: int) -> ForgedMessage:
    """A true message with one bit changed, `cut` bytes before its end."""
    true = stage.message()
    return ForgedMessage(true.identifier, _flipped(true.raw, len(true.raw) - cut))


def _signed_by_another(stage: CaseStage) -> ForgedMessage:
    return stage.message(kes_signature=Forger().kes_signature(b"something else"))


def _cold_key_of_another(stage: CaseStage) -> ForgedMessage:
    return stage.message(cold_key=stage.renewed_pool.cold_key, issue_number=5)


def _wrong_id(stage: CaseStage) -> ForgedMessage:
    return stage.message(identifier=secrets.token_bytes(32))


def _lower_number(stage: CaseStage) -> ForgedMessage:
    return stage.message(by=stage.renewed_pool, issue_number=4)


def _other_evolution(stage: CaseStage) -> ForgedMessage:
    """Signed at evolution 0, said to be at 3."""
    return stage.message(period=3)


# name, rule, what is made, code, whether a relay is cut off for it, wire's reason for a program
# fmt: off
_FAULTS: tuple[tuple[str, str, Make, str, bool, int], ...] = (
    ("id of something else", "message.id", _wrong_id, "MSG_BAD_ID", True, INVALID),
    ("expired", "message.expired", lambda s: s.message(lives_s=-30), "MSG_EXPIRED", False, EXPIRED),
    ("expired since 1970", "message.expired", lambda s: s.message(expires_cbor=uint(0)), "MSG_EXPIRED", False, EXPIRED),
    ("period before its certificate", "message.period", lambda s: s.message(period=9, start_period=10), "KES_PERIOD", True, INVALID),
    ("period after its certificate", "message.period", lambda s: s.message(period=62), "KES_PERIOD", True, INVALID),
    ("period of 2^64 - 1", "message.period", lambda s: s.message(period=(1 << 64) - 1), "KES_PERIOD", True, INVALID),
    ("pool that nobody knows", "message.pool", lambda s: s.message(by=s.stranger), "POOL_UNKNOWN", False, INVALID),
    ("pool without stake", "message.pool", lambda s: s.message(by=s.poor_pool), "POOL_NOT_ELIGIBLE", False, INVALID),
    ("issue number lower than before", "message.counter", _lower_number, "OPCERT_COUNTER", False, INVALID),
    ("certificate signed by nobody", "message.opcert", lambda s: s.message(certificate_signature=bytes(64)), "OPCERT_SIGNATURE", True, INVALID),
    ("certificate of another pool", "message.opcert", _cold_key_of_another, "OPCERT_SIGNATURE", True, INVALID),
    ("certificate for another KES key", "message.opcert", lambda s: s.message(kes_key=secrets.token_bytes(32)), "OPCERT_SIGNATURE", True, INVALID),
    ("issue number changed after signing", "message.opcert", lambda s: s.message(issue_number=7, certificate_signature=s.pool.certificate_signature(6, 0)), "OPCERT_SIGNATURE", True, INVALID),
    ("KES signature of zeros", "message.kes", lambda s: s.message(kes_signature=bytes(448)), "KES_SIGNATURE", True, INVALID),
    ("KES signature by another key", "message.kes", _signed_by_another, "KES_SIGNATURE", True, INVALID),
    ("KES signature at another evolution", "message.kes", _other_evolution, "KES_SIGNATURE", True, INVALID),
    ("one bit of the cold key changed", "message.pool", lambda s: _with_flipped_tail(s, 1), "POOL_UNKNOWN", False, INVALID),
)

# Of the wrong shape or size: a relay's connection cannot be read on, a program is told.
_SHAPES: tuple[tuple[str, str, Make, str], ...] = (
    ("body of 89 bytes", "message.body", lambda s: s.message(body=bytes(89)), "MSG_BODY_SIZE"),
    ("body of 2,001 bytes", "message.body", lambda s: s.message(body=bytes(2_001)), "MSG_BODY_SIZE"),
    ("empty body", "message.body", lambda s: s.message(body=b""), "MSG_BODY_SIZE"),
    ("body as text", "message.layout", lambda s: s.message(body_cbor=head(3, 100) + b"a" * 100), "CBOR_INVALID"),
    ("expiry of 33 bits", "message.layout", lambda s: s.message(expires_cbor=uint(1 << 32)), "CBOR_INVALID"),
    ("id of 31 bytes", "message.layout", lambda s: s.message(identifier=bytes(31)), "CBOR_INVALID"),
    ("KES signature of 288 bytes", "message.layout", lambda s: s.message(kes_signature=bytes(288)), "CBOR_INVALID"),
    ("KES signature of 449 bytes", "message.layout", lambda s: s.message(kes_signature=bytes(449)), "CBOR_INVALID"),
    ("cold signature of 63 bytes", "message.layout", lambda s: s.message(certificate_signature=bytes(63)), "CBOR_INVALID"),
    ("cold key of 33 bytes", "message.layout", lambda s: s.message(cold_key=bytes(33)), "CBOR_INVALID"),
    ("KES key of 31 bytes", "message.layout", lambda s: s.message(kes_key=bytes(31)), "CBOR_INVALID"),
    ("six elements", "message.layout", lambda s: s.message(surplus=(uint(0),)), "CBOR_INVALID"),
    ("older layout", "message.layout", lambda s: s.message(layout=4), "CBOR_INVALID"),
)
# fmt: on
_INDEFINITE_BODY = b"\x5f" + octets(bytes(100)) + BREAK


def _submits(make: Make, lane: int = LOCAL_SUBMISSION) -> Act:
    async def act(stage: CaseStage) -> None:
        await stage.attacker.say(lane, array(uint(0), make(stage).raw))

    return act


def _relayed(
    name: str,
    rule: str,
    make: Make,
    must: Must,
    tongue: Tongue,
    within_s: float = 2.0,
    *,
    needs: Needs = Needs.JUDGED,
) -> Case:
    announced_as = None
    if "id of 31" in name:
        announced_as = _any_id
    act = supplies(tongue, make, announced_as=announced_as)
    return Case(f"relay {tongue.name}: {name}", rule, tongue, act, must, within_s, needs)


def _any_id(stage: CaseStage) -> bytes:
    return secrets.token_bytes(32)


def _rows() -> Iterator[Case]:
    # Each fault once by a relay, in turns through every way of speaking; each once by a program.
    for number, (name, rule, make, code, cuts, reason) in enumerate(_FAULTS):
        must = MustClose(code, SUBMISSION_PLACE) if cuts else MustGoOn(code)
        relay_rule = "message.counter-relay" if rule == "message.counter" else rule
        yield _relayed(name, relay_rule, make, must, SUPPLIERS[number % len(SUPPLIERS)])
        reject = MustReject(reason, code)
        yield Case(f"program: {name}", rule, Start.LOCAL, _submits(make), reject, needs=Needs.JUDGED)
    for number, (name, rule, make, code) in enumerate(_SHAPES):
        tongue = V1 if name == "older layout" else SUPPLIERS[(number + 1) % len(SUPPLIERS)]
        must = MustClose(code, SUBMISSION_PLACE)
        yield _relayed(name, rule, make, must, tongue, needs=Needs.NOTHING)
        reject = MustReject(INVALID, code, may_close=True)
        yield Case(f"program: {name}", rule, Start.LOCAL, _submits(make), reject)
    far = _far_ahead
    for tongue in (V1, SEED):
        must = MustClose("MSG_EXPIRY_TOO_FAR", SUBMISSION_PLACE)
        yield _relayed(
            "expiry too far ahead", "message.far", far, must, tongue, within_s=CLOCKS_DIFFER_S + 2.0
        )
    yield Case(
        "program: expiry too far ahead",
        "message.far",
        Start.LOCAL,
        _submits(far),
        MustReject(INVALID, "MSG_EXPIRY_TOO_FAR"),
        needs=Needs.JUDGED,
    )
    yield Case(
        "program: a message that is held",
        "message.duplicate",
        Start.LOCAL,
        _submits(_held),
        MustReject(ALREADY_RECEIVED, "MSG_DUPLICATE"),
        needs=Needs.JUDGED,
    )
    yield Case(
        "program seed: a message that is held",
        "message.duplicate",
        Start.LOCAL_SEED,
        _submits(_held, SEED_LOCAL_SUBMISSION),
        MustReject(ALREADY_RECEIVED, "MSG_DUPLICATE"),
        needs=Needs.JUDGED,
    )
    for tongue in SUPPLIERS:
        yield _relayed("a message that is held", "message.duplicate", _held, MustGoOn(), tongue)
    indefinite = says(LOCAL_SUBMISSION, array(uint(0), array(octets(bytes(32)), array(_INDEFINITE_BODY))))
    yield Case(
        "program: body of indefinite length",
        "message.layout",
        Start.LOCAL,
        indefinite,
        MustClose("CBOR_INVALID", "local-message-submission"),
    )
    unsigned = _submits(_signed_by_nobody)
    reject = MustReject(INVALID, "POOL_UNKNOWN")
    yield Case("program: signed by nobody, of no pool", "message.checked", Start.LOCAL, unsigned, reject)
    for name, item in (
        ("a number", uint(5)),
        ("nothing", array()),
        ("five empty strings", array(*[b"\x40"] * 5)),
    ):
        act = says(LOCAL_SUBMISSION, array(uint(0), item))
        yield Case(
            f"program: submits {name}",
            "message.layout",
            Start.LOCAL,
            act,
            MustReject(INVALID, "CBOR_INVALID", may_close=True),
        )


def _far_ahead(stage: CaseStage) -> ForgedMessage:
    return stage.message(lives_s=1_900)


def _signed_by_nobody(stage: CaseStage) -> ForgedMessage:
    nobody = {"kes_signature": bytes(448), "certificate_signature": bytes(64)}
    return stage.message(by=stage.stranger, **nobody)


def _held(stage: CaseStage) -> ForgedMessage:
    return stage.held


MESSAGES = tuple(_rows())
