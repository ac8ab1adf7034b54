"""What must hold for the delivery envelope: the body of a message that programs send to one another."""

from __future__ import annotations

from stagepost.delivery.envelope import DataEnvelope, read_data_envelope
from stagepost.errors import DecodeError, StagepostError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.wire.trace_context import TraceParent
from tests.fuzz.checks_wire import independent
from tests.fuzz.harness import Verdict, attempt, require

_POOL = PoolId(bytes(range(28)))


def check_envelope(data: bytes) -> Verdict:
    envelope = attempt(lambda: read_data_envelope(data), len(data), DecodeError)
    if envelope is None:
        return Verdict.REFUSED
    other = independent(data)
    require(other is not None and other.end == len(data), "cbor2 refuses what was accepted")
    assert other is not None
    fields = [envelope.topic, envelope.nonce, envelope.created_ms, envelope.attempt]
    fields += [list(envelope.ackers), envelope.payload]
    require(other.value[2:8] == fields, f"cbor2 reads {other.value!r}")
    _ = envelope.delivery_id(_POOL)
    try:
        again = envelope.encode()
    except StagepostError:
        # Reserved topics are read and not written; a body may be read that is too long to be sent.
        return Verdict.AGREED
    require(read_data_envelope(again) == envelope, "the envelope says another thing")
    return Verdict.AGREED


def envelope_samples() -> tuple[bytes, ...]:
    short = DataEnvelope("prices", bytes(range(16)), 1_900_000_000_000, b"1.25")
    asked = DataEnvelope("prices.of/everything", bytes(16), 1, b"x" * 300, 3, (_POOL, PoolId(bytes(28))))
    traced = DataEnvelope(
        "prices", bytes(16), 1, b"x", 0, (_POOL,), TraceParent(bytes(range(1, 17)), bytes(range(1, 9)))
    )
    return short.encode(), asked.encode(), traced.encode()
