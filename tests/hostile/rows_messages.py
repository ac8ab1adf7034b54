"""Messages with one field wrong, each brought by a relay and each submitted by a program."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from tests.hostile.attacker import LOCAL_SUBMISSION, SEED_LOCAL_SUBMISSION
from tests.hostile.cbor_bytes import BREAK, array, head, octets, uint
from tests.hostile.forged_messages import Forger, Message
from tests.hostile.playbook import (
    SEED,
    SUPPLIERS,
    V1,
    Act,
    Close,
    Ignore,
    Misbehaviour,
    Must,
    Reject,
    Scene,
    Start,
    Tongue,
    says,
    supplies,
)
from tests.hostile.rows_cbor import SUBMISSION_PLACE

INVALID, ALREADY_RECEIVED, EXPIRED, OTHER = range(4)
CLOCKS_DIFFER_S = 5.0
"""A relay whose clock is a little ahead is given this long before it is cut off."""

Make = Callable[[Scene], Message]


def _flipped(data: bytes, at: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _with_flipped_tail(scene: Scene, cut: int) -> Message:
    """A true message with one bit changed, `cut` bytes before its end."""
    true = scene.message()
    return Message(true.identifier, _flipped(true.raw, len(true.raw) - cut))


def _signed_by_another(scene: Scene) -> Message:
    return scene.message(kes_signature=Forger().kes_signature(b"something else"))


def _cold_key_of_another(scene: Scene) -> Message:
    return scene.message(cold_key=scene.renewed_pool.cold_key, issue_number=5)


def _wrong_id(scene: Scene) -> Message:
    return scene.message(identifier=secrets.token_bytes(32))


def _lower_number(scene: Scene) -> Message:
    return scene.message(by=scene.renewed_pool, issue_number=4)


def _other_evolution(scene: Scene) -> Message:
    """Signed at evolution 0, said to be at 3."""
    return scene.message(period=3)


# name, what is made, code, whether a relay is cut off for it, wire's reason for a program
# fmt: off
_FAULTS: tuple[tuple[str, Make, str, bool, int], ...] = (
    ("id of something else", _wrong_id, "MSG_BAD_ID", True, INVALID),
    ("expired", lambda s: s.message(lives_s=-30), "MSG_EXPIRED", False, EXPIRED),
    ("expired since 1970", lambda s: s.message(expires_cbor=uint(0)), "MSG_EXPIRED", False, EXPIRED),
    ("period before its certificate", lambda s: s.message(period=9, start_period=10), "KES_PERIOD", True, INVALID),
    ("period after its certificate", lambda s: s.message(period=62), "KES_PERIOD", True, INVALID),
    ("period of 2^64 - 1", lambda s: s.message(period=(1 << 64) - 1), "KES_PERIOD", True, INVALID),
    ("pool that nobody knows", lambda s: s.message(by=s.stranger), "POOL_UNKNOWN", False, INVALID),
    ("pool without stake", lambda s: s.message(by=s.poor_pool), "POOL_NOT_ELIGIBLE", False, INVALID),
    ("issue number lower than before", _lower_number, "OPCERT_COUNTER", False, INVALID),
    ("certificate signed by nobody", lambda s: s.message(certificate_signature=bytes(64)), "OPCERT_SIGNATURE", True, INVALID),
    ("certificate of another pool", _cold_key_of_another, "OPCERT_SIGNATURE", True, INVALID),
    ("certificate for another KES key", lambda s: s.message(kes_key=secrets.token_bytes(32)), "OPCERT_SIGNATURE", True, INVALID),
    ("issue number changed after signing", lambda s: s.message(issue_number=7, certificate_signature=s.pool.certificate_signature(6, 0)), "OPCERT_SIGNATURE", True, INVALID),
    ("KES signature of zeros", lambda s: s.message(kes_signature=bytes(448)), "KES_SIGNATURE", True, INVALID),
    ("KES signature by another key", _signed_by_another, "KES_SIGNATURE", True, INVALID),
    ("KES signature at another evolution", _other_evolution, "KES_SIGNATURE", True, INVALID),
    ("one bit of the cold key changed", lambda s: _with_flipped_tail(s, 1), "POOL_UNKNOWN", False, INVALID),
)

# Of the wrong shape or size: a relay's connection cannot be read on, a program is told.
_SHAPES: tuple[tuple[str, Make, str], ...] = (
    ("body of 89 bytes", lambda s: s.message(body=bytes(89)), "MSG_BODY_SIZE"),
    ("body of 2,001 bytes", lambda s: s.message(body=bytes(2_001)), "MSG_BODY_SIZE"),
    ("empty body", lambda s: s.message(body=b""), "MSG_BODY_SIZE"),
    ("body as text", lambda s: s.message(body_cbor=head(3, 100) + b"a" * 100), "CBOR_INVALID"),
    ("expiry of 33 bits", lambda s: s.message(expires_cbor=uint(1 << 32)), "CBOR_INVALID"),
    ("id of 31 bytes", lambda s: s.message(identifier=bytes(31)), "CBOR_INVALID"),
    ("KES signature of 288 bytes", lambda s: s.message(kes_signature=bytes(288)), "CBOR_INVALID"),
    ("KES signature of 449 bytes", lambda s: s.message(kes_signature=bytes(449)), "CBOR_INVALID"),
    ("cold signature of 63 bytes", lambda s: s.message(certificate_signature=bytes(63)), "CBOR_INVALID"),
    ("cold key of 33 bytes", lambda s: s.message(cold_key=bytes(33)), "CBOR_INVALID"),
    ("KES key of 31 bytes", lambda s: s.message(kes_key=bytes(31)), "CBOR_INVALID"),
    ("six elements", lambda s: s.message(surplus=(uint(0),)), "CBOR_INVALID"),
    ("older layout", lambda s: s.message(layout=4), "CBOR_INVALID"),
)
# fmt: on
_INDEFINITE_BODY = b"\x5f" + octets(bytes(100)) + BREAK


def _submits(make: Make, lane: int = LOCAL_SUBMISSION) -> Act:
    async def act(scene: Scene) -> None:
        await scene.attacker.say(lane, array(uint(0), make(scene).raw))

    return act


def _relayed(name: str, make: Make, must: Must, tongue: Tongue, within_s: float = 2.0) -> Misbehaviour:
    announced_as = None
    if "id of 31" in name:
        announced_as = _any_id
    act = supplies(tongue, make, announced_as=announced_as)
    return Misbehaviour(f"relay {tongue.name}: {name}", tongue.start, act, must, within_s)


def _any_id(scene: Scene) -> bytes:
    return secrets.token_bytes(32)


def _rows() -> Iterator[Misbehaviour]:
    # Each fault once by a relay, in turns through every way of speaking; each once by a program.
    for number, (name, make, code, cuts, reason) in enumerate(_FAULTS):
        must = Close(code, SUBMISSION_PLACE) if cuts else Ignore(code)
        yield _relayed(name, make, must, SUPPLIERS[number % len(SUPPLIERS)])
        yield Misbehaviour(f"program: {name}", Start.LOCAL, _submits(make), Reject(reason, code))
    for number, (name, make, code) in enumerate(_SHAPES):
        tongue = V1 if name == "older layout" else SUPPLIERS[(number + 1) % len(SUPPLIERS)]
        yield _relayed(name, make, Close(code, SUBMISSION_PLACE), tongue)
        yield Misbehaviour(f"program: {name}", Start.LOCAL, _submits(make), Reject(INVALID, code))
    far = _far_ahead
    for tongue in (V1, SEED):
        must = Close("MSG_EXPIRY_TOO_FAR", SUBMISSION_PLACE)
        yield _relayed("expiry too far ahead", far, must, tongue, within_s=CLOCKS_DIFFER_S + 2.0)
    yield Misbehaviour(
        "program: expiry too far ahead", Start.LOCAL, _submits(far), Reject(INVALID, "MSG_EXPIRY_TOO_FAR")
    )
    yield Misbehaviour(
        "program: a message that is held",
        Start.LOCAL,
        _submits(_held),
        Reject(ALREADY_RECEIVED, "MSG_DUPLICATE"),
    )
    yield Misbehaviour(
        "program seed: a message that is held",
        Start.LOCAL,
        _submits(_held, SEED_LOCAL_SUBMISSION),
        Reject(ALREADY_RECEIVED, "MSG_DUPLICATE"),
    )
    for tongue in SUPPLIERS:
        yield _relayed("a message that is held", _held, Ignore(), tongue)
    indefinite = says(LOCAL_SUBMISSION, array(uint(0), array(octets(bytes(32)), array(_INDEFINITE_BODY))))
    yield Misbehaviour(
        "program: body of indefinite length",
        Start.LOCAL,
        indefinite,
        Close("CBOR_INVALID", "local-message-submission"),
    )
    for name, item in (
        ("a number", uint(5)),
        ("nothing", array()),
        ("five empty strings", array(*[b"\x40"] * 5)),
    ):
        act = says(LOCAL_SUBMISSION, array(uint(0), item))
        yield Misbehaviour(f"program: submits {name}", Start.LOCAL, act, Reject(INVALID, "CBOR_INVALID"))


def _far_ahead(scene: Scene) -> Message:
    return scene.message(lives_s=1_900)


def _held(scene: Scene) -> Message:
    return scene.held


MESSAGES = tuple(_rows())
